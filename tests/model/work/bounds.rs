//! What one step has open and judges, whatever stands in the queues; and what is left when one panics.

use super::*;

/// The limits of each step: what it has open, and what it judges, before a waiter of so many keys.
fn assert_bounded(step: &Step, named: usize, keys: usize) {
    let limits = StepLimits::DEFAULT;
    let most = named + limits.keys_open + keys;
    assert!(step.most_open <= most, "{} keys are open at once, and may be {most}", step.most_open);
    let most = limits.keys_judged_first + limits.keys_judged + 2 * keys;
    assert!(step.opened <= most, "{} keys are opened in one step, and may be {most}", step.opened);
}

#[test]
fn a_step_has_few_keys_open_whatever_is_over_on_those_of_its_waiters() {
    // What could go wrong: each waiter has a key with a hold that is over, which the scan ends, and is blocked by
    // another one. Then all keys of all waiters stay open, or all with such a hold, and one step goes through them all.
    let (count, keys) = (400, 64);
    let mut crowd = Crowd::new();
    crowd.manager.limits.deadlock_detection = false;
    let session = Some(Session { connection: crowd.manager.sessions().connection(7), grace: Millis(0) });
    let (first, blocked, held) = (name("0"), name("blocked"), name("held"));
    crowd.holds("h", Write, std::slice::from_ref(&blocked));
    crowd.holds("t", Write, std::slice::from_ref(&held));
    let over: Vec<KeyName> = [first.clone()].into_iter().chain(names("over", count)).collect();
    for (n, key) in over.iter().enumerate() {
        let ask = binding(Write, Wait::Never, session);
        let step = crowd.serve(&format!("a{n}"), std::slice::from_ref(key), Operation::Acquire(ask));
        assert!(matches!(step.outcome, Ok(Outcome::Granted(_))));
    }
    for n in 0..count {
        let own = names(&format!("own{n}-"), keys - 3);
        let wanted: Vec<KeyName> =
            [first.clone(), over[1 + n].clone()].into_iter().chain(own).chain([blocked.clone()]).collect();
        crowd.waits(&format!("w{n}"), Read, &wanted);
    }
    crowd.waits("h", Write, &[first.clone(), held]);
    assert!(crowd.manager.disconnect(7, NOW.mono));
    // A step of a client on the first key, and then the background.
    let step = crowd.ask("stranger", Write, std::slice::from_ref(&first), Wait::Never);
    assert!(matches!(step.outcome, Ok(Outcome::Unavailable)), "{:?}", step.outcome);
    assert_bounded(&step, 1, keys);
    let (mut most, mut pieces) = (step.most_open, 0);
    while let Some(piece) = crowd.piece() {
        assert_bounded(&piece, 1, keys);
        assert!(piece.effects.wait_ends.is_empty(), "{:?}", piece.effects.wait_ends);
        (most, pieces) = (most.max(piece.most_open), pieces + 1);
        assert!(pieces < 10_000, "it does not come to an end");
    }
    println!("at most {most} keys were open in one step, of {} that waiters want", count * keys);
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (count + 1, None));
    assert!(crowd.manager.sessions().is_empty() && !crowd.keys.locks.contains_key(&(0, over[count].clone())));
}

/// Waiters for several keys that stand before all others, more than one step judges; the other key is busy.
fn crowd_before(key: &KeyName, mode: Mode) -> (Crowd, usize) {
    let (mut crowd, count) = (Crowd::new(), StepLimits::DEFAULT.keys_judged_first * 3 / 2);
    crowd.manager.limits.deadlock_detection = false;
    crowd.holds("busy", Write, &[name("busy")]);
    for n in 0..count {
        crowd.waits(&format!("many{n}"), mode, &[key.clone(), name("busy")]);
    }
    (crowd, count)
}

#[test]
fn the_end_of_a_queue_is_reached_though_a_holder_changes_the_lock_all_the_time() {
    // What could go wrong: each change of the lock has the scan begin at the head, so that none comes to the end. Or
    // marks of other causes do that.
    let key = [name("key")];
    let (mut crowd, count) = (Crowd::new(), StepLimits::DEFAULT.keys_judged_first * 3 / 2);
    crowd.manager.limits.deadlock_detection = false;
    crowd.holds("busy", Write, &[name("busy")]);
    crowd.holds("h", Read, &key);
    for n in 0..count {
        crowd.waits(&format!("many{n}"), Read, &[key[0].clone(), name("busy")]);
    }
    let writer = crowd.waits("w", Write, &key);
    crowd.waits("reader", Read, &key);
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.waiting(), count + 2);
    assert!(crowd.manager.cancel(writer, NOW.mono).is_some());
    for pieces in 0.. {
        assert!(pieces < 20, "the reader is not reached");
        let piece = crowd.piece().expect("the reader waits for nothing");
        assert_bounded(&piece, 1, 2);
        if grants(&piece.effects) == 1 {
            break;
        }
        // The holder takes the key again and gives it back, and one more waiter comes and goes.
        crowd.holds("h", Read, &key);
        let ask = Release { mode: None, amount: Amount::One, fence: None };
        let step = crowd.serve("h", &key, Operation::Release(ask));
        assert_bounded(&step, 1, 2);
        if grants(&step.effects) == 1 {
            break;
        }
        let late = crowd.waits(&format!("late{pieces}"), Write, &key);
        assert!(crowd.manager.cancel(late, NOW.mono).is_some());
    }
    while crowd.piece().is_some() {}
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (count, None));
}

#[test]
fn a_hand_off_behind_more_waiters_than_one_step_judges_is_made_in_the_background() {
    // What could go wrong: the step ends, and what is left of the queue is forgotten; or each piece begins at the head.
    let key = name("key");
    let (mut crowd, count) = crowd_before(&key, Read);
    let key = [key];
    crowd.holds("h", Read, &key);
    for n in 0..3 {
        crowd.waits(&format!("w{n}"), Write, &key);
    }
    let step = crowd.release("h", &key);
    assert_bounded(&step, 1, 2);
    assert!(step.effects.wait_ends.is_empty());
    // No newcomer takes it meanwhile.
    assert!(matches!(crowd.ask("late", Write, &key, Wait::Never).outcome, Ok(Outcome::Unavailable)));
    let mut pieces = 0;
    while let Some(piece) = crowd.piece() {
        assert_bounded(&piece, 1, 2);
        pieces += 1;
        assert!(pieces < 20, "it does not come to an end");
    }
    // The key is kept for the first, which waits for another one.
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (count + 3, None));
    assert!(!crowd.keys.locks.contains_key(&(0, key[0].clone())));
}

#[test]
fn a_reader_whose_owner_keeps_a_waiter_waiting_is_found_behind_many_that_do_not() {
    // What could go wrong: which of the readers behind a blocked one hold what a waiter before it wants is not known
    // before many locks and holders were looked at. Or it is not looked for.
    let (key, other) = ([name("key")], [name("other")]);
    let (count, readers) = (2 * StepLimits::DEFAULT.keys_judged, 3 * StepLimits::DEFAULT.keys_judged);
    let mut crowd = Crowd::new();
    crowd.manager.limits.deadlock_detection = false;
    crowd.holds("h", Write, &key);
    for n in 0..count {
        crowd.holds(&format!("holder{n}"), Read, &other);
    }
    crowd.holds("r7", Read, &other);
    crowd.holds("r701", Read, &other);
    crowd.waits("many", Write, &[key[0].clone(), other[0].clone()]);
    for n in 0..readers {
        crowd.waits(&format!("r{n}"), Read, &key);
    }
    let step = crowd.release("h", &key);
    let mut granted = grants(&step.effects);
    while let Some(piece) = crowd.piece() {
        assert_bounded(&piece, 1, 2);
        granted += grants(&piece.effects);
    }
    assert_eq!((granted, crowd.manager.waiting()), (2, 1 + readers - 2), "those that hold the other key");
    let lock = &crowd.keys.locks[&(0, key[0].clone())];
    assert_eq!(lock.holds.iter().map(|(owner, _)| owner.as_bytes()).collect::<Vec<_>>(), [&b"r7"[..], b"r701"]);
}

#[test]
fn waits_for_a_key_that_is_no_lock_any_more_end_in_pieces() {
    let key = name("key");
    let (mut crowd, count) = crowd_before(&key, Write);
    let mut ended = 0;
    while crowd.manager.queue_len(Db(0), &key, NOW.mono) > 0 {
        let ends = crowd.manager.end_waits(Db(0), &key, &request::WaitEnd::WrongType);
        let ends = ends.waits.len();
        assert!((1..=StepLimits::DEFAULT.answers).contains(&ends), "{ends}");
        ended += ends;
        let rest = count - ended;
        assert!(rest == 0 || matches!(crowd.manager.next_job(), Some(Job::ServeQueue(..))), "{rest} are forgotten");
    }
    assert_eq!((ended, crowd.manager.waiting(), crowd.manager.broken_invariant()), (count, 0, None));
}

/// A release of two keys, with waiters for each and for others, of which one is bound to a connection. It panics when
/// so many more keys were opened. Whether it did.
fn release_that_panics(after: usize) -> bool {
    let mut crowd = Crowd::new();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(name);
    let session = Some(Session { connection: crowd.manager.sessions().connection(7), grace: Millis(0) });
    crowd.holds("h", Write, &[a.clone(), b.clone()]);
    crowd.holds("over", Read, std::slice::from_ref(&d));
    let ask = binding(Write, Wait::Forever, session);
    assert!(crowd.serve("first", std::slice::from_ref(&a), Operation::Acquire(ask)).outcome.is_ok());
    crowd.waits("second", Write, &[b.clone(), c, e]);
    crowd.waits("third", Read, &[a.clone(), d]);
    let owners = |crowd: &Crowd| {
        let of = |((_, key), lock): (&(u32, KeyName), &Lock)| {
            let owners = lock.holds.iter().map(|(owner, _)| owner.clone());
            owners.map(|owner| (key.clone(), owner)).collect::<Vec<_>>()
        };
        crowd.keys.locks.iter().flat_map(of).collect::<std::collections::BTreeSet<_>>()
    };
    let mut expected = owners(&crowd);
    let (panic, changes) = crowd.on(&[a, b], |manager, keys| {
        let mut effects = Effects::new();
        let operation = Operation::Release(Release { mode: None, amount: Amount::All, fence: None });
        let request = Request { owner: Owner::new(b"h"), operation };
        keys.panics_after = Some(after);
        let served: Result<_, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| {
            drop(manager.serve(&mut step::Step::new(keys, NOW, &mut effects), &request));
        }));
        keys.panics_after = None;
        if served.is_err() {
            manager.recover(&mut step::Step::new(keys, NOW, &mut effects), true);
        }
        let names = &keys.step;
        let changes = effects.changes.iter().map(|change| (names[change.key.0].clone(), change.clone()));
        (served.err(), changes.collect::<Vec<_>>())
    });
    // What it has changed is what it says.
    for (key, change) in changes {
        match change.ended {
            true => assert!(expected.remove(&(key, change.owner))),
            false => drop(expected.insert((key, change.owner))),
        }
    }
    assert_eq!(owners(&crowd), expected, "a panic after {after} keys");
    for ((_, key), lock) in &crowd.keys.locks {
        let (earliest, _) = lock.holds.earliest().expect("I6");
        assert!(crowd.manager.covers(Db(0), lock, earliest), "I4 of {key:?} after {after} keys");
    }
    // Nobody waits for nothing after it.
    while crowd.piece().is_some() {}
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (1, None), "a panic after {after} keys");
    assert_eq!(crowd.manager.sessions().len(), 1, "the first holds, and that is bound to its connection");
    panic.is_some()
}

#[test]
fn what_a_step_that_panics_has_changed_is_told_and_followed_and_nobody_is_forgotten() {
    // What could go wrong: holds that replicas do not hear of, leases and bindings that end nothing, a queue whose scan
    // was under way.
    let panics = (0..).take_while(|after| release_that_panics(*after)).count();
    assert!(panics >= 2, "{panics} places at which it can panic");
}
