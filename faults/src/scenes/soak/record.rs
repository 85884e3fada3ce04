//! What the clients have seen, and the resources that they write to.

use super::kind::Kind;
use crate::agents::{Line, Task, boot_us};
use crate::claims::{Claim, Hold, Mode};
use crate::report::Report;
use crate::resource::Resource;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};

/// The locks whose holders also write to data beside them, under their guard.
pub const GUARDED: [&str; 2] = ["lock:g0", "lock:g1"];
/// Of sessions. A client that dies gives its lock up at once; after a failover only this bounds it.
const SESSION_LEASE_MS: u64 = 12_000;

/// Something that this kind of client can do.
pub fn task_for(kind: Kind, dice: &mut StdRng) -> Task {
    // The program ends its command well before the lease is over.
    let lease_ms = if kind == Kind::Program { 6_000 } else { dice.random_range(2_000..=5_000) };
    // Most hold for a short time; some for several leases, so that they are renewed, or end.
    let long = dice.random_bool(0.1);
    let choice = dice.random_range(0..100);
    let mut task = Task {
        mode: "write".to_owned(),
        limit: 3,
        take: 1,
        lease_ms,
        // Who waits by NOTIFY, and is not told, keeps others waiting for so long.
        wait_ms: if kind.is_told() { 40_000 } else { dice.random_range(500..=8_000) },
        hold_ms: dice.random_range(0..=if long { 2 * lease_ms } else { 200 }),
        work_ms: dice.random_range(5..=40),
        ..Task::only("take")
    };
    let mut one_of = |name: &str, count: u32| format!("lock:{name}{}", dice.random_range(0..count));
    match choice {
        0..30 => task.keys = vec![one_of("x", 3)],
        30..45 => (task.keys, task.mode) = (vec![one_of("rw", 2)], "read".to_owned()),
        45..52 if kind != Kind::RedisPy => task.keys = vec![one_of("rw", 2)],
        52..67 => (task.keys, task.mode) = (vec![one_of("s", 2)], "share".to_owned()),
        67..82 if kind != Kind::Program => {
            (task.keys, task.guarded) = (vec![GUARDED[usize::from(choice > 74)].to_owned()], true);
        }
        82..90 if kind.is_helper() => {
            task.keys = vec!["lock:x0".to_owned(), "lock:x2".to_owned()];
        }
        45..52 | 82..100 if kind == Kind::RedisPy => {
            (task.keys, task.session_ms, task.lease_ms) = (vec![one_of("n", 2)], Some(0), SESSION_LEASE_MS);
            task.hold_ms = dice.random_range(0..3_000);
        }
        _ => task.keys = vec![one_of("x", 3)],
    }
    if task.mode == "share" {
        task.take = dice.random_range(1..=2);
    }
    task
}

fn mode_of(task: &Task) -> Mode {
    match task.mode.as_str() {
        "read" => Mode::Read,
        "share" => Mode::Share(task.take, task.limit),
        _ => Mode::Write,
    }
}

/// A hold that is not over.
#[derive(Debug, Default)]
struct Current {
    /// Of each key: the number of the hold, and of its claims.
    holds: Vec<(usize, Vec<usize>)>,
    number: u64,
    owner: Option<String>,
    /// When it was known to be held last.
    at: u64,
}

/// What a client that was killed had by a session.
#[derive(Debug)]
pub struct Orphan {
    pub key: String,
    pub owner: String,
    /// When it had asked for its lock.
    pub asked: u64,
}

#[derive(Debug, Default)]
pub struct Record {
    pub holds: Vec<Hold>,
    pub claims: Vec<Claim>,
    pub report: Report,
    /// Holds that their servers did not know at their release: the last claim, told at the refusal.
    pub refused: Vec<Claim>,
    /// Of each client that releases: the number of the hold, and its last claim.
    releasing: BTreeMap<u64, (u64, Claim)>,
    resources: BTreeMap<String, Resource>,
    tasks: BTreeMap<u64, Task>,
    current: BTreeMap<u64, Current>,
    idle: BTreeSet<u64>,
    /// Those that had a lock at some time.
    at_work: BTreeSet<u64>,
    /// Of each write to the data beside a lock that was sent: its fence.
    pub guarded: BTreeMap<String, i64>,
}

impl Record {
    pub fn count(&mut self, what: &str) {
        self.report.add(what, 1);
    }

    pub fn begins(&mut self, client: u64, task: Task) {
        self.tasks.insert(client, task);
    }

    /// A client has asked what to do, and is to rest.
    pub fn is_idle(&mut self, client: u64, rests: bool) {
        self.give_up(client, boot_us());
        if rests {
            self.idle.insert(client);
        }
    }

    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// A client has ended. The lease of its lock goes on without it.
    pub fn is_gone(&mut self, client: u64) {
        self.idle.remove(&client);
        self.current.remove(&client);
    }

    /// Whether a client had a lock yet. On a busy machine it takes a while to start.
    pub fn is_at_work(&self, client: u64) -> bool {
        self.at_work.contains(&client)
    }

    /// What the client has by a session now.
    pub fn session_of(&self, client: u64) -> Option<Orphan> {
        let (task, current) = (self.tasks.get(&client)?, self.current.get(&client)?);
        task.session_ms?;
        let asked = self.holds[current.holds.first()?.0].granted.0;
        Some(Orphan { key: task.keys[0].clone(), owner: current.owner.clone()?, asked })
    }

    /// Whether a client holds a lock, as far as it has said.
    pub fn lease_of_holder(&self, client: u64) -> Option<u64> {
        self.current.get(&client)?;
        Some(self.tasks.get(&client)?.lease_ms)
    }

    /// Notes what a client says; what it is to be answered.
    pub fn hear(&mut self, client: u64, kind: Kind, line: Line) -> Option<String> {
        match line {
            Line::Next => {}
            Line::Failed { why } => self.count(&format!("not got: {}: {why}", kind.name())),
            Line::Held { hold, owner, fences, asked, at, until } => {
                self.count("holds");
                self.count(&format!("holds: {}", kind.name()));
                self.hold(client, kind, (hold, owner), &fences, (asked, at, until));
            }
            Line::Guarding { hold, name } => {
                let fence = self.current(client, hold).map_or(0, |holds| self.holds[holds[0].0].fence);
                self.guarded.insert(name, i64::try_from(fence).expect("below 2^53"));
            }
            Line::Guarded => self.count("guarded writes"),
            Line::Write { hold, asked, at, until } => {
                self.renew(client, kind, hold, (asked, at, until));
                return Some(if self.write(client, hold) { "yes" } else { "no" }.to_owned());
            }
            Line::Believes { hold, at, until } => {
                let late = at.saturating_sub(until);
                let kind = kind.name();
                self.report
                    .violation(format!("{kind} {client}, hold {hold}: it is not lost, {late} us after its validity"));
            }
            Line::Lost { at, .. } => {
                self.count("losses told");
                self.give_up(client, at);
            }
            Line::Releasing { hold, at } => {
                self.note_last_claim(client, kind, hold);
                self.give_up(client, at);
            }
            Line::Released { hold, ok } => {
                self.count(if ok { "released" } else { "not held at the release" });
                let last = self.releasing.remove(&client).filter(|(number, _)| *number == hold && !ok);
                self.refused.extend(last.map(|(_, claim)| Claim { told: boot_us(), ..claim }));
            }
            Line::Trouble { why } => self.count(&format!("trouble: {}: {why}", kind.name())),
            Line::Exit { code } => {
                let code = code.map_or("a signal".to_owned(), |code| code.to_string());
                self.count(&format!("redis-lock run ended with {code}"));
            }
        }
        None
    }

    fn hold(
        &mut self,
        client: u64,
        kind: Kind,
        (number, owner): (u64, Option<String>),
        fences: &[u64],
        when: (u64, u64, u64),
    ) {
        let (asked, at, until) = when;
        self.at_work.insert(client);
        let task = self.tasks[&client].clone();
        let mut current = Current { holds: Vec::new(), number, owner, at };
        let until = if is_proven(kind, &task) { at } else { until };
        for (key, fence) in task.keys.iter().zip(fences) {
            let (mode, name) = (mode_of(&task), format!("{} {client}, hold {number}", kind.name()));
            current.holds.push((self.holds.len(), vec![self.claims.len()]));
            self.claims.push(Claim { hold: self.holds.len(), asked, told: at, from: at, until });
            self.holds.push(Hold { name, key: key.clone(), mode, fence: *fence, granted: (asked, at) });
        }
        self.current.insert(client, current);
    }

    fn current(&self, client: u64, number: u64) -> Option<&[(usize, Vec<usize>)]> {
        let current = self.current.get(&client).filter(|current| current.number == number)?;
        Some(&current.holds)
    }

    /// The client has checked that it holds the lock.
    fn renew(&mut self, client: u64, kind: Kind, number: u64, (asked, at, until): (u64, u64, u64)) {
        let task = self.tasks[&client].clone();
        let Some(current) = self.current.get_mut(&client).filter(|current| current.number == number) else { return };
        let lease_us = task.lease_ms * 1_000;
        let last = std::mem::replace(&mut current.at, at);
        let mut renewed = false;
        for (hold, claims) in &mut current.holds {
            let before = self.claims[*claims.last().expect("that of the grant")];
            let next = if is_proven(kind, &task) {
                // What is known is the past: the same fence now and then.
                let (asked, until) =
                    if kind == Kind::Program { (at.saturating_sub(lease_us), at) } else { (asked, asked) };
                Claim { hold: *hold, asked, told: at, from: last, until }
            } else if until > before.until {
                // The answer came between these two.
                let asked = asked.min(until.saturating_sub(lease_us));
                Claim { hold: *hold, asked, told: at, from: at, until }
            } else {
                continue;
            };
            renewed |= until > before.until;
            claims.push(self.claims.len());
            self.claims.push(next);
        }
        if renewed && kind != Kind::Program {
            self.count("renewals");
        }
    }

    /// What a client that releases relied on last.
    fn note_last_claim(&mut self, client: u64, kind: Kind, number: u64) {
        self.releasing.remove(&client);
        if !is_proven(kind, &self.tasks[&client])
            && let Some((_, claims)) = self.current(client, number).and_then(<[_]>::first)
        {
            let claim = self.claims[*claims.last().expect("that of the grant")];
            self.releasing.insert(client, (number, claim));
        }
    }

    /// From this moment on the client does not rely on its lock any more.
    fn give_up(&mut self, client: u64, at: u64) {
        let Some(current) = self.current.remove(&client) else { return };
        for number in current.holds.into_iter().flat_map(|(_, claims)| claims) {
            let claim = &mut self.claims[number];
            claim.until = claim.until.min(at);
        }
    }

    /// The holder writes to the resources of its keys; whether all have accepted that.
    fn write(&mut self, client: u64, number: u64) -> bool {
        let Some(current) = self.current.get(&client).filter(|current| current.number == number) else { return false };
        let holds: Vec<Hold> = current.holds.iter().map(|(hold, _)| self.holds[*hold].clone()).collect();
        let mut accepted = true;
        for hold in holds {
            let resource = self.resources.entry(hold.key.clone()).or_default();
            let used = resource.is_used(Some(hold.fence as i64), hold.granted.1, hold.mode == Mode::Write);
            accepted &= used.accepted;
            self.count("writes");
            match (used.accepted, used.is_old) {
                (false, true) => self.count("late writes refused"),
                // Both need a fence that went back. Whether a deposed primary gave it, is judged when all is known.
                (true, true) => self.count("writes accepted after one with a lower fence"),
                (false, false) => self.count("writes refused before one with a higher fence"),
                (true, false) => {}
            }
        }
        accepted
    }
}

/// Whether only the past of a hold is certain: a session ends with its connection, and a program is told nothing.
fn is_proven(kind: Kind, task: &Task) -> bool {
    kind == Kind::Program || task.session_ms.is_some()
}
