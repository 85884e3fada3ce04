//! A lock that is held: until when that is sure, and whether it was lost. Loss is final. Sends nothing: others tell it
//! what the server said.

use crate::clock::{Moment, valid_until};
use crate::owner::Owner;
use crate::request::Terms;
use crate::sync::{lock, wait};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long the wait for a loss sleeps at most. Its timer stands still in a suspended machine, while validity ends.
const SLEEP_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Hold {
    pub(crate) terms: Terms,
    pub(crate) owner: Owner,
    /// One for each key.
    pub(crate) fences: Vec<u64>,
    /// A process that was forked has the memory, but not the lock.
    pid: u32,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    valid_until: Moment,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Lost,
    Released,
}

impl Hold {
    /// What a request that was sent at this time was granted.
    pub(crate) fn new(terms: Terms, owner: Owner, fences: Vec<u64>, sent: Moment) -> Hold {
        let state = State { valid_until: valid_until(sent, terms.lasts()), end: None };
        Hold { terms, owner, fences, pid: std::process::id(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Until when nobody else holds it, as far as is known.
    pub(crate) fn valid_until(&self) -> Moment {
        lock(&self.state).valid_until
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.end() == Some(End::Lost)
    }

    /// Whether nobody may extend it any more: it was lost, or its release has begun.
    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// Whether this process took it. A child of a fork did not.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Waits until it is lost, so long at most. False when it was not, or was released.
    pub(crate) fn wait_lost(&self, timeout: Duration) -> bool {
        let deadline = Moment::now() + timeout;
        loop {
            if let Some(end) = self.end() {
                return end == End::Lost;
            }
            let state = lock(&self.state);
            let time = state.valid_until.min(deadline).left().min(SLEEP_MAX);
            if state.end.is_none() && !time.is_zero() {
                drop(wait(&self.changed, state, time));
            }
            if deadline.is_past() {
                return self.is_lost();
            }
        }
    }

    /// The server extended the lease. Too late an answer changes nothing: the loss may have been told already.
    pub(crate) fn extended(&self, sent: Moment) {
        if !self.is_over() {
            let until = valid_until(sent, self.terms.lasts());
            let mut state = lock(&self.state);
            state.valid_until = state.valid_until.max(until);
        }
    }

    /// The server says that it is not held.
    pub(crate) fn lose(&self) {
        self.finish(End::Lost);
    }

    /// Its release begins: it is not extended any more, nor lost. Tells whether it was lost before.
    pub(crate) fn release(&self) -> bool {
        let was_lost = self.is_lost();
        self.finish(End::Released);
        was_lost
    }

    fn finish(&self, end: End) {
        let mut state = lock(&self.state);
        if state.end.is_none() {
            state.end = Some(end);
            self.changed.notify_all();
        }
    }

    /// How it ended. Validity that is over is a loss from the first look at it on.
    fn end(&self) -> Option<End> {
        let mut state = lock(&self.state);
        if state.end.is_none() && (state.valid_until.is_past() || !self.is_ours()) {
            state.end = Some(End::Lost);
            self.changed.notify_all();
        }
        state.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(sent: Moment) -> Hold {
        let terms = Terms { lease: LEASE, ..Terms::new(vec![b"k".to_vec()]) };
        Hold::new(terms, Owner::new(), vec![7], sent)
    }

    fn long_ago() -> Moment {
        Moment::from_boot(Duration::ZERO)
    }

    #[test]
    fn validity_that_is_over_is_a_loss_and_no_late_answer_revives_it() {
        let late = hold(long_ago());
        assert!(late.is_lost() && late.is_over());
        late.extended(Moment::now());
        assert!(late.is_lost());
        assert!(late.release(), "it was lost before its release");
    }

    #[test]
    fn a_renewal_moves_the_end_and_an_older_answer_does_not_move_it_back() {
        let held = hold(Moment::now());
        let first = held.valid_until();
        let later = Moment::now() + Duration::from_secs(10);
        held.extended(later);
        assert_eq!(held.valid_until(), later + Duration::from_millis(29_700));
        held.extended(long_ago());
        assert!(held.valid_until() > first && !held.is_lost());
    }

    #[test]
    fn a_release_is_no_loss_and_stops_renewal() {
        let held = hold(Moment::now());
        assert!(!held.is_over());
        assert!(!held.release());
        held.lose();
        assert!(held.is_over() && !held.is_lost());
        assert!(!held.wait_lost(Duration::MAX), "a wait for its loss would never end");
    }

    #[test]
    fn a_wait_is_told_of_the_loss_and_of_the_release() {
        for end in [Hold::lose, |hold: &Hold| drop(hold.release())] {
            let held = hold(Moment::now());
            let lost = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| held.wait_lost(Duration::MAX));
                end(&held);
                waiting.join().expect("no panic")
            });
            assert_eq!(lost, held.is_lost());
        }
    }

    #[test]
    fn a_wait_ends_with_its_time_and_with_validity() {
        let held = hold(Moment::now());
        let start = Instant::now();
        assert!(!held.wait_lost(Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));
        // Nobody looks at it meanwhile: the wait itself sees the end.
        let terms = Terms { lease: Duration::from_millis(150), ..Terms::new(vec![b"k".to_vec()]) };
        let short = Hold::new(terms, Owner::new(), vec![7], Moment::now());
        assert!(short.wait_lost(Duration::MAX));
        assert!(short.valid_until().is_past());
    }
}
