//! A module that panics wherever the server calls it, through the very code in src/ffi that the lock module is called
//! through. Never part of what is delivered.

#[path = "../../../src/ffi/mod.rs"]
pub mod ffi;

use ffi::alloc::ServerAlloc;
use ffi::command::KeyUse;
use ffi::config::{ConfigKind, ConfigSpec};
use ffi::event::{Listener, ServerEvent};
use ffi::info::InfoFields;
use ffi::{Acl, Args, Command, CommandSpec, Ctx, LoadError, Loader, Module, Str};
use std::ffi::CStr;

#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// The module `panic`.
pub struct Panicking;

/// `PANIC.NOW key`: panics before it replies.
struct Now;

/// `PANIC.REPLIED key`: panics after it has replied.
struct Replied;

/// `PANIC.FORMATTED key`: panics with a message that is made at run time, of bytes that the client sent.
struct Formatted;

/// `PANIC.TIMER key`: panics later, when nobody waits for a reply.
struct Timer;

const SPEC: CommandSpec = CommandSpec {
    name: c"panic.now",
    flags: c"readonly",
    acl: Acl { known: "read", own: c"panic" },
    arity: 2,
    key: KeyUse::Read,
    summary: c"Panics.",
    complexity: c"O(1)",
    since: c"0.1.0",
    args: &[],
};

impl Command for Now {
    const SPEC: CommandSpec = SPEC;

    fn run(_: &mut Ctx<'_>, _: Args<'_>) {
        panic!("on purpose");
    }
}

impl Command for Replied {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.replied", ..SPEC };

    fn run(ctx: &mut Ctx<'_>, _: Args<'_>) {
        ctx.reply_integer(7);
        panic!("after the reply");
    }
}

impl Command for Formatted {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.formatted", ..SPEC };

    fn run(_: &mut Ctx<'_>, args: Args<'_>) {
        let key = String::from_utf8_lossy(args.get(1).expect("arity").as_bytes()).into_owned();
        panic!("key is {key}");
    }
}

impl Command for Timer {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.timer", ..SPEC };

    fn run(ctx: &mut Ctx<'_>, _: Args<'_>) {
        ctx.set_timer(0, |_| panic!("in a timer"));
        ctx.reply_integer(1);
    }
}

/// Panics in the section `INFO panic`.
struct Section;

impl InfoFields for Section {
    fn fields(each: &mut dyn FnMut(&CStr, u64)) {
        each(c"before", 1);
        panic!("in INFO");
    }
}

/// Panics when a key named `panic` is written.
struct Ear;

impl Listener for Ear {
    fn on_server(_: &mut Ctx<'_>, event: ServerEvent) {
        if let ServerEvent::Flush(_) = event {
            panic!("in a server event");
        }
    }

    fn on_key(_: &mut Ctx<'_>, _: &CStr, key: Str<'_>) {
        if key.as_bytes() == b"panic" {
            panic!("in a keyspace event");
        }
    }
}

static CONFIGS: &[ConfigSpec] = &[ConfigSpec {
    name: "level",
    kind: ConfigKind::Number(0, 10),
    default: 0,
    fixed: false,
    unit: "levels",
    reason: "panics when it is set to 3",
    get: || 0,
    set: |value| {
        if value == 3 {
            panic!("in CONFIG SET");
        }
    },
}];

impl Module for Panicking {
    const NAME: &'static CStr = c"panic";
    const VERSION: i32 = 1;

    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
        loader.command::<Now>()?;
        loader.command::<Replied>()?;
        loader.command::<Formatted>()?;
        loader.command::<Timer>()?;
        loader.configs(CONFIGS, "panic", || Ok(()))?;
        loader.listener::<Ear>()?;
        loader.info::<Section>()
    }
}

server_module!(Panicking);
