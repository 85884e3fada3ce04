//! The memory of the module: all of its state lives in one [`Shell`], behind one accessor.
//!
//! Each part is a type in the file of that name and knows nothing of the others. What connects them imports this file.

use super::clients::Clients;
use super::clock::Clock;
use super::cluster::FenceGossip;
use super::lost_holds::LostHolds;
use super::metrics::Metrics;
use super::replication::Stream;
use super::resync::Resync;
use super::role::Role;
use super::scheduler::Scheduler;
use crate::ffi::Ctx;
use crate::ffi::event::LoadedFrom;
use crate::lock::manager::LockManager;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::limits::{Bounds, Limits, StepLimits};
use crate::lock::model::session::UnlinkedLock;
use crate::lock::model::time::{Millis, Timestamp};
use std::cell::{Cell, RefCell};

/// The limits until the table of configurations has set each, which it does before the first command.
const NO_LIMITS: Limits = Limits {
    holders_per_key_max: 0,
    waiters_max: 0,
    places_max: 0,
    place_bytes_max: 0,
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
    unlinked: RefCell<Vec<(Db, KeyName, UnlinkedLock)>>,

    pub(crate) clock: Clock,
    pub(crate) role: Role,
    /// How long a grace is to be. It is so when [`super::grace::apply`] has followed: a CONFIG SET that is refused must
    /// not end the grace that runs.
    pub(crate) grace_length: Cell<Millis>,
    /// Whether the log says that a grace runs.
    pub(crate) grace_announced: Cell<bool>,
    /// What arguments of commands must keep to.
    pub(crate) bounds: Cell<Bounds>,
    /// Whether clients may send LOCK.HOLD.
    pub(crate) hold_allowed: Cell<bool>,

    pub(crate) clients: RefCell<Clients>,
    pub(crate) scheduler: Scheduler,

    pub(crate) stream: Stream,
    pub(crate) resync: Resync,
    pub(crate) gossip: FenceGossip,

    pub(crate) metrics: Metrics,
    /// The rows of LOCK.LOG.
    pub lost_holds: LostHolds,

    /// Whether LOCK.GUARD is at work.
    pub(crate) guarding: Cell<bool>,

    /// What is being loaded, if anything is.
    pub(crate) loading: Cell<Option<LoadedFrom>>,
    /// Whether a lock was loaded that may not lie under its key yet.
    pub(crate) lock_arrived: Cell<bool>,
    /// The database that a key is being moved from.
    pub(crate) moved_from: Cell<Option<Db>>,
    /// The name that a key is being renamed from.
    pub(crate) renamed_from: RefCell<Option<KeyName>>,
}

thread_local! {
    // The server calls a module on its main thread alone, except to free values, which needs none of this. It never
    // unloads a module that has a data type. So this is made once, and lives as long as the process.
    static SHELL: &'static Shell = Box::leak(Box::new(Shell::new()));
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
            manager: RefCell::new(LockManager::new(NO_LIMITS)),
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

    /// Whether there are locks that left their keys while the manager was at work.
    pub(crate) fn has_unlinked(&self) -> bool {
        !self.unlinked.borrow().is_empty()
    }

    /// The locks that left their keys while the manager was at work, and that it has not heard of yet.
    pub(crate) fn take_unlinked(&self) -> Vec<(Db, KeyName, UnlinkedLock)> {
        self.unlinked.take()
    }

    /// A lock has left its key. Also while the manager is at work: the server deletes a key that has expired when it is
    /// opened.
    pub(crate) fn on_unlinked(&self, db: Db, name: &[u8], unlinked: UnlinkedLock) {
        match self.manager.try_borrow_mut() {
            Ok(mut manager) => manager.on_unlinked(db, name, &unlinked),
            Err(_) => self.unlinked.borrow_mut().push((db, KeyName::from_slice(name), unlinked)),
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

    /// Whether the background has a job that may be tried now.
    pub(crate) fn has_jobs(&self) -> bool {
        // The manager knows of all locks that left their keys: it is not at work.
        !self.scheduler.jobs_held_back() && self.manager.borrow().has_jobs()
    }

    /// Whether the module may have to do something between two turns of the event loop.
    pub(crate) fn needs_event_loop(&self) -> bool {
        self.scheduler.is_ringing()
            || self.clock.is_unit_open()
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
        let (next, must_watch) = self
            .with_manager(|manager| (manager.next_deadline(), !manager.sessions().is_empty() || manager.has_jobs()));
        if must_watch {
            self.scheduler.watch_event_loop(ctx);
        }
        if at_once || self.scheduler.is_late_for(next) {
            let now = self.clock.mono();
            self.scheduler.set_timer(ctx, if at_once { Some(now) } else { next }, now);
        }
    }
}
