//! A node where many wait for many keys, for what is measured in the pure core without a server.

use super::{LIMITS, acquire, acquire_or, keyed_hash};
use redis_lock::lock::manager::LockManager;
use redis_lock::lock::model::effect::Effects;
use redis_lock::lock::model::hold::Mode;
use redis_lock::lock::model::key::{Db, KeyIndex, PlainName};
use redis_lock::lock::model::keyspace::{KeyEntry, Keyspace};
use redis_lock::lock::model::lock::Lock;
use redis_lock::lock::model::request::{Outcome, Refusal, Request, Wait, WaitEnd, WaiterId};
use redis_lock::lock::model::step;
use redis_lock::lock::model::time::{Millis, Now, Timestamp, WallTime};
use std::collections::BTreeMap;

/// A keyspace of any number of keys, of which a step names some. Ordered, so that it takes the same instructions each
/// time.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) db: u32,
    pub(crate) locks: BTreeMap<(u32, PlainName), Lock>,
    step: Vec<PlainName>,
    open: BTreeMap<PlainName, usize>,
}

impl Keyspace for Keys {
    fn count(&self) -> usize {
        self.step.len()
    }

    fn entry(&mut self, key: KeyIndex) -> KeyEntry<'_> {
        let name = &self.step[key.0];
        KeyEntry { db: Db(self.db), name, lock: self.locks.get_mut(&(self.db, name.clone())) }
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, WaitEnd> {
        let name = PlainName::from_slice(name);
        let at = *self.open.entry(name.clone()).or_insert(self.step.len());
        if at == self.step.len() {
            self.step.push(name);
        }
        Ok(KeyIndex(at))
    }

    fn close(&mut self, key: KeyIndex) {
        let name = self.step.swap_remove(key.0);
        self.open.remove(&name);
        if let Some(moved) = self.step.get(key.0) {
            self.open.insert(moved.clone(), key.0);
        }
    }

    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.locks.get(&(db.0, PlainName::from_slice(name))).map(read)
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        self.locks.entry((self.db, self.step[key.0].clone())).or_default()
    }
}

/// A node on which many wait.
pub(crate) struct Crowd {
    pub(crate) manager: LockManager,
    pub(crate) keys: Keys,
    pub(crate) now: Now,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        let now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };
        Crowd { manager: LockManager::new(LIMITS, keyed_hash), keys: Keys::default(), now }
    }

    pub(crate) fn serve(&mut self, keys: &[PlainName], request: &Request) -> (Result<Outcome, Refusal>, Effects) {
        let now = self.now;
        self.on(keys, |manager, keys| {
            let mut effects = Effects::new();
            (manager.serve(&mut step::Step::new(keys, now, &mut effects), request), effects)
        })
    }

    /// Owns these keys from now on, or has them again.
    pub(crate) fn hold(&mut self, owner: &str, keys: &[PlainName]) {
        let (outcome, _) = self.serve(keys, &acquire(owner, Mode::Write));
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    }

    pub(crate) fn wait(&mut self, owner: &str, mode: Mode, keys: &[PlainName]) -> WaiterId {
        match self.serve(keys, &acquire_or(owner, mode, Wait::For(Millis(60_000)))).0 {
            Ok(Outcome::Queued(waiter)) => waiter,
            other => panic!("{other:?}"),
        }
    }

    /// A step on these keys.
    pub(crate) fn on<R>(&mut self, names: &[PlainName], work: impl FnOnce(&mut LockManager, &mut Keys) -> R) -> R {
        self.keys.step.clear();
        self.keys.open.clear();
        for name in names {
            self.keys.open(name).expect("any key may be opened");
        }
        let result = work(&mut self.manager, &mut self.keys);
        for name in &self.keys.step {
            let at = (self.keys.db, name.clone());
            if self.keys.locks.get(&at).is_some_and(Lock::is_free) {
                self.keys.locks.remove(&at);
            }
        }
        result
    }
}

pub(crate) fn names(prefix: &str, count: usize) -> Vec<PlainName> {
    (0..count).map(|n| PlainName::from_slice(format!("{prefix}{n}").as_bytes())).collect()
}
