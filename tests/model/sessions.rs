//! Sessions and operators, case by case.

use crate::waiting::{at, blind, world};
use lock_core::model::effect::Cause;
use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::hold::Session;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::owner::Owner;
use lock_core::model::request::{Acquire, Begun, Operation, Outcome, Request, Terms, Wait};
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::plain;
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{RULES, Side, limits};

const NOW: Now = Now { mono: Timestamp(9), wall: WallTime(9) };

#[test]
fn what_ends_with_its_connection_is_handed_on() {
    // What could go wrong: the next in the queue waits for the timer, or for ever.
    world().play("a writes jk by 0. b waits to write j. c waits to write jk. client 0 closes. j: b/c. k: -/c.");
}

#[test]
fn what_is_bound_outlives_its_connection_by_its_grace_and_no_more() {
    // What could go wrong: the grace is forgotten, or lengthens a lease.
    let mut world = world();
    world.play("a writes j by 0+10. b waits to write j. client 0 closes. 9 ms. j: a/b. 1 ms. j: b/-.");
    // No longer than its lease.
    world.play("b writes k by 1+200000. client 1 closes. 100000 ms. k: -/-.");
}

#[test]
fn an_owner_that_comes_back_inside_the_grace_binds_anew() {
    // What could go wrong: the grace of the old connection ends what the new one holds.
    for extends in [true, false] {
        let mut world = world();
        world.play("a writes j by 0+10. client 0 closes. 5 ms.");
        world.play(if extends { "a extends j by 0+20." } else { "a writes j by 0+20." });
        world.play("50 ms. j: a/-. client 0 closes. 19 ms. j: a/-. 1 ms. j: -/-.");
    }
}

#[test]
fn a_binding_goes_to_another_connection_and_stays_where_nobody_says() {
    // What could go wrong: the first connection ends what the second one holds.
    world().play("a writes j by 0. a extends j by 1. client 0 closes. a extends j. j: a/-. client 1 closes. j: -/-.");
}

#[test]
fn what_a_closed_connection_held_cannot_be_extended_or_counted_before_it_is_ended() {
    // What could go wrong: the background work is delayed, and its owner or another goes on as if nothing had happened.
    let late = || {
        let mut world = world();
        world.play("a writes j by 0. client 0 closes unnoticed.");
        world
    };
    let mut extended = late();
    extended.play("a extends j by 0+10.");
    assert_eq!(extended.last, Some(Answer::Extended(vec![None])));
    late().play("b writes j.");
    let mut again = late();
    let before = again.naive.rows[0].fence;
    again.play("a writes j.");
    assert_ne!(again.naive.rows[0].fence, before);
}

#[test]
fn a_binding_goes_where_its_hold_goes() {
    // What could go wrong: the hold outlives its connection under its new name.
    for goes in ["j becomes k", "j moves", "swap"] {
        let mut world = world();
        world.play(&format!("a writes j by 0. {goes}."));
        assert_eq!(world.naive.rows.len(), 1);
        world.play("client 0 closes.");
        assert_eq!(world.naive.rows, []);
    }
}

#[test]
fn what_was_dismissed_or_loaded_is_bound_no_more() {
    // What could go wrong: a connection that is there still ends later what another node has decided about since.
    for unbound in ["dismissal", "j is reloaded"] {
        for before in ["", "client 0 closes unnoticed. "] {
            let story = format!("a writes j by 0. {before}{unbound}. j becomes k. a writes l by 0. client 0 closes.");
            world().play(&format!("{story} k: a/-. l: -/-."));
        }
    }
}

#[test]
fn after_a_dismissal_the_same_connection_binds_anew() {
    // What could go wrong: the hold says that it is bound so already.
    world().play("a writes j by 0. dismissal. a extends j by 0. client 0 closes. j: -/-.");
}

#[test]
fn a_grant_that_is_lost_with_its_connection_leaves_what_was_there() {
    // What could go wrong: the connection that has closed ends what another one holds for the same owner.
    let mut world = world();
    world.play("x reads j. a reads j by 0. a waits to write j by 1. x leaves j.");
    assert_eq!(world.naive.rows[0].session, Some((1, 0)));
    world.play("client 1 closes.");
    assert_eq!((world.at(b'j'), world.naive.rows[0].session), (at(b"a", b""), Some((0, 0))));
    world.play("client 0 closes. j: -/-.");
}

#[test]
fn a_grant_that_is_lost_does_not_bind_to_a_connection_that_has_closed_since() {
    // What could go wrong: nothing ever ends that hold but its lease.
    world().play(
        "x reads j. a reads j by 0. a waits to write j by 1. x leaves j. client 0 closes. j: a/-. client 1 closes. j: -/-.",
    );
}

#[test]
fn a_waiter_is_bound_when_it_is_granted_by_the_connection_that_asked_last() {
    // What could go wrong: a request that takes over a place keeps the binding of the first request.
    world().play(
        "x writes j. a waits to write j by 0. a waits to write j again by 1. client 0 closes. x leaves j. \
         grant 0 is delivered. j: a/-. client 1 closes. j: -/-.",
    );
}

#[test]
fn ten_thousand_holds_of_one_connection_are_ended_in_bites() {
    // What could go wrong: the server stands still while all of them are ended at once.
    const ITEMS_PER_POLL: usize = 64;
    for keys in [&b"j"[..], b"jkl"] {
        let mut side = Side::new(limits(Rules { holders_max: 99_999, ..RULES }));
        let [holders, waiters] = [7, 8].map(|client| side.manager.sessions().connection(client));
        let session = |connection| Some(Session { connection, grace: Millis(0) });
        let terms = |session| Terms::of(None, session, None);
        let acquire =
            |mode, session| Operation::Acquire(Acquire { terms: terms(session), ..plain(mode, Wait::Forever) });
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
    world().play(
        "a reads j by 0. b reads j. w waits to write j. j of x is broken. j of a is broken. j: b/w. j is broken. \
         j: w/-. client 0 closes.",
    );
}

#[test]
fn an_operator_ends_for_how_long_a_key_is_kept() {
    // What could go wrong: a free key stays unusable though an operator breaks what keeps it.
    for broken in ["k of m is broken. k: z/m.", "k is broken. k: z/m.", "k of z is broken. k: -/mz."] {
        world().play(&format!("y writes j. m waits to write jk. z waits to write k. k: -/mz. {broken}"));
    }
}

#[test]
fn a_holder_of_what_a_waiter_waits_for_goes_before_it() {
    // What could go wrong: it is refused for a deadlock, or waits for a waiter that waits for it.
    for mode in ["read", "write"] {
        let story = format!("r writes j. m waits to {mode} jk. r {mode}s k.");
        world().play(&format!("{story} k: r/m. r leaves jk. j: m/-. k: m/-."));
    }
}

#[test]
fn no_key_is_kept_longer_than_it_may_be_however_many_wait_for_several() {
    // What could go wrong: each of them has it kept anew, one after the other.
    world().play(
        "y writes j. 1 waits to write jk. 2 waits to write jk. 3 waits to write jk. 4 waits to write jk. \
         5 waits to write jk. z waits to write k. 19 ms. waiter 0 is cancelled. waiter 0 is cancelled. k: -/345z. \
         1 ms. k: z/345.",
    );
}

#[test]
fn no_waiter_starves_beside_those_for_several_keys() {
    // What could go wrong: two overlapping crowds pass the writer of both keys, or it passes them, without an end.
    let mut world = world();
    world.play("1 writes j. 2 writes k. m waits to write jk. s waits to write j.");
    let mut turns = 0;
    while world.at(b'j').0 != b"m" {
        // A holder of a key releases it after 3 ms and requests it again.
        for key in *b"jk" {
            for owner in world.at(key).0 {
                world.play("3 ms.");
                world.release(owner, &[key]);
                if owner != b'm' {
                    world.ask(owner, Write, &[key]);
                }
            }
        }
        turns += 1;
        assert!(turns < 20, "{:?} {:?}", world.at(b'j'), world.at(b'k'));
    }
    world.play("m leaves jk.");
    assert_eq!(world.at(b'j').0, b"s");
}

#[test]
fn a_deadlock_that_a_grant_closes_is_found() {
    // What could go wrong: a request that passes a waiter of several keys keeps it waiting from then on, and waits for
    // it elsewhere.
    let mut world = world();
    world.play(
        "m writes l. y writes j. m waits to write jk. r waits to write l. x waits to write k within 1 ms. 20 ms.",
    );
    // The key has been kept for m long enough.
    world.ask(b'r', Write, b"k");
    world.play("1 wait.");

    // With detection off the deadlock is not reported.
    blind().play(
        "m writes l. y writes j. m waits to write jk. r waits to write l. x waits to write k within 1 ms. 20 ms. \
         r writes k. 2 wait.",
    );
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
    world().play(
        "a reads j by 0. dismissal. x reads j. a waits to write j by 1. x leaves j. grant 0 is lost. client 0 closes. \
         j: a/-.",
    );
}

#[test]
fn of_two_grants_that_are_lost_with_their_connection_both_are_taken_back() {
    // What could go wrong: between the two, the connection ends what the first of them alone has bound to it.
    let mut world = blind();
    world.play(
        "y writes k. x writes l. a reads j by 0. a waits to read jk by 1. a waits to write jl by 1. y leaves k. \
         x leaves l.",
    );
    assert_eq!(world.naive.granted.len(), 2);
    world.play("client 1 closes.");
    assert_eq!((world.at(b'j'), world.naive.rows[0].session), (at(b"a", b""), Some((0, 0))));
}

#[test]
fn a_deadlock_that_the_end_of_a_hold_closes_is_found() {
    // What could go wrong: a holder that requests its key with others has no waiter before it there, until its hold
    // ends.
    for end in ["b leaves k", "k is broken", "k is deleted", "client 0 closes"] {
        let held = "x writes j. b reads l. b writes k by 0. d waits to write kl. d waits to read k.";
        world().play(&format!("{held} b waits to write jk. {end}. 2 wait."));
    }
}
