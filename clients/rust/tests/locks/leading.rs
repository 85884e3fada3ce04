//! Leaders: one at a time, and one again when the former has gone away.

use crate::{SHORT, client_of};
use redis_lock_client::{AsyncGuard, Cancel, Client, Error, Lock, Moment};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use testbed::{PATIENCE, Proxy, Server};
use tokio::runtime::Builder;

#[path = "../../examples/leader.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program")]
mod leader;

/// Leaders, who end with the test, also if it fails.
struct Leaders([Cancel; 2]);

impl Drop for Leaders {
    fn drop(&mut self) {
        self.0.iter().for_each(Cancel::cancel);
    }
}

#[test]
fn a_leader_whose_server_goes_away_steps_down_before_another_leads_and_leads_again_later() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let far = Client::open(("127.0.0.1", proxy.port())).unwrap();
    let cancels = [Cancel::new(), Cancel::new()];
    let (told, events) = channel();
    let next = || events.recv_timeout(PATIENCE).expect("an event");
    thread::scope(|scope| {
        let _ends = Leaders(cancels.clone());
        let lead = |number: usize, client: Client| {
            let (told, cancel) = (told.clone(), &cancels[number]);
            scope.spawn(move || {
                let say = |event: &str, term| told.send((number, event.to_owned(), term)).unwrap();
                leader::lead(&client, cancel, say)
            })
        };
        let first = lead(0, far);
        let (_, event, term) = next();
        assert_eq!(event, "leads");
        let second = lead(1, client_of(&server));
        proxy.freeze(true);
        // In whichever order they are heard of: to step down takes a moment.
        let mut both = [next(), next()];
        both.sort();
        assert_eq!(both[0], (0, "steps down".to_owned(), term));
        let (other, event, later) = &both[1];
        assert!(*other == 1 && event == "leads" && *later > term, "{both:?}");
        proxy.freeze(false);
        cancels[1].cancel();
        assert!(matches!(second.join().unwrap(), Err(Error::Cancelled)));
        assert_eq!(next(), (1, "steps down".to_owned(), *later));
        let (number, event, last) = next();
        assert!(number == 0 && event == "leads" && last > *later);
        cancels[0].cancel();
        assert!(matches!(first.join().unwrap(), Err(Error::Cancelled)));
    });
    assert!(server.connect().lock_info("planner").is_none());
}

#[test]
fn a_term_is_over_before_the_next_one_begins() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let far = Client::open(("127.0.0.1", proxy.port())).unwrap();
    let ended = far.key("k").lease(SHORT).lead(|guard| {
        let next = client_of(&server).key("k");
        let next = thread::spawn(move || next.lead(|guard| ControlFlow::Break((guard.fence(), Moment::now()))));
        proxy.freeze(true);
        let (later, began) = next.join().unwrap().unwrap();
        assert!(later > guard.fence() && guard.valid_until() <= began && guard.is_lost(), "two lead at once");
        ControlFlow::Break(())
    });
    ended.unwrap();
}

#[test]
fn the_work_of_a_term_is_refused_a_wait_for_its_own_lock() {
    // It would wait for itself, for ever.
    let server = Server::new();
    let client = client_of(&server);
    let lock = client.key("k");
    let led = lock.lead(|_| {
        let several = client.keys(["j", "k"]).shared();
        assert!(matches!(several.try_lock_for(PATIENCE), Err(Error::Deadlock(_))));
        assert!(matches!(client.lock("k"), Err(Error::Deadlock(why)) if why.contains("under \"k\"")));
        // What cannot wait for itself is done.
        assert!(client.try_lock("k").unwrap().is_none());
        client.lock("j").unwrap().release().unwrap();
        client_of(&Server::new()).lock("k").unwrap().release().unwrap();
        let other = client.clone();
        let waits = thread::spawn(move || other.try_lock_for("k", Duration::from_millis(10)));
        assert!(waits.join().unwrap().unwrap().is_none());
        ControlFlow::Break(())
    });
    led.unwrap();
    let readers = client.key("r").shared();
    let nested = |led: &Lock, inner: &Lock| led.lead(|_| ControlFlow::Break(inner.lock().is_ok())).unwrap();
    assert!(nested(&readers, &readers));
    // It ends by itself.
    assert!(nested(&client.key("m").lease(SHORT).max(SHORT), &client.key("m")));
    let panics = AssertUnwindSafe(|| lock.lead(|_| -> ControlFlow<()> { panic!("the work fails") }));
    assert!(catch_unwind(panics).is_err());
    client.lock("k").unwrap().release().unwrap();

    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let led = runtime.block_on(lock.lead_async(async |_| {
        assert!(matches!(client.key("k").lock_async().await, Err(Error::Deadlock(_))));
        client.key("j").lock_async().await.unwrap().release().await.unwrap();
        ControlFlow::Break(())
    }));
    led.unwrap();
    drop(runtime.block_on(lock.lock_async()).unwrap());
}

#[test]
fn the_work_of_a_task_is_dropped_before_another_leads_when_its_server_goes_away() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let far = Client::open(("127.0.0.1", proxy.port())).unwrap();
    let (told, mut dropped) = tokio::sync::mpsc::unbounded_channel();
    let mut terms = Vec::new();
    let term = async |guard: &AsyncGuard| {
        terms.push(guard.fence());
        if terms.len() == 2 {
            return ControlFlow::Break(());
        }
        let _work = Work(told.clone());
        proxy.freeze(true);
        std::future::pending().await
    };
    let lock = far.key("k").lease(SHORT);
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let ended = runtime.block_on(async {
        let other = async {
            // What is granted here was the first leader's until now.
            let next = client_of(&server).key("k");
            while server.connect().lock_info("k").is_none() {
                tokio::task::yield_now().await;
            }
            let guard = next.lock_async().await.unwrap();
            assert!(dropped.try_recv().is_ok(), "two work at once");
            let fence = guard.fence();
            guard.release().await.unwrap();
            proxy.freeze(false);
            fence
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(lock.lead_async(term), other) }).await
    });
    let (led, other) = ended.expect("both end");
    led.unwrap();
    assert!(terms[0] < other && other < terms[1], "{terms:?} {other}");
}

/// Tells when it is dropped.
struct Work(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for Work {
    fn drop(&mut self) {
        let _: Result<(), _> = self.0.send(());
    }
}

#[test]
fn the_task_of_a_term_is_dropped_when_its_lock_is_broken() {
    let server = Server::new();
    let lock = client_of(&server).key("k").lease(SHORT);
    let mut conn = server.connect();
    let (told, mut dropped) = tokio::sync::mpsc::unbounded_channel();
    let mut terms = Vec::new();
    let term = async |guard: &AsyncGuard| {
        terms.push(guard.fence());
        if terms.len() == 2 {
            return ControlFlow::Break(guard.fence());
        }
        let _work = Work(told.clone());
        conn.int(&["LOCK.BREAK", "k"]);
        std::future::pending().await
    };
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let leading = async { tokio::time::timeout(PATIENCE, lock.lead_async(term)).await };
    let last = runtime.block_on(leading).expect("the term ends").unwrap();
    assert!(dropped.try_recv().is_ok());
    assert!(terms.len() == 2 && terms[0] < last, "{terms:?}");
}
