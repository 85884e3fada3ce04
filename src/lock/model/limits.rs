//! The limits that an operator may set. The server's configuration fills them; the table of names is in
//! module/config.rs.

use super::key::KeyName;
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

/// How many holds that are over one step of a client ends, on all its keys: each is told to replicas and subscribers,
/// which costs some four microseconds.
pub const HOLDS_ENDED_PER_STEP: usize = 1_024;

/// How many queues one step puts on the ready list, of all that are to be served for one reason.
pub const QUEUES_MARKED_PER_STEP: usize = 256;

/// How many places one owner may have: a search for deadlocks begins at all of them.
pub const PLACES_PER_OWNER: usize = 256;

/// How many keys of waiters one step judges, by the cost of their names ([`KeyName::cost`]). The first queue may need
/// more until it has answered a waiter: else no step would come to the end of a long queue.
const KEYS_JUDGED_PER_BATCH: usize = 256;

/// How much a step has done for waiters, on all its keys, beside what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    answered: usize,
    granted: usize,
    judged: usize,
}

impl Budget {
    /// Nothing is spent.
    pub(crate) const fn new() -> Budget {
        Budget { answered: 0, granted: 0, judged: 0 }
    }

    /// Whether nothing is spent.
    pub(crate) fn is_whole(self) -> bool {
        self == Budget::new()
    }

    /// Whether the step is to try no further waiter. In its first queue it goes on judging until it has answered one.
    pub(crate) fn is_spent(self, is_first: bool) -> bool {
        let may_judge = self.judged < KEYS_JUDGED_PER_BATCH || (is_first && self.answered == 0);
        self.granted >= KEYS_PER_BATCH || !may_judge
    }

    /// Whether the step may answer one more waiter, of at most so many, and grant it this many keys.
    pub(crate) fn allows(self, keys: usize, most: usize) -> bool {
        self.answered < most && (self.granted == 0 || self.granted + keys <= KEYS_PER_BATCH)
    }

    /// A key of a waiter was judged.
    pub(crate) fn judge(&mut self, name: &KeyName) {
        self.judged += name.cost();
    }

    /// A waiter is answered, and granted this many keys.
    pub(crate) fn answer(&mut self, keys: usize) {
        self.answered += 1;
        self.granted += keys;
    }
}

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
    /// The most that QUEUE may ask for.
    pub queue_max: Millis,
}

/// What the lock manager allows, as configured now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many owners may hold one key together.
    pub holders_per_key_max: usize,
    /// How many requests may wait whose clients are parked.
    pub waiters_max: usize,
    /// How many requests with QUEUE may wait, parked or not.
    pub places_max: usize,
    /// How many bytes of memory these may take.
    pub place_bytes_max: usize,
    /// How many bytes of memory all other requests that wait may take.
    pub waiter_bytes_max: usize,
    /// How many requests may wait for one key.
    pub waiters_per_key_max: usize,
    /// How long a free key is reserved for a waiter of several keys.
    pub reserve_max: Millis,
    /// Whether a wait that would close a cycle of waits is refused.
    pub deadlock_detection: bool,
    /// How far the fence clock jumps on promotion.
    pub promotion_skew: Millis,
    /// For how long this node grants nothing after a start or a promotion.
    pub grace: Millis,
    /// How many holds that are over one step of a client ends.
    pub holds_ended_per_step: usize,
    /// How many queues one step puts on the ready list, of all that are to be served for one reason.
    pub queues_marked_per_step: usize,
}
