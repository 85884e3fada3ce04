//! What is Rust's own about the locks, on real servers. What all helpers have in common is in tests/helpers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod costs;
mod far;
mod figures;
mod held;
mod hindered;
mod leading;
mod notified;
mod pages;
mod player;
mod reached;
mod tasks;
mod waited_for;

use redis_lock_client::{Client, Guard, Owner};
use std::time::Duration;
use testbed::{Server, wait_for};

/// A lease that ends within the patience of a test, and outlasts a machine that is busy for a moment.
const SHORT: Duration = Duration::from_secs(2);

fn client_of(server: &Server) -> Client {
    Client::open(("127.0.0.1", server.port())).unwrap()
}

/// Whether the server says that this guard's owner holds the key.
fn holds(server: &Server, key: &str, guard: &Guard) -> bool {
    let info = server.connect().lock_info(key);
    info.is_some_and(|info| {
        let owner = guard.owner().as_str().as_bytes();
        info.holders.iter().any(|holder| holder.owner == owner && holder.fence == fence(guard))
    })
}

fn fence(guard: &Guard) -> i64 {
    i64::try_from(guard.fence()).unwrap()
}

/// Waits until this owner stands in the line, with a request there.
fn await_waiter(server: &Server, key: &str, owner: &Owner) {
    let mut conn = server.connect();
    wait_for("the owner to wait", || {
        let waiters = conn.lock_info(key).map(|info| info.waiters).unwrap_or_default();
        waiters.iter().any(|waiter| waiter.owner == owner.as_str().as_bytes() && waiter.client.is_some())
    });
}
