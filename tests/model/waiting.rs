//! Waiting, case by case: what was found wrong once, and what is promised by name.

mod lost;

use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::key::KeyIndex;
use lock_core::model::limits::StepLimits;
use lock_core::model::owner::Owner;
use lock_core::model::request::{self, Amount, Begun, Operation, Outcome, Release, Request, Wait};
use lock_core::model::time::{Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::{LONG, plain};
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{RULES, Side, World, limits};

pub(crate) fn world() -> World {
    World::new(RULES)
}

pub(crate) fn blind() -> World {
    World::new(Rules { detects: false, ..RULES })
}

pub(crate) fn at(holders: &[u8], queue: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (holders.to_vec(), queue.to_vec())
}

#[test]
fn an_asker_takes_no_key_that_was_opened_for_somebody_in_line() {
    // Serving the queue of j opens k and l; the requester names j alone.
    world().play("x tries to write j for 1 ms. m waits to read jkl for 1 ms. 1 ms unnoticed. a reads j. k: m/-.");
}

#[test]
fn a_key_that_is_taken_is_kept_no_more() {
    // The time that it was kept before would count, and those behind pass too early.
    world().play(
        "r writes j. m waits to write jk. x waits to write k within 1 ms. 19 ms. r writes k. y waits to write k. \
         r leaves k. 19 ms. k: -/my. 1 ms. k: y/m.",
    );
}

#[test]
fn a_key_to_which_a_lock_is_swapped_is_kept_no_more() {
    // Its time would be over as soon as it begins, and a latecomer would pass the waiter of several keys.
    world().play(
        "a reads k. m waits to write jk. b waits to read j. a tries to read j in 1. 20 ms unnoticed. swap. j: a/mb.",
    );
}

#[test]
fn a_deadlock_is_told_of_a_key_to_which_a_lock_was_swapped() {
    // What could go wrong: a waiter for it, once the time it was kept is over, is not taken to wait for the queue's
    // first. (Fuzzing: so did the model, as long as the queue had not been scanned.)
    world().play(
        "a reads j. d reads l. a tries to read k in 1. swap. c waits to write ljk. c waits to read ljk. \
         d waits to write jk. j is broken. swap. 2 wait.",
    );
}

#[test]
fn a_free_key_is_kept_from_the_moment_at_which_its_waiter_came() {
    // A first requester, an hour later, would find the whole time still to go.
    world().play("r writes j. m waits to write jk. 20 ms. x writes k.");
}

#[test]
fn a_hold_that_ends_in_a_look_at_another_key_hands_on() {
    // Its lease is taken from the index in that step, so no timer would ever ring for it.
    world().play(
        "y writes j. x tries to write k for 1 ms. m waits to read jk. z waits to read k. 1 ms unnoticed. \
         a waits to read j. k: z/m.",
    );
}

#[test]
fn an_upgrade_passes_no_reservation_of_another_key() {
    // Otherwise an owner's read hold of any key would pass the waiters of any other key.
    let mut world = world();
    world.play(
        "x writes l. a reads j. m waits to write kl. n waits to write k within 1 ms. a tries to write jk: Unavailable. \
         a waits to write jk. 1 ms. k: -/ma.",
    );
    // The time for which k is kept is over.
    world.play("19 ms. k: a/m.");
}

#[test]
fn an_upgrade_stands_at_the_head_of_the_line_of_the_key_that_it_upgrades_alone() {
    world().play(
        "b reads j. a reads j. x writes k. v waits to write j. u waits to write k. a waits to write jk. j: ab/av. \
         k: x/ua. b leaves j. x leaves k. j: a/av. k: u/a. u leaves k. j: a/v. k: a/-.",
    );
}

#[test]
fn an_upgrade_goes_before_a_reader_of_several_keys_that_it_keeps_waiting() {
    // The reader came first and stands first at k; at j it stands behind the upgrade. Each would wait for the other.
    let mut world = blind();
    world.play("a reads j. y writes k. v waits to read jk. a waits to write jk. y leaves k. j: a/v. k: a/v.");

    // Also where k is kept for the reader, for which l is wanting still.
    self::world().play("a reads j. y writes l. v waits to read jkl. a writes jk.");
}

#[test]
fn a_cycle_of_an_upgrade_and_two_waiters_is_refused_and_ends_by_itself_without_detection() {
    // a waits for u, which stands before it at k; u for v there; v for a at j.
    for detects in [true, false] {
        let mut world = World::new(Rules { detects, ..RULES });
        world.play("a reads j. y writes k. v waits to read jk. u waits to write k.");
        let answer = world.ask(b'a', Write, b"jk");
        world.play("y leaves k.");
        if detects {
            assert_eq!((answer, world.at(b'k')), (Answer::Deadlock, at(b"v", b"u")));
        } else {
            assert_eq!((answer, world.at(b'k')), (Answer::Queued, at(b"", b"vua")));
            // The time for which k is kept is over.
            world.play("20 ms. k: u/va. u leaves k. k: a/v.");
        }
    }
}

#[test]
fn a_reader_passes_another_that_waits_for_a_kept_key() {
    // d holds what m waits for besides, so m does not delay it, and readers do not delay readers.
    world()
        .play("y writes j. d reads k. m waits to write jk. b waits to read j. d waits to read j. y leaves j. j: d/mb.");
}

#[test]
fn what_a_waiter_gets_elsewhere_makes_an_exception_of_it() {
    // A lock that it holds comes to j, where it waits behind another waiter.
    blind().play(
        "b reads k. b writes l. a waits to write jk. c waits to read j. b waits to write j. l becomes j. j: b/ac.",
    );
}

#[test]
fn a_retry_of_the_only_waiter_does_not_begin_its_reservation_anew() {
    world().play(
        "y writes j. m waits to write jk. x waits to write k within 1 ms. 15 ms. m waits to write jk again. \
         z waits to write k. 5 ms. k: z/m.",
    );
}

#[test]
fn a_deadlock_through_one_who_is_delayed_though_the_asker_is_not_is_found() {
    // r holds j, so m does not delay it on k; but b, before it, waits for m.
    for (mode, held) in [("write", "reads"), ("read", "writes")] {
        let story = format!("y writes k. r {held} j. m waits to {mode} jk.");
        world().play(&format!("{story} b waits to write k. r asks to read k: Deadlock."));
    }
}

#[test]
fn an_owner_that_waits_for_itself_through_others_is_in_a_deadlock() {
    world().play("c writes l. d waits to read l. a waits to write l. d asks to write ljk: Deadlock.");
}

#[test]
fn a_lock_of_another_database_closes_no_cycle() {
    // Keys of one name in two databases are two keys.
    world().play("a writes j. b writes k. c writes j in 1. b waits to write j in 1. a waits to write k.");
}

#[test]
fn a_cycle_of_64_owners_is_refused_at_its_last() {
    let mut world = world();
    for n in 0..64 {
        world.holds(100 + n, Write, &[n]);
    }
    for n in 0..63 {
        world.waits(100 + n, Write, &[n + 1]);
    }
    assert_eq!(world.ask(163, Write, &[0]), Answer::Deadlock);
}

#[test]
fn a_deadlock_through_waiters_queued_ahead_is_found() {
    // a holds j; b waits for k and, before a, for l; a waits for b through the queue of l alone.
    world().play("x writes l. a writes j. b waits to write jl. c waits to write l. a asks to write l: Deadlock.");
}

#[test]
fn the_second_reader_that_upgrades_is_refused_even_with_detection_off() {
    blind().play("a reads k. b reads k. a waits to write k. b asks to write k: Deadlock. b leaves k. k: a/-.");
}

#[test]
fn a_search_for_deadlocks_looks_at_each_lock_once_however_many_wait() {
    // What could go wrong: each waiter is compared with each before it, at each key, and the server stands still.
    const KEYS: &[u8] = b"abcdefgh";
    for (mode, kept) in [(Write, false), (Write, true), (Read, false), (Read, true)] {
        let mut side = Side::new(limits(RULES));
        let mut now = Now { mono: Timestamp(9), wall: WallTime(9) };
        let acquire = |mode| Operation::Acquire(plain(mode, Wait::Forever));
        let ask = |side: &mut Side, owner: &[u8], keys: &[u8], mode, now| {
            let request = Request { owner: Owner::new(owner), operation: acquire(mode) };
            side.serve(0, keys, &request, now).outcome
        };
        assert!(matches!(ask(&mut side, b"x", b"h", Write, now), Ok(Outcome::Granted(_))));
        // A waiter waits for the requester: it might close a cycle.
        assert!(matches!(ask(&mut side, b"y", b"z", Write, now), Ok(Outcome::Granted(_))));
        assert!(matches!(ask(&mut side, b"w", b"z", Write, now), Ok(Outcome::Begun(Begun::New(_)))));
        for n in 0..200u8 {
            assert!(matches!(ask(&mut side, &[b'm', n], KEYS, mode, now), Ok(Outcome::Begun(Begun::New(_)))));
        }
        if kept {
            now.mono.0 += RULES.reserve_us;
        }
        let before = side.peeks;
        assert!(matches!(ask(&mut side, b"y", b"h", Write, now), Ok(Outcome::Begun(Begun::New(_)))));
        let peeks = side.peeks - before;
        // In the search, and to see whether any waiter waits for the requester.
        assert!(peeks <= 2 * (KEYS.len() + 1), "{peeks}");
    }
}

#[test]
fn locks_asked_for_in_one_order_are_never_refused() {
    // Each owner takes j, k and l in this order and releases them; a waiter does nothing else meanwhile.
    let (mut world, owners) = (world(), b"abcde");
    let mut at = [0usize; 5];
    for turn in 0..500usize {
        let n = turn * 7 % 5;
        let owner = owners[n];
        if world.naive.waiters.iter().any(|waiter| waiter.ask.owner == owner) {
            continue;
        }
        if at[n] == 3 {
            world.release(owner, b"jkl");
            at[n] = 0;
        } else {
            let mode = if (turn / 5 + n).is_multiple_of(3) { Read } else { Write };
            assert_ne!(world.ask(owner, mode, &[b"jkl"[at[n]]]), Answer::Deadlock);
            at[n] += 1;
        }
    }
}

#[test]
fn an_asker_goes_before_one_that_waits_for_what_it_holds() {
    world().play("r writes k. r reads j. m waits to read jk. r reads k.");
    world().play("r reads j. m waits to write jk. r writes k.");
}

#[test]
fn a_reservation_ends_after_its_time_and_the_waiter_stays_in_line() {
    world().play("y writes j. m waits to write jk. z waits to write k. 20 ms. k: z/m. z leaves k. y leaves j. k: m/-.");
}

#[test]
fn writers_do_not_starve() {
    // Readers overlap without an end.
    world().play("a reads k. w waits to write k. b waits to read k. a leaves k. k: w/b.");
}

#[test]
fn readers_do_not_starve() {
    // Writers follow on writers without an end.
    world().play("w writes k. a waits to read k. x waits to write k. b waits to read k. w leaves k. k: a/xb.");
}

#[test]
fn a_long_run_of_readers_is_granted_in_slices_and_no_request_passes_the_rest() {
    // The model knows no slices: the core by itself.
    let (mut side, now) =
        (Side::new(limits(Rules { holders_max: 999, ..RULES })), Now { mono: Timestamp(9), wall: WallTime(9) });
    let mut ask = |owner: &[u8], ask: Operation| {
        let request = Request { owner: Owner::new(owner), operation: ask };
        side.serve(0, b"k", &request, now)
    };
    let acquire = |mode| Operation::Acquire(plain(mode, Wait::Forever));
    let leave = || Operation::Release(Release { mode: None, amount: Amount::All, fence: None });
    assert!(matches!(ask(b"w", acquire(Write)).outcome, Ok(Outcome::Granted(_))));
    for n in 0..200u8 {
        assert!(matches!(ask(&[b'r', n], acquire(Read)).outcome, Ok(Outcome::Begun(Begun::New(_)))));
    }
    assert_eq!(ask(b"w", leave()).effects.wait_ends.len(), StepLimits::DEFAULT.answers);
    // A newcomer stands behind the rest, though nothing else would delay it; its step grants one request.
    let step = ask(b"n", acquire(Read));
    assert!(matches!(step.outcome, Ok(Outcome::Begun(Begun::New(_)))), "{:?}", step.outcome);
    assert_eq!(step.effects.wait_ends.len(), 1);
    let mut slices = Vec::new();
    while let Some(Job::ServeQueue(..)) = side.manager.next_job() {
        let step = side.in_step(0, b"k", now, |manager, step| manager.serve_ready_queue(step, KeyIndex(0), 64));
        slices.push(step.effects.wait_ends.len());
    }
    assert!(slices[..slices.len() - 1].iter().all(|slice| *slice == StepLimits::DEFAULT.answers), "{slices:?}");
    assert_eq!(slices.iter().sum::<usize>(), 200 - StepLimits::DEFAULT.answers);
    assert_eq!((side.manager.waiting(), side.manager.broken_invariant()), (0, None));
}

#[test]
fn what_an_owner_gets_while_its_release_settles_counts_elsewhere_after_it() {
    // It gets j, and may go before m at k from then on; but its release was requested before that queue was scanned
    // again.
    blind().play(
        "x tries to write j for 1 ms. a waits to write j. m waits to write kj. a waits to write k. 1 ms unnoticed. \
         a leaves kj. j: m/-. k: m/a.",
    );
}

#[test]
fn a_waiter_for_a_key_that_is_no_lock_any_more_blocks_no_waiter_elsewhere() {
    // The model works off what a SET leaves to do at once: the core by itself, in the same turn of the server.
    let (mut side, now) = (Side::new(limits(RULES)), Now { mono: Timestamp(9), wall: WallTime(9) });
    let ask = |side: &mut Side, owner: u8, keys: &[u8], ask: Operation| {
        let request = Request { owner: Owner::new(&[owner]), operation: ask };
        side.serve(0, keys, &request, now)
    };
    let acquire = || Operation::Acquire(plain(Write, Wait::Forever));
    assert!(matches!(ask(&mut side, b'x', b"j", acquire()).outcome, Ok(Outcome::Granted(_))));
    let Ok(Outcome::Begun(Begun::New(many))) = ask(&mut side, b'm', b"jk", acquire()).outcome else { panic!("held") };
    let Ok(Outcome::Begun(Begun::New(next))) = ask(&mut side, b'n', b"j", acquire()).outcome else { panic!("held") };
    side.set_over(0, b'k');
    let leave = Operation::Release(Release { mode: None, amount: Amount::All, fence: None });
    let answers = ask(&mut side, b'x', b"j", leave).effects.wait_ends;
    assert_eq!(answers[0], (many, request::WaitEnd::WrongType));
    assert!(matches!(&answers[1], (id, request::WaitEnd::Granted(_)) if *id == next), "{answers:?}");
}

#[test]
fn a_waiter_that_leaves_the_queue_of_a_later_key_makes_room_in_that_of_an_earlier() {
    // What could go wrong: the queue of j is scanned before the core sees that the wait for k is over. The request is
    // then judged as if the rest of it still were in the queue.
    blind().play(
        "d reads j. m waits to write jk within 1 ms. a waits to read j. 1 ms unnoticed. c tries to read jk. j: acd/-.",
    );
}

#[test]
fn a_waiter_that_times_out_after_a_release_makes_room_then() {
    // What could go wrong: in the model alone, which took that answer for one that was given before the release.
    blind().play(
        "e reads jk. a waits to write j for 1 ms within 1 ms. a waits to read j for 1 ms within 13 ms. 1 ms unnoticed. \
         e leaves jk. j: a/-.",
    );
}

#[test]
fn a_deadlock_through_two_keys_of_a_swapped_database_is_found_at_the_one_that_closes_it() {
    // What could go wrong: each queue is scanned as if the others had been already. The lock comes to l; the cycle goes
    // through j as well, which is scanned first.
    let mut world = World::new(Rules { holders_max: 1, ..RULES });
    world.play(
        "a writes j. b waits to read jk. c waits to read j. c waits to write kl. e tries to read l in 1. \
         e waits to write j. swap.",
    );
}

#[test]
fn a_repeated_request_that_cannot_wait_leaves_the_place_as_it_was() {
    // No owner would wait for the owner any more.
    let mut world = world();
    world.play("a writes j. b waits to write j. c waits to write j.");
    world.some_cannot_wait = true;
    let mut refused = 0;
    for _ in 0..6 {
        let answer = world.ask_for(b'b', Write, b"j", (LONG, Wait::Forever, Some(1)));
        refused += usize::from(answer == Answer::Unavailable);
        world.play("j: a/bc.");
    }
    assert_eq!(refused, 2);
    world.play("a leaves j. j: b/c.");
}

#[test]
fn a_raised_limit_of_holders_serves_its_waiters_and_no_request_passes_them() {
    // What could go wrong: the queue is not scanned, and the next requester takes the place for which others wait.
    let rules = |holders_max| Rules { holders_max, ..RULES };
    let mut world = World::new(rules(1));
    world.play("x writes k. a waits to read k. b waits to read k. c waits to read k. x leaves k. k: a/bc.");
    world.naive.rules.holders_max = 2;
    world.primary.manager.limit_holders(2);
    world.play("d tries to read k: TooManyHolders. k: ab/c.");
    world.naive.rules.holders_max = 3;
    world.primary.manager.limit_holders(3);
    world.play("1 ms. k: abc/-.");
}

#[test]
fn a_reader_that_only_queue_order_would_keep_in_a_cycle_is_granted() {
    // r would wait for w and x, which wait for a, which waits for r. But r can share k with a.
    world().play(
        "a reads k. r writes j. w waits to write k. x waits to write k. a waits to write j. r reads k. k: ar/wx. \
         r leaves jk. a leaves jk. k: w/x.",
    );
}

#[test]
fn a_writer_that_only_queue_order_would_keep_in_a_cycle_is_granted() {
    // k is kept for m, which also waits for b; b waits for r. r could not have k before m, nor m before r.
    world().play("b writes l. r writes j. m waits to write kl. b waits to write j. r writes k. k: r/m.");
}

#[test]
fn a_request_that_closes_a_cycle_passes_no_waiter_outside_of_it() {
    // y waits for z, which waits for no owner: r would come before y for nothing that y waits for.
    world().play(
        "b writes l. r writes j. z writes o. y waits to write ko. m waits to write kl. b waits to write j. \
         r asks to write k: Deadlock. k: -/ym.",
    );
}

#[test]
fn a_waiter_is_passed_once_by_requests_that_open_cycles() {
    // Two owners that close cycles in turn would keep v waiting for ever.
    world().play(
        "a writes j. b reads k. b waits to write j. v waits to write k. a reads k. a leaves j. b leaves k. \
         a waits to write j. b asks to read k: Deadlock. b leaves j. a leaves k. k: v/-.",
    );
}

#[test]
fn each_wait_of_an_owner_that_is_in_a_deadlock_is_ended_and_no_other() {
    // When k is reserved for m no longer, o passes m there. Both waits of o for m are deadlocks then; that for z is
    // not.
    world().play(
        "m writes ab. z writes lc. m waits to write kl. o waits to write a. o waits to write b. o waits to write c. \
         20 ms. o writes k. a: m/-. b: m/-. c: z/o.",
    );
}

#[test]
fn a_waiter_that_only_queue_order_keeps_in_a_cycle_is_granted_by_its_check() {
    // When j is reserved for a no longer, r passes a there. Then a waits for r, w for a, and r for w, but only for the
    // place of w: r can share k with a.
    world().play(
        "a reads k. z writes o. w waits to write k. r waits to read k. a waits to write jo. 20 ms. r writes j. j: r/a. \
         k: ar/w.",
    );
}
