//! Where numbers end: refusals that no history of sane length meets.

use crate::world::{RULES, Side, Step, limits};
use redis_lock::lock::model::fence::Fence;
use redis_lock::lock::model::hold::Mode;
use redis_lock::lock::model::key::KeyIndex;
use redis_lock::lock::model::owner::Owner;
use redis_lock::lock::model::record::{HoldRecord, Origin, Update};
use redis_lock::lock::model::request::{Acquire, Operation, Outcome, Refusal, Request, Wait};
use redis_lock::lock::model::time::{Millis, Now, Timestamp, WallTime};

const NOW: Now = Now { mono: Timestamp(1_000), wall: WallTime(1_000) };

fn acquire(side: &mut Side, keys: &[u8], mode: Mode) -> Step {
    let ask = Operation::Acquire(Acquire {
        mode,
        lease: Millis(30),
        note: None,
        wait: Wait::Never,
        retry: None,
        session: None,
        queue: None,
        share: None,
        min_fence: None,
    });
    let request = Request { owner: Owner::new(b"a"), operation: ask };
    side.serve(0, keys, &request, NOW)
}

fn refused(step: &Step, why: Refusal) {
    assert_eq!(step.outcome, Err(why));
    assert!(step.effects.is_empty(), "{:?}", step.effects);
}

#[test]
fn when_the_fences_are_used_up_nothing_new_is_granted_and_what_is_held_goes_on() {
    // A clock that wraps or sticks would give a fence that was given before.
    let mut side = Side::new(limits(RULES));
    let last_but_one = Fence::new(Fence::MAX.get() - 1).unwrap();
    assert!(matches!(acquire(&mut side, b"h", Mode::Write).outcome, Ok(Outcome::Granted(_))));
    side.manager.observe_fence(last_but_one);
    // Two are requested and one is left: neither key is taken.
    refused(&acquire(&mut side, b"jk", Mode::Write), Refusal::FencesUsedUp);
    assert_eq!((side.locks.len(), side.manager.last_fence()), (1, Some(last_but_one)));
    assert_eq!(acquire(&mut side, b"j", Mode::Write).outcome, Ok(Outcome::Granted([Fence::MAX].into())));
    refused(&acquire(&mut side, b"k", Mode::Write), Refusal::FencesUsedUp);
    assert!(matches!(acquire(&mut side, b"h", Mode::Write).outcome, Ok(Outcome::Granted(_))), "again needs no fence");
}

#[test]
fn a_count_at_its_end_stays_there() {
    // One more would wrap to zero: the lock of the owner that holds it most often would be free.
    let mut side = Side::new(limits(RULES));
    let update = Update::State(HoldRecord {
        owner: Owner::new(b"a"),
        reads: u32::MAX,
        writes: 0,
        fence: Fence::new(7),
        wall_deadline: WallTime(0),
        left: Millis(30),
        note: None,
    });
    let told = side.in_step(0, b"k", NOW, |manager, step| manager.apply(step, KeyIndex(0), &update, Origin::Peer));
    assert_eq!(told.outcome, Ok(()));
    refused(&acquire(&mut side, b"k", Mode::Read), Refusal::TooManyCounts);
    // Its other count can still grow.
    assert!(matches!(acquire(&mut side, b"k", Mode::Write).outcome, Ok(Outcome::Granted(_))));
}
