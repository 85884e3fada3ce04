//! Releasing: an owner gives back what it holds, and the hand-off to the next waiters follows in the same step.

use super::LockManager;
use super::place::ends_place;
use crate::model::effect::Cause;
use crate::model::hold::Mode;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::request::{Amount, Outcome, Refusal, Release};
use crate::model::step::{Step, per_key};
use alloc::vec::Vec;

impl LockManager {
    /// Releases keys, all or none, and hands off what became free.
    pub(super) fn release<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Release),
    ) -> Result<Outcome, Refusal> {
        let before = step.effects.changes.len();
        let offers =
            if self.offers.is_empty() { Vec::new() } else { self.offers_left(step, named, (owner, operation)) };
        let released = release(step, named, owner, operation);
        if (self.wait_table.places() > 0 || !offers.is_empty()) && released.is_ok() {
            self.leave(step, named, (owner, operation), offers);
        }
        // What was given back goes to the next waiter, in the same step.
        if self.wait_table.contended() > 0 && step.effects.changes.len() > before {
            for key in named {
                self.wake_waiters_in_step(step, *key);
            }
        }
        released
    }
}

fn release<K: Keyspace>(
    step: &mut Step<'_, K>,
    named: &[KeyIndex],
    owner: &Owner,
    operation: &Release,
) -> Result<Outcome, Refusal> {
    let Step { keys, effects, .. } = step;
    if operation.is_ambiguous() {
        for key in named {
            // Asked first, as it costs less: a hold in both modes has read counts.
            let lock = keys.lock(*key).filter(|lock| lock.holds.reads() > 0);
            let hold = lock.and_then(|lock| lock.hold_of(owner, operation.fence));
            if hold.is_some_and(|hold| hold.reads() > 0 && hold.writes() > 0) {
                return Err(Refusal::AmbiguousRelease);
            }
        }
    }
    let mut release_key = |key| {
        let lock = keys.lock(key)?;
        let hold = lock.hold_of(owner, operation.fence)?;
        let before = hold.total();
        // No client knows how much was offered.
        let amount = if hold.offer().is_some() && ends_place(operation) { Amount::All } else { operation.amount };
        let left_of = |mode| match operation.mode {
            Some(named) if named != mode => hold.count(mode),
            _ => amount.left_of(hold.count(mode)),
        };
        let (reads, writes) = (left_of(Mode::Read), left_of(Mode::Write));
        let total = u64::from(reads) + u64::from(writes);
        if total == 0 {
            effects.commit_end(lock, key, Cause::Release, owner);
        } else if total < before {
            let mut hold = hold.clone();
            hold.set_counts(reads, writes);
            effects.commit_hold(lock, key, Cause::Release, owner, hold);
        }
        Some(total)
    };
    per_key(named, |key| Ok(release_key(key))).map(Outcome::Released)
}
