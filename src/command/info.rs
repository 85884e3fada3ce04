//! LOCK.INFO: who holds a lock.

use super::parse::{Known, Parser};
use super::reply::{Complaint, complain, refuse};
use super::{CATEGORY, KEY};
use crate::ffi::command::{ArgKind, ArgSpec, KeyUse};
use crate::ffi::{Acl, Args, Command, CommandSpec, Ctx, Str};
use crate::lock::fence::Fence;
use crate::lock::hold::Mode;
use crate::lock::value::{Holder, View};
use crate::module::{config, view};

/// `LOCK.INFO key [OWNER o] [COUNT n]`
#[derive(Debug)]
pub struct Info;

impl Command for Info {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.info",
        // Not fast: it shows as many holders as it is asked to.
        flags: c"readonly",
        acl: Acl { known: "read slow", own: CATEGORY },
        arity: -2,
        key: KeyUse::Read,
        summary: c"Shows who holds a lock, in which mode and for how long still. Replies with null when nobody does.",
        complexity: c"O(N) where N is the number of holders shown",
        since: c"0.1.0",
        args: &[
            KEY,
            ArgSpec::option(c"OWNER", c"owner", ArgKind::String),
            ArgSpec::option(c"COUNT", c"count", ArgKind::Integer),
        ],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let (key, owner, count) = match parse(args) {
            Ok(parsed) => parsed,
            Err(complaint) => return complain(ctx, &complaint),
        };
        let shown = view(ctx, key, |lock, now| View::of(lock, now.mono).and_then(|lock| show(&lock, owner, count)));
        match shown {
            Ok(Some(Some(shown))) => answer(ctx, &shown),
            Ok(_) => ctx.reply_null(),
            Err(unserved) => refuse(ctx, unserved),
        }
    }
}

/// How many holders are shown when COUNT is not given.
const COUNT_DEFAULT: u64 = 10;

fn parse(args: Args<'_>) -> Result<(Str<'_>, Option<&[u8]>, usize), Complaint> {
    let mut parser = Parser::new(args, config::limits());
    let key = parser.need("key")?;
    let options = parser.options(&[Known::Owner, Known::Count])?;
    Ok((key, options.owner, options.count.unwrap_or(COUNT_DEFAULT) as usize))
}

/// What is shown, apart from the lock, which is closed before the reply.
struct Shown {
    mode: Mode,
    fence: Fence,
    holding: usize,
    holders: Vec<Row>,
}

struct Row {
    owner: Vec<u8>,
    note: Option<Vec<u8>>,
    mode: Mode,
    numbers: [(&'static str, u64); 5],
}

/// None when OWNER is named and holds nothing: null means that one does not hold it.
fn show(view: &View<'_>, owner: Option<&[u8]>, count: usize) -> Option<Shown> {
    let holders = match owner {
        Some(owner) => vec![row(&view.holder(owner)?)],
        None => view.holders().take(count).map(|holder| row(&holder)).collect(),
    };
    Some(Shown { mode: view.mode()?, fence: view.fence()?, holding: view.holding(), holders })
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
    }
}

fn answer(ctx: &mut Ctx<'_>, shown: &Shown) {
    ctx.reply_map(4);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(word(shown.mode));
    ctx.reply_bytes(b"fence");
    ctx.reply_integer(shown.fence.get() as i64);
    ctx.reply_bytes(b"holding");
    ctx.reply_integer(shown.holding as i64);
    ctx.reply_bytes(b"holders");
    ctx.reply_array(shown.holders.len());
    for row in &shown.holders {
        answer_row(ctx, row);
    }
}

fn answer_row(ctx: &mut Ctx<'_>, row: &Row) {
    ctx.reply_map(3 + row.numbers.len());
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(&row.owner);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(word(row.mode));
    for (name, value) in row.numbers {
        ctx.reply_bytes(name.as_bytes());
        ctx.reply_integer(value as i64);
    }
    ctx.reply_bytes(b"note");
    match &row.note {
        Some(note) => ctx.reply_bytes(note),
        None => ctx.reply_null(),
    }
}

fn word(mode: Mode) -> &'static [u8] {
    match mode {
        Mode::Read => b"read",
        Mode::Write => b"write",
    }
}
