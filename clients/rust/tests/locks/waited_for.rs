//! Waits: ended by others, ended by time, with servers that do not answer.

use crate::{SHORT, await_waiter, client_of, holds};
use redis_lock_client::{Cancel, Error, Owner};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Server, Signal, wait_for};

/// Longer than leaving the line takes, shorter than a request waits.
const PROMPTLY: Duration = Duration::from_secs(4);

#[test]
fn a_cancel_ends_all_its_waits_and_those_to_come() {
    let server = Server::new();
    let client = client_of(&server);
    let held = client.lock("k").unwrap();
    let cancel = Cancel::new();
    let owners = [Owner::new(), Owner::new()];
    thread::scope(|scope| {
        let waits = owners.each_ref().map(|owner| {
            let lock = client.key("k").owner(owner).cancelled_by(&cancel);
            scope.spawn(move || lock.lock())
        });
        owners.iter().for_each(|owner| await_waiter(&server, "k", owner));
        cancel.cancel();
        for wait in waits {
            assert!(matches!(wait.join().unwrap(), Err(Error::Cancelled)));
        }
    });
    assert_eq!(server.connect().lock_info("k").unwrap().waiting, 0);
    assert!(cancel.is_cancelled());
    // What is held stays; what begins later does not begin.
    assert!(holds(&server, "k", &held));
    assert!(matches!(client.key("other").cancelled_by(&cancel).try_lock(), Err(Error::Cancelled)));
    assert!(server.connect().lock_info("other").is_none());
}

#[test]
fn a_cancel_is_prompt_and_leaves_nothing_though_the_server_hangs() {
    let server = Server::new();
    let client = client_of(&server);
    let held = client.lock("k").unwrap();
    let (cancel, owner) = (Cancel::new(), Owner::new());
    let lock = client.key("k").owner(&owner).cancelled_by(&cancel);
    thread::scope(|scope| {
        let wait = scope.spawn(|| (lock.lock(), Instant::now()));
        await_waiter(&server, "k", &owner);
        server.signal(Signal::STOP);
        let since = Instant::now();
        cancel.cancel();
        let (outcome, at) = wait.join().unwrap();
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert!(at - since < PROMPTLY, "{:?}", at - since);
    });
    // Nobody knows what the server makes of the requests that it has not read.
    let again = client.key("k").owner(&owner).try_lock();
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    server.signal(Signal::CONT);
    server.connect().await_waiters("k", 0);
    held.release().unwrap();
    wait_for("the owner to have left", || client.key("k").owner(&owner).try_lock().is_ok_and(|guard| guard.is_some()));
}

#[test]
fn an_owner_may_ask_again_as_soon_as_its_wait_is_over() {
    let server = Server::new();
    let client = client_of(&server);
    let held = client.lock("k").unwrap();
    let owner = Owner::new();
    let lock = client.key("k").owner(&owner);
    for _ in 0..20 {
        assert!(lock.try_lock_for(Duration::from_millis(20)).unwrap().is_none());
        assert!(lock.try_lock().unwrap().is_none());
    }
    held.release().unwrap();
    for _ in 0..20 {
        lock.try_lock_for(SHORT).unwrap().unwrap().release().unwrap();
    }
    // No time is too long.
    lock.try_lock_for(Duration::MAX).unwrap().unwrap().release().unwrap();
    assert!(server.connect().lock_info("k").is_none());
}

#[test]
fn a_server_that_never_answers_is_an_error_and_not_a_lock_that_others_hold() {
    // A job that is told "others hold it" concludes that another runs it.
    let mut server = Server::new();
    let client = client_of(&server);
    let held = client.lock("k").unwrap();
    let lock = client.key("k");
    thread::scope(|scope| {
        let wait = scope.spawn(|| lock.try_lock_for(Duration::from_secs(2)));
        server.connect().await_waiters("k", 1);
        server.signal(Signal::STOP);
        let outcome = wait.join().unwrap();
        assert!(matches!(outcome, Err(Error::Connection(_))), "{outcome:?}");
    });
    server.signal(Signal::CONT);
    server.stop(true);
    assert!(matches!(client.try_lock("k"), Err(Error::Connection(_))));
    let outcome = client.try_lock_for("k", Duration::from_millis(300));
    assert!(matches!(outcome, Err(Error::Connection(_))), "{outcome:?}");
    drop(held);
}
