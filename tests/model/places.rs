//! Places, case by case: requests with QUEUE that come again, late, over another connection or never.

use crate::waiting::{at, world};
use lock_core::model::hold::Mode::Write;
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{RULES, World};

#[test]
fn places_are_served_in_the_order_of_their_first_requests_however_often_they_ask_again() {
    // What could go wrong: asking again moves an owner back, or a late request passes it.
    let mut world = world();
    world.play("h writes k.");
    for owner in ["a", "b", "c"] {
        world.play(&format!("{owner} polls to write k keeping 50 ms."));
    }
    for owner in ["c", "b", "a", "c", "b"] {
        world.play(&format!("10 ms. {owner} polls to write k keeping 50 ms: Unavailable."));
    }
    for (holder, next) in [("h", "a"), ("a", "b"), ("b", "c")] {
        world.play(&format!("{holder} leaves k. k is offered to {next}."));
        world.play(&format!("{next} polls to write k keeping 50 ms: Granted. k is offered to -."));
        assert_eq!(world.naive.rows[0].writes, 1, "asking again does not count");
    }
}

#[test]
fn dead_owners_hold_a_line_up_for_the_time_of_their_places_all_together() {
    // Redisson's fair lock waits for each of them in turn.
    let mut world = world();
    world.play("h writes k.");
    for dead in 0..20 {
        assert_eq!(world.polls(dead, Write, b"k", 50), Answer::Placed);
    }
    world.play("z polls to write k keeping 500 ms. h leaves k.");
    assert_eq!(world.offered(b'k'), [0]);
    world.play("51 ms.");
    assert_eq!((world.at(b'k'), world.offered(b'k')), (at(b"z", b""), vec![b'z']));
}

#[test]
fn a_place_that_is_due_while_nothing_can_be_granted_has_its_time_again() {
    // Its owner could not ask: its requests were held back, or refused.
    let mut world = world();
    world.play("h writes k.");
    let mut kept = 0;
    world.some_places_are_overdue = true;
    for owner in 0..8 {
        world.polls(owner, Write, b"k", 50);
        world.play("52 ms.");
        kept = world.at(b'k').1.len();
        if kept > 0 {
            break;
        }
    }
    assert_eq!(kept, 1, "the world did not stop granting");
    world.some_places_are_overdue = false;
    // It is looked at each second, and has its time from then on.
    world.play("1001 ms. 49 ms.");
    assert_eq!(world.at(b'k').1.len(), 1);
    world.play("2 ms.");
    assert_eq!(world.at(b'k').1.len(), 0);
}

#[test]
fn a_place_that_nobody_asks_for_again_ends_and_one_that_is_asked_for_does_not() {
    let mut world = world();
    world.play("h writes k. a polls to write k keeping 20 ms. b polls to write k keeping 20 ms.");
    for _ in 0..200 {
        world.play("5 ms. b polls to write k keeping 20 ms: Unavailable.");
    }
    world.play("k: h/b.");
}

#[test]
fn a_second_connection_takes_a_place_over_and_a_poll_beside_it_leaves_it() {
    let mut world = world();
    world.play(
        "h writes k. a waits to write k within 30 ms keeping 50 ms. b polls to write k keeping 500 ms. \
         a polls to write k keeping 50 ms: Unavailable. a waits to write k within 30 ms keeping 50 ms.",
    );
    // Its BLOCK is over, and then its place.
    world.play("31 ms. k: h/ab. h leaves k. k is offered to a.");
}

#[test]
fn an_offer_of_several_keys_is_collected_as_a_whole_or_not_at_all() {
    // What could go wrong: an owner learns of a fence on one key while another has the other key.
    for broken in [false, true] {
        let mut world = world();
        world.play(
            "h writes j. a polls to write jk keeping 50 ms. b polls to write k keeping 50 ms. h leaves j. \
             j is offered to a. k is offered to a. a polls to write kj keeping 50 ms: OtherKeys. \
             a polls to read jk keeping 50 ms: OtherMode.",
        );
        if broken {
            // Judged anew.
            world.play("j is deleted. x writes j. a polls to write jk keeping 50 ms. j: x/a. k is offered to b.");
        } else {
            world.play("a polls to write jk keeping 50 ms: Granted. j: a/-. k: a/b.");
        }
    }
}

#[test]
fn a_key_that_its_owner_held_before_is_no_part_of_an_offer() {
    // What could go wrong: what an owner works with is taken back because it did not ask again for another key.
    for released in [false, true] {
        let mut world = world();
        world.play(
            "a writes j. h writes k. a polls to write jk keeping 20 ms. h leaves k. j is offered to -. \
             k is offered to a.",
        );
        if released {
            // Others have it now: the rest is given back, and the request waits anew.
            world.play("j is deleted. x writes j. a polls to write jk keeping 20 ms. k is offered to -.");
        } else {
            world.play("21 ms. j: a/-. k: -/-.");
        }
    }
}

#[test]
fn a_release_ends_the_place_and_the_offer_of_its_owner() {
    world().play(
        "h writes k. a polls to write k keeping 50 ms. a keeps 1 k. k: h/a. a gives back one k: nil. k: h/-. \
         a polls to write k keeping 50 ms. h leaves k. a gives back one k: 0. k: -/-.",
    );
}

#[test]
fn limits_of_places_and_of_clients_are_two() {
    // A request whose place stands is answered as one that does not wait, and keeps its place.
    let mut world = World::new(Rules { waiters_max: 1, places_max: 2, ..RULES });
    world.play(
        "h writes k. a polls to write k keeping 50 ms. b waits to write k keeping 50 ms. \
         a asks to write k keeping 50 ms: Unavailable. c asks to write k: TooManyWaiters. \
         c polls to write k keeping 50 ms: TooManyPlaces. k: h/ab.",
    );
}

#[test]
fn two_offers_of_which_both_keys_are_renamed_onto_one_another_are_both_remembered() {
    // What could go wrong: both offers are without a hold for a moment. Only the last one of these was remembered, so
    // the request for the keys of the other one was taken for a request for other keys.
    world().play(
        "h writes j. a polls to read jk keeping 50 ms. b polls to read jk keeping 50 ms. h leaves j. \
         j is offered to ab. k is offered to ab. j becomes k. a polls to read jk keeping 50 ms: Granted. \
         b polls to read jk keeping 50 ms: Granted.",
    );
}

#[test]
fn a_waiter_for_which_the_collection_of_an_offer_makes_room_is_not_passed_by_those_behind_it() {
    // What could go wrong: b is served past a, since it holds the key for writing by an offer. That leaves it a read
    // hold, beside which there is room for one holder more. c is tried behind b, since it waits for l too.
    let mut world = World::new(Rules { holders_max: 2, ..RULES });
    world.play(
        "h writes k. h writes l. a waits to read k. b waits to read k. c waits to read k. c waits to write l. \
         x writes j. b polls to write j keeping 50 ms. x leaves j. j is offered to b. j becomes k. k: ab/c.",
    );
}
