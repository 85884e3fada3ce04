//! The limits that an operator may set. The server's configuration fills them; the table of names is in
//! module/config.rs.

use super::time::Millis;

/// The longest lease there is, whatever is configured or claimed: ten years.
pub const LEASE_CEILING: Millis = Millis(315_360_000_000);

/// The longest owner or note there is, whatever is configured or claimed: the saved form has two bytes for a length.
pub const SAVED_BYTES_CEILING: usize = u16::MAX as usize;

/// How many waiters one step answers, on all its keys: each costs the server a reply, some ten microseconds, and the
/// other clients wait meanwhile.
pub const GRANTS_PER_BATCH: usize = 32;

/// How many keys one step grants to waiters, unless the first of them alone waits for more: each is opened, changed and
/// told to replicas and subscribers, which costs some ten microseconds.
pub const KEYS_PER_BATCH: usize = 64;

/// What the arguments of a request must keep to, as configured now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The lease when the request names none.
    pub lease_default: Millis,
    /// The longest lease that a request may ask for.
    pub lease_max: Millis,
    /// The longest owner.
    pub owner_bytes_max: usize,
    /// The longest note.
    pub note_bytes_max: usize,
    /// How many keys one request may name.
    pub keys_max: usize,
}

/// What the node allows, as configured now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many owners may hold one key together.
    pub holders_per_key_max: usize,
    /// How many requests may wait.
    pub waiters_max: usize,
    /// How many requests may wait for one key.
    pub waiters_per_key_max: usize,
    /// How long a free key is kept for a waiter that waits for other keys as well.
    pub reserve_max: Millis,
    /// Whether a wait that would close a circle of waits is refused.
    pub deadlock_detection: bool,
    /// How far the fence clock jumps on promotion.
    pub promotion_skew: Millis,
}
