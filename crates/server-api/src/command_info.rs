//! What COMMAND INFO and COMMAND DOCS say of a command.

use super::acl::Acl;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// A command, as COMMAND INFO and COMMAND DOCS show it.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// In lower case.
    pub name: &'static CStr,
    /// The server's flags, separated by blanks.
    pub flags: &'static CStr,
    /// Set where the server lets a module set ACL categories.
    pub acl: Acl,
    /// The number of arguments, with the name. Negative: at least so many.
    pub arity: i32,
    /// The arguments that are keys, and what the command does with them.
    pub keys: KeyArgs,
    /// One line.
    pub summary: &'static CStr,
    /// How the time grows that it takes.
    pub complexity: &'static CStr,
    /// The first version of the module that has it.
    pub since: &'static CStr,
    /// In the order of the syntax.
    pub args: &'static [ArgSpec],
}

/// The arguments of a command that are keys. A cluster finds the node by them, and ACLs check them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyArgs {
    /// No argument is a key.
    None,
    /// The first argument.
    First(KeyUse),
    /// As many as the first argument says, right behind it.
    ///
    /// If fewer arguments follow, or if the count is not written as servers write numbers, no server checks the ACL of
    /// any key. The command must refuse both.
    Counted(KeyUse),
    /// The first argument, and the keys of the command that begins at this place.
    ///
    /// COMMAND GETKEYS and ACLs know the first alone. The flag getkeys-api would tell them the others, and the top of
    /// serving.rs says why it is not set. In a cluster, all of them are judged when the command is called. The rights
    /// to the others are checked when the inner command is run.
    AndOfCommand(KeyUse, usize),
}

/// The use of a key by a command, in the server's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads it, and replies from it.
    Read,
    /// Reads and changes it, and may create it.
    Create,
    /// Reads and changes it, and may delete it.
    Change,
}

/// An argument of a command.
#[derive(Clone, Copy, Debug)]
pub struct ArgSpec {
    /// The placeholder in the syntax.
    pub name: &'static CStr,
    /// Its kind.
    pub kind: ArgKind,
    /// The word before it.
    pub token: Option<&'static CStr>,
    /// True if it may be left out.
    pub optional: bool,
    /// True if it may be given more than once.
    pub multiple: bool,
}

/// The kind of an argument.
#[derive(Clone, Copy, Debug)]
pub enum ArgKind {
    /// A key.
    Key,
    /// Bytes.
    String,
    /// A whole number.
    Integer,
    /// The token alone.
    Token,
    /// One of several arguments.
    OneOf(&'static [ArgSpec]),
}

impl ArgSpec {
    /// A required argument.
    #[must_use]
    pub const fn new(name: &'static CStr, kind: ArgKind) -> ArgSpec {
        ArgSpec { name, kind, token: None, optional: false, multiple: false }
    }

    /// An argument with a word before it. Both may be left out.
    #[must_use]
    pub const fn option(token: &'static CStr, name: &'static CStr, kind: ArgKind) -> ArgSpec {
        ArgSpec { name, kind, token: Some(token), optional: true, multiple: false }
    }

    /// A word that stands for itself.
    #[must_use]
    pub const fn token(token: &'static CStr, name: &'static CStr) -> ArgSpec {
        ArgSpec { name, kind: ArgKind::Token, token: Some(token), optional: false, multiple: false }
    }

    /// The same argument, which may be left out.
    #[must_use]
    pub const fn optional(self) -> ArgSpec {
        ArgSpec { optional: true, ..self }
    }

    /// The same argument, which may be repeated.
    #[must_use]
    pub const fn multiple(self) -> ArgSpec {
        ArgSpec { multiple: true, ..self }
    }

    /// The same argument, with a word before it.
    #[must_use]
    pub const fn after(self, token: &'static CStr) -> ArgSpec {
        ArgSpec { token: Some(token), ..self }
    }
}

pub(super) fn describe(command: *mut raw::RedisModuleCommand, spec: &CommandSpec) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // The server's lists end with an element of zeros.
    let mut keys = match spec.keys {
        KeyArgs::None => [EMPTY_KEY; 3],
        KeyArgs::First(key) | KeyArgs::AndOfCommand(key, _) => [key_at(1, key), EMPTY_KEY, EMPTY_KEY],
        KeyArgs::Counted(key) => [counted_keys(key), routing_key(key), EMPTY_KEY],
    };
    let mut arena = Vec::new();
    let args = arg_list(spec.args, &mut arena);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: spec.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arity,
        key_specs: keys.as_mut_ptr(),
        args,
    };
    // SAFETY: the caller has just got `command` from the server, for which it lives. All that `info` points to lives
    // until the end of this function, and the server copies it.
    unsafe { api!(RedisModule_SetCommandInfo(command, &raw const info)) == raw::REDISMODULE_OK as c_int }
}

const EMPTY_KEY: raw::RedisModuleCommandKeySpec = raw::RedisModuleCommandKeySpec {
    notes: ptr::null(),
    flags: 0,
    begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INVALID,
    bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
        index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 0 },
    },
    find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_OMITTED,
    fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
        range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 0, limit: 0 },
    },
};

/// The one key at this place.
fn key_at(pos: c_int, key: KeyUse) -> raw::RedisModuleCommandKeySpec {
    // Exactly one of RO, RW, OW, RM; with it at most one of UPDATE, INSERT, DELETE.
    let flags = match key {
        KeyUse::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        KeyUse::Create => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
        }
        KeyUse::Change => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_DELETE
        }
    };
    raw::RedisModuleCommandKeySpec {
        flags: u64::from(flags),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos },
        },
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
        fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
            range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 },
        },
        ..EMPTY_KEY
    }
}

/// As many keys as the first argument says, right behind it.
fn counted_keys(key: KeyUse) -> raw::RedisModuleCommandKeySpec {
    raw::RedisModuleCommandKeySpec {
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM,
        fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
            keynum: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            },
        },
        ..key_at(1, key)
    }
}

/// The key by which a cluster finds the node of counted keys: most servers look for a key at a fixed place alone. It
/// serves that purpose only; ACLs check the counted keys.
///
/// The flag getkeys-api would tell the server all keys. Why it is not set is said at the top of serving.rs.
fn routing_key(key: KeyUse) -> raw::RedisModuleCommandKeySpec {
    let first = key_at(2, key);
    raw::RedisModuleCommandKeySpec { flags: first.flags | u64::from(raw::REDISMODULE_CMD_KEY_NOT_KEY), ..first }
}

/// A list of arguments as the server reads it. `arena` owns its memory.
fn arg_list(specs: &[ArgSpec], arena: &mut Vec<Box<[raw::RedisModuleCommandArg]>>) -> *mut raw::RedisModuleCommandArg {
    let mut list: Vec<_> = specs.iter().map(|spec| arg(spec, arena)).collect();
    list.push(raw::RedisModuleCommandArg { name: ptr::null(), ..arg_of(c"", ArgKind::String) });
    arena.push(list.into_boxed_slice());
    arena.last_mut().expect("pushed on the line above").as_mut_ptr()
}

fn arg(spec: &ArgSpec, arena: &mut Vec<Box<[raw::RedisModuleCommandArg]>>) -> raw::RedisModuleCommandArg {
    let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
    if spec.optional {
        flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
    }
    if spec.multiple {
        flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
    }
    raw::RedisModuleCommandArg {
        flags: flags as c_int,
        token: spec.token.map_or(ptr::null(), CStr::as_ptr),
        subargs: match spec.kind {
            ArgKind::OneOf(specs) => arg_list(specs, arena),
            _ => ptr::null_mut(),
        },
        ..arg_of(spec.name, spec.kind)
    }
}

fn arg_of(name: &CStr, kind: ArgKind) -> raw::RedisModuleCommandArg {
    let (type_, key_spec_index) = match kind {
        ArgKind::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, 0),
        ArgKind::String => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, -1),
        ArgKind::Integer => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, -1),
        ArgKind::Token => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN, -1),
        ArgKind::OneOf(_) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF, -1),
    };
    let none: *const c_char = ptr::null();
    raw::RedisModuleCommandArg {
        name: name.as_ptr(),
        type_,
        key_spec_index,
        token: none,
        summary: none,
        since: none,
        flags: 0,
        deprecated_since: none,
        subargs: ptr::null_mut(),
        display_text: none,
    }
}
