//! Clients that lock, hold and unlock, and remember what they saw.

use crate::caller::{Answer, Caller};
use crate::history::{Freed, Grant, Moment, Release, is_early};
use crate::wire::Wire;
use rand::rngs::StdRng;
use rand::{RngExt, seq::IndexedRandom};
use redis::Value;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Habits {
    pub keys: Vec<String>,
    /// How many of a hundred requests are for reading.
    pub readers: u32,
    pub lease_ms: RangeInclusive<u64>,
    /// How long they hold, in milliseconds; may be longer than the lease.
    pub hold_ms: RangeInclusive<u64>,
    /// How long they wait in the queue, in milliseconds.
    pub block_ms: RangeInclusive<u64>,
    /// Whether they do so by NOTIFY, on a channel of the slot of the key, which begins with its tag in braces.
    pub notify: bool,
    /// Sent after each grant, and the answer waited for: `WAIT 2 1000`. An error or an answer below the first number
    /// makes the client give the hold back at once, and not count it.
    pub confirm: Option<(u64, u64)>,
}

impl Habits {
    /// Those of clients that have so many locks for a short time each, some of them for reading.
    pub fn brief(locks: u64) -> Habits {
        Habits {
            keys: (0..locks).map(|number| format!("load{number}")).collect(),
            readers: 30,
            lease_ms: 50..=500,
            hold_ms: 0..=300,
            block_ms: 0..=500,
            notify: false,
            confirm: None,
        }
    }
}

#[derive(Debug, Default)]
pub struct Saw {
    pub grants: Vec<Grant>,
    /// What it released at once, because fewer replicas confirmed it than [`Habits::confirm`] demands: only the fences
    /// tell.
    pub unconfirmed: Vec<Grant>,
    /// How often it was answered what.
    pub answers: BTreeMap<String, u64>,
    /// Requests that had no answer in time, though their connection was open.
    pub forgotten: Vec<String>,
    /// Requests that were answered null before their timeout.
    pub too_early: Vec<String>,
}

impl Saw {
    fn count(&mut self, what: &str) {
        *self.answers.entry(what.to_owned()).or_default() += 1;
    }
}

pub fn together(all: impl IntoIterator<Item = Saw>) -> Saw {
    let mut sum = Saw::default();
    for saw in all {
        sum.grants.extend(saw.grants);
        sum.unconfirmed.extend(saw.unconfirmed);
        sum.forgotten.extend(saw.forgotten);
        sum.too_early.extend(saw.too_early);
        for (what, count) in saw.answers {
            *sum.answers.entry(what).or_default() += count;
        }
    }
    sum
}

/// How long the place of one that waits by NOTIFY is kept.
const QUEUE_MS: u64 = 3_000;

/// A subscription to a channel of a slot, if the node serves that; its messages are waited for until it is time to ask.
fn subscribed(port: u16, channel: &str) -> Option<Wire> {
    let mut wire = Wire::new(port, Duration::from_millis(QUEUE_MS / 3)).ok()?;
    wire.send(&[vec!["SSUBSCRIBE".to_owned(), channel.to_owned()]]).ok()?;
    matches!(wire.read(), Ok(Value::Array(_))).then_some(wire)
}

/// Where the lock with this name is to be requested now; None while that is not known.
pub type Where<'w> = &'w dyn Fn(&str) -> Option<u16>;

/// One client, which does one thing after the other.
pub struct Worker<'h> {
    name: String,
    habits: &'h Habits,
    dice: StdRng,
    patience: Duration,
    owners: u64,
    saw: Saw,
}

impl<'h> Worker<'h> {
    /// With a name that no other has. An answer that does not come `patience` after it was due is missing.
    pub fn new(name: String, habits: &'h Habits, dice: StdRng, patience: Duration) -> Worker<'h> {
        Worker { name, habits, dice, patience, owners: 0, saw: Saw::default() }
    }

    /// Locks and unlocks while it may go on.
    pub fn live(mut self, place: Where, goes_on: &dyn Fn() -> bool) -> Saw {
        let mut caller: Option<Caller> = None;
        while goes_on() {
            let key = self.habits.keys.choose(&mut self.dice).expect("there are keys").clone();
            let Some(port) = place(&key) else {
                self.pause();
                continue;
            };
            let caller = caller.get_or_insert_with(|| Caller::new(port, self.patience));
            caller.turn_to(port);
            if !self.once(caller, &key, place) {
                self.pause();
            }
        }
        self.saw
    }

    fn pause(&mut self) {
        thread::sleep(Duration::from_millis(self.dice.random_range(1..=20)));
    }

    /// One hold, from the request to the release. False when there was none.
    fn once(&mut self, caller: &mut Caller, key: &str, place: Where) -> bool {
        self.owners += 1;
        let owner = format!("{}.{}", self.name, self.owners);
        let writes = self.dice.random_range(0..100) >= self.habits.readers;
        let mode = if writes { "WRITE" } else { "READ" };
        let lease = self.dice.random_range(self.habits.lease_ms.clone());
        let block = self.dice.random_range(self.habits.block_ms.clone());
        let block_text = if block == 0 || self.habits.notify { String::new() } else { format!(" BLOCK {block}") };
        let request = format!("LOCK.RW {key} {owner} {mode} PX {lease}{block_text}");
        let (first, (asked, answer, told)) = if self.habits.notify {
            (Moment::now(), self.ask_notified(caller, (key, &owner), &request, block))
        } else {
            let asked = caller.ask_long(&request, Duration::from_millis(block));
            (asked.0, asked)
        };
        let Some(fence) = answer.int() else {
            if answer == Answer::Null && !self.habits.notify && is_early(asked, told, block) {
                self.saw.too_early.push(format!("{request}: asked {asked:?}, told {told:?}"));
            }
            self.not_granted(&request, answer);
            return false;
        };
        self.saw.count("granted");
        let lease_ends = asked.after_ms(lease);
        let (key, node) = (key.to_owned(), caller.port());
        // An offer has its fence from before it was asked for last.
        let mut grant = Grant { key, owner, writes, fence, node, asked: first, told, lease_ends, release: None };
        if self.confirmed(caller) {
            // From here on it relies on the hold.
            grant.told = Moment::now();
            thread::sleep(Duration::from_millis(self.dice.random_range(self.habits.hold_ms.clone())));
            self.release(caller, &mut grant, place);
            self.saw.grants.push(grant);
        } else {
            self.release(caller, &mut grant, place);
            self.saw.unconfirmed.push(grant);
        }
        true
    }

    /// Asks without waiting, and again whenever a message says so, and by itself at a third of QUEUE. The last request.
    fn ask_notified(
        &mut self,
        caller: &mut Caller,
        (key, owner): (&str, &str),
        request: &str,
        ms: u64,
    ) -> (Moment, Answer, Moment) {
        let tag = &key[..=key.find('}').expect("keys begin with a tag")];
        let channel = format!("{tag}notify.{}", self.name);
        let request = format!("{request} QUEUE {QUEUE_MS} NOTIFY {channel}");
        let ends = Moment::now().after_ms(ms);
        let mut ears: Option<(u16, Wire)> = None;
        loop {
            if ears.as_ref().is_none_or(|(port, _)| *port != caller.port()) {
                ears = subscribed(caller.port(), &channel).map(|wire| (caller.port(), wire));
            }
            let (asked, answer, told) = caller.ask(&request);
            if answer != Answer::Null {
                return (asked, answer, told);
            }
            if Moment::now() > ends {
                // Else its place would keep others out.
                caller.ask(&format!("LOCK.RELEASE {key} {owner}"));
                return (asked, answer, told);
            }
            match ears.as_mut().map(|(_, wire)| wire.read()) {
                Some(Ok(Value::Array(words))) if words.first() == Some(&Value::BulkString(b"smessage".to_vec())) => {
                    self.saw.count("woken by a message");
                }
                Some(Err(error)) if error.is_timeout() => {}
                // The slot has moved, or the node is gone.
                _ => {
                    ears = None;
                    self.pause();
                }
            }
        }
    }

    /// Whether as many replicas as there must be have the grant.
    fn confirmed(&mut self, caller: &mut Caller) -> bool {
        let Some((replicas, ms)) = self.habits.confirm else { return true };
        let (_, answer, _) = caller.ask_long(&format!("WAIT {replicas} {ms}"), Duration::from_millis(ms));
        let confirmed = answer.int().is_some_and(|had| had >= replicas as i64);
        self.saw.count(if confirmed { "confirmed" } else { "not confirmed" });
        confirmed
    }

    /// Releases it, and notes the answer. A release that is known to be unserved is repeated while the lease runs: the
    /// server may be starting, or another may be taking its place.
    fn release(&mut self, caller: &mut Caller, grant: &mut Grant, place: Where) {
        let request = format!("LOCK.RELEASE {} {}", grant.key, grant.owner);
        let (asked, answer, told) = loop {
            let place = place(&grant.key);
            place.into_iter().for_each(|port| caller.turn_to(port));
            let ready = place.is_some() && caller.is_heard();
            let (asked, answer, told) =
                if ready { caller.ask(&request) } else { (Moment::now(), Answer::Lost, Moment::now()) };
            let served = ready && !matches!(answer, Answer::Error(_));
            if served || Moment::now() > grant.lease_ends {
                break (asked, answer, told);
            }
            self.pause();
        };
        let freed = match &answer {
            Answer::Null => Some(Freed::NotHeld),
            Answer::Value(_) => Some(Freed::Left),
            Answer::Error(_) | Answer::Lost | Answer::Silence => None,
        };
        self.saw.count(match freed {
            Some(Freed::Left) => "released",
            Some(Freed::NotHeld) => "not held at release",
            None => "release without answer",
        });
        grant.release = Some(Release { asked, answer: freed.map(|freed| (told, freed)) });
    }

    fn not_granted(&mut self, request: &str, answer: Answer) {
        match answer {
            Answer::Null => self.saw.count("null"),
            Answer::Lost => self.saw.count("connection lost"),
            Answer::Silence => {
                self.saw.count("no answer");
                self.saw.forgotten.push(request.to_owned());
            }
            Answer::Error(text) => self.saw.count(&format!("error {}", text.split(' ').next().unwrap_or_default())),
            Answer::Value(value) => panic!("{request} -> {value:?}"),
        }
    }
}
