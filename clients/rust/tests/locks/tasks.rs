//! Locks of tasks: what neither blocks a runtime nor needs one.

use crate::{SHORT, client_of};
use redis_lock_client::redis::{Value, cmd};
use redis_lock_client::{AsyncGuard, Client, Error, Owner, Quorum};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Port, Proxy, Server, Signal, wait_for, wait_so_long};
use tokio::runtime::{Builder, Runtime};

/// Far less than a request may take at a server that hangs.
const PROMPTLY: Duration = Duration::from_secs(10);

/// With one thread, which none of its tasks may hold up.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn guards_that_are_dropped_block_no_runtime_though_the_server_hangs() {
    let server = Server::new();
    let client = client_of(&server).timeout(PATIENCE);
    let runtime = runtime();
    let took = runtime.block_on(async {
        let mut guards: Vec<AsyncGuard> = Vec::new();
        // Together they would wait for longer than that, if each waited for a quarter of a second.
        for number in 0..80 {
            guards.push(client.key(format!("k{number}")).lock_async().await.unwrap());
        }
        server.signal(Signal::STOP);
        let since = Instant::now();
        drop(guards);
        since.elapsed()
    });
    server.signal(Signal::CONT);
    assert!(took < PROMPTLY, "{took:?}");
    assert!(runtime.block_on(client.wait_released_async(PATIENCE)));
    assert_eq!(server.connect().info_number("lock", "lock_leases"), 0);
}

#[test]
fn a_wait_whose_future_is_dropped_leaves_the_queue_though_its_runtime_has_ended() {
    let server = Server::new();
    let (client, mut conn) = (client_of(&server), server.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        let lock = client.key("k");
        let wait = tokio::spawn(async move { lock.lock_async().await });
        while conn.lock_info("k").unwrap().waiting == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        wait.abort();
        assert!(wait.await.unwrap_err().is_cancelled());
    });
    drop(runtime);
    // Long before its QUEUE is over.
    wait_so_long(PROMPTLY, "the place to be gone", || conn.lock_info("k").unwrap().waiting == 0);
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    assert!(conn.lock_info("k").is_none());
}

#[test]
fn a_lock_is_renewed_and_released_without_the_runtime_in_which_it_was_taken() {
    let server = Server::new();
    let (client, mut conn) = (client_of(&server), server.connect());
    let guard = runtime().block_on(client.key("k").lease(SHORT).lock_async()).unwrap();
    wait_for("renewals", || conn.info_number("lock", "lock_extended") >= 4 || guard.is_lost());
    assert!(!guard.is_lost());
    drop(guard);
    wait_for("the release", || conn.lock_info("k").is_none());
}

#[test]
fn a_task_hears_of_the_loss_beside_its_work() {
    let server = Server::new();
    let guard = runtime().block_on(async {
        let guard = client_of(&server).key("k").lease(SHORT).lock_async().await.unwrap();
        let loss = guard.loss();
        server.connect().int(&["LOCK.BREAK", "k"]);
        tokio::select! {
            () = guard.lost() => {}
            () = tokio::time::sleep(PATIENCE) => panic!("nobody told it"),
        }
        assert!(loss.wait_async().await && loss.is_set());
        guard
    });
    assert!(matches!(runtime().block_on(guard.release()), Err(Error::Lost)));
}

#[test]
fn a_task_asks_about_locks_hands_them_over_and_gives_them_up() {
    let server = Server::new();
    let (client, owner) = (client_of(&server), Owner::new());
    runtime().block_on(async {
        let guard = client.key("k").owner(&owner).note("by a task").lock_async().await.unwrap();
        assert!(client.key("k").try_lock_async().await.unwrap().is_none());
        assert!(client.key("k").try_lock_for_async(Duration::from_millis(1)).await.unwrap().is_none());
        assert!(guard.check().await.unwrap() && guard.renew().await.unwrap());
        assert_eq!(guard.guard::<String>(cmd("ECHO").arg("run")).await.unwrap(), "run");
        assert!(client.check_async("k", owner.as_str(), guard.fence()).await.unwrap());
        assert!(!client.check_async("k", owner.as_str(), guard.fence() + 1).await.unwrap());
        let holder = (owner.to_string(), Some("by a task".to_owned()));
        assert_eq!(client.holders_async("k").await.unwrap(), [holder]);
        assert_eq!(client.ask_async("", &cmd("PING")).await.unwrap(), Value::SimpleString("PONG".to_owned()));
        guard.set_note("half done").await.unwrap();
        assert_eq!(client.holders_async("k").await.unwrap()[0].1.as_deref(), Some("half done"));
        let token = guard.detach().await.unwrap();
        let adopted = client.adopt_async(&token).await.unwrap();
        assert!(adopted.fence() > token.fence);
        let late = cmd("LOCK.GUARD").arg("k").arg(&token.owner).arg(token.fence).arg(&["SET", "k2", "late"]).take();
        assert_eq!(client.ask_async("k", &late).await.unwrap(), Value::Nil);
        adopted.guard::<()>(cmd("SET").arg("k2").arg("mine")).await.unwrap();
        assert!(matches!(client.adopt_async(&token).await, Err(Error::Lost)), "a token is good once");
        adopted.release_after(Duration::from_millis(50)).await.unwrap();
    });
    wait_for("its end", || server.connect().lock_info("k").is_none());
}

#[test]
fn a_take_over_whose_future_is_dropped_keeps_no_lock() {
    let server = Server::new();
    let (proxy, mut conn) = (Proxy::to(server.port()), server.connect());
    let (giver, client) = (client_of(&server), Client::open(("127.0.0.1", proxy.port())).unwrap().timeout(PATIENCE));
    let runtime = runtime();
    let detach = || giver.key("k").lease(PATIENCE * 10).lock().unwrap().detach().unwrap();
    // Of a server that has just begun it is asked more than once.
    runtime.block_on(async { client.adopt_async(&detach()).await.unwrap().release().await }).unwrap();
    for is_answered in [false, true] {
        let token = detach();
        proxy.freeze(!is_answered);
        runtime.block_on(async {
            let mut adoption = pin!(client.adopt_async(&token));
            assert!(adoption.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            if is_answered {
                let fence = i64::try_from(token.fence).unwrap();
                wait_for("the answer", || conn.lock_info("k").unwrap().holders[0].fence > fence);
            }
        });
        proxy.freeze(false);
        assert!(runtime.block_on(client.wait_released_async(PATIENCE)));
        assert!(conn.lock_info("k").is_none(), "answered: {is_answered}");
    }
}

#[test]
fn what_a_task_cannot_hand_over_is_given_back() {
    let server = Server::new();
    let (proxy, mut conn) = (Proxy::to(server.port()), server.connect());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap().timeout(Duration::from_secs(1));
    let (runtime, nobody) = (runtime(), Port::claim());
    let take = || runtime.block_on(client.key("k").lease(PATIENCE * 10).lock_async()).unwrap();
    for is_cut in [false, true] {
        let guard = take();
        if is_cut {
            proxy.lead_to(nobody.number());
        } else {
            proxy.freeze(true);
        }
        assert!(matches!(runtime.block_on(guard.detach()), Err(Error::Connection(_))));
        proxy.lead_to(server.port());
        proxy.freeze(false);
        assert!(runtime.block_on(client.wait_released_async(PATIENCE)));
        assert!(conn.lock_info("k").is_none(), "cut: {is_cut}");
    }
    for is_answered in [false, true] {
        // The answer may be there at the first look. Then nothing was dropped.
        let mut was_dropped = false;
        while !was_dropped {
            let guard = take();
            let before = conn.info_number("lock", "lock_extended");
            proxy.freeze(!is_answered);
            runtime.block_on(async {
                let mut handing = pin!(guard.detach());
                was_dropped = handing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
                if is_answered {
                    wait_for("the answer", || conn.info_number("lock", "lock_extended") > before);
                }
            });
            proxy.freeze(false);
            if !was_dropped {
                conn.int(&["LOCK.BREAK", "k"]);
            }
        }
        assert!(runtime.block_on(client.wait_released_async(PATIENCE)));
        assert!(conn.lock_info("k").is_none(), "answered: {is_answered}");
    }
}

#[test]
fn a_callback_that_takes_long_holds_up_no_task() {
    let (told, calls) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let nobody = Client::open(("127.0.0.1", 1)).unwrap();
    let own = thread::current().id();
    let lock = nobody.key("k").on_trouble(move |error| {
        let is_apart = thread::current().id() != own;
        told.send((is_apart, error.to_string())).unwrap();
        if is_apart {
            let _: Result<(), _> = wait.lock().unwrap().recv_timeout(PATIENCE);
        }
        panic!("the callback fails");
    });
    // Both return though the first callback does not.
    runtime().block_on(async {
        assert!(matches!(lock.try_lock_async().await, Err(Error::Connection(_))));
        let waited = lock.try_lock_for_async(Duration::from_millis(300)).await;
        assert!(matches!(waited, Err(Error::Connection(_))), "{waited:?}");
    });
    for _ in 0..2 {
        let (is_apart, said) = calls.recv_timeout(PATIENCE).unwrap();
        assert!(is_apart && said.contains("127.0.0.1:1"), "{said}");
        go_on.send(()).unwrap();
    }
}

#[test]
fn a_task_may_take_no_lock_of_a_quorum() {
    // It would have to wait in a thread.
    let quorum = Quorum::open([1, 2, 3].map(|port| ("127.0.0.1", port))).unwrap();
    assert!(matches!(runtime().block_on(quorum.key("k").lock_async()), Err(Error::Refused(_))));
}

#[test]
fn threads_and_tasks_wait_in_one_queue() {
    let server = Server::new();
    let (client, mut conn) = (client_of(&server), server.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    let take = |client: &Client| client.lock("k").unwrap().fence();
    let take_in_task = |client: &Client| runtime().block_on(client.key("k").lock_async()).unwrap().fence();
    let fences = thread::scope(|scope| {
        let first = scope.spawn(|| take_in_task(&client));
        conn.await_waiters("k", 1);
        let second = scope.spawn(|| take(&client));
        conn.await_waiters("k", 2);
        let third = scope.spawn(|| take_in_task(&client));
        conn.await_waiters("k", 3);
        server.connect().int(&["LOCK.RELEASE", "k", "first"]);
        [first, second, third].map(|wait| wait.join().unwrap())
    });
    assert!(fences.is_sorted(), "{fences:?}");
}
