//! Where the locks of a step lie. The core reaches them through this and nothing else.

use super::key::{Db, KeyIndex, PlainName};
use super::lock::Lock;
use super::request::WaitEnd;
use super::session::UnlinkedLock;
use super::time::WallTime;
use alloc::vec::Vec;

/// Where the locks of one step lie: over Redis in the module, over a map in the tests.
pub trait Keyspace {
    /// How many keys the step has.
    fn count(&self) -> usize;
    /// One of them.
    fn entry(&mut self, key: KeyIndex) -> KeyEntry<'_>;
    /// Opens a key of the step's database: makes it one of the step's, if it is not yet. If something else than a lock
    /// lies there, or another node serves it, that is the answer to the waiter.
    ///
    /// # Errors
    /// The answer to the waiter.
    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, WaitEnd>;
    /// Makes a key that was opened, and of which nothing was changed, none of the step's any more. The last key of the
    /// step takes its index.
    fn close(&mut self, key: KeyIndex);
    /// Reads the lock of any key of any database, without making it one of the step's.
    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R>;
    /// True if locks may have left their keys because the step opened them.
    fn has_unlinked(&self) -> bool {
        true
    }
    /// Takes the locks that left their keys because the step opened them: the server deletes what has expired.
    fn take_unlinked(&mut self) -> Vec<(Db, PlainName, UnlinkedLock)> {
        Vec::new()
    }
    /// Puts a fresh lock under a key that has no value.
    fn create(&mut self, key: KeyIndex) -> &mut Lock;

    /// When the key expires, if a client has given it a time to live: from then on it has no value.
    fn expires_at(&mut self, _key: KeyIndex) -> Option<WallTime> {
        None
    }

    /// The key's lock, if there is one.
    fn lock(&mut self, key: KeyIndex) -> Option<&mut Lock> {
        self.entry(key).lock
    }

    /// The key's lock; a fresh one when there was none.
    fn lock_or_create(&mut self, key: KeyIndex) -> &mut Lock {
        match self.lock(key).is_some() {
            true => self.lock(key).expect("seen on the line above"),
            false => self.create(key),
        }
    }

    /// All keys, in order.
    fn all(&self) -> impl Iterator<Item = KeyIndex> + use<Self> {
        (0..self.count()).map(KeyIndex)
    }
}

/// A key: where it is and what lies there.
#[derive(Debug)]
pub struct KeyEntry<'a> {
    /// Its database.
    pub db: Db,
    /// Its name.
    pub name: &'a [u8],
    /// Its lock; None when it has none.
    pub lock: Option<&'a mut Lock>,
}
