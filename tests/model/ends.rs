//! Where numbers end: refusals that no history of sane length meets.

use lock_core::manager::view::{View, ViewContext};
use lock_core::model::effect::Record;
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::owner::Owner;
use lock_core::model::record::{HoldRecord, Origin, Update};
use lock_core::model::request::{Acquire, Amount, Operation, Outcome, Refusal, Release, Request, Wait};
use lock_core::model::state::State;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::plain;
use naive_model::words::Rules;
use naive_model::world::{RULES, Side, Step, limits};

const NOW: Now = Now { mono: Timestamp(1_000), wall: WallTime(1_000) };

fn acquire(side: &mut Side, keys: &[u8], mode: Mode) -> Step {
    side.serve(0, keys, &Request { owner: Owner::new(b"a"), operation: asks(mode) }, NOW)
}

fn acquire_at(side: &mut Side, keys: &[u8], now: Now) -> Step {
    side.serve(0, keys, &Request { owner: Owner::new(b"a"), operation: write() }, now)
}

fn write() -> Operation {
    asks(Mode::Write)
}

fn asks(mode: Mode) -> Operation {
    Operation::Acquire(Acquire { lease: Millis(30), ..plain(mode, Wait::Never) })
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
        state: State { reads: u32::MAX, left: Millis(30), ..State::end(Fence::new(7)) },
        note: None,
    });
    let told = side.in_step(0, b"k", NOW, |manager, step| manager.apply(step, KeyIndex(0), &update, Origin::Peer));
    assert_eq!(told.outcome, Ok(()));
    refused(&acquire(&mut side, b"k", Mode::Read), Refusal::TooManyCounts);
    // Its other count can still grow.
    assert!(matches!(acquire(&mut side, b"k", Mode::Write).outcome, Ok(Outcome::Granted(_))));
}

fn reader(side: &mut Side, key: u8, owner: &[u8], lease: u64) {
    let ask = Operation::Acquire(Acquire { lease: Millis(lease), ..plain(Mode::Read, Wait::Never) });
    let request = Request { owner: Owner::new(owner), operation: ask };
    assert!(matches!(side.serve(0, &[key], &request, NOW).outcome, Ok(Outcome::Granted(_))));
}

#[test]
fn one_step_ends_no_more_holds_than_it_may_however_many_are_over() {
    // What could go wrong: the server stands still until the last of them has ended, or those that are left hold on.
    const MOST: usize = 8;
    const MANY: u8 = 100;
    let mut side = Side::new(limits(Rules { holders_max: 999, ended_max: MOST, ..RULES }));
    for key in *b"jk" {
        (0..MANY).for_each(|number| reader(&mut side, key, &[b'r', number], 5));
    }
    reader(&mut side, b'j', b"z", 1_000);
    let now = Now { mono: Timestamp(10_000), wall: WallTime(10_000) };
    let nothing = Operation::Release(Release { mode: None, amount: Amount::One, fence: None });
    let stranger = Request { owner: Owner::new(b"x"), operation: nothing };
    let held = |side: &Side, key| {
        let sessions = side.manager.sessions();
        let sight = ViewContext { db: Db(0), name: &[key], sessions, now: now.mono, judged: now.mono };
        side.locks.get(&(0, key)).and_then(|lock| View::of(lock, sight)).map_or(0, |view| view.holding())
    };
    assert_eq!((held(&side, b'j'), held(&side, b'k')), (1, 0));
    let mut ended = 0;
    for step in 0..5 {
        let changes = side.serve(0, b"jk", &stranger, now).effects.changes;
        // One more is the record of all that have ended together.
        assert!((1..=MOST + 1).contains(&changes.len()), "{} in step {step}", changes.len());
        let together = changes.iter().filter(|change| change.record == Record::Emptied).count();
        assert_eq!(together, usize::from(step == 0), "nothing stands on one of the keys");
        ended += changes.len() - together;
        assert_eq!((held(&side, b'j'), held(&side, b'k')), (1, 0));
    }
    assert_eq!(side.locks[&(0, b'j')].holds.len(), usize::from(MANY) + 1 - ended, "the others lie there yet");
    assert!(matches!(acquire_at(&mut side, b"k", now).outcome, Ok(Outcome::Granted(_))), "all that held it are over");
    assert_eq!(acquire_at(&mut side, b"j", now).outcome, Ok(Outcome::Unavailable), "z holds it");
    // The owner of the hold that stands is alone.
    let upgrade = Request { owner: Owner::new(b"z"), operation: write() };
    assert!(matches!(side.serve(0, b"j", &upgrade, now).outcome, Ok(Outcome::Granted(_))));
    assert_eq!(side.locks[&(0, b'j')].holds.len(), 1);
    let mut announced = 0;
    while let Some(Job::AnnounceEnds(_, name)) = side.manager.next_job() {
        let piece = side.in_step(0, &name, now, |manager, step| manager.announce_ends(step, KeyIndex(0), MOST));
        assert!((1..=MOST).contains(&piece.effects.changes.len()));
        announced += piece.effects.changes.len();
    }
    // One of each key was announced when its lock was emptied, and some of j have ended by themselves.
    assert!(announced > usize::from(MANY) && !side.manager.has_jobs(), "{announced}");
}
