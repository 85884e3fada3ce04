//! LOCK.LOG: the holds that were lost last.

use super::parse::{Arguments, Opt, Parser};
use super::reply::{ArgError, reply_arg_error, word};
use super::{CATEGORY, COUNT};
use crate::ffi::command::{ArgKind, ArgSpec, KeyArgs};
use crate::ffi::{Acl, Args, Command, CommandSpec, Ctx};
use crate::module::config;
use crate::module::lost_holds::{self, LostHold, Reason};

/// `LOCK.LOG [COUNT n | RESET]`
#[derive(Debug)]
pub struct LockLog;

impl Command for LockLog {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.log",
        // As SLOWLOG: what it shows and forgets is this node's own, no key, so it is neither a read nor a write of
        // data.
        flags: c"admin allow-loading allow-stale",
        acl: Acl { known: "slow admin dangerous", own: CATEGORY },
        arity: -1,
        keys: KeyArgs::None,
        summary:
            c"Shows the holds that their owners lost last, by a lapse, a break or a closed session, the latest first; \
                   or forgets them.",
        complexity: c"O(N) where N is the number of holds shown",
        since: c"0.1.0",
        args: &[ArgSpec::new(c"action", ACTION).optional()],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        match parse(Parser::new(args, config::bounds())) {
            Ok(None) => {
                lost_holds::reset();
                ctx.reply_ok();
            }
            Ok(Some(count)) => {
                let rows = lost_holds::last(count);
                ctx.reply_array(rows.len());
                for row in &rows {
                    answer(ctx, row);
                }
            }
            Err(error) => reply_arg_error(ctx, &error),
        }
    }
}

const ACTION: ArgKind = ArgKind::OneOf(&[ArgSpec { optional: false, ..COUNT }, ArgSpec::token(c"RESET", c"reset")]);

/// Reads how many are to be shown; None: they are to be forgotten.
///
/// # Errors
/// With what is wrong.
pub fn parse<'a>(parser: Parser<impl Arguments<'a>>) -> Result<Option<usize>, ArgError> {
    let options = parser.options(&[Opt::Count, Opt::Reset])?;
    Ok((!options.reset).then(|| options.count_or_default()))
}

fn answer(ctx: &mut Ctx<'_>, row: &LostHold) {
    ctx.reply_map(10);
    ctx.reply_bytes(b"id");
    ctx.reply_integer(row.id as i64);
    ctx.reply_bytes(b"time_ms");
    ctx.reply_integer(row.at_ms as i64);
    ctx.reply_bytes(b"reason");
    ctx.reply_bytes(match row.reason {
        Reason::Lapse => b"lapse",
        Reason::Break => b"break",
        Reason::Session => b"session",
    });
    ctx.reply_bytes(b"db");
    ctx.reply_integer(row.db.0.into());
    ctx.reply_bytes(b"key");
    ctx.reply_bytes(&row.key.shown());
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(&row.owner.shown());
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(word(row.mode));
    ctx.reply_bytes(b"fence");
    ctx.reply_integer(row.fence.get() as i64);
    ctx.reply_bytes(b"held_ms");
    ctx.reply_integer(row.held.0 as i64);
    ctx.reply_bytes(b"note");
    match &row.note {
        Some(note) => ctx.reply_bytes(&note.shown()),
        None => ctx.reply_null(),
    }
}
