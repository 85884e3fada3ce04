//! What a server shows of a lock, at moments when it may be neither held nor free.

use testbed::Client;

/// How many wait for a lock.
pub fn waiting(conn: &mut Client, key: &str) -> usize {
    conn.lock_info(key).map_or(0, |info| info.waiting)
}

/// How long the only holder's lease still runs, in milliseconds; None when the key is free.
pub fn left_ms(conn: &mut Client, key: &str) -> Option<i64> {
    conn.lock_info(key)?.holders.first().map(|holder| holder.ttl_ms)
}
