//! A module whose commands do nothing, or open their key and reply: the floors under the commands of the lock module,
//! called through the very code in crates/server-api. Never part of what is delivered.

use server_api::alloc::ServerAlloc;
use server_api::command_info::{KeyArgs, KeyUse};
use server_api::record::Record;
use server_api::value::{DataType, Destination, DigestPart, Value};
use server_api::{Access, Acl, Args, Command, CommandSpec, Ctx, Keys, LoadError, Loader, Module, Names, server_module};
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

/// `NOOP.OPEN key [null|fence] ...`: opens the key to be written and replies, as any command of the lock module must.
struct NoopOpen;

impl Command for NoopOpen {
    const SPEC: CommandSpec = CommandSpec {
        name: c"noop.open",
        arity: -3,
        summary: c"Opens its key, changes nothing, and replies with null, or with as many digits as a fence has.",
        ..Noop::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let (Some(key), Some(reply)) = (args.get(1), args.get(2)) else { return };
        // Of another type, as a lock is, or absent: it was opened.
        drop(Keys::open(ctx, &NOTHING, &mut Names::of(&[key]), Access::Write));
        match reply.as_bytes() {
            b"null" => ctx.reply_null(),
            _ => ctx.reply_integer(1_795_254_138_291_343),
        }
    }
}

static NOTHING: DataType<Nothing> = DataType::new();

/// A value that no key has.
struct Nothing;

impl Value for Nothing {
    const NAME: &'static CStr = c"noopvalue";
    const ENCODING: i32 = 0;

    fn load(_: &[u8], _: Option<Destination<'_>>) -> Result<Nothing, String> {
        Err("there is none".to_owned())
    }

    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    fn rewrite(&self, _: &mut dyn FnMut(Record<'_>)) {}

    fn bytes(&self, _: usize) -> usize {
        0
    }

    fn free_effort(&self) -> usize {
        1
    }

    fn digest(&self, _: &mut DigestPart<'_>) {}

    fn unlinked(&self, _: u32, _: &[u8]) {}

    fn save_aside() -> Option<u64> {
        None
    }

    fn load_aside(_: u64) -> Result<(), String> {
        Ok(())
    }
}

impl Module for Empty {
    const NAME: &'static CStr = c"noop";
    const VERSION: i32 = 1;

    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
        loader.data_type(&NOTHING)?;
        loader.command::<Noop>()?;
        loader.command::<NoopOpen>()
    }
}

server_module!(Empty);
