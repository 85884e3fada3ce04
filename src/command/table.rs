//! The table of commands: what COMMAND INFO shows, what the documents are compared with, what is registered at load.

use super::{CATEGORY, acquire, break_lock, check, extend, guard, hold, info, log, release, top};
use server_api::{Command, CommandSpec, LoadError, Loader};

macro_rules! commands {
    ($($command:ty),+ $(,)?) => {
        /// All that COMMAND INFO and COMMAND DOCS show.
        pub const TABLE: &[CommandSpec] = &[$(<$command>::SPEC),+];

        /// Registers all commands.
        ///
        /// # Errors
        /// If the server refuses one.
        pub fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
            loader.acl_category(CATEGORY);
            $(loader.command::<$command>()?;)+
            Ok(())
        }
    };
}

commands![
    acquire::LockAcquire,
    acquire::LockRw,
    acquire::LockShare,
    release::LockRelease,
    extend::LockExtend,
    check::LockCheck,
    guard::LockGuard,
    info::LockInfo,
    acquire::LockMacquire,
    release::LockMrelease,
    extend::LockMextend,
    break_lock::LockBreak,
    top::LockTop,
    log::LockLog,
    hold::LockHold,
];
