//! The core's keyspace over Redis keys.

use crate::ffi::value::DataType;
use crate::ffi::{Access, Ctx, Keys, Str, WrongType};
use crate::lock::change::Change;
use crate::lock::keyspace::{Db, KeyIndex, Keyspace, Place};
use crate::lock::value::Lock;

/// The type `redislock`.
pub static LOCK: DataType<Lock> = DataType::new();

/// The locks of one step, open.
#[derive(Debug)]
pub struct OpenLocks<'k>(Keys<'k, Lock>);

impl<'k> OpenLocks<'k> {
    /// Opens the keys of these names, which must differ.
    ///
    /// # Errors
    /// When one has a value of another type.
    pub fn open(ctx: &'k mut Ctx<'_>, names: &[Str<'k>], access: Access) -> Result<OpenLocks<'k>, WrongType> {
        Ok(OpenLocks(Keys::open(ctx, &LOCK, names, access)?))
    }

    /// Leaves the keys as a step should: a lock without a hold is deleted (I6), and a lock that a hold was put on has
    /// no time to live, which somebody may have set by EXPIRE: only leases end holds.
    pub fn tidy(&mut self, effects: &[Change]) {
        for change in effects {
            let at = usize::from(change.key.0);
            match self.0.get(at) {
                Some(lock) if lock.is_free() => self.0.delete(at),
                Some(_) if change.hold.is_some() => self.0.persist(at),
                _ => {}
            }
        }
    }
}

impl Keyspace for OpenLocks<'_> {
    fn count(&self) -> u16 {
        // The parsers of commands with many keys see to it that there are no more.
        self.0.len() as u16
    }

    fn place(&mut self, key: KeyIndex) -> Place<'_> {
        let at = usize::from(key.0);
        let (db, name) = (Db(self.0.db()), self.0.name(at).as_bytes());
        Place { db, name, lock: self.0.get_mut(at) }
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        self.0.insert(usize::from(key.0), Lock::default())
    }
}
