//! A heart that writes numbered beats to the primary all the time, and eyes that ask each server for its role. Together
//! they tell when answers of a primary may be lost.

use super::servers::{Servers, ask};
use crate::agents::boot_us;
use crate::claims::Window;
use redis::{Connection, RedisError, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

const BEAT: &str = "data:beat";
const PAUSE: Duration = Duration::from_millis(50);
/// A former primary that comes back so soon may have a replica that was not told yet of the new one.
const SOON_US: u64 = 2_000_000;

/// The process of a server: which one, and how often it was started before.
type Process = (usize, u64);

/// A time in which a process was a primary that grants.
#[derive(Clone, Copy, Debug)]
struct Reign {
    process: Process,
    began: u64,
    /// When it was none any more, or was gone.
    ended: Option<u64>,
}

/// A change of primaries that the heart has noticed.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// When the last beat that survived was sent.
    survived: u64,
    noticed: u64,
    to: Process,
}

#[derive(Default)]
struct Noticed {
    reigns: Vec<Reign>,
    changes: Vec<Change>,
    beats: Vec<u64>,
    /// The last one that was answered.
    answered: usize,
    /// The process that has the last one.
    at: Option<Process>,
}

#[derive(Default)]
pub struct Heart {
    noticed: Mutex<Noticed>,
    over: AtomicBool,
    beating: AtomicU64,
}

impl Heart {
    fn noticed(&self) -> MutexGuard<'_, Noticed> {
        self.noticed.lock().expect("nobody panics with it")
    }

    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// The process whose beats go on now. It has been the primary since another answer was given here.
    pub fn beats_at(&self) -> Option<Process> {
        self.noticed().at
    }

    /// How often the primary changed, its restarts included.
    pub fn changes(&self) -> usize {
        self.noticed().changes.len()
    }

    pub fn count(&self) -> u64 {
        self.beating.load(Ordering::Relaxed)
    }

    /// Since when the primary has been the same.
    pub fn since(&self) -> u64 {
        self.noticed().changes.last().map_or(0, |change| change.noticed)
    }

    pub fn is_gone(&self, number: usize, at: u64) {
        let mut noticed = self.noticed();
        for reign in noticed.reigns.iter_mut().filter(|reign| reign.process.0 == number) {
            reign.ended.get_or_insert(at);
        }
    }

    /// For how long, in all, answers may have been lost, in milliseconds.
    pub fn window_ms(&self) -> u64 {
        self.windows().iter().map(|window| (window.end - window.start) / 1_000).sum()
    }

    /// When answers may have been lost. One that is not over yet has no end.
    pub fn windows(&self) -> Vec<Window> {
        let noticed = self.noticed();
        let of = |change: &Change| {
            // One that comes back later says that it is primary until a Sentinel corrects it. But it has no replica, so
            // it grants nothing.
            let soon = change.noticed + SOON_US;
            let concerns = |reign: &&Reign| {
                let overlaps = reign.began <= soon && reign.ended.is_none_or(|ended| ended >= change.survived);
                overlaps && reign.process != change.to
            };
            // The new primary's own reign may be over and begin again in the same process.
            let ends = noticed.reigns.iter().filter(concerns).map(|reign| reign.ended.unwrap_or(u64::MAX));
            let end = ends.filter(|end| *end != u64::MAX || change.noticed + 60_000_000 > boot_us()).max();
            Window { start: change.survived, end: end.unwrap_or(change.noticed).max(change.survived) }
        };
        noticed.changes.iter().map(of).collect()
    }

    /// Asks a server for its role until it is to stop.
    pub fn watch(&self, servers: &Servers, number: usize) {
        let node = &servers.nodes[number];
        let (mut conn, mut starts): (Option<Connection>, u64) = (None, 0);
        while !self.over.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
            if conn.is_none() {
                starts = node.starts();
                conn = servers.connect(node.port()).ok();
            }
            let Some(line) = &mut conn else { continue };
            let asked = boot_us();
            match ask(line, &["ROLE"]).as_ref().map(grants) {
                Ok(true) if node.starts() == starts => self.is_primary((number, starts), asked),
                Ok(false) => self.is_gone(number, boot_us()),
                _ => conn = None,
            }
        }
    }

    fn is_primary(&self, process: Process, asked: u64) {
        let mut noticed = self.noticed();
        let open = |reign: &Reign| reign.process == process && reign.ended.is_none();
        if !noticed.reigns.iter().any(open) {
            // It may have become one since it was asked last. What matters is that it is not left out.
            noticed.reigns.push(Reign { process, began: asked, ended: None });
        }
    }

    pub fn beat(&self, servers: &Servers) {
        while !self.over.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
            let Some(number) =
                servers.primary().and_then(|node| servers.nodes.iter().position(|one| one.port() == node.port()))
            else {
                continue;
            };
            // Which process it is, is asked before the connection is made: a restart in between breaks that.
            let process = (number, servers.nodes[number].starts());
            if let Ok(mut conn) = servers.connect(servers.nodes[number].port()) {
                // Until it fails: the connection, or the primary.
                let _failure: Result<(), RedisError> = self.beat_at(servers, process, &mut conn);
            }
        }
    }

    fn beat_at(&self, servers: &Servers, process: Process, conn: &mut Connection) -> Result<(), RedisError> {
        if !is_master(&ask(conn, &["ROLE"])?) || servers.nodes[process.0].starts() != process.1 {
            return Ok(());
        }
        let asked = boot_us();
        let there: Option<usize> = redis::from_redis_value(ask(conn, &["GET", BEAT])?)?;
        self.arrive(process, there, asked);
        while !self.over.load(Ordering::Relaxed) {
            let number = {
                let mut noticed = self.noticed();
                noticed.beats.push(boot_us());
                noticed.beats.len() - 1
            };
            ask(conn, &["SET", BEAT, &number.to_string()])?;
            self.noticed().answered = number;
            self.beating.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Has found the beats that survived at a primary.
    fn arrive(&self, process: Process, there: Option<usize>, asked: u64) {
        let mut noticed = self.noticed();
        let before = noticed.at.replace(process);
        // The same process may have been a replica meanwhile.
        let is_same = before == Some(process) && there.unwrap_or_default() >= noticed.answered;
        if before.is_none() || is_same {
            return;
        }
        let survived = there.and_then(|number| noticed.beats.get(number)).copied().unwrap_or_default();
        noticed.changes.push(Change { survived, noticed: boot_us().max(asked), to: process });
    }
}

/// Whether it is a primary with a replica: without one, min-replicas-to-write lets it grant nothing. A Sentinel takes
/// ten seconds and more to tell a primary that it is deposed.
fn grants(role: &Value) -> bool {
    let Value::Array(fields) = role else { return false };
    is_master(role) && fields.iter().any(|field| matches!(field, Value::Array(replicas) if !replicas.is_empty()))
}

fn is_master(role: &Value) -> bool {
    let Value::Array(fields) = role else { return false };
    matches!(fields.first(), Some(Value::BulkString(role)) if role == b"master")
}
