//! What a server shows of a lock, at moments when it may be neither held nor free.

use crate::caller::{Asking, ask_apart};
use std::time::Duration;
use testbed::{Client, Server, wait_for};

pub fn waiting(conn: &mut Client, key: &str) -> usize {
    conn.lock_info(key).map_or(0, |info| info.waiting)
}

/// How long the only holder's lease still runs, in milliseconds; None when the key is free.
pub fn left_ms(conn: &mut Client, key: &str) -> Option<i64> {
    conn.lock_info(key)?.holders.first().map(|holder| holder.ttl_ms)
}

/// What is wrong with a lease on a replica, if anything: it never ends sooner than on the primary, and it ends later by
/// the time that it took to get there at most, in milliseconds.
pub fn apart(primary: &mut Client, replica: &mut Client, key: &str, on_its_way: i64) -> Option<String> {
    let left = [left_ms(replica, key), left_ms(primary, key), left_ms(replica, key)];
    let [before, here, after] = left.map(Option::unwrap_or_default);
    let wrong = before < here || after > here + on_its_way;
    wrong.then(|| format!("{here} ms left on the primary, {before} to {after} on the replica, {on_its_way} on its way"))
}

/// Sends a request that waits for this lock, and returns when it stands behind those that wait already, or is answered.
pub fn wait_in_line(server: &Server, key: &str, request: String, wait: Duration, patience: Duration) -> Asking {
    let mut conn = server.connect();
    let before = waiting(&mut conn, key);
    let asking = ask_apart(server.port(), request, wait, patience);
    wait_for("it to wait in line", || asking.is_finished() || waiting(&mut conn, key) > before);
    asking
}
