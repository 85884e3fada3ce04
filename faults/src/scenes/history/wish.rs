//! What clients ask for.

use crate::linear::Kind;
use crate::places::{End, Place};
use rand::RngExt;
use rand::rngs::StdRng;
use std::fmt;
use std::time::Duration;

/// How many processes of clients there are, and how many clients each has.
pub const PROCESSES: u64 = 4;
pub const CLIENTS: u64 = 8;
/// How long an answer may be late, all stops taken together: a waiter without one by then is forgotten.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How many locks all clients share.
const BUSY: u64 = 5;
/// Some of them have one limit for all requests, and no readers without a limit. So whatever the server shows of these
/// is within it.
const LIMITS: [u32; 2] = [3, 6];

/// The lock that two clients have for themselves.
pub fn quiet_key(round: u64, seat: u64, client: u64) -> String {
    format!("r{round}.quiet{}.{client}", seat / 2)
}

pub fn keys(round: u64) -> Vec<String> {
    let quiet = (0..PROCESSES).step_by(2).flat_map(|seat| [1, 5].map(|client| quiet_key(round, seat, client)));
    Lock::all_busy(round).map(|lock| lock.key).chain(quiet).collect()
}

/// A lock, and what clients ask of it.
pub struct Lock {
    pub key: String,
    /// Of all shares; None if each request has a limit of its own.
    limit: Option<u32>,
    most: u32,
}

impl Lock {
    /// One that few clients ask for.
    pub fn quiet(key: String) -> Lock {
        Lock { key, limit: None, most: 3 }
    }

    /// One of those that all clients ask for.
    pub fn busy(round: u64, dice: &mut StdRng) -> Lock {
        Lock::numbered(round, dice.random_range(0..BUSY))
    }

    fn numbered(round: u64, number: u64) -> Lock {
        Lock { key: format!("r{round}.k{number}"), limit: LIMITS.get(number as usize).copied(), most: 8 }
    }

    /// All that are not quiet.
    pub fn all_busy(round: u64) -> impl Iterator<Item = Lock> {
        (0..BUSY).map(move |number| Lock::numbered(round, number))
    }

    /// The limit of all its shares, if it has one.
    pub fn limit(&self) -> Option<u64> {
        self.limit.map(u64::from)
    }

    pub fn kind(&self, dice: &mut StdRng) -> Kind {
        let writers = if self.limit.is_some() { 15 } else { 35 };
        if dice.random_range(0..100) < writers { Kind::Write } else { self.kind_beside(dice) }
    }

    /// What to ask for that may be granted beside others: a read, or shares.
    pub fn kind_beside(&self, dice: &mut StdRng) -> Kind {
        if self.limit.is_none() && dice.random_range(0..100) < 40 {
            return Kind::Read;
        }
        let limit = self.limit.unwrap_or_else(|| dice.random_range(1..=self.most));
        let take = if dice.random_bool(0.5) { 1 } else { dice.random_range(1..=limit) };
        Kind::Shares { limit, take }
    }

    /// Now and then the same shares with another limit, where each request has its own.
    pub fn with_another_limit(&self, kind: Kind, dice: &mut StdRng) -> Option<Kind> {
        let Kind::Shares { take, .. } = kind else { return None };
        let other = Kind::Shares { limit: dice.random_range(take..=self.most), take };
        (self.limit.is_none() && kind != other && dice.random_bool(0.15)).then_some(other)
    }
}

/// A request, written as a command without other options than TAKE and RETRY.
#[derive(Clone)]
pub struct Wish {
    pub key: String,
    pub owner: String,
    pub kind: Kind,
    pub at_least: Option<u32>,
}

impl Wish {
    /// The request as a place, which has asked nothing yet.
    pub fn place(&self, queue_ms: u64, lease_ms: u64) -> Place {
        let (key, owner, asks) = (self.key.clone(), self.owner.clone(), Vec::new());
        Place { key, owner, queue_ms, lease_ms, shown: None, asks, end: End::Open }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wish { key, owner, kind, at_least } = self;
        match kind {
            Kind::Write => write!(formatter, "LOCK.RW {key} {owner} WRITE")?,
            Kind::Read => write!(formatter, "LOCK.RW {key} {owner} READ")?,
            Kind::Shares { limit, take } => write!(formatter, "LOCK.SHARE {key} {owner} {limit} TAKE {take}")?,
        }
        at_least.map_or(Ok(()), |least| write!(formatter, " RETRY {least}"))
    }
}
