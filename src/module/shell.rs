//! The memory of the module: all of its state lives in one [`Shell`], behind one accessor.
//!
//! Each part is a type in the file of that name and knows nothing of the others. What connects them imports this file.

use super::clients::Clients;
use super::clock::Clock;
use super::cluster::FenceGossip;
use super::lost_holds::LostHolds;
use super::metrics::Metrics;
use super::outbox::Outbox;
use super::replication::Stream;
use super::resync::Resync;
use super::role::Role;
use super::scheduler::Scheduler;
use lock_core::manager::LockManager;
use lock_core::model::key::{Db, PlainName};
use lock_core::model::limits::{Bounds, Limits, StepLimits};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::time::{Millis, Timestamp};
use server_api::Ctx;
use server_api::event::LoadedFrom;
use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// The limits until the table of configurations has set each, which it does before the first command.
const NO_LIMITS: Limits = Limits {
    holders_per_key_max: 0,
    waiters_max: 0,
    places_max: 0,
    place_bytes_max: 0,
    away_max: Millis(0),
    waiter_bytes_max: 0,
    waiters_per_key_max: 0,
    reserve_max: Millis(0),
    deadlock_detection: true,
    promotion_skew: Millis(0),
    grace: Millis(0),
    step: StepLimits::DEFAULT,
};

/// The bounds of arguments until the same moment.
const NO_BOUNDS: Bounds = Bounds {
    lease_default: Millis(0),
    lease_max: Millis(0),
    owner_bytes_max: 0,
    note_bytes_max: 0,
    keys_max: 0,
    queue_max: Millis(0),
};

/// The state of the module.
#[derive(Debug)]
pub struct Shell {
    manager: RefCell<LockManager>,
    /// Locks that left their keys while the manager was at work.
    unlinked: RefCell<Vec<(Db, PlainName, UnlinkedLock)>>,

    pub(crate) clock: Clock,
    pub(crate) role: Role,
    /// The configured grace. [`super::grace::apply`] puts it in force, since a refused CONFIG SET must not end a
    /// running grace.
    pub(crate) grace_length: Cell<Millis>,
    /// True if the log says that a grace runs.
    pub(crate) grace_announced: Cell<bool>,
    /// The bounds of arguments.
    pub(crate) bounds: Cell<Bounds>,
    /// True if clients may send LOCK.HOLD.
    pub(crate) hold_allowed: Cell<bool>,

    pub(crate) clients: RefCell<Clients>,
    pub(crate) scheduler: Scheduler,

    pub(crate) stream: Stream,
    pub(crate) resync: Resync,
    pub(crate) gossip: FenceGossip,

    /// Messages to owners of places.
    pub(crate) outbox: Outbox,

    pub(crate) metrics: Metrics,
    /// The rows of LOCK.LOG.
    pub lost_holds: LostHolds,

    /// True if LOCK.GUARD is at work.
    pub(crate) guarding: Cell<bool>,

    /// The source of the data that is being loaded, if any.
    pub(crate) loading: Cell<Option<LoadedFrom>>,
    /// True if a lock was loaded that may not lie under its key yet.
    pub(crate) lock_arrived: Cell<bool>,
    /// The database that a key is being moved from.
    pub(crate) moved_from: Cell<Option<Db>>,
    /// The name that a key is being renamed from.
    pub(crate) renamed_from: RefCell<Option<PlainName>>,
}

thread_local! {
    // The server calls a module on its main thread alone, except to free values, which needs none of this. It never
    // unloads a module that has a data type. So this is made once, and lives as long as the process.
    static SHELL: &'static Shell = Box::leak(Box::new(Shell::new()));
}

thread_local! {
    // Drawn at random once in a process, so that no client can choose owners or names that collide.
    static HASH_KEY: RandomState = RandomState::new();
}

/// Hashes bytes by SipHash, under the key of this process.
fn keyed_hash(bytes: &[u8]) -> u64 {
    HASH_KEY.with(|key| {
        // Not `hash_one`, which hashes the length as well: here that tells nothing apart.
        let mut hasher = key.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    })
}

/// The state of the module.
#[must_use]
pub fn shell() -> &'static Shell {
    SHELL.with(|shell| *shell)
}

/// Works with the lock manager: [`Shell::with_manager`].
pub fn with_manager<R>(work: impl FnOnce(&mut LockManager) -> R) -> R {
    shell().with_manager(work)
}

impl Shell {
    fn new() -> Shell {
        Shell {
            manager: RefCell::new(LockManager::new(NO_LIMITS, keyed_hash)),
            unlinked: RefCell::default(),
            clock: Clock::new(),
            role: Role::default(),
            grace_length: Cell::new(Millis(0)),
            grace_announced: Cell::new(false),
            bounds: Cell::new(NO_BOUNDS),
            hold_allowed: Cell::new(false),
            clients: RefCell::default(),
            scheduler: Scheduler::new(),
            stream: Stream::new(),
            resync: Resync::default(),
            gossip: FenceGossip::new(),
            outbox: Outbox::default(),
            metrics: Metrics::new(),
            lost_holds: LostHolds::new(),
            guarding: Cell::new(false),
            loading: Cell::new(None),
            lock_arrived: Cell::new(false),
            moved_from: Cell::new(None),
            renamed_from: RefCell::default(),
        }
    }

    /// Works with the lock manager. Must not be called from within itself: inside, nothing calls the server but to
    /// open, read and create locks.
    pub fn with_manager<R>(&self, work: impl FnOnce(&mut LockManager) -> R) -> R {
        let mut manager = self.manager.borrow_mut();
        let result = work(&mut manager);
        if self.has_unlinked() {
            for (db, name, unlinked) in self.unlinked.take() {
                manager.on_unlinked(db, &name, &unlinked);
            }
        }
        result
    }

    /// True if there are locks that left their keys while the manager was at work.
    pub(crate) fn has_unlinked(&self) -> bool {
        !self.unlinked.borrow().is_empty()
    }

    /// The locks that left their keys while the manager was at work, and that it has not heard of yet.
    pub(crate) fn take_unlinked(&self) -> Vec<(Db, PlainName, UnlinkedLock)> {
        self.unlinked.take()
    }

    /// A lock has left its key. Also while the manager is at work: the server deletes a key that has expired when it is
    /// opened.
    pub(crate) fn on_unlinked(&self, db: Db, name: &[u8], unlinked: UnlinkedLock) {
        match self.manager.try_borrow_mut() {
            Ok(mut manager) => manager.on_unlinked(db, name, &unlinked),
            Err(_) => self.unlinked.borrow_mut().push((db, PlainName::from_slice(name), unlinked)),
        }
    }

    /// The time by which a client's command is judged: one for all commands of a transaction, a script or a function.
    pub(crate) fn judged(&self, ctx: &mut Ctx<'_>, now: Timestamp) -> Timestamp {
        let is_nested = ctx.is_nested();
        if is_nested {
            // It is over when this turn is, at the latest.
            self.scheduler.watch_event_loop(ctx);
        }
        self.clock.judged(is_nested, now)
    }

    /// True if the background has a job that may be tried now.
    pub(crate) fn has_jobs(&self) -> bool {
        // The manager knows of all locks that left their keys: it is not at work.
        !self.scheduler.jobs_held_back() && self.manager.borrow().has_jobs()
    }

    /// True if the module may have to do something between two turns of the event loop.
    pub(crate) fn needs_event_loop(&self) -> bool {
        self.scheduler.is_ringing()
            || self.clock.is_unit_open()
            || !self.outbox.held.borrow().is_empty()
            || !self.clients.borrow().is_empty()
            || self.with_manager(|manager| !manager.sessions().is_empty() || manager.has_jobs())
    }

    /// Makes the server call the module in time: by the timer for what is due next, and by the event loop if there may
    /// be something to do between two turns.
    pub(crate) fn schedule(&self, ctx: &mut Ctx<'_>) {
        if self.scheduler.postpone() {
            return;
        }
        let at_once = self.resync.has_pending() || self.has_jobs();
        let (mut next, expiry, must_watch) = self.with_manager(|manager| {
            let must_watch = !manager.sessions().is_empty() || manager.has_jobs();
            (manager.next_deadline(), manager.next_expiry(), must_watch)
        });
        if let Some(expiry) = expiry {
            let now = self.clock.now();
            let at = now.mono + now.left_until(expiry);
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        if must_watch {
            self.scheduler.watch_event_loop(ctx);
        }
        if at_once || self.scheduler.is_late_for(next) {
            let now = self.clock.mono();
            self.scheduler.set_timer(ctx, if at_once { Some(now) } else { next }, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::keyed_hash;
    use std::collections::BTreeSet;

    /// A sum without a key, of the words of an owner of 24 bytes, as owners were told apart by once.
    fn sum(owner: &[u8; 24]) -> u64 {
        let (words, _) = owner.as_chunks::<8>();
        let last = words.last().expect("three words");
        words.iter().chain([last]).fold(24, |sum, word| mix(sum, u64::from_le_bytes(*word)))
    }

    fn mix(sum: u64, word: u64) -> u64 {
        let product = u128::from(sum ^ word) * 0x9e37_79b9_7f4a_7c15;
        (product as u64) ^ ((product >> 64) as u64)
    }

    /// An owner that has the same sum as every other that is made so.
    fn colliding(n: u64) -> [u8; 24] {
        let words = [n, mix(24, n) ^ 0x1234_5678_90ab_cdef, u64::from_le_bytes(*b"attacker")];
        let mut owner = [0; 24];
        owner.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        owner
    }

    #[test]
    fn owners_that_collide_by_arithmetic_have_hashes_of_their_own_under_each_key() {
        // What could go wrong: one client makes fifteen thousand owners that are all looked through for each of them.
        let hashes = || -> BTreeSet<u64> { (1..=1_000).map(|n| keyed_hash(&colliding(n))).collect() };
        assert_eq!((1..=1_000).map(|n| sum(&colliding(n))).collect::<BTreeSet<u64>>().len(), 1);
        // Each thread draws a key.
        let (one, other) = (hashes(), std::thread::spawn(hashes).join().expect("it only hashes"));
        assert_eq!((one.len(), other.len()), (1_000, 1_000));
        assert!(one.is_disjoint(&other), "the key is the same");
    }
}
