//! LOCK.SHARE: shares of a lock, up to the limit of each request.

mod counting;
mod deadlocks;
mod ends;
mod places;

/// The refusal of a holder that would have to wait for more.
const HOLDS_SHARES: &str = "ERR owner holds shares already: only another owner can wait for more";
