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
pub mod table;
pub mod top;

use crate::ffi::Acl;
use crate::ffi::command::{ArgKind, ArgSpec};
use std::ffi::CStr;

/// The ACL category that all commands are in, where the server lets a module have one.
pub const CATEGORY: &CStr = c"lock";

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
