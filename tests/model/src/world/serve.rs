//! Requests: the core and the naive model answer the same.

use super::hear::is_granted;
use super::{World, name};
use crate::naive::Naive;
use crate::words::Answer;
use lock_core::manager::begun::Asked;
use lock_core::manager::view::Waiting;
use lock_core::model::effect::Cause;
use lock_core::model::fence::Fence;
use lock_core::model::key::Db;
use lock_core::model::notify::Notify;
use lock_core::model::owner::Owner;
use lock_core::model::request::{self, Acquire, Begun, Operation, Outcome, Refusal, Request};
use lock_core::model::time::{Millis, Timestamp};
use std::collections::{BTreeSet, VecDeque};

impl World {
    /// What a request says of the channel of its place: by chance, and the channel.
    pub(super) fn notify(&mut self, has_place: bool) -> (Notify, u8) {
        let channel = b'0' + (self.naive.tickets + self.now.mono.0 / 1_000) as u8 % 4;
        match channel {
            _ if !has_place => (Notify::AsBefore, channel),
            b'0' => (Notify::AsBefore, channel),
            b'1' => (Notify::Never, channel),
            _ => (Notify::On { channel: self.primary.manager.channel(&[channel]), client: 0 }, channel),
        }
    }

    /// A request for a place was answered: it has one, or has renewed it, or has none.
    pub(super) fn note_asked(
        &mut self,
        (db, keys): (u32, &[u8]),
        owner: u8,
        (ask, outcome): (&Acquire, &Result<Outcome, Refusal>),
        told: (Notify, u8),
    ) {
        match outcome {
            Ok(Outcome::Begun(Begun::New(id))) => self.told.asked((None, *id), owner, told, true),
            Ok(Outcome::Begun(Begun::Place(id))) => self.told.asked((None, *id), owner, told, false),
            Ok(Outcome::Begun(Begun::Repeat(old))) if self.naive.cannot_wait => {
                self.told.asked((None, *old), owner, told, true);
            }
            Ok(Outcome::Unavailable) | Err(Refusal::Grace(_)) => {
                let mut queue = self.primary.manager.queue(Db(db), name(keys[0]), Timestamp(0));
                let is_it = |waiting: &Waiting<'_>| {
                    let waiter = waiting.waiter;
                    // A request for other keys renews nothing.
                    let is_named = |wanted: &[u8]| keys.iter().any(|key| name(*key) == wanted);
                    let same_keys =
                        waiter.keys.len() == keys.len() && waiter.keys.iter().all(|wanted| is_named(&wanted.name));
                    let same_kind = waiter.is_place() && waiter.operation.kind() == ask.kind();
                    waiter.owner.as_bytes() == [owner] && same_keys && same_kind
                };
                // A client may wait for it already, by a request without QUEUE.
                let renewed = queue.find(is_it).map(|waiting| (waiting.id, !waiting.waiter.is_detached()));
                drop(queue);
                if let Some((id, has_client)) = renewed {
                    self.told.asked((None, id), owner, told, has_client);
                }
            }
            _ => {}
        }
    }

    /// The server parks the client of a request that begins to wait, or does not.
    pub(super) fn begin(
        &mut self,
        (begun, operation): (Begun, &Acquire),
        owner: u8,
        (notify, channel): (Notify, u8),
        turns_away: bool,
    ) -> Outcome {
        let manager = &mut self.primary.manager;
        let asked = Asked { begun, operation, notify, client: 0, is_partial: true, now: self.now.mono };
        let cannot_wait = if matches!(begun, Begun::Repeat(_)) { self.naive.cannot_wait } else { turns_away };
        if cannot_wait || !manager.may_park(begun) {
            let settled = manager.client_not_parked(&asked);
            assert!(settled.counts && settled.taken_over.is_none(), "no wait goes on, none ends");
            return settled.outcome;
        }
        let Begun::Repeat(old) = begun else { return manager.client_parked(&asked).1.outcome };
        assert_eq!(self.naive.replaced.take(), Some(old.to_number()));
        let waited_at_place = manager.waits_at_place(old);
        let (heir, settled) = manager.client_parked(&asked);
        let goes_on = waited_at_place || operation.queue.is_some();
        let answer = if goes_on { request::WaitEnd::TakenOver } else { request::WaitEnd::Replaced };
        assert_eq!((settled.counts, settled.taken_over), (!goes_on, Some((old, answer))));
        match operation.queue {
            Some(_) => self.told.asked((Some(old), heir), owner, (notify, channel), true),
            None => self.told.left(old.to_number(), None),
        }
        settled.outcome
    }

    pub(super) fn serve(
        &mut self,
        (db, keys): (u32, &[u8]),
        owner: u8,
        ask: Operation,
        expected: impl FnOnce(&mut Naive) -> Answer,
    ) {
        let request = Request { owner: Owner::new(&[owner]), operation: ask };
        let (now, judged_at, before) = (self.now, self.judged(), self.primary.raw());
        let cut = self.primary.manager.searches_cut();
        let has_marks = self.primary.manager.has_owners_to_mark();
        let memory_full = self.memory_is_short && self.naive.tickets % 4 > 1;
        let asks = if let Operation::Acquire(ask) = &request.operation { ask.queue.map(|_| ask.clone()) } else { None };
        let (notify, channel) = self.notify(asks.is_some());
        let step = self.primary.in_unit((db, keys), (now, judged_at), |manager, step| {
            step.memory_full = memory_full;
            step.notify = notify;
            manager.serve(step, &request)
        });
        let left_by = matches!(request.operation, Operation::Release(_)).then_some(owner);
        self.told.follow(&step.effects.wait_ends, step.effects.messages(), (left_by, None));
        let answered = step.outcome.clone();
        self.renew_overdue();
        if step.effects.changes.is_empty() {
            assert_eq!(self.primary.raw(), before, "changed without an effect");
        } else if matches!(request.operation, Operation::Release(_))
            && step.effects.wait_ends.is_empty()
            && step.effects.changes.iter().all(|change| change.cause != Cause::Close)
        {
            assert_ne!(self.primary.raw(), before, "an effect without a change");
        }
        self.tell(&step.effects.changes);
        // First what is over ends, and the queues are served; then the request is judged.
        let mut answers = step.effects.wait_ends.into_iter().collect::<VecDeque<_>>();
        // What was granted before anything was released was so before the request was judged.
        let causes: Vec<Cause> = step.effects.changes.iter().map(|change| change.cause).collect();
        let judged = causes.iter().position(|cause| *cause == Cause::Release);
        let is_grant = |cause: &&Cause| **cause == Cause::Acquire;
        let mut grants = judged.map_or(usize::MAX, |at| causes[..at].iter().filter(is_grant).count());
        let (mut served, mut unsure) = (BTreeSet::new(), false);
        while let Some((id, answer)) = answers.front().cloned() {
            if !self.is_due(id, &answer) || (grants == 0 && is_granted(&answer)) {
                break;
            }
            answers.pop_front();
            if let request::WaitEnd::Granted(_) | request::WaitEnd::Offered { .. } = &answer {
                let waiter = self.naive.waiter(id.to_number()).expect("is due");
                grants = grants.saturating_sub(self.naive.grants_of(waiter));
                served.extend(self.naive.waiter(id.to_number()).map(|waiter| waiter.ask.owner));
            }
            // The timeout may also have been reported after the release, when it freed a place for others.
            let is_late = matches!(
                answer,
                request::WaitEnd::TimedOut | request::WaitEnd::Detached(_) | request::WaitEnd::InGrace { .. }
            );
            unsure |= grants == 0 && is_late;
            self.hear(id, answer);
        }
        // A waiter that was granted may go before others now where else it waits: those queues are scanned later.
        let overlooked = self.naive.overlooked_at((db, keys), &served, now.mono.0);
        // A waiter for a key on which holds are left that are over may be served when the last of them has ended.
        // So may one whose owner has got a hold: its queues are marked in pieces.
        let unsure = unsure || self.has_over((db, keys)) || has_marks || self.primary.manager.has_owners_to_mark();
        assert!(unsure || self.carried || overlooked.is_none(), "settles first: {overlooked:?}");
        for key in keys {
            self.naive.looked(db, *key, now.mono.0);
        }
        // Some servers let some connections not wait.
        self.naive.cannot_wait = self.some_cannot_wait && self.naive.tickets.is_multiple_of(3);
        self.naive.memory_full = memory_full;
        self.naive.lets_in = matches!(step.outcome, Ok(Outcome::Granted(_)));
        self.naive.lets_wait = matches!(step.outcome, Ok(Outcome::Begun(Begun::New(_) | Begun::Place(_))));
        // Fewer of those that wait for the first time: else hardly a queue would be long.
        let turns_away = self.some_cannot_wait && self.naive.tickets.is_multiple_of(15);
        let mut expected = expected(&mut self.naive);
        let outcome = match (step.outcome, &request.operation) {
            (Ok(Outcome::Begun(begun)), Operation::Acquire(ask)) => {
                Ok(self.begin((begun, ask), owner, (notify, channel), turns_away))
            }
            (outcome, _) => outcome,
        };
        self.primary.manager.forget_channel();
        if let Some(ask) = &asks {
            self.note_asked((db, keys), owner, (ask, &answered), (notify, channel));
        }
        if self.primary.manager.searches_cut() > cut {
            assert!(self.naive.may_be_waited_for(owner), "cut for nothing: {request:?} {:?}", self.naive);
        }
        if let (Ok(Outcome::Begun(Begun::New(id))), Answer::Queued, true) = (&answered, &expected, turns_away) {
            self.naive.call_last(id.to_number());
            self.leave_client(id.to_number(), false);
            expected = match asks {
                Some(_) => Answer::Placed,
                None if self.naive.is_in_grace(now.mono.0) => Answer::Grace,
                None => Answer::Unavailable,
            };
        }
        // As the shell has it.
        let outcome = match outcome {
            Ok(Outcome::Unavailable) => self.primary.manager.unless_grace(Outcome::Unavailable, now.mono, judged_at),
            outcome => outcome,
        };
        if let Err(Refusal::Grace(left)) = &outcome {
            assert_eq!(*left, self.naive.grace_left(now.mono.0).unwrap_or(Millis(0)));
        }
        if let (Err(Refusal::Deadlock(cycle)), Answer::Deadlock) = (&outcome, &expected) {
            let requester = self.naive.refused.take().expect("was refused");
            self.naive.waiters.push(requester.clone());
            self.check_cycle(&requester, &cycle.0);
            self.naive.waiters.pop();
        }
        if let (Ok(Outcome::Queued(id)), Answer::Queued) | (Ok(Outcome::Placed(id)), Answer::Placed) =
            (&outcome, &expected)
        {
            self.naive.call_last(id.to_number());
        }
        assert_eq!(answer_of(outcome), expected, "{request:?} {:?}", self.naive);
        self.last = Some(expected);
        assert_eq!(self.naive.replaced, None, "only a repeated request takes over a place");
        for (id, answer) in answers {
            self.hear(id, answer);
        }
        self.naive.end_keeping();
        if let Operation::Release(_) = request.operation {
            for key in keys {
                self.naive.looked(db, *key, now.mono.0);
            }
        }
        for key in keys {
            self.check_settled((db, *key), &request.owner);
        }
    }

    /// Whether holds that are over lie on one of these keys.
    pub(super) fn has_over(&self, (db, keys): (u32, &[u8])) -> bool {
        let mut locks = keys.iter().filter_map(|key| self.primary.locks.get(&(db, *key)));
        let sessions = self.primary.manager.sessions();
        locks.any(|lock| lock.holds.iter().any(|(_, hold)| sessions.end_of(hold) <= self.judged()))
    }
}

fn answer_of(outcome: Result<Outcome, Refusal>) -> Answer {
    match outcome {
        Ok(Outcome::Granted(fences)) => Answer::Granted(fences.into_iter().map(Fence::get).collect()),
        Ok(Outcome::Unavailable) => Answer::Unavailable,
        Ok(Outcome::Queued(_)) => Answer::Queued,
        Ok(Outcome::Begun(_)) => unreachable!("its client was parked, or not"),
        Ok(Outcome::Released(left)) => Answer::Released(left.into_vec()),
        Ok(Outcome::Extended(fences)) => Answer::Extended(fences.into_iter().map(|f| f.map(Fence::get)).collect()),
        Ok(Outcome::Guarded(fence)) => Answer::Guarded(fence.map(Fence::get)),
        Err(Refusal::TooManyHolders) => Answer::TooManyHolders,
        Err(Refusal::AmbiguousRelease) => Answer::Ambiguous,
        Err(Refusal::AlreadyWaits) => Answer::AlreadyWaits,
        Err(Refusal::TooManyWaiters) => Answer::TooManyWaiters,
        Err(Refusal::TooManyWaitersOfKey) => Answer::TooManyWaitersOfKey,
        Ok(Outcome::Placed(_)) => Answer::Placed,
        Err(Refusal::TooManyPlaces) => Answer::TooManyPlaces,
        Err(Refusal::OtherMode) => Answer::OtherMode,
        Err(Refusal::OtherTake) => Answer::OtherTake,
        Err(Refusal::HoldsShares) => Answer::HoldsShares,
        Err(Refusal::OtherKeys) => Answer::OtherKeys,
        Err(Refusal::QueuedUpgrade) => Answer::QueuedUpgrade,
        Err(Refusal::Deadlock(_)) => Answer::Deadlock,
        Err(Refusal::Grace(_)) => Answer::Grace,
        Err(Refusal::MinFenceAhead) => Answer::MinFenceAhead,
        Err(Refusal::OutOfMemory) => Answer::OutOfMemory,
        Err(other) => panic!("not in the model: {other:?}"),
    }
}
