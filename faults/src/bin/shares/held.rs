//! What a client asks for, and what it knows of what it holds.

use faults::caller::Answer;
use faults::history::Moment;
use faults::places::{End, Place};
use faults::shares::{Line, Piece, Raise};

/// What is asked for.
#[derive(Clone, Copy)]
pub enum Kind {
    Shares { limit: u32, take: u32 },
    Read,
    Write,
}

/// A new hold that is asked for.
pub struct Wish {
    pub key: String,
    pub owner: String,
    pub kind: Kind,
    pub lease_ms: u64,
}

/// A hold, as its owner knows it.
pub struct Held {
    pub kind: Kind,
    pub piece: Piece,
    pub lease_ends: Moment,
    pub bound: Option<Bound>,
    /// A request that took counts was repeated.
    pub repeated: bool,
}

/// What SESSION binds a hold to.
#[derive(Clone, Copy)]
pub struct Bound {
    pub connection: i64,
    pub ms: u64,
    /// The connection was open at this moment.
    pub alive: Moment,
}

/// A request that was asked until it was answered.
pub struct Heard {
    pub first_asked: Moment,
    pub asked: Moment,
    pub answer: Answer,
    pub told: Moment,
    pub repeated: bool,
}

/// Says it on standard output.
pub fn tell(line: &Line) {
    println!("{}", serde_json::to_string(line).expect("plain data"));
}

pub fn count(what: &str) {
    tell(&Line::Count(what.to_owned()));
}

impl Kind {
    pub fn limit(self) -> Option<u32> {
        if let Kind::Shares { limit, .. } = self { Some(limit) } else { None }
    }

    pub fn take(self) -> u32 {
        if let Kind::Shares { take, .. } = self { take } else { 1 }
    }
}

impl Wish {
    /// The command without options.
    pub fn request(&self) -> String {
        let Wish { key, owner, .. } = self;
        match self.kind {
            Kind::Shares { limit, take } => format!("LOCK.SHARE {key} {owner} {limit} TAKE {take}"),
            Kind::Read => format!("LOCK.RW {key} {owner} READ"),
            Kind::Write => format!("LOCK.ACQUIRE {key} {owner}"),
        }
    }

    pub fn place(&self, queue_ms: u64) -> Place {
        let (key, owner) = (self.key.clone(), self.owner.clone());
        Place { key, owner, queue_ms, lease_ms: self.lease_ms, shown: None, asks: Vec::new(), end: End::Open }
    }
}

impl Held {
    /// A new hold. Its lease began at this moment or later.
    pub fn begin(
        wish: &Wish,
        fence: i64,
        raise: Raise,
        lease_from: Moment,
        bound: Option<Bound>,
        repeated: bool,
    ) -> Held {
        count(match wish.kind {
            Kind::Shares { take: 1, .. } => "shares granted, one",
            Kind::Shares { .. } => "shares granted, several",
            Kind::Read => "readers granted",
            Kind::Write => "writers granted",
        });
        let writes = matches!(wish.kind, Kind::Write);
        let lease_ends = lease_from.after_ms(wish.lease_ms);
        let piece = Piece {
            key: wish.key.clone(),
            owner: wish.owner.clone(),
            fence,
            since: raise.asked,
            writes,
            counts: if writes { 0 } else { wish.kind.take() },
            raise,
            raised: true,
            from: raise.told,
            until: lease_ends,
            changed: None,
            denied: None,
        };
        let mut held = Held { kind: wish.kind, piece, lease_ends, bound, repeated };
        held.piece.until = held.sure_until();
        tell(&Line::Begins(held.piece.clone()));
        held
    }

    /// When the lease can have ended first: it is cut when the connection closes, which was open a moment ago.
    fn sure_until(&self) -> Moment {
        self.bound.map_or(self.lease_ends, |bound| bound.alive.after_ms(bound.ms).min(self.lease_ends))
    }

    /// It is known to go on.
    pub fn goes_on(&mut self, heard: &Heard, connection: i64, raised: bool) {
        if let Some(bound) = &mut self.bound
            && bound.connection == connection
        {
            bound.alive = bound.alive.max(heard.asked);
        }
        (self.piece.from, self.piece.until, self.piece.raised) = (heard.told, self.sure_until(), raised);
        tell(&Line::Begins(self.piece.clone()));
    }
}
