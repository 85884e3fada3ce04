//! Reading: what commands show and check. Nothing is changed.

use super::data_type::Stored;
use super::open_locks::with_key;
use super::request::ServeError;
use super::shell::{shell, with_manager};
use lock_core::manager::LockManager;
use lock_core::manager::view::{self, View, ViewContext};
use lock_core::model::fence::Fence;
use lock_core::model::key::Db;
use lock_core::model::request::Check;
use lock_core::model::time::Timestamp;
use server_api::{Access, Ctx, Str};

/// Shows a key's lock, if there is one, and its waiters.
///
/// # Errors
/// When the key has a value of another type.
pub fn view<R>(ctx: &mut Ctx<'_>, name: Str<'_>, show: impl FnOnce(KeyView<'_>) -> R) -> Result<R, ServeError> {
    let now = shell().clock.mono();
    let judged = shell().judged(ctx, now);
    let seen = with_key(ctx, name, Access::Read, |keys| {
        with_manager(|manager| {
            let (db, name) = (Db(keys.db()), name.as_bytes());
            let at = ViewContext { db, name, sessions: manager.sessions(), now, judged };
            show(KeyView { lock: keys.get(0).and_then(|stored| View::of(&stored.0, at)), manager, db, name, now })
        })
    })?;
    Ok(seen)
}

/// The fence of an owner's hold, if it is what is asked for. Nothing is changed.
///
/// # Errors
/// On a replica, and when the key has a value of another type.
pub fn check(ctx: &mut Ctx<'_>, name: Str<'_>, owner: &[u8], check: Check) -> Result<Option<Fence>, ServeError> {
    // A replica may not have heard yet of a release, a break or another's grant.
    if !shell().role.is_primary(ctx) {
        return Err(ServeError::CheckedElsewhere);
    }
    let now = shell().clock.mono();
    let judged = shell().judged(ctx, now);
    let fence = with_key(ctx, name, Access::Read, |keys| {
        let Stored(lock) = keys.get(0)?;
        let (db, name) = (Db(keys.db()), name.as_bytes());
        with_manager(|manager| {
            let at = ViewContext { db, name, sessions: manager.sessions(), now, judged };
            view::check(lock, at, owner, check)
        })
    })?;
    Ok(fence)
}

/// Reads what the manager knows of all keys.
pub fn read_manager<R>(read: impl FnOnce(&LockManager, Timestamp) -> R) -> R {
    with_manager(|manager| read(manager, shell().clock.mono()))
}

/// A key as it is to be shown.
#[derive(Debug)]
pub struct KeyView<'a> {
    /// Its lock, if it has a holder.
    pub lock: Option<View<'a>>,
    /// The manager, which knows the waiters.
    pub manager: &'a LockManager,
    /// Its database.
    pub db: Db,
    /// Its name.
    pub name: &'a [u8],
    /// When.
    pub now: Timestamp,
}
