//! What a test asks a server: which client holds, how many wait, and whether enough time has gone by.

use redis::Value;
use testbed::{Client, Fields, wait_for};

/// How many wait on the server.
pub(crate) fn waiters(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_waiters")
}

/// Waits until the server has no client of this number.
pub(crate) fn gone(conn: &mut Client, id: i64) {
    wait_for("the server to see that it has gone", || {
        conn.get::<String>(&["CLIENT", "LIST", "ID", &id.to_string()]).is_empty()
    });
}

/// The holders of a key.
pub(crate) fn holders(conn: &mut Client, key: &str) -> Vec<String> {
    let Value::Array(holders) = (match conn.call(&["LOCK.INFO", key, "COUNT", "1000"]).unwrap() {
        Value::Nil => return Vec::new(),
        shown => Fields::from(shown).value("holders"),
    }) else {
        panic!("holders is an array")
    };
    holders.into_iter().map(|holder| Fields::from(holder).get("owner")).collect()
}

/// How many grants were taken back.
pub(crate) fn taken_back(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_taken_back")
}

/// Options of a server that writes its append-only file at once, since kill -9 would take along what the server still
/// has in its buffer.
pub(crate) const AOF: &[(&str, &str)] =
    &[("appendonly", "yes"), ("appendfsync", "always"), ("aof-use-rdb-preamble", "yes")];

/// The same, whose file has commands alone.
pub(crate) const AOF_PLAIN: &[(&str, &str)] =
    &[("appendonly", "yes"), ("appendfsync", "always"), ("aof-use-rdb-preamble", "no")];

/// Rewrites the append-only file.
pub(crate) fn rewrite_aof(conn: &mut Client) {
    conn.get::<String>(&["BGREWRITEAOF"]);
    rewritten(conn);
}

/// Waits until the file is rewritten.
pub(crate) fn rewritten(conn: &mut Client) {
    wait_for("the rewrite to end", || {
        conn.info("persistence", "aof_rewrite_in_progress") == "0"
            && conn.info("persistence", "aof_rewrite_scheduled") == "0"
    });
    assert_eq!(conn.info("persistence", "aof_last_bgrewrite_status"), "ok");
}

/// Waits until there is no waiter any more.
pub(crate) fn nobody_waits(conn: &mut Client) {
    wait_for("everybody to be answered", || waiters(conn) == 0 && conn.info("lock", "lock_contended_keys") == "0");
}

/// Lets the server tick for a while, by its own count of time: what it ought not to do it has had many occasions for.
pub(crate) fn let_it_tick(conn: &mut Client) {
    let start = conn.info_number("server", "server_time_usec");
    wait_for("some ticks", || conn.info_number("server", "server_time_usec") > start + 400_000);
}
