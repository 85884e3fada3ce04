//! LOCK.ACQUIRE, LOCK.RW and LOCK.MACQUIRE: taking a lock, or several at once.

use super::parse::{Arguments, Caller, Opt, OwnerArg, Parser};
use super::reply::{ArgError, refuse, reply_arg_error, text_of_deadlock, text_of_redirect};
use super::{CATEGORY, KEY, KEYS, LEASE, MODE, NUMKEYS, OWNER, SESSION};
use crate::ffi::command::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use crate::ffi::{Acl, Args, Command, CommandSpec, Ctx};
use crate::lock::model::fence::Fence;
use crate::lock::model::hold::Mode;
use crate::lock::model::key::Db;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{self as lock, Operation, Outcome, Refusal, Request, Wait, WaitEnd};
use crate::module::waiting::Reply;
use crate::module::{ServeError, config, serve};
use smallvec::{SmallVec, smallvec};

/// `LOCK.ACQUIRE key owner [PX ms | EX s] [BLOCK ms] [SESSION ms] [RETRY n] [NOTE text]`
#[derive(Debug)]
pub struct LockAcquire;

/// `LOCK.RW key owner READ|WRITE [PX ms | EX s] [BLOCK ms] [SESSION ms] [RETRY n] [NOTE text]`
#[derive(Debug)]
pub struct LockRw;

/// `LOCK.MACQUIRE numkeys key [key ...] owner [READ|WRITE] [PX ms | EX s] [BLOCK ms] [SESSION ms] [RETRY n] [NOTE text]`
#[derive(Debug)]
pub struct LockMacquire;

impl Command for LockAcquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking fast",
        acl: Acl { known: "write blocking fast", own: CATEGORY },
        arity: -3,
        keys: KeyArgs::First(KeyUse::Create),
        summary:
            c"Takes a lock for one owner alone, or waits for it. Replies with the fence, or null when others hold it.",
        complexity: c"O(log(N)) where N is the number of holders and waiters of the lock; \
                      to begin to wait also O(M) where M is the number of owners who wait for locks of each other",
        since: c"0.1.0",
        args: &[KEY, OWNER, LEASE_IF_NAMED, BLOCK, SESSION, RETRY, NOTE],
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
        args: &[KEY, OWNER, ArgSpec::new(c"mode", MODE), LEASE_IF_NAMED, BLOCK, SESSION, RETRY, NOTE],
        ..LockAcquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, Form::ReadWrite);
    }
}

impl Command for LockMacquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.macquire",
        flags: c"write deny-oom blocking",
        acl: Acl { known: "write blocking slow", own: CATEGORY },
        arity: -4,
        keys: KeyArgs::Counted(KeyUse::Create),
        summary: c"Takes several locks in one step, all or none, or waits for all of them. \
                   Replies with the fences in the order of the keys, or null when others hold one.",
        complexity: c"O(K*log(N)) where K is the number of keys and N that of their holders and waiters; \
                      to begin to wait also O(M) where M is the number of owners who wait for locks of each other",
        args: &[
            NUMKEYS,
            KEYS,
            OWNER,
            ArgSpec::new(c"mode", MODE).optional(),
            LEASE_IF_NAMED,
            BLOCK,
            SESSION,
            RETRY,
            NOTE,
        ],
        ..LockAcquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, Form::Many);
    }
}

const LEASE_IF_NAMED: ArgSpec = ArgSpec::new(c"lease", LEASE).optional();

const BLOCK: ArgSpec = ArgSpec::option(c"BLOCK", c"milliseconds", ArgKind::Integer);
const RETRY: ArgSpec = ArgSpec::option(c"RETRY", c"count", ArgKind::Integer);
const NOTE: ArgSpec = ArgSpec::option(c"NOTE", c"note", ArgKind::String);

/// Which of the three was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// LOCK.ACQUIRE
    Acquire,
    /// LOCK.RW
    ReadWrite,
    /// LOCK.MACQUIRE
    Many,
}

/// A request, and how it is to be answered.
#[derive(Debug)]
pub struct Parsed<W> {
    /// Of what: at least one, all different.
    pub keys: SmallVec<[W; 1]>,
    /// The request.
    pub request: Request,
    /// Whether the owner is of our making.
    pub generated: bool,
}

fn acquire(ctx: &mut Ctx<'_>, args: Args<'_>, form: Form) {
    let Parsed { keys, request, generated } = match parse(Parser::new(args, config::bounds()), ctx, form) {
        Ok(parsed) => parsed,
        Err(error) => return reply_arg_error(ctx, &error),
    };
    let grant = if form == Form::Many { answer_many } else { answer_one };
    let write = if form == Form::Many { answer_waiter_of_many } else { answer_waiter_of_one };
    match serve(ctx, &keys, &request, Some(Reply { generated, write })) {
        Ok(Outcome::Granted(fences)) => grant(ctx, &fences, generated.then_some(&request.owner)),
        // It is answered when its wait is over.
        Ok(Outcome::Queued(_)) => {}
        Ok(_) => ctx.reply_null(),
        Err(ServeError::Refused(Refusal::Deadlock(cycle))) => {
            let text = text_of_deadlock(&cycle, Db(ctx.db()), |key| ctx.may_read(key));
            ctx.reply_error(&text);
        }
        Err(error) => refuse(ctx, error),
    }
}

/// Reads the arguments of any of the three.
///
/// # Errors
/// With what is wrong.
pub fn parse<'a, A: Arguments<'a>>(
    mut parser: Parser<A>,
    caller: &impl Caller,
    form: Form,
) -> Result<Parsed<A::Word>, ArgError> {
    let lease_default = parser.bounds().lease_default;
    let keys = if form == Form::Many { parser.keys()?.into() } else { smallvec![parser.need("key")?] };
    let owner_arg = parser.owner_arg()?;
    let mode = if form == Form::ReadWrite { parser.mode()? } else { Mode::Write };
    let options = parser.options(if form == Form::Many { &OPTIONS_OF_MANY } else { &OPTIONS })?;
    if matches!(owner_arg, OwnerArg::Generate) && options.retry.is_some() {
        return Err(ArgError::RetryGenerated);
    }
    let operation = Operation::Acquire(lock::Acquire {
        mode: options.mode.unwrap_or(mode),
        lease: options.lease.unwrap_or(lease_default),
        session: options.session(caller)?,
        note: options.note,
        // A caller that cannot wait tries once.
        wait: options.wait.filter(|_| caller.can_wait()).unwrap_or(Wait::Never),
        retry: options.retry,
    });
    let (owner, generated) = match owner_arg {
        OwnerArg::Named(owner) => (Owner::new(owner), false),
        OwnerArg::Generate => (generate_owner(), true),
    };
    Ok(Parsed { keys, request: Request { owner, operation }, generated })
}

const OPTIONS: [Opt; 6] = [Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Retry, Opt::Note];
const OPTIONS_OF_MANY: [Opt; 8] =
    [Opt::Read, Opt::Write, Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Retry, Opt::Note];

/// 128 random bits in 32 hexadecimal digits.
fn generate_owner() -> Owner {
    Owner::new(format!("{:032x}", rand::random::<u128>()).as_bytes())
}

/// Replies what was granted.
type Grant = fn(&mut Ctx<'_>, &[Fence], Option<&Owner>);

fn answer_one(ctx: &mut Ctx<'_>, fences: &[Fence], generated: Option<&Owner>) {
    begin(ctx, generated);
    ctx.reply_integer(fences[0].get() as i64);
}

fn answer_many(ctx: &mut Ctx<'_>, fences: &[Fence], generated: Option<&Owner>) {
    begin(ctx, generated);
    ctx.reply_array(fences.len());
    for fence in fences {
        ctx.reply_integer(fence.get() as i64);
    }
}

/// A client that asked as `*` gets the generated owner first.
fn begin(ctx: &mut Ctx<'_>, generated: Option<&Owner>) {
    if let Some(owner) = generated {
        ctx.reply_array(2);
        ctx.reply_bytes(owner.as_bytes());
    }
}

fn answer_waiter_of_one(ctx: &mut Ctx<'_>, answered: &WaitEnd, generated: Option<&Owner>) {
    answer_waiter(ctx, answered, generated, answer_one);
}

fn answer_waiter_of_many(ctx: &mut Ctx<'_>, answered: &WaitEnd, generated: Option<&Owner>) {
    answer_waiter(ctx, answered, generated, answer_many);
}

/// Answers one that waited.
fn answer_waiter(ctx: &mut Ctx<'_>, answered: &WaitEnd, generated: Option<&Owner>, grant: Grant) {
    match answered {
        WaitEnd::Granted(fences) => grant(ctx, fences, generated),
        WaitEnd::TimedOut | WaitEnd::Replaced | WaitEnd::HoldLost => ctx.reply_null(),
        WaitEnd::WrongType => refuse(ctx, ServeError::WrongType),
        WaitEnd::Redirected(reason) => ctx.reply_error(text_of_redirect(*reason)),
        WaitEnd::Refused(Refusal::Deadlock(cycle)) => {
            // The client's permissions are not known here: only the key that it asked for is shown.
            let asked = cycle.0.first().map(|hop| &hop.key);
            let text = text_of_deadlock(cycle, Db(ctx.db()), |key| asked.is_some_and(|asked| **asked == *key));
            ctx.reply_error(&text);
        }
        WaitEnd::Refused(refusal) => refuse(ctx, ServeError::Refused(refusal.clone())),
    }
}
