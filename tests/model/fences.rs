//! MINFENCE, case by case, and an attack on its bounds: no client carries a node's fence clock further ahead than half
//! of the skew, and none makes a fence repeat or go back.

use crate::waiting::{at, world};
use lock_core::codec;
use lock_core::manager::LockManager;
use lock_core::model::effect::Change;
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode::{self, Read, Write};
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::limits::Limits;
use lock_core::model::lock::Lock;
use lock_core::model::owner::Owner;
use lock_core::model::record::{Origin, Update};
use lock_core::model::request::{Acquire, Amount, Extend, Operation, Outcome, Refusal, Release, Request, Terms, Wait};
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use naive_model::play::{LONG, plain};
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{Least, Named, Op, RULES, SKEW, Side, World, acquire, limits, name, update_of};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Half of the skew: how far ahead of the wall clock a client may ask.
const HALF_US: u64 = SKEW.0 * 1000 / 2;

fn takes(owner: u8, mode: Mode, key: u8) -> Op {
    acquire(owner, mode, &[key])
}

fn waits(owner: u8, mode: Mode, key: u8, queue: Option<u64>) -> Op {
    takes(owner, mode, key).wait(Wait::Forever).queue(queue)
}

fn extends(owner: u8, key: u8, fence: Named) -> Op {
    Op::Extend { keys: vec![key], owner, lease: LONG, fence, session: None, note: None }
}

/// A world that has given its first fence, and whose clock is behind the wall clock since.
fn settled() -> World {
    let mut world = world();
    world.then(&takes(b'z', Write, b'z'));
    world.pass(20);
    world
}

fn granted(fence: u64) -> Answer {
    Answer::Granted(vec![fence])
}

fn extended(fence: u64) -> Answer {
    Answer::Extended(vec![Some(fence)])
}

#[test]
fn a_new_hold_has_the_highest_of_the_next_fence_the_wall_clock_and_what_is_asked_for() {
    let mut world = settled();
    let wall = 1_020_000;
    assert_eq!(world.is_told_at_least(Least::Wall(-1), takes(b'a', Write, b'j')), granted(wall));
    assert_eq!(world.is_told_at_least(Least::Wall(100), takes(b'a', Write, b'k')), granted(wall + 100));
    assert_eq!(world.is_told_at_least(Least::Wall(50), takes(b'a', Write, b'l')), granted(wall + 101));
}

#[test]
fn a_hold_rises_to_what_is_asked_for_where_that_is_above_every_fence_given_on_its_key() {
    // What could go wrong: only what is above all fences of the node is believed. Then a node that serves many keys
    // would never have the fence that a quorum has agreed on.
    for raises in [takes(b'a', Write, b'k'), extends(b'a', b'k', Named::Own), extends(b'a', b'k', Named::None)] {
        let mut world = settled();
        let low = world.naive.last_fence;
        world.holds(b'a', Write, b"k");
        world.then(&Op::AtLeast { fence: Least::Wall(1_000), of: Box::new(takes(b'b', Write, b'j')) });
        let last = world.naive.last_fence;
        let asked = world.fence(b'k', b'a') + 10;
        assert!(low < asked && asked < last);
        let told = world.is_told_at_least(Least::Highest(10), raises);
        assert!(told == granted(asked) || told == extended(asked), "{told:?}");
        assert_eq!((world.fence(b'k', b'a'), world.naive.last_fence), (asked, last));
        // Above the last one of the node, too.
        let told = world.is_told_at_least(Least::Furthest(0), extends(b'a', b'k', Named::Own));
        assert_eq!((told, world.naive.last_fence), (extended(1_020_000 + HALF_US), 1_020_000 + HALF_US));
    }
}

#[test]
fn a_hold_gets_the_next_fence_where_another_on_its_key_has_had_a_higher_one() {
    // What could go wrong: two readers have one fence, or a fence that was given before is given once more.
    let mut world = settled();
    world.holds(b'a', Read, b"k");
    world.holds(b'b', Read, b"k");
    let highest = world.fence(b'k', b'b');
    assert_eq!(world.is_told_at_least(Least::Highest(0), extends(b'a', b'k', Named::None)), extended(highest + 1));
    // Also after that one has gone.
    world.release(b'a', b"k");
    world.holds(b'c', Read, b"k");
    world.release(b'c', b"k");
    assert_eq!(world.is_told_at_least(Least::Last(0), extends(b'b', b'k', Named::None)), extended(highest + 3));
    assert_eq!(world.is_told_at_least(Least::Highest(1), takes(b'b', Read, b'k')), granted(highest + 4));
}

#[test]
fn a_hold_that_is_as_high_stays_as_it_is() {
    let mut world = settled();
    world.holds(b'a', Write, b"k");
    let fence = world.fence(b'k', b'a');
    for below in [0, -1, -1_000_000] {
        assert_eq!(world.is_told_at_least(Least::Highest(below), extends(b'a', b'k', Named::Own)), extended(fence));
        assert_eq!(world.is_told_at_least(Least::Highest(below), takes(b'a', Write, b'k')), granted(fence));
    }
    // A writer that reads as well keeps its one fence; below what it asks for, that rises.
    assert_eq!(world.is_told_at_least(Least::Highest(0), takes(b'a', Read, b'k')), granted(fence));
    assert_eq!(world.is_told_at_least(Least::Highest(5), takes(b'a', Read, b'k')), granted(fence + 5));
}

#[test]
fn an_upgrade_has_a_new_fence_in_any_case() {
    let mut world = settled();
    world.holds(b'a', Read, b"k");
    let fence = world.fence(b'k', b'a');
    assert_eq!(world.is_told_at_least(Least::Highest(-1), takes(b'a', Write, b'k')), granted(fence + 1));
    world.holds(b'b', Read, b"j");
    assert_eq!(world.is_told_at_least(Least::Last(100), takes(b'b', Write, b'j')), granted(fence + 102));
}

#[test]
fn the_former_fence_is_void() {
    let mut world = settled();
    world.holds(b'a', Write, b"k");
    assert_eq!(world.is_told_at_least(Least::Highest(7), extends(b'a', b'k', Named::Own)), extended(1_020_007));
    // `Named::Other` is no fence that it has had; the one that it had is refused as such by the check in every step.
    assert_eq!(world.is_told(&extends(b'a', b'k', Named::Other)), Answer::Extended(vec![None]));
    assert_eq!(world.is_told(&extends(b'a', b'k', Named::Own)), extended(1_020_007));
    // Who names another fence moves nothing.
    let told = world.is_told_at_least(Least::Highest(7), extends(b'a', b'k', Named::Other));
    assert_eq!((told, world.fence(b'k', b'a')), (Answer::Extended(vec![None]), 1_020_007));
}

#[test]
fn what_is_too_far_ahead_is_refused_whatever_the_request_would_get() {
    // What could go wrong: it is refused only where it would be granted, so that a client cannot learn it in time; or
    // it leaves a trace.
    let mut world = settled();
    world.holds(b'a', Write, b"k");
    let before = (world.naive.rows.clone(), world.naive.last_fence);
    let requests = [
        takes(b'a', Write, b'k'),
        takes(b'b', Write, b'k'),
        takes(b'b', Write, b'j'),
        waits(b'b', Write, b'k', None),
        waits(b'b', Read, b'k', Some(50)),
        extends(b'a', b'k', Named::Own),
        extends(b'b', b'k', Named::None),
        extends(b'b', b'j', Named::None),
    ];
    for fence in [Least::Furthest(1), Least::Max] {
        for request in &requests {
            assert_eq!(world.is_told_at_least(fence, request.clone()), Answer::MinFenceAhead, "{request:?}");
        }
    }
    assert_eq!((world.naive.rows.clone(), world.naive.last_fence), before);
    assert!(world.naive.waiters.is_empty());
    // During a grace, too.
    world.then(&Op::Grace { ms: 5 });
    assert_eq!(world.is_told_at_least(Least::Furthest(1), takes(b'b', Write, b'j')), Answer::MinFenceAhead);
    assert_eq!(world.is_told_at_least(Least::Furthest(0), takes(b'b', Write, b'j')), Answer::Grace);
    world.pass(5);
    assert_eq!(
        world.is_told_at_least(Least::Furthest(0), takes(b'b', Write, b'j')),
        granted(world.now.wall.0 + HALF_US)
    );
}

#[test]
fn a_fence_that_was_given_or_seen_may_be_asked_for_whatever_the_wall_clock_says() {
    let mut world = settled();
    world.holds(b'a', Write, b"k");
    world.holds(b'b', Write, b"j");
    world.then(&Op::SetWall { us: 1 });
    let last = world.naive.last_fence;
    assert_eq!(world.is_told_at_least(Least::Last(1), extends(b'a', b'k', Named::Own)), Answer::MinFenceAhead);
    assert_eq!(world.is_told_at_least(Least::Last(0), extends(b'a', b'k', Named::Own)), extended(last));
    assert_eq!(world.is_told_at_least(Least::Last(0), takes(b'c', Write, b'l')), granted(last + 1));
    // As after a promotion.
    world.then(&Op::Promote);
    assert_eq!(world.naive.last_fence, last + 1 + SKEW.0 * 1000);
    assert_eq!(
        world.is_told_at_least(Least::Last(0), extends(b'a', b'k', Named::Own)),
        extended(last + 2 + SKEW.0 * 1000)
    );
}

#[test]
fn a_carried_hold_rises_to_no_fence_that_its_key_may_have_had() {
    // What could go wrong: the lock that came here knows of its own fences alone, and the key has had a higher one.
    let came: [fn(&mut World); 4] = [
        |world| world.then(&Op::Rename { from: b'j', to: b'k' }),
        |world| {
            world.then(&Op::Rename { from: b'j', to: b'k' });
            world.then(&Op::Reload { key: b'k' });
        },
        |world| {
            world.then(&Op::Rename { from: b'j', to: b'k' });
            world.then(&Op::Promote);
        },
        |world| {
            world.then(&Op::Rename { from: b'j', to: b'k' });
            world.then(&Op::Swap);
            world.then(&Op::Swap);
        },
    ];
    for come in came {
        let mut world = settled();
        world.holds(b'a', Write, b"j");
        let old = world.fence(b'j', b'a');
        world.pass(1);
        world.holds(b'b', Write, b"k");
        let had = world.fence(b'k', b'b');
        come(&mut world);
        assert_eq!(world.fence(b'k', b'a'), old);
        let told = world.is_told_at_least(Least::Highest(10), extends(b'a', b'k', Named::Own));
        let raised = world.fence(b'k', b'a');
        assert!(told == extended(raised) && raised > had && raised == world.naive.last_fence, "{told:?}");
        // From then on it is a fence that was given on this key.
        assert_eq!(world.is_told(&takes(b'a', Write, b'k')), granted(raised));
        world.pass(20);
        let told = world.is_told_at_least(Least::Highest(1), extends(b'a', b'k', Named::Own));
        assert_eq!(told, extended(raised + 1));
    }
}

#[test]
fn a_waiter_has_the_fence_that_it_asked_for() {
    let mut world = settled();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.is_told_at_least(Least::Furthest(0), waits(b'a', Write, b'k', None)), Answer::Queued);
    let held = world.naive.last_fence;
    assert_eq!(held, 1_020_000, "the clock moves with the grant");
    world.pass(1);
    world.release(b'h', b"k");
    assert_eq!(world.fence(b'k', b'a'), 1_020_000 + HALF_US);
}

#[test]
fn a_waiter_whose_fence_is_too_far_ahead_at_its_turn_is_told_so_and_the_next_is_served() {
    // The wall clock was set back while it waited: to grant it would carry the fence clock away.
    let mut world = settled();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.is_told_at_least(Least::Furthest(0), waits(b'a', Write, b'k', None)), Answer::Queued);
    assert_eq!(world.is_told(&waits(b'b', Write, b'k', None)), Answer::Queued);
    world.then(&Op::SetWall { us: 1_019_999 });
    world.release(b'h', b"k");
    assert_eq!((world.at(b'k'), world.fence(b'k', b'b')), (at(b"b", b""), 1_020_001));
    // With a place: that goes as well.
    assert_eq!(world.is_told_at_least(Least::Furthest(0), waits(b'a', Write, b'k', Some(50))), Answer::Queued);
    world.then(&Op::SetWall { us: 1 });
    world.release(b'b', b"k");
    assert_eq!(world.at(b'k'), at(b"", b""));
}

#[test]
fn a_request_that_takes_a_place_over_brings_its_own_fence() {
    let mut world = settled();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.is_told_at_least(Least::Wall(3_000), waits(b'a', Write, b'k', Some(50))), Answer::Queued);
    assert_eq!(world.is_told_at_least(Least::Wall(5), waits(b'a', Write, b'k', Some(50))), Answer::Queued);
    world.release(b'h', b"k");
    assert_eq!(world.fence(b'k', b'a'), 1_020_005);
}

#[test]
fn an_offer_rises_when_it_is_collected() {
    // What could go wrong: a client that is gone has raised the fence of a grant that another request collects.
    let mut world = settled();
    world.holds(b'h', Write, b"k");
    let polls = takes(b'a', Write, b'k').queue(Some(50));
    assert_eq!(world.is_told_at_least(Least::Furthest(0), polls.clone()), Answer::Placed);
    world.release(b'h', b"k");
    assert_eq!(world.fence(b'k', b'a'), 1_020_001);
    assert_eq!(
        world.is_told_at_least(Least::Highest(0), extends(b'a', b'k', Named::None)),
        Answer::Extended(vec![None])
    );
    assert_eq!(world.is_told_at_least(Least::Highest(40), polls), granted(1_020_041));
}

#[test]
fn a_raise_that_no_client_has_received_leaves_the_fence_that_its_owner_knows() {
    // The owner would be told by its own fence that it holds nothing. What was given is never given again.
    let mut world = settled();
    world.holds(b'a', Read, b"k");
    world.holds(b'b', Read, b"k");
    let known = world.fence(b'k', b'a');
    assert_eq!(world.is_told_at_least(Least::Furthest(0), waits(b'a', Write, b'k', None)), Answer::Queued);
    world.release(b'b', b"k");
    let raised = world.fence(b'k', b'a');
    assert_eq!(raised, 1_020_000 + HALF_US);
    world.then(&Op::Lose { nth: 0 });
    assert_eq!(world.fence(b'k', b'a'), known);
    assert_eq!(world.is_told_at_least(Least::Highest(1), extends(b'a', b'k', Named::Own)), extended(raised + 1));
}

#[test]
fn an_owner_that_raised_its_fence_knows_of_the_grant_before() {
    // What could go wrong: the grant is taken back, by a fence that the hold does not have any more.
    let mut world = settled();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.is_told(&waits(b'a', Write, b'k', None)), Answer::Queued);
    world.release(b'h', b"k");
    assert_eq!(world.is_told_at_least(Least::Highest(9), extends(b'a', b'k', Named::Own)), extended(1_020_010));
    world.then(&Op::Lose { nth: 0 });
    assert_eq!((world.at(b'k').0, world.fence(b'k', b'a')), (vec![b'a'], 1_020_010));
}

fn ask(side: &mut Side, key: u8, owner: u8, operation: Operation, now: Now) -> (Result<Outcome, Refusal>, Vec<Change>) {
    let request = Request { owner: Owner::new(&[owner]), operation };
    let step = side.serve(0, &[key], &request, now);
    (step.outcome, step.effects.changes.into_vec())
}

fn acquisition(mode: Mode, min_fence: Option<Fence>) -> Operation {
    Operation::Acquire(Acquire { terms: Terms::of(None, None, min_fence), ..plain(mode, Wait::Never) })
}

fn extend(min_fence: Option<Fence>) -> Operation {
    Operation::Extend(Extend { lease: Millis(LONG), session: None, fence: None, note: None, min_fence })
}

#[test]
fn a_hold_whose_fence_cannot_rise_any_more_is_not_extended_either() {
    let mut side = Side::new(limits(RULES));
    let now = Now { mono: Timestamp(5_000_000), wall: WallTime(1_000_000) };
    let (granted, _) = ask(&mut side, b'k', b'a', acquisition(Read, None), now);
    assert!(matches!(granted, Ok(Outcome::Granted(_))));
    ask(&mut side, b'k', b'b', acquisition(Read, None), now).0.unwrap();
    side.manager.observe_fence(Fence::MAX);
    let owner = Owner::new(b"b");
    let highest = side.locks[&(0, b'k')].holds.get(owner.as_bytes()).unwrap().fence();
    // It is given already, so that the next one is needed.
    let later = Now { mono: now.mono + Millis(1), ..now };
    for operation in [extend(Some(highest)), acquisition(Read, Some(highest))] {
        let (told, changes) = ask(&mut side, b'k', b'a', operation, later);
        assert_eq!((told, changes), (Err(Refusal::FencesUsedUp), vec![]));
    }
    // Above all of the key, and not above the last one.
    let (told, _) = ask(&mut side, b'k', b'a', extend(Some(Fence::MAX)), later);
    assert_eq!(told, Ok(Outcome::Extended([Some(Fence::MAX)].into())));
}

#[test]
fn a_wall_clock_gone_mad_lets_no_client_use_up_the_fences() {
    let mut side = Side::new(limits(RULES));
    let now = Now { mono: Timestamp(5_000_000), wall: WallTime(u64::MAX) };
    let (told, _) = ask(&mut side, b'k', b'a', acquisition(Write, Some(Fence::MAX)), now);
    assert_eq!(told, Err(Refusal::MinFenceAhead));
    let (told, _) = ask(&mut side, b'k', b'a', acquisition(Write, None), now);
    assert!(matches!(told, Ok(Outcome::Granted(_))));
    let (told, _) = ask(&mut side, b'k', b'a', extend(Some(Fence::MAX)), now);
    assert_eq!(told, Err(Refusal::MinFenceAhead));
}

/// What clients and operators do to nodes of which one after the other is the primary.
#[derive(Clone, Debug)]
enum Deed {
    Take {
        key: u8,
        owner: u8,
        mode: Mode,
        least: Option<Asked>,
    },
    Extend {
        key: u8,
        owner: u8,
        least: Option<Asked>,
    },
    Release {
        key: u8,
        owner: u8,
    },
    Delete {
        key: u8,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Pass {
        us: u64,
    },
    /// The process is killed and started again, with all that it knew or with nothing.
    Restart {
        saved: bool,
    },
    /// The primary is gone. Its replica has received so many in a hundred of the records that it had not yet.
    FailOver {
        received: u64,
        wall_ahead_us: u64,
    },
}

/// A fence that a client asks for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Wall(i64),
    Furthest(i64),
    Last(i64),
    OfKey(i64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let (key, owner) = (|| b'j'..=b'l', || b'a'..=b'c');
    let by = || prop_oneof![4 => -2..=2i64, 1 => -9_000..9_000i64];
    let asked = move || {
        prop_oneof![
            1 => by().prop_map(Asked::Wall),
            3 => by().prop_map(Asked::Furthest),
            1 => by().prop_map(Asked::Last),
            1 => by().prop_map(Asked::OfKey),
        ]
    };
    let least = move || option::weighted(0.8, asked());
    let mode = prop_oneof![Just(Read), Just(Write)];
    prop_oneof![
        8 => (key(), owner(), mode, least())
            .prop_map(|(key, owner, mode, least)| Deed::Take { key, owner, mode, least }),
        8 => (key(), owner(), least()).prop_map(|(key, owner, least)| Deed::Extend { key, owner, least }),
        4 => (key(), owner()).prop_map(|(key, owner)| Deed::Release { key, owner }),
        1 => key().prop_map(|key| Deed::Delete { key }),
        1 => (key(), key()).prop_map(|(from, to)| Deed::Rename { from, to }),
        2 => (1..10_000u64).prop_map(|us| Deed::Pass { us }),
        1 => any::<bool>().prop_map(|saved| Deed::Restart { saved }),
        1 => (0..=100u64, 0..=HALF_US).prop_map(|(received, wall_ahead_us)| Deed::FailOver { received, wall_ahead_us }),
    ]
}

/// A primary and its replica, by what clients can see of them.
struct Nodes {
    primary: Side,
    replica: Side,
    /// What the replica has not received yet.
    under_way: Vec<(u8, Update)>,
    now_us: u64,
    /// How far the primary's wall clock is ahead of the slowest there may be.
    wall_ahead_us: u64,
    /// Whether the process has given a fence.
    begun: bool,
    /// The highest fence that clients have been given on each key, by whatever node, and to whom each was given.
    highest: BTreeMap<u8, u64>,
    given: BTreeMap<(u8, u64), u8>,
}

fn few() -> Limits {
    limits(Rules { holders_max: 9, ..RULES })
}

impl Nodes {
    fn new() -> Nodes {
        Nodes {
            primary: Side::new(few()),
            replica: Side::new(few()),
            under_way: Vec::new(),
            now_us: 5_000_000,
            wall_ahead_us: HALF_US,
            begun: false,
            highest: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    fn now(&self) -> Now {
        Now { mono: Timestamp(self.now_us), wall: WallTime(1_000_000_000 + self.now_us + self.wall_ahead_us) }
    }

    fn last(&self) -> u64 {
        self.primary.manager.last_fence().map_or(0, Fence::get)
    }

    fn fence(&self, key: u8, owner: u8) -> Option<u64> {
        Some(self.primary.locks.get(&(0, key))?.holds.get(&[owner])?.fence().get())
    }

    fn least(&self, asked: Asked, key: u8) -> Option<Fence> {
        let wall = self.now().wall.0;
        let (from, by) = match asked {
            Asked::Wall(by) => (wall, by),
            Asked::Furthest(by) => (wall + HALF_US, by),
            Asked::Last(by) => (self.last(), by),
            Asked::OfKey(by) => (self.highest.get(&key).copied().unwrap_or(0), by),
        };
        Fence::new(from.saturating_add_signed(by).max(1))
    }

    /// A request of a client. No command takes less than a microsecond.
    fn asks(&mut self, key: u8, owner: u8, operation: Operation) {
        self.now_us += 1;
        let (now, before, least) = (self.now(), self.fence(key, owner), operation.min_fence().map(Fence::get));
        let (last, may_begin) = (self.last(), !self.begun);
        let (told, changes) = ask(&mut self.primary, key, owner, operation, now);
        self.under_way.extend(changes.iter().map(|change| (key, update_of(change, now))));
        let fence = match told {
            Ok(Outcome::Granted(fences)) => Some(fences[0].get()),
            Ok(Outcome::Extended(fences)) => fences[0].map(Fence::get),
            Err(Refusal::MinFenceAhead) => {
                let least = least.expect("asked for one");
                assert!(least > last && least > now.wall.0 + HALF_US, "{least} is refused");
                None
            }
            _ => None,
        };
        let Some(fence) = fence else { return };
        assert!(least.is_none_or(|least| fence >= least), "{fence} is below {least:?}");
        if before == Some(fence) {
            return;
        }
        let highest = self.highest.insert(key, fence);
        assert!(highest.is_none_or(|highest| highest < fence), "{fence} after {highest:?}");
        assert_eq!(self.given.insert((key, fence), owner), None, "{fence} is given once more");
        // A process skips what the one before it may have given; else a client brings the clock no further than this.
        let jumped = if may_begin { last.max(now.wall.0) + SKEW.0 * 1000 } else { last };
        self.begun = true;
        assert!(self.last() <= (jumped + 1).max(now.wall.0 + HALF_US), "{} at {}", self.last(), now.wall.0);
    }

    /// Time passes until the last jump is over: what is lost then is not also lost by a jump.
    fn calm_down(&mut self) {
        let ahead = self.last().saturating_sub(self.now().wall.0 + HALF_US);
        self.now_us += ahead + 1;
    }

    fn restart(&mut self, saved: bool) {
        self.calm_down();
        let now = self.now();
        let old = std::mem::replace(&mut self.primary, Side::new(few()));
        if saved {
            self.primary.manager.observe_fence(old.manager.last_fence().unwrap_or(Fence::new(1).unwrap()));
            for ((db, key), lock) in old.locks {
                let saved = codec::decode(&codec::encode(&lock, now)).unwrap();
                let mut lock = LockManager::load(&saved, Origin::Disk, now).unwrap();
                self.primary.manager.arrive(Db(db), name(key), &mut lock, now.mono);
                self.primary.locks.insert((db, key), lock);
            }
        }
        self.begun = false;
        self.resync();
    }

    fn fail_over(&mut self, received: u64, wall_ahead_us: u64) {
        self.calm_down();
        let now = self.now();
        let count = self.under_way.len() * received as usize / 100;
        for (key, update) in self.under_way.drain(..).take(count) {
            let told = self
                .replica
                .in_step(0, &[key], now, |manager, step| manager.apply(step, KeyIndex(0), &update, Origin::Peer));
            assert_eq!(told.outcome, Ok(()));
        }
        self.wall_ahead_us = wall_ahead_us;
        self.primary = std::mem::replace(&mut self.replica, Side::new(few()));
        self.primary.manager.promote(self.now().wall);
        self.begun = true;
        self.resync();
    }

    /// A new replica has all that the primary has.
    fn resync(&mut self) {
        let now = self.now();
        self.under_way.clear();
        self.replica = Side::new(few());
        self.replica.manager.observe_fence(self.primary.manager.last_fence().unwrap_or(Fence::new(1).unwrap()));
        for ((db, key), lock) in &self.primary.locks {
            let saved = codec::decode(&codec::encode(lock, now)).unwrap();
            let mut lock = LockManager::load(&saved, Origin::Peer, now).unwrap();
            self.replica.manager.arrive(Db(*db), &[*key], &mut lock, now.mono);
            self.replica.locks.insert((*db, *key), lock);
        }
    }

    fn happens(&mut self, deed: &Deed) {
        match *deed {
            Deed::Take { key, owner, mode, least } => {
                let least = least.and_then(|least| self.least(least, key));
                self.asks(key, owner, acquisition(mode, least));
            }
            Deed::Extend { key, owner, least } => {
                let least = least.and_then(|least| self.least(least, key));
                self.asks(key, owner, extend(least));
            }
            Deed::Release { key, owner } => {
                self.asks(key, owner, Operation::Release(Release { mode: None, amount: Amount::All, fence: None }));
            }
            Deed::Delete { key } => self.move_lock(key, None),
            Deed::Rename { from, to } => self.move_lock(from, Some(to)),
            Deed::Pass { us } => self.now_us += us,
            Deed::Restart { saved } => self.restart(saved),
            Deed::FailOver { received, wall_ahead_us } => self.fail_over(received, wall_ahead_us),
        }
    }

    /// DEL and RENAME reach the replica as themselves, at once: the records that are under way come before them.
    fn move_lock(&mut self, from: u8, to: Option<u8>) {
        let now = self.now();
        if to == Some(from) || !self.primary.locks.contains_key(&(0, from)) {
            return;
        }
        let mut lock: Lock = self.primary.locks.remove(&(0, from)).unwrap();
        lock.lease = None;
        if let Some(to) = to {
            self.primary.locks.remove(&(0, to));
            self.primary.manager.carry(Some((Db(0), name(from))), Db(0), name(to), &mut lock, now.mono);
            self.primary.locks.insert((0, to), lock);
        }
        self.resync();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::random::cases(), ..ProptestConfig::default() })]

    #[test]
    fn no_client_carries_the_clock_away_and_none_makes_a_fence_repeat_or_go_back(deeds in vec(deed(), 1..120)) {
        // Wall clocks differ by up to half of the skew, nodes lose what they knew, and clients push as far as they may.
        let mut nodes = Nodes::new();
        for deed in &deeds {
            nodes.happens(deed);
        }
    }
}
