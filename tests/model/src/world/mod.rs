//! A world without a server: a primary, a replica that receives what the primary's effects say, and the naive model.

mod checks;
mod clients;
mod hear;
mod op;
mod serve;
mod side;
mod work;

use crate::naive::Naive;
use crate::told::Places;
use crate::words::Answer;
use crate::words::{Ask as Wish, Rules};
use lock_core::model::fence::Fence;
use lock_core::model::hold::Session;
use lock_core::model::key::KeyIndex;
use lock_core::model::owner::{Note, Owner};
use lock_core::model::request::{
    self, Acquire, Amount, Extend, Guard, Operation, RedirectReason, Release, Share, Terms, Wait, WaiterId,
};
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::deadlock::Budgets;
pub use op::{Bound, LONG, Least, Named, Op, acquire, release};
pub use side::{RULES, SKEW, Side, Step, limits, name, update_of, weak_hash};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// The three of them.
pub struct World {
    pub primary: Side,
    pub replica: Side,
    pub naive: Naive,
    pub now: Now,
    /// By which time the commands of the transaction or script that runs are judged.
    unit: Option<Timestamp>,
    /// The fence that the next request's hold is to have at least.
    min_fence: Option<Fence>,
    /// Whether locks have come to other keys in it. Their queues hear of that in the background.
    carried: bool,
    /// Whether time has passed unnoticed, a connection closed, or a transaction or a script goes on.
    late: bool,
    /// Whether some requests are repeated over a connection that the server does not let wait.
    pub some_cannot_wait: bool,
    /// Whether some requests come while the server has no memory left.
    pub memory_is_short: bool,
    /// Whether nothing can be granted now and then when the time of a place is up.
    pub some_places_are_overdue: bool,
    /// Which connection each client has, by how many it had before.
    connections: [u64; 3],
    /// What was answered last.
    pub last: Option<Answer>,
    /// Which owners are to be told.
    told: Places,
}

impl World {
    pub fn new(rules: Rules) -> World {
        World {
            primary: Side::new(limits(rules)),
            replica: Side::new(limits(rules)),
            naive: Naive::new(rules, SKEW.0 * 1000),
            now: Now { mono: Timestamp(5_000_000), wall: WallTime(1_000_000) },
            unit: None,
            min_fence: None,
            carried: false,
            late: false,
            some_cannot_wait: false,
            memory_is_short: false,
            some_places_are_overdue: false,
            connections: [0; 3],
            last: None,
            told: Places::default(),
        }
    }

    /// The same, with this much for the part of a search for deadlocks that reads queues.
    pub fn searching(rules: Rules, units: usize) -> World {
        let mut world = World::new(rules);
        world.primary.manager.searches = Budgets::with_queues(units);
        world.naive.may_overlook = true;
        world
    }

    /// Does one thing in all three, works off what it leaves to do, and compares what they answer.
    pub fn step(&mut self, op: &Op) {
        match op {
            // A request is judged when its queues were served, as far as its step goes. The naive model serves all of
            // them first, so nothing is left undone here.
            Op::Unit { commands } if self.naive.rules.small_steps => {
                return commands.iter().for_each(|command| self.step(command));
            }
            Op::Late { us } if self.naive.rules.small_steps => return self.step(&Op::Pass { us: *us }),
            Op::Close { client, late: true } if self.naive.rules.small_steps => {
                return self.step(&Op::Close { client: *client, late: false });
            }
            Op::Unit { commands } => return self.unit(commands),
            _ => {}
        }
        self.naive.refresh_offers();
        if !matches!(op, Op::Late { .. } | Op::Close { late: true, .. }) {
            self.open_all();
        }
        match op {
            // What is bound to nothing any more, a connection that has closed does not end.
            Op::Dismiss | Op::Grace { .. } => self.naive.unbind(None),
            Op::Reload { key } => self.naive.unbind(Some((0, *key))),
            _ => {}
        }
        // No queue is scanned when time passes or a connection closes.
        if !matches!(op, Op::Late { .. } | Op::Close { .. }) {
            self.naive.settle(self.now.mono.0);
        }
        let late = match op {
            // What ends with the connection and what is taken back may come in either order then.
            Op::Close { late: true, .. } => self.naive.granted.is_empty(),
            _ => matches!(op, Op::Late { .. }),
        };
        self.act(op);
        self.late = late;
        if !self.late {
            self.naive.settle(self.now.mono.0);
            self.drain();
        }
    }

    /// Does the commands of a transaction or a script, and compares all that can be seen between two of them.
    fn unit(&mut self, commands: &[Op]) {
        let judged = self.now.mono;
        self.open_all();
        self.naive.settle(judged.0);
        (self.unit, self.naive.unit_us, self.late) = (Some(judged), Some(judged.0), true);
        for command in commands {
            assert!(command.may_be_in_unit(), "{command:?}");
            self.naive.refresh_offers();
            self.act(command);
            // What came to a key and is over there already has taken it.
            self.naive.end_keeping();
            self.carried |= matches!(command, Op::Rename { .. } | Op::Swap);
            self.check();
        }
        (self.unit, self.naive.unit_us, self.late, self.carried) = (None, None, false, false);
        self.naive.settle(self.now.mono.0);
        self.drain();
    }

    /// By which time it is judged what is over.
    fn judged(&self) -> Timestamp {
        self.unit.unwrap_or(self.now.mono)
    }

    fn act(&mut self, op: &Op) {
        let now = self.now;
        match op {
            Op::Acquire { .. } => self.act_acquire(op),
            Op::Release { .. } => self.act_release(op),
            Op::Extend { .. } => self.act_extend(op),
            Op::Guard { db, key, owner, fence } => {
                if self.is_foreign(*db, &[*key]) {
                    return;
                }
                let fence = self.named(*fence, (*db, *key), *owner).unwrap_or(Fence::MAX);
                self.serve((*db, &[*key]), *owner, Operation::Guard(Guard { fence }), |naive| {
                    naive.guard((*db, *key), *owner, fence.get())
                });
            }
            Op::Pass { us } | Op::Late { us } => {
                self.now.mono.0 += us;
                self.now.wall.0 += us;
            }
            Op::Close { client, .. } => self.close(*client),
            Op::Break { key, owner } => {
                if self.is_foreign(0, &[*key]) {
                    return;
                }
                let whose = owner.map(|owner| Owner::new(&[owner]));
                let Step { outcome: broken, effects } =
                    self.primary.in_unit((0, &[*key]), (now, self.unit.unwrap_or(now.mono)), |manager, step| {
                        manager.break_holds(step, KeyIndex(0), whose.as_ref())
                    });
                assert_eq!(broken, self.naive.break_holds((0, *key), *owner, now.mono.0));
                self.after_look(0, &[*key], effects);
            }
            Op::Lose { nth } => self.client_gone(*nth),
            Op::Deliver { nth } => {
                if let Some(at) = nth.checked_rem(self.naive.granted.len()) {
                    self.primary.manager.delivered(id_of(self.naive.granted.remove(at).id));
                }
            }
            Op::Cancel { nth } => {
                if let Some(at) = nth.checked_rem(self.naive.waiters.len()) {
                    let id = self.naive.waiters[at].id;
                    // A place without a client has no client that could be unblocked.
                    if !self.naive.waiters[at].is_detached() {
                        assert!(self.primary.manager.cancel(id_of(id), now.mono).is_some());
                        self.leave_client(id, false);
                    }
                }
                self.naive.end_keeping();
            }
            Op::Grace { ms } => {
                self.act(&Op::Dismiss);
                self.act(&Op::SetGrace { ms: *ms });
                let begun = self.primary.manager.begin_grace(now.mono);
                assert_eq!(begun, Some(Millis(*ms)).filter(|length| *length > Millis(0)));
                self.naive.begin_grace(ms * 1000, now.mono.0);
            }
            Op::SetGrace { ms } => {
                self.primary.manager.set_grace(Millis(*ms), now.mono);
                self.naive.set_grace(ms * 1000, now.mono.0);
            }
            Op::Dismiss => self.dismiss(),
            Op::SetWall { us } => self.now.wall = WallTime(*us),
            Op::Alarm { most } => self.alarm(*most),
            Op::SetOver { key } => {
                self.naive.delete(0, *key);
                self.naive.foreign.insert((0, *key));
                self.primary.set_over(0, *key);
                self.replica.set_over(0, *key);
            }
            Op::Delete { key } => {
                self.naive.delete(0, *key);
                self.naive.foreign.remove(&(0, *key));
                self.primary.delete(0, *key);
                self.replica.delete(0, *key);
            }
            Op::Expire { key, ms } => self.set_expiry(*key, *ms),
            Op::Rename { from, to } => {
                if from == to || self.is_foreign(0, &[*from, *to]) {
                    return;
                }
                // The server renames a key whose holds are all over too, and its target goes. The naive model knows no
                // such keys, so they are settled first, by an owner that holds nothing.
                let ask = Release { mode: None, amount: Amount::One, fence: None };
                self.serve((0, &[*from, *to]), b'n', Operation::Release(ask), |_| Answer::Released(vec![None, None]));
                if !self.primary.locks.contains_key(&(0, *from)) {
                    return;
                }
                self.naive.rename(0, *from, *to);
                self.primary.rename(0, *from, *to, now.mono);
                self.replica.rename(0, *from, *to, now.mono);
            }
            Op::Move { key } => {
                if self.is_foreign(0, &[*key]) || self.is_foreign(1, &[*key]) {
                    return;
                }
                // As before a rename: a target that is over would be in the way.
                self.alarm(usize::MAX);
                if self.primary.locks.contains_key(&(1, *key)) {
                    return;
                }
                let ask = Release { mode: None, amount: Amount::One, fence: None };
                self.serve((0, &[*key]), b'n', Operation::Release(ask), |_| Answer::Released(vec![None]));
                if self.primary.locks.contains_key(&(1, *key)) {
                    return;
                }
                self.naive.move_to_1(*key);
                self.primary.move_to_1(*key, now.mono);
                self.replica.move_to_1(*key, now.mono);
            }
            Op::Reload { key } => {
                self.naive.reload(0, *key, now.mono.0);
                self.primary.reload(0, *key, now);
                self.replica.reload(0, *key, now);
            }
            Op::Swap => {
                self.naive.swap();
                self.primary.swap();
                self.replica.swap();
            }
            Op::Flush { all } => {
                let db = (!all).then_some(0);
                self.naive.flush(db);
                self.primary.flush(db);
                self.replica.flush(db);
            }
            Op::AtLeast { fence, of } => {
                let (Op::Acquire { keys, .. } | Op::Extend { keys, .. }, db) = (&**of, of.database()) else {
                    panic!("{of:?} gives no fence");
                };
                self.min_fence = self.least(*fence, (db, keys[0]));
                self.act(of);
                self.min_fence = None;
            }
            Op::Unit { .. } => unreachable!("no unit is a part of another"),
            Op::Promote => {
                self.naive.promote(now.wall.0);
                self.primary.manager.promote(now.wall);
            }
        }
    }

    /// All waits end: the node is a replica from now on.
    fn dismiss(&mut self) {
        for (db, name) in self.primary.manager.offered_keys() {
            self.primary.locks.get_mut(&(db.0, name[0])).expect("is offered").keep_offers();
        }
        assert!(self.primary.locks.values().all(|lock| lock.holds.iter().all(|(_, hold)| hold.offer().is_none())));
        let manager = &self.primary.manager;
        let is_there = |id: &u64| manager.waited_since(id_of(*id)).is_some();
        let there: BTreeSet<u64> = self.told.ids().filter(is_there).collect();
        let ended = self.primary.manager.dismiss();
        self.told.dismissed(&ended.messages, |id| there.contains(&id));
        let answers = ended.waits;
        assert!(answers.iter().all(|(_, answer)| *answer == request::WaitEnd::Redirected(RedirectReason::Demoted)));
        let told: BTreeSet<u64> = answers.iter().map(|(id, _)| id.to_number()).collect();
        assert_eq!(told, self.naive.waiters.drain(..).map(|waiter| waiter.id).collect());
        self.naive.granted.clear();
        self.naive.offers.clear();
        self.naive.rows.iter_mut().for_each(|row| row.offered = false);
        self.naive.end_keeping();
    }

    /// Acquires in all three.
    fn act_acquire(&mut self, op: &Op) {
        let Op::Acquire { db, keys, owner, mode, lease, note, wait, retry, session, queue, share } = op else { return };
        let now = self.now;
        if self.is_foreign(*db, keys) {
            return;
        }
        // As the parser has it.
        let wait = if self.unit.is_some() { Wait::Never } else { *wait };
        let (mode, retry) = (*mode, retry.or(queue.map(|_| share.map_or(1, |(_, take)| take))));
        let note_kept = note.map(|note| Note::new(&[note]));
        let min_fence = self.min_fence.filter(|_| keys.len() == 1 && share.is_none());
        let ask = Acquire {
            mode,
            lease: Millis(*lease),
            wait,
            retry,
            queue: queue.map(Millis),
            share: share
                .and_then(|(limit, take)| Some(Share { limit: NonZeroU32::new(limit)?, take: NonZeroU32::new(take)? })),
            terms: Terms::of(note_kept, self.session(*session), min_fence),
        };
        let min_fence = min_fence.map(Fence::get);
        let (lease_us, note, keys) = (lease * 1000, *note, keys.clone());
        let (owner_, session) = (*owner, self.bound(*session));
        let wish = Wish {
            db: *db,
            keys: keys.clone(),
            owner: owner_,
            mode,
            lease_us,
            note,
            wait,
            retry,
            session,
            queue_us: queue.map(|ms| ms * 1000),
            share: *share,
            min_fence,
        };
        self.serve((*db, &keys), *owner, Operation::Acquire(ask), |naive| naive.acquire(&wish, now.mono.0, now.wall.0));
    }

    /// Releases in all three.
    fn act_release(&mut self, op: &Op) {
        let Op::Release { db, keys, owner, mode, amount, fence } = op else { return };
        if self.is_foreign(*db, keys) {
            return;
        }
        let fence = self.named(*fence, (*db, keys[0]), *owner);
        let ask = Release { mode: *mode, amount: *amount, fence };
        let at = (*db, &keys[..]);
        self.serve(at, *owner, Operation::Release(ask), |naive| {
            naive.release(at, *owner, *mode, *amount, fence.map(Fence::get))
        });
    }

    /// Extends in all three.
    fn act_extend(&mut self, op: &Op) {
        let Op::Extend { keys, owner, lease, fence, session, note } = op else { return };
        let now = self.now;
        if self.is_foreign(0, keys) {
            return;
        }
        let fence = self.named(*fence, (0, keys[0]), *owner);
        let ask = Extend {
            lease: Millis(*lease),
            session: self.session(*session),
            fence,
            note: note.map(|note| Note::new(note.as_slice())),
            min_fence: self.min_fence.filter(|_| keys.len() == 1),
        };
        let wish = (now.mono.0 + lease * 1000, self.bound(*session), *note);
        let fences = (fence.map(Fence::get), ask.min_fence.map(Fence::get));
        self.serve((0, keys), *owner, Operation::Extend(ask), |naive| {
            naive.extend((0, keys), *owner, wish, fences, now.wall.0)
        });
    }

    fn is_foreign(&self, db: u32, keys: &[u8]) -> bool {
        keys.iter().any(|key| self.naive.foreign.contains(&(db, *key)))
    }

    fn named(&self, fence: Named, at: (u32, u8), owner: u8) -> Option<Fence> {
        let own = self.primary.locks.get(&at).and_then(|lock| lock.holds.get(&[owner])).map(|hold| hold.fence());
        match fence {
            Named::None => None,
            Named::Own => own,
            Named::Other => Fence::new(1),
        }
    }

    /// The fence that is meant.
    fn least(&self, fence: Least, at: (u32, u8)) -> Option<Fence> {
        let rows = self.naive.rows.iter().filter(|row| (row.db, row.key) == at);
        let (from, by) = match fence {
            Least::Last(by) => (self.naive.last_fence, by),
            Least::Wall(by) => (self.now.wall.0, by),
            Least::Furthest(by) => (self.now.wall.0 + SKEW.0 * 500, by),
            Least::Highest(by) => (rows.map(|row| row.fence).max().unwrap_or(0), by),
            Least::Max => (Fence::MAX.get(), 0),
        };
        Fence::new(from.saturating_add_signed(by).max(1))
    }

    fn connection(&self, client: u8) -> u64 {
        self.connections[usize::from(client)] * 10 + u64::from(client)
    }

    fn session(&self, session: Option<Bound>) -> Option<Session> {
        let of = |(client, grace)| Session {
            connection: self.primary.manager.sessions().connection(self.connection(client)),
            grace: Millis(grace),
        };
        session.map(of)
    }

    fn bound(&self, session: Option<Bound>) -> Option<(u64, u64)> {
        session.map(|(client, grace)| (self.connection(client), grace * 1000))
    }
}

fn id_of(number: u64) -> WaiterId {
    WaiterId::from_number(number).expect("was an id")
}
