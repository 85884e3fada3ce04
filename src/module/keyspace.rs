//! The core's keyspace over Redis keys.

use super::shell::shell;
use crate::ffi::keys::Unopened;
use crate::ffi::value::DataType;
use crate::ffi::{Access, Ctx, Keys, Names, Str, WrongType};
use crate::lock::model::effect::Change;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::keyspace::{Keyspace, Place};
use crate::lock::model::lock::Lock;
use crate::lock::model::request::{RedirectReason, WaitEnd};
use crate::lock::model::session::UnlinkedLock;

/// The type `redislock`.
pub static LOCK: DataType<Lock> = DataType::new();

/// The locks of one step, open.
#[derive(Debug)]
pub struct OpenLocks<'k, 'n>(Keys<'k, 'n, Lock>);

impl<'k, 'n> OpenLocks<'k, 'n> {
    /// Opens the keys of these names, which must differ.
    ///
    /// # Errors
    /// When one has a value of another type.
    pub fn open(ctx: &'k mut Ctx<'_>, names: &[Str<'n>], access: Access) -> Result<OpenLocks<'k, 'n>, WrongType> {
        Ok(OpenLocks(Keys::open(ctx, &LOCK, names, access)?))
    }

    /// Leaves the keys as a step should. A lock without a hold is deleted (I6). A lock with a new or changed hold loses
    /// the time to live that a client may have set by EXPIRE: only leases end holds.
    ///
    /// Closes the keys and returns their names. There may be more than at first.
    pub fn tidy(mut self, changes: &[Change]) -> Names<'n> {
        for change in changes {
            let at = usize::from(change.key.0);
            match self.0.get(at) {
                Some(lock) if lock.is_free() => self.0.delete(at),
                Some(_) if !change.ended => self.0.persist(at),
                _ => {}
            }
        }
        self.0.close()
    }
}

impl Keyspace for OpenLocks<'_, '_> {
    fn count(&self) -> u16 {
        // The parsers of commands with many keys see to it that there are no more.
        self.0.len() as u16
    }

    fn place(&mut self, key: KeyIndex) -> Place<'_> {
        let at = usize::from(key.0);
        let db = Db(self.0.db());
        let (name, lock) = self.0.entry(at);
        Place { db, name: name.as_bytes(), lock }
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, WaitEnd> {
        match self.0.open_more(name) {
            Ok(at) => Ok(KeyIndex(at as u16)),
            Err(Unopened::WrongType) => Err(WaitEnd::WrongType),
            Err(Unopened::Elsewhere) => Err(WaitEnd::Redirected(RedirectReason::SlotGone)),
        }
    }

    fn close(&mut self, left: u16) {
        self.0.close_last(usize::from(left));
    }

    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.0.peek(db.0, name, read)
    }

    fn take_unlinked(&mut self) -> Vec<(Db, KeyName, UnlinkedLock)> {
        shell().take_unlinked()
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        self.0.insert(usize::from(key.0), Lock::default())
    }
}
