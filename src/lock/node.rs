//! One node's locks: settles, decides, commits. The only place that changes a lock.
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

use super::codec::Saved;
use super::fence::{Fence, FenceClock};
use super::hold::{Hold, Mode, Term};
use super::lease::{KeyName, LeaseId, Leases, Look};
use super::limits::Limits;
use super::owner::Owner;
use super::request::{
    Acquire, Ask, Cause, Change, Db, Effects, Extend, Fact, Keyspace, Origin, Outcome, PerKey, Place, Refusal, Release,
    Request, Slot, Step,
};
use super::time::{Now, Timestamp, WallTime};
use super::value::Lock;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a node knows beside the locks themselves.
#[derive(Debug)]
pub struct Node {
    /// What is allowed.
    pub limits: Limits,
    fences: FenceClock,
    term: Term,
    /// The index of leases of each database, by its number.
    leases: Vec<Option<Box<Leases>>>,
    /// Indexes of flushed databases, whose memory is given back little by little.
    retired: Vec<Leases>,
}

/// What a look for due leases found.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// A lease on this key may be over: open the key and call [`Node::lapse`].
    Key(Db, LeaseId, KeyName),
    /// Work was done; look again, after a look at the clock.
    Again,
    /// Nothing is due.
    Nothing,
}

/// What judging an ACQUIRE found, by the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    New,
    Again,
    Upgrade,
    Held,
}

impl Node {
    /// A node that has given no fence and knows no lock.
    #[must_use]
    pub const fn new(limits: Limits) -> Node {
        Node { limits, fences: FenceClock::new(), term: Term::FIRST, leases: Vec::new(), retired: Vec::new() }
    }

    /// Settles the request's keys, then serves it: all of it or nothing.
    pub fn serve<K: Keyspace>(&mut self, keys: &mut K, request: &Request, now: Now) -> Step {
        let slots = || request.slots();
        let mut effects = Effects::new();
        for slot in slots() {
            settle(keys, slot, now.mono, usize::MAX, &mut effects);
        }
        let outcome = match &request.ask {
            Ask::Acquire(ask) => self.acquire(keys, request, ask, now, &mut effects),
            Ask::Release(ask) => release(keys, request, ask, &mut effects),
            Ask::Extend(ask) => {
                let extended = slots().map(|slot| extend(keys, slot, &request.owner, ask, now.mono, &mut effects));
                Ok(Outcome::Extended(extended.collect()))
            }
        };
        for slot in slots() {
            self.follow(keys, slot, now.mono);
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
        let mut verdicts = PerKey::new();
        let mut fences_new = 0;
        for slot in request.slots() {
            let lock = keys.lock(slot);
            let verdict = judge(lock.as_deref(), owner, mode, &self.limits)?;
            if verdict == Verdict::Held {
                return Ok(Outcome::Held);
            }
            let carried = lock.is_some_and(|lock| self.is_carried(lock, owner));
            let new_fence = verdict != Verdict::Again || carried;
            fences_new += u64::from(new_fence);
            verdicts.push((verdict, new_fence));
        }
        if self.fences.left(now.wall) < fences_new {
            return Err(Refusal::FencesUsedUp);
        }

        let mut fences = PerKey::new();
        for (slot, (verdict, new_fence)) in request.slots().zip(verdicts) {
            let lock = match verdict {
                Verdict::New if keys.lock(slot).is_none() => keys.create(slot),
                _ => keys.lock(slot).expect("judged on this lock"),
            };
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
            change(lock, slot, Cause::Acquire, owner, hold, effects);
            fences.push(fence);
        }
        Ok(Outcome::Granted(fences))
    }

    fn is_carried(&self, lock: &Lock, owner: &Owner) -> bool {
        lock.holds.get(owner.as_bytes()).is_some_and(|hold| hold.granted_in != self.term)
    }

    /// Does what a LOCK.HOLD says. A client's is settled first and checked; the primary's and the disk's are facts.
    ///
    /// # Errors
    /// Only for a client's: the fence is far ahead, or the hold would break the lock.
    pub fn apply<K: Keyspace>(
        &mut self,
        keys: &mut K,
        slot: Slot,
        fact: &Fact,
        origin: Origin,
        now: Now,
    ) -> (Result<(), Refusal>, Effects) {
        let mut effects = Effects::new();
        let mut checked = Ok(());
        if origin == Origin::Client {
            settle(keys, slot, now.mono, usize::MAX, &mut effects);
            checked = check(keys.lock(slot).as_deref(), fact, &self.limits, now.wall);
        }
        if checked.is_ok() {
            self.put_fact(keys, slot, fact, origin, now, &mut effects);
        }
        self.follow(keys, slot, now.mono);
        (checked, effects)
    }

    fn put_fact<K: Keyspace>(
        &mut self,
        keys: &mut K,
        slot: Slot,
        fact: &Fact,
        origin: Origin,
        now: Now,
        effects: &mut Effects,
    ) {
        if let Some(fence) = fact.fence {
            self.fences.observe(fence);
        }
        let owner = &fact.owner;
        let Some(mut hold) = fact.hold(origin, now) else {
            if let Some(lock) = keys.lock(slot) {
                remove(lock, slot, Cause::Told, owner, effects);
            }
            return;
        };
        let lock = match keys.lock(slot).is_some() {
            true => keys.lock(slot).expect("seen on the line above"),
            false => keys.create(slot),
        };
        if let Some(old) = lock.holds.get(owner.as_bytes()) {
            hold.since = old.since;
        }
        lock.raise_fence(hold.fence);
        change(lock, slot, Cause::Told, owner, hold, effects);
    }

    /// The lock that was saved, with its leases running again and its fence noted. Without a place it is not a key's
    /// value, and its leases are looked after by nobody.
    ///
    /// # Errors
    /// When it comes from a client (RESTORE) and a fence is far ahead.
    pub fn load(
        &mut self,
        place: Option<(Db, &[u8])>,
        saved: &Saved,
        origin: Origin,
        now: Now,
    ) -> Result<Lock, Refusal> {
        let mut lock = Lock { fence: saved.fence, ..Lock::default() };
        if origin == Origin::Client && lock.fence.is_some_and(|fence| fence.is_far_ahead(now.wall)) {
            return Err(Refusal::FenceFarAhead);
        }
        for fact in &saved.holds {
            if let Some(hold) = fact.hold(origin, now) {
                lock.holds.put(&fact.owner, hold);
            }
        }
        if let Some(fence) = lock.fence {
            self.fences.observe(fence);
        }
        if let Some((db, name)) = place {
            self.follow_lock(db, name, &mut lock, now.mono);
        }
        Ok(lock)
    }

    /// A lock came to another name or database: it goes on there, carried.
    pub fn carry(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        lock.holds.carry(now);
        self.follow_lock(db, name, lock, now);
    }

    /// A lock leaves its key, to go elsewhere or away: its lease is no longer looked after here.
    pub fn forget(&mut self, db: Db, lock: &Lock) {
        if let Some(id) = lock.lease {
            self.leases_of(db).disarm(id);
        }
    }

    /// A database, or all of them, was emptied.
    pub fn flush(&mut self, db: Option<Db>) {
        match db {
            None => self.retired.extend(self.leases.drain(..).flatten().map(|leases| *leases)),
            Some(Db(number)) => {
                let flushed = self.leases.get_mut(number as usize).and_then(Option::take);
                self.retired.extend(flushed.map(|leases| *leases));
            }
        }
    }

    /// Two databases changed places. What lay under a key of one lies under the same key of the other now, so every
    /// hold counts as carried.
    pub fn swap(&mut self, one: Db, other: Db) {
        let highest = one.max(other).0 as usize;
        if self.leases.len() <= highest {
            self.leases.resize_with(highest + 1, || None);
        }
        self.leases.swap(one.0 as usize, other.0 as usize);
        self.term = self.term.next();
    }

    /// This node has become the primary: all its holds are carried, and its fences pass by those that the old primary
    /// may have given unseen.
    pub fn promote(&mut self, wall: WallTime) {
        self.term = self.term.next();
        self.fences.jump(wall, self.limits.promotion_skew);
    }

    /// A fence was given elsewhere or before.
    pub fn observe_fence(&mut self, fence: Fence) {
        self.fences.observe(fence);
    }

    /// The last fence given or seen.
    #[must_use]
    pub fn last_fence(&self) -> Option<Fence> {
        self.fences.last()
    }

    /// How many keys have a running lease.
    #[must_use]
    pub fn leases_len(&self) -> usize {
        self.leases.iter().flatten().map(|leases| leases.len()).sum()
    }

    /// The next moment at which [`Node::due`] is worth calling; None when there is nothing to wait for.
    #[must_use]
    pub fn next_look(&self) -> Option<Timestamp> {
        self.leases.iter().flatten().filter_map(|leases| leases.next_look()).min()
    }

    /// Looks for a lease that is over, and does a bounded piece of work on the way.
    pub fn due(&mut self, now: Timestamp) -> Due {
        for (number, leases) in self.leases.iter_mut().enumerate() {
            match leases.as_mut().map_or(Look::Nothing, |leases| leases.look(now)) {
                Look::Due(id, key) => return Due::Key(Db(number as u32), id, key),
                Look::Again => return Due::Again,
                Look::Nothing => {}
            }
        }
        Due::Nothing
    }

    /// Gives back a bounded piece of the memory of flushed databases' indexes; false when there is none left.
    pub fn shed(&mut self) -> bool {
        let Some(leases) = self.retired.last_mut() else { return false };
        if !leases.shed() {
            self.retired.pop();
        }
        true
    }

    /// Drops an entry whose key has something else now.
    pub fn drop_entry(&mut self, db: Db, entry: LeaseId) {
        self.leases_of(db).disarm(entry);
    }

    /// Ends at most `most` holds that are over on the key of a due entry.
    ///
    /// An entry whose lock is not there any more (its value was lost without a word from the server) is dropped.
    pub fn lapse<K: Keyspace>(
        &mut self,
        keys: &mut K,
        slot: Slot,
        entry: LeaseId,
        now: Timestamp,
        most: usize,
    ) -> Effects {
        let mut effects = Effects::new();
        let Place { db, lock, .. } = keys.at(slot);
        if lock.is_none_or(|lock| lock.lease != Some(entry)) {
            self.leases_of(db).disarm(entry);
            return effects;
        }
        settle(keys, slot, now, most, &mut effects);
        self.follow(keys, slot, now);
        effects
    }

    /// Whether the index has an entry for this lock that stands no later than `deadline` (I4).
    #[must_use]
    pub fn covers(&self, db: Db, lock: &Lock, deadline: Timestamp) -> bool {
        let leases = self.leases.get(db.0 as usize).and_then(Option::as_ref);
        leases.zip(lock.lease).is_some_and(|(leases, id)| leases.covers(id, deadline, Timestamp(0)))
    }

    fn leases_of(&mut self, db: Db) -> &mut Leases {
        let number = db.0 as usize;
        if self.leases.len() <= number {
            self.leases.resize_with(number + 1, || None);
        }
        self.leases[number].get_or_insert_default()
    }

    /// Lets the index follow what a step did to a key.
    fn follow<K: Keyspace>(&mut self, keys: &mut K, slot: Slot, now: Timestamp) {
        if let Place { db, name, lock: Some(lock) } = keys.at(slot) {
            self.follow_lock(db, name, lock, now);
        }
    }

    /// Keeps I4. An entry that stands early enough stays: moving it at every re-entry would cost more than one look too
    /// many.
    fn follow_lock(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        let earliest = lock.holds.earliest().map(|(deadline, _)| deadline);
        let leases = self.leases_of(db);
        match (lock.lease, earliest) {
            (Some(id), Some(deadline)) if leases.covers(id, deadline, now) || leases.rearm(id, deadline) => {}
            (_, Some(deadline)) => lock.lease = Some(leases.arm(name, deadline)),
            (Some(id), None) => {
                leases.disarm(id);
                lock.lease = None;
            }
            (None, None) => {}
        }
    }
}

/// Ends what is over on a key, the earliest first, at most `most` holds. Keeps I5 when `most` is not reached.
fn settle<K: Keyspace>(keys: &mut K, slot: Slot, now: Timestamp, most: usize, effects: &mut Effects) {
    let Some(lock) = keys.lock(slot) else { return };
    for _ in 0..most {
        let Some((owner, hold)) = lock.holds.take_over(now) else { return };
        effects.push(Change { slot, cause: Cause::Lapse, owner, fence: hold.fence, hold: None });
    }
}

/// What an asker may have, by the table at the top.
fn judge(lock: Option<&Lock>, owner: &Owner, mode: Mode, limits: &Limits) -> Result<Verdict, Refusal> {
    let Some(lock) = lock else { return Ok(Verdict::New) };
    let alone = !lock.held_by_other(owner.as_bytes());
    match lock.holds.get(owner.as_bytes()) {
        None if alone => Ok(Verdict::New),
        None if mode == Mode::Write || lock.mode() == Some(Mode::Write) => Ok(Verdict::Held),
        None if lock.holds.len() >= limits.holders_per_key_max => Err(Refusal::TooManyHolders),
        None => Ok(Verdict::New),
        Some(hold) if mode == Mode::Write && hold.writes == 0 => {
            Ok(if alone { Verdict::Upgrade } else { Verdict::Held })
        }
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
    for slot in request.slots() {
        let lock = keys.lock(slot);
        let hold = lock.as_deref().and_then(|lock| held(lock, owner, ask.fence));
        if ask.is_ambiguous() && hold.is_some_and(|hold| hold.reads > 0 && hold.writes > 0) {
            return Err(Refusal::AmbiguousRelease);
        }
    }
    let left = request.slots().map(|slot| {
        let lock = keys.lock(slot)?;
        let mut hold = held(lock, owner, ask.fence)?.clone();
        let before = hold.total();
        for mode in [Mode::Read, Mode::Write] {
            if ask.mode.is_none_or(|named| named == mode) {
                hold.set_count(mode, ask.amount.left_of(hold.count(mode)));
            }
        }
        let total = hold.total();
        if total == 0 {
            remove(lock, slot, Cause::Release, owner, effects);
        } else if total < before {
            change(lock, slot, Cause::Release, owner, hold, effects);
        }
        Some(total)
    });
    Ok(Outcome::Released(left.collect()))
}

fn extend<K: Keyspace>(
    keys: &mut K,
    slot: Slot,
    owner: &Owner,
    ask: &Extend,
    now: Timestamp,
    effects: &mut Effects,
) -> Option<Fence> {
    let lock = keys.lock(slot)?;
    let hold = Hold { deadline: now + ask.lease, ..held(lock, owner, ask.fence)?.clone() };
    let fence = hold.fence;
    change(lock, slot, Cause::Extend, owner, hold, effects);
    Some(fence)
}

/// The owner's hold, if it has the fence that was named.
fn held<'a>(lock: &'a Lock, owner: &Owner, fence: Option<Fence>) -> Option<&'a Hold> {
    lock.holds.get(owner.as_bytes()).filter(|hold| fence.is_none_or(|fence| fence == hold.fence))
}

fn change(lock: &mut Lock, slot: Slot, cause: Cause, owner: &Owner, hold: Hold, effects: &mut Effects) {
    let fence = hold.fence;
    lock.holds.put(owner, hold.clone());
    effects.push(Change { slot, cause, owner: owner.clone(), fence, hold: Some(hold) });
}

fn remove(lock: &mut Lock, slot: Slot, cause: Cause, owner: &Owner, effects: &mut Effects) {
    if let Some(Hold { fence, .. }) = lock.holds.take(owner.as_bytes()) {
        effects.push(Change { slot, cause, owner: owner.clone(), fence, hold: None });
    }
}

/// Whether a client's fact may stand: its fence is not far ahead and it keeps I2 and I3.
fn check(lock: Option<&Lock>, fact: &Fact, limits: &Limits, wall: WallTime) -> Result<(), Refusal> {
    if fact.fence.is_some_and(|fence| fence.is_far_ahead(wall)) {
        return Err(Refusal::FenceFarAhead);
    }
    let Some(lock) = lock else { return Ok(()) };
    if fact.is_removal() {
        return Ok(());
    }
    let owner = fact.owner.as_bytes();
    let excludes = fact.writes > 0 || lock.holds.any().is_some_and(|(who, hold)| who != &fact.owner && hold.writes > 0);
    let same_fence = |(who, hold): (&Owner, &Hold)| Some(hold.fence) == fact.fence && who != &fact.owner;
    if lock.held_by_other(owner) && (excludes || lock.holds.iter().any(same_fence)) {
        return Err(Refusal::BreaksLock);
    }
    if lock.holds.get(owner).is_none() && lock.holds.len() >= limits.holders_per_key_max {
        return Err(Refusal::TooManyHolders);
    }
    Ok(())
}

impl Fact {
    /// Whether it says that the hold is gone.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.reads == 0 && self.writes == 0
    }

    /// The fact of a hold as it stands now.
    #[must_use]
    pub fn of(owner: &Owner, hold: &Hold, now: Now) -> Fact {
        Fact {
            owner: owner.clone(),
            reads: hold.reads,
            writes: hold.writes,
            fence: Some(hold.fence),
            wall_deadline: now.wall_at(hold.deadline),
            left: hold.deadline.left(now.mono),
            note: hold.note.clone(),
        }
    }

    /// The hold that this fact describes, carried here now; None for a removal.
    fn hold(&self, origin: Origin, now: Now) -> Option<Hold> {
        if self.is_removal() {
            return None;
        }
        let left = match origin {
            Origin::Disk => self.left.min(now.left_until(self.wall_deadline)),
            Origin::Peer | Origin::Client => self.left,
        };
        Some(Hold {
            reads: self.reads,
            writes: self.writes,
            fence: self.fence?,
            deadline: now.mono + left,
            since: now.mono,
            granted_in: Term::CARRIED,
            note: self.note.clone(),
        })
    }
}
