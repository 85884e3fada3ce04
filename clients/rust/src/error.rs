//! What can go wrong, and what to do after an error reply: ask again, or tell the caller. Decides by the reply alone.

use redis::{ErrorKind, RedisError};
use std::fmt;
use std::sync::Arc;

/// Why a lock was not taken, or a request was not done.
///
/// That others hold the lock is no error: [`try_lock`](crate::Lock::try_lock) and
/// [`try_lock_for`](crate::Lock::try_lock_for) give `None`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The wait would close a cycle. The text names it: `a -> k1 -> b -> k2 -> a`. Release what is held under this
    /// owner, and begin again.
    Deadlock(String),
    /// The lock was lost before it was released. Another may hold it: what was done under it may have met another's
    /// work.
    Lost,
    /// The wait was ended by its [`Cancel`](crate::Cancel). The owner has left the queue.
    Cancelled,
    /// The request makes no sense: it was not sent. The text says why.
    Refused(String),
    /// Another error reply of the server.
    Server(RedisError),
    /// The server could not be reached, or did not answer in time. What was asked may have been done.
    Connection(RedisError),
    /// Too few servers of a quorum answered. The text names the others, and what each of them said.
    NoQuorum(String),
    /// The server tells no wait when it is its turn, so that waits without a connection of their own ask each second.
    /// The text says why. It is told to [`Lock::on_trouble`](crate::Lock::on_trouble), and never returned.
    Notify(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Deadlock(cycle) => write!(f, "to wait would be a deadlock: {cycle}"),
            Error::Lost => f.write_str("the lock was lost before it was released"),
            Error::Cancelled => f.write_str("the wait for the lock was cancelled"),
            Error::Refused(why) => f.write_str(why),
            Error::NoQuorum(why) => write!(f, "no quorum: {why}"),
            Error::Notify(why) => write!(f, "waits hear nothing from the server, and ask each second: {why}"),
            Error::Server(error) => f.write_str(&text_of(error)),
            Error::Connection(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Server(error) | Error::Connection(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        match error.code() {
            Some("DEADLOCK") => Error::Deadlock(error.detail().unwrap_or_default().to_owned()),
            Some(_) => Error::Server(error),
            None => Error::Connection(error),
        }
    }
}

impl Error {
    /// True if it may be over soon, so that a wait asks again after it.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Server(error) => reply_passes(error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
            Error::Connection(error) => failure_passes(error),
            Error::NoQuorum(_) => true,
            _ => false,
        }
    }

    /// True if something lies on the key that is no lock.
    pub(crate) fn is_overwritten(&self) -> bool {
        self.has_code(&["WRONGTYPE"])
    }

    /// True if the fence that was asked for is too far ahead of the server's clock, as right after a start.
    pub(crate) fn is_ahead(&self) -> bool {
        matches!(self, Error::Server(error)
            if error.detail().is_some_and(|why| why.starts_with("MINFENCE is more than ")))
    }

    /// True if it is a reply that begins with one of these words.
    pub(crate) fn has_code(&self, codes: &[&str]) -> bool {
        matches!(self, Error::Server(error) if error.code().is_some_and(|code| codes.contains(&code)))
    }
}

/// Whether the connection broke, as one that is idle for long may: the next request makes a new one.
pub(crate) fn was_cut(error: &Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let Error::Connection(error) = error else { return false };
    matches!(io_kind(error), Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

/// Whether the server may be reached later. What is wrong with an address, a certificate or a file's rights stays so.
fn failure_passes(error: &RedisError) -> bool {
    use std::io::ErrorKind::{InvalidData, PermissionDenied};
    match error.kind() {
        ErrorKind::Io => io_kind(error).is_none_or(|kind| ![InvalidData, PermissionDenied].contains(&kind)),
        ErrorKind::InvalidClientConfig | ErrorKind::Client | ErrorKind::EmptySentinelList => false,
        ErrorKind::RESP3NotSupported => false,
        _ => true,
    }
}

/// What the system said. TLS says `InvalidData` of all that is wrong with a certificate. So do errors of ours about a
/// server that does not speak the protocol, or is no Sentinel.
pub(crate) fn io_kind(error: &RedisError) -> Option<std::io::ErrorKind> {
    // The library shares the causes of its errors.
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let cause = std::error::Error::source(error)?;
    let cause = cause.downcast_ref::<Shared>().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.map(std::io::Error::kind)
}

/// Whether the request may be granted later, though the server said this now.
fn reply_passes(code: &str, text: &str) -> bool {
    match code {
        "UNBLOCKED" | "GRACE" | "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "READONLY" | "LOADING"
        | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" | "BUSY" | "OOM" => true,
        "ERR" => text.starts_with("max number of clients"),
        // The others are about this request: its texts, its owner's own places.
        "LIMIT" => ["-waiters", "lock.max-places", "lock.max-place-bytes", "lock.max-waiter-bytes"]
            .iter()
            .any(|limit| text.contains(limit)),
        _ => false,
    }
}

/// An error as the server sent it: code, blank, text. A server without locks, or with an old module, is said to be one.
pub(crate) fn text_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some("ERR"), Some(detail)) if is_unknown_lock_command(detail) => {
            format!("the server has no module redis-lock: load libredis_lock.so there (ERR {})", detail.trim_end())
        }
        (Some("ERR"), Some(detail)) if detail.starts_with("unknown option") => {
            format!("the server's module redis-lock is too old: 1.0 or newer is needed (ERR {})", detail.trim_end())
        }
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

fn is_unknown_lock_command(detail: &str) -> bool {
    let name = detail.strip_prefix("unknown command").map(|rest| rest.trim_start_matches([' ', '\'', '`']));
    name.and_then(|name| name.get(..5)).is_some_and(|start| start.eq_ignore_ascii_case("LOCK."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Error {
        let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply");
        Error::from(value.extract_error().expect_err("an error"))
    }

    #[test]
    fn what_passes_is_asked_again_and_what_stays_is_told() {
        for text in [
            "UNBLOCKED lock wait ended: this node is a replica now",
            "GRACE nobody is let in for another 12345 ms (lock.grace-ms)",
            "LIMIT server has lock.max-waiters waiters",
            "LIMIT key has lock.max-waiters-per-key waiters",
            "LIMIT server has lock.max-places places",
            "LIMIT keys, owners and channels of places would take more than lock.max-place-bytes",
            "LIMIT keys and owners of waiters would take more than lock.max-waiter-bytes",
            "MOVED 3999 127.0.0.1:6381",
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "MASTERDOWN Link with MASTER is down",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Errors writing to the AOF file: No space left on device",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "ERR max number of clients reached",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ] {
            assert!(reply(text).is_transient(), "{text}");
        }
        for text in [
            "LIMIT owner is longer than lock.max-owner-bytes (256)",
            "LIMIT owner has 256 places, the most there may be",
            "LIMIT key has lock.max-holders-per-key holders",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOPERM User alice has no permissions to run the 'lock.acquire' command",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ] {
            assert!(!reply(text).is_transient(), "{text}");
            assert_eq!(reply(text).to_string(), text);
        }
        assert!(!Error::Cancelled.is_transient() && !Error::Lost.is_transient());
    }

    #[test]
    fn a_server_that_is_away_may_come_back_and_a_wrong_certificate_does_not_mend_itself() {
        use std::io::ErrorKind::*;
        let passes = |kind| Error::from(RedisError::from(std::io::Error::from(kind))).is_transient();
        for kind in [ConnectionReset, ConnectionRefused, TimedOut, WouldBlock, UnexpectedEof, BrokenPipe, NotFound] {
            assert!(passes(kind), "{kind}");
        }
        // A name that does not resolve, a network that is down.
        assert!(Error::from(RedisError::from(std::io::Error::other("lookup failed"))).is_transient());
        for kind in [InvalidData, PermissionDenied] {
            assert!(!passes(kind), "{kind}");
        }
        let config = RedisError::from((ErrorKind::InvalidClientConfig, "x"));
        assert!(!Error::from(config).is_transient());
    }

    #[test]
    fn a_server_without_the_module_is_named_as_such() {
        let error = reply("ERR unknown command 'LOCK.ACQUIRE', with args beginning with: 'k' ");
        assert!(!error.is_transient());
        assert!(error.to_string().starts_with("the server has no module redis-lock: load"), "{error}");
        assert!(reply("ERR unknown command 'FOO'").to_string().starts_with("ERR unknown"));
    }

    #[test]
    fn a_module_that_is_too_old_is_named_as_such() {
        let error = reply("ERR unknown option \"QUEUE\"");
        assert!(!error.is_transient());
        assert!(error.to_string().starts_with("the server's module redis-lock is too old: 1.0 or newer"), "{error}");
    }

    #[test]
    fn a_deadlock_names_its_cycle() {
        let error = reply("DEADLOCK a -> k1 -> b -> k2 -> a");
        assert!(!error.is_transient());
        assert_eq!(error.to_string(), "to wait would be a deadlock: a -> k1 -> b -> k2 -> a");
        assert!(matches!(error, Error::Deadlock(cycle) if cycle.starts_with("a -> k1")));
    }
}
