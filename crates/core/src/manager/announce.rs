//! Announcing holds that have ended together: they left their lock as a whole, and replicas know. Subscribers, counters
//! and indexes learn of each bit by bit.

use super::LockManager;
use crate::model::effect::Cause;
use crate::model::hold::Hold;
use crate::model::key::{Db, KeyIndex};
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::step::Step;
use alloc::vec::Vec;

impl LockManager {
    /// Announces at most `most` of the holds that have ended together on a key, the one of the first job.
    pub fn announce_ends<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, most: usize) {
        for (owner, hold, cause) in self.take_ended(most) {
            step.effects.announce_end((key, cause), owner, hold);
        }
        self.follow(step);
    }

    /// Announces at most `most` of the same holds to nobody: the key is not this node's any more, or it is no lock.
    pub fn abandon_ends(&mut self, db: Db, name: &[u8], most: usize) {
        let name = self.name(name);
        for (_, hold, _) in self.take_ended(most) {
            if let Some(session) = hold.session() {
                self.sessions.unbind(db, &name, session.connection, 1);
            }
            if let Some(offer) = hold.offer() {
                self.offers.leave(offer, db, &name);
            }
        }
    }

    /// Takes at most `most` of the holds that have ended together first, and how each ended.
    fn take_ended(&mut self, most: usize) -> Vec<(Owner, Hold, Cause)> {
        let Some((_, _, ended)) = self.ended.front_mut() else { return Vec::new() };
        let next = || {
            let (owner, hold) = ended.holds.take_any()?;
            let cause = ended.cause_of(&hold);
            Some((owner, hold, cause))
        };
        let taken: Vec<_> = core::iter::from_fn(next).take(most).collect();
        if self.ended.front().is_some_and(|(_, _, ended)| ended.holds.is_empty()) {
            self.ended.pop_front();
        }
        taken
    }

    /// Announces no more holds that have ended together, of this database or of all.
    pub(super) fn drop_ended(&mut self, db: Option<Db>) {
        for (of, name, ended) in core::mem::take(&mut self.ended) {
            match db.is_none_or(|db| db == of) {
                true => self.retired_holds.push(ended.holds),
                false => self.ended.push_back((of, name, ended)),
            }
        }
    }
}
