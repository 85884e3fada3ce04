//! LOCK.EXTEND and LOCK.MEXTEND: move the end of a lease, or of several at once.

use super::args::{Arguments, Caller, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::options::Opt;
use super::reply::ToReply;
use super::{FENCE, KEY, KEYS, LEASE, MINFENCE, NOTE, NUMKEYS, OWNER, SESSION, WRITE};
use crate::ffi::command_info::{ArgSpec, KeyArgs, KeyUse};
use crate::ffi::{Acl, Args, Command, CommandSpec, Ctx};
use crate::lock::model::fence::Fence;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{self as lock, Operation, Outcome, PerKey, Request};
use crate::module::{ServeError, config, serve};

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
        let (key, request) = match parse_one(Parser::new(args, config::bounds()), ctx) {
            Ok(parsed) => parsed,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        match extended(serve(ctx, &[key], &request, None)) {
            Ok(fences) => fences[0].reply(ctx),
            Err(error) => refuse(ctx, error),
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
        let (keys, request) = match parse_many(Parser::new(args, config::bounds()), ctx) {
            Ok(parsed) => parsed,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        match extended(serve(ctx, &keys, &request, None)) {
            Ok(fences) => fences.reply(ctx),
            Err(error) => refuse(ctx, error),
        }
    }
}

const OPTIONS: [Opt; 6] = [Opt::Px, Opt::Ex, Opt::Session, Opt::Fence, Opt::Note, Opt::MinFence];
const OPTIONS_OF_MANY: [Opt; 3] = [Opt::Px, Opt::Ex, Opt::Session];

/// Reads the arguments of LOCK.EXTEND.
#[inline]
pub fn parse_one<'a, A: Arguments<'a>>(
    mut parser: Parser<A>,
    caller: &impl Caller,
) -> Result<(A::Word, Request), ArgError> {
    Ok((parser.need("key")?, parse(parser, caller, &OPTIONS)?))
}

/// Reads the arguments of LOCK.MEXTEND.
pub fn parse_many<'a, A: Arguments<'a>>(
    mut parser: Parser<A>,
    caller: &impl Caller,
) -> Result<(Vec<A::Word>, Request), ArgError> {
    Ok((parser.keys()?, parse(parser, caller, &OPTIONS_OF_MANY)?))
}

// The request is large: it is to be made where the command reads it.
#[inline(always)]
fn parse<'a, A: Arguments<'a>>(
    mut parser: Parser<A>,
    caller: &impl Caller,
    options: &[Opt],
) -> Result<Request, ArgError> {
    let owner = parser.owner()?;
    let options = parser.options(options)?;
    let lease = options.lease.ok_or(ArgError::NoLease)?;
    let (session, fence, note, min_fence) = (options.session(caller)?, options.fence, options.note, options.min_fence);
    let operation = Operation::Extend(lock::Extend { lease, session, fence, note, min_fence });
    Ok(Request { owner: Owner::new(owner), operation })
}

fn extended(outcome: Result<Outcome, ServeError>) -> Result<PerKey<Option<Fence>>, ServeError> {
    match outcome? {
        Outcome::Extended(fences) => Ok(fences),
        _ => unreachable!("an extension has no other outcome"),
    }
}
