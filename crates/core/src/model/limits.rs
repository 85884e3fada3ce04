//! The limits that an operator may set. The server's configuration fills them; the table of names is in
//! module/config.rs.

use super::time::Millis;

/// The longest lease there is, whatever is configured or claimed: ten years.
pub const LEASE_CEILING: Millis = Millis(315_360_000_000);

/// The longest owner or note there is, whatever is configured or claimed: the saved form has two bytes for a length.
pub const SAVED_BYTES_CEILING: usize = u16::MAX as usize;

/// How many places one owner may have: a search for deadlocks begins at all of them.
pub const PLACES_PER_OWNER: usize = 256;

/// The limits of what one step does for waiters, on all its keys together: the other clients wait meanwhile. What is
/// left of a queue is served in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// The number of waiters answered. Each costs the server a reply, some ten microseconds.
    pub answers: usize,
    /// The number of keys granted to waiters, unless the first of them alone waits for more. Each is opened, changed
    /// and told to replicas and subscribers, which costs some ten microseconds.
    pub keys_granted: usize,
    /// The number of keys of waiters judged. A long name counts for more, by
    /// [`KeyName::cost`](super::key::KeyName::cost).
    pub keys_judged: usize,
    /// The same number, until the first queue of the step has answered a waiter. It is higher, so that a hand-off is
    /// hardly ever left to the background.
    pub keys_judged_first: usize,
    /// The number of keys that stay open beside those of the request, because something was changed there. The keys of
    /// the waiter judged last may be open beside them.
    pub keys_open: usize,
    /// The number of holds that are over and end in a step of a client. Each is told to replicas and subscribers, which
    /// costs some four microseconds.
    pub holds_ended: usize,
    /// The number of queues put on the ready list, of all that are to be served for one reason.
    pub queues_marked: usize,
}

impl StepLimits {
    /// The limits of each step of the module.
    pub const DEFAULT: StepLimits = StepLimits {
        answers: 32,
        keys_granted: 64,
        keys_judged: 256,
        keys_judged_first: 1_024,
        keys_open: 256,
        holds_ended: 1_024,
        queues_marked: 256,
    };
}

/// How much a step has done for waiters, on all its keys.
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

    /// True if nothing is spent.
    pub(crate) fn is_whole(self) -> bool {
        self == Budget::new()
    }

    /// How many further keys may be judged.
    pub(crate) fn left(self, limits: &StepLimits, is_first: bool) -> usize {
        let most = if is_first && self.answered == 0 { limits.keys_judged_first } else { limits.keys_judged };
        most.saturating_sub(self.judged)
    }

    /// True if the step is to try no further waiter.
    pub(crate) fn is_spent(self, limits: &StepLimits, is_first: bool) -> bool {
        self.granted >= limits.keys_granted || self.left(limits, is_first) == 0
    }

    /// True if the step may answer one more waiter, of at most so many, and grant it this many keys.
    pub(crate) fn allows(self, limits: &StepLimits, keys: usize, most: usize) -> bool {
        self.answered < most && (self.granted == 0 || self.granted + keys <= limits.keys_granted)
    }

    /// So many keys of waiters were judged, by the cost of their names, or waiters passed, or locks read.
    pub(crate) fn judge(&mut self, cost: usize) {
        self.judged += cost;
    }

    /// A waiter is answered, and granted this many keys.
    pub(crate) fn answer(&mut self, keys: usize) {
        self.answered += 1;
        self.granted += keys;
    }
}

/// The bounds of a request's arguments, as configured now.
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

/// The limits of the lock manager, as configured now.
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
    /// How long a place, or a grant that was not received, outlives its connection; 0 is as long as QUEUE.
    pub away_max: Millis,
    /// How long a free key is reserved for a waiter of several keys.
    pub reserve_max: Millis,
    /// True if a wait that would close a cycle of waits is refused.
    pub deadlock_detection: bool,
    /// How far the fence clock jumps on promotion.
    pub promotion_skew: Millis,
    /// For how long this node grants nothing after a start or a promotion.
    pub grace: Millis,
    /// The limits of one step.
    pub step: StepLimits,
}
