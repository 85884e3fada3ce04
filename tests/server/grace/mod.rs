//! Grace after a start and a promotion. Nothing is granted for a while, since the node may have forgotten what was
//! granted before. One test for each row of its table; no test depends on how fast the machine is.

mod beginnings;
mod configured;
mod meanwhile;
mod requests;
mod seen;

use crate::harness::scene::Scene;
use testbed::{Client, Server, Setup};

/// A grace that no test outlasts.
const LONG: &str = "600000";

/// A server that has started with a grace.
fn started() -> Server {
    with_grace().start()
}

fn with_grace() -> Setup {
    Server::setup().lock_option("grace-ms", LONG)
}

impl Scene<'_> {
    /// Ends the grace that runs.
    fn end(&mut self) {
        self.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    }

    /// The server was a replica, is the primary again, and has kept its locks: a grace begins.
    fn promote(&mut self) {
        self.conn.ok(&["CONFIG", "SET", "lock.grace-ms", LONG]);
        promote(&mut self.conn);
    }

    /// What is left of the grace.
    fn left(&mut self) -> u64 {
        left(&mut self.conn)
    }
}

/// What is left of the grace.
fn left(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_grace_left_ms")
}

fn promote(conn: &mut Client) {
    // No server listens there.
    conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
}
