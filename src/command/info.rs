//! LOCK.INFO: shows the holders and the waiters of one lock.

use super::args::{Arguments, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::options::{OptList, Options};
use super::reply::{Bytes, ToReply, reply_map};
use super::{CATEGORY, COUNT, KEY};
use crate::module::blocked_clients::client_of;
use crate::module::config;
use crate::module::view::{KeyView, view};
use lock_core::manager::view::{Holder, View, Waiting};
use lock_core::model::fence::Fence;
use lock_core::model::hold::{Mode, Session};
use lock_core::model::owner::Owner;
use lock_core::model::request::Share;
use lock_core::model::time::Millis;
use server_api::command_info::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx};

/// `LOCK.INFO key [OWNER o] [COUNT n]`
#[derive(Debug)]
pub struct LockInfo;

impl Command for LockInfo {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.info",
        // Not fast: it shows as many holders as it is asked to.
        flags: c"readonly",
        acl: Acl { known: "read slow", own: CATEGORY },
        arity: -2,
        keys: KeyArgs::First(KeyUse::Read),
        summary: c"Shows who holds a lock and who waits for it, in which mode and for how long still. \
                   Replies with null when nobody does.",
        complexity: c"O(N) where N is the number of holders and waiters shown",
        since: c"1.0.0",
        args: &[KEY, ArgSpec::option(c"OWNER", c"owner", ArgKind::String), COUNT],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let Wanted { key, owner, count } = match parse(Parser::new(args, config::bounds())) {
            Ok(parsed) => parsed,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        match view(ctx, key, |seen| show(&seen, owner, count)) {
            Ok(shown) => shown.reply(ctx),
            Err(error) => refuse(ctx, error),
        }
    }
}

/// The arguments.
#[derive(Debug)]
pub struct Wanted<'a, W> {
    /// Of this lock.
    pub key: W,
    /// The hold of this owner alone; None shows all.
    pub owner: Option<&'a [u8]>,
    /// So many holders at most, and so many waiters.
    pub count: usize,
}

/// Reads the arguments of LOCK.INFO.
pub fn parse<'a, A: Arguments<'a>>(mut parser: Parser<A>) -> Result<Wanted<'a, A::Word>, ArgError> {
    let key = parser.need("key")?;
    let mut options = Options::default();
    parser.read_options(const { &OptList::among(LockInfo::SPEC.args, 1) }, &mut options)?;
    Ok(Wanted { key, owner: options.owner, count: options.count_bounded() })
}

/// The reply's content. A copy: the key is closed before the reply is written.
struct Shown {
    mode: Option<Mode>,
    fence: Option<Fence>,
    shares: u64,
    holding: usize,
    holders: Vec<HolderRow>,
    waiting: usize,
    waiters: Vec<WaiterRow>,
    reserved_by: Option<Owner>,
}

struct WaiterRow {
    owner: Owner,
    mode: Mode,
    share: Option<Share>,
    waited: Millis,
    left: Option<Millis>,
    queue_left: Option<Millis>,
    keys: usize,
    client: Option<u64>,
}

struct HolderRow {
    owner: Vec<u8>,
    note: Option<Vec<u8>>,
    mode: Mode,
    reads: u64,
    writes: u64,
    fence: Fence,
    left: Millis,
    held: Millis,
    offered: bool,
    session: Option<Session>,
}

/// None if the lock has no holder and no waiter; with OWNER, if that owner holds nothing.
fn show(seen: &KeyView<'_>, owner: Option<&[u8]>, count: usize) -> Option<Shown> {
    let view = &seen.lock;
    let waiting = seen.manager.queue_len(seen.db, seen.name, seen.now);
    if view.is_none() && waiting == 0 {
        return None;
    }
    let holders = match (owner, view) {
        (Some(owner), view) => vec![holder_row(&view.as_ref()?.holder(owner)?)],
        (None, Some(view)) => view.holders().take(count).map(|holder| holder_row(&holder)).collect(),
        (None, None) => Vec::new(),
    };
    let waiters = seen.manager.queue(seen.db, seen.name, seen.now).take(count);
    Some(Shown {
        mode: view.as_ref().and_then(View::mode),
        fence: view.as_ref().and_then(View::fence),
        shares: view.as_ref().map_or(0, View::shares),
        holding: view.as_ref().map_or(0, View::holding),
        holders,
        waiting,
        waiters: waiters.map(|waiting| waiter_row(&waiting)).collect(),
        reserved_by: seen.manager.reserved_by(seen.db, seen.name, seen.now).cloned(),
    })
}

fn waiter_row(waiting: &Waiting<'_>) -> WaiterRow {
    WaiterRow {
        owner: waiting.waiter.owner.clone(),
        mode: waiting.waiter.operation.mode,
        share: waiting.waiter.operation.share,
        waited: waiting.waited,
        left: waiting.left,
        queue_left: waiting.queue_left,
        keys: waiting.waiter.keys.len(),
        client: client_of(waiting.id),
    }
}

fn holder_row(holder: &Holder<'_>) -> HolderRow {
    HolderRow {
        owner: holder.owner.to_vec(),
        note: holder.note.map(<[u8]>::to_vec),
        mode: holder.mode,
        reads: holder.reads.into(),
        writes: holder.writes.into(),
        fence: holder.fence,
        left: holder.left,
        held: holder.held,
        offered: holder.offered,
        session: holder.session,
    }
}

/// Of how many shares some are asked for.
pub(super) fn limit_of(share: Share) -> u64 {
    u64::from(share.limit.get())
}

/// How many shares are asked for.
pub(super) fn take_of(share: Share) -> u64 {
    u64::from(share.take.get())
}

impl ToReply for Shown {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        reply_map(
            ctx,
            &[
                ("mode", &self.mode),
                ("fence", &self.fence),
                ("shares", &self.shares),
                ("holding", &self.holding),
                ("holders", &self.holders),
                ("waiting", &self.waiting),
                ("waiters", &self.waiters),
                ("reserved_by", &self.reserved_by),
            ],
        );
    }
}

impl ToReply for HolderRow {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        reply_map(
            ctx,
            &[
                ("owner", &Bytes(&self.owner)),
                ("mode", &self.mode),
                ("reads", &self.reads),
                ("writes", &self.writes),
                ("fence", &self.fence),
                ("ttl_ms", &self.left),
                ("held_ms", &self.held),
                ("offered", &usize::from(self.offered)),
                ("session", &self.session.map(|session| session.grace)),
                ("client", &self.session.map(|session| session.connection.client())),
                ("note", &self.note.as_deref().map(Bytes)),
            ],
        );
    }
}

impl ToReply for WaiterRow {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        reply_map(
            ctx,
            &[
                ("owner", &self.owner),
                ("mode", &self.mode),
                ("limit", &self.share.map(limit_of)),
                ("take", &self.share.map(take_of)),
                ("waited_ms", &self.waited),
                ("left_ms", &self.left),
                ("queue_left_ms", &self.queue_left),
                ("keys", &self.keys),
                ("client", &self.client),
            ],
        );
    }
}
