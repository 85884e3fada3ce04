//! The fence of a quorum: exactly one for a holder, and higher than those of all holders before.

use crate::harness::{LONG, MEDIUM, Servers, fence_at};
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::{Server, Signal, wait_for};

/// Lets a server's fences be this many seconds ahead of the clock, as after a client whose clock is.
fn push_ahead(server: &Server, seconds: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let fence = u64::try_from(now).unwrap() + seconds * 1_000_000;
    let granted = server.connect().int(&["LOCK.ACQUIRE", "other", "me", "PX", "1", "MINFENCE", &fence.to_string()]);
    assert!(granted >= i64::try_from(fence).ok());
}

#[test]
fn a_fence_is_raised_everywhere_so_that_it_does_not_go_back_without_that_node() {
    // Only one node knows the high fence at first. If the others did not learn of it, the next holder, which does not
    // reach that node, would get a lower one.
    let servers = Servers::start(3);
    for (ahead, other) in [(0, 1), (1, 2), (2, 0)] {
        push_ahead(&servers.0[ahead], 4 * (1 + ahead as u64));
        let guard = servers.quorum().key("k").lease(MEDIUM).lock().unwrap();
        assert!(servers.hold("k", &guard) >= 2, "held without a quorum under exactly this fence");
        servers.await_all("k", &guard);
        let fence = guard.fence();
        guard.release().unwrap();
        servers.0[ahead].signal(Signal::STOP);
        let next = servers.quorum().key("k").lease(MEDIUM).lock().unwrap();
        assert!(next.fence() > fence, "{} after {fence}, without node {ahead}", next.fence());
        next.release().unwrap();
        servers.0[ahead].signal(Signal::CONT);
        servers.await_free("k");
        let last = servers.quorum().key("k").lease(MEDIUM).lock().unwrap();
        assert!(last.fence() > fence);
        assert!(fence_at(&servers.0[other], "k", last.owner()).is_some());
        last.release().unwrap();
    }
}

#[test]
fn a_node_whose_clock_is_behind_the_proposal_is_asked_again() {
    // It refuses what is ahead of its clock at all, and the proposal is ahead by 100 ms.
    let strict = || Server::setup().lock_option("promotion-skew-ms", "0").start();
    let servers = Servers(vec![Server::new(), Server::new(), strict()]);
    let quorum = servers.quorum();
    for _ in 0..5 {
        let guard = quorum.key("k").lease(LONG).lock().unwrap();
        wait_for("it to be granted there, too", || fence_at(&servers.0[2], "k", guard.owner()) >= Some(guard.fence()));
        guard.release().unwrap();
    }
    assert!(servers.are_free("k"));
}

#[test]
fn a_client_whose_clock_is_ahead_of_all_nodes_takes_the_lock_all_the_same() {
    // They refuse what it proposes. It then takes the highest of what they give.
    let strict = || Server::setup().lock_option("promotion-skew-ms", "0").wall_offset("-3600s").start();
    let servers = Servers((0..3).map(|_| strict()).collect());
    let quorum = servers.quorum();
    let mut last = 0;
    for _ in 0..3 {
        let guard = quorum.key("k").lease(LONG).try_lock().unwrap().unwrap();
        assert!(guard.fence() > last && servers.hold("k", &guard) >= 2);
        last = guard.fence();
        guard.release().unwrap();
    }
}

#[test]
fn a_node_whose_fences_are_too_far_ahead_for_the_others_is_left_out() {
    // After a start its fences are ahead by lock.promotion-skew-ms. It grants first, and no other follows it.
    let ahead = || Server::setup().lock_option("promotion-skew-ms", "3600000").start();
    let mut servers = Servers::start(2);
    servers.0.insert(0, ahead());
    let quorum = servers.quorum();
    let mut last = 0;
    for _ in 0..3 {
        let guard = quorum.key("k").lease(LONG).lock().unwrap();
        assert!(guard.fence() > last && servers.hold("k", &guard) == 2, "{:?}", servers.fences("k", guard.owner()));
        last = guard.fence();
        wait_for("it to count once it is held", || fence_at(&servers.0[0], "k", guard.owner()) >= Some(last));
        guard.release().unwrap();
        servers.await_free("k");
    }
}
