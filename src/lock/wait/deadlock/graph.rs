//! What a search knows of the contended keys: their holders that wait, and their waiters that wait elsewhere too.

use super::budget::Budget;
use crate::lock::model::hold::{Hold, Mode};
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::lock::Lock;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::WaiterId;
use crate::lock::wait::order::{Order, Requester, keeps_waiting};
use crate::lock::wait::queue::{Position, WaitQueue};
use crate::lock::wait::waiter::{Waiter, Wanted};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// All that decides whether a waiter delays another that stands behind it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    delays_readers: bool,
    pub(super) many: bool,
    /// Those of its keys, as nodes, that have a holder which waits: the waiter may not delay such a holder.
    held: SmallVec<[usize; 1]>,
}

/// A key that is met first is looked up in the keyspace and in the wait table.
const KEY_COST: usize = 32;

/// Waiters in order, with their positions.
pub(super) type Waiting = VecDeque<(Position, WaiterId)>;

/// A contended key, and what the search knows of it.
pub(super) struct KeyNode<'r> {
    pub(super) db: Db,
    pub(super) name: &'r KeyName,
    pub(super) queue: &'r WaitQueue,
    /// Its holders that wait for something; None until that is asked.
    pub(super) holders: Option<BTreeMap<&'r Owner, Held>>,
    /// The waiters for shares that wait for more of the readers than those before them, in order; None until that is
    /// asked.
    shares: Option<Vec<(Position, Beside<'r>)>>,
    /// By kind and in order, the waiters that wait elsewhere too and were not reached yet.
    pub(super) waiting: BTreeMap<u32, Waiting>,
    /// All waiters before this position that wait elsewhere too are in `waiting`, or were.
    known: Option<Position>,
    /// How many waiters were put into `waiting`.
    listed: usize,
    /// All waiters that delay a waiter for this key alone, before this position, were reached.
    pub(super) passed: Option<Position>,
    /// Its holders that wait and were not reached yet, those with the most reads last and writers behind them; None
    /// before the first was to be reached.
    pub(super) to_reach: Option<Vec<(Held, &'r Owner)>>,
}

/// How a holder holds a key: in the order of how much it keeps others waiting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) writes: bool,
    pub(super) reads: u32,
}

impl Held {
    fn of(hold: &Hold) -> Held {
        Held { writes: hold.writes() > 0, reads: hold.reads() }
    }

    /// Whether it keeps a waiter waiting that can be served beside so many reads of a holder.
    pub(super) fn exceeds(self, most: u32) -> bool {
        self.writes || self.reads > most
    }
}

/// Beside how many reads of one holder a waiter can be served.
#[derive(Clone, Copy)]
pub(super) struct Beside<'r> {
    pub(super) most: u32,
    /// The owner of the waiter that says so, if it is another one that stands before.
    pub(super) by: Option<&'r Owner>,
}

impl<'r> Beside<'r> {
    /// Any reads: it reads itself.
    pub(super) const READERS: Beside<'static> = Beside { most: u32::MAX, by: None };
    /// None: it writes.
    pub(super) const NOBODY: Beside<'static> = Beside { most: 0, by: None };

    /// The one that leaves less room.
    pub(super) fn stricter(self, other: Beside<'r>) -> Beside<'r> {
        if other.most < self.most { other } else { self }
    }
}

/// What the search knows of a waiter, by its index in the wait table.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) reached: bool,
    /// Its kind, by number from 1; 0 until that is asked.
    kind: u32,
}

pub(super) struct Graph<'r> {
    pub(super) order: Order<'r>,
    pub(super) requester: &'r Owner,
    /// The requester's only wait, if that is for one key.
    plain: Option<(WaiterId, &'r Waiter)>,
    /// Whether there may be holds that came after the waiters that wait for them.
    late: bool,
    marks: Vec<Mark>,
    pub(super) nodes: Vec<KeyNode<'r>>,
    numbers: BTreeMap<(Db, &'r KeyName), usize>,
    /// The last node for the first, second and so on of a request's keys: many ask for the same keys in the same order.
    hints: Vec<usize>,
    pub(super) kinds: Vec<Kind>,
    kind_numbers: BTreeMap<Kind, u32>,
    pub(super) budget: Budget,
}

/// Whether all waiters stand in this queue, for this key alone, and hold nothing here. Only upgrades hold their key,
/// and the first of them stands at the head.
pub(super) fn hold_nothing(order: Order<'_>, queue: &WaitQueue) -> bool {
    let head = queue.iter().next().and_then(|id| order.wait_table.waiter(id));
    let head_holds = head.is_some_and(|head| head.keys.iter().any(|key| key.upgrade));
    order.wait_table.waiting() == queue.len() && queue.is_plain() && !head_holds
}

impl<'r> Graph<'r> {
    pub(super) fn new(order: Order<'r>, requester: &'r Owner, late: bool, budget: Budget) -> Graph<'r> {
        let mut waits = order.wait_table.waiting_of(requester);
        let only = waits.next().filter(|_| waits.next().is_none());
        Graph {
            order,
            requester,
            plain: only.filter(|(_, waiter)| !waiter.is_many()),
            late,
            marks: Vec::new(),
            nodes: Vec::new(),
            numbers: BTreeMap::new(),
            hints: Vec::new(),
            kinds: Vec::new(),
            kind_numbers: BTreeMap::new(),
            budget,
        }
    }

    /// What it costs to tell whether anybody waits for the requester: that reads all contended keys. None if that is
    /// too much.
    pub(super) fn worth_checking(&self) -> Option<usize> {
        const LEAST: usize = 8;
        // To look for one hold costs less than to meet a key.
        Some(self.order.wait_table.contended().max(LEAST)).filter(|keys| *keys <= Budget::WHOLE / (KEY_COST / 2))
    }

    /// At most what it costs to visit a waiter at this position, by the waiters that are listed for it.
    pub(super) fn price(&self, node: usize, position: Position) -> usize {
        let KeyNode { queue, known, .. } = self.nodes[node];
        let listed = if known.is_some_and(|known| known >= position) { 0 } else { queue.count_waits_elsewhere() };
        1 + listed
    }

    /// Whether a waiter waits for the requester: stands behind it in a queue, or wants what it holds.
    pub(super) fn is_waited_for<K: Keyspace>(&self, keys: &mut K) -> bool {
        let Order { wait_table, .. } = self.order;
        let stands_before = |waiter: &Waiter, key: &Wanted| {
            let queue = wait_table.queue(waiter.db, &key.name);
            key.upgrade || queue.is_some_and(|queue| queue.next(Some(waiter.position_at(key))).is_some())
        };
        let mut waits = wait_table.waiting_of(self.requester).map(|(_, waiter)| waiter);
        let mut held = wait_table.queues();
        waits.any(|waiter| waiter.keys.iter().any(|key| stands_before(waiter, key)))
            || held.any(|(db, name, _)| {
                let holds = |lock: &Lock| lock.holds.get(self.requester.as_bytes()).is_some();
                keys.peek(db, name, holds).unwrap_or(false)
            })
    }

    /// The node of a contended key: the nth that a waiter asks for.
    pub(super) fn node_of(&mut self, db: Db, name: &'r KeyName, nth: usize) -> Option<usize> {
        if let Some(hint) = self.hints.get(nth)
            && let Some(node) = self.nodes.get(*hint)
            && (node.db, node.name) == (db, name)
        {
            return Some(*hint);
        }
        let number = match self.numbers.get(&(db, name)) {
            Some(number) => *number,
            None => {
                if !self.budget.pay(KEY_COST) {
                    return None;
                }
                self.nodes.push(KeyNode {
                    db,
                    name,
                    queue: self.order.wait_table.queue(db, name)?,
                    holders: None,
                    shares: None,
                    waiting: BTreeMap::new(),
                    known: None,
                    listed: 0,
                    passed: None,
                    to_reach: None,
                });
                self.numbers.insert((db, name), self.nodes.len() - 1);
                self.nodes.len() - 1
            }
        };
        if self.hints.len() <= nth {
            self.hints.resize(nth + 1, number);
        }
        self.hints[nth] = number;
        Some(number)
    }

    /// Finds out which holders of a key wait for something.
    pub(super) fn learn_holders<K: Keyspace>(&mut self, keys: &mut K, node: usize) {
        let KeyNode { db, name, queue, ref mut holders, .. } = self.nodes[node];
        if holders.is_some() {
            return;
        }
        let none_waits = hold_nothing(self.order, queue) && !self.late;
        let (order, requester) = (self.order, self.requester);
        let learnt = keys.peek(db, name, |lock: &Lock| {
            if !none_waits {
                return (waiting_holders(order, lock), lock.holds.len().min(order.wait_table.waiting()));
            }
            let hold = lock.holds.get(requester.as_bytes()).filter(|hold| order.stands(hold));
            (hold.map(|hold| (requester, Held::of(hold))).into_iter().collect(), 0)
        });
        let (waiting, looked_at) = learnt.unwrap_or_default();
        *holders = Some(waiting);
        self.budget.pay(looked_at);
    }

    /// The next holder to be reached of those that keep a waiter waiting which can be served beside so many reads. Each
    /// is named once.
    pub(super) fn next_holder(&mut self, node: usize, most: u32) -> Option<(Held, &'r Owner)> {
        let KeyNode { holders, to_reach, .. } = &mut self.nodes[node];
        let to_reach = to_reach.get_or_insert_with(|| {
            let all = holders.iter().flatten();
            let mut all: Vec<(Held, &'r Owner)> = all.map(|(owner, held)| (*held, *owner)).collect();
            all.sort_unstable_by(|(held, owner), (other, next)| held.cmp(other).then(next.cmp(owner)));
            all
        });
        to_reach.pop_if(|(held, _)| held.exceeds(most))
    }

    /// How an owner that waits holds this key, whose holders are known; None if it does not.
    pub(super) fn hold_of(&self, node: usize, owner: &Owner) -> Option<Held> {
        self.nodes[node].holders.as_ref()?.get(owner).copied()
    }

    /// All holders that wait, of all keys whose holders are known.
    pub(super) fn waiting_holders(&self) -> impl Iterator<Item = &'r Owner> {
        self.nodes.iter().filter_map(|node| node.holders.as_ref()).flat_map(BTreeMap::keys).copied()
    }

    /// Whether everything was reached that a waiter at this position may wait for there.
    pub(super) fn is_exhausted(&self, node: usize, position: Position) -> bool {
        let KeyNode { holders, waiting, known, to_reach, .. } = &self.nodes[node];
        let requester_holds = || holders.as_ref().is_some_and(|holders| holders.contains_key(self.requester));
        to_reach.as_ref().is_some_and(Vec::is_empty)
            && known.is_some_and(|known| known >= position)
            && waiting.is_empty()
            && !requester_holds()
    }

    /// The least room that the waiters for shares before a position leave to holders.
    pub(super) fn beside_shares(&mut self, node: usize, before: Position) -> Beside<'r> {
        let KeyNode { queue, ref holders, ref mut shares, .. } = self.nodes[node];
        let wait_table = self.order.wait_table;
        let shares = shares.get_or_insert_with(|| {
            self.budget.pay(queue.shares().len());
            let mut stricter: Vec<(Position, Beside<'r>)> = Vec::new();
            for (position, id) in queue.shares() {
                let Some(waiter) = wait_table.waiter(id) else { continue };
                // One that holds the key waits for no holder: it is answered when its turn comes, whatever they do.
                if holders.as_ref().is_some_and(|holders| holders.contains_key(&waiter.owner)) {
                    continue;
                }
                let most = waiter.operation.most_beside().unwrap_or(u32::MAX);
                if stricter.last().is_none_or(|(_, last)| most < last.most) {
                    stricter.push((position, Beside { most, by: Some(&waiter.owner) }));
                }
            }
            stricter
        });
        let end = shares.partition_point(|(position, _)| *position < before);
        end.checked_sub(1).map_or(Beside::READERS, |last| shares[last].1)
    }

    /// The writers before a position that wait for this key alone, but for those of a waiter's own owner.
    pub(super) fn writers(
        &self,
        node: usize,
        position: Position,
        waiter: &'r Waiter,
    ) -> impl DoubleEndedIterator<Item = (Position, &'r Waiter)> + use<'r> {
        let wait_table = self.order.wait_table;
        let writers = self.nodes[node].queue.writers(position);
        let writers = writers.filter_map(|(position, id)| Some((position, wait_table.waiter(id)?)));
        writers.filter(|(_, writer)| writer.owner != waiter.owner)
    }

    /// The last waiter for shares before a position that holds nothing there, but for those of a waiter's own owner.
    pub(super) fn last_share(&mut self, node: usize, end: Position, waiter: &Waiter) -> Option<(Position, &'r Waiter)> {
        let (wait_table, queue) = (self.order.wait_table, self.nodes[node].queue);
        // During a grace many holders may wait for more.
        let mut passed_by = 0;
        let found = queue.shares_before(end).find_map(|(position, id)| {
            passed_by += 1;
            let share = wait_table.waiter(id).filter(|share| share.owner != waiter.owner)?;
            self.hold_of(node, &share.owner).is_none().then_some((position, share))
        });
        self.budget.pay(passed_by);
        found
    }

    /// Whether a waiter of these kinds stands before a position and was not reached.
    pub(super) fn has_left(&self, node: usize, before: Position, of: impl Fn(&Kind) -> bool) -> bool {
        let mut waiting = self.nodes[node].waiting.iter();
        waiting.any(|(kind, those)| {
            those.front().is_some_and(|(position, _)| *position < before) && of(&self.kinds[*kind as usize - 1])
        })
    }

    /// Lists the waiters before a position that wait elsewhere too.
    pub(super) fn list_waiters<K: Keyspace>(&mut self, keys: &mut K, node: usize, before: Position) {
        let KeyNode { queue, known, listed, .. } = self.nodes[node];
        if known.is_some_and(|known| known >= before) {
            return;
        }
        // Beyond the position as many again, so that a queue is read in few pieces, whichever waiter is visited first:
        // waiters that were reached elsewhere by then are left out.
        const LEAST: usize = 8;
        let spare = listed.max(LEAST);
        let mut waits_elsewhere = Vec::new();
        let mut upto = before;
        for (position, id) in queue.waits_elsewhere_from(known) {
            if position >= before && waits_elsewhere.len() >= spare || !self.budget.pay(1) {
                break;
            }
            upto = upto.max(position.following());
            waits_elsewhere.push((position, id));
        }
        self.nodes[node].known = Some(upto);
        self.nodes[node].listed += waits_elsewhere.len();
        self.add_requester(node, (known, upto), &mut waits_elsewhere);
        for (position, id) in waits_elsewhere {
            if self.budget.is_spent() {
                break;
            }
            // A holder that asks for more shares in a grace is told when its turn comes, whatever its owner waits for.
            if let Some(waiter) = self.order.wait_table.waiter(id)
                && !self.mark(id).reached
                && !(waiter.operation.share.is_some() && self.hold_of(node, &waiter.owner).is_some())
            {
                let kind = self.kind_of(keys, id, waiter);
                self.nodes[node].waiting.entry(kind).or_default().push_back((position, id));
            }
        }
    }

    /// Adds the requester to waiters of this stretch of a queue: it is searched for, also where it waits for nothing
    /// else.
    fn add_requester(
        &self,
        node: usize,
        (from, before): (Option<Position>, Position),
        listed: &mut Vec<(Position, WaiterId)>,
    ) {
        let KeyNode { db, name, .. } = self.nodes[node];
        if let Some((id, waiter)) = self.plain
            && (waiter.db, &waiter.keys[0].name) == (db, name)
        {
            let position = waiter.position_at(&waiter.keys[0]);
            if from.is_none_or(|from| position >= from)
                && position < before
                && let Err(at) = listed.binary_search_by_key(&position, |(position, _)| *position)
            {
                listed.insert(at, (position, id));
            }
        }
    }

    pub(super) fn mark(&mut self, id: WaiterId) -> &mut Mark {
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
                let Some(node) = self.node_of(waiter.db, &key.name, nth) else { continue };
                self.learn_holders(keys, node);
                if self.nodes[node].holders.as_ref().is_some_and(|holders| !holders.is_empty()) {
                    held.push(node);
                }
            }
            held.sort_unstable();
        }
        let kind = Kind { delays_readers: waiter.operation.kind().delays_readers(), many: waiter.is_many(), held };
        let Graph { kinds, kind_numbers, .. } = self;
        let number = *kind_numbers.entry(kind).or_insert_with_key(|kind| {
            kinds.push(kind.clone());
            kinds.len() as u32
        });
        self.mark(id).kind = number;
        number
    }

    /// Whether a waiter of this kind delays one that stands behind it.
    pub(super) fn delays(&self, node: usize, kind: u32, behind: Requester<'_>) -> bool {
        let Kind { delays_readers, many, held } = &self.kinds[kind as usize - 1];
        // Of those that delay readers, only writers wait for several keys.
        let mode = if *delays_readers { Mode::Write } else { Mode::Read };
        self.order.delays((*delays_readers, *many), self.nodes[node].queue, behind.mode, || {
            held.iter().any(|held| {
                let hold = self.hold_of(*held, behind.owner);
                hold.is_some_and(|hold| keeps_waiting(hold.writes, mode, behind.upgrades(self.nodes[*held].name)))
            })
        })
    }
}

/// The holders of a lock that wait for something.
fn waiting_holders<'r>(order: Order<'r>, lock: &Lock) -> BTreeMap<&'r Owner, Held> {
    let wait_table = order.wait_table;
    let stands = |hold: &&Hold| order.stands(hold);
    if lock.holds.len() <= wait_table.waiting() {
        let holders = lock.holds.iter().filter(|(_, hold)| stands(hold));
        let waiting = holders.filter_map(|(owner, hold)| {
            let id = wait_table.waiting_of(owner).map(|(id, _)| id).next()?;
            Some((&wait_table.waiter(id)?.owner, Held::of(hold)))
        });
        return waiting.collect();
    }
    let waiting = wait_table.all_waiting().map(|waiter| &waiter.owner);
    let holding = waiting.filter_map(|owner| {
        let hold = lock.holds.get(owner.as_bytes()).filter(stands)?;
        Some((owner, Held::of(hold)))
    });
    holding.collect()
}
