//! The commands: from arguments to a typed request, and from its outcome to a reply.
//!
//! After the parser a request cannot be malformed. Nothing is decided here: `lock` decides, `module` carries it out.

pub mod acquire;
pub mod args;
pub mod break_lock;
pub mod check;
pub mod error;
pub mod extend;
pub mod guard;
pub mod hold;
pub mod info;
pub mod log;
pub mod options;
pub mod release;
pub mod reply;
pub mod table;
pub mod top;

use server_api::Acl;
use server_api::command_info::{ArgKind, ArgSpec};
use std::ffi::CStr;

/// The ACL category of all commands, where the server lets a module have one.
pub const CATEGORY: &CStr = c"lock";

const WRITE: Acl = Acl { known: "write fast", own: CATEGORY };

/// Of a command that shows operators more than one key.
const OPERATOR: Acl = Acl { known: "read slow admin dangerous", own: CATEGORY };

const KEY: ArgSpec = ArgSpec::new(c"key", ArgKind::Key);
const NUMKEYS: ArgSpec = ArgSpec::new(c"numkeys", ArgKind::Integer);
const KEYS: ArgSpec = KEY.multiple();
const OWNER: ArgSpec = ArgSpec::new(c"owner", ArgKind::String);
const FENCE: ArgSpec = ArgSpec::option(c"FENCE", c"fence", ArgKind::Integer);
const MINFENCE: ArgSpec = ArgSpec::option(c"MINFENCE", c"fence", ArgKind::Integer);
const NOTE: ArgSpec = ArgSpec::option(c"NOTE", c"note", ArgKind::String);
const SESSION: ArgSpec = ArgSpec::option(c"SESSION", c"milliseconds", ArgKind::Integer);
const COUNT: ArgSpec = ArgSpec::option(c"COUNT", c"count", ArgKind::Integer);
const LEASE: ArgKind = ArgKind::OneOf(&[
    ArgSpec::new(c"milliseconds", ArgKind::Integer).after(c"PX"),
    ArgSpec::new(c"seconds", ArgKind::Integer).after(c"EX"),
]);
const MODE: ArgKind = ArgKind::OneOf(&[ArgSpec::token(c"READ", c"read"), ArgSpec::token(c"WRITE", c"write")]);
