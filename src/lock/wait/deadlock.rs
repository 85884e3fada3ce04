//! Deadlocks: circles of owners, each of whom waits for the next. Looked for at the moment somebody would close one.
//!
//! An owner waits for exactly what its service waits for: other owners' conflicting holds, and the waiters that go
//! before it, each through all keys that it waits for. All of those must leave, so a way back to the asker is a
//! deadlock (the AND-model of Knapp, "Deadlock detection in distributed databases", 1987). Only owners who wait have
//! edges.
//!
//! Of the many who may stand in a line before somebody, most wait for this key alone: they wait for its holders and for
//! each other, which adds nothing but that the holders count for a reader too once a writer stands before it, and that
//! who branches off may go before one of them though not before the one that is looked at. So only those that branch
//! off to other keys are visited one by one, and a long line costs no more than a short one.
//!
//! A search costs what it reaches, however many wait for the same keys. Four things see to that:
//!
//! - No lock changes while it lasts: who of its holders waits is asked of each key once.
//! - Whether a waiter delays another is decided by its `Kind`, not by itself: those of a kind are reached together.
//! - Who was reached leaves the lines of the search (`Place::waiting`), so that nobody comes upon it again.
//! - An asker that nobody waits for closes no circle. That is seen by the holds on the keys that are waited for, so it
//!   is asked as soon as the search would take longer than the answer.

use super::order::{Order, Requester, keeps_waiting};
use super::queue::{Position, WaitQueue};
use super::waiter::{CycleCause, Waiter, Wanted};
use crate::lock::model::hold::Mode;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::lock::Lock;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Cycle, Hop, WaiterId};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// An owner that was reached: from which, and at which key it is waited for.
struct Reached<'r> {
    owner: &'r Owner,
    from: Option<Via<'r>>,
}

/// Those in line between two owners, without whom the one would not wait for the other, the nearest first.
type Behind<'r> = SmallVec<[&'r Owner; 2]>;

#[derive(Clone)]
struct Via<'r> {
    reached: usize,
    place: usize,
    behind: Behind<'r>,
}

/// All that decides whether a waiter delays another that stands behind it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    reads: bool,
    many: bool,
    /// The places of those of its keys of which a holder waits: such a holder it may not delay.
    held: SmallVec<[usize; 1]>,
}

/// A key that is waited for, and what the search knows of it.
struct Place<'r> {
    db: Db,
    name: &'r KeyName,
    queue: &'r WaitQueue,
    /// Of its holders those who wait for something, and whether they write; None until somebody asks.
    holders: Option<BTreeMap<&'r Owner, bool>>,
    /// By kind and in order, those who branch off and were not reached yet.
    waiting: BTreeMap<u32, VecDeque<(Position, WaiterId)>>,
    /// Whoever branches off before this place is in `waiting`, or was.
    known: Option<Position>,
    /// How many were seen to branch off.
    listed: usize,
    /// Whoever delays one that waits for this key alone, before this place, was reached.
    passed: Option<Position>,
    reached: HoldersReached,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HoldersReached {
    None,
    Writers,
    All,
}

/// What the search knows of a waiter, by its place in the room.
#[derive(Clone, Copy, Default)]
struct Mark {
    reached: bool,
    /// Its kind, by number from 1; 0 until somebody asks.
    kind: u32,
}

struct Search<'r> {
    order: Order<'r>,
    requester: &'r Owner,
    /// The asker's only wait, if that is for one key.
    plain: Option<(WaiterId, &'r Waiter)>,
    /// Whether there may be holds that came after those who wait for them.
    late: bool,
    reached: Vec<Reached<'r>>,
    marks: Vec<Mark>,
    places: Vec<Place<'r>>,
    numbers: BTreeMap<(Db, &'r KeyName), usize>,
    /// The last place at each position of a request: many ask for the same keys in the same order.
    hints: Vec<usize>,
    kinds: Vec<Kind>,
    kind_numbers: BTreeMap<Kind, u32>,
}

/// Looks for a circle through an owner.
pub(crate) fn find<K: Keyspace>(order: Order<'_>, keys: &mut K, requester: &Owner, cause: CycleCause) -> Option<Cycle> {
    let late = cause == CycleCause::NewHold;
    if !late && all_wait_in_one_queue(order, requester) {
        return None;
    }
    let first = order.wait_table.waiting_of(requester).map(|(id, _)| id).next()?;
    let mut search = Search::new(order, &order.wait_table.waiter(first)?.owner, late);
    let mut at = 0;
    // How much the search may cost yet before it is worth to see whether anybody waits for the asker.
    let mut unchecked = Some(search.worth_checking());
    while let Some(owner) = search.reached.get(at).map(|reached| reached.owner) {
        for (_, waiter) in order.wait_table.waiting_of(owner) {
            for (nth, wanted) in waiter.keys.iter().enumerate() {
                let Some(place) = search.place_of(waiter.db, &wanted.name, nth) else { continue };
                if let Some(left) = unchecked {
                    unchecked = left.checked_sub(search.price(place, waiter.position_at(wanted)));
                    if unchecked.is_none() && !search.is_waited_for(keys) {
                        return None;
                    }
                }
                if let Some(last) = search.visit(keys, at, waiter, wanted, place) {
                    return Some(search.cycle(last));
                }
            }
        }
        at += 1;
    }
    None
}

/// Of these owners, and those that they wait for, whoever a circle must lead through: who waits more than once, or
/// holds something that is waited for. All others wait for nobody but those who came before them.
pub(crate) fn suspects<K: Keyspace>(order: Order<'_>, keys: &mut K, owners: &[Owner]) -> Vec<Owner> {
    // No owner is called so: nobody is looked for.
    let nobody = Owner::new(b"");
    let mut search = Search::new(order, &nobody, true);
    search.reached.clear();
    for owner in owners {
        let first = order.wait_table.waiting_of(owner).map(|(id, _)| id).next();
        if let Some(waiter) = first.and_then(|id| order.wait_table.waiter(id)) {
            search.reach(&waiter.owner, None);
        }
    }
    let mut at = 0;
    while let Some(owner) = search.reached.get(at).map(|reached| reached.owner) {
        for (_, waiter) in order.wait_table.waiting_of(owner) {
            for (nth, wanted) in waiter.keys.iter().enumerate() {
                if let Some(place) = search.place_of(waiter.db, &wanted.name, nth) {
                    search.visit(keys, at, waiter, wanted, place);
                }
            }
        }
        at += 1;
    }
    let waits_twice = |owner: &Owner| order.wait_table.waiting_of(owner).nth(1).is_some();
    let twice = search.reached.iter().map(|reached| reached.owner).filter(|owner| waits_twice(owner));
    let holders = search.places.iter().filter_map(|place| place.holders.as_ref()).flat_map(BTreeMap::keys).copied();
    let mut suspects: Vec<&Owner> = twice.chain(holders).collect();
    suspects.sort_unstable();
    suspects.dedup();
    suspects.into_iter().cloned().collect()
}

/// Whether all who wait do so in one line, in which the asker has come last: whatever it holds elsewhere, nobody wants.
fn all_wait_in_one_queue(order: Order<'_>, requester: &Owner) -> bool {
    let mut waiters = order.wait_table.waiting_of(requester);
    let (Some((_, waiter)), None) = (waiters.next(), waiters.next()) else { return false };
    match &waiter.keys[..] {
        [key] if !key.upgrade => {
            order.wait_table.queue(waiter.db, &key.name).is_some_and(|queue| hold_nothing(order, queue))
        }
        _ => false,
    }
}

/// Whether all who wait do so in this line, for this key alone, and hold nothing here: all but upgrades, of which the
/// first stands at the head.
fn hold_nothing(order: Order<'_>, queue: &WaitQueue) -> bool {
    let head = queue.iter().next().and_then(|id| order.wait_table.waiter(id));
    let head_holds = head.is_some_and(|head| head.keys.iter().any(|key| key.upgrade));
    order.wait_table.waiting() == queue.len() && queue.is_plain() && !head_holds
}

impl<'r> Search<'r> {
    fn new(order: Order<'r>, requester: &'r Owner, late: bool) -> Search<'r> {
        let mut waits = order.wait_table.waiting_of(requester);
        let only = waits.next().filter(|_| waits.next().is_none());
        Search {
            order,
            requester,
            plain: only.filter(|(_, waiter)| !waiter.is_many()),
            late,
            reached: Vec::from([Reached { owner: requester, from: None }]),
            marks: Vec::new(),
            places: Vec::new(),
            numbers: BTreeMap::new(),
            hints: Vec::new(),
            kinds: Vec::new(),
            kind_numbers: BTreeMap::new(),
        }
    }

    /// What it costs to see whether anybody waits for the asker: that looks at all keys that are waited for.
    fn worth_checking(&self) -> usize {
        const LEAST: usize = 8;
        self.order.wait_table.contended().max(LEAST)
    }

    /// At most what it costs to visit a waiter that stands here, by those that are listed for it.
    fn price(&self, place: usize, position: Position) -> usize {
        let Place { queue, known, .. } = self.places[place];
        let listed = if known.is_some_and(|known| known >= position) { 0 } else { queue.count_waits_elsewhere() };
        1 + listed
    }

    /// Whether somebody waits for the asker: stands behind it in a line, or wants what it holds.
    fn is_waited_for<K: Keyspace>(&self, keys: &mut K) -> bool {
        let Order { wait_table, .. } = self.order;
        let stands_before = |waiter: &Waiter, key: &Wanted| {
            let queue = wait_table.queue(waiter.db, &key.name);
            key.upgrade || queue.is_some_and(|queue| queue.next(Some(waiter.position_at(key))).is_some())
        };
        let mut places = wait_table.waiting_of(self.requester).map(|(_, waiter)| waiter);
        let mut held = wait_table.queues();
        places.any(|waiter| waiter.keys.iter().any(|key| stands_before(waiter, key)))
            || held.any(|(db, name, _)| {
                let holds = |lock: &Lock| lock.holds.get(self.requester.as_bytes()).is_some();
                keys.peek(db, name, holds).unwrap_or(false)
            })
    }

    /// The number of a key that is waited for.
    fn place_of(&mut self, db: Db, name: &'r KeyName, nth: usize) -> Option<usize> {
        if let Some(hint) = self.hints.get(nth)
            && let Some(place) = self.places.get(*hint)
            && (place.db, place.name) == (db, name)
        {
            return Some(*hint);
        }
        let number = match self.numbers.get(&(db, name)) {
            Some(number) => *number,
            None => {
                self.places.push(Place {
                    db,
                    name,
                    queue: self.order.wait_table.queue(db, name)?,
                    holders: None,
                    waiting: BTreeMap::new(),
                    known: None,
                    listed: 0,
                    passed: None,
                    reached: HoldersReached::None,
                });
                self.numbers.insert((db, name), self.places.len() - 1);
                self.places.len() - 1
            }
        };
        if self.hints.len() <= nth {
            self.hints.resize(nth + 1, number);
        }
        self.hints[nth] = number;
        Some(number)
    }

    /// Sees which holders of a key wait for something.
    fn see_holders<K: Keyspace>(&mut self, keys: &mut K, place: usize) {
        let Place { db, name, queue, ref mut holders, .. } = self.places[place];
        if holders.is_some() {
            return;
        }
        let (order, requester, wait_table) = (self.order, self.requester, self.order.wait_table);
        let none_waits = hold_nothing(order, queue) && !self.late;
        let seen = keys.peek(db, name, |lock: &Lock| {
            let writes = |who: &Owner| {
                let hold = lock.holds.get(who.as_bytes()).filter(|hold| order.stands(hold))?;
                Some(hold.writes > 0)
            };
            let mut seen = BTreeMap::new();
            if none_waits {
                seen.extend(writes(requester).map(|writes| (requester, writes)));
            } else if lock.holds.len() <= wait_table.waiting() {
                for (who, hold) in lock.holds.iter().filter(|(_, hold)| order.stands(hold)) {
                    let waiter =
                        wait_table.waiting_of(who).map(|(id, _)| id).next().and_then(|id| wait_table.waiter(id));
                    seen.extend(waiter.map(|waiter| (&waiter.owner, hold.writes > 0)));
                }
            } else {
                let waiting = wait_table.all_waiting().map(|waiter| &waiter.owner);
                seen.extend(waiting.filter_map(|who| Some((who, writes(who)?))));
            }
            seen
        });
        *holders = Some(seen.unwrap_or_default());
    }

    /// Whether an owner that waits holds this key, whose holders have been seen, and whether it writes.
    fn hold_of(&self, place: usize, owner: &Owner) -> Option<bool> {
        self.places[place].holders.as_ref()?.get(owner).copied()
    }

    /// Goes from a waiter to all that it waits for at one of its keys. The way back to the asker, if that is among
    /// them.
    fn visit<K: Keyspace>(
        &mut self,
        keys: &mut K,
        at: usize,
        waiter: &'r Waiter,
        wanted: &'r Wanted,
        place: usize,
    ) -> Option<Via<'r>> {
        self.see_holders(keys, place);
        if self.is_exhausted(place, waiter.position_at(wanted)) {
            return None;
        }
        let mut writer = None;
        match self.hold_of(place, &waiter.owner) {
            // It has what it asks for on this key.
            Some(writes) if writes || waiter.operation.mode == Mode::Read => return None,
            // An upgrade waits for holders alone.
            Some(_) => {}
            None => {
                let position = waiter.position_at(wanted);
                let found = self.those_ahead(keys, at, waiter, place, position);
                if found.is_some() {
                    return found;
                }
                if waiter.operation.mode == Mode::Read {
                    writer = self.writers(place, position, waiter).next().map(|(_, writer)| &writer.owner);
                }
            }
        }
        self.those_holding(at, waiter, place, writer)
    }

    /// Whether all have been reached that anybody at this place of a line may wait for there.
    fn is_exhausted(&self, place: usize, position: Position) -> bool {
        let Place { holders, waiting, known, reached, .. } = &self.places[place];
        let requester_holds = || holders.as_ref().is_some_and(|holders| holders.contains_key(self.requester));
        *reached == HoldersReached::All
            && known.is_some_and(|known| known >= position)
            && waiting.is_empty()
            && !requester_holds()
    }

    /// The writers before a place who wait for this key alone, but for those of a waiter's own owner.
    fn writers(
        &self,
        place: usize,
        position: Position,
        waiter: &'r Waiter,
    ) -> impl DoubleEndedIterator<Item = (Position, &'r Waiter)> + use<'r> {
        let wait_table = self.order.wait_table;
        let writers = self.places[place].queue.writers(position);
        let writers = writers.filter_map(|(position, id)| Some((position, wait_table.waiter(id)?)));
        writers.filter(|(_, writer)| writer.owner != waiter.owner)
    }

    /// Goes to those who branch off and stand before a waiter, as far as it waits for them: itself, or through those
    /// who wait for this key alone.
    fn those_ahead<K: Keyspace>(
        &mut self,
        keys: &mut K,
        at: usize,
        waiter: &'r Waiter,
        place: usize,
        position: Position,
    ) -> Option<Via<'r>> {
        self.know(keys, place, position);
        let via = |behind: &[&'r Owner]| Via { reached: at, place, behind: behind.iter().copied().collect() };
        if self.reach_delaying(place, position, Requester::of(waiter), &via(&[])) {
            return Some(via(&[]));
        }
        // A reader waits for other readers only if a writer stands between.
        let (end, first) = match waiter.operation.mode {
            Mode::Write => (position, None),
            Mode::Read => {
                if !self.has_left(place, position, |_| true) {
                    return None;
                }
                let mut writers = self.writers(place, position, waiter).rev();
                // Who holds the key waits for holders alone.
                let (end, writer) = writers.find(|(_, writer)| self.hold_of(place, &writer.owner).is_none())?;
                let via = via(&[&writer.owner]);
                if self.reach_delaying(place, end, Requester::of(writer), &via) {
                    return Some(via);
                }
                (end, Some(&writer.owner))
            }
        };
        let Place { queue, passed, .. } = self.places[place];
        // Who waits for this key alone has been reached by now, but for the asker itself from its own place.
        let (reservation, own) = (queue.reservation_expired(self.order.now), waiter.owner == *self.requester);
        if own || !reservation {
            for (position, id) in queue.backwards(passed, end) {
                if !self.has_left(place, position, |kind| own || kind.many) {
                    break;
                }
                let other =
                    self.order.wait_table.waiter(id).filter(|other| !other.is_many() && other.owner != waiter.owner);
                let Some(other) = other.filter(|other| self.hold_of(place, &other.owner).is_none()) else { continue };
                let behind: Behind<'r> = first.into_iter().chain([&other.owner]).collect();
                let via = via(&behind);
                if self.reach_delaying(place, position, Requester::of(other), &via) {
                    return Some(via);
                }
            }
        }
        self.places[place].passed = passed.max(Some(end));
        None
    }

    /// Whether somebody of these kinds stands before a place who was not reached.
    fn has_left(&self, place: usize, before: Position, of: impl Fn(&Kind) -> bool) -> bool {
        let mut waiting = self.places[place].waiting.iter();
        waiting.any(|(kind, those)| {
            those.front().is_some_and(|(position, _)| *position < before) && of(&self.kinds[*kind as usize - 1])
        })
    }

    /// Sees who branches off before a place.
    fn know<K: Keyspace>(&mut self, keys: &mut K, place: usize, before: Position) {
        let Place { db, name, queue, known, .. } = self.places[place];
        if known.is_some_and(|known| known >= before) {
            return;
        }
        // Beyond the place as many again, so that a line is read in few pieces, whoever asks first: those who were
        // reached elsewhere by then are left out.
        const LEAST: usize = 8;
        let spare = self.places[place].listed.max(LEAST);
        let mut waits_elsewhere = Vec::new();
        let mut upto = before;
        for (position, id) in queue.branching_from(known) {
            if position >= before && waits_elsewhere.len() >= spare {
                break;
            }
            upto = upto.max(position.following());
            waits_elsewhere.push((position, id));
        }
        self.places[place].known = Some(upto);
        self.places[place].listed += waits_elsewhere.len();
        // The asker is looked for, also where it waits for nothing else.
        if let Some((id, waiter)) = self.plain
            && (waiter.db, &waiter.keys[0].name) == (db, name)
        {
            let position = waiter.position_at(&waiter.keys[0]);
            if known.is_none_or(|known| position >= known)
                && position < upto
                && let Err(at) = waits_elsewhere.binary_search_by_key(&position, |(position, _)| *position)
            {
                waits_elsewhere.insert(at, (position, id));
            }
        }
        for (position, id) in waits_elsewhere {
            if let Some(waiter) = self.order.wait_table.waiter(id)
                && !self.mark(id).reached
            {
                let kind = self.kind_of(keys, id, waiter);
                self.places[place].waiting.entry(kind).or_default().push_back((position, id));
            }
        }
    }

    fn mark(&mut self, id: WaiterId) -> &mut Mark {
        let at = id.index() as usize;
        if self.marks.len() <= at {
            self.marks.resize(at + 1, Mark::default());
        }
        &mut self.marks[at]
    }

    /// The number of a waiter's kind.
    fn kind_of<K: Keyspace>(&mut self, keys: &mut K, id: WaiterId, waiter: &'r Waiter) -> u32 {
        if self.mark(id).kind != 0 {
            return self.mark(id).kind;
        }
        let mut held = SmallVec::new();
        if waiter.is_many() {
            for (nth, key) in waiter.keys.iter().enumerate() {
                let Some(place) = self.place_of(waiter.db, &key.name, nth) else { continue };
                self.see_holders(keys, place);
                if self.places[place].holders.as_ref().is_some_and(|holders| !holders.is_empty()) {
                    held.push(place);
                }
            }
            held.sort_unstable();
        }
        let kind = Kind { reads: waiter.operation.mode == Mode::Read, many: waiter.is_many(), held };
        let Search { kinds, kind_numbers, .. } = self;
        let number = *kind_numbers.entry(kind).or_insert_with_key(|kind| {
            kinds.push(kind.clone());
            kinds.len() as u32
        });
        self.mark(id).kind = number;
        number
    }

    /// Whether a waiter of this kind delays one that stands behind it: as [`Order::is_delayed`].
    fn delays(&self, place: usize, kind: u32, requester: Requester<'_>) -> bool {
        let Kind { reads, many, held } = &self.kinds[kind as usize - 1];
        let mode = if *reads { Mode::Read } else { Mode::Write };
        let by_kind = self.order.delays_by_kind((mode, *many), self.places[place].queue, requester.mode);
        by_kind.unwrap_or_else(|| {
            !held.iter().any(|held| {
                let writes = self.hold_of(*held, requester.owner);
                writes.is_some_and(|writes| keeps_waiting(writes, mode, requester.upgrades(self.places[*held].name)))
            })
        })
    }

    /// Reaches those before a place who delay this one. Whether the asker is among them.
    fn reach_delaying(&mut self, place: usize, before: Position, waiter: Requester<'_>, via: &Via<'r>) -> bool {
        let mut waiting = core::mem::take(&mut self.places[place].waiting);
        let mut found = false;
        waiting.retain(|kind, those| {
            let has_some = those.front().is_some_and(|(position, _)| *position < before);
            if !found && has_some && self.delays(place, *kind, waiter) {
                found = self.reach_all(those, before, waiter.owner, via);
            }
            !those.is_empty()
        });
        self.places[place].waiting = waiting;
        found
    }

    fn reach_all(
        &mut self,
        those: &mut VecDeque<(Position, WaiterId)>,
        before: Position,
        owner: &Owner,
        via: &Via<'r>,
    ) -> bool {
        let mut own: SmallVec<[(Position, WaiterId); 2]> = SmallVec::new();
        while let Some((position, id)) = those.pop_front_if(|(position, _)| *position < before) {
            let Some(waiter) = self.order.wait_table.waiter(id) else { continue };
            if self.mark(id).reached {
                continue;
            }
            if waiter.owner == *owner {
                own.push((position, id));
            } else if waiter.owner == *self.requester {
                return true;
            } else {
                self.reach(&waiter.owner, Some(via.clone()));
            }
        }
        own.into_iter().rev().for_each(|own| those.push_front(own));
        false
    }

    /// The holders that a waiter waits for: those that conflict with it, or with a writer before it.
    fn those_holding(
        &mut self,
        at: usize,
        waiter: &'r Waiter,
        place: usize,
        writer: Option<&'r Owner>,
    ) -> Option<Via<'r>> {
        let way = |who: &Owner, writes: bool| {
            let behind = match writer {
                _ if writes || waiter.operation.mode == Mode::Write => Behind::new(),
                // It stands before this one, too.
                Some(writer) if writer == who => Behind::new(),
                Some(writer) => Behind::from_slice(&[writer]),
                None => return None,
            };
            (*who != waiter.owner).then_some(Via { reached: at, place, behind })
        };
        let requester = self.hold_of(place, self.requester);
        if let Some(found) = requester.and_then(|writes| way(self.requester, writes)) {
            return Some(found);
        }
        let all = waiter.operation.mode == Mode::Write || writer.is_some();
        let to_reach = if all { HoldersReached::All } else { HoldersReached::Writers };
        if self.places[place].reached < to_reach {
            self.places[place].reached = to_reach;
            let holders = self.places[place].holders.take().unwrap_or_default();
            for (who, writes) in &holders {
                if let Some(via) = way(who, *writes) {
                    self.reach(who, Some(via));
                }
            }
            self.places[place].holders = Some(holders);
        }
        None
    }

    fn reach(&mut self, owner: &'r Owner, from: Option<Via<'r>>) {
        if *owner == *self.requester {
            return;
        }
        let mut is_new = false;
        for (id, _) in self.order.wait_table.waiting_of(owner) {
            is_new |= !core::mem::replace(&mut self.mark(id).reached, true);
        }
        if is_new {
            self.reached.push(Reached { owner, from });
        }
    }

    fn cycle(&self, last: Via<'r>) -> Cycle {
        let mut hops = Vec::new();
        let mut via = Some(&last);
        while let Some(Via { reached, place, behind }) = via {
            let Place { db, name, .. } = self.places[*place];
            let hop = |owner: &Owner| Hop { owner: owner.clone(), db, key: name.clone() };
            hops.extend(behind.iter().rev().map(|between| hop(between)));
            let Reached { owner, from } = &self.reached[*reached];
            hops.push(hop(owner));
            via = from.as_ref();
        }
        hops.reverse();
        Cycle(hops)
    }
}
