//! The table of commands: what COMMAND INFO shows, what the documents are compared with, what is registered at load.

use super::{CATEGORY, acquire, break_lock, check, extend, guard, hold, info, log, release, top};
use server_api::{Command, CommandSpec, LoadError, Loader};

/// All that COMMAND INFO and COMMAND DOCS show.
pub const TABLE: &[CommandSpec] = &[
    acquire::LockAcquire::SPEC,
    acquire::LockRw::SPEC,
    acquire::LockShare::SPEC,
    release::LockRelease::SPEC,
    extend::LockExtend::SPEC,
    check::LockCheck::SPEC,
    guard::LockGuard::SPEC,
    info::LockInfo::SPEC,
    acquire::LockMacquire::SPEC,
    release::LockMrelease::SPEC,
    extend::LockMextend::SPEC,
    break_lock::LockBreak::SPEC,
    top::LockTop::SPEC,
    log::LockLog::SPEC,
    hold::LockHold::SPEC,
];

/// Registers all commands.
///
/// # Errors
/// If the server refuses one.
pub fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
    loader.acl_category(CATEGORY);
    loader.command::<acquire::LockAcquire>()?;
    loader.command::<acquire::LockRw>()?;
    loader.command::<acquire::LockShare>()?;
    loader.command::<release::LockRelease>()?;
    loader.command::<extend::LockExtend>()?;
    loader.command::<check::LockCheck>()?;
    loader.command::<guard::LockGuard>()?;
    loader.command::<info::LockInfo>()?;
    loader.command::<acquire::LockMacquire>()?;
    loader.command::<release::LockMrelease>()?;
    loader.command::<extend::LockMextend>()?;
    loader.command::<break_lock::LockBreak>()?;
    loader.command::<top::LockTop>()?;
    loader.command::<log::LockLog>()?;
    loader.command::<hold::LockHold>()
}
