//! What the servers say at each refresh, and of the lock that is looked into. Breaks holds.

use crate::args::Servers;
use crate::broken::end_those;
use crate::nodes::{Node, Whose, all, look, look_all, why};
use crate::reply::json;
use redis_lock_client::Error;
use redis_lock_client::redis::{Value, cmd, from_redis_value};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How many keys each server tells of, and how many holders and waiters of a lock.
const ROWS: u32 = 100;
/// How many losses.
const LOSSES: u32 = 10;

/// Which lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) server: String,
    pub(crate) db: i64,
    pub(crate) key: Vec<u8>,
    /// Whether it is in the database that is asked about: only these are looked into.
    pub(crate) is_near: bool,
}

/// A lock that is waited for.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) place: Place,
    pub(crate) waiting: u64,
    pub(crate) waited_ms: u64,
    /// What LOCK.INFO says, if the lock is near.
    pub(crate) lock: Json,
}

/// What a server counts, and when it said so.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    pub(crate) at: Instant,
    pub(crate) fields: BTreeMap<String, u64>,
}

/// What all servers say.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) rows: Vec<Row>,
    pub(crate) losses: Vec<Json>,
    /// By server.
    pub(crate) counters: BTreeMap<String, Counters>,
    pub(crate) failures: Vec<String>,
    /// A server did not answer.
    is_lost: bool,
}

/// What the screen wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To look into this lock from now on, or into none.
    Look(Option<Place>),
    /// To end the holds of these owners.
    Break(Place, Vec<String>),
}

/// What it is told.
pub(crate) enum Told {
    Sample(Sample),
    /// What a server knows of a lock; null of a free one.
    Lock(Place, Json),
    /// What came of a break, or what went wrong.
    Said(String),
}

/// Asks again and again, until nobody wishes anything or listens any more.
pub(crate) fn ask(servers: &Servers, interval: Duration, wishes: &Receiver<Wish>, tell: impl Fn(Told) -> bool) {
    let (mut nodes, mut looked_into) = (Vec::new(), None);
    loop {
        let due = Instant::now() + interval;
        let sample = sample(servers, &mut nodes);
        if !tell(Told::Sample(sample)) || !tell_of(&nodes, looked_into.as_ref(), &tell) {
            return;
        }
        loop {
            match wishes.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Wish::Look(place)) => looked_into = place,
                Ok(Wish::Break(place, owners)) => {
                    if !tell(Told::Said(end(&nodes, &place, &owners))) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !tell_of(&nodes, looked_into.as_ref(), &tell) {
                return;
            }
        }
    }
}

/// What all of them say now. They are found anew after one did not answer: a cluster may have others by now.
fn sample(servers: &Servers, nodes: &mut Vec<Node>) -> Sample {
    let mut sample = Sample::default();
    if nodes.is_empty() {
        match all(servers) {
            Ok(found) => *nodes = found,
            Err(error) => sample.failures.push(why("", &error).1),
        }
    }
    let several = nodes.len() > 1;
    let parts: Vec<Sample> = thread::scope(|scope| {
        let asked: Vec<_> = nodes.iter().map(|node| scope.spawn(move || sample_of(node, several))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    for part in parts {
        sample.rows.extend(part.rows);
        sample.losses.extend(part.losses);
        sample.counters.extend(part.counters);
        sample.failures.extend(part.failures);
        sample.is_lost |= part.is_lost;
    }
    sample.losses.sort_by_key(|row| std::cmp::Reverse(row["time_ms"].as_u64()));
    if sample.is_lost {
        nodes.clear();
    }
    sample
}

fn sample_of(node: &Node, several: bool) -> Sample {
    let mut sample = Sample::default();
    let name = if several { node.name.as_str() } else { "" };
    let requests = vec![
        cmd("LOCK.TOP").arg("COUNT").arg(ROWS).take(),
        cmd("LOCK.LOG").arg("COUNT").arg(LOSSES).take(),
        cmd("INFO").arg("lock").take(),
    ];
    let replies = match node.ask_all(requests) {
        Ok(replies) => replies,
        Err(error) => {
            sample.is_lost = true;
            sample.failures.push(why(name, &error).1);
            return sample;
        }
    };
    let at = Instant::now();
    let mut fail = |error: &Error| sample.failures.push(why(name, error).1);
    let mut replies = replies.into_iter().map(|reply| reply.inspect_err(&mut fail).unwrap_or(Value::Nil));
    let (top, log, info) = (replies.next(), replies.next(), replies.next());
    drop(replies);
    sample.rows = top.iter().flat_map(|top| items(top, "keys")).filter_map(|item| row(node, item)).collect();
    let near: Vec<&mut Row> = sample.rows.iter_mut().filter(|row| row.place.is_near).collect();
    let keys: Vec<Vec<u8>> = near.iter().map(|row| row.place.key.clone()).collect();
    match look_all(node, &keys) {
        Ok(locks) => near.into_iter().zip(locks).for_each(|(row, lock)| row.lock = lock.unwrap_or_default()),
        Err(error) => sample.failures.push(why(name, &error).1),
    }
    if let Some(Json::Array(rows)) = log.map(json) {
        sample.losses = rows;
        sample.losses.iter_mut().for_each(|row| row["server"] = node.name.clone().into());
    }
    if let Some(Json::String(text)) = info.map(json) {
        let field = |line: &str| {
            line.trim().split_once(':').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        };
        sample.counters.insert(node.name.clone(), Counters { at, fields: text.lines().filter_map(field).collect() });
    }
    sample
}

/// The value of a field of a map.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Map(fields) = map else { return None };
    fields
        .iter()
        .find(|(field, _)| matches!(field, Value::BulkString(text) if text == name.as_bytes()))
        .map(|(_, value)| value)
}

fn items<'a>(map: &'a Value, name: &str) -> &'a [Value] {
    match field(map, name) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

/// A row of LOCK.TOP. Its key may be no text.
fn row(node: &Node, item: &Value) -> Option<Row> {
    let number = |name: &str| field(item, name).and_then(|value| from_redis_value::<u64>(value.clone()).ok());
    let Value::BulkString(key) = field(item, "key")? else { return None };
    let db = i64::try_from(number("db")?).ok()?;
    let place = Place { server: node.name.clone(), db, key: key.clone(), is_near: db == node.db };
    Some(Row { place, waiting: number("waiting")?, waited_ms: number("waited_ms")?, lock: Json::Null })
}

/// Tells of the lock that is looked into. Returns false if nobody listens.
fn tell_of(nodes: &[Node], place: Option<&Place>, tell: &impl Fn(Told) -> bool) -> bool {
    let Some(place) = place else { return true };
    let Some(node) = nodes.iter().find(|node| node.name == place.server) else { return true };
    match look(node, &place.key, Whose::First(ROWS)) {
        Ok(lock) => tell(Told::Lock(place.clone(), lock.unwrap_or_default())),
        Err(error) => tell(Told::Said(why("", &error).1)),
    }
}

/// Ends holds, on all servers: those of a quorum have the lock as well. What came of it.
fn end(nodes: &[Node], place: &Place, owners: &[String]) -> String {
    let mut ended = 0;
    for node in nodes {
        match end_those(node, &place.key, owners) {
            Ok(counts) => ended += counts.iter().sum::<u64>(),
            Err(error) => return why("", &error).1,
        }
    }
    let holds = if ended == 1 { "hold" } else { "holds" };
    format!("{}: ended {ended} {holds}", String::from_utf8_lossy(&place.key))
}
