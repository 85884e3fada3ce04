//! Serving a request: settle, decide, commit.
//!
//! A command is settled first (what is over ends), then judged as a whole, then committed; judging changes nothing and
//! committing cannot fail, so a refused request leaves no trace. What an asker gets, by what is there:
//!
//! | asker's hold | other holders | asks READ | asks WRITE |
//! | --- | --- | --- | --- |
//! | none | none | new hold | new hold |
//! | none | readers | new hold | held |
//! | none | a writer | held | held |
//! | reads | none | again | upgrade |
//! | reads | readers | again | held |
//! | writes, perhaps reads | none (I2) | again (a downgrade begins so) | again |
//!
//! *New hold* and *upgrade* get a new fence; *again* keeps its fence unless the hold was carried here.

use super::change::{Cause, Effects, change, remove, settle};
use super::fence::Fence;
use super::hold::{Hold, Mode};
use super::keyspace::{KeyIndex, Keyspace};
use super::limits::Limits;
use super::node::Node;
use super::owner::Owner;
use super::request::{Acquire, Ask, Extend, Outcome, PerKey, Refusal, Release, Request, Step};
use super::time::{Now, Timestamp};
use super::value::Lock;

/// What judging an ACQUIRE found, by the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// A new hold or an upgrade: with a new fence.
    Anew,
    Again,
    Held,
}

impl Node {
    /// Settles the request's keys, then serves it: all of it or nothing.
    pub fn serve<K: Keyspace>(&mut self, keys: &mut K, request: &Request, now: Now) -> Step {
        let mut effects = Effects::new();
        for key in keys.all() {
            settle(keys, key, now.mono, usize::MAX, &mut effects);
        }
        let outcome = match &request.ask {
            Ask::Acquire(ask) => self.acquire(keys, request, ask, now, &mut effects),
            Ask::Release(ask) => release(keys, request, ask, &mut effects),
            Ask::Extend(ask) => {
                let extended = keys.all().map(|key| extend(keys, key, &request.owner, ask, now.mono, &mut effects));
                Ok(Outcome::Extended(extended.collect()))
            }
        };
        for key in keys.all() {
            self.follow(keys, key, now.mono);
        }
        Step { outcome, effects }
    }

    fn acquire<K: Keyspace>(
        &mut self,
        keys: &mut K,
        request: &Request,
        ask: &Acquire,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        let (owner, mode, deadline) = (&request.owner, ask.mode, now.mono + ask.lease);
        let mut new_fences = PerKey::new();
        for key in keys.all() {
            let lock = keys.lock(key);
            let verdict = judge(lock.as_deref(), owner, mode, &self.limits)?;
            if verdict == Verdict::Held {
                return Ok(Outcome::Held);
            }
            let carried = lock.is_some_and(|lock| self.is_carried(lock, owner));
            new_fences.push(verdict == Verdict::Anew || carried);
        }
        let fences_new = new_fences.iter().filter(|new| **new).count() as u64;
        if fences_new > 0 {
            self.fences.begin(now.wall, self.limits.promotion_skew);
        }
        if self.fences.left(now.wall) < fences_new {
            return Err(Refusal::FencesUsedUp);
        }

        let mut fences = PerKey::new();
        for (key, new_fence) in keys.all().zip(new_fences) {
            let lock = keys.lock_or_create(key);
            let old = lock.holds.get(owner.as_bytes());
            let fence = match old {
                Some(old) if !new_fence => old.fence,
                _ => self.fences.next(now.wall).expect("as many are left as are needed"),
            };
            let mut hold = old.cloned().unwrap_or(Hold {
                reads: 0,
                writes: 0,
                fence,
                deadline,
                since: now.mono,
                granted_in: self.term,
                note: None,
            });
            hold.set_count(mode, hold.count(mode) + 1);
            hold.fence = fence;
            hold.granted_in = self.term;
            hold.deadline = hold.deadline.max(deadline);
            if ask.note.is_some() {
                hold.note.clone_from(&ask.note);
            }
            lock.raise_fence(fence);
            change(lock, key, Cause::Acquire, owner, hold, effects);
            fences.push(fence);
        }
        Ok(Outcome::Granted(fences))
    }

    fn is_carried(&self, lock: &Lock, owner: &Owner) -> bool {
        lock.holds.get(owner.as_bytes()).is_some_and(|hold| hold.granted_in != self.term)
    }
}

/// What an asker may have, by the table at the top.
fn judge(lock: Option<&Lock>, owner: &Owner, mode: Mode, limits: &Limits) -> Result<Verdict, Refusal> {
    let Some(lock) = lock else { return Ok(Verdict::Anew) };
    let alone = !lock.held_by_other(owner.as_bytes());
    match lock.holds.get(owner.as_bytes()) {
        None if alone => Ok(Verdict::Anew),
        None if mode == Mode::Write || lock.mode() == Some(Mode::Write) => Ok(Verdict::Held),
        None if lock.holds.len() >= limits.holders_per_key_max => Err(Refusal::TooManyHolders),
        None => Ok(Verdict::Anew),
        Some(hold) if mode == Mode::Write && hold.writes == 0 => Ok(if alone { Verdict::Anew } else { Verdict::Held }),
        Some(hold) if hold.count(mode) == u32::MAX => Err(Refusal::TooManyCounts),
        Some(_) => Ok(Verdict::Again),
    }
}

fn release<K: Keyspace>(
    keys: &mut K,
    request: &Request,
    ask: &Release,
    effects: &mut Effects,
) -> Result<Outcome, Refusal> {
    let owner = &request.owner;
    for key in keys.all() {
        let lock = keys.lock(key);
        let hold = lock.as_deref().and_then(|lock| held(lock, owner, ask.fence));
        if ask.is_ambiguous() && hold.is_some_and(|hold| hold.reads > 0 && hold.writes > 0) {
            return Err(Refusal::AmbiguousRelease);
        }
    }
    let left = keys.all().map(|key| {
        let lock = keys.lock(key)?;
        let mut hold = held(lock, owner, ask.fence)?.clone();
        let before = hold.total();
        for mode in [Mode::Read, Mode::Write] {
            if ask.mode.is_none_or(|named| named == mode) {
                hold.set_count(mode, ask.amount.left_of(hold.count(mode)));
            }
        }
        let total = hold.total();
        if total == 0 {
            remove(lock, key, Cause::Release, owner, effects);
        } else if total < before {
            change(lock, key, Cause::Release, owner, hold, effects);
        }
        Some(total)
    });
    Ok(Outcome::Released(left.collect()))
}

fn extend<K: Keyspace>(
    keys: &mut K,
    key: KeyIndex,
    owner: &Owner,
    ask: &Extend,
    now: Timestamp,
    effects: &mut Effects,
) -> Option<Fence> {
    let lock = keys.lock(key)?;
    let hold = Hold { deadline: now + ask.lease, ..held(lock, owner, ask.fence)?.clone() };
    let fence = hold.fence;
    change(lock, key, Cause::Extend, owner, hold, effects);
    Some(fence)
}

/// The owner's hold, if it has the fence that was named.
fn held<'a>(lock: &'a Lock, owner: &Owner, fence: Option<Fence>) -> Option<&'a Hold> {
    lock.holds.get(owner.as_bytes()).filter(|hold| fence.is_none_or(|fence| fence == hold.fence))
}
