//! An auditor that reads the locks all the time, beside the clients that use them.

use crate::caller::{Answer, Caller};
use crate::crowd::Stop;
use crate::history::Sighting;
use crate::views::{Holder, View, Waiter};
use redis::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Fields, LockInfo};

const PATIENCE: Duration = Duration::from_secs(2);

/// Reads all these keys, over and over, while something is done; what that returned, and what was seen.
pub fn during<R>(
    keys: &[String],
    place: &(dyn Fn(&str) -> Option<u16> + Sync),
    body: impl FnOnce() -> R,
) -> (R, Vec<Sighting>) {
    watching(keys, place, look, body)
}

/// Reads all these keys of one server with their waiters, over and over, while something is done.
pub fn views_during<R>(keys: &[String], port: u16, body: impl FnOnce() -> R) -> (R, Vec<View>) {
    watching(keys, &|_| Some(port), view, body)
}

fn watching<R, T: Send>(
    keys: &[String],
    place: &(dyn Fn(&str) -> Option<u16> + Sync),
    look: fn(&mut Caller, &str) -> Option<T>,
    body: impl FnOnce() -> R,
) -> (R, Vec<T>) {
    let goes_on = AtomicBool::new(true);
    thread::scope(|scope| {
        let auditor = scope.spawn(|| {
            let mut seen = Vec::new();
            let mut eyes: Vec<(&String, Caller)> = keys.iter().map(|key| (key, Caller::new(0, PATIENCE))).collect();
            while goes_on.load(Ordering::Relaxed) {
                for (key, caller) in &mut eyes {
                    if let Some(port) = place(key) {
                        caller.turn_to(port);
                        seen.extend(look(caller, key));
                    }
                }
                thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        let stop = Stop(&goes_on);
        let returned = body();
        drop(stop);
        (returned, auditor.join().expect("looking does not panic"))
    })
}

/// The holders of the key; None if the server cannot say just now.
fn look(caller: &mut Caller, key: &str) -> Option<Sighting> {
    let (asked, answer, told) = caller.ask(&format!("LOCK.INFO {key} COUNT 1000"));
    let holders: Vec<Value> = match answer {
        Answer::Value(value) => Fields::from(value).get("holders"),
        Answer::Null => Vec::new(),
        Answer::Error(_) | Answer::Lost | Answer::Silence => return None,
    };
    let owners = holders.into_iter().map(|holder| Fields::from(holder).get("owner")).collect();
    Some(Sighting { key: key.to_owned(), owners, node: caller.port(), asked, told })
}

/// The holders and the waiters of the key; None if the server cannot say just now.
pub fn view(caller: &mut Caller, key: &str) -> Option<View> {
    let (asked, answer, told) = caller.ask(&format!("LOCK.INFO {key} COUNT 1000"));
    let text = |name: Vec<u8>| String::from_utf8(name).expect("ours are text");
    let (holders, waiters) = match answer {
        Answer::Value(value) => {
            let LockInfo { holders, waiters, .. } = LockInfo::from(value);
            (holders, waiters)
        }
        Answer::Null => Default::default(),
        Answer::Error(_) | Answer::Lost | Answer::Silence => return None,
    };
    let holder = |holder: testbed::HolderInfo| Holder {
        owner: text(holder.owner),
        reads: holder.reads as u64,
        writes: holder.writes > 0,
        offered: holder.offered,
        left_ms: holder.ttl_ms,
    };
    let waiter = |waiter: testbed::WaiterInfo| Waiter { owner: text(waiter.owner), left_ms: waiter.queue_left_ms };
    Some(View {
        key: key.to_owned(),
        asked,
        told,
        holders: holders.into_iter().map(holder).collect(),
        waiters: waiters.into_iter().map(waiter).collect(),
    })
}
