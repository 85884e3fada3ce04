//! Shares, case by case: requests that take some of a limited number of reads.

use crate::waiting::{at, world};
use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::request::{Amount, Wait};
use lock_core::model::time::Millis;
use naive_model::play::{AT_ONCE, LONG, Manner, WAITING, is_granted};
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{Named, Op, RULES, World, acquire};

const POLLING: Manner = Manner { wait: Wait::Never, queue: Some(50), retry: None };
const POLLING_FOR_LONG: Manner = Manner { wait: Wait::Forever, queue: Some(50), retry: None };

#[test]
fn all_holders_together_have_no_more_reads_than_the_limit_of_each_request() {
    // Each request is judged by its own limit; nothing is kept of it.
    let mut world = world();
    world.shares(b'a', b'k', (3, 2));
    assert_eq!(world.asks(b'b', b'k', (3, 2), AT_ONCE), Answer::Unavailable);
    world.shares(b'b', b'k', (3, 1));
    assert_eq!(world.asks(b'c', b'k', (3, 1), AT_ONCE), Answer::Unavailable);
    world.shares(b'c', b'k', (4, 1));
    assert_eq!(world.asks(b'd', b'k', (1, 1), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.at(b'k'), at(b"abc", b""));
}

#[test]
fn a_holder_that_asks_again_takes_more() {
    let mut world = world();
    world.shares(b'a', b'k', (3, 1));
    world.shares(b'a', b'k', (3, 2));
    assert_eq!(world.asks(b'a', b'k', (3, 1), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.reads(b'a', b'k'), 3);
    world.gives_back(b'a', b'k', Amount::One);
    assert_eq!((world.last.clone(), world.reads(b'a', b'k')), (Some(Answer::Released(vec![Some(2)])), 2));
}

#[test]
fn a_request_for_many_shares_is_served_after_at_most_those_before_it() {
    // What could go wrong: small requests take each share as it is given back, and it never comes to its turn.
    let mut world = world();
    for owner in 0..4 {
        world.shares(owner, b'k', (4, 1));
    }
    world.waits_to_share(b'h', b'k', (4, 3));
    for owner in 0..3 {
        world.waits_to_share(b'w' + owner, b'k', (4, 1));
        world.release(owner, b"k");
        assert_eq!(world.asks(b'z', b'k', (4, 1), AT_ONCE), Answer::Unavailable);
        assert_eq!(world.reads(b'h', b'k'), if owner < 2 { 0 } else { 3 });
    }
    assert_eq!(world.at(b'k'), at(b"\x03h", b"wxy"));
    world.release(3, b"k");
    assert_eq!(world.at(b'k'), at(b"hw", b"xy"));
    world.release(b'h', b"k");
    assert_eq!(world.at(b'k'), at(b"wxy", b""));
}

#[test]
fn several_shares_that_fit_together_are_granted_together() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    for (owner, take) in [(b'a', 1), (b'b', 2), (b'c', 2), (b'd', 1)] {
        world.waits_to_share(owner, b'k', (4, take));
    }
    // The last one would fit, and does not pass.
    world.release(b'h', b"k");
    assert_eq!(world.at(b'k'), at(b"ab", b"cd"));
}

#[test]
fn no_request_passes_a_waiting_share_readers_neither() {
    let mut world = world();
    world.shares(b'a', b'k', (2, 1));
    world.waits_to_share(b'b', b'k', (2, 2));
    assert_eq!(world.ask_for(b'r', Read, b"k", (LONG, Wait::Never, None)), Answer::Unavailable);
    assert_eq!(world.asks(b'c', b'k', (9, 1), AT_ONCE), Answer::Unavailable);
    world.waits(b'r', Read, b"k");
    assert_eq!(world.at(b'k'), at(b"a", b"br"));
    // The reader goes on with the share before it.
    world.release(b'a', b"k");
    assert_eq!(world.at(b'k'), at(b"br", b""));
}

#[test]
fn a_share_passes_readers_that_only_another_key_delays_and_nobody_else() {
    let mut world = world();
    world.holds(b'x', Write, b"j");
    world.shares(b'a', b'k', (3, 1));
    world.waits(b'm', Read, b"jk");
    world.shares(b'b', b'k', (3, 1));
    world.waits(b'w', Write, b"jk");
    assert_eq!(world.asks(b'c', b'k', (3, 1), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.at(b'k'), at(b"ab", b"mw"));
}

#[test]
fn reads_are_never_limited_but_count() {
    let mut world = world();
    world.shares(b'a', b'k', (2, 2));
    world.holds(b'r', Read, b"k");
    world.holds(b'r', Read, b"k");
    assert_eq!(world.asks(b'b', b'k', (4, 1), AT_ONCE), Answer::Unavailable);
    world.holds(b's', Read, b"jk");
    assert_eq!(world.asks(b'b', b'k', (5, 1), AT_ONCE), Answer::Unavailable);
    world.shares(b'b', b'k', (6, 1));
    // Of a holder of shares too, whoever waits.
    world.waits_to_share(b'c', b'k', (6, 1));
    world.holds(b'a', Read, b"k");
    assert_eq!(world.reads(b'a', b'k'), 3);
}

#[test]
fn a_lower_limit_stops_the_line_until_the_sum_has_fallen() {
    let mut world = world();
    for owner in 0..4 {
        world.shares(owner, b'k', (4, 1));
    }
    world.waits_to_share(b'l', b'k', (2, 1));
    world.waits_to_share(b'm', b'k', (4, 1));
    for owner in 0..2 {
        // Nobody is thrown out, and nobody comes.
        world.release(owner, b"k");
        assert_eq!(world.at(b'k').1, b"lm");
    }
    world.release(2, b"k");
    assert_eq!(world.at(b'k'), at(b"\x03lm", b""));
}

#[test]
fn a_writer_waits_for_all_shares_and_keeps_newcomers_out() {
    let mut world = world();
    world.shares(b'a', b'k', (3, 1));
    world.shares(b'b', b'k', (3, 1));
    world.waits(b'w', Write, b"k");
    assert_eq!(world.asks(b'c', b'k', (3, 1), WAITING), Answer::Queued);
    world.release(b'a', b"k");
    assert_eq!(world.at(b'k'), at(b"b", b"wc"));
    world.release(b'b', b"k");
    assert_eq!(world.at(b'k'), at(b"w", b"c"));
    world.release(b'w', b"k");
    assert_eq!(world.at(b'k'), at(b"c", b""));
}

#[test]
fn a_request_repeated_after_a_lost_reply_adds_nothing() {
    let mut world = world();
    let again = |least| Manner { retry: Some(least), ..AT_ONCE };
    assert!(is_granted(&world.asks(b'a', b'k', (3, 2), again(2))));
    assert!(is_granted(&world.asks(b'a', b'k', (3, 2), again(2))));
    assert_eq!(world.reads(b'a', b'k'), 2);
    // Neither limit nor queue matter to what it has already.
    world.shares(b'b', b'k', (3, 1));
    world.waits_to_share(b'c', b'k', (3, 1));
    assert!(is_granted(&world.asks(b'a', b'k', (2, 2), again(2))));
    let polled = world.asks(b'a', b'k', (2, 2), POLLING);
    assert!(is_granted(&polled), "{polled:?}");
    assert_eq!(world.reads(b'a', b'k'), 2);
    // What is wanting counts as anything that it takes.
    assert_eq!(world.asks(b'a', b'k', (9, 2), again(3)), Answer::Unavailable);
    world.release(b'b', b"k");
    world.release(b'c', b"k");
    assert!(is_granted(&world.asks(b'a', b'k', (9, 2), again(3))));
    assert_eq!(world.reads(b'a', b'k'), 3);
}

#[test]
fn a_holder_that_asks_for_more_never_waits() {
    let mut world = world();
    world.shares(b'a', b'k', (3, 1));
    world.shares(b'b', b'k', (3, 2));
    for manner in [WAITING, POLLING, POLLING_FOR_LONG] {
        // With QUEUE it has what it asks for.
        let share = if manner.queue.is_some() { (3, 2) } else { (3, 1) };
        assert_eq!(world.asks(b'a', b'k', share, manner), Answer::HoldsShares);
    }
    assert_eq!(world.asks(b'a', b'k', (3, 1), AT_ONCE), Answer::Unavailable);
    // Where it fits, but anybody waits, also one that this key does not delay.
    world.gives_back(b'b', b'k', Amount::To(1));
    world.holds(b'x', Write, b"j");
    world.waits(b'm', Read, b"jk");
    assert_eq!(world.asks(b'a', b'k', (3, 1), WAITING), Answer::HoldsShares);
    world.release(b'x', b"j");
    world.release(b'm', b"jk");
    assert!(is_granted(&world.asks(b'a', b'k', (3, 1), WAITING)));
    assert_eq!((world.reads(b'a', b'k'), world.at(b'k')), (2, at(b"ab", b"")));
}

#[test]
fn a_writer_goes_down_to_shares_within_its_limit() {
    let mut world = world();
    world.holds(b'w', Write, b"k");
    world.holds(b'w', Read, b"k");
    world.waits_to_share(b'a', b'k', (4, 1));
    assert_eq!(world.asks(b'w', b'k', (2, 2), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.asks(b'w', b'k', (2, 2), WAITING), Answer::HoldsShares);
    // That others wait does not matter: they would wait for it all the same.
    world.shares(b'w', b'k', (3, 2));
    let (keys, mode, fence) = (b"k".to_vec(), Some(Write), Named::None);
    world.then(&Op::Release { db: 0, keys, owner: b'w', mode, amount: Amount::One, fence });
    assert_eq!((world.reads(b'w', b'k'), world.at(b'k')), (3, at(b"aw", b"")));
}

#[test]
fn the_second_of_two_holders_of_shares_that_ask_to_write_is_refused() {
    for detects in [true, false] {
        let mut world = World::new(Rules { detects, ..RULES });
        world.shares(b'a', b'k', (2, 1));
        world.shares(b'b', b'k', (2, 1));
        world.waits(b'a', Write, b"k");
        assert_eq!(world.ask(b'b', Write, b"k"), Answer::Deadlock);
        assert_eq!(world.asks(b'b', b'k', (9, 1), WAITING), Answer::HoldsShares);
        world.release(b'b', b"k");
        assert_eq!(world.naive.rows[0].writes, 1);
    }
}

#[test]
fn giving_back_down_to_a_number_makes_room_for_so_many() {
    let mut world = world();
    world.shares(b'a', b'k', (5, 5));
    for owner in *b"bcd" {
        world.waits_to_share(owner, b'k', (5, 2));
    }
    world.gives_back(b'a', b'k', Amount::To(4));
    assert_eq!(world.at(b'k'), at(b"a", b"bcd"));
    world.gives_back(b'a', b'k', Amount::To(1));
    assert_eq!(world.at(b'k'), at(b"abc", b"d"));
}

#[test]
fn a_lapse_and_a_broken_hold_make_room() {
    let mut world = world();
    world.then(&acquire(b'a', Read, b"k").lease(10).share(Some((2, 1))));
    world.shares(b'b', b'k', (2, 1));
    for owner in *b"cd" {
        world.waits_to_share(owner, b'k', (2, 1));
    }
    world.pass(10);
    assert_eq!(world.at(b'k'), at(b"bc", b"d"));
    world.then(&Op::Break { key: b'k', owner: Some(b'b') });
    assert_eq!(world.at(b'k'), at(b"cd", b""));
}

#[test]
fn an_owner_waits_to_read_to_share_and_to_write_side_by_side() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.waits(b'a', Read, b"k");
    world.waits_to_share(b'a', b'k', (2, 1));
    world.waits(b'a', Write, b"k");
    assert_eq!(world.asks(b'a', b'k', (2, 1), WAITING), Answer::AlreadyWaits);
    // It comes to hold by the first of them, and what it may have then is judged as for any holder.
    world.release(b'h', b"k");
    assert_eq!((world.reads(b'a', b'k'), world.naive.rows[0].writes), (2, 1));
}

#[test]
fn a_client_that_waits_for_shares_of_a_key_that_its_owner_came_to_hold_is_told() {
    // A lock that its owner holds comes to k. It stands behind another, or there are too many, or it has them at once.
    for (limit, queue_before, told) in [(3, false, true), (9, true, true), (9, false, false)] {
        let mut world = world();
        world.holds(b'h', Write, b"k");
        world.shares(b'a', b'j', (3, 3));
        if queue_before {
            world.waits(b'w', Write, b"k");
        }
        world.waits_to_share(b'a', b'k', (limit, 1));
        world.then(&Op::Rename { from: b'j', to: b'k' });
        let waiters: &[u8] = if queue_before { b"w" } else { b"" };
        assert_eq!(world.at(b'k'), at(b"a", waiters));
        assert_eq!(world.reads(b'a', b'k'), if told { 3 } else { 4 });
    }
}

#[test]
fn a_place_for_shares_ends_where_its_owner_comes_to_hold() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.shares(b'a', b'j', (3, 1));
    assert_eq!(world.asks(b'a', b'k', (9, 1), POLLING), Answer::Placed);
    world.then(&Op::Rename { from: b'j', to: b'k' });
    assert_eq!((world.reads(b'a', b'k'), world.at(b'k')), (1, at(b"a", b"")));
}

#[test]
fn an_offer_has_the_shares_that_were_asked_for_and_is_collected_by_such_a_request() {
    let mut world = world();
    world.shares(b'h', b'k', (4, 2));
    assert_eq!(world.asks(b'a', b'k', (4, 3), POLLING), Answer::Placed);
    world.gives_back(b'h', b'k', Amount::One);
    assert_eq!((world.reads(b'a', b'k'), world.naive.rows[1].offered), (3, true));
    assert_eq!(world.asks(b'b', b'k', (4, 1), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.asks(b'a', b'k', (4, 2), POLLING), Answer::OtherTake);
    assert_eq!(world.asks(b'a', b'k', (4, 1), AT_ONCE), Answer::OtherTake);
    assert_eq!(world.ask(b'a', Write, b"k"), Answer::OtherMode);
    assert!(is_granted(&world.asks(b'a', b'k', (4, 3), POLLING)));
    assert_eq!((world.reads(b'a', b'k'), world.naive.rows[1].offered), (3, false));
}

#[test]
fn an_offer_is_not_collected_above_the_limit_of_the_request_that_collects_it() {
    // What could go wrong: it was offered under a higher limit, or to a reader, and others have come since.
    let mut world = world();
    world.shares(b'h', b'k', (4, 2));
    assert_eq!(world.asks(b'a', b'k', (4, 3), POLLING), Answer::Placed);
    world.gives_back(b'h', b'k', Amount::One);
    assert_eq!(world.asks(b'a', b'k', (3, 3), POLLING), Answer::Placed);
    assert_eq!((world.reads(b'a', b'k'), world.at(b'k')), (0, at(b"h", b"a")));
    let mut world = self::world();
    world.holds(b'h', Write, b"k");
    let polls = acquire(b'a', Read, b"k").queue(Some(50));
    world.then(&polls);
    world.release(b'h', b"k");
    world.holds(b'b', Read, b"k");
    assert_eq!(world.asks(b'a', b'k', (1, 1), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.at(b'k'), at(b"b", b""));
}

#[test]
fn a_higher_retry_collects_an_offer_and_takes_what_is_left_if_that_fits() {
    for (limit, granted) in [(4, true), (3, false)] {
        let mut world = world();
        world.holds(b'h', Write, b"k");
        assert_eq!(world.asks(b'a', b'k', (4, 1), POLLING), Answer::Placed);
        world.release(b'h', b"k");
        world.shares(b'b', b'k', (4, 2));
        world.asks(b'a', b'k', (limit, 1), Manner { retry: Some(2), ..AT_ONCE });
        assert_eq!(world.reads(b'a', b'k'), if granted { 2 } else { 0 });
    }
}

#[test]
fn a_reader_collects_no_offer_of_several_shares() {
    // What could go wrong: it has three, and gives one back.
    let mut world = world();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.asks(b'a', b'k', (4, 3), POLLING), Answer::Placed);
    world.release(b'h', b"k");
    assert_eq!(world.ask(b'a', Read, b"k"), Answer::OtherMode);
    assert_eq!((world.reads(b'a', b'k'), world.naive.rows[0].offered), (3, true));
}

#[test]
fn a_release_gives_an_offer_of_shares_back_as_a_whole() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.asks(b'a', b'k', (4, 3), POLLING), Answer::Placed);
    world.release(b'h', b"k");
    world.gives_back(b'a', b'k', Amount::One);
    assert_eq!((world.at(b'k'), world.last.clone()), (at(b"", b""), Some(Answer::Released(vec![Some(0)]))));
}

#[test]
fn shares_that_a_lost_client_was_granted_become_an_offer_of_as_many() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.asks(b'a', b'k', (4, 3), POLLING_FOR_LONG), Answer::Queued);
    world.release(b'h', b"k");
    assert!(!world.naive.rows[0].offered);
    world.then(&Op::Lose { nth: 0 });
    assert_eq!((world.reads(b'a', b'k'), world.naive.rows[0].offered), (3, true));
    assert!(is_granted(&world.asks(b'a', b'k', (4, 3), POLLING)));
    assert_eq!(world.reads(b'a', b'k'), 3);
}

#[test]
fn shares_that_a_lost_client_was_granted_are_taken_back_and_the_next_is_served() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.waits_to_share(b'a', b'k', (3, 3));
    world.waits_to_share(b'b', b'k', (3, 1));
    world.release(b'h', b"k");
    assert_eq!(world.at(b'k'), at(b"a", b"b"));
    world.then(&Op::Lose { nth: 1 });
    assert_eq!(world.at(b'k'), at(b"b", b""));
}

#[test]
fn asking_again_with_another_limit_replaces_it_and_the_line_is_served_by_it() {
    for manner in [Manner { retry: Some(1), ..WAITING }, POLLING, POLLING_FOR_LONG] {
        let mut world = world();
        world.shares(b'h', b'k', (2, 2));
        let first = world.asks(b'a', b'k', (2, 1), manner);
        assert_eq!(first, if manner.wait == Wait::Never { Answer::Placed } else { Answer::Queued });
        world.waits(b'r', Read, b"k");
        world.asks(b'a', b'k', (1, 1), manner);
        assert_eq!(world.at(b'k'), at(b"h", b"ar"));
        world.gives_back(b'h', b'k', Amount::One);
        assert_eq!(world.at(b'k'), at(b"h", b"ar"), "by the limit that it named last");
        world.asks(b'a', b'k', (3, 1), manner);
        assert_eq!(world.at(b'k'), at(b"ahr", b""));
    }
}

#[test]
fn asking_again_without_queue_or_another_number_of_shares() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.asks(b'a', b'k', (4, 2), POLLING), Answer::Placed);
    assert_eq!(world.asks(b'a', b'k', (4, 3), POLLING), Answer::OtherTake);
    assert_eq!(world.asks(b'a', b'k', (4, 1), AT_ONCE), Answer::OtherTake);
    assert_eq!(world.ask(b'a', Read, b"k"), Answer::OtherMode);
    assert_eq!(world.ask(b'a', Write, b"k"), Answer::OtherMode);
    assert_eq!(world.asks(b'a', b'k', (4, 2), AT_ONCE), Answer::Unavailable);
    assert_eq!(world.asks(b'a', b'k', (4, 2), WAITING), Answer::AlreadyWaits);
    assert_eq!(world.at(b'k'), at(b"h", b"a"));
    // Between requests without QUEUE, one replaces the other, and what it takes.
    let mut world = self::world();
    world.holds(b'h', Write, b"k");
    world.waits_to_share(b'a', b'k', (4, 2));
    assert_eq!(world.asks(b'a', b'k', (4, 3), Manner { retry: Some(3), ..WAITING }), Answer::Queued);
    world.release(b'h', b"k");
    assert_eq!(world.reads(b'a', b'k'), 3);
}

#[test]
fn a_share_waits_out_a_grace() {
    let mut world = world();
    world.shares(b'h', b'k', (4, 1));
    world.then(&Op::Grace { ms: 20 });
    assert_eq!(world.asks(b'a', b'k', (4, 1), AT_ONCE), Answer::Grace);
    assert_eq!(world.asks(b'a', b'k', (4, 1), WAITING), Answer::Queued);
    // Its holder too, as any that asks, and then it is told.
    assert_eq!(world.asks(b'h', b'k', (1, 1), WAITING), Answer::Queued);
    assert_eq!(world.at(b'k'), at(b"h", b"ah"));
    world.pass(20);
    assert_eq!((world.at(b'k'), world.reads(b'h', b'k')), (at(b"ah", b""), 1));
}

#[test]
fn only_so_many_share_as_may_hold_a_key() {
    let mut world = World::new(Rules { holders_max: 2, ..RULES });
    world.shares(b'a', b'k', (9, 1));
    world.shares(b'b', b'k', (9, 1));
    assert_eq!(world.asks(b'c', b'k', (9, 1), WAITING), Answer::TooManyHolders);
    // Where they have too many shares, it can wait for these as well.
    assert_eq!(world.asks(b'c', b'k', (2, 1), WAITING), Answer::Queued);
}

#[test]
fn a_share_that_waits_for_a_writer_that_waits_for_it_is_a_deadlock() {
    let mut world = world();
    world.holds(b'w', Write, b"k");
    world.holds(b'a', Write, b"j");
    world.waits(b'w', Write, b"j");
    assert_eq!(world.asks(b'a', b'k', (9, 1), WAITING), Answer::Deadlock);
    assert_eq!(world.asks(b'a', b'k', (9, 1), POLLING), Answer::Deadlock);
}

#[test]
fn a_share_that_waits_for_a_waiter_before_it_that_waits_for_it_is_a_deadlock() {
    // The hold of h keeps it waiting as well, so that it cannot go before the writer.
    let mut world = world();
    world.shares(b'h', b'k', (2, 1));
    world.shares(b'i', b'k', (2, 1));
    world.holds(b'a', Write, b"j");
    world.waits(b'w', Write, b"jk");
    assert_eq!(world.at(b'k').1, b"w");
    world.waits(b'v', Write, b"k");
    world.waits(b'v', Write, b"j");
    assert_eq!(world.asks(b'a', b'k', (2, 1), WAITING), Answer::Deadlock);
}

#[test]
fn a_share_that_waits_for_a_holder_of_too_many_that_waits_for_it_is_a_deadlock() {
    // Of four, h has three: whatever the others do, it must give some back before a has two.
    let mut world = world();
    world.shares(b'h', b'k', (4, 3));
    world.shares(b'i', b'k', (4, 1));
    world.holds(b'a', Write, b"j");
    world.waits(b'h', Write, b"j");
    assert_eq!(world.asks(b'a', b'k', (4, 2), WAITING), Answer::Deadlock);
    // With two, it could get by with what i gives back.
    assert_eq!(world.asks(b'a', b'k', (4, 1), WAITING), Answer::Queued);
    world.release(b'i', b"k");
    assert_eq!(world.reads(b'a', b'k'), 1);
}

#[test]
fn what_a_repeated_request_wants_counts_for_a_deadlock() {
    let mut world = world();
    world.shares(b'h', b'k', (4, 3));
    world.shares(b'i', b'k', (4, 1));
    world.holds(b'a', Write, b"j");
    world.waits(b'h', Write, b"j");
    assert_eq!(world.asks(b'a', b'k', (4, 1), Manner { retry: Some(2), ..WAITING }), Answer::Deadlock);
}

#[test]
fn a_waiter_behind_a_share_waits_for_the_holder_that_the_share_waits_for() {
    let mut world = world();
    world.shares(b'h', b'k', (4, 3));
    world.shares(b'i', b'k', (4, 1));
    world.waits_to_share(b'b', b'k', (4, 2));
    world.holds(b'a', Write, b"j");
    world.waits(b'h', Write, b"j");
    // The reader is kept out by no hold, but the share before it is in no cycle with it: it waits for h, h for a.
    let answer = world.ask(b'a', Read, b"k");
    assert!(is_granted(&answer), "none is served later than without it: {answer:?}");
    // A share that does not fit cannot go before it.
    let mut world = self::world();
    world.shares(b'h', b'k', (4, 3));
    world.shares(b'i', b'k', (4, 1));
    world.waits_to_share(b'b', b'k', (4, 2));
    world.holds(b'a', Write, b"j");
    world.waits(b'h', Write, b"j");
    assert_eq!(world.asks(b'a', b'k', (4, 1), WAITING), Answer::Deadlock);
}

#[test]
fn two_holders_of_which_either_may_let_a_share_in_are_no_deadlock() {
    let mut world = world();
    world.shares(b'h', b'k', (2, 1));
    world.shares(b'i', b'k', (2, 1));
    world.holds(b'a', Write, b"j");
    world.waits(b'h', Write, b"j");
    // Also where both wait for it: the search is not exact there, and the timeout of one of them ends it.
    world.waits_to_share(b'a', b'k', (2, 1));
    world.release(b'i', b"k");
    assert_eq!(world.at(b'k'), at(b"ah", b""));
}

#[test]
fn a_waiter_behind_a_share_is_none_that_it_waits_for() {
    let mut world = world();
    world.shares(b'h', b'k', (2, 2));
    world.holds(b'a', Write, b"j");
    world.waits_to_share(b'a', b'k', (2, 2));
    world.waits_to_share(b'l', b'k', (2, 1));
    // The light one waits for what the heavy one has, and not the other way round.
    world.waits(b'l', Write, b"j");
    world.release(b'h', b"k");
    assert_eq!(world.at(b'k'), at(b"a", b"l"));
}

#[test]
fn a_lower_limit_may_close_a_cycle_which_is_found() {
    // With a limit of three either of them may let it in; with two, h has too many.
    let mut world = world();
    world.shares(b'h', b'k', (3, 2));
    world.shares(b'i', b'k', (3, 1));
    world.holds(b'a', Write, b"j");
    world.waits(b'h', Write, b"j");
    assert_eq!(world.asks(b'a', b'k', (3, 1), POLLING_FOR_LONG), Answer::Queued);
    world.asks(b'a', b'k', (2, 1), POLLING_FOR_LONG);
    assert!(!world.at(b'k').1.contains(&b'a'), "{:?}", world.naive);
}

#[test]
fn a_time_limit_ends_the_wait_for_shares_and_lets_those_behind_it_go_on() {
    let mut world = world();
    world.shares(b'h', b'k', (3, 2));
    let wait = Wait::For(Millis(10));
    assert_eq!(world.asks(b'a', b'k', (3, 3), Manner { wait, ..WAITING }), Answer::Queued);
    world.waits_to_share(b'b', b'k', (3, 1));
    world.pass(10);
    assert_eq!(world.at(b'k'), at(b"bh", b""));
}
#[test]
fn an_owner_that_waits_before_and_behind_a_share_is_a_deadlock() {
    // Its own wait keeps a waiting, and that one keeps the next wait of its own.
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.waits(b'b', Write, b"k");
    world.waits_to_share(b'a', b'k', (2, 1));
    assert_eq!(world.asks(b'b', b'k', (2, 1), WAITING), Answer::Deadlock);
    assert_eq!(world.ask(b'b', Read, b"k"), Answer::Deadlock);
    let mut world = self::world();
    world.holds(b'h', Write, b"k");
    world.waits_to_share(b'b', b'k', (2, 1));
    world.waits_to_share(b'a', b'k', (2, 1));
    assert_eq!(world.ask(b'b', Read, b"k"), Answer::Deadlock);
    assert_eq!(world.ask(b'b', Write, b"k"), Answer::Deadlock);
    // A reader keeps no share waiting.
    let mut world = self::world();
    world.holds(b'h', Write, b"k");
    world.waits(b'b', Read, b"k");
    world.waits_to_share(b'a', b'k', (2, 1));
    world.waits_to_share(b'b', b'k', (2, 1));
}

#[test]
fn a_holder_that_asks_for_more_in_a_grace_waits_for_nobody() {
    // What could go wrong: it is refused after the grace in any case, so that no cycle goes through it.
    let mut world = world();
    world.holds(b'd', Write, b"k");
    world.shares(b'e', b'j', (2, 1));
    world.shares(b'c', b'j', (2, 1));
    world.then(&Op::Grace { ms: 20 });
    assert_eq!(world.asks(b'e', b'j', (2, 2), WAITING), Answer::Queued);
    world.waits(b'd', Read, b"j");
    assert_eq!(world.asks(b'c', b'k', (2, 1), WAITING), Answer::Queued);
    world.pass(20);
    assert_eq!((world.at(b'j'), world.at(b'k')), (at(b"cde", b""), at(b"d", b"c")));
}

#[test]
fn a_request_behind_a_holder_that_asks_for_more_in_a_grace_waits_for_none_of_its_other_locks() {
    // What could go wrong: that holder is told when the grace is over, whatever becomes of its other wait. So the
    // request behind it would be refused though any holder of shares may let it in.
    let mut world = world();
    world.shares(b'h', b'k', (2, 1));
    world.shares(b'o', b'k', (2, 1));
    world.holds(b'b', Write, b"j");
    world.then(&Op::Grace { ms: 20 });
    assert_eq!(world.asks(b'h', b'k', (2, 1), WAITING), Answer::Queued);
    world.waits(b'h', Write, b"j");
    assert_eq!(world.asks(b'b', b'k', (2, 1), WAITING), Answer::Queued);
    world.pass(20);
    assert_eq!((world.at(b'k'), world.at(b'j')), (at(b"ho", b"b"), at(b"b", b"h")));
    world.release(b'o', b"k");
    assert_eq!(world.at(b'k'), at(b"bh", b""));
}

#[test]
fn a_waiting_share_whose_owner_came_to_hold_passes_no_waiter() {
    // Neither one that only another key delays: a holder gets more only where nobody waits before it.
    let mut world = world();
    world.holds(b'x', Write, b"l");
    world.holds(b'h', Write, b"k");
    world.waits(b'm', Read, b"kl");
    world.waits(b'a', Read, b"k");
    world.waits_to_share(b'a', b'k', (9, 1));
    world.release(b'h', b"k");
    assert_eq!((world.reads(b'a', b'k'), world.at(b'k')), (1, at(b"a", b"m")));
}

#[test]
fn another_mode_is_told_before_another_number_of_shares() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.waits_to_share(b'a', b'k', (2, 1));
    world.waits(b'a', Read, b"k");
    assert_eq!(world.asks(b'a', b'k', (2, 2), POLLING), Answer::OtherMode);
}

#[test]
fn a_share_that_fits_once_an_offer_is_replaced_goes_before_a_reader_behind_it() {
    // What could go wrong: b is served past s, since it holds the key for writing by an offer. That leaves it a share,
    // beside which s fits. Were the scan to go on behind b, its read would come next, and s would fit no more.
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.waits_to_share(b's', b'k', (2, 1));
    world.waits_to_share(b'b', b'k', (3, 1));
    world.waits(b'b', Read, b"k");
    world.is_offered(b'b', Write, b'j');
    world.then(&Op::Rename { from: b'j', to: b'k' });
    assert_eq!(world.at(b'k'), at(b"bs", b""));
    assert_eq!((world.reads(b'b', b'k'), world.reads(b's', b'k')), (2, 1));
}
