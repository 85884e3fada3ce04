//! Places, case by case: requests with QUEUE that come again, late, over another connection or never.

use crate::waiting::{at, world};
use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::request::{Amount, Wait};
use lock_core::model::time::Millis;
use naive_model::play::is_granted;
use naive_model::words::Answer;
use naive_model::words::Rules;
use naive_model::world::{Op, RULES, World, release};

#[test]
fn places_are_served_in_the_order_of_their_first_requests_however_often_they_ask_again() {
    // What could go wrong: asking again moves an owner back, or a late request passes it.
    let mut world = world();
    world.holds(b'h', Write, b"k");
    for owner in *b"abc" {
        assert_eq!(world.polls(owner, Write, b"k", 50), Answer::Placed);
    }
    for owner in *b"cbacb" {
        world.pass(10);
        assert_eq!(world.polls(owner, Write, b"k", 50), Answer::Unavailable);
    }
    for owner in *b"abc" {
        let holder = world.at(b'k').0[0];
        world.release(holder, b"k");
        assert_eq!((world.at(b'k').0, world.offered(b'k')), (vec![owner], vec![owner]));
        assert!(is_granted(&world.polls(owner, Write, b"k", 50)));
        assert_eq!(world.offered(b'k'), b"");
        assert_eq!(world.naive.rows[0].writes, 1, "asking again does not count");
    }
}

#[test]
fn dead_owners_hold_a_line_up_for_the_time_of_their_places_all_together() {
    // Redisson's fair lock waits for each of them in turn.
    let mut world = world();
    world.holds(b'h', Write, b"k");
    for dead in 0..20 {
        assert_eq!(world.polls(dead, Write, b"k", 50), Answer::Placed);
    }
    world.polls(b'z', Write, b"k", 500);
    world.release(b'h', b"k");
    assert_eq!(world.offered(b'k'), [0]);
    world.pass(51);
    assert_eq!((world.at(b'k'), world.offered(b'k')), (at(b"z", b""), vec![b'z']));
}

#[test]
fn a_place_that_is_due_while_nothing_can_be_granted_has_its_time_again() {
    // Its owner could not ask: its requests were held back, or refused.
    let mut world = world();
    world.holds(b'h', Write, b"k");
    let mut kept = 0;
    world.some_places_are_overdue = true;
    for owner in 0..8 {
        world.polls(owner, Write, b"k", 50);
        world.pass(52);
        kept = world.at(b'k').1.len();
        if kept > 0 {
            break;
        }
    }
    assert_eq!(kept, 1, "the world did not stop granting");
    world.some_places_are_overdue = false;
    // It is looked at each second, and has its time from then on.
    world.pass(1_001);
    world.pass(49);
    assert_eq!(world.at(b'k').1.len(), 1);
    world.pass(2);
    assert_eq!(world.at(b'k').1.len(), 0);
}

#[test]
fn a_place_that_nobody_asks_for_again_ends_and_one_that_is_asked_for_does_not() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.polls(b'a', Write, b"k", 20);
    world.polls(b'b', Write, b"k", 20);
    for _ in 0..200 {
        world.pass(5);
        world.polls(b'b', Write, b"k", 20);
    }
    assert_eq!(world.at(b'k'), at(b"h", b"b"));
}

#[test]
fn a_second_connection_takes_a_place_over_and_a_poll_beside_it_leaves_it() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    assert_eq!(world.polls_for(b'a', Write, b"k", 50, Wait::For(Millis(30))), Answer::Queued);
    world.polls(b'b', Write, b"k", 500);
    assert_eq!(world.polls(b'a', Write, b"k", 50), Answer::Unavailable);
    assert_eq!(world.polls_for(b'a', Write, b"k", 50, Wait::For(Millis(30))), Answer::Queued);
    // Its BLOCK is over, and then its place.
    world.pass(31);
    assert_eq!(world.at(b'k'), at(b"h", b"ab"));
    world.release(b'h', b"k");
    assert_eq!(world.offered(b'k'), b"a");
}

#[test]
fn an_offer_of_several_keys_is_collected_as_a_whole_or_not_at_all() {
    // What could go wrong: an owner learns of a fence on one key while another has the other key.
    for broken in [false, true] {
        let mut world = world();
        world.holds(b'h', Write, b"j");
        assert_eq!(world.polls(b'a', Write, b"jk", 50), Answer::Placed);
        world.polls(b'b', Write, b"k", 50);
        world.release(b'h', b"j");
        assert_eq!((world.offered(b'j'), world.offered(b'k')), (vec![b'a'], vec![b'a']));
        assert_eq!(world.polls(b'a', Write, b"kj", 50), Answer::OtherKeys);
        assert_eq!(world.polls(b'a', Read, b"jk", 50), Answer::OtherMode);
        if broken {
            world.then(&Op::Delete { key: b'j' });
            world.holds(b'x', Write, b"j");
            assert_eq!(world.polls(b'a', Write, b"jk", 50), Answer::Placed, "judged anew");
            assert_eq!((world.at(b'j'), world.offered(b'k')), (at(b"x", b"a"), vec![b'b']));
        } else {
            assert!(is_granted(&world.polls(b'a', Write, b"jk", 50)));
            assert_eq!((world.at(b'j'), world.at(b'k')), (at(b"a", b""), at(b"a", b"b")));
        }
    }
}

#[test]
fn a_key_that_its_owner_held_before_is_no_part_of_an_offer() {
    // What could go wrong: what an owner works with is taken back because it did not ask again for another key.
    for released in [false, true] {
        let mut world = world();
        world.holds(b'a', Write, b"j");
        world.holds(b'h', Write, b"k");
        assert_eq!(world.polls(b'a', Write, b"jk", 20), Answer::Placed);
        world.release(b'h', b"k");
        assert_eq!((world.offered(b'j'), world.offered(b'k')), (vec![], vec![b'a']));
        if released {
            // Others have it now: the rest is given back, and the request waits anew.
            world.then(&Op::Delete { key: b'j' });
            world.holds(b'x', Write, b"j");
            assert_eq!(world.polls(b'a', Write, b"jk", 20), Answer::Placed);
            assert_eq!(world.offered(b'k'), b"");
        } else {
            world.pass(21);
            assert_eq!((world.at(b'j'), world.at(b'k')), (at(b"a", b""), at(b"", b"")));
        }
    }
}

#[test]
fn a_release_ends_the_place_and_the_offer_of_its_owner() {
    let mut world = world();
    world.holds(b'h', Write, b"k");
    world.polls(b'a', Write, b"k", 50);
    let release = |amount| release(b'a', b"k", amount);
    world.then(&release(Amount::To(1)));
    assert_eq!(world.at(b'k'), at(b"h", b"a"));
    world.then(&release(Amount::One));
    assert_eq!((world.at(b'k'), world.last.clone()), (at(b"h", b""), Some(Answer::Released(vec![None]))));
    world.polls(b'a', Write, b"k", 50);
    world.release(b'h', b"k");
    world.then(&release(Amount::One));
    assert_eq!((world.at(b'k'), world.last.clone()), (at(b"", b""), Some(Answer::Released(vec![Some(0)]))));
}

#[test]
fn limits_of_places_and_of_clients_are_two() {
    // A request whose place stands is answered as one that does not wait, and keeps its place.
    let mut world = World::new(Rules { waiters_max: 1, places_max: 2, ..RULES });
    world.holds(b'h', Write, b"k");
    assert_eq!(world.polls(b'a', Write, b"k", 50), Answer::Placed);
    assert_eq!(world.polls_for(b'b', Write, b"k", 50, Wait::Forever), Answer::Queued);
    assert_eq!(world.polls_for(b'a', Write, b"k", 50, Wait::Forever), Answer::Unavailable);
    assert_eq!(world.ask(b'c', Write, b"k"), Answer::TooManyWaiters);
    assert_eq!(world.polls(b'c', Write, b"k", 50), Answer::TooManyPlaces);
    assert_eq!(world.at(b'k'), at(b"h", b"ab"));
}

#[test]
fn two_offers_of_which_both_keys_are_renamed_onto_one_another_are_both_remembered() {
    // What could go wrong: both offers are without a hold for a moment. Only the last one of these was remembered, so
    // the request for the keys of the other one was taken for a request for other keys.
    let mut world = world();
    world.holds(b'h', Write, b"j");
    for owner in *b"ab" {
        assert_eq!(world.polls(owner, Read, b"jk", 50), Answer::Placed);
    }
    world.release(b'h', b"j");
    assert_eq!((world.offered(b'j'), world.offered(b'k')), (b"ab".to_vec(), b"ab".to_vec()));
    world.then(&Op::Rename { from: b'j', to: b'k' });
    for owner in *b"ab" {
        assert!(is_granted(&world.polls(owner, Read, b"jk", 50)));
    }
}

#[test]
fn a_waiter_for_which_the_collection_of_an_offer_makes_room_is_not_passed_by_those_behind_it() {
    // What could go wrong: b is served past a, since it holds the key for writing by an offer. That leaves it a read
    // hold, beside which there is room for one holder more. c is tried behind b, since it waits for l too.
    let mut world = World::new(Rules { holders_max: 2, ..RULES });
    world.holds(b'h', Write, b"k");
    world.holds(b'h', Write, b"l");
    for owner in *b"abc" {
        world.waits(owner, Read, b"k");
    }
    world.waits(b'c', Write, b"l");
    world.is_offered(b'b', Write, b'j');
    world.then(&Op::Rename { from: b'j', to: b'k' });
    assert_eq!(world.at(b'k'), at(b"ab", b"c"));
}
