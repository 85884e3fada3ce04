//! LOCK.EXTEND and LOCK.MEXTEND: move the end of a lease, or of several at once.

use super::args::{Arguments, Caller, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::options::{OptList, Options};
use super::reply::ToReply;
use super::{FENCE, KEY, KEYS, LEASE, MINFENCE, NOTE, NUMKEYS, OWNER, SESSION, WRITE};
use crate::module::config;
use crate::module::request::{ServeError, run};
use lock_core::model::fence::Fence;
use lock_core::model::request::{self as lock, Operation, Outcome, PerKey, Request};
use server_api::command_info::{ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx, Str};

/// `LOCK.EXTEND key owner PX ms | EX s [SESSION ms] [FENCE f] [NOTE text] [MINFENCE f]`
#[derive(Debug)]
pub struct LockExtend;

/// `LOCK.MEXTEND numkeys key [key ...] owner PX ms | EX s [SESSION ms]`
#[derive(Debug)]
pub struct LockMextend;

impl Command for LockExtend {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.extend",
        flags: c"write fast",
        acl: WRITE,
        arity: -5,
        keys: KeyArgs::First(KeyUse::Change),
        summary: c"Lets the lease end that long from now, be it earlier or later than before. \
                   Replies with the fence, or null when the owner held nothing.",
        complexity: c"O(log(N)) where N is the number of holders of the lock",
        since: c"1.0.0",
        args: &[KEY, OWNER, ArgSpec::new(c"lease", LEASE), SESSION, FENCE, NOTE, MINFENCE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let answer =
            |ctx: &mut Ctx<'_>, keys: &[Str<'_>], request: &Request| match extended(run(ctx, keys, request, None)) {
                Ok(fences) => fences[0].reply(ctx),
                Err(error) => refuse(ctx, error),
            };
        if let Err(error) = parse_one(Parser::new(args, config::bounds()), ctx, answer) {
            reply_arg_error(ctx, &error);
        }
    }
}

impl Command for LockMextend {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.mextend",
        flags: c"write",
        acl: Acl { known: "write slow", ..WRITE },
        arity: -6,
        keys: KeyArgs::Counted(KeyUse::Change),
        summary: c"Lets several leases end that long from now, in one step. \
                   Replies for each key with the fence, or null where the owner held nothing.",
        complexity: c"O(K*log(N)) where K is the number of keys and N that of their holders",
        since: c"1.0.0",
        args: &[NUMKEYS, KEYS, OWNER, ArgSpec::new(c"lease", LEASE), SESSION],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let answer =
            |ctx: &mut Ctx<'_>, keys: &[Str<'_>], request: &Request| match extended(run(ctx, keys, request, None)) {
                Ok(fences) => fences.reply(ctx),
                Err(error) => refuse(ctx, error),
            };
        if let Err(error) = parse_many(Parser::new(args, config::bounds()), ctx, answer) {
            reply_arg_error(ctx, &error);
        }
    }
}

const OPTIONS: &OptList = &OptList::among(LockExtend::SPEC.args, 2);
const OPTIONS_OF_MANY: &OptList = &OptList::among(LockMextend::SPEC.args, 3);

/// Reads the arguments of LOCK.EXTEND, and passes on what they ask for.
#[inline(always)]
pub fn parse_one<'a, A: Arguments<'a>, C: Caller, R>(
    mut parser: Parser<A>,
    caller: &mut C,
    pass_on: impl FnOnce(&mut C, &[A::Word], &Request) -> R,
) -> Result<R, ArgError> {
    let key = parser.need("key")?;
    parse(parser, caller, OPTIONS, |caller, request| pass_on(caller, &[key], request))
}

/// Reads the arguments of LOCK.MEXTEND, and passes on what they ask for.
pub fn parse_many<'a, A: Arguments<'a>, C: Caller, R>(
    mut parser: Parser<A>,
    caller: &mut C,
    pass_on: impl FnOnce(&mut C, &[A::Word], &Request) -> R,
) -> Result<R, ArgError> {
    let keys = parser.keys()?;
    parse(parser, caller, OPTIONS_OF_MANY, |caller, request| pass_on(caller, &keys, request))
}

/// Reads what follows the keys. The request is lent, as in [`super::acquire::parse`].
#[inline(always)]
fn parse<'a, A: Arguments<'a>, C: Caller, R>(
    mut parser: Parser<A>,
    caller: &mut C,
    taken: &OptList,
    pass_on: impl FnOnce(&mut C, &Request) -> R,
) -> Result<R, ArgError> {
    let owner = parser.owner()?;
    let mut options = Options::default();
    parser.read_options(taken, &mut options)?;
    let lease = options.lease.ok_or(ArgError::NoLease)?;
    let (session, fence, note, min_fence) = (options.session(caller)?, options.fence, options.note, options.min_fence);
    let operation = Operation::Extend(lock::Extend { lease, session, fence, note, min_fence });
    let request = Request::new(owner, operation);
    Ok(pass_on(caller, &request))
}

fn extended(outcome: Result<Outcome, ServeError>) -> Result<PerKey<Option<Fence>>, ServeError> {
    match outcome? {
        Outcome::Extended(fences) => Ok(fences),
        _ => unreachable!("an extension has no other outcome"),
    }
}
