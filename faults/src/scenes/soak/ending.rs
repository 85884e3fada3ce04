//! What must be true at the end: nothing is left behind, and what is saved comes back.

use super::agents::Stage;
use super::record::{GUARDED, Record};
use super::servers::{Info, Node, Servers, ask};
use crate::chain::{self, Update};
use redis::{RedisError, Value};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The fields of INFO lock that must be zero when nobody holds or waits.
const NOTHING: [&str; 6] =
    ["lock_leases", "lock_waiters", "lock_places", "lock_offered", "lock_session_holds", "lock_contended_keys"];

/// The longest lease of a client that was killed, and the time of a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// How much more memory than a fresh server with the same data a server may use, in bytes: it keeps a pool of temporary
/// clients for waiters, 32 KB each, and its tables shrink late.
const MORE_MAX: u64 = 4 << 20;
/// The same of resident memory. A server that was forked for the AOF, and a fresh one, differ by some.
const RESIDENT_MAX: u64 = 48 << 20;

/// Locks that somebody holds while the AOF is read: owner, command, words.
const STANDING: [(&str, &[&str]); 6] = [
    ("lock:standing:w", &["LOCK.ACQUIRE", "lock:standing:w", "w", "PX", "50000", "NOTE", "a note"]),
    ("lock:standing:r", &["LOCK.RW", "lock:standing:r", "r1", "READ", "PX", "50000"]),
    ("lock:standing:r", &["LOCK.RW", "lock:standing:r", "r2", "READ", "PX", "40000"]),
    ("lock:standing:s", &["LOCK.SHARE", "lock:standing:s", "s1", "5", "TAKE", "3", "PX", "50000"]),
    ("lock:standing:s", &["LOCK.SHARE", "lock:standing:s", "s2", "5", "TAKE", "2", "PX", "50000"]),
    ("lock:standing:w", &["LOCK.EXTEND", "lock:standing:w", "w", "PX", "45000"]),
];

pub fn judge(stage: &Stage) {
    let servers = &stage.servers;
    let primary = servers.wait_until_whole();
    nothing_is_left(stage, primary);
    guarded_data_are_whole(stage, primary);
    the_file_comes_back(stage, primary);
    for node in servers.all() {
        let log = node.log();
        let bad = [
            "panic",
            "REDIS BUG REPORT",
            "VALKEY BUG REPORT",
            "ASSERTION FAILED",
            "crashed by signal",
            "Bad file format",
        ];
        for line in log.lines().filter(|line| bad.iter().any(|bad| line.contains(bad))) {
            stage.record().report.violation(format!("the log of {}: {line}", node.name));
        }
    }
}

/// Waits until no server has a lock, a waiter or a place.
fn nothing_is_left(stage: &Stage, primary: &Node) {
    let servers = &stage.servers;
    let deadline = Instant::now() + PATIENCE;
    let left = |node: &Node| {
        let info = servers.info(node.port(), "lock").ok()?;
        let fields: Vec<String> = NOTHING
            .iter()
            .map(|name| (name, info.number(name)))
            .filter(|(_, number)| *number > 0)
            .map(|(name, number)| format!("{name} {number}"))
            .collect();
        let (_, keys): (String, Vec<String>) =
            servers.get(node.port(), &["SCAN", "0", "MATCH", "lock:*", "COUNT", "100000"]).ok()?;
        let top: Vec<Value> = servers.get(node.port(), &["LOCK.TOP"]).ok()?;
        let waits = top.iter().filter(|part| matches!(part, Value::Array(rows) if !rows.is_empty())).count();
        let infos: Vec<String> =
            keys.iter().map(|key| format!("{key}: {:?}", servers.ask(node.port(), &["LOCK.INFO", key]))).collect();
        Some((fields, infos, waits))
            .filter(|(fields, infos, waits)| !fields.is_empty() || !infos.is_empty() || *waits > 0)
    };
    for node in std::iter::once(primary).chain(servers.nodes.iter().filter(|node| node.port() != primary.port())) {
        let mut found = left(node);
        while found.is_some() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(100));
            found = left(node);
        }
        if let Some((fields, keys, waits)) = found {
            let what = format!("left behind at {}: {fields:?}, {keys:?}, {waits} in LOCK.TOP", node.name);
            stage.record().report.violation(what);
        }
    }
}

/// What was written under a guard, as far as it survived.
fn guarded_data_are_whole(stage: &Stage, primary: &Node) {
    let sent = stage.record().guarded.clone();
    for key in GUARDED {
        let entries: Vec<String> =
            stage.servers.get(primary.port(), &["LRANGE", &format!("data:{key}"), "0", "-1"]).expect("it answers");
        let updates: Vec<Update> = entries.iter().map(|entry| Update::parse(entry).expect("ours")).collect();
        let wrong = chain::judge(&updates, &sent);
        let mut record = stage.record();
        record.report.add("guarded writes that survived", updates.len() as u64);
        for (before, update) in wrong.overwriting.iter().chain(&wrong.of_the_dead) {
            let before = before.map_or("none".to_owned(), ToString::to_string);
            record.report.violation(format!("{key}: a lost update: {update} is after {before}"));
        }
        for (before, update) in &wrong.back {
            record.report.violation(format!("{key}: a late guarded write: {update} is after {before}"));
        }
        for update in &wrong.repeated {
            record.report.violation(format!("{key}: there more than once: {update}"));
        }
    }
}

/// Whether all replicas have the end of a lease that was moved, as soon as they have acknowledged it.
pub fn replicas_have_the_lease(stage: &Stage, primary: &Node) -> Result<bool, RedisError> {
    let (servers, key) = (&stage.servers, "lock:standing:e");
    let mut conn = servers.connect(primary.port())?;
    ask(&mut conn, &["LOCK.ACQUIRE", key, "e", "PX", "10000"])?;
    let before = Instant::now();
    ask(&mut conn, &["LOCK.EXTEND", key, "e", "PX", "50000"])?;
    // They keep the record then, whatever takes over.
    let acknowledged: usize = redis::from_redis_value(ask(&mut conn, &["WAIT", "2", "1000"])?)?;
    if acknowledged < 2 {
        return Ok(false);
    }
    for node in servers.nodes.iter().filter(|node| node.port() != primary.port()) {
        let info = testbed::LockInfo::from(servers.ask(node.port(), &["LOCK.INFO", key])?);
        let passed = i64::try_from(before.elapsed().as_millis()).expect("not so long");
        let left = info.holders.first().map(|holder| holder.ttl_ms);
        // A second for clocks that differ.
        if left.is_none_or(|left| left + passed < 49_000) {
            let what =
                format!("{} has not the lease that was extended: {left:?} ms of 50000 after {passed}", node.name);
            stage.record().report.violation(what);
        }
    }
    ask(&mut conn, &["LOCK.RELEASE", key, "e", "ALL"])?;
    Ok(true)
}

/// A fresh server with the files of this one has the same locks and data, and uses about as much memory.
fn the_file_comes_back(stage: &Stage, primary: &Node) {
    let servers = &stage.servers;
    for (_, words) in STANDING {
        servers.insist(primary.port(), words);
    }
    // Nothing is under way that changes the files.
    testbed::wait_so_long(PATIENCE, "the AOF to be written", || {
        let Ok(info) = servers.info(primary.port(), "persistence") else { return false };
        let zero = |name| info.number(name) == 0;
        zero("aof_rewrite_in_progress")
            && zero("aof_rewrite_scheduled")
            && zero("aof_pending_bio_fsync")
            && zero("rdb_bgsave_in_progress")
            && zero("async_loading")
    });
    let place = servers.dir.join("fresh");
    copy(&primary.dir.join("appendonlydir"), &place.join("appendonlydir"));
    let fresh = servers.fresh(&place, primary);
    let sides = [primary, &fresh].map(|node| state(servers, node));
    if sides[0] != sides[1] {
        let what = format!("a fresh server has another state: {:?} from {:?}", sides[1], sides[0]);
        stage.record().report.violation(what);
    }
    let [own, its] = [primary, &fresh].map(|node| memory(servers, node));
    let mut record = stage.record();
    record.report.most("memory of the primary, in KB", own / 1024);
    record.report.most("memory of a fresh server, in KB", its / 1024);
    if own > its + MORE_MAX {
        record.report.violation(format!("{} uses {own} bytes, a fresh server with the same data {its}", primary.name));
    }
    let [own, its] = [primary, &fresh].map(Node::resident);
    record.report.most("resident memory of the primary, in KB", own / 1024);
    record.report.most("resident memory of a fresh server, in KB", its / 1024);
    if own > its + RESIDENT_MAX {
        record.report.violation(format!("{} has {own} bytes resident, a fresh server {its}", primary.name));
    }
    drop(record);
    for key in ["lock:standing:w", "lock:standing:r", "lock:standing:s"] {
        for owner in ["w", "r1", "r2", "s1", "s2"] {
            servers.insist(primary.port(), &["LOCK.RELEASE", key, owner, "ALL"]);
        }
    }
    nothing_is_left(stage, primary);
}

/// All that has to be the same: data, holders with their modes, counts, fences and notes.
fn state(servers: &Servers, node: &Node) -> Vec<String> {
    let mut conn = servers.connect(node.port()).expect("it answers");
    let mut get = |words: &[&str]| ask(&mut conn, words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let mut lines = vec![format!("{:?}", get(&["DBSIZE"]))];
    for key in ["lock:standing:w", "lock:standing:r", "lock:standing:s"] {
        let info = testbed::LockInfo::from(get(&["LOCK.INFO", key]));
        let mut holders: Vec<String> = info
            .holders
            .iter()
            .map(|holder| {
                format!(
                    "{:?} {} {} {} {} {:?}",
                    holder.owner, holder.mode, holder.reads, holder.writes, holder.fence, holder.note
                )
            })
            .collect();
        holders.sort();
        lines.push(format!("{key} {} {} {holders:?}", info.mode, info.fence));
    }
    for key in GUARDED {
        let data = format!("data:{key}");
        lines.push(format!("{data} {:?} {:?}", get(&["LLEN", &data]), get(&["LINDEX", &data, "-1"])));
    }
    lines
}

/// What the data take: without connections, the queues of replicas, and the buffers of the AOF.
fn memory(servers: &Servers, node: &Node) -> u64 {
    let info: Info = servers.info(node.port(), "memory").expect("it answers");
    let aside = ["mem_clients_normal", "mem_clients_slaves", "mem_replication_backlog", "mem_aof_buffer"];
    info.number("used_memory").saturating_sub(aside.iter().map(|name| info.number(name)).sum())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory of our own");
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().expect("cp is everywhere");
    assert!(copied.success(), "{} was not copied", from.display());
}

pub fn summary(record: &Record, minutes: u64, waits: u64) -> String {
    let sum = |names: &[&str]| names.iter().map(|name| record.report.figure(name)).sum::<u64>();
    format!(
        "soak: {minutes} min; holds {}, waits {waits}, renewals {}, guarded writes {}, failovers {}, upgrades {}, \
         servers killed {}, clients killed {} and stopped {}, late writes refused {}, violations {}",
        record.report.figure("holds"),
        record.report.figure("renewals"),
        record.report.figure("guarded writes"),
        sum(&["failovers by the operator", "failovers by a kill"]),
        record.report.figure("servers upgraded"),
        record.report.figure("primaries killed"),
        record.report.figure("clients killed"),
        record.report.figure("clients stopped"),
        record.report.figure("late writes refused"),
        record.report.violation_count()
    )
}
