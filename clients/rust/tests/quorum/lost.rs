//! Locks that are lost: when fewer than a quorum is valid, and for good.

use crate::harness::{LONG, SHORT, Servers};
use redis_lock_client::{Error, Moment};
use std::thread;
use std::time::Duration;
use testbed::{PATIENCE, Signal, wait_for};

#[test]
fn it_is_valid_as_long_as_a_quorum_is_and_no_longer() {
    // The node that goes on answering does not make up for the others.
    let servers = Servers::start(3);
    let guard = servers.quorum().key("k").lease(SHORT).lock().unwrap();
    let loss = guard.loss();
    servers.0[0].signal(Signal::STOP);
    servers.0[2].signal(Signal::STOP);
    let stopped = Moment::now();
    assert!(loss.wait(PATIENCE));
    assert!(stopped.elapsed() < SHORT, "lost {:?} after the last answer", stopped.elapsed());
    assert!(guard.valid_until().is_past());
    assert!(matches!(guard.release(), Err(Error::Lost)));
    wait_for("the node that answers to be free", || servers.0[1].connect().lock_info("k").is_none());
    for number in [0, 2] {
        servers.0[number].signal(Signal::CONT);
    }
    servers.await_free("k");
}

#[test]
fn a_lock_that_was_lost_stays_lost_though_the_nodes_come_back() {
    let servers = Servers::start(3);
    let guard = servers.quorum().key("k").lease(SHORT).lock().unwrap();
    for number in [0, 2] {
        servers.0[number].signal(Signal::STOP);
    }
    assert!(guard.wait_lost(PATIENCE));
    let mut conn = servers.0[1].connect();
    let mut granted = || ["lock_granted", "lock_extended"].map(|field| conn.info_number("lock", field));
    let before = granted();
    for number in [0, 2] {
        servers.0[number].signal(Signal::CONT);
    }
    // Its holds end by their leases: nobody asks for more.
    servers.await_free("k");
    assert_eq!(granted(), before, "an owner that lost it asked again");
    assert!(guard.is_lost() && !guard.check().unwrap() && !guard.renew().unwrap());
    assert!(matches!(guard.release(), Err(Error::Lost)));
}

#[test]
fn what_a_quorum_says_is_a_loss_at_once_and_what_one_node_says_is_not() {
    let servers = Servers::start(3);
    let guard = servers.quorum().key("k").lease(LONG).lock().unwrap();
    // Others take two of three in the moment in which they are broken.
    for number in [1, 2] {
        let mut conn = servers.0[number].connect();
        conn.ok(&["MULTI"]);
        conn.call(&["LOCK.BREAK", "k"]).unwrap();
        conn.call(&["LOCK.ACQUIRE", "k", "thief", "PX", "60000"]).unwrap();
        conn.call(&["EXEC"]).unwrap();
        assert!(!guard.is_lost());
    }
    assert!(!guard.renew().unwrap(), "one of three is not enough");
    assert!(guard.is_lost());
    assert!(matches!(guard.release(), Err(Error::Lost)));
    wait_for("the first to be free", || servers.0[0].connect().lock_info("k").is_none());
    for number in [1, 2] {
        let info = servers.0[number].connect().lock_info("k").unwrap();
        assert_eq!(info.holders[0].owner, b"thief", "another's hold was released");
    }
}

#[test]
fn a_release_that_a_quorum_does_not_answer_says_so() {
    let mut servers = Servers::start(3);
    let guard = servers.quorum().timeout(Duration::from_secs(2)).key("k").lease(LONG).lock().unwrap();
    servers.await_all("k", &guard);
    servers.0[0].stop(true);
    servers.0[1].stop(true);
    assert!(matches!(guard.release(), Err(Error::NoQuorum(_))));
    wait_for("the third to be free", || servers.0[2].connect().lock_info("k").is_none());
}

#[test]
fn without_a_quorum_it_is_an_error_that_names_the_servers() {
    let mut servers = Servers::start(3);
    let quorum = servers.quorum();
    servers.0[0].stop(true);
    servers.0[2].stop(true);
    let error = quorum.try_lock("k").unwrap_err();
    assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
    for number in [0, 2] {
        assert!(error.to_string().contains(&format!("127.0.0.1:{}", servers.0[number].port())), "{error}");
    }
    assert!(matches!(quorum.try_lock_for("k", Duration::from_millis(300)), Err(Error::NoQuorum(_))));
    assert!(servers.0[1].connect().lock_info("k").is_none(), "the one that answered holds for nobody");
    // A wait goes on until there is one.
    thread::scope(|scope| {
        let wait = scope.spawn(|| quorum.lock("k"));
        servers.0[2].start();
        let guard = wait.join().unwrap().unwrap();
        assert_eq!(servers.fences_of_running("k", guard.owner()), 2);
    });
}

#[test]
fn a_lock_that_was_broken_everywhere_is_not_won_back_past_another_owner() {
    let servers = Servers::start(3);
    let guard = servers.quorum().key("k").lease(SHORT).lock().unwrap();
    // A renewal fails there and is repeated: from then on that server is renewed at other times than the others.
    servers.0[0].signal(Signal::STOP);
    thread::sleep(SHORT * 7 / 12);
    servers.0[0].signal(Signal::CONT);
    let rivals = servers.quorum().key("k").lease(LONG);
    wait_for("another owner to hold it", || {
        // A server that is broken while the others still hold may be won back, rightly, before the next one is.
        for server in &servers.0 {
            server.connect().call(&["LOCK.BREAK", "k"]).unwrap();
        }
        let rival = rivals.try_lock().ok().flatten();
        rival.is_some_and(|rival| {
            assert!(rival.fence() > guard.fence());
            rival.release().is_ok()
        })
    });
    assert!(guard.wait_lost(SHORT), "it was held by another meanwhile");
}

#[test]
fn its_loss_is_told() {
    let servers = Servers::start(3);
    let (told, errors) = std::sync::mpsc::channel();
    let lock = servers.quorum().key("k").lease(SHORT).on_trouble(move |error| drop(told.send(error.to_string())));
    let guard = lock.lock().unwrap();
    for server in &servers.0 {
        server.connect().int(&["LOCK.BREAK", "k"]);
    }
    while !errors.recv_timeout(PATIENCE).unwrap().contains("lost") {}
    assert!(guard.is_lost());
}
