//! The commands: argv to a typed request, outcome to a reply. After the parser a request cannot be malformed.

pub mod acquire;
pub mod extend;
pub mod hold;
pub mod info;
pub mod parse;
pub mod release;
pub mod reply;

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
    loader.command::<hold::HoldFact>()
}

/// The categories of a command that changes a lock.
const WRITE: Acl = Acl { known: "write fast", own: CATEGORY };

const KEY: ArgSpec = ArgSpec::new(c"key", ArgKind::Key);
const OWNER: ArgSpec = ArgSpec::new(c"owner", ArgKind::String);
const FENCE: ArgSpec = ArgSpec::option(c"FENCE", c"fence", ArgKind::Integer);
const LEASE: ArgKind = ArgKind::OneOf(&[
    ArgSpec::new(c"milliseconds", ArgKind::Integer).after(c"PX"),
    ArgSpec::new(c"seconds", ArgKind::Integer).after(c"EX"),
]);
const MODE: ArgKind = ArgKind::OneOf(&[ArgSpec::token(c"READ", c"read"), ArgSpec::token(c"WRITE", c"write")]);
