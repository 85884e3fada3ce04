//! What the model and the world do about keys that expire.

use crate::world::{World, name};
use lock_core::model::key::Db;
use lock_core::model::time::WallTime;

impl World {
    /// A client gives a lock a time to live, or takes it away.
    pub fn set_expiry(&mut self, key: u8, ms: Option<u64>) {
        let at = (0, key);
        if !self.primary.locks.contains_key(&at) {
            return;
        }
        let Some(ms) = ms else {
            self.primary.expires.remove(&at);
            return;
        };
        let end = WallTime(self.now.wall.0 + ms * 1000);
        self.primary.expires.insert(at, end);
        self.primary.manager.set_expiry(Db(0), name(key), end);
    }

    /// The background opens the keys that are due, which the server deletes if they have expired.
    pub fn open_due(&mut self) {
        while let Some((Db(db), name)) = self.primary.manager.due_expiry(self.now.wall) {
            let at = (db, name[0]);
            if self.has_expired(at) {
                self.delete_expired(at);
            }
            let end = self.primary.expires.get(&at).copied();
            self.primary.manager.see_expiry(Db(db), &name, end);
        }
    }

    /// Somebody opens all keys, as the commands that come next might.
    pub fn open_all(&mut self) {
        let over: Vec<(u32, u8)> = self.primary.expires.keys().copied().filter(|at| self.has_expired(*at)).collect();
        over.into_iter().for_each(|at| self.delete_expired(at));
    }

    fn has_expired(&self, at: (u32, u8)) -> bool {
        self.primary.expires.get(&at).is_some_and(|end| *end <= self.now.wall)
    }

    fn delete_expired(&mut self, (db, key): (u32, u8)) {
        self.naive.delete(db, key);
        self.primary.delete(db, key);
        self.replica.delete(db, key);
    }

    /// W6: each key that is waited for and has a time to live is noted, by its end at the latest. In a grace that may
    /// be late: nothing is granted then, and all queues are served after it.
    pub fn check_expiries(&self) {
        if self.primary.manager.grace_left(self.now.mono).is_some() {
            return;
        }
        for (&(db, key), end) in &self.primary.expires {
            if self.naive.queue(db, key).is_empty() {
                continue;
            }
            let first = self.primary.manager.next_expiry();
            assert!(first.is_some_and(|first| first <= *end), "W6: {key} expires at {end:?}, noted is {first:?}");
            assert!(*end > self.now.wall, "{key} has expired, and nobody has opened it");
        }
    }
}
