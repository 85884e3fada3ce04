//! What follows a step: the indexes learn what it did, and queues and checks are noted that it makes necessary.

use super::LockManager;
use crate::model::effect::{BindingChange, Change, IndexChange};
use crate::model::key::KeyIndex;
use crate::model::keyspace::{KeyEntry, Keyspace};
use crate::model::request::PerKey;
use crate::model::step::Step;

impl LockManager {
    /// Lets the indexes follow what a step did.
    pub(crate) fn follow<K: Keyspace>(&mut self, step: &mut Step<'_, K>) {
        // Before what the step put in their places: it may be bound just as they were.
        self.clean_up_unlinked(step.keys);
        let Step { keys, now, effects, .. } = step;
        let wakeup = self.leases.first_wakeup();
        for key in keys.all() {
            // Else an entry that stood early enough does so still, and is not read.
            if let KeyEntry { db, name, lock: Some(lock) } = keys.entry(key)
                && (effects.check_leases || lock.lease.is_none())
            {
                self.follow_lock(db, name, lock, now.mono);
            }
        }
        effects.needs_rearm |= self.leases.first_wakeup() != wakeup;
        effects.needs_rearm |= !effects.index_changes.is_empty();
        if !step.effects.ended_together.is_empty() || !step.unsettled.is_empty() {
            self.follow_settled(step);
        }
        if self.wait_table.waiting() > 0 {
            self.check_ended(step);
        }
        if step.effects.index_changes.is_empty() {
            return;
        }
        self.offers.forget_emptied();
        // Kept until all are followed: to follow them twice does no harm.
        let index_changes = step.effects.index_changes.clone();
        for change in &index_changes {
            match change {
                IndexChange::Binding(binding) => self.follow_binding(step, binding),
                IndexChange::LeftOffer { key, offer, is_weaker } => {
                    let (db, name) = self.place_of(step, *key);
                    self.offers.leave(*offer, db, &name);
                    if *is_weaker {
                        self.wait_table.mark_ready(db, &name);
                    }
                }
            }
        }
        step.effects.index_changes.clear();
    }

    /// Has the background announce holds that have ended together, and serve the queues of keys that are not settled.
    #[cold]
    fn follow_settled<K: Keyspace>(&mut self, step: &mut Step<'_, K>) {
        for (key, ended) in core::mem::take(&mut step.effects.ended_together) {
            let (db, name) = self.place_of(step, key);
            self.ended.push_back((db, name, ended));
            step.effects.needs_rearm = true;
        }
        // Their waiters were judged as if all holds stood that are left.
        for key in core::mem::take(&mut step.unsettled) {
            let (db, name) = self.place_of(step, key);
            self.wait_table.mark_ready(db, &name);
        }
    }

    /// Makes up for what a step left undone that ended in a panic: lets the indexes follow, and has the queues of its
    /// keys served if that is asked for, since a scan may have been under way.
    ///
    /// Follows what a step that panicked has changed, so that it can be made known.
    pub fn recover<K: Keyspace>(&mut self, step: &mut Step<'_, K>, serves: bool) {
        for key in step.keys.all().filter(|_| serves) {
            let (db, name) = self.place_of(step, key);
            self.wait_table.mark_ready(db, &name);
        }
        step.effects.check_leases = true;
        self.follow(step);
    }

    /// Has owners checked whose holds have ended on keys that they wait for. A holder that asks for its key again, with
    /// others, does not wait for that key; from now on it does.
    fn check_ended<K: Keyspace>(&mut self, step: &mut Step<'_, K>) {
        let mut begin = 0;
        while let Some(Change { owner, .. }) = step.effects.changes.get(begin) {
            // A request for many keys ends the holds of one owner on all of them.
            let all = step.effects.changes[begin..].iter().take_while(|change| change.owner == *owner);
            begin += all.clone().count();
            let ended: PerKey<KeyIndex> = all.filter(|change| change.ended).map(|change| change.key).collect();
            if ended.is_empty() || self.wait_table.waiting_of(owner).next().is_none() {
                continue;
            }
            let owner = owner.clone();
            let (db, names) = self.names_of(step, ended.into_iter());
            if self.wait_table.waiting_for(&owner, db, &names).next().is_some() {
                self.check_for_new_hold(&owner);
            }
        }
    }

    /// Lets the index of sessions follow what happened to a hold.
    fn follow_binding<K: Keyspace>(&mut self, step: &mut Step<'_, K>, binding: &BindingChange) {
        let (db, name) = self.place_of(step, binding.key);
        if let Some(was) = binding.was {
            self.sessions.unbind(db, &name, was.connection, 1);
        }
        if let Some(is) = binding.is {
            self.sessions.bind(db, &name, is.connection, 1);
        }
    }

    /// Forgets locks that left their keys because the step opened them.
    #[inline(always)]
    pub(crate) fn clean_up_unlinked<K: Keyspace>(&mut self, keys: &mut K) {
        if keys.has_unlinked() {
            self.forget_unlinked(keys);
        }
    }

    #[inline(never)]
    fn forget_unlinked<K: Keyspace>(&mut self, keys: &mut K) {
        for (db, name, unlinked) in keys.take_unlinked() {
            self.on_unlinked(db, &name, &unlinked);
        }
    }
}
