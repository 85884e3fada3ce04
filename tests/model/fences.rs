//! MINFENCE, case by case; `attack` on its bounds: no client carries a node's fence clock further ahead than half
//! of the skew, and none makes a fence repeat or go back.

mod attack;

use crate::waiting::{at, world};
use lock_core::model::effect::Change;
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode::{self, Read, Write};
use lock_core::model::owner::Owner;
use lock_core::model::request::{Acquire, Extend, Operation, Outcome, Refusal, Request, Terms, Wait};
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use naive_model::play::{LONG, plain};
use naive_model::words::Answer;
use naive_model::world::{Least, Named, Op, RULES, SKEW, Side, World, acquire, limits};

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
