//! Locks on a bad day: callbacks that fail, servers that hang, are far, full, or no servers of locks.

use crate::{SHORT, await_waiter, client_of, far, holds};
use redis_lock_client::{Client, Error, Guard, Owner};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Port, Proxy, Server, Signal, wait_for};

/// What a request may take here that should not wait for a server that hangs: far less than that one takes.
const HANG: Duration = Duration::from_secs(4);

#[test]
fn a_callback_that_panics_at_a_renewal_ends_no_other_renewal() {
    let server = Server::new();
    let client = client_of(&server);
    let (told, calls) = channel();
    let lock = client.key("a").lease(SHORT).on_trouble(move |_| {
        let _: Result<(), _> = told.send(());
        panic!("the callback fails");
    });
    let first = lock.lock().unwrap();
    server.connect().ok(&["ACL", "SETUSER", "default", "-lock.extend"]);
    calls.recv_timeout(PATIENCE).unwrap();
    server.connect().ok(&["ACL", "SETUSER", "default", "+lock.extend"]);
    drop(first);
    let later = client.key("b").lease(SHORT).lock().unwrap();
    assert!(!later.wait_lost(SHORT * 2), "a later lock of the same client is renewed");
    assert!(holds(&server, "b", &later));
}

#[test]
fn a_wait_whose_callback_panics_goes_on_in_its_place() {
    let server = Server::new();
    let client = client_of(&server);
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    let owner = Owner::new();
    let lock = client.key("k").owner(&owner).on_trouble(|_| panic!("the callback fails"));
    thread::scope(|scope| {
        let wait = scope.spawn(|| lock.lock());
        await_waiter(&server, "k", &owner);
        let client = conn.lock_info("k").unwrap().waiters[0].client.unwrap();
        conn.int(&["CLIENT", "UNBLOCK", &client.to_string(), "ERROR"]);
        wait_for("it to wait again", || {
            let waiters = conn.lock_info("k").unwrap().waiters;
            wait.is_finished() || waiters.first().is_some_and(|waiter| waiter.client.is_some())
        });
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        wait.join().expect("no panic").unwrap().release().unwrap();
    });
    assert!(conn.lock_info("k").is_none());
}

#[test]
fn a_callback_that_takes_long_delays_no_renewal() {
    let server = Server::new();
    let client = client_of(&server);
    let (told, calls) = channel();
    let (go_on, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let lock = client.key("a").lease(SHORT).on_trouble(move |_| {
        let _: Result<(), _> = told.send(());
        let _: Result<(), _> = wait.lock().unwrap().recv_timeout(PATIENCE);
    });
    let first = lock.lock().unwrap();
    let other = client.key("b").lease(SHORT).lock().unwrap();
    server.connect().int(&["LOCK.BREAK", "a"]);
    calls.recv_timeout(PATIENCE).unwrap();
    assert!(!other.wait_lost(SHORT * 2), "it is renewed while the callback does not return");
    drop(go_on);
    drop(first);
}

#[test]
fn many_locks_at_a_far_server_are_kept() {
    // One by one, each renewal would take a round trip, and all of them longer than the lease.
    let server = Server::new();
    let far = far::wire_to(server.port(), Duration::from_millis(50));
    let client = Client::open(("127.0.0.1", far)).unwrap();
    let guards: Vec<Guard> = thread::scope(|scope| {
        let take = |from: usize| {
            let client = client.clone();
            move || {
                let taken =
                    (from..450).step_by(25).map(|number| client.key(format!("k{number}")).lease(SHORT * 4).lock());
                taken.collect::<Result<Vec<Guard>, Error>>().unwrap()
            }
        };
        let takers: Vec<_> = (0..25).map(|from| scope.spawn(take(from))).collect();
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    let mut conn = server.connect();
    let any_is_lost = || guards.iter().any(|guard| guard.is_lost());
    wait_for("three renewals of each", || conn.info_number("lock", "lock_extended") >= 3 * 450 || any_is_lost());
    assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 0);
    // Each takes a round trip.
    thread::scope(|scope| guards.into_iter().for_each(|guard| drop(scope.spawn(|| drop(guard)))));
    wait_for("all to be released", || conn.info_number("lock", "lock_leases") == 0);
}

#[test]
fn a_lock_outlives_its_connection_where_a_round_trip_takes_a_fifth_of_the_lease() {
    let server = Server::new();
    let lease = SHORT * 3;
    let far = far::wire_to(server.port(), lease / 10);
    let client = Client::open(("127.0.0.1", far)).unwrap();
    let guard = client.key("k").lease(lease).lock().unwrap();
    let mut conn = server.connect();
    let before = conn.info_number("lock", "lock_extended");
    // The renewal has come, and its answer is on its way.
    wait_for("a renewal", || conn.info_number("lock", "lock_extended") > before || guard.is_lost());
    conn.int(&["CLIENT", "KILL", "TYPE", "normal"]);
    // It is repeated, and is due again.
    wait_for("more renewals", || conn.info_number("lock", "lock_extended") > before + 2 || guard.is_lost());
    assert!(!guard.is_lost());
    guard.release().unwrap();
}

/// Connections, until the server takes no more.
fn fill(server: &Server) -> Vec<redis_lock_client::redis::Connection> {
    let client = redis_lock_client::redis::Client::open(("127.0.0.1", server.port())).unwrap();
    std::iter::from_fn(|| {
        let mut conn = client.get_connection().ok()?;
        redis_lock_client::redis::cmd("PING").exec(&mut conn).ok().map(|()| conn)
    })
    .collect()
}

#[test]
fn no_lock_is_lost_while_the_server_takes_no_more_connections() {
    let server = Server::setup().option("maxclients", "20").start();
    let mut conn = server.connect();
    let client = client_of(&server);
    let guard = client.key("k").lease(SHORT).lock().unwrap();
    thread::scope(|scope| {
        let cancel = redis_lock_client::Cancel::new();
        for _ in 0..40 {
            let lock = client.key("k").cancelled_by(&cancel);
            scope.spawn(move || lock.lock());
        }
        wait_for("some to wait", || conn.lock_info("k").is_some_and(|info| info.waiting >= 5));
        let others = fill(&server);
        let lost = guard.wait_lost(SHORT * 3);
        let is_released = guard.release();
        drop(others);
        cancel.cancel();
        assert!(!lost, "it is renewed over the connection that it has");
        is_released.unwrap();
    });
}

#[test]
fn renewals_go_on_over_a_new_connection_when_old_ones_died_without_a_word() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap();
    let guard = client.key("k").lease(SHORT * 2).lock().unwrap();
    let mut conn = server.connect();
    let extended = |conn: &mut testbed::Client| conn.info_number("lock", "lock_extended");
    wait_for("a renewal", || extended(&mut conn) > 0);
    // What is open stays open, and leads nowhere.
    proxy.freeze(true);
    thread::sleep(SHORT);
    proxy.cut_all();
    proxy.freeze(false);
    let before = extended(&mut conn);
    wait_for("the next renewal", || extended(&mut conn) > before || guard.is_lost());
    assert!(!guard.is_lost());
    guard.release().unwrap();
}

#[test]
fn a_guard_that_is_dropped_does_not_wait_for_a_server_that_hangs_and_releases_when_it_goes_on() {
    let server = Server::new();
    let client = client_of(&server);
    let guard = client.key("k").lease(Duration::from_secs(600)).lock().unwrap();
    server.signal(Signal::STOP);
    let since = Instant::now();
    drop(guard);
    let took = since.elapsed();
    // Longer than a request may take: the first release is given up meanwhile.
    thread::sleep(Duration::from_secs(6));
    server.signal(Signal::CONT);
    assert!(took < HANG, "{took:?}");
    wait_for("the release", || server.connect().lock_info("k").is_none());
}

#[test]
fn a_release_without_an_answer_is_repeated_until_there_is_one() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap().timeout(Duration::from_secs(1));
    let guard = client.key("k").lease(Duration::from_secs(600)).lock().unwrap();
    proxy.freeze(true);
    assert!(matches!(guard.release(), Err(Error::Connection(_))));
    // What was sent until now never arrives.
    proxy.cut_all();
    proxy.freeze(false);
    wait_for("the release", || server.connect().lock_info("k").is_none());
}

#[test]
fn a_lock_that_cannot_be_handed_over_is_given_back() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap().timeout(Duration::from_secs(1));
    let lock = client.key("k").lease(Duration::from_secs(600));
    let nobody = Port::claim();
    for is_cut in [false, true] {
        let guard = lock.lock().unwrap();
        if is_cut {
            proxy.lead_to(nobody.number());
        } else {
            proxy.freeze(true);
        }
        assert!(matches!(guard.detach(), Err(Error::Connection(_))));
        proxy.lead_to(server.port());
        proxy.freeze(false);
        assert!(client.wait_released(PATIENCE));
        assert!(server.connect().lock_info("k").is_none(), "cut: {is_cut}");
    }
}

#[test]
fn a_request_to_hand_over_that_is_repeated_takes_nothing_from_the_taker() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap().timeout(PATIENCE);
    let mut repeated = 0;
    for bytes in (1..200).step_by(7) {
        let guard = client.lock("k").unwrap();
        let before = proxy.cuts();
        proxy.cut_after(bytes);
        let token = guard.detach().unwrap();
        repeated += proxy.cuts() - before;
        let adopted = client_of(&server).adopt(&token).unwrap();
        assert!(client.wait_released(PATIENCE) && adopted.check().unwrap());
        adopted.release().unwrap();
    }
    assert!(repeated > 0, "no request was cut off");

    let ends: [fn(Guard) -> Result<(), Error>; 2] =
        [|guard| guard.detach().map(drop), |guard| guard.release_after(PATIENCE)];
    for end in ends {
        let guard = client.lock("k").unwrap();
        server.connect().int(&["LOCK.BREAK", "k"]);
        proxy.cut_after(1);
        assert!(matches!(end(guard), Err(Error::Lost)), "the first request did not end it");
    }
}

#[test]
fn what_is_asked_of_a_key_that_was_overwritten_says_that_it_is_lost() {
    let server = Server::new();
    let client = client_of(&server);
    let release: fn(Guard) -> Option<Guard> = |guard| {
        assert!(matches!(guard.release(), Err(Error::Lost)));
        None
    };
    let asks: [fn(Guard) -> Option<Guard>; 5] = [
        |guard| (!guard.check().unwrap()).then_some(guard),
        |guard| (!guard.renew().unwrap()).then_some(guard),
        |guard| (!guard.try_lease(PATIENCE).unwrap()).then_some(guard),
        |guard| matches!(guard.set_note("late"), Err(Error::Lost)).then_some(guard),
        release,
    ];
    for (number, ask) in asks.into_iter().enumerate() {
        let guard = client.keys(["a", "b"]).lock().unwrap();
        let loss = guard.loss();
        server.connect().int(&["DEL", "a"]);
        server.connect().ok(&["SET", "a", "another's"]);
        let asked = ask(guard);
        assert!(loss.is_set(), "{number}");
        if let Some(guard) = asked {
            release(guard);
        }
        assert!(server.connect().lock_info("b").is_none(), "the other key is released: {number}");
        server.connect().int(&["DEL", "a"]);
    }
}

#[test]
fn with_old_clients_something_else_on_the_key_is_a_lock_of_others() {
    let server = Server::new();
    let mut conn = server.connect();
    for client in [client_of(&server), client_of(&server).max_blocking(0)] {
        conn.int(&["HSET", "k", "uuid:1", "1"]);
        let error = client.try_lock_for("k", PATIENCE).unwrap_err();
        assert!(error.to_string().starts_with("WRONGTYPE"), "{error}");
        let (told, errors) = channel();
        let lock = client.key("k").owner(&Owner::new()).old_clients();
        let lock = lock.on_trouble(move |error| drop(told.send(error.to_string())));
        assert!(lock.try_lock().unwrap().is_none());
        conn.ok(&["CONFIG", "RESETSTAT"]);
        assert!(lock.try_lock_for(Duration::from_millis(500)).unwrap().is_none());
        // After pauses of 0.1 s, 0.2 s and so on.
        assert!(conn.calls("lock.acquire") <= 4);
        thread::scope(|scope| {
            // The same owner may ask again: it was told that it has nothing.
            let wait = scope.spawn(|| lock.lock());
            wait_for("it to ask", || conn.calls("lock.acquire") > 4);
            assert!(!wait.is_finished(), "an old client has it");
            conn.int(&["DEL", "k"]);
            wait.join().unwrap().unwrap().release().unwrap();
        });
        assert!(errors.try_recv().is_err(), "nothing is wrong");
    }
}

#[test]
fn an_attempt_at_a_server_that_hangs_is_answered_in_time_and_leaves_nothing() {
    let server = Server::new();
    let client = client_of(&server).timeout(Duration::from_secs(1));
    let lock = client.key("k").lease(Duration::from_secs(600));
    lock.lock().unwrap().release().unwrap();
    server.signal(Signal::STOP);
    let since = Instant::now();
    let tried = lock.try_lock();
    let took = since.elapsed();
    let since = Instant::now();
    let waited = lock.try_lock_for(Duration::from_millis(100));
    let took_too = since.elapsed();
    server.signal(Signal::CONT);
    assert!(matches!(tried, Err(Error::Connection(_))), "{tried:?}");
    assert!(matches!(waited, Err(Error::Connection(_))), "{waited:?}");
    // Its time, and not again that of a request that leaves.
    assert!(took < Duration::from_millis(2500), "{took:?}");
    assert!(took_too < Duration::from_millis(2500), "{took_too:?}");
    wait_for("nothing to be left", || server.connect().lock_info("k").is_none());
}

#[test]
fn full_memory_is_waited_out_in_place() {
    let server = Server::new();
    let client = client_of(&server);
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    let owner = Owner::new();
    let (told, errors) = channel();
    let lock = client.key("k").owner(&owner).on_trouble(move |error| drop(told.send(error.to_string())));
    thread::scope(|scope| {
        conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
        let wait = scope.spawn(|| lock.lock());
        let first = errors.recv_timeout(PATIENCE).unwrap();
        conn.ok(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(first.starts_with("OOM"), "{first}");
        await_waiter(&server, "k", &owner);
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        wait.join().unwrap().unwrap().release().unwrap();
    });
}

/// What is logged in this process.
struct Logged(Mutex<Vec<String>>);

impl log::Log for Logged {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

static LOGGED: Logged = Logged(Mutex::new(Vec::new()));

#[test]
fn trouble_that_no_callback_hears_is_logged_with_the_key() {
    log::set_logger(&LOGGED).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let nobody = Client::open(("127.0.0.1", 1)).unwrap();
    assert!(nobody.key("told").on_trouble(|_| {}).try_lock().is_err());
    assert!(nobody.try_lock("logged").is_err());
    let server = Server::new();
    let guard = client_of(&server).key("lost").lease(SHORT).lock().unwrap();
    let token = client_of(&server).key("adopted").lease(SHORT).lock().unwrap().detach().unwrap();
    let adopted = client_of(&server).adopt(&token).unwrap();
    let mut conn = server.connect();
    for key in ["lost", "adopted"] {
        conn.int(&["LOCK.BREAK", key]);
    }
    assert!(guard.wait_lost(PATIENCE) && adopted.wait_lost(PATIENCE));
    let count = |begin: &str| LOGGED.0.lock().unwrap().iter().filter(|line| line.starts_with(begin)).count();
    for key in ["lost", "adopted"] {
        wait_for("the log", || count(&format!("WARN lock {key}: the lock was lost")) == 1);
    }
    assert_eq!((count("WARN lock logged: "), count("WARN lock told: ")), (1, 0));
}

/// A lock of this server that passes on what it is told.
fn told_of(client: &Client, lease: Duration) -> (redis_lock_client::Lock, Receiver<String>) {
    let (told, errors) = channel();
    (client.key("k").lease(lease).on_trouble(move |error| drop(told.send(error.to_string()))), errors)
}

#[test]
fn what_goes_wrong_is_told_at_the_first_attempt() {
    let expect = |errors: &Receiver<String>, text: &str| {
        let said = errors.recv_timeout(PATIENCE).unwrap();
        assert!(said.contains(text), "{said}");
    };
    // Nobody listens there.
    let nobody = Client::open(("127.0.0.1", 1)).unwrap();
    let (lock, errors) = told_of(&nobody, SHORT);
    assert!(lock.try_lock_for(Duration::from_millis(300)).is_err());
    expect(&errors, "127.0.0.1:1");
    assert!(lock.try_lock().is_err());
    expect(&errors, "127.0.0.1:1");

    let bare = Server::setup().without_module().start();
    let (lock, errors) = told_of(&client_of(&bare), SHORT);
    let error = lock.lock().unwrap_err();
    assert!(error.to_string().starts_with("the server has no module redis-lock"), "{error}");
    expect(&errors, "the server has no module redis-lock");

    let server = Server::new();
    let mut conn = server.connect();
    let (lock, errors) = told_of(&client_of(&server), SHORT);
    conn.ok(&["ACL", "SETUSER", "default", "-lock.acquire"]);
    assert!(matches!(lock.lock(), Err(Error::Server(_))));
    expect(&errors, "NOPERM");
    conn.ok(&["ACL", "SETUSER", "default", "+lock.acquire"]);

    let guard = lock.lock().unwrap();
    conn.ok(&["ACL", "SETUSER", "default", "-lock.extend"]);
    expect(&errors, "NOPERM");
    conn.ok(&["ACL", "SETUSER", "default", "+lock.extend"]);
    conn.int(&["LOCK.BREAK", "k"]);
    let mut said = String::new();
    wait_for("the loss to be told", || {
        said = errors.recv_timeout(PATIENCE).unwrap();
        said.contains("lost")
    });
    assert!(guard.is_lost());
}

#[test]
fn a_key_whose_guard_was_dropped_may_be_asked_for_again_under_its_owner() {
    // The answer to the release takes longer than the drop waits for it.
    let server = Server::new();
    let far = far::wire_to(server.port(), Duration::from_millis(200));
    let client = Client::open(("127.0.0.1", far)).unwrap();
    let outer = client.lock("outer").unwrap();
    for _ in 0..3 {
        drop(client.key("inner").within(&outer).lock().unwrap());
    }
    outer.release().unwrap();
}
