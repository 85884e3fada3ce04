//! The texts of all errors, each once, and how they are sent.

use crate::module::notify::Mute;
use crate::module::request::ServeError;
use lock_core::model::key::Db;
use lock_core::model::request::{Cycle, Hop, RedirectReason, Refusal};
use lock_core::model::state::StateError;
use lock_core::model::time::Millis;
use server_api::Ctx;
use std::borrow::Cow;
use std::fmt;

/// An error in the arguments of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgError {
    /// An argument is missing.
    Missing(&'static str),
    /// An option that the command does not take.
    UnknownOption(Vec<u8>),
    /// An option is given twice.
    Twice(&'static str),
    /// Two options that exclude each other.
    Exclude(&'static str, &'static str),
    /// Neither `PX` nor `EX`, where one is needed.
    NoLease,
    /// Not a number, or out of range.
    Number {
        /// The argument or option.
        name: &'static str,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// `EX` where the longest lease is shorter than a second.
    NoWholeSecond(Millis),
    /// Neither READ nor WRITE.
    Mode,
    /// An owner of no bytes.
    OwnerEmpty,
    /// `*` where an owner must exist already.
    OwnerGenerated,
    /// RETRY with owner `*`: each call makes another owner, so there is nothing to repeat.
    RetryGenerated,
    /// QUEUE with owner `*`: no later request could name the owner.
    QueueGenerated,
    /// NOTIFY without QUEUE.
    NotifyAlone,
    /// A channel of no bytes, or of too many.
    NotifyChannel,
    /// NOTIFY in a call that came over no connection.
    NotifyNowhere,
    /// An owner longer than this.
    OwnerTooLong(usize),
    /// A note longer than this.
    NoteTooLong(usize),
    /// SESSION in a call that came over no connection.
    SessionNowhere,
    /// More keys than this.
    TooManyKeys(usize),
    /// Fewer keys than numkeys says.
    TooFewKeys,
    /// A key that is named twice.
    KeyTwice(Vec<u8>),
    /// A command that LOCK.GUARD does not run.
    NotGuarded {
        /// As the client sent it.
        command: Vec<u8>,
        /// The command or option to use instead, if there is one.
        instead: Instead,
    },
    /// LOCK.HOLD from a client, without `lock.allow-hold`.
    HoldRefused,
    /// The state of a LOCK.HOLD.
    State(StateError),
}

impl fmt::Display for ArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArgError::Missing(name) => write!(f, "ERR {name} needs a value"),
            ArgError::UnknownOption(word) => write!(f, "ERR unknown option {}", Quoted(word)),
            ArgError::Twice(name) => write!(f, "ERR {name} is given twice"),
            ArgError::Exclude(one, other) => write!(f, "ERR {one} and {other} exclude each other"),
            ArgError::NoLease => write!(f, "ERR PX or EX is needed"),
            ArgError::Number { name, min, max } => write!(f, "ERR {name} must be a whole number from {min} to {max}"),
            ArgError::NoWholeSecond(max) => {
                write!(f, "ERR EX counts whole seconds and lock.max-lease-ms is {}: use PX", max.0)
            }
            ArgError::Mode => write!(f, "ERR mode must be READ or WRITE"),
            ArgError::OwnerEmpty => write!(f, "ERR owner must not be empty"),
            ArgError::OwnerGenerated => write!(f, "ERR owner * can only acquire: use the owner that the server made"),
            ArgError::RetryGenerated => write!(f, "ERR RETRY cannot repeat an acquisition by owner *: name the owner"),
            ArgError::QueueGenerated => {
                write!(f, "ERR QUEUE needs an owner of your own: * is another one each time")
            }
            ArgError::NotifyAlone => write!(f, "ERR NOTIFY needs QUEUE"),
            ArgError::NotifyChannel => write!(f, "ERR NOTIFY channel must have 1 to 256 bytes"),
            ArgError::NotifyNowhere => {
                write!(f, "ERR NOTIFY needs a user: a script, a function or another module has none")
            }
            ArgError::OwnerTooLong(max) => write!(f, "LIMIT owner is longer than lock.max-owner-bytes ({max})"),
            ArgError::NoteTooLong(max) => write!(f, "LIMIT note is longer than lock.max-note-bytes ({max})"),
            ArgError::SessionNowhere => {
                write!(f, "ERR SESSION needs a connection: a script, a function or another module has none of its own")
            }
            ArgError::TooManyKeys(max) => write!(f, "LIMIT numkeys is above lock.max-keys ({max})"),
            ArgError::TooFewKeys => write!(f, "ERR numkeys is greater than the number of arguments that follow"),
            ArgError::KeyTwice(key) => write!(f, "ERR key {} is given twice", Quoted(key)),
            ArgError::NotGuarded { command, instead } => {
                let instead = match instead {
                    Instead::Nothing => "",
                    Instead::CheckInScript => ": use LOCK.CHECK inside the script",
                    Instead::Transaction => ": use MULTI, since a command of a module might block",
                };
                write!(f, "ERR LOCK.GUARD cannot run {}{instead}", Quoted(command))
            }
            ArgError::HoldRefused => {
                write!(f, "ERR LOCK.HOLD is for replication: use LOCK.ACQUIRE (or start with lock.allow-hold yes)")
            }
            ArgError::State(StateError::Mark) => {
                write!(f, "ERR state must begin with V1, the form that this version reads")
            }
            ArgError::State(StateError::Parts) => {
                write!(f, "ERR state must be V1[R<n>][W<n>]F<n>D<ms>L<ms>, or V1[F<n>] for an end")
            }
            ArgError::State(StateError::Number { part, min, max }) => {
                write!(f, "ERR {part} of state must be a whole number from {min} to {max}")
            }
        }
    }
}

impl From<StateError> for ArgError {
    fn from(error: StateError) -> ArgError {
        ArgError::State(error)
    }
}

/// The replacement for a command that LOCK.GUARD does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Nothing does.
    Nothing,
    /// LOCK.CHECK, inside the script.
    CheckInScript,
    /// LOCK.GUARD, inside a transaction.
    Transaction,
}

/// At most 64 bytes, as redis-cli shows them: whatever they are, they cannot end the line of the error.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 64;
        write!(f, "\"")?;
        for byte in &self.0[..self.0.len().min(SHOWN_MAX)] {
            match byte {
                b'\'' => write!(f, "'")?,
                byte => write!(f, "{}", byte.escape_ascii())?,
            }
        }
        write!(f, "\"")?;
        if self.0.len() > SHOWN_MAX { write!(f, "...") } else { Ok(()) }
    }
}

/// The text of a request that was not served.
#[must_use]
pub fn text_of(error: &ServeError) -> Cow<'static, str> {
    Cow::Borrowed(match error {
        ServeError::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
        ServeError::Replica => "READONLY locks are granted by the primary only",
        ServeError::Nested => "ERR LOCK.GUARD cannot run another LOCK.GUARD",
        ServeError::CheckedElsewhere => "READONLY locks are checked by the primary only",
        ServeError::Mute(Mute::Denied) => "NOPERM this user has no permissions to publish on the channel of NOTIFY",
        ServeError::Mute(Mute::Elsewhere) => "NOTIFYSLOT another node serves the slot of this channel",
        ServeError::Refused(Refusal::AmbiguousRelease) => "ERR the owner holds both modes: name READ or WRITE",
        ServeError::Refused(Refusal::OutOfMemory) => "OOM command not allowed when used memory > 'maxmemory'.",
        ServeError::Refused(Refusal::TooManyHolders) => "LIMIT key has lock.max-holders-per-key holders",
        ServeError::Refused(Refusal::TooManyCounts) => "LIMIT the owner's count is 4294967295, the highest there is",
        ServeError::Refused(Refusal::FencesUsedUp) => {
            "LIMIT the fence clock is at 9007199254740991, the highest there is"
        }
        ServeError::Refused(Refusal::FenceFarAhead) => "ERR fence is more than a year ahead of the clock",
        ServeError::Refused(Refusal::MinFenceAhead) => {
            "ERR MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock"
        }
        ServeError::Refused(Refusal::BreaksLock) => "ERR hold conflicts with another owner's hold on the key",
        ServeError::Refused(Refusal::AlreadyWaits) => "ERR owner already waits there: use RETRY",
        ServeError::Refused(Refusal::TooManyWaiters) => "LIMIT server has lock.max-waiters waiters",
        ServeError::Refused(Refusal::TooManyWaitersOfKey) => "LIMIT key has lock.max-waiters-per-key waiters",
        ServeError::Refused(Refusal::TooManyPlaces) => "LIMIT server has lock.max-places places",
        ServeError::Refused(Refusal::TooManyPlacesOfOwner) => "LIMIT owner has 256 places, the most there may be",
        ServeError::Refused(Refusal::TooManyPlaceBytes) => {
            "LIMIT keys, owners and channels of places would take more than lock.max-place-bytes"
        }
        ServeError::Refused(Refusal::TooManyWaiterBytes) => {
            "LIMIT keys and owners of waiters would take more than lock.max-waiter-bytes"
        }
        ServeError::Refused(Refusal::OtherMode) => "ERR owner stands there in another mode: release that first",
        ServeError::Refused(Refusal::OtherKeys) => "ERR owner stands there with other keys: release that first",
        ServeError::Refused(Refusal::OtherTake) => "ERR owner stands there with another TAKE: release that first",
        ServeError::Refused(Refusal::HoldsShares) => {
            "ERR owner holds shares already: only another owner can wait for more"
        }
        ServeError::Refused(Refusal::QueuedUpgrade) => "ERR QUEUE cannot wait for an upgrade: use BLOCK",
        ServeError::Refused(Refusal::Deadlock(_)) => "DEADLOCK",
        ServeError::Refused(Refusal::Grace(left)) => {
            return Cow::Owned(format!("GRACE nobody is let in for another {} ms (lock.grace-ms)", left.0));
        }
    })
}

/// The text of a deadlock: the cycle from the requester back to itself.
///
/// A name of harmless characters alone stands as it is, any other is quoted. A key that the requester may not read
/// stands as `?`, and so does the owner that it is waited for there. The same holds for keys of another database: an
/// ACL may keep the client from selecting it.
#[must_use]
pub fn text_of_deadlock(cycle: &Cycle, db: Db, mut may_read: impl FnMut(&[u8]) -> bool) -> String {
    const HOPS_MAX: usize = 8;
    let hops = &cycle.0;
    let readable: Vec<bool> = hops.iter().map(|hop| hop.db == db && may_read(&hop.key)).collect();
    let mut text = "DEADLOCK ".to_owned();
    for (at, Hop { owner, key, .. }) in hops.iter().take(HOPS_MAX).enumerate() {
        // The requester knows itself, and the owner that it waits for at a key that it may read.
        let known = at == 0 || readable[at - 1];
        text += &format!("{} -> {} -> ", name(owner.as_bytes(), known), name(key, readable[at]));
    }
    match hops.len().checked_sub(HOPS_MAX) {
        Some(more @ 1..) => text + &format!("... ({more} more)"),
        _ => text + &hops.first().map_or(String::new(), |hop| name(hop.owner.as_bytes(), true)),
    }
}

fn name(bytes: &[u8], known: bool) -> String {
    let harmless = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.:-/@{}#".contains(byte);
    match std::str::from_utf8(bytes) {
        _ if !known => "?".to_owned(),
        Ok(plain) if plain.len() <= 64 && !plain.is_empty() && bytes.iter().all(harmless) => plain.to_owned(),
        _ => Quoted(bytes).to_string(),
    }
}

/// The text for a client that waits no more because a later request of its owner does.
pub const TAKEN_OVER: &str = "UNBLOCKED lock wait ended: a later request of this owner waits there now";

/// The text for a guarded command that replied with nothing, where a client expects one reply.
pub const NO_REPLY: &str = "ERR the command that LOCK.GUARD ran sent no reply";

/// The text for a waiter that this node cannot serve any more.
#[must_use]
pub fn text_of_redirect(reason: RedirectReason) -> &'static str {
    match reason {
        RedirectReason::Demoted => "UNBLOCKED lock wait ended: this node is a replica now",
        RedirectReason::SlotGone => "UNBLOCKED lock wait ended: the key is served by another node now",
        RedirectReason::Failed => "UNBLOCKED lock wait ended: internal error of the module, see the server's log",
    }
}

/// Replies that a request was not served.
pub fn refuse(ctx: &mut Ctx<'_>, error: ServeError) {
    ctx.reply_error(&text_of(&error));
}

/// Replies that an argument is wrong.
pub fn reply_arg_error(ctx: &mut Ctx<'_>, error: &ArgError) {
    ctx.reply_error(&error.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_error_is_one_line_whatever_the_client_sent() {
        let word = b"\r\n-ERR \0\xff\"injected".to_vec();
        let text = ArgError::UnknownOption(word).to_string();
        assert_eq!(text, r#"ERR unknown option "\r\n-ERR \x00\xff\"injected""#);
    }

    #[test]
    fn a_long_word_is_cut() {
        let text = ArgError::UnknownOption(vec![b'x'; 1 << 20]).to_string();
        assert_eq!(text.len(), "ERR unknown option ".len() + 66 + 3);
    }
}
