//! Waits: in line at the first node that answers.

use crate::harness::{LONG, Servers};
use redis_lock_client::{Cancel, Error, Owner};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;
use testbed::{Signal, wait_for};

#[test]
fn waiters_are_served_in_their_order_and_no_request_passes_them() {
    let servers = Servers::start(3);
    let held = servers.quorum().key("k").lease(LONG).lock().unwrap();
    let served = Mutex::new(Vec::new());
    let first = thread::scope(|scope| {
        for number in 0..5 {
            let (quorum, served) = (servers.quorum(), &served);
            scope.spawn(move || {
                let guard = quorum.key("k").lease(LONG).lock().unwrap();
                served.lock().unwrap().push((number, guard.fence()));
                guard.release().unwrap();
            });
            servers.0[0].connect().await_waiters("k", number + 1);
        }
        let first = held.fence();
        held.release().unwrap();
        // Tried while it is handed from one to the next: others wait, so it is not free.
        let newcomer = servers.quorum();
        while served.lock().unwrap().len() < 5 {
            if let Some(guard) = newcomer.try_lock("k").unwrap() {
                assert_eq!(served.lock().unwrap().len(), 5, "a newcomer passed the waiters");
                guard.release().unwrap();
            }
        }
        first
    });
    let served = served.into_inner().unwrap();
    let order: Vec<usize> = served.iter().map(|(number, _)| *number).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    assert!(served[0].1 > first && served.is_sorted_by_key(|(_, fence)| *fence), "{served:?}");
    servers.await_free("k");
}

#[test]
fn waiters_go_to_the_next_node_when_the_first_dies() {
    for ends in [true, false] {
        let mut servers = Servers::start(3);
        let held = servers.quorum().key("k").lease(LONG).lock().unwrap();
        thread::scope(|scope| {
            let waits: Vec<_> = (0..3)
                .map(|_| {
                    let quorum = servers.quorum();
                    scope.spawn(move || {
                        let guard = quorum.key("k").lease(LONG).lock().unwrap();
                        let fence = guard.fence();
                        guard.release().unwrap();
                        fence
                    })
                })
                .collect();
            servers.0[0].connect().await_waiters("k", 3);
            if ends {
                servers.0[0].stop(true);
            } else {
                servers.0[0].signal(Signal::STOP);
            }
            servers.0[1].connect().await_waiters("k", 3);
            let first = held.fence();
            held.release().unwrap();
            let mut fences: Vec<u64> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
            fences.sort_unstable();
            fences.dedup();
            assert!(fences.len() == 3 && fences[0] > first, "{fences:?} after {first}");
        });
        for server in &servers.0[1..] {
            wait_for("it to be free", || server.connect().lock_info("k").is_none());
        }
    }
}

#[test]
fn a_cancel_at_the_moment_of_the_hand_off_leaves_nothing_at_any_node() {
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    let mut got = 0;
    for number in 0..100_u64 {
        let held = quorum.key("k").lease(LONG).lock().unwrap();
        let (cancel, owner) = (Cancel::new(), Owner::new());
        let lock = quorum.key("k").owner(&owner).lease(LONG).cancelled_by(&cancel);
        thread::scope(|scope| {
            let wait = scope.spawn(|| lock.lock());
            servers.0[0].connect().await_waiters("k", 1);
            let canceller = scope.spawn(|| {
                thread::sleep(Duration::from_micros(number * 137 % 4000));
                cancel.cancel();
            });
            held.release().unwrap();
            canceller.join().unwrap();
            match wait.join().unwrap() {
                Ok(guard) => {
                    got += 1;
                    guard.release().unwrap();
                }
                Err(error) => assert!(matches!(error, Error::Cancelled), "{error:?}"),
            }
        });
        servers.await_free("k");
    }
    println!("{got} of 100 got it");
}

#[test]
fn two_that_try_at_the_same_moment_do_not_keep_each_other_out() {
    // Each may get a part of the nodes. The one that the first node grants it to gets the others as well.
    let servers = Servers::start(3);
    for _ in 0..30 {
        let quorums = [(); 3].map(|()| servers.quorum());
        let start = Barrier::new(3);
        let guards = thread::scope(|scope| {
            let tries = quorums.each_ref().map(|quorum| {
                scope.spawn(|| {
                    start.wait();
                    quorum.key("k").lease(LONG).try_lock().unwrap()
                })
            });
            tries.map(|tried| tried.join().unwrap())
        });
        assert_eq!(guards.iter().flatten().count(), 1, "{guards:?}");
        drop(guards);
        servers.await_free("k");
    }
}

#[test]
fn owners_of_one_thread_that_wait_in_a_cycle_are_told() {
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    let [a, b] = ["a", "b"].map(|key| quorum.key(key).lease(LONG).lock().unwrap());
    thread::scope(|scope| {
        let wait = scope.spawn(|| quorum.key("b").within(&a).lock());
        servers.0[0].connect().await_waiters("b", 1);
        let error = quorum.key("a").within(&b).lock().unwrap_err();
        assert!(matches!(error, Error::Deadlock(_)), "{error:?}");
        b.release().unwrap();
        wait.join().unwrap().unwrap().release().unwrap();
    });
}
