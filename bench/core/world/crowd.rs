//! A node where many wait for many keys, for what is measured in the pure core without a server.

use super::{LIMITS, acquire, acquire_or, keyed_hash};
use lock_core::manager::LockManager;
use lock_core::model::effect::Effects;
use lock_core::model::hold::Mode;
use lock_core::model::key::{Db, KeyIndex, PlainName};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::lock::Lock;
use lock_core::model::request::{Begun, Outcome, Refusal, Request, Wait, WaitEnd, WaiterId};
use lock_core::model::step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use std::collections::BTreeMap;

/// A keyspace of any number of keys, of which a step names some. Ordered, so that it takes the same instructions each
/// time.
#[derive(Default)]
pub struct Keys {
    pub db: u32,
    pub locks: BTreeMap<(u32, PlainName), Lock>,
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
pub struct Crowd {
    pub manager: LockManager,
    pub keys: Keys,
    pub now: Now,
}

impl Crowd {
    pub fn new() -> Crowd {
        let now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };
        Crowd { manager: LockManager::new(LIMITS, keyed_hash), keys: Keys::default(), now }
    }

    pub fn serve(&mut self, keys: &[PlainName], request: &Request) -> (Result<Outcome, Refusal>, Effects) {
        let now = self.now;
        self.on(keys, |manager, keys| {
            let mut effects = Effects::new();
            (manager.serve(&mut step::Step::new(keys, now, &mut effects), request), effects)
        })
    }

    /// Owns these keys from now on, or has them again.
    pub fn hold(&mut self, owner: &str, keys: &[PlainName]) {
        let (outcome, _) = self.serve(keys, &acquire(owner, Mode::Write));
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    }

    pub fn wait(&mut self, owner: &str, mode: Mode, keys: &[PlainName]) -> WaiterId {
        match self.serve(keys, &acquire_or(owner, mode, Wait::For(Millis(60_000)))).0 {
            Ok(Outcome::Begun(Begun::New(waiter))) => waiter,
            other => panic!("{other:?}"),
        }
    }

    /// A step on these keys.
    pub fn on<R>(&mut self, names: &[PlainName], work: impl FnOnce(&mut LockManager, &mut Keys) -> R) -> R {
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

pub fn names(prefix: &str, count: usize) -> Vec<PlainName> {
    (0..count).map(|n| PlainName::from_slice(format!("{prefix}{n}").as_bytes())).collect()
}
