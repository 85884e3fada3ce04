//! Keys that are waited for and have a time to live. At its end the shell opens the key, so that the server deletes it
//! and the waiters have it.

use super::LockManager;
use crate::model::key::{Db, KeyIndex, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::step::Step;
use crate::model::time::WallTime;

impl LockManager {
    /// Notes when a key of the step expires, if requests wait for it.
    pub(super) fn follow_expiry<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex) {
        let at = step.keys.expires_at(key);
        if at.is_some() || !self.wait_table.none_expires() {
            let (db, name) = self.place_of(step, key);
            step.effects.needs_rearm |= self.wait_table.note_expiry(db, &name, at);
        }
    }

    /// True if requests wait for a key.
    #[must_use]
    pub fn is_waited_for(&self, db: Db, name: &[u8]) -> bool {
        self.wait_table.contended() > 0 && self.wait_table.queue(db, &self.name(name)).is_some()
    }

    /// A client has given a key a time to live. True if the timer may have to ring earlier.
    pub fn set_expiry(&mut self, db: Db, name: &[u8], at: WallTime) -> bool {
        let name = self.name(name);
        self.wait_table.note_expiry(db, &name, Some(at))
    }

    /// When [`LockManager::due_expiry`] is worth calling next; None: while no key that is waited for expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<WallTime> {
        self.wait_table.first_expiry().map(|(at, ..)| *at)
    }

    /// Returns a key that is waited for and has expired, as far as is noted. It stays the next one until it is opened
    /// and [`LockManager::see_expiry`] is told.
    #[must_use]
    pub fn due_expiry(&self, now: WallTime) -> Option<(Db, KeyName)> {
        let due = self.wait_table.first_expiry().filter(|(at, ..)| *at <= now);
        due.map(|(_, db, name)| (*db, name.clone()))
    }

    /// A key was opened that was due. If the server has not deleted it then, it expires at this moment; None: never.
    pub fn see_expiry(&mut self, db: Db, name: &[u8], at: Option<WallTime>) {
        let name = self.name(name);
        if self.wait_table.expiry_of(db, &name).is_some() {
            self.wait_table.note_expiry(db, &name, at);
        }
    }
}
