//! LOCK.INFO: who holds a lock.

use super::parse::{Arguments, Opt, Parser};
use super::reply::{ArgError, answer_number, refuse, reply_arg_error, word};
use super::{CATEGORY, COUNT, KEY};
use crate::ffi::command::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use crate::ffi::{Acl, Args, Command, CommandSpec, Ctx};
use crate::lock::manager::view::{Holder, View};
use crate::lock::manager::wake::Waiting;
use crate::lock::model::fence::Fence;
use crate::lock::model::hold::{Mode, Session};
use crate::lock::model::owner::Owner;
use crate::lock::model::time::Millis;
use crate::module::waiting::client_of;
use crate::module::{KeyView, config, view};

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
        since: c"0.1.0",
        args: &[KEY, ArgSpec::option(c"OWNER", c"owner", ArgKind::String), COUNT],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let Wanted { key, owner, count } = match parse(Parser::new(args, config::bounds())) {
            Ok(parsed) => parsed,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        match view(ctx, key, |seen| show(&seen, owner, count)) {
            Ok(Some(shown)) => answer(ctx, &shown),
            Ok(None) => ctx.reply_null(),
            Err(error) => refuse(ctx, error),
        }
    }
}

/// What is to be shown.
#[derive(Debug)]
pub struct Wanted<'a, W> {
    /// The key.
    pub key: W,
    /// The only owner whose hold is shown; None shows all.
    pub owner: Option<&'a [u8]>,
    /// How many holders and waiters at most.
    pub count: usize,
}

/// Reads what is to be shown.
///
/// # Errors
/// With what is wrong.
pub fn parse<'a, A: Arguments<'a>>(mut parser: Parser<A>) -> Result<Wanted<'a, A::Word>, ArgError> {
    let key = parser.need("key")?;
    let options = parser.options(&[Opt::Owner, Opt::Count])?;
    Ok(Wanted { key, owner: options.owner, count: options.count_or_default() })
}

/// What is shown, apart from the lock, which is closed before the reply.
struct Shown {
    mode: Option<Mode>,
    fence: Option<Fence>,
    holding: usize,
    holders: Vec<Row>,
    waiting: usize,
    waiters: Vec<WaiterRow>,
    reserved_by: Option<Owner>,
}

struct WaiterRow {
    owner: Owner,
    mode: Mode,
    waited: Millis,
    left: Option<Millis>,
    keys: usize,
    client: Option<u64>,
}

struct Row {
    owner: Vec<u8>,
    note: Option<Vec<u8>>,
    mode: Mode,
    numbers: [(&'static str, u64); 5],
    session: Option<Session>,
}

/// None when nobody holds or waits. With OWNER when that one holds nothing: null means that one does not hold it.
fn show(seen: &KeyView<'_>, owner: Option<&[u8]>, count: usize) -> Option<Shown> {
    let view = &seen.lock;
    let waiting = seen.manager.queue_len(seen.db, seen.name);
    if view.is_none() && waiting == 0 {
        return None;
    }
    let holders = match (owner, view) {
        (Some(owner), view) => vec![row(&view.as_ref()?.holder(owner)?)],
        (None, Some(view)) => view.holders().take(count).map(|holder| row(&holder)).collect(),
        (None, None) => Vec::new(),
    };
    let waiters = seen.manager.queue(seen.db, seen.name, seen.now).take(count);
    Some(Shown {
        mode: view.as_ref().and_then(View::mode),
        fence: view.as_ref().and_then(View::fence),
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
        waited: waiting.waited,
        left: waiting.left,
        keys: waiting.waiter.keys.len(),
        client: client_of(waiting.id),
    }
}

fn row(holder: &Holder<'_>) -> Row {
    Row {
        owner: holder.owner.to_vec(),
        note: holder.note.map(<[u8]>::to_vec),
        mode: holder.mode,
        numbers: [
            ("reads", holder.reads.into()),
            ("writes", holder.writes.into()),
            ("fence", holder.fence.get()),
            ("ttl_ms", holder.left.0),
            ("held_ms", holder.held.0),
        ],
        session: holder.session,
    }
}

fn answer(ctx: &mut Ctx<'_>, shown: &Shown) {
    ctx.reply_map(7);
    ctx.reply_bytes(b"mode");
    match shown.mode {
        Some(mode) => ctx.reply_bytes(word(mode)),
        None => ctx.reply_null(),
    }
    ctx.reply_bytes(b"fence");
    answer_number(ctx, shown.fence.map(Fence::get));
    ctx.reply_bytes(b"holding");
    ctx.reply_integer(shown.holding as i64);
    ctx.reply_bytes(b"holders");
    ctx.reply_array(shown.holders.len());
    for row in &shown.holders {
        answer_row(ctx, row);
    }
    ctx.reply_bytes(b"waiting");
    ctx.reply_integer(shown.waiting as i64);
    ctx.reply_bytes(b"waiters");
    ctx.reply_array(shown.waiters.len());
    for row in &shown.waiters {
        answer_waiter(ctx, row);
    }
    ctx.reply_bytes(b"reserved_by");
    match &shown.reserved_by {
        Some(owner) => ctx.reply_bytes(owner.as_bytes()),
        None => ctx.reply_null(),
    }
}

fn answer_waiter(ctx: &mut Ctx<'_>, row: &WaiterRow) {
    ctx.reply_map(6);
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(row.owner.as_bytes());
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(word(row.mode));
    ctx.reply_bytes(b"waited_ms");
    ctx.reply_integer(row.waited.0 as i64);
    ctx.reply_bytes(b"left_ms");
    answer_number(ctx, row.left.map(|left| left.0));
    ctx.reply_bytes(b"keys");
    ctx.reply_integer(row.keys as i64);
    ctx.reply_bytes(b"client");
    answer_number(ctx, row.client);
}

fn answer_row(ctx: &mut Ctx<'_>, row: &Row) {
    ctx.reply_map(5 + row.numbers.len());
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(&row.owner);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(word(row.mode));
    for (name, value) in row.numbers {
        ctx.reply_bytes(name.as_bytes());
        ctx.reply_integer(value as i64);
    }
    ctx.reply_bytes(b"session");
    answer_number(ctx, row.session.map(|session| session.grace.0));
    ctx.reply_bytes(b"client");
    answer_number(ctx, row.session.map(|session| session.connection.client()));
    ctx.reply_bytes(b"note");
    match &row.note {
        Some(note) => ctx.reply_bytes(note),
        None => ctx.reply_null(),
    }
}
