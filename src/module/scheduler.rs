//! When the server calls the module without a command: one timer, and one watch of the event loop.
//!
//! | timer | to be set for t | to be stopped | rings | the server is about to sleep |
//! | --- | --- | --- | --- | --- |
//! | `Off` | `Set` for t | | | |
//! | `Set` for s | `Set` for t, if t is before s | `Off` | `Ringing` | |
//! | `Ringing` | is postponed | | | `Off`; what was postponed is done now |
//!
//! `Ringing` is a state because the server rings what is due by the wall clock as it was when it began to ring. If the
//! wall clock is set back meanwhile, a timer that is set within a ring is due at once, and so is the next. The server
//! would do nothing else until the clock is where it was.
//!
//! To be called in each turn of the event loop costs the server most of a microsecond, whatever the module does there:
//! a sixth of what a lone command costs. So the watch is kept only while there may be something to do between two
//! turns.

use lock_core::model::time::{Millis, Timestamp};
use server_api::timer::{Ring, Timer};
use server_api::{Ctx, Flags};
use std::cell::{Cell, OnceCell};

/// How long one slice of background work may last. Between slices the server serves its clients.
pub(crate) const SLICE_MS: Millis = Millis(1);

/// The states of the timer and of the watch.
#[derive(Debug)]
pub struct Scheduler {
    timer: Cell<TimerState>,
    watches_event_loop: Cell<bool>,
    /// When the slice ends that has begun in this turn of the event loop.
    slice_end: Cell<Option<Timestamp>>,
    /// True if no job may be tried before the next tick: writes may not flow.
    jobs_held_back: Cell<bool>,
    callbacks: OnceCell<Callbacks>,
}

/// The callback of a timer.
#[derive(Debug)]
pub(crate) struct Callbacks {
    /// The timer rings.
    pub ring: Ring,
    /// Subscribes to the turns of the event loop.
    pub watch: Ring,
    /// Ends the subscription, if there is no need of it still. Called by a timer of its own: a listener must not leave
    /// the list that the server may be going through.
    pub unwatch: Ring,
}

#[derive(Clone, Copy, Debug)]
enum TimerState {
    Off,
    Set(Timestamp, Timer),
    /// The server rings timers, from the module's own until it says that it is about to sleep.
    Ringing {
        /// True if the timer is to be set then.
        postponed: bool,
    },
}

impl Scheduler {
    /// No timer, and no watch.
    pub(crate) fn new() -> Scheduler {
        Scheduler {
            timer: Cell::new(TimerState::Off),
            watches_event_loop: Cell::new(false),
            slice_end: Cell::new(None),
            jobs_held_back: Cell::new(false),
            callbacks: OnceCell::new(),
        }
    }

    /// Says what is called. Once, when the module is loaded.
    pub(crate) fn install(&self, callbacks: Callbacks) {
        self.callbacks.get_or_init(|| callbacks);
    }

    fn callbacks(&self) -> &Callbacks {
        self.callbacks.get().expect("installed when the module is loaded")
    }

    /// True if the timer cannot be set now. Then it is set when the server is about to sleep.
    pub(crate) fn postpone(&self) -> bool {
        let is_ringing = self.is_ringing();
        if is_ringing {
            self.timer.set(TimerState::Ringing { postponed: true });
        }
        is_ringing
    }

    /// True if the server rings timers, the module's own among them.
    pub(crate) fn is_ringing(&self) -> bool {
        matches!(self.timer.get(), TimerState::Ringing { .. })
    }

    /// True if the timer is to be set, so that it rings by this moment.
    pub(crate) fn is_late_for(&self, next: Option<Timestamp>) -> bool {
        next.is_some_and(|next| match self.timer.get() {
            TimerState::Off => true,
            TimerState::Set(at, _) => next < at,
            TimerState::Ringing { .. } => false,
        })
    }

    /// Sets the timer, if it is not set for an earlier moment. On a primary alone: leases are the primary's to end.
    pub(crate) fn set_timer(&self, ctx: &mut Ctx<'_>, next: Option<Timestamp>, now: Timestamp) {
        if let Some(next) = next
            && self.is_late_for(Some(next))
            && ctx.flags().contains(Flags::PRIMARY)
        {
            self.stop_timer(ctx);
            let timer = ctx.set_timer(next.left(now).0, self.callbacks().ring);
            self.timer.set(TimerState::Set(next, timer));
        }
    }

    /// True if the timer is set.
    pub(crate) fn is_set(&self) -> bool {
        matches!(self.timer.get(), TimerState::Set(..))
    }

    /// Stops the timer, if it is set.
    pub(crate) fn stop_timer(&self, ctx: &mut Ctx<'_>) {
        if let TimerState::Set(_, timer) = self.timer.get() {
            self.timer.set(TimerState::Off);
            ctx.stop_timer(timer);
        }
    }

    /// The timer rings. It must not be stopped any more.
    pub(crate) fn on_ring(&self) {
        self.timer.set(TimerState::Ringing { postponed: false });
    }

    /// The server is about to sleep, and rings no timers any more. Whether the timer is to be set now.
    pub(crate) fn on_before_sleep(&self) -> bool {
        match self.timer.get() {
            TimerState::Ringing { postponed } => {
                self.timer.set(TimerState::Off);
                postponed
            }
            TimerState::Off | TimerState::Set(..) => false,
        }
    }

    /// Watches the event loop from now on, at least until the next tick.
    pub(crate) fn watch_event_loop(&self, ctx: &mut Ctx<'_>) {
        if !self.watches_event_loop.replace(true) {
            (self.callbacks().watch)(ctx);
        }
    }

    /// True if the module watches the event loop.
    pub(crate) fn watches_event_loop(&self) -> bool {
        self.watches_event_loop.get()
    }

    /// The server's tick has found no need of the watch: ends it soon.
    pub(crate) fn unwatch_soon(&self, ctx: &mut Ctx<'_>) {
        ctx.set_timer(0, self.callbacks().unwatch);
    }

    /// Ends the watch. Each tick until then has set a timer for it, so the watch may have ended already.
    pub(crate) fn unwatch_event_loop(&self, ctx: &mut Ctx<'_>) {
        if self.watches_event_loop.replace(false) {
            ctx.unwatch_event_loop();
        }
    }

    /// Begins a slice of background work, and says when it ends.
    pub(crate) fn begin_slice(&self, now: Timestamp) -> Timestamp {
        let end = now + SLICE_MS;
        self.slice_end.set(Some(end));
        end
    }

    /// Goes on with the slice that was begun in this turn of the event loop, or begins one: the timer and the work
    /// before the server sleeps share one slice. Says when it ends.
    pub(crate) fn resume_slice(&self, now: Timestamp) -> Timestamp {
        self.slice_end.take().unwrap_or_else(|| now + SLICE_MS)
    }

    /// True if no job may be tried before the next tick.
    pub(crate) fn jobs_held_back(&self) -> bool {
        self.jobs_held_back.get()
    }

    /// Writes may not flow: no job is tried before the next tick.
    pub(crate) fn hold_jobs_back(&self) {
        self.jobs_held_back.set(true);
    }

    /// The next tick: jobs may be tried again.
    pub(crate) fn release_jobs(&self) {
        self.jobs_held_back.set(false);
    }
}
