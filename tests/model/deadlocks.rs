//! Which deadlocks are always found, whatever else waits, and how many locks are read for that. The naive model knows
//! no budget, so this is the core by itself.

use crate::work::{Crowd, name, names};
use lock_core::model::hold::Mode;
use lock_core::model::key::PlainName as KeyName;
use lock_core::model::request::{Refusal, Wait};

use Mode::{Read, Write};

/// A requester is told of a deadlock, with a cycle of so many owners, and few locks are read for it.
fn assert_refused(crowd: &mut Crowd, owner: &str, mode: Mode, wanted: &[KeyName], hops: usize, most: usize) {
    let cut = crowd.manager.searches_cut();
    let step = crowd.ask(owner, mode, wanted, Wait::Forever);
    let Err(Refusal::Deadlock(cycle)) = step.outcome else { panic!("{:?}", step.outcome) };
    assert_eq!(cycle.0.len(), hops, "{cycle:?}");
    assert!(step.peeked <= most, "{} locks were read", step.peeked);
    assert_eq!(crowd.manager.searches_cut(), cut);
}

/// What others do is not searched for deadlocks.
fn meanwhile(crowd: &mut Crowd, others: impl FnOnce(&mut Crowd)) {
    crowd.manager.limits.deadlock_detection = false;
    others(crowd);
    crowd.manager.limits.deadlock_detection = true;
}

/// So many waiters for a key, each of which waits for other keys of its own as well.
fn queue_behind(crowd: &mut Crowd, key: &KeyName, waiters: usize, keys: usize) {
    meanwhile(crowd, |crowd| {
        for n in 0..waiters {
            let wanted: Vec<_> = std::iter::once(key.clone()).chain(names(&format!("own{n}-"), keys - 1)).collect();
            crowd.waits(&format!("crowd{n}"), Write, &wanted);
        }
    });
}

#[test]
fn cycles_of_two_and_three_holders_are_found_whatever_stands_in_the_queues() {
    // What could go wrong: the waiters before the requester are reached first, with all their keys. With 70 places of
    // 64 keys nothing was left for the holder, and both waited for ever.
    for (waiters, keys) in [(10, 64), (70, 64), (600, 64), (10_000, 2), (9_990, 1)] {
        let mut crowd = Crowd::new();
        crowd.manager.limits.waiters_max = 99_999;
        crowd.manager.limits.waiters_per_key_max = 99_999;
        let key = names("k", 3);
        for (owner, key) in ["a", "b", "c"].into_iter().zip(&key) {
            crowd.holds(owner, Write, std::slice::from_ref(key));
        }
        queue_behind(&mut crowd, &key[0], waiters, keys);
        crowd.waits("a", Write, &key[1..=1]);
        assert_refused(&mut crowd, "b", Write, &key[0..=0], 2, 8);
        crowd.waits("b", Write, &key[2..=2]);
        assert_refused(&mut crowd, "c", Write, &key[0..=0], 3, 8);
        assert_refused(&mut crowd, "c", Read, &key[0..=0], 3, 8);
    }
}

/// Owners that hold `key-0` and so on, each of which waits for as many keys as a request may name, each of those held
/// by other owners that wait as much: by one to write, or by ten to read.
fn busy_holders(crowd: &mut Crowd, key: &str, count: usize) -> Vec<KeyName> {
    let held = names(&format!("{key}-"), count);
    meanwhile(crowd, |crowd| {
        for (n, name) in held.iter().enumerate() {
            let (busy, wanted) = (format!("{key}-busy{n}"), names(&format!("{key}-{n}-"), 64));
            let deep = names(&format!("{key}-{n}-deep-"), 64);
            crowd.holds(&busy, Write, std::slice::from_ref(name));
            crowd.holds("deep", Write, &deep);
            for (m, name) in wanted.iter().enumerate() {
                let (mode, holders) = if m % 2 == 0 { (Write, 1) } else { (Read, 10) };
                for holder in 0..holders {
                    let next = format!("{busy}-{m}-{holder}");
                    crowd.holds(&next, mode, std::slice::from_ref(name));
                    crowd.waits(&next, Write, &deep);
                }
            }
            crowd.waits(&busy, Write, &wanted);
        }
    });
    held
}

#[test]
fn a_cycle_of_three_owners_that_wait_for_eight_keys_each_is_found_however_much_the_other_holders_wait_for() {
    // What could go wrong: the holders of the other keys wait for so much that what they wait for is more than may be
    // read.
    let mut crowd = Crowd::new();
    let key = names("k", 3);
    for (owner, key) in ["a", "b", "c"].into_iter().zip(&key) {
        crowd.holds(owner, Write, std::slice::from_ref(key));
    }
    let mut others: Vec<Vec<KeyName>> = (0..3).map(|n| busy_holders(&mut crowd, &format!("busy{n}"), 7)).collect();
    // The one that leads back is visited last.
    for (others, key) in others.iter_mut().zip([&key[1], &key[2], &key[0]]) {
        others.push(key.clone());
    }
    crowd.manager.limits.deadlock_detection = false;
    crowd.waits("a", Write, &others[0]);
    crowd.waits("b", Write, &others[1]);
    crowd.manager.limits.deadlock_detection = true;
    assert_refused(&mut crowd, "c", Write, &others[2], 3, 700);
}

#[test]
fn a_request_for_64_keys_that_closes_a_cycle_of_two_is_refused_whatever_else_its_owner_waits_for() {
    // What could go wrong: an owner with very many waits is searched from the first on.
    let mut crowd = Crowd::new();
    crowd.manager.limits.waiters_max = 99_999;
    let (k, j) = (name("k"), name("j"));
    crowd.holds("a", Write, std::slice::from_ref(&k));
    crowd.holds("b", Write, std::slice::from_ref(&j));
    let wanted = busy_holders(&mut crowd, "busy", 63);
    meanwhile(&mut crowd, |crowd| {
        for n in 0..250 {
            let held = names(&format!("other{n}-"), 64);
            crowd.holds(&format!("holder{n}"), Write, &held);
            crowd.waits("b", Write, &held);
        }
    });
    crowd.waits("a", Write, std::slice::from_ref(&j));
    let wanted: Vec<KeyName> = wanted.into_iter().chain([k]).collect();
    assert_refused(&mut crowd, "b", Write, &wanted, 2, 900);
}

#[test]
fn of_a_key_with_thousands_of_readers_that_wait_nothing_is_read_but_what_the_requester_holds() {
    // What could go wrong: all of them are looked up, and all that they wait for, before the holder in the cycle.
    const READERS: usize = 2_000;
    let mut crowd = Crowd::new();
    let [read, k, j, i] = ["read", "k", "j", "i"].map(|text| [name(text)]);
    meanwhile(&mut crowd, |crowd| {
        for n in 0..READERS {
            let reader = format!("reader{n}");
            crowd.holds(&reader, Read, &read);
            crowd.holds("holder", Write, &[name(&format!("busy{n}"))]);
            crowd.waits(&reader, Write, &[name(&format!("busy{n}"))]);
        }
    });
    crowd.holds("a", Write, &k);
    crowd.holds("b", Write, &j);
    crowd.holds("b", Read, &read);
    crowd.waits("a", Write, &j);
    // It waits for all those readers as well. What it waits for beside them is found.
    let both = [read[0].clone(), k[0].clone()];
    assert_refused(&mut crowd, "b", Write, &both, 2, 20);
    // And the other way about: it is one of those readers.
    crowd.holds("c", Write, &i);
    crowd.waits("c", Write, &read);
    assert_refused(&mut crowd, "b", Write, &i, 2, 20);
}

#[test]
fn a_search_is_given_up_only_for_a_requester_that_others_may_wait_for() {
    // What could go wrong: each request behind a long queue is counted as one whose cycle may have gone unseen, though
    // it holds nothing.
    let mut crowd = Crowd::new();
    let [k, j] = ["k", "j"].map(|text| [name(text)]);
    crowd.holds("holder", Write, &k);
    queue_behind(&mut crowd, &k[0], 100, 64);
    let step = crowd.ask("last", Write, &k, Wait::Forever);
    assert!(step.outcome.is_ok(), "{:?}", step.outcome);
    assert_eq!(crowd.manager.searches_cut(), 0);
    crowd.holds("later", Write, &j);
    crowd.waits("other", Write, &j);
    crowd.waits("later", Write, &k);
    assert_eq!(crowd.manager.searches_cut(), 1);
}

#[test]
fn long_names_count_for_as_much_as_they_cost() {
    // What could go wrong: 4,000 names of 15 KB each are copied, hashed and compared, which takes some hundred
    // milliseconds, because a key counts as one key whatever its name.
    let mut crowd = Crowd::new();
    let [k, j] = ["k", "j"].map(|text| [name(text)]);
    crowd.holds("holder", Write, &k);
    let long = "n".repeat(15_000);
    meanwhile(&mut crowd, |crowd| {
        for n in 0..10 {
            let wanted: Vec<KeyName> = k.iter().cloned().chain(names(&format!("{long}{n}-"), 63)).collect();
            crowd.waits(&format!("crowd{n}"), Write, &wanted);
        }
    });
    crowd.holds("later", Write, &j);
    crowd.waits("other", Write, &j);
    let step = crowd.ask("later", Write, &k, Wait::Forever);
    assert!(step.outcome.is_ok(), "{:?}", step.outcome);
    assert!(step.peeked <= 420, "{} locks were read", step.peeked);
    assert_eq!(crowd.manager.searches_cut(), 1);
    // A cycle of holds is found beside them.
    assert_refused(&mut crowd, "holder", Write, &j, 2, 8);
}

#[test]
fn a_lock_that_closes_a_cycle_with_the_first_of_ten_thousand_waiters_has_that_one_told() {
    // What could go wrong: more waiters are to be checked than one step may note, and the one in the cycle is not.
    let mut crowd = Crowd::new();
    let [source, wanted, shared] = ["source", "wanted", "shared"].map(|text| [name(text)]);
    crowd.holds("o", Write, &source);
    crowd.holds("x", Write, &shared);
    crowd.holds("holder", Write, &wanted);
    let first = crowd.waits("x", Write, &wanted);
    meanwhile(&mut crowd, |crowd| {
        for n in 0..9_900 {
            crowd.waits(&format!("w{n}"), Write, &wanted);
        }
    });
    crowd.waits("o", Write, &shared);
    crowd.rename(&source[0], &wanted[0]);
    let mut ends = Vec::new();
    while let Some(piece) = crowd.piece() {
        ends.extend(piece.effects.wait_ends);
    }
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(ends[0].0 == first, "{ends:?}");
}
