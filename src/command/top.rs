//! LOCK.TOP: who waits longest, and where most do.

use super::parse::{Arguments, Opt, Parser};
use super::reply::{ArgError, answer_number, reply_arg_error, word};
use super::{COUNT, OPERATOR};
use crate::ffi::command::KeyArgs;
use crate::ffi::{Args, Command, CommandSpec, Ctx};
use crate::lock::manager::operator::ContendedKey;
use crate::lock::manager::wake::Waiting;
use crate::lock::model::hold::Mode;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::owner::Owner;
use crate::lock::model::time::Millis;
use crate::module::waiting::client_of;
use crate::module::{config, read_manager};

/// `LOCK.TOP [COUNT n]`
#[derive(Debug)]
pub struct LockTop;

impl Command for LockTop {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.top",
        flags: c"readonly",
        acl: OPERATOR,
        arity: -1,
        keys: KeyArgs::None,
        summary: c"Shows the requests of this node that have waited longest, and the keys that most wait for.",
        complexity: c"O(N) where N is the number of waiters of the node",
        since: c"0.1.0",
        args: &[COUNT],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let count = match parse(Parser::new(args, config::bounds())) {
            Ok(count) => count,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        let (waits, contended) = read_manager(|manager, now| {
            (manager.longest_waits(count, now).iter().map(row).collect::<Vec<_>>(), manager.most_contended(count, now))
        });
        ctx.reply_map(2);
        ctx.reply_bytes(b"waits");
        ctx.reply_array(waits.len());
        for wait in &waits {
            answer_wait(ctx, wait);
        }
        ctx.reply_bytes(b"keys");
        ctx.reply_array(contended.len());
        for contended in &contended {
            answer_contended(ctx, contended);
        }
    }
}

/// Reads how many are to be shown of each.
///
/// # Errors
/// With what is wrong.
pub fn parse<'a>(parser: Parser<impl Arguments<'a>>) -> Result<usize, ArgError> {
    parser.options(&[Opt::Count]).map(|options| options.count_or_default())
}

struct Row {
    db: Db,
    keys: Vec<KeyName>,
    owner: Owner,
    mode: Mode,
    waited: Millis,
    left: Option<Millis>,
    client: Option<u64>,
}

fn row(waiting: &Waiting<'_>) -> Row {
    Row {
        db: waiting.waiter.db,
        keys: waiting.waiter.keys.iter().map(|key| key.name.clone()).collect(),
        owner: waiting.waiter.owner.clone(),
        mode: waiting.waiter.operation.mode,
        waited: waiting.waited,
        left: waiting.left,
        client: client_of(waiting.id),
    }
}

fn answer_wait(ctx: &mut Ctx<'_>, row: &Row) {
    ctx.reply_map(7);
    ctx.reply_bytes(b"waited_ms");
    ctx.reply_integer(row.waited.0 as i64);
    ctx.reply_bytes(b"left_ms");
    answer_number(ctx, row.left.map(|left| left.0));
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(row.owner.as_bytes());
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(word(row.mode));
    ctx.reply_bytes(b"db");
    ctx.reply_integer(row.db.0.into());
    ctx.reply_bytes(b"keys");
    ctx.reply_array(row.keys.len());
    for key in &row.keys {
        ctx.reply_bytes(key);
    }
    ctx.reply_bytes(b"client");
    answer_number(ctx, row.client);
}

fn answer_contended(ctx: &mut Ctx<'_>, contended: &ContendedKey) {
    ctx.reply_map(4);
    ctx.reply_bytes(b"db");
    ctx.reply_integer(contended.db.0.into());
    ctx.reply_bytes(b"key");
    ctx.reply_bytes(&contended.name);
    ctx.reply_bytes(b"waiting");
    ctx.reply_integer(contended.waiting as i64);
    ctx.reply_bytes(b"waited_ms");
    ctx.reply_integer(contended.waited.0 as i64);
}
