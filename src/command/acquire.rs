//! LOCK.ACQUIRE, LOCK.RW, LOCK.SHARE and LOCK.MACQUIRE: take a lock, or several at once, or wait for them.
//!
//! With BLOCK, a client that cannot get the lock now waits in a queue inside the server, and gets exactly one reply
//! later: `reply_wait_end` writes it. Any other client gets its reply at once.

use super::args::{Arguments, Caller, OwnerArg, Parser};
use super::error::{ArgError, TAKEN_OVER, refuse, reply_arg_error, text_of_deadlock, text_of_redirect};
use super::options::{Opt, OptList, Options};
use super::reply::ToReply;
use super::{CATEGORY, KEY, KEYS, LEASE, MINFENCE, MODE, NOTE, NUMKEYS, OWNER, SESSION};
use crate::module::clients::Reply;
use crate::module::config;
use crate::module::notify::Channel;
use crate::module::request::{ServeError, run};
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode;
use lock_core::model::key::Db;
use lock_core::model::owner::Owner;
use lock_core::model::request::{self as lock, Operation, Outcome, Refusal, Request, Share, Terms, Wait, WaitEnd};
use server_api::command_info::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx, Str};
use smallvec::{SmallVec, smallvec};
use std::num::NonZeroU32;

/// `LOCK.ACQUIRE key owner [option ...]`
#[derive(Debug)]
pub struct LockAcquire;

/// `LOCK.RW key owner READ|WRITE [option ...]`
#[derive(Debug)]
pub struct LockRw;

/// `LOCK.SHARE key owner limit [option ...]`
#[derive(Debug)]
pub struct LockShare;

/// `LOCK.MACQUIRE numkeys key [key ...] owner [option ...]`
#[derive(Debug)]
pub struct LockMacquire;

/// The arguments of a command: some of its own, the options that all of them have, and more of its own.
macro_rules! arguments {
    ($($first:expr),+; $($last:expr),*) => {
        &[
            $($first,)+
            ArgSpec::new(c"lease", LEASE).optional(),
            ArgSpec::option(c"BLOCK", c"milliseconds", ArgKind::Integer),
            ArgSpec::option(c"QUEUE", c"milliseconds", ArgKind::Integer),
            ArgSpec::option(c"NOTIFY", c"channel", ArgKind::String),
            SESSION,
            ArgSpec::option(c"RETRY", c"count", ArgKind::Integer),
            NOTE,
            $($last),*
        ]
    };
}

impl Command for LockAcquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.acquire",
        // Not deny-oom: the module refuses what needs new memory, and serves the rest.
        flags: c"write blocking fast",
        acl: Acl { known: "write blocking fast", own: CATEGORY },
        arity: -3,
        keys: KeyArgs::First(KeyUse::Create),
        summary:
            c"Takes a lock for one owner alone, or waits for it. Replies with the fence, or null when others hold it.",
        complexity: c"O(log(N)) where N is the number of holders and waiters of the lock; \
                      to begin to wait also O(M) where M is the number of owners who wait for locks of each other",
        since: c"1.0.0",
        args: arguments![KEY, OWNER; MINFENCE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, Form::Acquire);
    }
}

impl Command for LockRw {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.rw",
        arity: -4,
        summary: c"Takes a lock for reading, together with other readers, or for writing, alone, or waits for it. \
                   Replies with the fence, or null when others hold it.",
        args: arguments![KEY, OWNER, ArgSpec::new(c"mode", MODE); MINFENCE],
        ..LockAcquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, Form::ReadWrite);
    }
}

impl Command for LockShare {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.share",
        arity: -4,
        summary: c"Takes shares of a lock, up to a limit for all holders together, or waits for them. \
                   Replies with the fence, or null when they do not fit.",
        args: arguments![KEY, OWNER, ArgSpec::new(c"limit", ArgKind::Integer), TAKE;],
        ..LockAcquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, Form::Share);
    }
}

impl Command for LockMacquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.macquire",
        flags: c"write blocking",
        acl: Acl { known: "write blocking slow", own: CATEGORY },
        arity: -4,
        keys: KeyArgs::Counted(KeyUse::Create),
        summary: c"Takes several locks in one step, all or none, or waits for all of them. \
                   Replies with the fences in the order of the keys, or null when others hold one.",
        complexity: c"O(K*log(N)) where K is the number of keys and N that of their holders and waiters; \
                      to begin to wait also O(M) where M is the number of owners who wait for locks of each other",
        args: arguments![NUMKEYS, KEYS, OWNER, ArgSpec::new(c"mode", MODE).optional();],
        ..LockAcquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, Form::Many);
    }
}

const TAKE: ArgSpec = ArgSpec::option(c"TAKE", c"count", ArgKind::Integer);

/// The command that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// LOCK.ACQUIRE
    Acquire,
    /// LOCK.RW
    ReadWrite,
    /// LOCK.SHARE
    Share,
    /// LOCK.MACQUIRE
    Many,
}

/// A request, and what its reply depends on.
#[derive(Clone, Copy, Debug)]
pub struct Parsed<'p, W> {
    /// At least one, all different.
    pub keys: &'p [W],
    /// The request, for all the keys.
    pub request: &'p Request,
    /// True if the server made the owner, because the client sent `*`.
    pub generated: bool,
    /// What it says of the channel of its owner's place.
    pub channel: Channel<'p>,
}

fn acquire(ctx: &mut Ctx<'_>, args: Args<'_>, form: Form) {
    let parsed = parse(Parser::new(args, config::bounds()), ctx, form, |ctx, parsed| answer(ctx, parsed, form));
    if let Err(error) = parsed {
        reply_arg_error(ctx, &error);
    }
}

/// Serves a request and replies, or lets the client wait.
#[inline(always)]
fn answer(ctx: &mut Ctx<'_>, parsed: Parsed<'_, Str<'_>>, form: Form) {
    let Parsed { keys, request, generated, channel } = parsed;
    let reply_grant = if form == Form::Many { reply_fences } else { reply_fence };
    let write = if form == Form::Many { reply_wait_end_many } else { reply_wait_end_one };
    match run(ctx, keys, request, Some((Reply { generated, write }, channel))) {
        Ok(Outcome::Granted(fences)) => reply_grant(ctx, &fences, generated.then_some(&request.owner)),
        // The reply follows when the wait ends.
        Ok(Outcome::Queued(_)) => {}
        Ok(_) => ctx.reply_null(),
        Err(ServeError::Refused(Refusal::Deadlock(cycle))) => {
            let text = text_of_deadlock(&cycle, Db(ctx.db()), |key| ctx.may_read(key));
            ctx.reply_error(&text);
        }
        Err(error) => refuse(ctx, error),
    }
}

/// Reads the arguments of any of the commands, and passes on what they ask for.
///
/// The request is lent and not returned: to move it takes a processor about as long as to read it.
pub fn parse<'a, A: Arguments<'a>, C: Caller, R>(
    mut parser: Parser<A>,
    caller: &mut C,
    form: Form,
    pass_on: impl FnOnce(&mut C, Parsed<'_, A::Word>) -> R,
) -> Result<R, ArgError> {
    let lease_default = parser.bounds().lease_default;
    let keys: SmallVec<[A::Word; 1]> =
        if form == Form::Many { parser.keys()?.into() } else { smallvec![parser.need("key")?] };
    let owner_arg = parser.owner_arg()?;
    let (mode, limit) = match form {
        Form::ReadWrite => (parser.mode()?, None),
        Form::Share => (Mode::Read, Some(parser.limit()?)),
        Form::Acquire | Form::Many => (Mode::Write, None),
    };
    let mut options = Options::default();
    let taken = match form {
        Form::Acquire => const { &OptList::among(LockAcquire::SPEC.args, 2) },
        Form::ReadWrite => const { &OptList::among(LockRw::SPEC.args, 3) },
        Form::Share => const { &OptList::among(LockShare::SPEC.args, 3) },
        Form::Many => const { &OptList::among(LockMacquire::SPEC.args, 3) },
    };
    parser.read_options(taken, &mut options)?;
    let channel = options.channel(caller)?;
    let share = limit.map(|limit| share(limit, &options)).transpose()?;
    let made;
    let (owner, generated) = match owner_arg {
        OwnerArg::Named(owner) => (owner, false),
        OwnerArg::Generate if options.retry.is_some() => return Err(ArgError::RetryGenerated),
        OwnerArg::Generate if options.queue.is_some() => return Err(ArgError::QueueGenerated),
        OwnerArg::Generate => {
            made = generate_owner();
            (made.as_bytes(), true)
        }
    };
    let terms = Terms::of(options.note.take(), options.session(caller)?, options.min_fence);
    let operation = Operation::Acquire(lock::Acquire {
        mode: options.mode.unwrap_or(mode),
        lease: options.lease.unwrap_or(lease_default),
        // A script, a transaction or another module cannot wait: it tries once.
        wait: options.wait.filter(|_| caller.can_wait()).unwrap_or(Wait::Never),
        // Asking again for a place adds nothing to what the owner has.
        retry: options.retry.or(options.queue.map(|_| share.map_or(1, |share| share.take.get()))),
        queue: options.queue,
        share,
        terms,
    });
    let request = Request::new(owner, operation);
    Ok(pass_on(caller, Parsed { keys: &keys, request: &request, generated, channel }))
}

/// The shares that a call asks for.
fn share(limit: NonZeroU32, options: &Options<'_>) -> Result<Share, ArgError> {
    let take = options.take.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    // TAKE may follow RETRY.
    if options.retry.is_some_and(|least| least < take.get()) {
        let (min, max) = (u64::from(take.get()), u64::from(limit.get()));
        return Err(ArgError::Number { name: Opt::Retry.word(), min, max });
    }
    Ok(Share { limit, take })
}

/// 128 random bits in 32 hexadecimal digits.
fn generate_owner() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Replies to a grant.
type ReplyGrant = fn(&mut Ctx<'_>, &[Fence], Option<&Owner>);

fn reply_fence(ctx: &mut Ctx<'_>, fences: &[Fence], generated: Option<&Owner>) {
    reply_granted(ctx, &fences[0], generated);
}

fn reply_fences(ctx: &mut Ctx<'_>, fences: &[Fence], generated: Option<&Owner>) {
    reply_granted(ctx, &fences, generated);
}

/// A client that sent the owner `*` gets the generated owner first.
fn reply_granted(ctx: &mut Ctx<'_>, granted: &impl ToReply, generated: Option<&Owner>) {
    match generated {
        Some(owner) => [owner as &dyn ToReply, granted].reply(ctx),
        None => granted.reply(ctx),
    }
}

fn reply_wait_end_one(ctx: &mut Ctx<'_>, end: &WaitEnd, generated: Option<&Owner>) {
    reply_wait_end(ctx, end, generated, reply_fence);
}

fn reply_wait_end_many(ctx: &mut Ctx<'_>, end: &WaitEnd, generated: Option<&Owner>) {
    reply_wait_end(ctx, end, generated, reply_fences);
}

/// Replies to a client that waited.
fn reply_wait_end(ctx: &mut Ctx<'_>, end: &WaitEnd, generated: Option<&Owner>, reply_grant: ReplyGrant) {
    match end {
        WaitEnd::Granted(fences) => reply_grant(ctx, fences, generated),
        WaitEnd::TimedOut | WaitEnd::Detached(_) | WaitEnd::Replaced | WaitEnd::HoldLost | WaitEnd::Left => {
            ctx.reply_null();
        }
        WaitEnd::InGrace { left, .. } => refuse(ctx, ServeError::Refused(Refusal::Grace(*left))),
        WaitEnd::TakenOver => ctx.reply_error(TAKEN_OVER),
        WaitEnd::Offered { .. } => unreachable!("no client waits for an offer"),
        WaitEnd::WrongType => refuse(ctx, ServeError::WrongType),
        WaitEnd::Redirected(reason) => ctx.reply_error(text_of_redirect(*reason)),
        WaitEnd::Refused(Refusal::Deadlock(cycle)) => {
            // The client's permissions are not known here, so only the key that it asked for is shown.
            let asked = cycle.0.first().map(|hop| &hop.key);
            let text = text_of_deadlock(cycle, Db(ctx.db()), |key| asked.is_some_and(|asked| **asked == *key));
            ctx.reply_error(&text);
        }
        WaitEnd::Refused(refusal) => refuse(ctx, ServeError::Refused(refusal.clone())),
    }
}
