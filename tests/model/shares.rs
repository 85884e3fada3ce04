//! Shares, case by case: requests that take some of a limited number of reads.

use crate::waiting::world;
use lock_core::model::hold::Mode::Write;
use lock_core::model::request::Amount;
use naive_model::words::Rules;
use naive_model::world::{Named, Op, RULES, World};

#[test]
fn all_holders_together_have_no_more_reads_than_the_limit_of_each_request() {
    // Each request is judged by its own limit; nothing is kept of it.
    world().play(
        "a takes 2/3 k. b tries to take 2/3 k: Unavailable. b takes 1/3 k. c tries to take 1/3 k: Unavailable. \
         c takes 1/4 k. d tries to take 1/1 k: Unavailable. k: abc/-.",
    );
}

#[test]
fn a_holder_that_asks_again_takes_more() {
    world().play(
        "a takes 1/3 k. a takes 2/3 k. a tries to take 1/3 k: Unavailable. a has 3 of k. a gives back one k: 2. \
         a has 2 of k.",
    );
}

#[test]
fn a_request_for_many_shares_is_served_after_at_most_those_before_it() {
    // What could go wrong: small requests take each share as it is given back, and it never comes to its turn.
    world().play(
        "0 takes 1/4 k. 1 takes 1/4 k. 2 takes 1/4 k. 3 takes 1/4 k. h waits to take 3/4 k. \
         w waits to take 1/4 k. 0 leaves k. z tries to take 1/4 k: Unavailable. h has 0 of k. \
         x waits to take 1/4 k. 1 leaves k. z tries to take 1/4 k: Unavailable. h has 0 of k. \
         y waits to take 1/4 k. 2 leaves k. z tries to take 1/4 k: Unavailable. h has 3 of k. \
         k: 3h/wxy. 3 leaves k. k: hw/xy. h leaves k. k: wxy/-.",
    );
}

#[test]
fn several_shares_that_fit_together_are_granted_together() {
    // The last one would fit, and does not pass.
    world().play(
        "h writes k. a waits to take 1/4 k. b waits to take 2/4 k. c waits to take 2/4 k. d waits to take 1/4 k. \
         h leaves k. k: ab/cd.",
    );
}

#[test]
fn no_request_passes_a_waiting_share_readers_neither() {
    let mut world = world();
    world.play(
        "a takes 1/2 k. b waits to take 2/2 k. r tries to read k: Unavailable. c tries to take 1/9 k: Unavailable. \
         r waits to read k. k: a/br.",
    );
    // The reader goes on with the share before it.
    world.play("a leaves k. k: br/-.");
}

#[test]
fn a_share_passes_readers_that_only_another_key_delays_and_nobody_else() {
    world().play(
        "x writes j. a takes 1/3 k. m waits to read jk. b takes 1/3 k. w waits to write jk. \
         c tries to take 1/3 k: Unavailable. k: ab/mw.",
    );
}

#[test]
fn reads_are_never_limited_but_count() {
    let mut world = world();
    world.play(
        "a takes 2/2 k. r reads k. r reads k. b tries to take 1/4 k: Unavailable. s reads jk. \
         b tries to take 1/5 k: Unavailable. b takes 1/6 k.",
    );
    // Of a holder of shares too, whoever waits.
    world.play("c waits to take 1/6 k. a reads k. a has 3 of k.");
}

#[test]
fn a_lower_limit_stops_the_line_until_the_sum_has_fallen() {
    // Nobody is thrown out, and nobody comes.
    world().play(
        "a takes 1/4 k. b takes 1/4 k. c takes 1/4 k. d takes 1/4 k. l waits to take 1/2 k. m waits to take 1/4 k. \
         a leaves k. k: bcd/lm. b leaves k. k: cd/lm. c leaves k. k: dlm/-.",
    );
}

#[test]
fn a_writer_waits_for_all_shares_and_keeps_newcomers_out() {
    world().play(
        "a takes 1/3 k. b takes 1/3 k. w waits to write k. c waits to take 1/3 k. a leaves k. k: b/wc. b leaves k. \
         k: w/c. w leaves k. k: c/-.",
    );
}

#[test]
fn a_request_repeated_after_a_lost_reply_adds_nothing() {
    let mut world = world();
    world.play("a tries to take 2/3 k until 2. a tries to take 2/3 k until 2. a has 2 of k.");
    // Neither limit nor queue matter to what it has already.
    world.play(
        "b takes 1/3 k. c waits to take 1/3 k. a tries to take 2/2 k until 2. \
         a polls to take 2/2 k keeping 50 ms: Granted. a has 2 of k.",
    );
    // What is wanting counts as anything that it takes.
    world.play(
        "a tries to take 2/9 k until 3: Unavailable. b leaves k. c leaves k. a tries to take 2/9 k until 3. \
         a has 3 of k.",
    );
}

#[test]
fn a_holder_that_asks_for_more_never_waits() {
    let mut world = world();
    // With QUEUE it has what it asks for.
    world.play(
        "a takes 1/3 k. b takes 2/3 k. a asks to take 1/3 k: HoldsShares. \
         a polls to take 2/3 k keeping 50 ms: HoldsShares. a asks to take 2/3 k keeping 50 ms: HoldsShares. \
         a tries to take 1/3 k: Unavailable.",
    );
    // Where it fits, but anybody waits, also one that this key does not delay.
    world.play(
        "b keeps 1 k. x writes j. m waits to read jk. a asks to take 1/3 k: HoldsShares. x leaves j. m leaves jk. \
         a asks to take 1/3 k: Granted. a has 2 of k. k: ab/-.",
    );
}

#[test]
fn a_writer_goes_down_to_shares_within_its_limit() {
    let mut world = world();
    world.play(
        "w writes k. w reads k. a waits to take 1/4 k. w tries to take 2/2 k: Unavailable. \
         w asks to take 2/2 k: HoldsShares.",
    );
    // That others wait does not matter: they would wait for it all the same.
    world.play("w takes 2/3 k.");
    let (keys, mode, fence) = (b"k".to_vec(), Some(Write), Named::None);
    world.then(&Op::Release { db: 0, keys, owner: b'w', mode, amount: Amount::One, fence });
    world.play("w has 3 of k. k: aw/-.");
}

#[test]
fn the_second_of_two_holders_of_shares_that_ask_to_write_is_refused() {
    for detects in [true, false] {
        let mut world = World::new(Rules { detects, ..RULES });
        world.play(
            "a takes 1/2 k. b takes 1/2 k. a waits to write k. b asks to write k: Deadlock. \
             b asks to take 1/9 k: HoldsShares. b leaves k.",
        );
        assert_eq!(world.naive.rows[0].writes, 1);
    }
}

#[test]
fn giving_back_down_to_a_number_makes_room_for_so_many() {
    world().play(
        "a takes 5/5 k. b waits to take 2/5 k. c waits to take 2/5 k. d waits to take 2/5 k. a keeps 4 k. k: a/bcd. \
         a keeps 1 k. k: abc/d.",
    );
}

#[test]
fn a_lapse_and_a_broken_hold_make_room() {
    world().play(
        "a takes 1/2 k for 10 ms. b takes 1/2 k. c waits to take 1/2 k. d waits to take 1/2 k. 10 ms. k: bc/d. \
         k of b is broken. k: cd/-.",
    );
}

#[test]
fn an_owner_waits_to_read_to_share_and_to_write_side_by_side() {
    let mut world = world();
    world.play(
        "h writes k. a waits to read k. a waits to take 1/2 k. a waits to write k. a asks to take 1/2 k: AlreadyWaits.",
    );
    // It comes to hold by the first of them, and what it may have then is judged as for any holder.
    world.play("h leaves k.");
    assert_eq!((world.reads(b'a', b'k'), world.naive.rows[0].writes), (2, 1));
}

#[test]
fn a_client_that_waits_for_shares_of_a_key_that_its_owner_came_to_hold_is_told() {
    // A lock that its owner holds comes to k. It stands behind another, or there are too many, or it has them at once.
    for (limit, before, end) in [(3, "", "-. a has 3"), (9, "w waits to write k.", "w. a has 3"), (9, "", "-. a has 4")]
    {
        let story = format!("h writes k. a takes 3/3 j. {before} a waits to take 1/{limit} k. j becomes k.");
        world().play(&format!("{story} k: a/{end} of k."));
    }
}

#[test]
fn a_place_for_shares_ends_where_its_owner_comes_to_hold() {
    world().play("h writes k. a takes 1/3 j. a polls to take 1/9 k keeping 50 ms. j becomes k. a has 1 of k. k: a/-.");
}

#[test]
fn an_offer_has_the_shares_that_were_asked_for_and_is_collected_by_such_a_request() {
    world().play(
        "h takes 2/4 k. a polls to take 3/4 k keeping 50 ms. h gives back one k. a has 3 of k. k is offered to a. \
         b tries to take 1/4 k: Unavailable. a polls to take 2/4 k keeping 50 ms: OtherTake. \
         a tries to take 1/4 k: OtherTake. a asks to write k: OtherMode. \
         a polls to take 3/4 k keeping 50 ms: Granted. a has 3 of k. k is offered to -.",
    );
}

#[test]
fn an_offer_is_not_collected_above_the_limit_of_the_request_that_collects_it() {
    // What could go wrong: it was offered under a higher limit, or to a reader, and others have come since.
    world().play(
        "h takes 2/4 k. a polls to take 3/4 k keeping 50 ms. h gives back one k. a polls to take 3/3 k keeping 50 ms. \
         a has 0 of k. k: h/a.",
    );
    world().play(
        "h writes k. a polls to read k keeping 50 ms. h leaves k. b reads k. a tries to take 1/1 k: Unavailable. \
         k: b/-.",
    );
}

#[test]
fn a_higher_retry_collects_an_offer_and_takes_what_is_left_if_that_fits() {
    for (limit, end) in [(4, "Granted. a has 2"), (3, "Unavailable. a has 0")] {
        let story = "h writes k. a polls to take 1/4 k keeping 50 ms. h leaves k. b takes 2/4 k.";
        world().play(&format!("{story} a tries to take 1/{limit} k until 2: {end} of k."));
    }
}

#[test]
fn a_reader_collects_no_offer_of_several_shares() {
    // What could go wrong: it has three, and gives one back.
    world().play(
        "h writes k. a polls to take 3/4 k keeping 50 ms. h leaves k. a asks to read k: OtherMode. a has 3 of k. \
         k is offered to a.",
    );
}

#[test]
fn a_release_gives_an_offer_of_shares_back_as_a_whole() {
    world().play("h writes k. a polls to take 3/4 k keeping 50 ms. h leaves k. a gives back one k: 0. k: -/-.");
}

#[test]
fn shares_that_a_lost_client_was_granted_become_an_offer_of_as_many() {
    world().play(
        "h writes k. a waits to take 3/4 k keeping 50 ms. h leaves k. k is offered to -. grant 0 is lost. \
         a has 3 of k. k is offered to a. a polls to take 3/4 k keeping 50 ms: Granted. a has 3 of k.",
    );
}

#[test]
fn shares_that_a_lost_client_was_granted_are_taken_back_and_the_next_is_served() {
    world()
        .play("h writes k. a waits to take 3/3 k. b waits to take 1/3 k. h leaves k. k: a/b. grant 1 is lost. k: b/-.");
}

#[test]
fn asking_again_with_another_limit_replaces_it_and_the_line_is_served_by_it() {
    for (verb, manner, lower, higher) in [
        ("waits", "again", "", ""),
        ("polls", "keeping 50 ms", ": Unavailable", ": Unavailable"),
        ("waits", "keeping 50 ms", "", ""),
    ] {
        world().play(&format!(
            "h takes 2/2 k. a {verb} to take 1/2 k {manner}. r waits to read k. a {verb} to take 1/1 k {manner}{lower}. \
             k: h/ar. h gives back one k. k: h/ar. a {verb} to take 1/3 k {manner}{higher}. k: ahr/-.",
        ));
    }
}

#[test]
fn asking_again_without_queue_or_another_number_of_shares() {
    let mut world = world();
    world.play(
        "h writes k. a polls to take 2/4 k keeping 50 ms. a polls to take 3/4 k keeping 50 ms: OtherTake. \
         a tries to take 1/4 k: OtherTake. a asks to read k: OtherMode. a asks to write k: OtherMode. \
         a tries to take 2/4 k: Unavailable. a asks to take 2/4 k: AlreadyWaits. k: h/a.",
    );
    // Between requests without QUEUE, one replaces the other, and what it takes.
    self::world().play("h writes k. a waits to take 2/4 k. a waits to take 3/4 k until 3. h leaves k. a has 3 of k.");
}

#[test]
fn a_share_waits_out_a_grace() {
    let mut world = world();
    world.play("h takes 1/4 k. grace of 20 ms. a tries to take 1/4 k: Grace. a waits to take 1/4 k.");
    // Its holder too, as any that asks, and then it is told.
    world.play("h waits to take 1/1 k. k: h/ah. 20 ms. k: ah/-. h has 1 of k.");
}

#[test]
fn only_so_many_share_as_may_hold_a_key() {
    let mut world = World::new(Rules { holders_max: 2, ..RULES });
    world.play("a takes 1/9 k. b takes 1/9 k. c asks to take 1/9 k: TooManyHolders.");
    // Where they have too many shares, it can wait for these as well.
    world.play("c waits to take 1/2 k.");
}

#[test]
fn a_share_that_waits_for_a_writer_that_waits_for_it_is_a_deadlock() {
    world().play(
        "w writes k. a writes j. w waits to write j. a asks to take 1/9 k: Deadlock. \
         a polls to take 1/9 k keeping 50 ms: Deadlock.",
    );
}

#[test]
fn a_share_that_waits_for_a_waiter_before_it_that_waits_for_it_is_a_deadlock() {
    // The hold of h keeps it waiting as well, so that it cannot go before the writer.
    let mut world = world();
    world.play(
        "h takes 1/2 k. i takes 1/2 k. a writes j. w waits to write jk. k: hi/w. v waits to write k. \
         v waits to write j. a asks to take 1/2 k: Deadlock.",
    );
}

#[test]
fn a_share_that_waits_for_a_holder_of_too_many_that_waits_for_it_is_a_deadlock() {
    // Of four, h has three: whatever the others do, it must give some back before a has two.
    let mut world = world();
    world.play("h takes 3/4 k. i takes 1/4 k. a writes j. h waits to write j. a asks to take 2/4 k: Deadlock.");
    // With two, it could get by with what i gives back.
    world.play("a waits to take 1/4 k. i leaves k. a has 1 of k.");
}

#[test]
fn what_a_repeated_request_wants_counts_for_a_deadlock() {
    world()
        .play("h takes 3/4 k. i takes 1/4 k. a writes j. h waits to write j. a asks to take 1/4 k until 2: Deadlock.");
}

#[test]
fn a_waiter_behind_a_share_waits_for_the_holder_that_the_share_waits_for() {
    let mut world = world();
    world.play("h takes 3/4 k. i takes 1/4 k. b waits to take 2/4 k. a writes j. h waits to write j.");
    // The reader is kept out by no hold, but the share before it is in no cycle with it: it waits for h, h for a.
    // None is served later than without it.
    world.play("a reads k.");
    // A share that does not fit cannot go before it.
    self::world().play(
        "h takes 3/4 k. i takes 1/4 k. b waits to take 2/4 k. a writes j. h waits to write j. \
         a asks to take 1/4 k: Deadlock.",
    );
}

#[test]
fn two_holders_of_which_either_may_let_a_share_in_are_no_deadlock() {
    let mut world = world();
    world.play("h takes 1/2 k. i takes 1/2 k. a writes j. h waits to write j.");
    // Also where both wait for it: the search is not exact there, and the timeout of one of them ends it.
    world.play("a waits to take 1/2 k. i leaves k. k: ah/-.");
}

#[test]
fn a_waiter_behind_a_share_is_none_that_it_waits_for() {
    let mut world = world();
    world.play("h takes 2/2 k. a writes j. a waits to take 2/2 k. l waits to take 1/2 k.");
    // The light one waits for what the heavy one has, and not the other way round.
    world.play("l waits to write j. h leaves k. k: a/l.");
}

#[test]
fn a_lower_limit_may_close_a_cycle_which_is_found() {
    // With a limit of three either of them may let it in; with two, h has too many.
    world().play(
        "h takes 2/3 k. i takes 1/3 k. a writes j. h waits to write j. a waits to take 1/3 k keeping 50 ms. \
         a waits to take 1/2 k keeping 50 ms. k: hi/-.",
    );
}

#[test]
fn a_time_limit_ends_the_wait_for_shares_and_lets_those_behind_it_go_on() {
    world().play("h takes 2/3 k. a waits to take 3/3 k within 10 ms. b waits to take 1/3 k. 10 ms. k: bh/-.");
}

#[test]
fn an_owner_that_waits_before_and_behind_a_share_is_a_deadlock() {
    // Its own wait keeps a waiting, and that one keeps the next wait of its own.
    world().play(
        "h writes k. b waits to write k. a waits to take 1/2 k. b asks to take 1/2 k: Deadlock. \
         b asks to read k: Deadlock.",
    );
    world().play(
        "h writes k. b waits to take 1/2 k. a waits to take 1/2 k. b asks to read k: Deadlock. \
         b asks to write k: Deadlock.",
    );
    // A reader keeps no share waiting.
    world().play("h writes k. b waits to read k. a waits to take 1/2 k. b waits to take 1/2 k.");
}

#[test]
fn a_holder_that_asks_for_more_in_a_grace_waits_for_nobody() {
    // What could go wrong: it is refused after the grace in any case, so that no cycle goes through it.
    world().play(
        "d writes k. e takes 1/2 j. c takes 1/2 j. grace of 20 ms. e waits to take 2/2 j. d waits to read j. \
         c waits to take 1/2 k. 20 ms. j: cde/-. k: d/c.",
    );
}

#[test]
fn a_request_behind_a_holder_that_asks_for_more_in_a_grace_waits_for_none_of_its_other_locks() {
    // What could go wrong: that holder is told when the grace is over, whatever becomes of its other wait. So the
    // request behind it would be refused though any holder of shares may let it in.
    world().play(
        "h takes 1/2 k. o takes 1/2 k. b writes j. grace of 20 ms. h waits to take 1/2 k. h waits to write j. \
         b waits to take 1/2 k. 20 ms. k: ho/b. j: b/h. o leaves k. k: bh/-.",
    );
}

#[test]
fn a_waiting_share_whose_owner_came_to_hold_passes_no_waiter() {
    // Neither one that only another key delays: a holder gets more only where nobody waits before it.
    world().play(
        "x writes l. h writes k. m waits to read kl. a waits to read k. a waits to take 1/9 k. h leaves k. \
         a has 1 of k. k: a/m.",
    );
}

#[test]
fn another_mode_is_told_before_another_number_of_shares() {
    world()
        .play("h writes k. a waits to take 1/2 k. a waits to read k. a polls to take 2/2 k keeping 50 ms: OtherMode.");
}

#[test]
fn a_share_that_fits_once_an_offer_is_replaced_goes_before_a_reader_behind_it() {
    // What could go wrong: b is served past s, since it holds the key for writing by an offer. That leaves it a share,
    // beside which s fits. Were the scan to go on behind b, its read would come next, and s would fit no more.
    world().play(
        "h writes k. s waits to take 1/2 k. b waits to take 1/3 k. b waits to read k. \
         x writes j. b polls to write j keeping 50 ms. x leaves j. j is offered to b. \
         j becomes k. k: bs/-. b has 2 of k. s has 1 of k.",
    );
}
