//! What a search knows of the contended keys: their holders that wait, and their waiters that wait elsewhere too.

use super::budget::{Budget, PEEK_COST, comparing, meeting, peeking};
use super::held::{Beside, Held};
use crate::model::hold::Mode;
use crate::model::key::{Db, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::WaiterId;
use crate::wait::order::{Order, Requester, keeps_waiting};
use crate::wait::queue::{Position, WaitQueue};
use crate::wait::waiter::Waiter;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// All that decides whether a waiter delays another that stands behind it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    delays_readers: bool,
    pub(super) many: bool,
    /// Its keys, as nodes, that have a holder which waits: the waiter may not delay such a holder.
    held: SmallVec<[usize; 1]>,
}

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

/// A waiter as the search knows it, by its index in the wait table.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    /// The last pass in which its owner was reached, by number from 1.
    pub(super) reached_in: u8,
    /// Its kind, by number from 1; 0 until that is asked.
    kind: u32,
}

pub(super) struct Graph<'r> {
    pub(super) order: Order<'r>,
    pub(super) requester: &'r Owner,
    /// The requester's only wait, if that is for one key.
    plain: Option<(WaiterId, &'r Waiter)>,
    /// True if there may be holds that came after the waiters that wait for them.
    pub(super) late: bool,
    marks: Vec<Mark>,
    pub(super) nodes: Vec<KeyNode<'r>>,
    numbers: BTreeMap<(Db, &'r KeyName), usize>,
    /// The last node for the first, second and so on of a request's keys: many ask for the same keys in the same order.
    hints: Vec<usize>,
    pub(super) kinds: Vec<Kind>,
    kind_numbers: BTreeMap<Kind, u32>,
    pub(super) budget: Budget,
    /// The number of the pass through the graph.
    pub(super) pass: u8,
}

/// True if all waiters stand in this queue, for this key alone, and hold nothing here. Only upgrades hold their key,
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
            pass: 0,
        }
    }

    /// No owner counts as reached any more.
    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.nodes.iter_mut().for_each(|node| node.to_reach = None);
    }

    /// How long a search must be for it to be worth asking whether anybody waits for the requester: that reads all
    /// contended keys.
    pub(super) fn worth_checking(&self) -> usize {
        const LEAST: usize = 8;
        self.order.wait_table.contended().max(LEAST)
    }

    /// At most what it costs to visit a waiter at this position, by the waiters that are listed for it.
    pub(super) fn price(&self, node: usize, position: Position) -> usize {
        let KeyNode { queue, known, .. } = self.nodes[node];
        let listed = if known.is_some_and(|known| known >= position) { 0 } else { queue.count_waits_elsewhere() };
        1 + listed
    }

    /// True if a waiter may wait for the requester: stands behind it in a queue, or wants what it holds. True if the
    /// answer would cost too much.
    pub(super) fn may_be_waited_for<K: Keyspace>(&self, keys: &mut K, budget: &mut Budget) -> bool {
        let Order { wait_table, .. } = self.order;
        for (_, waiter) in wait_table.waiting_of(self.requester) {
            for key in &waiter.keys {
                let queue = wait_table.queue(waiter.db, &key.name);
                let is_followed = queue.is_some_and(|queue| queue.next(Some(waiter.position_at(key))).is_some());
                if key.upgrade || is_followed || !budget.pay(peeking(&key.name)) {
                    return true;
                }
            }
        }
        // Else many keys would be read without an answer.
        if budget.affords(PEEK_COST) < wait_table.contended() {
            return true;
        }
        wait_table.queues().any(|(db, name, _)| {
            let own = self.requester.as_bytes();
            let holds = |lock: &Lock| lock.holds.get(own).is_some_and(|hold| self.order.stands(hold));
            !budget.pay(peeking(name)) || keys.peek(db, name, holds).unwrap_or(false)
        })
    }

    /// The node of a contended key: the nth that a waiter asks for.
    pub(super) fn node_of(&mut self, db: Db, name: &'r KeyName, nth: usize) -> Option<usize> {
        if !self.budget.pay(comparing(name)) {
            return None;
        }
        if let Some(hint) = self.hints.get(nth)
            && let Some(node) = self.nodes.get(*hint)
            && (node.db, node.name) == (db, name)
        {
            return Some(*hint);
        }
        let number = match self.numbers.get(&(db, name)) {
            Some(number) => *number,
            None => {
                if !self.budget.pay(meeting(name)) {
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

    /// True if everything was reached that a waiter at this position may wait for there.
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

    /// The last of these writers that does not hold the key: one that does waits for holders alone.
    pub(super) fn last_writer(
        &mut self,
        node: usize,
        position: Position,
        waiter: &'r Waiter,
    ) -> Option<(Position, &'r Waiter)> {
        let mut passed_by = 0;
        let found = self.writers(node, position, waiter).rev().find(|(_, writer)| {
            passed_by += 1;
            self.hold_of(node, &writer.owner).is_none()
        });
        self.budget.pay(passed_by);
        found
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

    /// True if a waiter of these kinds stands before a position and was not reached.
    pub(super) fn has_left(&mut self, node: usize, before: Position, of: impl Fn(&Kind) -> bool) -> bool {
        let mut waiting = self.nodes[node].waiting.iter();
        waiting.any(|(kind, those)| {
            self.budget.pay(1);
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
                && !self.is_reached(id)
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

    /// True if the owner of a waiter was reached in this pass.
    pub(super) fn is_reached(&mut self, id: WaiterId) -> bool {
        self.mark(id).reached_in == self.pass
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
                self.learn_all_holders(keys, node);
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

    /// True if a waiter of this kind delays one that stands behind it.
    pub(super) fn delays(&mut self, node: usize, kind: u32, behind: Requester<'_>) -> bool {
        let Kind { delays_readers, many, held } = &self.kinds[kind as usize - 1];
        self.budget.pay(held.len());
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
