//! LOCK.TOP: shows the waiters of this node that have waited longest, and its most contended keys.

use super::args::{Arguments, Parser};
use super::error::{ArgError, reply_arg_error};
use super::info::{limit_of, take_of};
use super::options::{OptList, Options};
use super::reply::{ToReply, reply_map};
use super::{COUNT, OPERATOR};
use crate::module::blocked_clients::client_of;
use crate::module::config;
use crate::module::view::read_manager;
use lock_core::manager::view::{ContendedKey, Waiting};
use lock_core::model::hold::Mode;
use lock_core::model::key::{Db, KeyName};
use lock_core::model::owner::Owner;
use lock_core::model::request::Share;
use lock_core::model::time::Millis;
use server_api::command_info::KeyArgs;
use server_api::{Args, Command, CommandSpec, Ctx};

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
        since: c"1.0.0",
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
        reply_map(ctx, &[("waits", &waits), ("keys", &contended)]);
    }
}

/// Reads how many waiters and keys are to be shown at most.
pub fn parse<'a>(mut parser: Parser<impl Arguments<'a>>) -> Result<usize, ArgError> {
    let mut options = Options::default();
    parser.read_options(const { &OptList::among(LockTop::SPEC.args, 0) }, &mut options)?;
    Ok(options.count_bounded())
}

struct Row {
    db: Db,
    keys: Vec<KeyName>,
    owner: Owner,
    mode: Mode,
    share: Option<Share>,
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
        share: waiting.waiter.operation.share,
        waited: waiting.waited,
        left: waiting.left,
        client: client_of(waiting.id),
    }
}

impl ToReply for Row {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        reply_map(
            ctx,
            &[
                ("waited_ms", &self.waited),
                ("left_ms", &self.left),
                ("owner", &self.owner),
                ("mode", &self.mode),
                ("limit", &self.share.map(limit_of)),
                ("take", &self.share.map(take_of)),
                ("db", &self.db),
                ("keys", &self.keys),
                ("client", &self.client),
            ],
        );
    }
}

impl ToReply for ContendedKey {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        reply_map(
            ctx,
            &[("db", &self.db), ("key", &self.name), ("waiting", &self.waiting), ("waited_ms", &self.waited)],
        );
    }
}
