//! LOCK.BREAK: an operator ends the hold of an owner, or all holds of a lock.

use super::args::{Arguments, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::{CATEGORY, KEY, OWNER};
use crate::module::config;
use crate::module::request::break_holds;
use lock_core::model::owner::Owner;
use server_api::command_info::{KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx};

/// `LOCK.BREAK key [owner]`
#[derive(Debug)]
pub struct LockBreak;

impl Command for LockBreak {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.break",
        flags: c"write",
        acl: Acl { known: "write slow admin dangerous", own: CATEGORY },
        arity: -2,
        keys: KeyArgs::First(KeyUse::Change),
        summary: c"Ends the hold of an owner, or all holds of a lock, whoever holds it; the next in line has it then. \
                   Replies with the number of holds ended.",
        complexity: c"O(N*log(N)) where N is the number of holders of the lock",
        since: c"1.0.0",
        args: &[KEY, OWNER.optional()],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        match parse(Parser::new(args, config::bounds())) {
            Ok((key, owner)) => match break_holds(ctx, key, owner.as_ref()) {
                Ok(broken) => ctx.reply_integer(broken as i64),
                Err(error) => refuse(ctx, error),
            },
            Err(error) => reply_arg_error(ctx, &error),
        }
    }
}

/// Reads the key, and the owner if only its hold is to end.
pub fn parse<'a, A: Arguments<'a>>(mut parser: Parser<A>) -> Result<(A::Word, Option<Owner>), ArgError> {
    let key = parser.need("key")?;
    let owner = if parser.is_done() { None } else { Some(Owner::new(parser.owner()?)) };
    parser.done()?;
    Ok((key, owner))
}
