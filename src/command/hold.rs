//! LOCK.HOLD: the record that sets or ends one hold, as replicas, the new node of a slot and the AOF get it.
//!
//! A client may send it only with `lock.allow-hold yes`.

use super::args::{Arguments, Parser};
use super::error::{ArgError, refuse, reply_arg_error};
use super::{CATEGORY, KEY, OWNER};
use crate::module::config;
use crate::module::request::{ServeError, apply};
use lock_core::model::fence::Fence;
use lock_core::model::limits::{Bounds, SAVED_BYTES_CEILING};
use lock_core::model::record::{HoldRecord, Origin, Update};
use lock_core::model::state::State;
use lock_core::model::time::{Millis, WallTime};
use server_api::command_info::{ArgKind, ArgSpec, KeyArgs, KeyUse};
use server_api::{Acl, Args, Command, CommandSpec, Ctx, Flags};

/// `LOCK.HOLD key [owner] state [note]`
#[derive(Debug)]
pub struct LockHold;

impl Command for LockHold {
    const SPEC: CommandSpec = CommandSpec {
        name: c"lock.hold",
        // Not deny-oom: a replica must take every record of its primary, and so must a server that loads its AOF.
        flags: c"write fast",
        acl: Acl { known: "write fast admin dangerous", own: CATEGORY },
        arity: -3,
        keys: KeyArgs::First(KeyUse::Create),
        summary: c"Internal: sets one owner's hold to a state, as replicas and the AOF receive it.",
        complexity: c"O(log(N)) where N is the number of holders of the lock; O(N) without an owner",
        since: c"1.0.0",
        args: &[
            KEY,
            OWNER.optional(),
            ArgSpec::new(c"state", ArgKind::String),
            ArgSpec::new(c"note", ArgKind::String).optional(),
        ],
    };

    fn run(ctx: &mut Ctx<'_>, args: Args<'_>) {
        let origin = match origin(ctx.flags()) {
            Ok(origin) => origin,
            Err(error) => return reply_arg_error(ctx, &error),
        };
        if origin == Origin::Client && !ctx.flags().contains(Flags::PRIMARY) {
            return refuse(ctx, ServeError::Replica);
        }
        let bounds = if origin == Origin::Client { config::bounds() } else { UNBOUND };
        match parse(Parser::new(args, bounds)) {
            Ok((key, update)) => match apply(ctx, key, &update, origin) {
                Ok(()) => ctx.reply_integer(1),
                Err(error) => refuse(ctx, error),
            },
            Err(error) => reply_arg_error(ctx, &error),
        }
    }
}

/// For records of the primary and of the AOF. What was allowed then is not judged again by today's configuration. Only
/// lengths that no configuration allows are refused: such a hold could not be saved.
pub const UNBOUND: Bounds = Bounds {
    lease_default: Millis(0),
    lease_max: Millis(u64::MAX),
    owner_bytes_max: SAVED_BYTES_CEILING,
    note_bytes_max: SAVED_BYTES_CEILING,
    keys_max: 0,
    queue_max: Millis(0),
};

fn origin(flags: Flags) -> Result<Origin, ArgError> {
    if flags.contains(Flags::LOADING) {
        Ok(Origin::Disk)
    } else if flags.contains(Flags::REPLICATED) {
        Ok(Origin::Peer)
    } else if config::hold_allowed() {
        Ok(Origin::Client)
    } else {
        Err(ArgError::HoldRefused)
    }
}

/// Reads the key, and what is said of its holds.
///
/// # Errors
/// When it is none of the forms.
pub fn parse<'a, A: Arguments<'a>>(mut parser: Parser<A>) -> Result<(A::Word, Update), ArgError> {
    let key = parser.need("key")?;
    let word = parser.need_bytes("owner")?;
    if parser.is_done() {
        return Ok((key, Update::End(read_end(word)?)));
    }
    let owner = parser.new_owner(word)?;
    let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let state = match parser.peek() {
        Some(word) if is_number(word) => parse_numbers(&mut parser)?,
        _ => State::read(parser.need_bytes("state")?)?,
    };
    let note = parser.note()?;
    parser.done()?;
    Ok((key, Update::State(HoldRecord { owner, state, note })))
}

/// Reads the end of a hold that its fence alone describes.
fn read_end(word: &[u8]) -> Result<Fence, ArgError> {
    let state = State::read(word)?;
    state.fence.filter(|_| state.is_end()).ok_or(ArgError::Missing("owner"))
}

/// Reads the form that was written before there were words: `reads writes [fence [wall-deadline-ms [remaining-ms]]]`.
fn parse_numbers<'a, A: Arguments<'a>>(parser: &mut Parser<A>) -> Result<State, ArgError> {
    let reads = parser.number("reads", 0, u64::from(u32::MAX))? as u32;
    let writes = parser.number("writes", 0, u64::from(u32::MAX))? as u32;
    // The end of a hold may stop here, or after any of the arguments that follow.
    let removal = reads == 0 && writes == 0;
    let mut number = |name, min, max| match removal && parser.is_done() {
        true => Ok(None),
        false => parser.number(name, min, max).map(Some),
    };
    let fence = number("fence", 1, Fence::MAX.get())?.and_then(Fence::new);
    let wall_deadline = WallTime::from_millis(number("wall-deadline-ms", 0, i64::MAX as u64)?.unwrap_or(0));
    let left = Millis(number("remaining-ms", 0, i64::MAX as u64)?.unwrap_or(0));
    Ok(State { reads, writes, fence, wall_deadline, left })
}
