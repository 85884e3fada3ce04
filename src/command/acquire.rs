//! LOCK.ACQUIRE and LOCK.RW: taking a lock.

use super::parse::{Asker, Known, Parser};
use super::reply::{Complaint, complain, refuse, text_of_away, text_of_deadlock};
use super::{CATEGORY, KEY, LEASE, MODE, OWNER};
use crate::ffi::command::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use crate::ffi::{Acl, Args, Command, CommandSpec, Ctx, Str};
use crate::lock::fence::Fence;
use crate::lock::hold::Mode;
use crate::lock::owner::Owner;
use crate::lock::request::{self as lock, Answer, Ask, Outcome, Refusal, Request, Wait};
use crate::module::waiting::Reply;
use crate::module::{Unserved, config, serve};

/// `LOCK.ACQUIRE key owner [PX ms | EX s] [BLOCK ms] [RETRY n] [NOTE text]`
#[derive(Debug)]
pub struct Acquire;

/// `LOCK.RW key owner READ|WRITE [PX ms | EX s] [BLOCK ms] [RETRY n] [NOTE text]`
#[derive(Debug)]
pub struct ReadWrite;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.acquire",
        flags: c"write deny-oom blocking fast",
        acl: Acl { known: "write blocking fast", own: CATEGORY },
        arity: -3,
        keys: KeyArgs::First(KeyUse::Create),
        summary:
            c"Takes a lock for one owner alone, or waits for it. Replies with the fence, or null when others hold it.",
        complexity: c"O(log(N)) where N is the number of holders and waiters of the lock; \
                      to begin to wait also O(M) where M is the number of owners who wait for locks of each other",
        since: c"0.1.0",
        args: &[KEY, OWNER, ArgSpec::new(c"lease", LEASE).optional(), BLOCK, RETRY, NOTE],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, |_| Ok(Mode::Write));
    }
}

impl Command for ReadWrite {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.rw",
        arity: -4,
        summary: c"Takes a lock for reading, together with other readers, or for writing, alone, or waits for it. \
                   Replies with the fence, or null when others hold it.",
        args: &[KEY, OWNER, ArgSpec::new(c"mode", MODE), ArgSpec::new(c"lease", LEASE).optional(), BLOCK, RETRY, NOTE],
        ..Acquire::SPEC
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        acquire(ctx, args, |parser| parser.mode());
    }
}

const BLOCK: ArgSpec = ArgSpec::option(c"BLOCK", c"milliseconds", ArgKind::Integer);
const RETRY: ArgSpec = ArgSpec::option(c"RETRY", c"count", ArgKind::Integer);
const NOTE: ArgSpec = ArgSpec::option(c"NOTE", c"note", ArgKind::String);

type ReadMode = fn(&mut Parser<'_>) -> Result<Mode, Complaint>;

fn acquire(ctx: &mut Ctx<'_>, args: Args<'_>, mode: ReadMode) {
    let (key, request, made) = match parse(args, mode, ctx.can_block()) {
        Ok(parsed) => parsed,
        Err(complaint) => return complain(ctx, &complaint),
    };
    let made = made.then(|| request.owner.clone());
    let reply = Reply { made: made.clone(), write: answer_waiter };
    match serve(ctx, &[key], &request, Some(reply)) {
        Ok(Outcome::Granted(fences)) => answer(ctx, fences[0], made.as_ref()),
        // It is answered when its wait is over.
        Ok(Outcome::Queued(_)) => {}
        Ok(_) => ctx.reply_null(),
        Err(Unserved::Refused(Refusal::Deadlock(cycle))) => {
            let text = text_of_deadlock(&cycle, |key| ctx.may_read(key));
            ctx.reply_error(&text);
        }
        Err(unserved) => refuse(ctx, unserved),
    }
}

/// Answers one that waited.
fn answer_waiter(ctx: &mut Ctx<'_>, answered: &Answer, made: Option<&Owner>) {
    match answered {
        Answer::Granted(fences) => answer(ctx, fences[0], made),
        Answer::TimedOut | Answer::Replaced | Answer::HoldLost => ctx.reply_null(),
        Answer::WrongType => refuse(ctx, Unserved::WrongType),
        Answer::SentAway(away) => ctx.reply_error(text_of_away(*away)),
        Answer::Refused(Refusal::Deadlock(cycle)) => {
            // Who may see what is not known here: only the key that was asked for is shown.
            let asked = cycle.0.first().map(|(_, key)| key);
            let text = text_of_deadlock(cycle, |key| asked.is_some_and(|asked| **asked == *key));
            ctx.reply_error(&text);
        }
        Answer::Refused(refusal) => refuse(ctx, Unserved::Refused(refusal.clone())),
    }
}

/// The key, the request, and whether the owner is of our making.
fn parse(args: Args<'_>, mode: ReadMode, can_wait: bool) -> Result<(Str<'_>, Request, bool), Complaint> {
    let limits = config::limits();
    let mut parser = Parser::new(args, limits);
    let key = parser.need("key")?;
    let asker = parser.asker()?;
    let mode = mode(&mut parser)?;
    let options = parser.options(&[Known::Px, Known::Ex, Known::Block, Known::Retry, Known::Note])?;
    let (owner, made) = match asker {
        Asker::Named(owner) => (owner, false),
        Asker::Made if options.retry.is_some() => return Err(Complaint::RetryMade),
        Asker::Made => (make_owner(), true),
    };
    let lease = options.lease.unwrap_or(limits.lease_default);
    // Who cannot wait tries once.
    let wait = options.wait.filter(|_| can_wait).unwrap_or(Wait::Never);
    let ask = Ask::Acquire(lock::Acquire { mode, lease, note: options.note, wait, retry: options.retry });
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
