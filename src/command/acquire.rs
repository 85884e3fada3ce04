//! LOCK.ACQUIRE and LOCK.RW: taking a lock.

use super::parse::{Asker, Known, Parser};
use super::reply::{Complaint, complain, refuse};
use super::{KEY, LEASE, MODE, OWNER, WRITE};
use crate::ffi::command::{ArgKind, ArgSpec, KeyUse};
use crate::ffi::{Args, Command, CommandSpec, Ctx, Str};
use crate::lock::fence::Fence;
use crate::lock::hold::Mode;
use crate::lock::owner::Owner;
use crate::lock::request::{self as lock, Ask, Outcome, Request};
use crate::module::{config, serve};

/// `LOCK.ACQUIRE key owner [PX ms | EX s] [NOTE text]`
#[derive(Debug)]
pub struct Acquire;

/// `LOCK.RW key owner READ|WRITE [PX ms | EX s] [NOTE text]`
#[derive(Debug)]
pub struct ReadWrite;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.acquire",
        flags: c"write deny-oom fast",
        acl: WRITE,
        arity: -3,
        key: KeyUse::Create,
        summary: c"Takes a lock for one owner alone. Replies with the fence, or null when others hold it.",
        complexity: c"O(log(N)) where N is the number of holders of the lock",
        since: c"0.1.0",
        args: &[KEY, OWNER, ArgSpec::new(c"lease", LEASE).optional(), NOTE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, |_| Ok(Mode::Write));
    }
}

impl Command for ReadWrite {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.rw",
        arity: -4,
        summary: c"Takes a lock for reading, together with other readers, or for writing, alone. \
                   Replies with the fence, or null when others hold it.",
        args: &[KEY, OWNER, ArgSpec::new(c"mode", MODE), ArgSpec::new(c"lease", LEASE).optional(), NOTE],
        ..Acquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, |parser| parser.mode());
    }
}

const NOTE: ArgSpec = ArgSpec::option(c"NOTE", c"note", ArgKind::String);

type ReadMode = fn(&mut Parser<'_>) -> Result<Mode, Complaint>;

fn acquire(ctx: &mut Ctx<'_>, args: Args<'_>, mode: ReadMode) {
    let (key, request, made) = match parse(args, mode) {
        Ok(parsed) => parsed,
        Err(complaint) => return complain(ctx, &complaint),
    };
    match serve(ctx, &[key], &request) {
        Ok(Outcome::Granted(fences)) => answer(ctx, fences[0], made.then_some(&request.owner)),
        Ok(_) => ctx.reply_null(),
        Err(unserved) => refuse(ctx, unserved),
    }
}

/// The key, the request, and whether the owner is of our making.
fn parse(args: Args<'_>, mode: ReadMode) -> Result<(Str<'_>, Request, bool), Complaint> {
    let limits = config::limits();
    let mut parser = Parser::new(args, limits);
    let key = parser.need("key")?;
    let asker = parser.asker()?;
    let mode = mode(&mut parser)?;
    let options = parser.options(&[Known::Px, Known::Ex, Known::Note])?;
    let (owner, made) = match asker {
        Asker::Named(owner) => (owner, false),
        Asker::Made => (make_owner(), true),
    };
    let lease = options.lease.unwrap_or(limits.lease_default);
    let ask = Ask::Acquire(lock::Acquire { mode, lease, note: options.note });
    Ok((key, Request { owner, ask }, made))
}

/// 128 random bits in 32 hexadecimal digits.
fn make_owner() -> Owner {
    Owner::new(format!("{:032x}", rand::random::<u128>()).as_bytes())
}

fn answer(ctx: &mut Ctx<'_>, fence: Fence, made: Option<&Owner>) {
    if let Some(owner) = made {
        ctx.reply_array(2);
        ctx.reply_bytes(owner.as_bytes());
    }
    ctx.reply_integer(fence.get() as i64);
}
