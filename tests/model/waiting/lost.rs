//! Grants whose clients were lost: what is taken back, and what stays.

use super::{at, blind, world};
use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::request::Wait;
use lock_core::model::time::Millis;
use naive_model::play::LONG;
use naive_model::words::Rules;
use naive_model::world::{Named, Op, RULES, World, acquire};

#[test]
fn an_upgrade_that_lost_its_hold_is_told_while_another_key_keeps_it_waiting() {
    blind().play("c reads j. b reads k. b waits to write jk. b leaves k. j: c/-.");
}

#[test]
fn an_extension_that_failed_confirms_nothing() {
    // The client names the fence of a hold it once had: it does not know of the new one.
    let mut world = world();
    world.play("x writes k. a waits to write k. x leaves k.");
    world.then(&Op::Extend {
        keys: b"k".to_vec(),
        owner: b'a',
        lease: LONG,
        fence: Named::Other,
        session: None,
        note: None,
    });
    world.play("grant 0 is lost. k: -/-.");
}

#[test]
fn a_waiter_that_lost_what_it_upgrades_is_told_so_though_it_is_in_a_cycle_too() {
    // c stands at the head for l, which it was to upgrade, and behind d for k; d waits for both.
    let mut world = world();
    world.play("a reads jk. a writes j. c reads l. d waits to write kl. c waits to write kl. c waits to read j.");
    // The locks go to another database. The world sees that no wait is refused which holds do not keep waiting.
    world.play("swap.");
}

#[test]
fn a_lost_grant_is_taken_back_from_a_hold_that_got_its_old_fence_back_and_then_another() {
    // The second grant upgrades the hold, and is lost: the hold has its first fence again. The third gives it one more.
    let mut world = world();
    world.play(
        "h writes jk. b waits to read k. b waits to write k. h leaves k. grant 1 is lost. b waits to write jk. \
         h leaves j.",
    );
    // The count of the first would stay until the lease ends.
    world.play("grant 0 is lost.");
    assert_eq!(world.naive.rows.iter().map(|row| row.reads).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn a_lost_grant_of_several_keys_is_taken_back_once_though_one_was_renamed_over_another() {
    // What could go wrong: both keys of the grant lie at one key then, and its count is taken from the hold there
    // twice. A later grant gives its holds one more fence each, so that both parts may be of the hold that lies there.
    let mut world = blind();
    world.play("h reads j. swap. b waits to write ljk in 1. swap. b waits to write ljk until 3. swap.");
    assert_eq!((world.naive.granted.len(), world.at(b'k').0), (2, vec![b'b']));
    world.play("l becomes k. grant 0 is lost.");
    let rows = world.naive.rows.iter().filter(|row| row.owner == b'b');
    assert_eq!(rows.map(|row| row.writes).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn a_lost_grant_is_taken_back_from_a_renamed_lock_that_a_later_grant_gave_another_fence() {
    // What could go wrong: of the two parts of the grant that lie at one key then, only the one is told of that fence
    // whose hold the rename has ended.
    let mut world = world();
    world.play("h writes j. b waits to write ljk. swap. k becomes j. b waits to read ljk in 1. swap.");
    assert_eq!(world.naive.granted.len(), 2);
    world.play("grant 0 is lost.");
    let rows = world.naive.rows.iter().filter(|row| row.owner == b'b');
    assert_eq!(rows.map(|row| (row.reads, row.writes)).collect::<Vec<_>>(), [(1, 0); 3]);
}

#[test]
fn what_was_lost_is_taken_back_and_handed_on() {
    world().play("x writes k. a waits to write k. b waits to write k. x leaves k. k: a/b. grant 1 is lost. k: b/-.");
}

#[test]
fn what_was_confirmed_is_not_taken_back() {
    world().play("x writes k. a waits to write k. x leaves k. a tries to write k again. grant 0 is lost. k: a/-.");
}

#[test]
fn a_newer_hold_of_the_same_owner_is_not_taken_back() {
    // Its lease ended and it was granted again before the server knew that the first reply was lost.
    let mut world = world();
    world.play(
        "x writes k. a waits to write k for 1 ms. x leaves k. 1 ms. x writes k. a waits to write k. x leaves k. \
         k: a/-.",
    );
    // The older of the two grants to a.
    world.play("grant 0 is lost. k: a/-.");
}

#[test]
fn a_lost_grant_is_undone_though_a_later_one_gave_its_hold_another_fence() {
    // One owner waits to read and to write, over two connections. One step grants both, and the upgrade has a fence of
    // its own. A client that is lost must not leave its count behind, whichever of the two it is.
    // n waits, and is the first that could be lost.
    for lost in [&[1][..], &[2], &[1, 1], &[2, 1]] {
        let mut world = world();
        world.play("h writes k. o waits to read k. o waits to write k. n waits to write k. h leaves k. k: o/n.");
        lost.iter().for_each(|nth| world.play(&format!("grant {nth} is lost.")));
        let left: Vec<(u32, u32)> =
            world.naive.rows.iter().filter(|row| row.owner == b'o').map(|row| (row.reads, row.writes)).collect();
        let expected: &[(u32, u32)] = match lost {
            [1] => &[(0, 1)],
            [2] => &[(1, 0)],
            _ => &[],
        };
        assert_eq!(left, expected, "{lost:?}");
    }
}

#[test]
fn a_lost_upgrade_leaves_the_lease_as_it_was() {
    // A client that is gone would keep the key for as long as it wanted to write.
    let upgraded = "x reads k. a tries to read k for 10 ms. a waits to write k. x leaves k. w waits to write k.";
    world().play(&format!("{upgraded} 9 ms. k: a/w. grant 1 is lost. k: a/w. 1 ms. k: w/-."));
    // Over by then.
    world().play(&format!("{upgraded} 10 ms. k: a/w. grant 1 is lost. k: w/-."));
}

#[test]
fn what_a_lost_grant_leaves_of_a_carried_hold_is_carried_still() {
    // The next ACQUIRE must give it a new fence, as if the lost one had not been.
    let mut world = world();
    world.play("a writes j. j is reloaded. x writes k. a waits to write jk again.");
    let carried = world.naive.rows[0].fence;
    world.play("x leaves k.");
    assert_ne!(world.naive.rows[0].fence, carried);
    world.play("grant 0 is lost.");
    assert_eq!((world.at(b'k'), world.naive.rows[0].fence), (at(b"", b""), carried));
    world.play("a writes j.");
    assert_ne!(world.naive.rows[0].fence, carried);
}

#[test]
fn what_a_lost_client_was_granted_is_taken_back_where_it_went() {
    // It would stay under its new name until the lease ends, for an owner that never got the reply.
    let ways: [&[&str]; 10] = [
        &[],
        &["j becomes k"],
        &["j becomes k", "k becomes l"],
        &["j becomes k", "k becomes j"],
        &["j moves"],
        &["swap"],
        &["swap", "swap"],
        &["j becomes k", "swap"],
        &["j becomes k", "k moves"],
        &["j moves", "swap"],
    ];
    for keys in ["j", "jm"] {
        for way in ways {
            let mut world = world();
            world.play(&format!("a writes {keys}. b waits to write {keys}. a leaves {keys}. j: b/-."));
            for goes in way {
                world.play(goes);
                assert_eq!(world.naive.rows.len(), keys.len(), "it goes along: {way:?}");
            }
            world.play("grant 0 is lost.");
            assert_eq!(world.naive.rows, [], "{way:?}");
            assert!(world.primary.locks.is_empty(), "{way:?}");
        }
    }
}

#[test]
fn an_owner_is_heard_of_where_what_it_was_granted_went() {
    // What it knows that it has would be taken from it, or what it does not know be left, for a key that it names.
    for (heard, left) in [("k", "b"), ("j", "-")] {
        let story = "a writes j. b waits to write j. a leaves j. j becomes k.";
        world().play(&format!("{story} b extends {heard}. grant 0 is lost. k: {left}/-."));
    }
}

#[test]
fn a_grant_is_carried_once_though_another_holder_has_the_hash_of_its_owner() {
    // What could go wrong: a lock moves with two holders whose owners collide. The grant of one is carried for each of
    // them. The second time it counts as gone, and is not rolled back when its client has left.
    let mut world = World::new(Rules { holders_max: 2, detects: false, ..RULES });
    world.some_cannot_wait = true;
    world.some_places_are_overdue = true;
    let ask =
        |keys: &[u8], owner, mode, lease, wait, queue| acquire(owner, mode, keys).lease(lease).wait(wait).queue(queue);
    let held = vec![ask(b"j", b'a', Write, 1, Wait::Never, None), ask(b"j", b'a', Read, 1, Wait::Never, None)];
    let read = [ask(b"j", b'a', Read, 1, Wait::Never, None), ask(b"k", b'c', Read, 1, Wait::Never, None)];
    // `c` has the hash of `e` here. The flush grants to `e`, and its client leaves before it has the reply.
    for op in [
        Op::Unit { commands: held },
        ask(b"ljk", b'e', Read, 11, Wait::For(Millis(1)), None),
        Op::Unit { commands: [Op::Flush { all: false }].into_iter().chain(read).collect() },
        ask(b"l", b'a', Write, 1, Wait::Never, Some(1)),
        Op::Move { key: b'k' },
        Op::Lose { nth: 5 },
    ] {
        world.step(&op);
        world.check();
    }
}
