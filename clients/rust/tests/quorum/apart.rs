//! Each node for itself: one that is away costs the others nothing, and is won back when it returns.

use crate::harness::{LONG, SHORT, Servers, fence_at};
use std::time::Instant;
use testbed::{Server, Signal, wait_for};

#[test]
fn one_of_five_that_hangs_costs_no_timeout_and_no_more_requests() {
    let servers = Servers::start(5);
    let quorum = servers.quorum();
    // The first is the one that has the line. That it does not answer is found out once.
    servers.0[0].signal(Signal::STOP);
    quorum.key("k").lease(LONG).lock().unwrap().release().unwrap();
    let asked = |server: &Server| {
        ["acquire", "extend", "release"].map(|command| server.connect().calls(&format!("lock.{command}")))
    };
    let before: Vec<[u64; 3]> = servers.0[1..].iter().map(asked).collect();
    let rounds = 50;
    let since = Instant::now();
    for _ in 0..rounds {
        quorum.key("k").lease(LONG).lock().unwrap().release().unwrap();
    }
    // A twentieth of the lease is 3 s.
    assert!(since.elapsed() < LONG / 20 * rounds, "each waited for the node that hangs: {:?}", since.elapsed());
    for (server, before) in servers.0[1..].iter().zip(before) {
        let [acquired, extended, released] = asked(server);
        let [acquired, extended] = [acquired - before[0], extended - before[1]];
        let rounds = u64::from(rounds);
        assert!(acquired + extended <= 3 * rounds, "{acquired} + {extended} requests for {rounds} locks");
        assert!(released - before[2] <= rounds);
    }
    servers.0[0].signal(Signal::CONT);
    servers.await_free("k");
}

#[test]
fn a_node_that_hung_when_it_was_asked_is_released_when_it_goes_on() {
    // The release follows the request on its way: else the node would read the request last, and hold for nobody.
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    quorum.lock("warm").unwrap().release().unwrap();
    for number in [2, 0] {
        servers.0[number].signal(Signal::STOP);
        let guard = quorum.key("k").lease(LONG).lock().unwrap();
        guard.release().unwrap();
        servers.0[number].signal(Signal::CONT);
        servers.await_free("k");
    }
}

#[test]
fn a_node_that_lost_its_hold_is_won_back_under_a_fence_that_counts() {
    let servers = Servers::start(3);
    let guard = servers.quorum().key("k").lease(SHORT).lock().unwrap();
    for server in &servers.0 {
        server.connect().int(&["LOCK.BREAK", "k"]);
        wait_for("it to be won back", || fence_at(server, "k", guard.owner()) >= Some(guard.fence()));
    }
    assert!(!guard.is_lost() && guard.check().unwrap());
    guard.release().unwrap();
    servers.await_free("k");
}

#[test]
fn a_node_that_was_wiped_observes_its_grace_and_is_won_back_after_it() {
    let node = || Server::setup().lock_option("grace-ms", "4000").start();
    let mut servers = Servers((0..3).map(|_| node()).collect());
    for server in &servers.0 {
        server.connect().ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    }
    let quorum = servers.quorum();
    let guard = quorum.key("k").lease(LONG).lock().unwrap();
    servers.0[1].crash();
    // Nothing is saved. Meanwhile nobody else gets it, whichever nodes answer.
    let other = servers.quorum();
    assert!(matches!(other.try_lock("k"), Ok(None)));
    assert!(!guard.is_lost());
    wait_for("the grace to be over", || servers.0[1].connect().info_number("lock", "lock_grace_left_ms") == 0);
    assert!(guard.check().unwrap());
    wait_for("it to be won back", || fence_at(&servers.0[1], "k", guard.owner()) >= Some(guard.fence()));
    guard.release().unwrap();
    servers.await_free("k");
}

#[test]
fn a_lock_outlives_one_of_three_and_each_in_turn() {
    let mut servers = Servers::start(3);
    let guard = servers.quorum().key("k").lease(SHORT).lock().unwrap();
    for number in 0..3 {
        servers.0[number].stop(true);
        assert!(!guard.wait_lost(SHORT), "node {number} alone is enough to lose it");
        servers.0[number].start();
        wait_for("it to be won back", || {
            fence_at(&servers.0[number], "k", guard.owner()) >= Some(guard.fence()) || guard.is_lost()
        });
    }
    assert!(!guard.is_lost() && guard.check().unwrap());
    guard.release().unwrap();
}

#[test]
fn a_node_that_is_down_from_the_start_is_taken_in_when_it_comes() {
    let mut servers = Servers::start(3);
    servers.0[0].stop(true);
    let guard = servers.quorum().key("k").lease(LONG).lock().unwrap();
    assert_eq!(servers.fences_of_running("k", guard.owner()), 2);
    servers.0[0].start();
    wait_for("it to be taken in", || fence_at(&servers.0[0], "k", guard.owner()) >= Some(guard.fence()));
    assert!(guard.renew().unwrap());
    guard.release().unwrap();
    servers.await_free("k");
}

#[test]
fn a_server_whose_fences_are_ahead_after_a_restart_holds_up_nobody_for_long() {
    // The others refuse its first fence, until their clocks have caught up with half of the skew: half a second.
    let mut servers = Servers((0..3).map(|_| Server::new()).collect());
    let fresh = servers.quorum().key("k").lease(LONG);
    fresh.try_lock().unwrap().expect("nobody has it").release().unwrap();
    servers.0[2].stop(true);
    servers.0[0].stop(true);
    servers.0[0].start();
    let since = Instant::now();
    servers.quorum().key("k").lease(LONG).lock().unwrap().release().unwrap();
    // A round in which it insists takes a third of the lease.
    assert!(since.elapsed() < LONG / 4, "{:?}", since.elapsed());
}
