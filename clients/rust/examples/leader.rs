//! Of several programs one leads: `cargo run --example leader redis://127.0.0.1:6379`. Stop it, or break its lock
//! (`LOCK.BREAK planner`), and another one leads.

use redis_lock_client::{Cancel, Client, Error};
use std::ops::ControlFlow;
use std::time::Duration;

fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or_else(|| Error::Refused("usage: leader URL".to_owned()))?;
    match lead(&Client::open(url)?, &Cancel::new(), |event, term| println!("{event} term {term}")) {
        Err(Error::Cancelled) => Ok(()),
        ended => ended,
    }
}

/// Leads again and again, until it is cancelled. Says when a term begins, and when it has stepped down.
pub fn lead(client: &Client, cancel: &Cancel, say: impl Fn(&str, u64)) -> Result<(), Error> {
    let planner = client.key("planner").lease(Duration::from_secs(4)).cancelled_by(cancel);
    planner.lead(|guard| {
        say("leads", guard.fence());
        // A piece of work at a time: each is short against the lease.
        while !cancel.is_cancelled() && !guard.wait_lost(Duration::from_millis(100)) {}
        say("steps down", guard.fence());
        ControlFlow::Continue(())
    })
}
