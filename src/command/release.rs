//! LOCK.RELEASE and LOCK.MRELEASE: give a lock back, or several at once.

use super::args::{Arguments, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::options::{OptList, Options};
use super::reply::ToReply;
use super::{FENCE, KEY, KEYS, MODE, NUMKEYS, OWNER, WRITE};
use crate::module::config;
use crate::module::request::{ServeError, run};
use lock_core::model::request::{self as lock, Amount, Operation, Outcome, PerKey, Request};
use server_api::command_info::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx, Str};

/// `LOCK.RELEASE key owner [READ|WRITE] [ALL | TO n] [FENCE f]`
#[derive(Debug)]
pub struct LockRelease;

/// `LOCK.MRELEASE numkeys key [key ...] owner [READ|WRITE] [ALL | TO n]`
#[derive(Debug)]
pub struct LockMrelease;

impl Command for LockRelease {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.release",
        flags: c"write fast",
        acl: WRITE,
        arity: -3,
        keys: KeyArgs::First(KeyUse::Change),
        summary: c"Gives one count of a lock back, or more. \
                   Replies with the counts left, or null when the owner held nothing.",
        complexity: c"O(log(N)) where N is the number of holders of the lock",
        since: c"1.0.0",
        args: &[KEY, OWNER, ArgSpec::new(c"mode", MODE).optional(), ArgSpec::new(c"amount", AMOUNT).optional(), FENCE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let answer = |keys: &[Str<'_>], request: &Request| match released(run(ctx, keys, request, None)) {
            Ok(left) => left[0].reply(ctx),
            Err(error) => refuse(ctx, error),
        };
        if let Err(error) = parse_one(Parser::new(args, config::bounds()), answer) {
            reply_arg_error(ctx, &error);
        }
    }
}

impl Command for LockMrelease {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.mrelease",
        flags: c"write",
        acl: Acl { known: "write slow", ..WRITE },
        arity: -4,
        keys: KeyArgs::Counted(KeyUse::Change),
        summary: c"Gives one count of several locks back in one step, or more. \
                   Replies for each key with the counts left, or null where the owner held nothing.",
        complexity: c"O(K*log(N)) where K is the number of keys and N that of their holders",
        since: c"1.0.0",
        args: &[
            NUMKEYS,
            KEYS,
            OWNER,
            ArgSpec::new(c"mode", MODE).optional(),
            ArgSpec::new(c"amount", AMOUNT).optional(),
        ],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let answer = |keys: &[Str<'_>], request: &Request| match released(run(ctx, keys, request, None)) {
            Ok(left) => left.reply(ctx),
            Err(error) => refuse(ctx, error),
        };
        if let Err(error) = parse_many(Parser::new(args, config::bounds()), answer) {
            reply_arg_error(ctx, &error);
        }
    }
}

const AMOUNT: ArgKind =
    ArgKind::OneOf(&[ArgSpec::token(c"ALL", c"all"), ArgSpec::new(c"count", ArgKind::Integer).after(c"TO")]);

const OPTIONS: &OptList = &OptList::among(LockRelease::SPEC.args, 2);
const OPTIONS_OF_MANY: &OptList = &OptList::among(LockMrelease::SPEC.args, 3);

/// Reads the arguments of LOCK.RELEASE, and passes on what they ask for.
#[inline(always)]
pub fn parse_one<'a, A: Arguments<'a>, R>(
    mut parser: Parser<A>,
    pass_on: impl FnOnce(&[A::Word], &Request) -> R,
) -> Result<R, ArgError> {
    let key = parser.need("key")?;
    parse(parser, OPTIONS, |request| pass_on(&[key], request))
}

/// Reads the arguments of LOCK.MRELEASE, and passes on what they ask for.
pub fn parse_many<'a, A: Arguments<'a>, R>(
    mut parser: Parser<A>,
    pass_on: impl FnOnce(&[A::Word], &Request) -> R,
) -> Result<R, ArgError> {
    let keys = parser.keys()?;
    parse(parser, OPTIONS_OF_MANY, |request| pass_on(&keys, request))
}

/// Reads what follows the keys. The request is lent, as in [`super::acquire::parse`].
#[inline(always)]
fn parse<'a, A: Arguments<'a>, R>(
    mut parser: Parser<A>,
    taken: &OptList,
    pass_on: impl FnOnce(&Request) -> R,
) -> Result<R, ArgError> {
    let owner = parser.owner()?;
    let mut options = Options::default();
    parser.read_options(taken, &mut options)?;
    let amount = match (options.all, options.to) {
        (true, _) => Amount::All,
        (false, Some(count)) => Amount::To(count),
        (false, None) => Amount::One,
    };
    let operation = Operation::Release(lock::Release { mode: options.mode, amount, fence: options.fence });
    let request = Request::new(owner, operation);
    Ok(pass_on(&request))
}

fn released(outcome: Result<Outcome, ServeError>) -> Result<PerKey<Option<u64>>, ServeError> {
    match outcome? {
        Outcome::Released(left) => Ok(left),
        _ => unreachable!("a release has no other outcome"),
    }
}
