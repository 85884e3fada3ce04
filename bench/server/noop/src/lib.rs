//! A module with one command, which does nothing: the floor under every command of the lock module, called through the
//! very code in src/ffi. Never part of what is delivered.

#[path = "../../../../src/ffi/mod.rs"]
#[allow(dead_code, reason = "one command needs little of it")]
pub mod ffi;

use ffi::alloc::ServerAlloc;
use ffi::command_info::{KeyArgs, KeyUse};
use ffi::{Acl, Args, Command, CommandSpec, Ctx, LoadError, Loader, Module};
use std::ffi::CStr;

#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// The module `noop`.
pub struct Empty;

/// `NOOP key ...`: replies 1.
struct Noop;

impl Command for Noop {
    const SPEC: CommandSpec = CommandSpec {
        name: c"noop",
        // As LOCK.RELEASE has them.
        flags: c"write fast",
        acl: Acl { known: "write fast", own: c"noop" },
        arity: -2,
        keys: KeyArgs::First(KeyUse::Change),
        summary: c"Does nothing.",
        complexity: c"O(1)",
        since: c"0.1.0",
        args: &[],
    };

    fn run(ctx: &mut Ctx<'_>, _: Args<'_>) {
        ctx.reply_integer(1);
    }
}

impl Module for Empty {
    const NAME: &'static CStr = c"noop";
    const VERSION: i32 = 1;

    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
        loader.command::<Noop>()
    }
}

server_module!(Empty);
