//! Sessions and operators, case by case.

use crate::waiting::{at, blind, world};
use lock_core::model::effect::Cause;
use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::hold::Session;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::owner::Owner;
use lock_core::model::request::{Acquire, Amount, Begun, Operation, Outcome, Request, Wait};
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::{LONG, plain};
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{Op, RULES, Side, acquire, limits, release};

const NOW: Now = Now { mono: Timestamp(9), wall: WallTime(9) };

#[test]
fn what_ends_with_its_connection_is_handed_on() {
    // What could go wrong: the next in the queue waits for the timer, or for ever.
    let mut world = world();
    world.binds(b'a', Write, b"jk", (0, 0));
    world.waits(b'b', Write, b"j");
    world.waits(b'c', Write, b"jk");
    world.closes(0);
    assert_eq!((world.at(b'j'), world.at(b'k')), (at(b"b", b"c"), at(b"", b"c")));
}

#[test]
fn what_is_bound_outlives_its_connection_by_its_grace_and_no_more() {
    // What could go wrong: the grace is forgotten, or lengthens a lease.
    let mut world = world();
    world.binds(b'a', Write, b"j", (0, 10));
    world.waits(b'b', Write, b"j");
    world.closes(0);
    world.pass(9);
    assert_eq!(world.at(b'j'), at(b"a", b"b"));
    world.pass(1);
    assert_eq!(world.at(b'j'), at(b"b", b""));
    world.binds(b'b', Write, b"k", (1, LONG * 2));
    world.closes(1);
    world.pass(LONG);
    assert_eq!(world.at(b'k'), at(b"", b""));
}

#[test]
fn an_owner_that_comes_back_inside_the_grace_binds_anew() {
    // What could go wrong: the grace of the old connection ends what the new one holds.
    for extends in [true, false] {
        let mut world = world();
        world.binds(b'a', Write, b"j", (0, 10));
        world.closes(0);
        world.pass(5);
        if extends {
            world.extends(b'a', b'j', Some((0, 20)));
        } else {
            world.binds(b'a', Write, b"j", (0, 20));
        }
        world.pass(50);
        assert_eq!(world.at(b'j'), at(b"a", b""));
        world.closes(0);
        world.pass(19);
        assert_eq!(world.at(b'j'), at(b"a", b""));
        world.pass(1);
        assert_eq!(world.at(b'j'), at(b"", b""));
    }
}

#[test]
fn a_binding_goes_to_another_connection_and_stays_where_nobody_says() {
    // What could go wrong: the first connection ends what the second one holds.
    let mut world = world();
    world.binds(b'a', Write, b"j", (0, 0));
    world.extends(b'a', b'j', Some((1, 0)));
    world.closes(0);
    world.extends(b'a', b'j', None);
    assert_eq!(world.at(b'j'), at(b"a", b""));
    world.closes(1);
    assert_eq!(world.at(b'j'), at(b"", b""));
}

#[test]
fn what_a_closed_connection_held_cannot_be_extended_or_counted_before_it_is_ended() {
    // What could go wrong: the background work is delayed, and its owner or another goes on as if nothing had happened.
    let late = || {
        let mut world = world();
        world.binds(b'a', Write, b"j", (0, 0));
        world.then(&Op::Close { client: 0, late: true });
        world
    };
    let mut extended = late();
    extended.extends(b'a', b'j', Some((0, 10)));
    assert_eq!(extended.last, Some(Answer::Extended(vec![None])));
    late().holds(b'b', Write, b"j");
    let mut again = late();
    let before = again.naive.rows[0].fence;
    again.holds(b'a', Write, b"j");
    assert_ne!(again.naive.rows[0].fence, before);
}

#[test]
fn a_binding_goes_where_its_hold_goes() {
    // What could go wrong: the hold outlives its connection under its new name.
    for op in [Op::Rename { from: b'j', to: b'k' }, Op::Move { key: b'j' }, Op::Swap] {
        let mut world = world();
        world.binds(b'a', Write, b"j", (0, 0));
        world.then(&op);
        assert_eq!(world.naive.rows.len(), 1);
        world.closes(0);
        assert_eq!(world.naive.rows, []);
    }
}

#[test]
fn what_was_dismissed_or_loaded_is_bound_no_more() {
    // What could go wrong: a connection that is there still ends later what another node has decided about since.
    for op in [Op::Dismiss, Op::Reload { key: b'j' }] {
        for late in [false, true] {
            let mut world = world();
            world.binds(b'a', Write, b"j", (0, 0));
            if late {
                world.then(&Op::Close { client: 0, late });
            }
            world.then(&op);
            world.then(&Op::Rename { from: b'j', to: b'k' });
            world.binds(b'a', Write, b"l", (0, 0));
            world.closes(0);
            assert_eq!((world.at(b'k'), world.at(b'l')), (at(b"a", b""), at(b"", b"")));
        }
    }
}

#[test]
fn after_a_dismissal_the_same_connection_binds_anew() {
    // What could go wrong: the hold says that it is bound so already.
    let mut world = world();
    world.binds(b'a', Write, b"j", (0, 0));
    world.then(&Op::Dismiss);
    world.extends(b'a', b'j', Some((0, 0)));
    world.closes(0);
    assert_eq!(world.at(b'j'), at(b"", b""));
}

#[test]
fn a_grant_that_is_lost_with_its_connection_leaves_what_was_there() {
    // What could go wrong: the connection that has closed ends what another one holds for the same owner.
    let mut world = world();
    world.holds(b'x', Read, b"j");
    world.binds(b'a', Read, b"j", (0, 0));
    assert_eq!(world.binds(b'a', Write, b"j", (1, 0)), Answer::Queued);
    world.release(b'x', b"j");
    assert_eq!(world.naive.rows[0].session, Some((1, 0)));
    world.closes(1);
    assert_eq!((world.at(b'j'), world.naive.rows[0].session), (at(b"a", b""), Some((0, 0))));
    world.closes(0);
    assert_eq!(world.at(b'j'), at(b"", b""));
}

#[test]
fn a_grant_that_is_lost_does_not_bind_to_a_connection_that_has_closed_since() {
    // What could go wrong: nothing ever ends that hold but its lease.
    let mut world = world();
    world.holds(b'x', Read, b"j");
    world.binds(b'a', Read, b"j", (0, 0));
    world.binds(b'a', Write, b"j", (1, 0));
    world.release(b'x', b"j");
    world.closes(0);
    assert_eq!(world.at(b'j'), at(b"a", b""));
    world.closes(1);
    assert_eq!(world.at(b'j'), at(b"", b""));
}

#[test]
fn a_waiter_is_bound_when_it_is_granted_by_the_connection_that_asked_last() {
    // What could go wrong: a request that takes over a place keeps the binding of the first request.
    let mut world = world();
    world.holds(b'x', Write, b"j");
    world.binds(b'a', Write, b"j", (0, 0));
    world.then(&acquire(b'a', Write, b"j").wait(Wait::Forever).retry(Some(1)).session(Some((1, 0))));
    world.closes(0);
    world.release(b'x', b"j");
    world.then(&Op::Deliver { nth: 0 });
    assert_eq!(world.at(b'j'), at(b"a", b""));
    world.closes(1);
    assert_eq!(world.at(b'j'), at(b"", b""));
}

#[test]
fn ten_thousand_holds_of_one_connection_are_ended_in_bites() {
    // What could go wrong: the server stands still while all of them are ended at once.
    const ITEMS_PER_POLL: usize = 64;
    for keys in [&b"j"[..], b"jkl"] {
        let mut side = Side::new(limits(Rules { holders_max: 99_999, ..RULES }));
        let [holders, waiters] = [7, 8].map(|client| side.manager.sessions().connection(client));
        let session = |connection| Some(Session { connection, grace: Millis(0) });
        let acquire = |mode, session| Operation::Acquire(Acquire { session, ..plain(mode, Wait::Forever) });
        let mut ask = |owner: u16, keys: &[u8], ask: Operation| {
            let request = Request { owner: Owner::new(&owner.to_be_bytes()), operation: ask };
            side.serve(0, keys, &request, NOW).outcome
        };
        let each = 10_000 / keys.len() as u16;
        for owner in 0..each {
            assert!(matches!(ask(owner, keys, acquire(Read, session(holders))), Ok(Outcome::Granted(_))));
        }
        for key in keys {
            assert!(matches!(
                ask(u16::MAX, &[*key], acquire(Write, session(waiters))),
                Ok(Outcome::Begun(Begun::New(_)))
            ));
        }
        assert!(side.manager.disconnect(7, NOW.mono));
        let (mut ended, mut granted) = (0, 0);
        while let Some(work) = side.manager.next_job() {
            let (key, effects) = match work {
                Job::EndSession(connection, Db(0), name) => {
                    let piece = side.in_step(0, &name, NOW, |manager, step| {
                        manager.end_session(step, KeyIndex(0), connection, ITEMS_PER_POLL);
                    });
                    (name[0], piece.effects)
                }
                Job::ServeQueue(Db(0), name) => {
                    let serve =
                        side.in_step(0, &name, NOW, |manager, step| manager.serve_ready_queue(step, KeyIndex(0), 64));
                    (name[0], serve.effects)
                }
                Job::AnnounceEnds(Db(0), name) => {
                    let piece = side.in_step(0, &name, NOW, |manager, step| {
                        manager.announce_ends(step, KeyIndex(0), ITEMS_PER_POLL);
                    });
                    (name[0], piece.effects)
                }
                other => panic!("{other:?}"),
            };
            assert!(keys.contains(&key));
            let closed = effects.changes.iter().filter(|change| change.cause == Cause::Close).count();
            assert!(closed <= 2 * ITEMS_PER_POLL, "{closed} at once");
            ended += closed;
            granted += effects.wait_ends.len();
        }
        assert_eq!((ended, granted), (usize::from(each) * keys.len(), keys.len()));
        assert!(!side.manager.sessions().some_closed());
        assert_eq!(side.manager.sessions().len(), keys.len());
    }
}

#[test]
fn an_operator_ends_one_hold_or_all_and_the_next_waiters_are_granted() {
    // What could go wrong: the wrong hold ends, or the queue stands still.
    let mut world = world();
    world.binds(b'a', Read, b"j", (0, 0));
    world.holds(b'b', Read, b"j");
    world.waits(b'w', Write, b"j");
    world.then(&Op::Break { key: b'j', owner: Some(b'x') });
    world.then(&Op::Break { key: b'j', owner: Some(b'a') });
    assert_eq!(world.at(b'j'), at(b"b", b"w"));
    world.then(&Op::Break { key: b'j', owner: None });
    assert_eq!(world.at(b'j'), at(b"w", b""));
    world.closes(0);
}

#[test]
fn an_operator_ends_for_how_long_a_key_is_kept() {
    // What could go wrong: a free key stays unusable though an operator breaks what keeps it.
    for (owner, passed) in [(Some(b'm'), true), (None, true), (Some(b'z'), false)] {
        let mut world = world();
        world.holds(b'y', Write, b"j");
        world.waits(b'm', Write, b"jk");
        world.waits(b'z', Write, b"k");
        assert_eq!(world.at(b'k'), at(b"", b"mz"));
        world.then(&Op::Break { key: b'k', owner });
        assert_eq!(world.at(b'k'), if passed { at(b"z", b"m") } else { at(b"", b"mz") });
    }
}

#[test]
fn a_holder_of_what_a_waiter_waits_for_goes_before_it() {
    // What could go wrong: it is refused for a deadlock, or waits for a waiter that waits for it.
    for mode in [Read, Write] {
        let mut world = world();
        world.holds(b'r', Write, b"j");
        world.waits(b'm', mode, b"jk");
        world.holds(b'r', mode, b"k");
        assert_eq!(world.at(b'k'), at(b"r", b"m"));
        world.release(b'r', b"jk");
        assert_eq!((world.at(b'j'), world.at(b'k')), (at(b"m", b""), at(b"m", b"")));
    }
}

#[test]
fn no_key_is_kept_longer_than_it_may_be_however_many_wait_for_several() {
    // What could go wrong: each of them has it kept anew, one after the other.
    let mut world = world();
    world.holds(b'y', Write, b"j");
    for owner in b'1'..=b'5' {
        world.waits(owner, Write, b"jk");
    }
    world.waits(b'z', Write, b"k");
    world.pass(19);
    world.then(&Op::Cancel { nth: 0 });
    world.then(&Op::Cancel { nth: 0 });
    assert_eq!(world.at(b'k'), at(b"", b"345z"));
    world.pass(1);
    assert_eq!(world.at(b'k'), at(b"z", b"345"));
}

#[test]
fn no_waiter_starves_beside_those_for_several_keys() {
    // What could go wrong: two overlapping crowds pass the writer of both keys, or it passes them, without an end.
    let mut world = world();
    world.holds(b'1', Write, b"j");
    world.holds(b'2', Write, b"k");
    world.waits(b'm', Write, b"jk");
    world.waits(b's', Write, b"j");
    let mut turns = 0;
    while world.at(b'j').0 != b"m" {
        // A holder of a key releases it after 3 ms and requests it again.
        for key in *b"jk" {
            for owner in world.at(key).0 {
                world.pass(3);
                world.release(owner, &[key]);
                if owner != b'm' {
                    world.ask(owner, Write, &[key]);
                }
            }
        }
        turns += 1;
        assert!(turns < 20, "{:?} {:?}", world.at(b'j'), world.at(b'k'));
    }
    world.release(b'm', b"jk");
    assert_eq!(world.at(b'j').0, b"s");
}

#[test]
fn a_deadlock_that_a_grant_closes_is_found() {
    // What could go wrong: a request that passes a waiter of several keys keeps it waiting from then on, and waits for
    // it elsewhere.
    let mut world = world();
    world.holds(b'm', Write, b"l");
    world.holds(b'y', Write, b"j");
    world.waits(b'm', Write, b"jk");
    world.waits(b'r', Write, b"l");
    world.ask_for(b'x', Write, b"k", (LONG, Wait::For(Millis(1)), None));
    world.pass(20);
    // The key has been kept for m long enough.
    world.ask(b'r', Write, b"k");
    assert_eq!(world.naive.waiters.len(), 1);

    // With detection off the deadlock is not reported.
    let mut world = blind();
    world.holds(b'm', Write, b"l");
    world.holds(b'y', Write, b"j");
    world.waits(b'm', Write, b"jk");
    world.waits(b'r', Write, b"l");
    world.ask_for(b'x', Write, b"k", (LONG, Wait::For(Millis(1)), None));
    world.pass(20);
    world.holds(b'r', Write, b"k");
    assert_eq!(world.naive.waiters.len(), 2);
}

#[test]
fn the_first_of_many_are_found() {
    // What could go wrong: what is cut off on the way was one of the first.
    let mut side = Side::new(limits(RULES));
    for n in (0..200u8).rev() {
        let (now, key) = (Now { mono: Timestamp(1_000_000 - u64::from(n) * 1_000), ..NOW }, n % 100);
        let operation = Operation::Acquire(plain(Write, Wait::Forever));
        let request = Request { owner: Owner::new(&[n]), operation };
        side.serve(0, &[key], &request, now).outcome.expect("held or waits");
    }
    let now = Timestamp(1_000_000);
    let waits: Vec<u8> =
        side.manager.longest_waits(3, now).iter().map(|waiting| waiting.waiter.owner.as_bytes()[0]).collect();
    assert_eq!(waits, [99, 98, 97]);
    let crowds: Vec<(u8, usize, Millis)> =
        side.manager.most_contended(2, now).iter().map(|crowd| (crowd.name[0], crowd.waiting, crowd.waited)).collect();
    assert_eq!(crowds, [(0, 1, Millis(0)), (1, 1, Millis(1))]);
}

#[test]
fn a_lost_grant_does_not_revive_a_binding_of_before_a_dismissal() {
    // What could go wrong: what was there is bound again to a connection that it was bound to when this node was
    // another.
    let mut world = world();
    world.binds(b'a', Read, b"j", (0, 0));
    world.then(&Op::Dismiss);
    world.holds(b'x', Read, b"j");
    assert_eq!(world.binds(b'a', Write, b"j", (1, 0)), Answer::Queued);
    world.release(b'x', b"j");
    world.then(&Op::Lose { nth: 0 });
    world.closes(0);
    assert_eq!(world.at(b'j'), at(b"a", b""));
}

#[test]
fn of_two_grants_that_are_lost_with_their_connection_both_are_taken_back() {
    // What could go wrong: between the two, the connection ends what the first of them alone has bound to it.
    let mut world = blind();
    world.holds(b'y', Write, b"k");
    world.holds(b'x', Write, b"l");
    world.binds(b'a', Read, b"j", (0, 0));
    assert_eq!(world.binds(b'a', Read, b"jk", (1, 0)), Answer::Queued);
    assert_eq!(world.binds(b'a', Write, b"jl", (1, 0)), Answer::Queued);
    world.release(b'y', b"k");
    world.release(b'x', b"l");
    assert_eq!(world.naive.granted.len(), 2);
    world.closes(1);
    assert_eq!((world.at(b'j'), world.naive.rows[0].session), (at(b"a", b""), Some((0, 0))));
}

#[test]
fn a_deadlock_that_the_end_of_a_hold_closes_is_found() {
    // What could go wrong: a holder that requests its key with others has no waiter before it there, until its hold
    // ends.
    let ends = [
        release(b'b', b"k", Amount::All),
        Op::Break { key: b'k', owner: None },
        Op::Delete { key: b'k' },
        Op::Close { client: 0, late: false },
    ];
    for end in ends {
        let mut world = world();
        world.holds(b'x', Write, b"j");
        world.holds(b'b', Read, b"l");
        world.binds(b'b', Write, b"k", (0, 0));
        world.waits(b'd', Write, b"kl");
        world.waits(b'd', Read, b"k");
        world.waits(b'b', Write, b"jk");
        world.then(&end);
        assert_eq!(world.naive.waiters.len(), 2, "{end:?}");
    }
}
