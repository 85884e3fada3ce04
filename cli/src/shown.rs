//! What people are shown of a lock, and of holds that were lost.

use crate::exit::printable;
use crate::reply::{text, time_of};
use crate::table::Table;
use crate::time;
use serde_json::Value as Json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A lock, in a line.
pub(crate) fn head(lock: &Json) -> String {
    let shares = lock["shares"].as_u64().filter(|shares| *shares > 0);
    let shares = shares.map(|shares| format!("{shares} shares, ")).unwrap_or_default();
    let numbers = format!("{shares}{} holding, {} waiting", text(&lock["holding"]), text(&lock["waiting"]));
    let state = match &lock["reserved_by"] {
        Json::Null => format!("{}, fence {}", text(&lock["mode"]), text(&lock["fence"])),
        owner => format!("reserved for {}", text(owner)),
    };
    printable(format_args!("{}: {state}, {numbers}", text(&lock["key"])))
}

/// Who holds it.
pub(crate) fn holders(lock: &Json) -> Table {
    let mut holders = Table::new(&["HOLDER", "MODE", "SHARES", "HELD", "LEFT", "FENCE", "CLIENT", "NOTE"]);
    for holder in lock["holders"].as_array().into_iter().flatten() {
        let offered = if holder["offered"] == 1 { " (offered)" } else { "" };
        holders.add(vec![
            text(&holder["owner"]) + offered,
            text(&holder["mode"]),
            text(&holder["reads"]),
            time_of(&holder["held_ms"]),
            time_of(&holder["ttl_ms"]),
            text(&holder["fence"]),
            text(&holder["client"]),
            text(&holder["note"]),
        ]);
    }
    holders
}

/// Who waits for it.
pub(crate) fn waiters(lock: &Json) -> Table {
    let mut waiters = Table::new(&["WAITER", "MODE", "TAKE", "LIMIT", "WAITED", "REQUEST LEFT", "CLIENT"]);
    for waiter in lock["waiters"].as_array().into_iter().flatten() {
        // A helper asks again before it is over. Without a client the place ends then.
        let left = if waiter["client"].is_null() { &waiter["queue_left_ms"] } else { &waiter["left_ms"] };
        waiters.add(vec![
            text(&waiter["owner"]),
            text(&waiter["mode"]),
            text(&waiter["take"]),
            text(&waiter["limit"]),
            time_of(&waiter["waited_ms"]),
            time_of(left),
            text(&waiter["client"]),
        ]);
    }
    waiters
}

/// Rows of LOCK.LOG, each with its server.
pub(crate) fn losses(rows: &[Json]) -> Table {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut table = Table::new(&["SERVER", "AGO", "REASON", "DB", "KEY", "OWNER", "HELD", "NOTE"]);
    for row in rows {
        let ago = now.saturating_sub(Duration::from_millis(row["time_ms"].as_u64().unwrap_or_default()));
        table.add(vec![
            text(&row["server"]),
            time::text(ago),
            text(&row["reason"]),
            text(&row["db"]),
            text(&row["key"]),
            text(&row["owner"]),
            time_of(&row["held_ms"]),
            text(&row["note"]),
        ]);
    }
    table
}
