//! LOCK.GUARD: runs a command if an owner holds a lock for writing, and only then.

use super::args::{Arguments, Parser};
use super::error::{ArgError, Instead, NO_REPLY, refuse, reply_arg_error};
use super::reply::ToReply;
use super::{CATEGORY, KEY, OWNER};
use crate::module::config;
use crate::module::guarded::guard;
use lock_core::model::fence::Fence;
use lock_core::model::request::{self as lock, Operation, Request};
use server_api::call::{CallError, CallReply};
use server_api::command_info::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx};

/// `LOCK.GUARD key owner fence command [arg ...]`
#[derive(Debug)]
pub struct LockGuard;

/// Where the command begins.
const COMMAND_AT: usize = 4;

impl Command for LockGuard {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.guard",
        // A write, whatever the command is: so that the server postpones it while writes are paused. Not deny-oom: the
        // command's own flag counts.
        flags: c"write",
        acl: Acl { known: "write slow", own: CATEGORY },
        arity: -5,
        keys: KeyArgs::AndOfCommand(KeyUse::Change, COMMAND_AT),
        summary: c"Runs a command if an owner holds a lock for writing, under this fence. \
                   Replies with the fence and the command's reply, or null when it does not hold it.",
        complexity: c"O(log(N)) where N is the number of holders of the lock, and what the command costs",
        since: c"1.0.0",
        args: &[
            KEY,
            OWNER,
            ArgSpec::new(c"fence", ArgKind::Integer),
            ArgSpec::new(c"command", ArgKind::String),
            ArgSpec::new(c"arg", ArgKind::String).optional().multiple(),
        ],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let (key, request) = match parse(Parser::new(args, config::bounds())) {
            Ok(parsed) => parsed,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        match guard(ctx, key, &request, args.after(COMMAND_AT)) {
            Ok(None) => ctx.reply_null(),
            Ok(Some((fence, Ok(reply)))) => reply_guarded(ctx, fence, &reply),
            Ok(Some((_, Err(CallError::Silent)))) => ctx.reply_error(NO_REPLY),
            Ok(Some((_, Err(CallError::Denied(text))))) => ctx.reply_error(&text),
            Ok(Some((_, Err(CallError::NotForScripts)))) => reply_arg_error(ctx, &not_guarded(command_of(args))),
            Ok(Some((_, Err(CallError::MayBlock)))) => {
                let error = ArgError::NotGuarded { command: command_of(args).to_vec(), instead: Instead::Transaction };
                reply_arg_error(ctx, &error);
            }
            Err(error) => refuse(ctx, error),
        }
    }
}

fn command_of(args: Args<'_>) -> &[u8] {
    args.get(COMMAND_AT).map_or(&b""[..], |name| name.as_bytes())
}

/// An error of the command is the whole reply, so that clients see it as one.
fn reply_guarded(ctx: &mut Ctx<'_>, fence: Fence, reply: &CallReply) {
    if !reply.is_error() {
        ctx.reply_array(2);
        fence.reply(ctx);
    }
    ctx.reply_call(reply);
}

/// Commands that mean nothing here. The server lets scripts run them, so that it does not refuse them by itself.
const MEANINGLESS: [&[u8]; 4] = [b"LOCK.GUARD", b"WAIT", b"WAITAOF", b"SELECT"];

/// Reads the arguments up to the name of the command.
pub fn parse<'a, A: Arguments<'a>>(mut parser: Parser<A>) -> Result<(A::Word, Request), ArgError> {
    let key = parser.need("key")?;
    let owner = parser.owner()?;
    let fence = Fence::new(parser.number("fence", 1, Fence::MAX.get())?).expect("it is above 0");
    let command = parser.need_bytes("command")?;
    if MEANINGLESS.iter().any(|name| name.eq_ignore_ascii_case(command)) {
        return Err(not_guarded(command));
    }
    Ok((key, Request::new(owner, Operation::Guard(lock::Guard { fence }))))
}

/// Commands that run a script, in which LOCK.CHECK does what LOCK.GUARD does here.
const SCRIPTS: [&[u8]; 6] = [b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO", b"FCALL", b"FCALL_RO"];

fn not_guarded(command: &[u8]) -> ArgError {
    let is_script = SCRIPTS.iter().any(|name| name.eq_ignore_ascii_case(command));
    let instead = if is_script { Instead::CheckInScript } else { Instead::Nothing };
    ArgError::NotGuarded { command: command.to_vec(), instead }
}
