//! Leases: that they end in time, and not before.

use crate::support::{Server, wait_for};

#[test]
fn an_abandoned_lock_disappears_by_itself() {
    let server = Server::new();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "50"]).expect("granted");
    wait_for("the key to go", || conn.get::<i64>(&["EXISTS", "k"]) == 0);
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
}
