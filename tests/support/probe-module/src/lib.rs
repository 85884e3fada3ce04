//! A module that panics wherever the server calls it, through the very code in crates/server-api that the lock
//! module is called through. Never part of what is delivered.

use redis_module::raw;
use server_api::alloc::ServerAlloc;
use server_api::command_info::{KeyArgs, KeyUse};
use server_api::config::{ConfigKind, ConfigSpec};
use server_api::event::{Listener, ServerEvent};
use server_api::info::InfoFields;
use server_api::{Acl, Args, Command, CommandSpec, Ctx, LoadError, Loader, Module, Str, server_module};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};
use std::ptr;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// The module `panic`.
pub struct ProbeModule;

/// `PANIC.NOW key`: panics before it replies.
struct Now;

/// `PANIC.REPLIED key`: panics after it has replied.
struct Replied;

/// `PANIC.FORMATTED key`: panics with a message that is made at run time, of bytes that the client sent.
struct Formatted;

/// `PANIC.TIMER key`: panics later, when no client waits for a reply.
struct Timer;

const SPEC: CommandSpec = CommandSpec {
    name: c"panic.now",
    flags: c"readonly",
    acl: Acl { known: "read", own: c"panic" },
    arity: 2,
    keys: KeyArgs::First(KeyUse::Read),
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

/// `PANIC.SILENT key`: does not panic, and does not reply, as no command should.
struct Silent;

impl Command for Silent {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.silent", ..SPEC };

    fn run(_: &mut Ctx<'_>, _: Args<'_>) {}
}

/// `PANIC.CALL command [option]`: does not panic, but calls another module's command on the key k, for b, with an
/// option set to 0. That is BLOCK, which may wait, or another that needs a client, as modules do that do not know of
/// it. Replies with the type of the reply.
struct Call;

impl Command for Call {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.call", flags: c"write", arity: -2, ..SPEC };

    #[expect(unsafe_code, reason = "the lock module calls no commands of others")]
    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let command = CString::new(args.get(1).expect("arity").as_bytes()).expect("no NUL");
        let option = CString::new(args.get(2).map_or(&b"BLOCK"[..], |word| word.as_bytes())).expect("no NUL");
        // NOTIFY is an option of a request with QUEUE.
        let with_queue = option.as_bytes() == b"NOTIFY";
        // SAFETY: a context of its own, freed below; the server's lock is held; the format describes the arguments. The
        // reply, which may be null, is freed once. The server's functions are written once, at load.
        let kind = unsafe {
            let call = raw::RedisModule_Call.expect("in every server");
            let own = raw::RedisModule_GetThreadSafeContext.expect("in every server")(ptr::null_mut());
            let words = [c"k", c"b", option.as_c_str(), c"0", c"QUEUE", c"60000"].map(CStr::as_ptr);
            let [key, owner, option, zero, queue, ms] = words;
            let reply = match with_queue {
                true => call(own, command.as_ptr(), c"Ecccccc".as_ptr(), key, owner, option, zero, queue, ms),
                false => call(own, command.as_ptr(), c"Ecccc".as_ptr(), key, owner, option, zero),
            };
            let kind = raw::RedisModule_CallReplyType.expect("in every server")(reply);
            if !reply.is_null() {
                raw::RedisModule_FreeCallReply.expect("in every server")(reply);
            }
            raw::RedisModule_FreeThreadSafeContext.expect("in every server")(own);
            kind
        };
        ctx.reply_integer(kind.into());
    }
}

thread_local! {
    /// The connections that commands came over, as `PANIC.CLIENT` received them.
    static CLIENTS: RefCell<Vec<Option<u64>>> = const { RefCell::new(Vec::new()) };
    /// The connections that were closed, and after how many milliseconds a timer rang that was set then for at once.
    static GONE: RefCell<Vec<(u64, Option<u128>)>> = const { RefCell::new(Vec::new()) };
    /// When that timer was set, if it has not rung yet.
    static SET: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// `PANIC.CLIENT ...`: does not panic, but replies with the number of the connection that it came over, or null, and
/// remembers it; is replicated as it is.
struct Client;

impl Command for Client {
    const SPEC: CommandSpec =
        CommandSpec { name: c"panic.client", flags: c"write", arity: -1, keys: KeyArgs::None, ..SPEC };

    fn run(ctx: &mut Ctx<'_>, _: Args<'_>) {
        let connection = ctx.connection();
        CLIENTS.with_borrow_mut(|clients| clients.push(connection));
        ctx.mark_dirty(Self::SPEC.name);
        reply_number(ctx, connection);
    }
}

/// `PANIC.CLIENTS`: does not panic, but replies with all that `PANIC.CLIENT` remembers.
struct Clients;

impl Command for Clients {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.clients", arity: 1, keys: KeyArgs::None, ..SPEC };

    fn run(ctx: &mut Ctx<'_>, _: Args<'_>) {
        let clients = CLIENTS.with_borrow(Clone::clone);
        ctx.reply_array(clients.len());
        for client in clients {
            reply_number(ctx, client);
        }
    }
}

/// `PANIC.GONE`: does not panic, but replies with the numbers of the connections that were closed, each followed by how
/// late a timer rang, in milliseconds.
struct Gone;

impl Command for Gone {
    const SPEC: CommandSpec = CommandSpec { name: c"panic.gone", arity: 1, keys: KeyArgs::None, ..SPEC };

    fn run(ctx: &mut Ctx<'_>, _: Args<'_>) {
        let gone = GONE.with_borrow(Clone::clone);
        ctx.reply_array(2 * gone.len());
        for (connection, late_ms) in gone {
            reply_number(ctx, Some(connection));
            reply_number(ctx, late_ms.map(|ms| ms as u64));
        }
    }
}

fn reply_number(ctx: &mut Ctx<'_>, number: Option<u64>) {
    match number {
        Some(number) => ctx.reply_integer(number as i64),
        None => ctx.reply_null(),
    }
}

fn rung(_: &mut Ctx<'_>) {
    let late_ms = SET.take().map(|set| set.elapsed().as_millis());
    // For a test that may not ask: a command would wake the server.
    eprintln!("the timer rings");
    GONE.with_borrow_mut(|gone| {
        for (_, late) in gone.iter_mut().filter(|(_, late)| late.is_none()) {
            *late = late_ms;
        }
    });
}

/// Panics in the section `INFO panic`.
struct Section;

impl InfoFields for Section {
    fn fields(each: &mut dyn FnMut(&CStr, u64)) {
        each(c"before", 1);
        panic!("in INFO");
    }
}

/// Panics when a key named `panic` is written, or a database emptied.
struct ServerEvents;

impl Listener for ServerEvents {
    fn on_server(ctx: &mut Ctx<'_>, event: ServerEvent) {
        match event {
            ServerEvent::Flush(_) => panic!("in a server event"),
            // By the turns it is known whether the server is about to sleep. To ask for what is given already changes
            // nothing.
            ServerEvent::Tick => ctx.watch_event_loop::<ServerEvents>(),
            ServerEvent::ClientGone(connection) => {
                GONE.with_borrow_mut(|gone| gone.push((connection, None)));
                if SET.get().is_none() {
                    SET.set(Some(Instant::now()));
                    ctx.set_timer(0, rung);
                }
            }
            _ => {}
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

impl Module for ProbeModule {
    const NAME: &'static CStr = c"panic";
    const VERSION: i32 = 1;

    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
        loader.command::<Now>()?;
        loader.command::<Replied>()?;
        loader.command::<Formatted>()?;
        loader.command::<Timer>()?;
        loader.command::<Silent>()?;
        loader.command::<Call>()?;
        loader.command::<Client>()?;
        loader.command::<Clients>()?;
        loader.command::<Gone>()?;
        loader.configs(CONFIGS, "panic", || Ok(()))?;
        loader.listener::<ServerEvents>()?;
        loader.info::<Section>()
    }
}

server_module!(ProbeModule);
