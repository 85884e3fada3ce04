//! The soak: many clients, few locks, everything at random, and a look at the clients' own histories afterwards.
//!
//! `REDIS_LOCK_SOAK_SECONDS` says how long (10), `REDIS_LOCK_SOAK_SEED` repeats the choices of a run, which prints its
//! seed. The choices are the same then, though not their order across clients, which the machine makes.

mod histories;

use crate::harness::connection::{Connection, Reply};
use crate::harness::dice::{Dice, number_from};
use crate::harness::lapses::alone;
use histories::{History, KEYS, Piece, faults};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use testbed::{Client, Server, wait_for};

const CLIENTS: usize = 200;

/// By how much the wall clock may be moved between a grant and the moment at which its client reads it. It is also by
/// how much fences may be ahead of it. Both are steered by the second, not by the millisecond.
const SLACK: Duration = Duration::from_millis(5);

/// What the server's memory may have grown by in the end. Its pool of clients for modules may grow, and its tables of
/// keys and clients, which keep the size they had. So may its log of slow commands and the histories of commands'
/// durations. A single waiter that is never unblocked costs 30 KB, so a hundred of them would show.
const GROWTH: u64 = 3_000_000;

/// What a client holds, as far as it knows.
#[derive(Clone)]
struct Held {
    piece: Piece,
    /// The lease ends no earlier than this.
    until: Instant,
    /// The connection that it is bound to, by its number among those of this client, and how long it outlives that.
    session: Option<(usize, Duration)>,
}

/// What others see of a client.
#[derive(Debug, Default)]
struct Seen {
    /// Its number at the server; 0 before it has one.
    id: AtomicI64,
    /// The key that it has asked for, plus one; 0 when it has its answer.
    asks_for: AtomicU64,
}

/// One client, which does one thing after the other.
struct Actor<'s> {
    server: &'s Server,
    number: usize,
    seen: &'s [Seen],
    link: Connection,
    owner: String,
    owners: u64,
    dice: Dice,
    history: History,
    /// When each of its connections, the last one too, was certainly open last: it has answered what was sent then.
    open_at: Vec<Instant>,
}

/// The connection was closed.
struct Closed;

impl<'s> Actor<'s> {
    fn new(server: &'s Server, number: usize, seen: &'s [Seen], seed: u64) -> Actor<'s> {
        let link = Connection::resp2(server);
        seen[number].id.store(link.id(), Ordering::Relaxed);
        let dice = Dice(seed.wrapping_add((number as u64) << 32));
        let (owner, history) = (String::new(), History::default());
        let open_at = vec![Instant::now()];
        let mut actor = Actor { server, number, seen, link, owner, owners: 0, dice, history, open_at };
        actor.change_owner();
        actor
    }

    fn change_owner(&mut self) {
        self.owners += 1;
        self.owner = format!("c{}.{}", self.number, self.owners);
    }

    fn connect(&mut self) {
        loop {
            // Killed before it has said anything?
            if let Some(link) = Connection::try_resp2(self.server) {
                self.link = link;
                break;
            }
        }
        self.seen[self.number].id.store(self.link.id(), Ordering::Relaxed);
        self.open_at.push(Instant::now());
    }

    /// The number of the connection.
    fn connection(&self) -> usize {
        self.open_at.len() - 1
    }

    /// Until when it certainly holds: a connection may be closed right behind its last answer, without its knowing.
    fn certain(&self, held: &Held) -> Instant {
        let session = held.session.map(|(connection, grace)| self.open_at[connection] + grace);
        session.map_or(held.until, |end| end.min(held.until))
    }

    fn ask(&mut self, command: &str) -> (Instant, Reply, Instant) {
        let asked = Instant::now();
        self.link.send_line(command);
        // Panics when there is no reply for a long time: no client may be forgotten.
        let line = self.link.read();
        if line != Reply::Closed {
            *self.open_at.last_mut().expect("there is one from the start") = asked;
        }
        (asked, line, Instant::now())
    }

    fn live(mut self, end: Instant) -> History {
        while Instant::now() < end {
            if let Err(Closed) = self.session() {
                self.history.count("closed");
                self.connect();
                // What the old one was granted and never learnt of has no live holder: it ends with its lease, or is
                // rolled back.
                self.change_owner();
            }
        }
        self.history
    }

    /// Takes a key, perhaps another, or several at once, does things with them, gives them back or not.
    fn session(&mut self) -> Result<(), Closed> {
        let many = self.dice.percent(20);
        let asks = if many || self.dice.percent(75) { 1 } else { 2 };
        let (mut held, mut left): (Vec<Held>, bool) = (Vec::new(), false);
        for _ in 0..asks {
            let count = if many { self.dice.between(2, 4) } else { 1 };
            let mut keys: Vec<u64> = (0..count).map(|_| self.dice.between(0, KEYS - 1)).collect();
            keys.sort_unstable();
            keys.dedup();
            // In any order.
            let first = self.dice.roll(keys.len() as u64) as usize;
            keys.rotate_left(first);
            if !held.iter().any(|held| keys.contains(&held.piece.key)) {
                let writes = self.dice.percent(if many { 60 } else { 40 });
                held.extend(self.acquire(&keys, writes, None)?);
            }
        }
        if many && held.len() > 1 && self.dice.percent(50) {
            thread::sleep(Duration::from_micros(self.dice.between(0, 5_000)));
            return self.release(held);
        }
        for mut held in held {
            if !held.piece.writes && self.dice.percent(25) {
                self.upgrade(&mut held)?;
            }
            if self.dice.percent(25) {
                self.extend(&mut held)?;
            }
            match self.dice.between(0, 99) {
                0..=4 if held.session.is_none() => {
                    // Outlived.
                    let left = held.until.saturating_duration_since(Instant::now());
                    thread::sleep(left + Duration::from_millis(self.dice.between(0, 20)));
                }
                5..=60 => thread::sleep(Duration::from_micros(self.dice.between(0, 15_000))),
                _ => {}
            }
            if self.dice.percent(85) {
                self.release(vec![held])?;
            } else if held.session.is_some() {
                // Left to the end of its connection: its lease would outlive the test.
                self.history.count("session left");
                self.finish(held, None);
                return Err(Closed);
            } else {
                // Left to lapse.
                self.finish(held, None);
                left = true;
            }
        }
        if self.dice.percent(3) {
            return Err(Closed);
        }
        if left {
            self.change_owner();
        }
        Ok(())
    }

    /// How it waits, for which lease it asks, and whether what it holds is to end with its connection.
    fn terms(&mut self, may_bind: bool) -> (String, Duration, Option<Duration>) {
        let wait = match self.dice.between(0, 9) {
            0..=2 => String::new(),
            3..=6 => " BLOCK 0".to_owned(),
            _ => format!(" BLOCK {}", self.dice.between(1, 200)),
        };
        if may_bind && self.dice.percent(15) {
            // A lease that outlives the test, so that only the end of the connection can end it.
            let grace = Duration::from_millis(if self.dice.percent(50) { 0 } else { self.dice.between(1, 30) });
            let lease = Duration::from_secs(3600);
            return (format!(" PX {}{wait} SESSION {}", lease.as_millis(), grace.as_millis()), lease, Some(grace));
        }
        let lease = Duration::from_millis(self.dice.between(20, 300));
        (format!(" PX {}{wait}", lease.as_millis()), lease, None)
    }

    /// Asks for a key, or as one that holds nothing for several, and waits for it, in one of many ways.
    fn acquire(&mut self, keys: &[u64], writes: bool, before: Option<&Held>) -> Result<Vec<Held>, Closed> {
        let (terms, lease, grace) = self.terms(before.is_none());
        let (mode, owner) = (if writes { "WRITE" } else { "READ" }, self.owner.clone());
        let command = match keys {
            [key] => format!("LOCK.RW k{key} {owner} {mode}{terms}"),
            _ => format!("LOCK.MACQUIRE {}{} {owner} {mode}{terms}", keys.len(), names(keys)),
        };
        let retry = if keys.len() == 1 && self.dice.percent(20) { " RETRY 1" } else { "" };
        self.seen[self.number].asks_for.store(keys[0] + 1, Ordering::Relaxed);
        let (asked, mut line, mut told) = self.ask(&format!("{command}{retry}"));
        self.seen[self.number].asks_for.store(0, Ordering::Relaxed);
        if line == Reply::Closed && before.is_none() && keys.len() == 1 && self.dice.percent(50) {
            // It comes back and asks again, as the same owner.
            self.history.count("retried");
            self.connect();
            // The first request may have been granted, and its reply lost: the fence is then as old as that.
            (_, line, told) = self.ask(&format!("{command} RETRY 1"));
        }
        let fences = match line {
            Reply::Int(fence) => vec![fence],
            Reply::Array(fences) => fences.iter().map(Reply::int).collect(),
            other => return self.not_granted(&command, other).map(|()| Vec::new()),
        };
        assert_eq!(fences.len(), keys.len(), "{command}");
        self.history.count(if keys.len() > 1 { "many" } else { "granted" });
        // Asked for again, a hold stays bound to what it was bound to.
        let session = match before {
            Some(before) => before.session,
            None => grace.map(|grace| (self.connection(), grace)),
        };
        if session.is_some() {
            self.history.count("session");
        }
        let mut held = Vec::new();
        for (key, fence) in keys.iter().zip(fences) {
            // The lease began no earlier than it was asked for, and no earlier than when the fence was given, which is
            // a time. The wall clock is read last: a thread that has to wait in between finds the fence older than it
            // is.
            let here = Instant::now();
            let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let age = age.saturating_sub(Duration::from_micros(fence as u64)) + SLACK;
            let is_new = before.is_none() && !self.knows(fence);
            // Asked for again, the old fence stands and says nothing about the lease.
            let begun = here.checked_sub(age).filter(|_| is_new).map_or(asked, |begun| begun.max(asked));
            let until = begun + lease;
            let piece = Piece { key: *key, owner: owner.clone(), writes, fence, asked, from: told, to: until };
            self.history.given.push(piece.clone());
            held.push(Held { piece, until, session });
        }
        Ok(held)
    }

    /// Notes why there was no grant.
    fn not_granted(&mut self, command: &str, line: Reply) -> Result<(), Closed> {
        match line {
            Reply::Null => self.history.count("null"),
            Reply::Error(text) if text.starts_with("DEADLOCK ") => self.history.count("deadlock"),
            Reply::Error(text) if text.starts_with("UNBLOCKED ") => self.history.count("unblocked"),
            Reply::Closed => return Err(Closed),
            other => panic!("{command}: {other:?}"),
        }
        Ok(())
    }

    /// Whether the owner was given this fence before.
    fn knows(&self, fence: i64) -> bool {
        self.history.given.iter().rev().take(8).any(|given| given.owner == self.owner && given.fence == fence)
    }

    fn upgrade(&mut self, held: &mut Held) -> Result<(), Closed> {
        let Ok(upgraded) = self.acquire(&[held.piece.key], true, Some(held)) else {
            self.finish(held.clone(), None);
            return Err(Closed);
        };
        for upgraded in upgraded {
            self.history.count("upgraded");
            // If the reads had ended before, this is another hold; in either case it holds for writing from now on.
            let read = std::mem::replace(held, upgraded);
            self.finish(read, Some(held.piece.from));
        }
        Ok(())
    }

    fn extend(&mut self, held: &mut Held) -> Result<(), Closed> {
        let lease = Duration::from_millis(self.dice.between(10, 300));
        let Piece { key, fence, .. } = held.piece;
        let (asked, line, told) =
            self.ask(&format!("LOCK.EXTEND k{key} {} PX {} FENCE {fence}", self.owner, lease.as_millis()));
        // Be it earlier or later than before.
        self.finish(held.clone(), Some(asked));
        match line {
            Reply::Int(_) => {
                self.history.count("extended");
                held.until = asked + lease;
                held.piece = Piece { from: told, asked, ..held.piece.clone() };
                Ok(())
            }
            Reply::Null => {
                self.history.count("lost");
                self.deny(held, told);
                held.until = held.until.min(asked);
                Ok(())
            }
            Reply::Closed => Err(Closed),
            other => panic!("EXTEND: {other:?}"),
        }
    }

    /// Gives keys back, several in one step.
    fn release(&mut self, held: Vec<Held>) -> Result<(), Closed> {
        let keys: Vec<u64> = held.iter().map(|held| held.piece.key).collect();
        let (release, then) = match &held[..] {
            [held] => {
                let Piece { key, fence, .. } = held.piece;
                (format!("LOCK.RELEASE k{key} {} ALL FENCE {fence}", self.owner), self.farewells(key))
            }
            _ => (format!("LOCK.MRELEASE {}{} {} ALL", keys.len(), names(&keys), self.owner), Vec::new()),
        };
        let commands: Vec<String> = [release].into_iter().chain(then.iter().cloned()).collect();
        let (asked, line, told) = self.ask(&commands.join("\r\n"));
        let is_open = line != Reply::Closed && then.iter().all(|_| self.link.read() != Reply::Closed);
        let left = match line {
            Reply::Closed => Vec::new(),
            Reply::Array(left) => left,
            one => vec![one],
        };
        assert!(left.is_empty() || left.len() == keys.len(), "{commands:?}: {left:?}");
        for (at, held) in held.into_iter().enumerate() {
            match left.get(at) {
                Some(Reply::Null) => {
                    self.history.count("lost");
                    self.deny(&held, told);
                }
                None | Some(Reply::Int(0)) => {}
                other => panic!("{commands:?}: {other:?}"),
            }
            self.finish(held, Some(asked));
        }
        if is_open { Ok(()) } else { Err(Closed) }
    }

    /// What meets a grant in its very turn, now and then: the end of some of the waiters that may be granted the key.
    fn farewells(&mut self, key: u64) -> Vec<String> {
        if !self.dice.percent(15) {
            return Vec::new();
        }
        let asks = self.seen.iter().filter(|seen| seen.asks_for.load(Ordering::Relaxed) == key + 1);
        let mut ids: Vec<i64> = asks.map(|seen| seen.id.load(Ordering::Relaxed)).collect();
        let mut commands = Vec::new();
        for _ in 0..ids.len().min(3) {
            let id = ids.swap_remove(self.dice.between(0, ids.len() as u64 - 1) as usize);
            commands.push(match self.dice.between(0, 2) {
                0 => format!("CLIENT KILL ID {id}"),
                1 => format!("CLIENT UNBLOCK {id} ERROR"),
                _ => format!("CLIENT UNBLOCK {id} TIMEOUT"),
            });
        }
        commands
    }

    fn deny(&mut self, held: &Held, told: Instant) {
        self.history.denied.push((Piece { to: self.certain(held), ..held.piece.clone() }, told));
    }

    /// It is not certain any more that it is held.
    fn finish(&mut self, held: Held, at: Option<Instant>) {
        let end = self.certain(&held);
        let to = at.map_or(end, |at| at.min(end));
        self.history.pieces.push(Piece { to, ..held.piece });
    }
}

/// The names of keys, as arguments.
fn names(keys: &[u64]) -> String {
    keys.iter().map(|key| format!(" k{key}")).collect()
}

/// The client that spoils things for all.
fn disturb(server: &Server, seen: &[Seen], seed: u64, over: &AtomicBool) -> History {
    let mut dice = Dice(seed ^ u64::MAX);
    let mut history = History::default();
    let mut link = Connection::resp2(server);
    while !over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_micros(dice.between(200, 4_000)));
        let id = seen[dice.between(0, seen.len() as u64 - 1) as usize].id.load(Ordering::Relaxed);
        if id == 0 {
            // Not there yet.
            continue;
        }
        let (what, command) = match dice.between(0, 99) {
            0..=9 => ("killed", format!("CLIENT KILL ID {id}")),
            10..=49 => ("unblocked by timeout", format!("CLIENT UNBLOCK {id} TIMEOUT")),
            50..=89 => ("unblocked by error", format!("CLIENT UNBLOCK {id} ERROR")),
            _ => {
                // Either way, there is no holder any more.
                let key = dice.between(0, KEYS - 1);
                let (what, command) = if dice.percent(50) { ("deleted", "DEL") } else { ("broken", "LOCK.BREAK") };
                let asked = Instant::now();
                link.send_line(&format!("{command} k{key}"));
                let some = link.read().int() > 0;
                history.deleted.push((key, asked, Instant::now()));
                if some {
                    history.count(what);
                }
                continue;
            }
        };
        link.send_line(&command);
        if link.read().int() == 1 {
            history.count(what);
        }
    }
    history
}

fn settled_memory(conn: &mut Client) -> u64 {
    let mut last = u64::MAX;
    wait_for("memory to come to rest", || {
        thread::sleep(Duration::from_millis(400));
        let now = conn.info_number("memory", "used_memory");
        let rests = now >= last;
        last = now;
        rests
    });
    last
}

#[test]
fn whatever_clients_do_at_random_locks_exclude_and_nobody_is_forgotten() {
    // What no test by name thinks of: any of these things may meet any other.
    let _alone = alone();
    let seconds = number_from("REDIS_LOCK_SOAK_SECONDS").unwrap_or(10);
    let seed = number_from("REDIS_LOCK_SOAK_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64);
    println!("REDIS_LOCK_SOAK_SEED={seed} REDIS_LOCK_SOAK_SECONDS={seconds}");
    // Fences that follow the time from the start, not from a second later on: see `Actor::held`.
    let (server, mut conn) = Server::setup().lock_option("promotion-skew-ms", "0").connected();
    // What the module and the server allocate once.
    conn.int(&["LOCK.ACQUIRE", "k0", "a"]).expect("free");
    conn.int(&["LOCK.RELEASE", "k0", "a"]);
    let (memory_before, log_before) = (settled_memory(&mut conn), server.log().len());

    let seen: Vec<Seen> = (0..CLIENTS).map(|_| Seen::default()).collect();
    let over = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(seconds);
    let histories: Vec<History> = thread::scope(|scope| {
        let (server, seen, over) = (&server, &seen[..], &over);
        let disturbing = scope.spawn(move || disturb(server, seen, seed, over));
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || Actor::new(server, number, seen, seed).live(end))).collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().chain([disturbing.join()]).map(|ended| ended.expect("see above")).collect()
    });

    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, count) in histories.iter().flat_map(|history| &history.counts) {
        *counts.entry(what).or_default() += count;
    }
    println!("{counts:?}\n{}", conn.get::<String>(&["INFO", "lock"]));
    let faults = faults(&histories);
    assert!(
        faults.is_empty(),
        "seed {seed}: {} faults, the first: {:#?}",
        faults.len(),
        &faults[..faults.len().min(5)]
    );
    // Else it has shown nothing.
    let wanted = "granted,null,deadlock,unblocked,upgraded,extended,lost,closed,retried,deleted,broken,many,session,\
                  session left";
    let missing: BTreeSet<_> = wanted.split(',').filter(|what| !counts.contains_key(what)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
    assert!(conn.info_number("lock", "lock_taken_back") > 0, "no grant has met the end of its client");

    wait_for("all leases to be over", || conn.get::<u64>(&["DBSIZE"]) == 0);
    for field in ["lock_waiters", "lock_contended_keys", "lock_leases", "lock_session_holds"] {
        assert_eq!(conn.info("lock", field), "0", "{field}");
    }
    assert_eq!(conn.info("clients", "blocked_clients"), "0");
    wait_for("the clients to be gone", || conn.info("clients", "connected_clients") == "1");
    let memory_after = settled_memory(&mut conn);
    println!("used memory: {memory_before}, then {memory_after}");
    assert!(memory_after < memory_before + GROWTH, "{memory_before}, then {memory_after}");
    let log = server.log();
    let warnings: Vec<&str> = log[log_before..].lines().filter(|line| line.contains(" # ")).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}
