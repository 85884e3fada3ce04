//! The commands: argv to a typed request, outcome to a reply. After the parser a request cannot be malformed.

pub mod acquire;
pub mod break_lock;
pub mod extend;
pub mod hold;
pub mod info;
pub mod log;
pub mod parse;
pub mod release;
pub mod reply;
pub mod top;

use crate::ffi::command::{ArgKind, ArgSpec};
use crate::ffi::{Acl, Command, CommandSpec, LoadError, Loader};
use std::ffi::CStr;

/// The ACL category that all commands are in, where the server lets a module have one.
pub const CATEGORY: &CStr = c"lock";

/// Every command, as COMMAND INFO and COMMAND DOCS show it.
pub const TABLE: &[CommandSpec] = &[
    acquire::Acquire::SPEC,
    acquire::ReadWrite::SPEC,
    release::Release::SPEC,
    extend::Extend::SPEC,
    info::Info::SPEC,
    acquire::AcquireMany::SPEC,
    release::ReleaseMany::SPEC,
    extend::ExtendMany::SPEC,
    break_lock::Break::SPEC,
    top::Top::SPEC,
    log::Log::SPEC,
    hold::HoldFact::SPEC,
];

/// Adds all of them to the server.
///
/// # Errors
/// When the server refuses one.
pub fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
    loader.acl_category(CATEGORY);
    loader.command::<acquire::Acquire>()?;
    loader.command::<acquire::ReadWrite>()?;
    loader.command::<release::Release>()?;
    loader.command::<extend::Extend>()?;
    loader.command::<info::Info>()?;
    loader.command::<acquire::AcquireMany>()?;
    loader.command::<release::ReleaseMany>()?;
    loader.command::<extend::ExtendMany>()?;
    loader.command::<break_lock::Break>()?;
    loader.command::<top::Top>()?;
    loader.command::<log::Log>()?;
    loader.command::<hold::HoldFact>()
}

/// The categories of a command that changes a lock.
const WRITE: Acl = Acl { known: "write fast", own: CATEGORY };

/// The categories of a command that shows operators more than one key.
const OPERATOR: Acl = Acl { known: "read slow admin dangerous", own: CATEGORY };

const KEY: ArgSpec = ArgSpec::new(c"key", ArgKind::Key);
const NUMKEYS: ArgSpec = ArgSpec::new(c"numkeys", ArgKind::Integer);
const KEYS: ArgSpec = KEY.multiple();
const OWNER: ArgSpec = ArgSpec::new(c"owner", ArgKind::String);
const FENCE: ArgSpec = ArgSpec::option(c"FENCE", c"fence", ArgKind::Integer);
const SESSION: ArgSpec = ArgSpec::option(c"SESSION", c"milliseconds", ArgKind::Integer);
const COUNT: ArgSpec = ArgSpec::option(c"COUNT", c"count", ArgKind::Integer);
const LEASE: ArgKind = ArgKind::OneOf(&[
    ArgSpec::new(c"milliseconds", ArgKind::Integer).after(c"PX"),
    ArgSpec::new(c"seconds", ArgKind::Integer).after(c"EX"),
]);
const MODE: ArgKind = ArgKind::OneOf(&[ArgSpec::token(c"READ", c"read"), ArgSpec::token(c"WRITE", c"write")]);
