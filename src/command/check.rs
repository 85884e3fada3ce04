//! LOCK.CHECK: tells whether an owner holds a lock now. It changes nothing.

use super::args::{Arguments, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::options::{OptList, Options};
use super::reply::ToReply;
use super::{CATEGORY, FENCE, KEY, MODE, OWNER};
use crate::module::{config, view};
use lock_core::model::request::Check;
use server_api::command_info::{ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx};

/// `LOCK.CHECK key owner [READ|WRITE] [FENCE f]`
#[derive(Debug)]
pub struct LockCheck;

impl Command for LockCheck {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.check",
        flags: c"readonly fast",
        acl: Acl { known: "read fast", own: CATEGORY },
        arity: -3,
        keys: KeyArgs::First(KeyUse::Read),
        summary: c"Tells whether an owner holds a lock now. \
                   Replies with the fence, or null when it does not.",
        complexity: c"O(log(N)) where N is the number of holders of the lock",
        since: c"1.0.0",
        args: &[KEY, OWNER, ArgSpec::new(c"mode", MODE).optional(), FENCE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let Wanted { key, owner, check } = match parse(Parser::new(args, config::bounds())) {
            Ok(wanted) => wanted,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        match view::check(ctx, key, owner, check) {
            Ok(fence) => fence.reply(ctx),
            Err(error) => refuse(ctx, error),
        }
    }
}

/// The arguments.
#[derive(Debug)]
pub struct Wanted<'a, W> {
    /// Of this lock.
    pub key: W,
    /// The hold of this owner.
    pub owner: &'a [u8],
    /// The conditions.
    pub check: Check,
}

/// Reads the arguments of LOCK.CHECK.
pub fn parse<'a, A: Arguments<'a>>(mut parser: Parser<A>) -> Result<Wanted<'a, A::Word>, ArgError> {
    let key = parser.need("key")?;
    let owner = parser.owner()?;
    let mut options = Options::default();
    parser.read_options(const { &OptList::among(LockCheck::SPEC.args, 2) }, &mut options)?;
    Ok(Wanted { key, owner, check: Check { mode: options.mode, fence: options.fence } })
}
