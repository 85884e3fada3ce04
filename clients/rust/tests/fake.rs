//! The server in memory. It can let time pass for the whole process, so this is the only test here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use redis_lock_client::redis::cmd;
use redis_lock_client::testing::FakeServer;
use redis_lock_client::{Error, Moment};
use std::time::Duration;
use testbed::{PATIENCE, wait_for};

const LEASE: Duration = Duration::from_secs(600);

#[test]
fn a_test_without_a_server_sees_waits_losses_and_leases_that_end() {
    let fake = FakeServer::start().unwrap();
    let client = fake.client();
    let guard = client.key("k").lease(LEASE).lock().unwrap();
    guard.guard::<()>(cmd("SET").arg("data").arg("kept")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let lock = client.key("k");
    let waiting = std::thread::spawn(move || runtime.block_on(lock.lock_async()).unwrap());
    let mut conn = redis_lock_client::redis::Client::open(fake.url()).unwrap().get_connection().unwrap();
    let mut has = |field: &str| cmd("INFO").query::<String>(&mut conn).unwrap().contains(field);
    wait_for("the task to wait", || has("lock_queued:1"));
    fake.lose("k");
    let next = waiting.join().unwrap();
    assert!(next.fence() > guard.fence() && has("lock_notified:1"));
    assert!(!guard.check().unwrap());
    assert!(matches!(guard.release(), Err(Error::Lost)));
    drop(next);
    assert!(client.wait_released(PATIENCE));

    let guard = client.key("k").lease(LEASE).lock().unwrap();
    let (before, until) = (Moment::now(), guard.valid_until());
    fake.advance(LEASE * 2);
    assert!(before.elapsed() >= LEASE * 2 && guard.is_lost() && guard.valid_until() == until);
    let next = fake.client().timeout(Duration::from_secs(1)).try_lock("k").unwrap().unwrap();
    assert!(next.check().unwrap() && matches!(guard.release(), Err(Error::Lost)));

    next.set_note("half done").unwrap();
    assert_eq!(fake.client().holders("k").unwrap()[0].1.as_deref(), Some("half done"));
    fake.expire();
    assert!(fake.client().holders("k").unwrap().is_empty() && !next.is_lost() && !next.check().unwrap());

    let next = client.lock("k").unwrap();
    drop(fake);
    assert!(matches!(next.check(), Err(Error::Connection(_))), "its server is gone");
}
