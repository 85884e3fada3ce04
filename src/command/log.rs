//! LOCK.LOG: shows or forgets the holds that their owners lost last.

use super::args::{Arguments, Parser};
use super::error::{ArgError, reply_arg_error};
use super::options::{OptList, Options};
use super::reply::{Bytes, ToReply, reply_map};
use super::{CATEGORY, COUNT};
use crate::module::config;
use crate::module::lost_holds::{Head, LostHold, Reason};
use crate::module::shell::shell;
use server_api::command_info::{ArgKind, ArgSpec, KeyArgs};
use server_api::{Acl, Args, Command, CommandSpec, Ctx};

/// `LOCK.LOG [COUNT n | RESET]`
#[derive(Debug)]
pub struct LockLog;

impl Command for LockLog {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.log",
        // As SLOWLOG: it reads and writes no key, but a list of this node's own.
        flags: c"admin allow-loading allow-stale",
        acl: Acl { known: "slow admin dangerous", own: CATEGORY },
        arity: -1,
        keys: KeyArgs::None,
        summary:
            c"Shows the holds that their owners lost last, by a lapse, a break or a closed session, the latest first; \
                   or forgets them.",
        complexity: c"O(N) where N is the number of holds shown",
        since: c"1.0.0",
        args: &[ArgSpec::new(c"action", ACTION).optional()],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        match parse(Parser::new(args, config::bounds())) {
            Ok(None) => {
                shell().lost_holds.reset();
                ctx.reply_ok();
            }
            Ok(Some(count)) => shell().lost_holds.last(count).reply(ctx),
            Err(error) => reply_arg_error(ctx, &error),
        }
    }
}

const ACTION: ArgKind = ArgKind::OneOf(&[ArgSpec { optional: false, ..COUNT }, ArgSpec::token(c"RESET", c"reset")]);

/// Reads how many holds are to be shown at most; None forgets them all.
pub fn parse<'a>(mut parser: Parser<impl Arguments<'a>>) -> Result<Option<usize>, ArgError> {
    let mut options = Options::default();
    parser.read_options(const { &OptList::among(LockLog::SPEC.args, 0) }, &mut options)?;
    Ok((!options.reset).then(|| options.count_or_default()))
}

impl ToReply for LostHold {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        let note = self.note.as_ref().map(Head::shown);
        reply_map(
            ctx,
            &[
                ("id", &self.id),
                ("time_ms", &self.at_ms),
                ("reason", &Bytes(word_of(self.reason))),
                ("db", &self.db),
                ("key", &Bytes(&self.key.shown())),
                ("owner", &Bytes(&self.owner.shown())),
                ("mode", &self.mode),
                ("fence", &self.fence),
                ("held_ms", &self.held),
                ("note", &note.as_deref().map(Bytes)),
            ],
        );
    }
}

fn word_of(reason: Reason) -> &'static [u8] {
    match reason {
        Reason::Lapse => b"lapse",
        Reason::Break => b"break",
        Reason::Session => b"session",
    }
}
