//! Commands: their functions, and what COMMAND INFO and COMMAND DOCS say of them.

use super::args::Args;
use super::context::Ctx;
use super::guard::guard;
use super::load::{LoadError, Loader};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// A command of the module.
pub trait Command {
    /// Its row in the table.
    const SPEC: CommandSpec;
    /// Serves it. Replies exactly once.
    fn run(ctx: &mut Ctx<'_>, args: Args<'_>);
}

/// Everything the server is told of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Its name.
    pub name: &'static CStr,
    /// The server's flags, separated by blanks.
    pub flags: &'static CStr,
    /// ACL categories, where the server lets a module set them.
    pub acl: Acl,
    /// Number of arguments with the name; negative: at least so many.
    pub arity: i32,
    /// Where its keys are, and what it does with them.
    pub keys: KeyArgs,
    /// One line.
    pub summary: &'static CStr,
    /// In what the time it takes grows.
    pub complexity: &'static CStr,
    /// First version of the module that has it.
    pub since: &'static CStr,
    /// Its arguments.
    pub args: &'static [ArgSpec],
}

/// ACL categories of a command: the server's, to which the module's own is added where the server lets it.
#[derive(Clone, Copy, Debug)]
pub struct Acl {
    /// The server's own categories.
    pub known: &'static str,
    /// The module's category.
    pub own: &'static CStr,
}

/// Which arguments of a command are keys. By this a cluster finds the node, and an ACL what is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyArgs {
    /// None.
    None,
    /// The first argument.
    First(KeyUse),
    /// As many as the first argument says, right behind it.
    ///
    /// No server looks at any of them for an ACL when there are fewer than that, or when it is no number as servers
    /// write numbers: the command must refuse both.
    Counted(KeyUse),
}

/// What a command does with a key, in the server's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads it and answers from it.
    Read,
    /// Reads and changes it, and may create it.
    Create,
    /// Reads and changes it, and may delete it.
    Change,
}

/// An argument, as COMMAND DOCS shows it.
#[derive(Clone, Copy, Debug)]
pub struct ArgSpec {
    /// Its name.
    pub name: &'static CStr,
    /// What it is.
    pub kind: ArgKind,
    /// The word that introduces it.
    pub token: Option<&'static CStr>,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether it may be given more than once.
    pub multiple: bool,
}

/// What an argument is.
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
    /// One of several.
    OneOf(&'static [ArgSpec]),
}

impl ArgSpec {
    /// A required argument.
    #[must_use]
    pub const fn new(name: &'static CStr, kind: ArgKind) -> ArgSpec {
        ArgSpec { name, kind, token: None, optional: false, multiple: false }
    }

    /// An argument behind a word, which may be left out with it.
    #[must_use]
    pub const fn option(token: &'static CStr, name: &'static CStr, kind: ArgKind) -> ArgSpec {
        ArgSpec { name, kind, token: Some(token), optional: true, multiple: false }
    }

    /// A word that stands for itself.
    #[must_use]
    pub const fn token(token: &'static CStr, name: &'static CStr) -> ArgSpec {
        ArgSpec { name, kind: ArgKind::Token, token: Some(token), optional: false, multiple: false }
    }

    /// The same, but it may be left out.
    #[must_use]
    pub const fn optional(self) -> ArgSpec {
        ArgSpec { optional: true, ..self }
    }

    /// The same, but there may be several.
    #[must_use]
    pub const fn multiple(self) -> ArgSpec {
        ArgSpec { multiple: true, ..self }
    }

    /// The same behind a word of its own.
    #[must_use]
    pub const fn after(self, token: &'static CStr) -> ArgSpec {
        ArgSpec { token: Some(token), ..self }
    }
}

extern "C" fn call<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's array of `argc` strings, alive for this call.
    let args = unsafe { Args::lent(argv, argc) };
    guard(|| {
        // SAFETY: the server passes a context for this call; this is the only Ctx that is made of it.
        let mut ctx = unsafe { Ctx::of_command(ctx) };
        if guard(|| serve::<C>(&mut ctx, args)).is_none() {
            ctx.reply_panic();
        }
    });
    raw::REDISMODULE_OK as c_int
}

fn serve<C: Command>(ctx: &mut Ctx<'_>, args: Args<'_>) {
    // In a cluster, most servers have looked at the first of counted keys alone: see `signpost`.
    if let KeyArgs::Counted(_) = C::SPEC.keys
        && let Some(refusal) = ctx.refuses_together(&args.counted())
    {
        return ctx.reply_error(refusal);
    }
    C::run(ctx, args);
}

impl Loader<'_> {
    /// Adds a command with all that COMMAND INFO, COMMAND DOCS and ACLs need.
    ///
    /// # Errors
    /// When the server refuses it.
    pub fn command<C: Command>(&mut self) -> Result<(), LoadError> {
        let spec = C::SPEC;
        let failed = || LoadError(format!("the server refused command {}", spec.name.to_string_lossy()));
        let (first, last, step) = match spec.keys {
            KeyArgs::First(_) => (1, 1, 1),
            // Where the counted ones are no range can say; `describe` does.
            KeyArgs::None | KeyArgs::Counted(_) => (0, 0, 0),
        };
        // SAFETY: the context of the load; strings are constants.
        let created = unsafe {
            api!(RedisModule_CreateCommand(
                self.as_ptr(),
                spec.name.as_ptr(),
                Some(call::<C>),
                spec.flags.as_ptr(),
                first,
                last,
                step
            ))
        };
        if created != raw::REDISMODULE_OK as c_int {
            return Err(failed());
        }
        // SAFETY: the context of the load.
        let command = unsafe { api!(RedisModule_GetCommand(self.as_ptr(), spec.name.as_ptr())) };
        if command.is_null() || !describe(command, &spec) {
            return Err(failed());
        }
        self.categorise(command, spec.acl);
        Ok(())
    }

    /// Sets ACL categories where the server has them: Redis 7.2 knows its own only, 7.4 and Valkey 8 take ours too.
    /// Redis 7.0 has none for modules: there commands are allowed by name.
    fn categorise(&mut self, command: *mut raw::RedisModuleCommand, acl: Acl) {
        // SAFETY: reads a pointer that was written before this call.
        let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else { return };
        let own = acl.own.to_str().expect("a constant of ASCII letters");
        let all = format!("{} {own}\0", acl.known);
        let known = format!("{}\0", acl.known);
        // SAFETY: a command of ours, within the load; the texts end with NUL and are copied. An unknown category makes
        // the first call fail as a whole, so the second goes without ours.
        unsafe {
            if set(command, all.as_ptr().cast()) != raw::REDISMODULE_OK as c_int {
                set(command, known.as_ptr().cast());
            }
        }
    }

    /// Adds an ACL category of the module's own, where the server lets it.
    pub fn acl_category(&mut self, name: &CStr) {
        // SAFETY: reads a pointer that was written before this call; the context of the load; a constant name.
        unsafe {
            if let Some(add) = raw::RedisModule_AddACLCategory {
                add(self.as_ptr(), name.as_ptr());
            }
        }
    }
}

fn describe(command: *mut raw::RedisModuleCommand, spec: &CommandSpec) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // The server's lists end with an element of zeros.
    let mut keys = match spec.keys {
        KeyArgs::None => [EMPTY_KEY; 3],
        KeyArgs::First(key) => [key_at(1, key), EMPTY_KEY, EMPTY_KEY],
        KeyArgs::Counted(key) => [counted_keys(key), signpost(key), EMPTY_KEY],
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
    // SAFETY: a command of ours, within the load; all that `info` points to lives until the end of this function, and
    // the server copies it.
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

/// One key at this place.
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

/// The way to the node of counted keys: most servers look for that by the place of a key alone, not by a count. It is a
/// key for this only; what may be done with keys is asked of the counted ones.
///
/// Flag getkeys-api would tell the server all of them; why it is not set is at the top of `asking`.
fn signpost(key: KeyUse) -> raw::RedisModuleCommandKeySpec {
    let first = key_at(2, key);
    raw::RedisModuleCommandKeySpec { flags: first.flags | u64::from(raw::REDISMODULE_CMD_KEY_NOT_KEY), ..first }
}

/// The server's form of a list of arguments. Its memory is owned by `arena`.
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
