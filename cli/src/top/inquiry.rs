//! What the servers say at each refresh, and of the lock that is looked into. Breaks holds.

use crate::args::Servers;
use crate::broken::end_those;
use crate::nodes::{Node, Whose, all, at_once, look, look_all, why};
use crate::reply::json;
use redis_lock_client::Error;
use redis_lock_client::redis::{Value, cmd, from_redis_value};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How many keys each server tells of, and how many holders and waiters of a lock.
pub(crate) const ROWS: u32 = 100;
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

/// What a server says.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) rows: Vec<Row>,
    pub(crate) losses: Vec<Json>,
    pub(crate) counters: Option<Counters>,
    pub(crate) failures: Vec<String>,
    /// It did not answer.
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
    /// The names of the servers that are asked from now on, or why none is known.
    Servers(Result<BTreeSet<String>, String>),
    /// What the server of this name says now.
    Sample(String, Sample),
    /// What a server knows of a lock; null of a free one.
    Lock(Place, Json),
    /// What came of a break, or what went wrong.
    Said(String),
}

/// Asks all servers again and again, until nobody wishes anything or listens any more. Each has a thread, so that none
/// waits for another. They are found anew after one did not answer: a cluster may have others by now.
pub(crate) fn ask(servers: &Servers, interval: Duration, wishes: &Receiver<Wish>, tell: impl Fn(Told) -> bool + Sync) {
    let (tell, is_lost) = (&tell, &AtomicBool::new(true));
    thread::scope(|scope| {
        let (mut nodes, mut looks) = (Vec::new(), BTreeMap::new());
        let mut looked_into: Option<Place> = None;
        loop {
            let found = if is_lost.swap(false, Relaxed) { Some(all(servers)) } else { None };
            match found {
                Some(Ok(found)) => {
                    let names: BTreeSet<String> = found.iter().map(|node| node.name.clone()).collect();
                    looks.retain(|name, _| names.contains(name));
                    if !tell(Told::Servers(Ok(names))) {
                        return;
                    }
                    for node in &found {
                        looks.entry(node.name.clone()).or_insert_with(|| {
                            let (look, wished) = channel();
                            let (node, place, several) = (node.clone(), looked_into.clone(), found.len() > 1);
                            scope.spawn(move || follow(&node, several, interval, place, &wished, is_lost, tell));
                            look
                        });
                    }
                    nodes = found;
                }
                Some(Err(error)) => {
                    is_lost.store(true, Relaxed);
                    // Those that are known tell what is wrong with them.
                    if nodes.is_empty() && !tell(Told::Servers(Err(why("", &error).1))) {
                        return;
                    }
                }
                None => {}
            }
            match wishes.recv_timeout(interval) {
                Ok(Wish::Look(place)) => looked_into = place,
                Ok(Wish::Break(place, owners)) => {
                    if !tell(Told::Said(end(&nodes, &place, &owners))) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for look in looks.values() {
                // Its thread lasts.
                drop(look.send(looked_into.clone()));
            }
        }
    });
}

/// Asks a server again and again, also about the lock that is looked into.
fn follow(
    node: &Node,
    several: bool,
    interval: Duration,
    mut looked_into: Option<Place>,
    wished: &Receiver<Option<Place>>,
    is_lost: &AtomicBool,
    tell: &impl Fn(Told) -> bool,
) {
    loop {
        let due = Instant::now() + interval;
        let sample = sample_of(node, several);
        is_lost.fetch_or(sample.is_lost, Relaxed);
        if !tell(Told::Sample(node.name.clone(), sample)) {
            return;
        }
        loop {
            if !tell_of(node, looked_into.as_ref(), tell) {
                return;
            }
            match wished.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(place) => looked_into = place,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
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
        Ok((locks, refusal)) => {
            near.into_iter().zip(locks).for_each(|(row, lock)| row.lock = lock.unwrap_or_default());
            sample.failures.extend(refusal.map(|error| why(name, &error).1));
        }
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
        sample.counters = Some(Counters { at, fields: text.lines().filter_map(field).collect() });
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

/// Tells of the lock that is looked into, if this server has it. Returns false if nobody listens.
fn tell_of(node: &Node, place: Option<&Place>, tell: &impl Fn(Told) -> bool) -> bool {
    let Some(place) = place.filter(|place| place.server == node.name) else { return true };
    match look(node, &place.key, Whose::First(ROWS)) {
        Ok(lock) => tell(Told::Lock(place.clone(), lock.unwrap_or_default())),
        Err(error) => tell(Told::Said(why("", &error).1)),
    }
}

/// Ends holds, on all servers: those of a quorum have the lock as well. What came of it.
fn end(nodes: &[Node], place: &Place, owners: &[String]) -> String {
    let (mut ended, mut said) = (0, Vec::new());
    for (node, counts) in nodes.iter().zip(at_once(nodes, |node| end_those(node, &place.key, owners))) {
        match counts {
            Ok(counts) => ended += counts.iter().sum::<u64>(),
            Err(error) => said.push(why(if nodes.len() > 1 { &node.name } else { "" }, &error).1),
        }
    }
    if ended > 0 || said.is_empty() {
        let holds = if ended == 1 { "hold" } else { "holds" };
        said.insert(0, format!("{}: ended {ended} {holds}", String::from_utf8_lossy(&place.key)));
    }
    said.join("; ")
}
