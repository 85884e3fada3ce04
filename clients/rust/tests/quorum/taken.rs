//! Locks that are taken, kept and given back.

use crate::harness::{LONG, Servers, quorum_of};
use redis_lock_client::{Error, Owner};
use std::time::Duration;
use testbed::PATIENCE;

#[test]
fn a_lock_has_one_fence_at_all_nodes_and_is_free_everywhere_afterwards() {
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    let mut last = 0;
    for _ in 0..20 {
        let guard = quorum.key("k").lease(LONG).lock().unwrap();
        assert!(servers.hold("k", &guard) >= 2);
        servers.await_all("k", &guard);
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        assert!(quorum.try_lock("k").unwrap().is_none());
        assert!(guard.check().unwrap() && quorum.check("k", guard.owner().as_str(), last).unwrap());
        assert!(!quorum.check("k", guard.owner().as_str(), last + 1).unwrap());
        guard.release().unwrap();
        assert!(servers.are_free("k"));
    }
}

#[test]
fn readers_share_it_and_a_writer_waits_for_them() {
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    let readers = [1, 2].map(|_| quorum.key("k").shared().lease(LONG).lock().unwrap());
    assert!(quorum.try_lock("k").unwrap().is_none());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| quorum.key("k").lease(LONG).lock().unwrap().fence());
        servers.0[0].connect().await_waiters("k", 1);
        let fences = readers.map(|reader| {
            let fence = reader.fence();
            reader.release().unwrap();
            fence
        });
        assert!(writer.join().unwrap() > fences.into_iter().max().unwrap());
    });
    servers.await_free("k");
}

#[test]
fn what_one_server_alone_can_do_is_refused() {
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    let refused = |outcome: Result<_, Error>| match outcome {
        Err(Error::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let guard = quorum.lock("k").unwrap();
    assert!(refused(quorum.key("s").limit(2).try_lock().map(drop)).contains("limit"));
    assert!(refused(guard.guard::<()>(redis_lock_client::redis::cmd("SET").arg("d").arg(1))).contains("fence"));
    assert!(!guard.is_lost());
    for ports in [vec![], vec![1], vec![1, 2]] {
        let urls = ports.iter().map(|port| format!("redis://127.0.0.1:{port}"));
        assert!(matches!(redis_lock_client::Quorum::open(urls), Err(Error::Refused(_))), "{ports:?}");
    }
    drop(quorum_of([1, 2, 3]));
}

#[test]
fn owners_and_waits_with_an_end_are_as_of_one_server() {
    let servers = Servers::start(3);
    let quorum = servers.quorum();
    let owner = Owner::with_prefix("deploy-");
    let held = quorum.key("k").owner(&owner).lease(LONG).lock().unwrap();
    assert!(matches!(quorum.key("k").owner(&owner).try_lock(), Err(Error::Refused(_))));
    assert!(quorum.try_lock_for("k", Duration::from_secs(2)).unwrap().is_none());
    held.release().unwrap();
    for _ in 0..20 {
        quorum.key("k").owner(&owner).try_lock_for(PATIENCE).unwrap().unwrap().release().unwrap();
    }
    assert!(servers.are_free("k"));
}
