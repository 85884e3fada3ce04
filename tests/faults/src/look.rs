//! What a server shows of a lock, at moments when it may be neither held nor free.

use redis::Value;
use testbed::{Client, Fields};

/// How many wait for a lock.
pub fn waiting(conn: &mut Client, key: &str) -> usize {
    fields(conn, key).map_or(0, |fields| fields.get("waiting"))
}

/// How long the only holder's lease still runs, in milliseconds; None when nobody holds it.
pub fn left_ms(conn: &mut Client, key: &str) -> Option<i64> {
    let Value::Array(holders) = fields(conn, key)?.value("holders") else { panic!("holders is an array") };
    holders.into_iter().next().map(|holder| Fields::from(holder).get("ttl_ms"))
}

fn fields(conn: &mut Client, key: &str) -> Option<Fields> {
    let value: Value = conn.get(&["LOCK.INFO", key]);
    (value != Value::Nil).then(|| Fields::from(value))
}
