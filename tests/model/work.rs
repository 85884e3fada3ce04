//! How much one step does, counted: keys that are opened, visited and granted. The naive model knows no such limits, so
//! this is the core by itself, on keys of any name.

mod bounds;
mod marks;
mod steps;

use lock_core::manager::{LeasePoll, LockManager};
use lock_core::model::effect::Effects;
use lock_core::model::hold::{Mode, Session};
use lock_core::model::key::{Db, KeyIndex, PlainName as KeyName};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::limits::StepLimits;
use lock_core::model::lock::Lock;
use lock_core::model::owner::Owner;
use lock_core::model::request::{
    self, Acquire, Amount, Begun, Operation, Outcome, Refusal, Release, Request, Terms, Wait, WaiterId,
};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::plain;
use naive_model::words::Rules;
use naive_model::world::{RULES, limits};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use Mode::{Read, Write};

/// Keys that count what is done with them.
#[derive(Default)]
struct Keys {
    db: u32,
    locks: HashMap<(u32, KeyName), Lock>,
    step: Vec<KeyName>,
    at: HashMap<KeyName, usize>,
    opened: usize,
    peeked: usize,
    /// The most keys that were open at once.
    most_open: usize,
    /// After how many more keys that are opened it panics.
    panics_after: Option<usize>,
}

impl Keyspace for Keys {
    fn count(&self) -> usize {
        self.step.len()
    }

    fn entry(&mut self, key: KeyIndex) -> KeyEntry<'_> {
        let name = &self.step[key.0];
        KeyEntry { db: Db(self.db), name, lock: self.locks.get_mut(&(self.db, name.clone())) }
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, request::WaitEnd> {
        let name = KeyName::from_slice(name);
        if let Some(at) = self.at.get(&name) {
            return Ok(KeyIndex(*at));
        }
        if let Some(left) = &mut self.panics_after {
            *left = left.checked_sub(1).expect("on purpose");
        }
        self.opened += 1;
        self.at.insert(name.clone(), self.step.len());
        self.step.push(name);
        self.most_open = self.most_open.max(self.step.len());
        Ok(KeyIndex(self.count() - 1))
    }

    fn close(&mut self, key: KeyIndex) {
        let name = self.step.swap_remove(key.0);
        self.at.remove(&name);
        if let Some(moved) = self.step.get(key.0) {
            self.at.insert(moved.clone(), key.0);
        }
    }

    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.peeked += 1;
        self.locks.get(&(db.0, KeyName::from_slice(name))).map(read)
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        self.locks.entry((self.db, self.step[key.0].clone())).or_default()
    }
}

/// What a step did.
pub(crate) struct Step {
    pub(crate) outcome: Result<Outcome, Refusal>,
    pub(crate) effects: Effects,
    opened: usize,
    pub(crate) peeked: usize,
    most_open: usize,
}

pub(crate) struct Crowd {
    pub(crate) manager: LockManager,
    keys: Keys,
}

thread_local! {
    /// How many bytes of owners and of long names were hashed.
    static HASHED: Cell<usize> = const { Cell::new(0) };
}

fn keyed_hash(bytes: &[u8]) -> u64 {
    HASHED.set(HASHED.get() + bytes.len());
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

const NOW: Now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd {
            manager: LockManager::new(limits(Rules { holders_max: 9_999, ..RULES }), keyed_hash),
            keys: Keys::default(),
        }
    }

    fn on<R>(&mut self, names: &[KeyName], work: impl FnOnce(&mut LockManager, &mut Keys) -> R) -> R {
        self.keys.step.clear();
        self.keys.at.clear();
        for name in names {
            self.keys.open(name).expect("any key may be opened");
        }
        (self.keys.opened, self.keys.peeked, self.keys.most_open) = (0, 0, names.len());
        let result = work(&mut self.manager, &mut self.keys);
        self.keys.locks.retain(|_, lock| !lock.is_free());
        result
    }

    fn serve(&mut self, owner: &str, names: &[KeyName], ask: Operation) -> Step {
        let request = Request { owner: Owner::new(owner.as_bytes()), operation: ask };
        let (outcome, effects) = self.on(names, |manager, keys| {
            let mut effects = Effects::new();
            (manager.serve(&mut step::Step::new(keys, NOW, &mut effects), &request), effects)
        });
        self.done(outcome, effects)
    }

    pub(crate) fn ask(&mut self, owner: &str, mode: Mode, names: &[KeyName], wait: Wait) -> Step {
        self.serve(owner, names, Operation::Acquire(acquire(mode, wait)))
    }

    pub(crate) fn holds(&mut self, owner: &str, mode: Mode, names: &[KeyName]) {
        let outcome = self.ask(owner, mode, names, Wait::Never).outcome;
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    }

    pub(crate) fn waits(&mut self, owner: &str, mode: Mode, names: &[KeyName]) -> WaiterId {
        match self.ask(owner, mode, names, Wait::Forever).outcome {
            Ok(Outcome::Begun(Begun::New(waiter))) => waiter,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, owner: &str, names: &[KeyName]) -> Step {
        self.serve(owner, names, Operation::Release(Release { mode: None, amount: Amount::All, fence: None }))
    }

    /// The lock of a key comes to another one, as by RENAME.
    pub(crate) fn rename(&mut self, from: &KeyName, to: &KeyName) {
        self.unlink(to);
        let mut lock = self.unlink(from).expect("is held");
        lock.lease = None;
        self.manager.carry(Some((Db(0), from)), Db(0), to, &mut lock, NOW.mono);
        self.keys.locks.insert((0, to.clone()), lock);
    }

    /// The lock of a key leaves it, if there is one.
    fn unlink(&mut self, name: &KeyName) -> Option<Lock> {
        let lock = self.keys.locks.remove(&(0, name.clone()))?;
        self.manager.on_unlinked(Db(0), name, &UnlinkedLock::of(&lock));
        Some(lock)
    }

    fn done(&self, outcome: Result<Outcome, Refusal>, effects: Effects) -> Step {
        let Keys { opened, peeked, most_open, .. } = self.keys;
        Step { outcome, effects, opened, peeked, most_open }
    }

    /// Does one piece of what is left to do. What it did; None when nothing is left.
    pub(crate) fn piece(&mut self) -> Option<Step> {
        let mut work = self.manager.next_job()?;
        while work == Job::MarkQueues {
            self.manager.mark_queues();
            work = self.manager.next_job()?;
        }
        let (Job::ServeQueue(_, name) | Job::Check(_, _, name) | Job::EndSession(_, _, name)) = &work else {
            panic!("{work:?}")
        };
        let effects = self.on(&[KeyName::from_slice(name)], |manager, keys| {
            let mut effects = Effects::new();
            let mut step = step::Step::new(keys, NOW, &mut effects);
            match work {
                Job::Check(waiter, ..) => manager.check_waiter(&mut step, waiter),
                Job::EndSession(connection, ..) => manager.end_session(&mut step, KeyIndex(0), connection, 64),
                _ => manager.serve_ready_queue(&mut step, KeyIndex(0), 64),
            }
            effects
        });
        Some(self.done(Ok(Outcome::Unavailable), effects))
    }
}

fn acquire(mode: Mode, wait: Wait) -> Acquire {
    Acquire { lease: Millis(30_000), ..plain(mode, wait) }
}

fn binding(mode: Mode, wait: Wait, session: Option<Session>) -> Acquire {
    Acquire { terms: Terms::of(None, session, None), ..acquire(mode, wait) }
}

pub(crate) fn name(text: &str) -> KeyName {
    KeyName::from_slice(text.as_bytes())
}

pub(crate) fn names(prefix: &str, count: usize) -> Vec<KeyName> {
    (0..count).map(|n| name(&format!("{prefix}{n}"))).collect()
}

fn grants(effects: &Effects) -> usize {
    effects.wait_ends.iter().filter(|(_, answer)| matches!(answer, request::WaitEnd::Granted(_))).count()
}
