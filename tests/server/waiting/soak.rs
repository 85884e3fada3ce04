//! The soak: many clients, few locks, everything at random, and a look at the clients' own histories afterwards.
//!
//! `REDIS_LOCK_SOAK_SECONDS` says how long (10), `REDIS_LOCK_SOAK_SEED` repeats the choices of a run, which prints its
//! seed. The choices are the same then, though not their order across clients, which the machine makes.

use crate::harness::connection::{Connection, Reply};
use crate::harness::dice::{Dice, number_from};
use crate::harness::lapses::alone;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use testbed::{Client, Server, wait_for};

const CLIENTS: usize = 200;
const KEYS: u64 = 20;

/// By how much the wall clock may be moved between a grant and the moment at which its client reads it. It is also by
/// how much fences may be ahead of it. Both are steered by the second, not by the millisecond.
const SLACK: Duration = Duration::from_millis(5);

/// What the server's memory may have grown by in the end. Its pool of clients for modules may grow, and its tables of
/// keys and clients, which keep the size they had. So may its log of slow commands and the histories of commands'
/// durations. A single waiter that is never unblocked costs 30 KB, so a hundred of them would show.
const GROWTH: u64 = 3_000_000;

/// A stretch of time in which an owner certainly holds a key.
#[derive(Clone, Debug)]
struct Piece {
    key: u64,
    owner: String,
    writes: bool,
    fence: i64,
    /// When the request that created it was sent.
    asked: Instant,
    from: Instant,
    to: Instant,
}

/// A fence that was given with a request.
#[derive(Clone, Debug)]
struct Given {
    key: u64,
    owner: String,
    fence: i64,
    asked: Instant,
    told: Instant,
}

/// What one client saw.
#[derive(Debug, Default)]
struct History {
    pieces: Vec<Piece>,
    given: Vec<Given>,
    /// Keys that were deleted or broken, and between which moments.
    deleted: Vec<(u64, Instant, Instant)>,
    /// Owners that got the reply that they do not hold a key, though they may have: the last of their pieces, and when.
    denied: Vec<(Piece, Instant)>,
    counts: BTreeMap<&'static str, u64>,
}

impl History {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

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

    /// Takes a key, perhaps another, does things with them, gives them back or not.
    fn session(&mut self) -> Result<(), Closed> {
        let (mut held, mut left) = (Vec::new(), false);
        let keys = match self.dice.between(0, 99) {
            0..=19 => {
                held = self.acquire_many()?.unwrap_or_default();
                0
            }
            20..=39 => 2,
            _ => 1,
        };
        if held.len() > 1 && self.dice.percent(50) {
            thread::sleep(Duration::from_micros(self.dice.between(0, 5_000)));
            return self.release_many(held);
        }
        for _ in 0..keys {
            let key = self.dice.between(0, KEYS - 1);
            if held.iter().any(|held: &Held| held.piece.key == key) {
                continue;
            }
            let writes = self.dice.percent(40);
            if let Some(taken) = self.acquire(key, writes, None)? {
                held.push(taken);
            }
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
                self.release(held)?;
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

    /// Asks for a key, and waits for it, in one of many ways.
    fn acquire(&mut self, key: u64, writes: bool, before: Option<&Held>) -> Result<Option<Held>, Closed> {
        let (terms, lease, grace) = self.terms(before.is_none());
        let mode = if writes { "WRITE" } else { "READ" };
        let retry = if self.dice.percent(20) { " RETRY 1" } else { "" };
        let command = format!("LOCK.RW k{key} {} {mode}{terms}", self.owner);
        self.seen[self.number].asks_for.store(key + 1, Ordering::Relaxed);
        let (asked, mut line, mut told) = self.ask(&format!("{command}{retry}"));
        self.seen[self.number].asks_for.store(0, Ordering::Relaxed);
        if line == Reply::Closed && before.is_none() && self.dice.percent(50) {
            // It comes back and asks again, as the same owner.
            self.history.count("retried");
            self.connect();
            // The first request may have been granted, and its reply lost: the fence is then as old as that.
            (_, line, told) = self.ask(&format!("{command} RETRY 1"));
        }
        let fence = match line {
            Reply::Int(fence) => fence,
            other => return self.not_granted(&command, other).map(|()| None),
        };
        self.history.count("granted");
        // Asked for again, a hold stays bound to what it was bound to.
        let session = match before {
            Some(before) => before.session,
            None => grace.map(|grace| (self.connection(), grace)),
        };
        if session.is_some() {
            self.history.count("session");
        }
        Ok(Some(self.held(key, writes, fence, (asked, told), lease, session, before.is_none())))
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

    /// Asks for several keys at once, as one that holds nothing.
    fn acquire_many(&mut self) -> Result<Option<Vec<Held>>, Closed> {
        let mut keys: Vec<u64> = (0..self.dice.between(2, 4)).map(|_| self.dice.between(0, KEYS - 1)).collect();
        keys.sort_unstable();
        keys.dedup();
        let first = self.dice.between(0, keys.len() as u64 - 1) as usize;
        // In any order.
        keys.rotate_left(first);
        let writes = self.dice.percent(60);
        let (terms, lease, grace) = self.terms(true);
        let mode = if writes { "WRITE" } else { "READ" };
        let command = format!("LOCK.MACQUIRE {}{} {} {mode}{terms}", keys.len(), names(&keys), self.owner);
        self.seen[self.number].asks_for.store(keys[0] + 1, Ordering::Relaxed);
        let (asked, line, told) = self.ask(&command);
        self.seen[self.number].asks_for.store(0, Ordering::Relaxed);
        let fences = match line {
            Reply::Array(fences) => fences,
            other => return self.not_granted(&command, other).map(|()| None),
        };
        assert_eq!(fences.len(), keys.len(), "{command}");
        self.history.count("many");
        let session = grace.map(|grace| (self.connection(), grace));
        let held = keys.into_iter().zip(fences.iter().map(Reply::int));
        Ok(Some(held.map(|(key, fence)| self.held(key, writes, fence, (asked, told), lease, session, true)).collect()))
    }

    /// What was granted just now.
    #[allow(clippy::too_many_arguments, reason = "all that is known of a grant")]
    fn held(
        &mut self,
        key: u64,
        writes: bool,
        fence: i64,
        (asked, told): (Instant, Instant),
        lease: Duration,
        session: Option<(usize, Duration)>,
        first: bool,
    ) -> Held {
        // The lease began no earlier than it was asked for, and no earlier than when the fence was given, which is a
        // time. The wall clock is read last: a thread that has to wait in between finds the fence older than it is.
        let here = Instant::now();
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let age = age.saturating_sub(Duration::from_micros(fence as u64)) + SLACK;
        let is_new = first && !self.knows(fence);
        // Asked for again, the old fence stands and says nothing about the lease.
        let begun = here.checked_sub(age).filter(|_| is_new).map_or(asked, |begun| begun.max(asked));
        let until = begun + lease;
        self.history.given.push(Given { key, owner: self.owner.clone(), fence, asked, told });
        let piece = Piece { key, owner: self.owner.clone(), writes, fence, asked, from: told, to: until };
        Held { piece, until, session }
    }

    /// Gives several keys back in one step.
    fn release_many(&mut self, held: Vec<Held>) -> Result<(), Closed> {
        let keys: Vec<u64> = held.iter().map(|held| held.piece.key).collect();
        let (asked, line, told) = self.ask(&format!("LOCK.MRELEASE {}{} {} ALL", keys.len(), names(&keys), self.owner));
        let left = if line == Reply::Closed { Vec::new() } else { line.items() };
        assert!(left.is_empty() || left.len() == keys.len(), "MRELEASE: {left:?}");
        for (at, held) in held.into_iter().enumerate() {
            match left.get(at) {
                Some(Reply::Int(count)) => assert_eq!(*count, 0),
                Some(Reply::Null) => {
                    self.history.count("lost");
                    self.deny(&held, told);
                }
                None => {}
                other => panic!("MRELEASE: {other:?}"),
            }
            self.finish(held, Some(asked));
        }
        if left.is_empty() { Err(Closed) } else { Ok(()) }
    }

    /// Whether the owner was given this fence before.
    fn knows(&self, fence: i64) -> bool {
        self.history.given.iter().rev().take(8).any(|given| given.owner == self.owner && given.fence == fence)
    }

    fn upgrade(&mut self, held: &mut Held) -> Result<(), Closed> {
        let upgraded = self.acquire(held.piece.key, true, Some(held));
        match upgraded {
            Ok(Some(upgraded)) => {
                self.history.count("upgraded");
                // If the reads had ended before, this is another hold; in either case it holds for writing from now on.
                let read = held.clone();
                self.finish(read, Some(upgraded.piece.from));
                *held = upgraded;
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(Closed) => {
                self.finish(held.clone(), None);
                Err(Closed)
            }
        }
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

    fn release(&mut self, held: Held) -> Result<(), Closed> {
        let (key, fence) = (held.piece.key, held.piece.fence);
        let release = format!("LOCK.RELEASE k{key} {} ALL FENCE {fence}", self.owner);
        let then = self.farewells(key);
        let (asked, line, told) =
            self.ask(&[&release].into_iter().chain(&then).cloned().collect::<Vec<_>>().join("\r\n"));
        for _ in then {
            if self.link.read() == Reply::Closed {
                self.finish(held, Some(asked));
                return Err(Closed);
            }
        }
        match line {
            Reply::Int(left) => assert_eq!(left, 0),
            Reply::Null => {
                self.history.count("lost");
                self.deny(&held, told);
            }
            Reply::Closed => {
                self.finish(held, Some(asked));
                return Err(Closed);
            }
            other => panic!("RELEASE: {other:?}"),
        }
        self.finish(held, Some(asked));
        Ok(())
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

/// All faults that the histories show.
fn faults(histories: &[History]) -> Vec<String> {
    let mut faults = Vec::new();
    let deleted: Vec<_> = histories.iter().flat_map(|history| &history.deleted).collect();
    for key in 0..KEYS {
        let deleted: Vec<_> = deleted.iter().filter(|(of, ..)| *of == key).collect();
        // With a DEL, all holds that may have been there are over.
        let cut = |piece: &Piece| {
            let ends = deleted.iter().filter(|(_, _, told)| *told >= piece.asked).map(|(_, asked, _)| *asked);
            Piece { to: ends.chain([piece.to]).min().expect("one at least"), ..piece.clone() }
        };
        let all = || histories.iter().flat_map(|history| &history.pieces).filter(|piece| piece.key == key);
        let mut pieces: Vec<Piece> = all().map(cut).filter(|piece| piece.from < piece.to).collect();
        pieces.sort_by_key(|piece| piece.from);
        let mut active: Vec<&Piece> = Vec::new();
        for piece in &pieces {
            active.retain(|other| other.to > piece.from);
            for other in &active {
                if other.owner != piece.owner && (other.writes || piece.writes) {
                    faults.push(format!("both hold at once: {other:?} and {piece:?}"));
                }
            }
            active.push(piece);
        }

        for (piece, told) in histories.iter().flat_map(|history| &history.denied).filter(|(piece, _)| piece.key == key)
        {
            if *told < cut(piece).to {
                faults.push(format!("denied at {told:?}: {piece:?}"));
            }
        }

        let mut given: Vec<&Given> =
            histories.iter().flat_map(|history| &history.given).filter(|given| given.key == key).collect();
        let mut owners = BTreeMap::new();
        for given in &given {
            let owner = owners.entry(given.fence).or_insert(&given.owner);
            if **owner != given.owner {
                faults.push(format!("the same fence for {owner} and {}: {given:?}", given.owner));
            }
        }
        // Of the grants that were answered before another was requested, the highest fence.
        let mut told = given.clone();
        told.sort_by_key(|given| given.told);
        given.sort_by_key(|given| given.asked);
        let (mut at, mut highest): (usize, Option<&Given>) = (0, None);
        for later in given {
            while told.get(at).is_some_and(|earlier| earlier.told < later.asked) {
                if highest.is_none_or(|highest| highest.fence < told[at].fence) {
                    highest = Some(told[at]);
                }
                at += 1;
            }
            if let Some(earlier) = highest
                && earlier.fence >= later.fence
                && earlier.owner != later.owner
                && !joins(&told, later)
            {
                faults.push(format!("a fence went back: {earlier:?}, then {later:?}"));
            }
        }
    }
    faults
}

/// Whether an owner asks for what it was given before: then the fence is the old one.
fn joins(given: &[&Given], later: &Given) -> bool {
    given.iter().any(|other| other.owner == later.owner && other.fence == later.fence && other.told < later.asked)
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
    let wanted = [
        "granted",
        "null",
        "deadlock",
        "unblocked",
        "upgraded",
        "extended",
        "lost",
        "closed",
        "retried",
        "deleted",
        "broken",
        "many",
        "session",
        "session left",
    ];
    let missing: BTreeSet<_> = wanted.into_iter().filter(|what| !counts.contains_key(what)).collect();
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
