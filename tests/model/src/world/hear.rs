//! Ends of waits: each must be right, and the naive model follows.

use super::World;
use crate::words::{Kind, Waiter};
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode;
use lock_core::model::request::{self, Hop, Refusal, WaiterId};
use lock_core::model::time::Millis;

impl World {
    /// Whether this answer is right at this moment.
    pub(super) fn is_due(&self, id: WaiterId, answer: &request::WaitEnd) -> bool {
        let now = self.now.mono.0;
        self.naive.waiter(id.to_number()).is_some_and(|waiter| match answer {
            request::WaitEnd::Granted(_) => !waiter.is_detached() && self.naive.is_servable(waiter, now),
            request::WaitEnd::Offered { since } => {
                since.0 == waiter.since_us && waiter.is_detached() && self.naive.is_servable(waiter, now)
            }
            request::WaitEnd::TimedOut => {
                let is_served = waiter.is_detached() || (!waiter.is_place() && !self.naive.ended_in_grace(waiter, now));
                waiter.is_over(now) && is_served
            }
            request::WaitEnd::Detached(_) => {
                let has_client = waiter.is_place() && !waiter.is_detached();
                waiter.is_over(now) && has_client && !self.naive.ended_in_grace(waiter, now)
            }
            request::WaitEnd::InGrace { left, place } => {
                let left_is_right = Some(*left) == self.naive.grace_left(now).or(Some(Millis(0)));
                let ended = waiter.is_over(now) && !waiter.is_detached() && self.naive.ended_in_grace(waiter, now);
                left_is_right && ended && place.is_some() == waiter.is_place()
            }
            request::WaitEnd::Left => {
                let is_settled = waiter.is_detached() && self.naive.is_settled_otherwise(waiter, now);
                is_settled || self.naive.is_left_in_cycle(waiter, now)
            }
            request::WaitEnd::Refused(Refusal::QueuedUpgrade) => {
                waiter.ask.mode == Mode::Write && self.naive.is_settled_otherwise(waiter, now)
            }
            request::WaitEnd::Refused(Refusal::HoldsShares) => {
                let is_share = waiter.ask.kind() == Kind::Share && !waiter.is_detached();
                is_share && self.naive.is_settled_otherwise(waiter, now)
            }
            request::WaitEnd::Refused(Refusal::MinFenceAhead) => {
                self.naive.is_too_far_ahead(waiter, now, self.now.wall.0)
            }
            request::WaitEnd::HoldLost => self.naive.has_lost_its_hold(waiter),
            request::WaitEnd::WrongType => self.is_foreign(waiter.ask.db, &waiter.ask.keys),
            _ => false,
        })
    }

    /// A waiter was answered: that must have been right, and the naive model follows.
    pub(super) fn hear(&mut self, id: WaiterId, answer: request::WaitEnd) {
        let (number, now) = (id.to_number(), self.now);
        match answer {
            request::WaitEnd::Granted(fences) => {
                let expected = self.naive.serve_waiter(number, now.mono.0, now.wall.0);
                assert_eq!(fences.into_iter().map(Fence::get).collect::<Vec<_>>(), expected);
                return;
            }
            request::WaitEnd::Offered { since } => {
                let waiter = self.naive.waiter(number).expect("waits");
                assert!(waiter.is_detached() && waiter.since_us == since.0, "{waiter:?}");
                self.naive.serve_waiter(number, now.mono.0, now.wall.0);
                return;
            }
            request::WaitEnd::Detached(place) | request::WaitEnd::InGrace { place: Some(place), .. } => {
                assert!(self.is_due(id, &answer), "{answer:?} to {:?}", self.naive.waiter(number));
                let waiter = self.naive.waiters.iter_mut().find(|waiter| waiter.id == number).expect("is due");
                assert!(waiter.detach(now.mono.0));
                waiter.id = place.to_number();
                return;
            }
            request::WaitEnd::Left if self.naive.left.contains(&number) => {
                self.naive.left.retain(|left| *left != number);
                return;
            }
            request::WaitEnd::Refused(Refusal::Deadlock(cycle)) => {
                assert!(self.naive.rules.detects);
                self.check_cycle(self.naive.waiter(number).expect("waits"), &cycle.0);
            }
            answer => assert!(self.is_due(id, &answer), "{answer:?} to {:?}", self.naive.waiter(number)),
        }
        self.naive.waiters.retain(|waiter| waiter.id != number);
        self.naive.end_keeping();
    }

    pub(super) fn check_cycle(&self, requester: &Waiter, cycle: &[Hop]) {
        let waits = |db: u32, owner: u8, key: u8| {
            let mut asks = self.naive.waiters.iter().map(|waiter| &waiter.ask);
            asks.any(|ask| ask.db == db && ask.owner == owner && ask.keys.contains(&key))
        };
        let astray = cycle.iter().find(|hop| !waits(hop.db.0, hop.owner.as_bytes()[0], hop.key[0]));
        assert_eq!(astray, None, "waits in another database: {:?}", self.naive);
        let cycle: Vec<(u8, u8)> = cycle.iter().map(|hop| (hop.owner.as_bytes()[0], hop.key[0])).collect();
        assert_eq!(cycle[0].0, requester.ask.owner);
        assert_eq!(self.naive.false_hop(&cycle, self.now.mono.0), None, "{cycle:?} {:?}", self.naive);
        // It waits for the requester as well, if an owner in the cycle holds what it wants to write.
        let is_in = |other: &Waiter, key: u8| {
            let holds =
                |owner| self.naive.rows.iter().any(|row| (row.db, row.key, row.owner) == (other.ask.db, key, owner));
            let waits_for = |owner| owner == other.ask.owner || other.ask.mode == Mode::Write && holds(owner);
            !other.passed && cycle.iter().any(|(owner, _)| waits_for(*owner))
        };
        let hindrance = self.naive.hindrance(requester, self.now.mono.0, is_in);
        assert!(hindrance.is_some(), "{requester:?} may pass all in {cycle:?}");
    }
}

pub(super) fn is_granted(answer: &request::WaitEnd) -> bool {
    matches!(answer, request::WaitEnd::Granted(_) | request::WaitEnd::Offered { .. })
}
