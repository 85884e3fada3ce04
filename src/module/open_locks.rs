//! The core's keyspace over Redis keys.

use super::data_type::Stored;
use super::shell::Shell;
use lock_core::model::effect::Change;
use lock_core::model::key::{Db, KeyIndex, PlainName};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::lock::Lock;
use lock_core::model::request::{RedirectReason, WaitEnd};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::time::WallTime;
use server_api::keys::Unopened;
use server_api::value::DataType;
use server_api::{Access, Ctx, Keys, Names, Str, WrongType};

/// The type `redislock`.
pub static LOCK: DataType<Stored> = DataType::new();

/// Opens one key of the selected database, for as long as this works with it.
///
/// # Errors
/// When the key has a value of another type. Then nothing was done.
#[inline(always)]
pub(super) fn with_key<R>(
    ctx: &mut Ctx<'_>,
    name: Str<'_>,
    access: Access,
    work: impl FnOnce(&mut Keys<'_, '_, Stored>) -> R,
) -> Result<R, WrongType> {
    let names = [name];
    let mut names = Names::of(&names);
    let mut keys = Keys::open(ctx, &LOCK, &mut names, access)?;
    Ok(work(&mut keys))
}

/// The locks of one step, open.
#[derive(Debug)]
pub struct OpenLocks<'k, 'n> {
    keys: Keys<'k, 'n, Stored>,
    shell: &'static Shell,
}

impl<'k, 'n> OpenLocks<'k, 'n> {
    /// The locks of these names, which are not open yet: [`OpenLocks::open_named`] opens them.
    #[inline(always)]
    pub fn closed(shell: &'static Shell, ctx: &'k mut Ctx<'_>, names: &'k mut Names<'n>) -> OpenLocks<'k, 'n> {
        OpenLocks { keys: Keys::closed(ctx, &LOCK, names), shell }
    }

    /// Opens the keys of the names, which must differ.
    ///
    /// # Errors
    /// When one has a value of another type.
    #[inline(always)]
    pub fn open_named(&mut self) -> Result<(), WrongType> {
        self.keys.open_named(Access::Write)
    }

    /// Leaves the keys as a step should. A lock without a hold is deleted (I6). A lock with a new or changed hold loses
    /// the time to live that a client may have set by EXPIRE: only leases end holds.
    #[inline(always)]
    pub fn tidy(&mut self, changes: &[Change]) {
        for change in changes {
            let at = change.key.0;
            match self.keys.get(at) {
                Some(Stored(lock)) if lock.is_free() => self.keys.delete(at),
                Some(_) if !change.ended => self.keys.persist(at),
                _ => {}
            }
        }
    }
}

impl Keyspace for OpenLocks<'_, '_> {
    fn count(&self) -> usize {
        self.keys.len()
    }

    // What the caller does not want to know is not looked up then.
    #[inline(always)]
    fn entry(&mut self, key: KeyIndex) -> KeyEntry<'_> {
        let db = Db(self.keys.db());
        let (name, lock) = self.keys.entry(key.0);
        KeyEntry { db, name: name.as_bytes(), lock: lock.map(|stored| &mut stored.0) }
    }

    #[inline(always)]
    fn lock(&mut self, key: KeyIndex) -> Option<&mut Lock> {
        self.keys.get_mut(key.0).map(|stored| &mut stored.0)
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, WaitEnd> {
        #[cfg(debug_assertions)]
        assert!(!name.ends_with(on_purpose::WHEN_OPENED), "on purpose");
        match self.keys.open_more(name) {
            Ok(at) => Ok(KeyIndex(at)),
            Err(Unopened::WrongType) => Err(WaitEnd::WrongType),
            Err(Unopened::Elsewhere) => Err(WaitEnd::Redirected(RedirectReason::SlotGone)),
        }
    }

    fn close(&mut self, key: KeyIndex) {
        self.keys.close(key.0);
    }

    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.keys.peek(db.0, name, |stored| read(&stored.0))
    }

    fn has_unlinked(&self) -> bool {
        self.shell.has_unlinked()
    }

    fn take_unlinked(&mut self) -> Vec<(Db, PlainName, UnlinkedLock)> {
        self.shell.take_unlinked()
    }

    fn expires_at(&mut self, key: KeyIndex) -> Option<WallTime> {
        self.keys.expires_at(key.0).map(gone_at)
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        &mut self.keys.insert(key.0, Stored::default()).0
    }
}

/// Returns the first moment at which a key has no value any more whose time to live ends at this one.
pub(crate) fn gone_at(expires_at_ms: i64) -> WallTime {
    WallTime::from_millis(u64::try_from(expires_at_ms).map_or(0, |ms| ms + 1))
}

/// The ends of names of keys at which a step panics: so tests see what that leaves. A release build knows none.
#[cfg(debug_assertions)]
pub(crate) mod on_purpose {
    /// When the key is opened for a waiter.
    pub(crate) const WHEN_OPENED: &[u8] = b"<panics when opened>";
    /// When others are told of its changes.
    pub(crate) const WHEN_TOLD: &[u8] = b"<panics when told>";
}
