//! What happens to the wires, and to what is sent over them.

use crate::caller::{Answer, Caller};
use crate::history::Moment;
use crate::look::{apart, left_ms, wait_in_line, waiting};
use crate::report::Report;
use crate::witness::Witness;
use rand::seq::SliceRandom;
use rand::{RngExt, rngs::StdRng};
use redis::Value;
use std::thread;
use std::time::Duration;
use testbed::{Client, Proxy, Server, wait_for};

pub const PATIENCE: Duration = Duration::from_secs(8);
/// About as many as a client sends and receives from the connection to the reply: any of them may be the last.
pub const BYTES: u32 = 300;

/// The servers, the wires, and what was seen.
pub struct Stage<'s> {
    pub primary: &'s Server,
    pub replica: &'s Server,
    pub to_clients: Proxy,
    pub to_replica: Proxy,
    pub witness: Witness,
    pub dice: StdRng,
    pub report: &'s mut Report,
}

impl Stage<'_> {
    /// One thing after the other happens to the wires; at the end they are whole.
    pub fn break_wires(&mut self) {
        // Each of them twice, in some order.
        let mut kinds: Vec<u32> = (0..6).chain(0..6).collect();
        kinds.shuffle(&mut self.dice);
        for (number, kind) in (0..).zip(kinds) {
            let ms = self.dice.random_range(50..800);
            let part = Duration::from_millis(ms);
            match kind {
                0 => {
                    self.to_clients.freeze(true);
                    thread::sleep(part);
                    self.report.add("partitions of clients, healed", 1);
                }
                1 => {
                    self.to_clients.freeze(true);
                    thread::sleep(part);
                    self.to_clients.cut_all();
                    self.report.add("partitions of clients, cut", 1);
                }
                2 => {
                    let cuts = self.to_clients.cuts();
                    for _ in 0..20 {
                        self.to_clients.cut_after(self.dice.random_range(0..BYTES));
                        thread::sleep(part / 20);
                    }
                    self.report.add("connections cut at some byte", self.to_clients.cuts() - cuts);
                }
                kind => self.part_replica(number, part, kind),
            }
            self.to_clients.freeze(false);
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The replica receives nothing for a while, or loses its connection, or misses more than the primary remembers.
    /// What it receives late, it stores with the lease that was left when it was sent.
    fn part_replica(&mut self, number: u64, part: Duration, kind: u32) {
        let (mut here, mut there) = (self.primary.connect(), self.replica.connect());
        // The smallest that there is.
        here.ok(&["CONFIG", "SET", "repl-backlog-size", if kind == 5 { "16384" } else { "1048576" }]);
        self.to_replica.freeze(true);
        let told_late = format!("late{number}");
        let began = Moment::now();
        here.int(&["LOCK.ACQUIRE", &told_late, "holder", "PX", "60000"]).expect("free");
        thread::sleep(part);
        if kind == 5 {
            here.ok(&["SET", "filler", &"x".repeat(100_000)]);
        }
        if kind > 3 {
            self.to_replica.cut_all();
        }
        self.to_replica.freeze(false);
        wait_for("the replica to hear of the lock", || left_ms(&mut there, &told_late).is_some());
        let on_its_way = (Moment::now().0 - began.0).div_ceil(1000) as i64 + 1;
        self.report.violations(apart(&mut here, &mut there, &told_late, on_its_way));
        here.int(&["LOCK.RELEASE", &told_late, "holder"]);
        self.report.add(["replica parted", "replica cut off", "replica cut off for long"][kind as usize - 3], 1);
    }

    /// All leases end, every waiter has been answered or has left, and the replica reaches the same state.
    pub fn nothing_is_left(&mut self, round: u64) {
        let mut conn = self.primary.connect();
        for (section, field) in [
            ("lock", "lock_leases"),
            ("lock", "lock_waiters"),
            ("lock", "lock_places"),
            ("lock", "lock_contended_keys"),
            ("lock", "lock_session_holds"),
            ("clients", "blocked_clients"),
        ] {
            wait_for(&format!("{field} to be 0"), || conn.info(section, field) == "0");
        }
        // Something held, so that there is something to compare.
        conn.int(&["LOCK.ACQUIRE", &format!("compared{round}"), "holder", "PX", "60000"]).expect("free");
        self.replica.catch_up(self.primary);
        let digest = |conn: &mut Client| conn.get::<String>(&["DEBUG", "DIGEST"]);
        let (here, there) = (digest(&mut conn), digest(&mut self.replica.connect()));
        if here != there {
            self.report.violation(format!("the primary's digest is {here}, the replica's {there}"));
        }
        conn.int(&["LOCK.RELEASE", &format!("compared{round}"), "holder"]);
        self.report.add("compared with the replica", 1);
        for figure in ["sync_full", "sync_partial_ok"] {
            let now = conn.info_number("stats", figure);
            // The first copy was made before anything was broken.
            let first = u64::from(figure == "sync_full");
            self.report.add(figure, now - first - self.report.figure(figure));
        }
    }

    /// Takes and releases over a wire that is cut again and again, and repeats until there is an answer. It counts
    /// once.
    pub fn repeat_until_answered(&mut self, key: &str) {
        let mut conn = self.primary.connect();
        let wire = Proxy::to(self.primary.port());
        let several = self.dice.random_bool(0.3);
        let keys = if several { vec![format!("{key}a"), format!("{key}b")] } else { vec![key.to_owned()] };
        let (prefix, named) = if several { ("M", format!("2 {}", keys.join(" "))) } else { ("", key.to_owned()) };
        let is_held = self.dice.random_bool(0.5);
        if is_held {
            conn.int(&["LOCK.ACQUIRE", &keys[0], "holder", "PX", "60000"]).expect("free");
        }
        let request = format!("LOCK.{prefix}ACQUIRE {named} repeats PX 60000 BLOCK 0 RETRY 1");
        wire.cut_after(self.dice.random_range(0..BYTES));
        let asking = repeat(wire.port(), request.clone());
        self.cut(&wire);
        if is_held {
            wait_for("it to wait in line", || waiting(&mut conn, &keys[0]) == 1);
            wire.cut_all();
            self.cut(&wire);
            wait_for("it to wait in line", || waiting(&mut conn, &keys[0]) == 1);
            // In the middle of the reply, or before it: the client is granted, and does not know.
            wire.cut_after(self.dice.random_range(0..20));
            conn.int(&["LOCK.RELEASE", &keys[0], "holder"]);
        }
        self.cut(&wire);
        let (attempts, answer) = asking.join().expect("does not panic");
        self.report.add("repeated: acquired", 1);
        self.report.add("repeated: attempts", attempts);
        let fences: Vec<i64> = match answer {
            Answer::Value(Value::Int(fence)) => vec![fence],
            Answer::Value(value) => redis::from_redis_value(value).expect("fences"),
            other => panic!("{request}: {other:?}"),
        };
        for (key, fence) in keys.iter().zip(fences) {
            let info = conn.lock_info(key);
            let once = info.as_ref().is_some_and(|info| {
                let [holder] = &info.holders[..] else { return false };
                (holder.owner == b"repeats" && holder.reads + holder.writes == 1 && holder.fence == fence)
                    && info.waiting == 0
            });
            if !once {
                self.report.violation(format!("{request}, {attempts} times, gave {fence}: {info:?}"));
            }
        }
        let what = if self.dice.random_bool(0.5) { "TO 0" } else { "ALL" };
        let request = format!("LOCK.{prefix}RELEASE {named} repeats {what}");
        wire.cut_after(self.dice.random_range(0..BYTES));
        let asking = repeat(wire.port(), request.clone());
        self.cut(&wire);
        let (attempts, answer) = asking.join().expect("does not panic");
        self.report.add("repeated: released", 1);
        self.report.add("repeated: attempts", attempts);
        // Null only if an earlier one was served.
        if was_not_held(&answer) && attempts == 1 || keys.iter().any(|key| conn.lock_info(key).is_some()) {
            self.report.violation(format!("{request}, {attempts} times: {answer:?}"));
        }
        self.report.add("connections cut at some byte", wire.cuts());
    }

    /// Cuts the wire some times while a request, or its reply, may be on it.
    fn cut(&mut self, wire: &Proxy) {
        for _ in 0..4 {
            wire.cut_after(self.dice.random_range(0..BYTES));
            thread::sleep(Duration::from_millis(self.dice.random_range(1..10)));
        }
    }

    /// A client with a session vanishes, and its connection does not report it. The hold lives by its lease; or by the
    /// grace from the moment at which the server detects that the connection is gone.
    pub fn vanish(&mut self, key: &str, learns: bool) {
        const LEASE_MS: u64 = 1200;
        const GRACE_MS: u64 = 200;
        let mut conn = self.primary.connect();
        let wire = Proxy::to(self.primary.port());
        let mut client = Caller::new(wire.port(), PATIENCE);
        let (from, answer, to) = client.ask(&format!("LOCK.ACQUIRE {key} vanishes PX {LEASE_MS} SESSION {GRACE_MS}"));
        assert!(answer.int().is_some(), "{answer:?}");
        let next = wait_in_line(self.primary, key, format!("LOCK.ACQUIRE {key} next BLOCK 0"), PATIENCE, PATIENCE);
        wire.freeze(true);
        client.hang_up();
        thread::sleep(Duration::from_millis(2 * GRACE_MS));
        let session = conn.lock_info(key).and_then(|info| info.holders.first().and_then(|holder| holder.session));
        if session != Some(GRACE_MS as i64) {
            self.report.violation(format!("{key}: the session is {session:?} while nobody knows that it has ended"));
        }
        let due = if learns {
            let from = Moment::now();
            wire.cut_all();
            (from.after_ms(GRACE_MS), Moment::now().after_ms(GRACE_MS))
        } else {
            (from.after_ms(LEASE_MS), to.after_ms(LEASE_MS))
        };
        let (_, answer, told) = next.join().expect("does not panic");
        if answer.int().is_none() || !self.witness.is_in_time(due, told) {
            self.report.violation(format!("{key}: the next got {answer:?} at {told:?}, due {due:?}"));
        }
        // The messages that arrive now concern no hold.
        wire.freeze(false);
        wire.cut_all();
        thread::sleep(Duration::from_millis(GRACE_MS));
        let holder = conn.lock_info(key).map(|info| info.holders[0].owner.clone());
        if holder.as_deref() != Some(b"next") || conn.int(&["LOCK.RELEASE", key, "next"]) != Some(0) {
            self.report.violation(format!("{key} is held by {holder:?} after the end of an older session"));
        }
        self.report.add(if learns { "sessions cut" } else { "sessions half open until the lease ended" }, 1);
    }
}

/// Asks on one connection after the other until one of them brings an answer; how many it took.
fn repeat(port: u16, request: String) -> thread::JoinHandle<(u64, Answer)> {
    thread::spawn(move || {
        let mut caller = Caller::new(port, PATIENCE);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (_, answer, _) = caller.ask_long(&request, PATIENCE);
            if answer != Answer::Lost {
                return (attempts, answer);
            }
        }
    })
}

/// Whether a release was answered that the key, or one of the keys, was not held.
fn was_not_held(answer: &Answer) -> bool {
    match answer {
        Answer::Value(Value::Array(each)) => each.contains(&Value::Nil),
        other => *other == Answer::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_seen_alone_and_among_others() {
        let each = |last| Answer::Value(Value::Array(vec![Value::Int(0), last]));
        assert!(was_not_held(&Answer::Null) && was_not_held(&each(Value::Nil)));
        assert!(!was_not_held(&Answer::Value(Value::Int(0))) && !was_not_held(&each(Value::Int(0))));
    }
}
