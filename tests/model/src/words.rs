//! What the naive model is made of: holds, requests, waiters, offers and answers.

use lock_core::model::hold::Mode;
use lock_core::model::request::Wait;

/// One row of the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub db: u32,
    pub key: u8,
    pub owner: u8,
    pub reads: u32,
    pub writes: u32,
    pub fence: u64,
    pub deadline_us: u64,
    pub note: Option<u8>,
    /// The connection that it is bound to, and how long it outlives it.
    pub session: Option<(u64, u64)>,
    /// Whether no client knows of it.
    pub offered: bool,
    /// Whether this node did not grant it on its key: it gets a new fence at the next acquire. The core shows nobody.
    pub carried: bool,
}

/// What the model answers; the same shapes as the core's outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted(Vec<u64>),
    Unavailable,
    Released(Vec<Option<u64>>),
    Extended(Vec<Option<u64>>),
    Guarded(Option<u64>),
    TooManyHolders,
    Ambiguous,
    Queued,
    Placed,
    AlreadyWaits,
    TooManyWaiters,
    TooManyWaitersOfKey,
    TooManyPlaces,
    OtherMode,
    OtherKeys,
    OtherTake,
    HoldsShares,
    QueuedUpgrade,
    Deadlock,
    Grace,
    MinFenceAhead,
    OutOfMemory,
}

/// A request to hold.
#[derive(Clone, Debug)]
pub struct Ask {
    pub db: u32,
    pub keys: Vec<u8>,
    pub owner: u8,
    pub mode: Mode,
    pub lease_us: u64,
    pub note: Option<u8>,
    pub wait: Wait,
    pub retry: Option<u32>,
    pub session: Option<(u64, u64)>,
    /// For how long the place outlives the request; None if not at all.
    pub queue_us: Option<u64>,
    /// Of how many shares it takes how many; None if it is no LOCK.SHARE.
    pub share: Option<(u32, u32)>,
    /// The fence that its hold is to have at least.
    pub min_fence: Option<u64>,
}

/// What a request asks for. An owner may wait for each of them at one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Share,
    Write,
}

impl Ask {
    /// Its connection has closed: its place is kept for no longer than this, unless its owner asks again. 0 changes
    /// nothing.
    pub fn keep_no_longer(&mut self, away_us: u64) {
        let queue_us = self.queue_us.filter(|_| away_us > 0);
        self.queue_us = queue_us.map(|queue_us| queue_us.min(away_us)).or(self.queue_us);
    }

    pub fn kind(&self) -> Kind {
        match (self.share, self.mode) {
            (Some(_), _) => Kind::Share,
            (None, Mode::Read) => Kind::Read,
            (None, Mode::Write) => Kind::Write,
        }
    }

    pub(crate) fn take(&self) -> u32 {
        self.share.map_or(1, |(_, take)| take)
    }

    /// How often its owner has the key after it, in its mode, that had it so often before.
    pub fn count_after(&self, count: u32) -> u32 {
        match self.retry {
            None => count + self.take(),
            Some(least) => count.max(least),
        }
    }

    /// How often the key is offered to its owner: of a place, what its last request asked for.
    pub(crate) fn offered_count(&self) -> u32 {
        self.share.map_or(1, |_| self.count_after(0))
    }

    /// How many reads it adds.
    pub(crate) fn need(&self, own: Option<&Row>) -> u32 {
        let before = own.map_or(0, |own| own.reads);
        self.count_after(before) - before
    }
}

/// A waiter.
#[derive(Clone, Debug)]
pub struct Waiter {
    pub id: u64,
    pub ask: Ask,
    /// The keys that its owner held for reading when it asked to write.
    pub upgraded: Vec<u8>,
    /// Whether a request went before it to open a cycle.
    pub passed: bool,
    pub since_us: u64,
    pub until_us: Option<u64>,
    /// Whether its time was up when nothing could be granted.
    pub overdue: bool,
    /// The number of its arrival.
    pub ticket: u64,
}

/// What a waiter was granted, until it is known that the reply has arrived.
#[derive(Clone, Debug)]
pub struct Granted {
    pub id: u64,
    pub ask: Ask,
    pub given: Vec<Given>,
    pub confirmed: bool,
}

/// What was granted on one key.
#[derive(Clone, Debug)]
pub struct Given {
    pub fence: u64,
    /// This one, and those that later grants gave the same hold.
    pub fences: Vec<u64>,
    pub added: u32,
    pub deadline_us: u64,
    pub session: Option<(u64, u64)>,
    /// Where it lies now: keys are renamed and moved, and databases swapped.
    pub place: (u32, u8),
    /// What the owner had there before.
    pub before: Option<Row>,
}

/// What an owner was granted of which no client knows.
#[derive(Clone, Debug)]
pub struct Offer {
    pub owner: u8,
    /// In the order in which it asked for them.
    pub parts: Vec<Part>,
    /// Of shares: the limit of the request that was granted.
    pub limit: Option<u32>,
}

/// One key of an offer.
#[derive(Clone, Debug)]
pub struct Part {
    /// The key when it was asked for.
    pub asked: u8,
    pub db: u32,
    pub key: u8,
    /// Whether the owner held it before.
    pub held: bool,
    /// Whether what was offered there is gone.
    pub gone: bool,
}

impl Part {
    pub fn stands(&self) -> bool {
        !self.held && !self.gone
    }
}

/// What is allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub holders_max: usize,
    pub waiters_max: usize,
    pub waiters_per_key_max: usize,
    pub places_max: usize,
    /// How long a place outlives the connection of its client; 0 is as long as it asked for.
    pub away_us: u64,
    pub reserve_us: u64,
    pub detects: bool,
    /// How many holds that are over one step ends. The model ends all.
    pub ended_max: usize,
    /// Whether a step reaches its limits soon.
    pub small_steps: bool,
    /// How many queues one step puts on the ready list of those that are to be served together.
    pub marked_max: usize,
}

impl Waiter {
    pub(crate) fn wants(&self, db: u32, key: u8) -> bool {
        self.ask.db == db && self.ask.keys.contains(&key)
    }

    pub fn is_place(&self) -> bool {
        self.ask.queue_us.is_some()
    }

    /// Whether no client waits for it.
    pub fn is_detached(&self) -> bool {
        self.ask.wait == Wait::Never
    }

    /// Its client waits no more. False if it ends with its client.
    pub fn detach(&mut self, now_us: u64) -> bool {
        let Some(queue_us) = self.ask.queue_us else { return false };
        (self.ask.wait, self.ask.note, self.ask.session, self.ask.min_fence) = (Wait::Never, None, None, None);
        self.keep_until(now_us + queue_us);
        true
    }

    pub fn keep_until(&mut self, until_us: u64) {
        (self.until_us, self.overdue) = (Some(until_us), false);
    }

    pub(crate) fn is_many(&self) -> bool {
        self.ask.keys.len() > 1
    }

    /// Its place in the queue of a key: an upgrade of that key comes before all others, then the order is by arrival.
    pub(crate) fn rank(&self, key: u8) -> (bool, u64) {
        (!self.upgraded.contains(&key), self.ticket)
    }

    pub fn is_over(&self, now_us: u64) -> bool {
        self.until_us.is_some_and(|until| until <= now_us)
    }
}
