//! A node with one key of its own, for what is measured in the pure core without a server.

#![allow(missing_docs, clippy::new_without_default, reason = "a benchmark")]

pub mod crowd;

use lock_core::manager::LockManager;
use lock_core::model::effect::Effects;
use lock_core::model::hold::Mode;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::limits::{Limits, StepLimits};
use lock_core::model::lock::Lock;
use lock_core::model::owner::Owner;
use lock_core::model::request::{Acquire, Amount, Extend, Operation, Outcome, Release, Request, Wait, WaitEnd};
use lock_core::model::step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use std::hash::{DefaultHasher, Hasher};
use std::hint::black_box;

pub const LIMITS: Limits = Limits {
    holders_per_key_max: 65_536,
    waiters_max: 20_000,
    waiters_per_key_max: 20_000,
    places_max: 20_000,
    place_bytes_max: 1 << 30,
    away_max: Millis(2_000),
    waiter_bytes_max: 1 << 30,
    reserve_max: Millis(5_000),
    deadlock_detection: true,
    promotion_skew: Millis(1_000),
    grace: Millis(0),
    step: StepLimits::DEFAULT,
};

/// The hash of the module, with a key that is the same each time.
pub fn keyed_hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A keyspace of one key.
#[derive(Default)]
pub struct OneKey(Option<Box<Lock>>);

impl Keyspace for OneKey {
    fn count(&self) -> usize {
        1
    }

    fn entry(&mut self, _: KeyIndex) -> KeyEntry<'_> {
        KeyEntry { db: Db(0), name: b"lock:report", lock: self.0.as_deref_mut() }
    }

    fn open(&mut self, _: &[u8]) -> Result<KeyIndex, WaitEnd> {
        Ok(KeyIndex(0))
    }

    fn close(&mut self, _: KeyIndex) {}

    fn peek<R>(&mut self, _: Db, _: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.0.as_deref().map(read)
    }

    fn create(&mut self, _: KeyIndex) -> &mut Lock {
        self.0.insert(Box::default())
    }
}

pub struct World {
    manager: LockManager,
    key: OneKey,
    pub now: Now,
}

impl World {
    /// A node on which `leases` other keys are held, and one key with `readers`.
    pub fn new(leases: u64, readers: u64) -> World {
        let now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };
        let mut world = World { manager: LockManager::new(LIMITS, keyed_hash), key: OneKey::default(), now };
        for n in 0..leases {
            world.now.mono.0 += 50;
            world.serve(&acquire(&format!("other-{n}"), Mode::Write));
            world.key.0 = None;
        }
        for n in 0..readers {
            world.serve(&acquire(&format!("reader-{n:029}"), Mode::Read));
        }
        world
    }

    pub fn serve(&mut self, request: &Request) -> Outcome {
        let mut effects = Effects::new();
        let outcome = self.manager.serve(&mut step::Step::new(&mut self.key, self.now, &mut effects), request);
        black_box(&effects);
        if self.key.0.as_ref().is_some_and(|lock| lock.is_free()) {
            self.key.0 = None;
        }
        outcome.unwrap()
    }
}

pub const OWNER: &str = "5f0c2f1e-4f9b-4a1c-9d62-8f3f6f0f4c11";

pub fn acquire(owner: &str, mode: Mode) -> Request {
    acquire_or(owner, mode, Wait::Never)
}

pub fn acquire_or(owner: &str, mode: Mode, wait: Wait) -> Request {
    let ask = Operation::Acquire(Acquire {
        mode,
        lease: Millis(30_000),
        wait,
        retry: None,
        queue: None,
        share: None,
        terms: None,
    });
    Request { owner: Owner::new(owner.as_bytes()), operation: ask }
}

pub fn release(owner: &str) -> Request {
    let ask = Operation::Release(Release { mode: None, amount: Amount::One, fence: None });
    Request { owner: Owner::new(owner.as_bytes()), operation: ask }
}

pub fn extend(owner: &str) -> Request {
    let (fence, session, note, min_fence) = (None, None, None, None);
    let ask = Operation::Extend(Extend { lease: Millis(30_000), fence, session, note, min_fence });
    Request { owner: Owner::new(owner.as_bytes()), operation: ask }
}
