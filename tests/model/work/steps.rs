//! How much one step opens, judges and grants.

use super::*;

#[test]
fn a_release_of_64_keys_before_256_waiters_of_64_keys_is_served_in_small_pieces() {
    // What could go wrong: a slice counts waiters of one key, and there are 64 of them, and each wants 63 other keys.
    // One MRELEASE took the server most of a second.
    let mut crowd = Crowd::new();
    let hot = names("hot", 64);
    crowd.holds("w", Write, &hot);
    for n in 0..256 {
        let mut wanted = vec![hot[n % 64].clone()];
        wanted.extend(names(&format!("own{n}-"), 63));
        crowd.waits(&format!("r{n}"), Read, &wanted);
    }
    let step = crowd.release("w", &hot);
    // The holds of the requester, and what was granted to others.
    let granted = step.effects.changes.len() - 64;
    assert!((1..=StepLimits::DEFAULT.keys_granted).contains(&granted), "{granted} keys granted in the asker's step");
    assert!(step.opened <= 512, "{} keys opened in the asker's step", step.opened);
    // No request passes the waiters that are still to be granted.
    assert!(matches!(crowd.ask("late", Read, &hot[63..], Wait::Forever).outcome, Ok(Outcome::Begun(Begun::New(_)))));
    assert!(matches!(crowd.ask("late writer", Write, &hot[62..63], Wait::Never).outcome, Ok(Outcome::Unavailable)));
    let mut pieces = 0;
    while let Some(piece) = crowd.piece() {
        assert!(
            piece.effects.changes.len() <= StepLimits::DEFAULT.keys_granted,
            "{} keys granted in a piece",
            piece.effects.changes.len()
        );
        assert!(piece.opened <= 512, "{} keys opened in a piece", piece.opened);
        pieces += 1;
        assert!(pieces < 2_000, "it does not come to an end");
    }
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (0, None));
}

#[test]
fn one_step_on_many_keys_lets_in_no_more_than_one_run() {
    let mut crowd = Crowd::new();
    let hot = names("hot", 64);
    crowd.holds("w", Write, &hot);
    for n in 0..640 {
        crowd.waits(&format!("r{n}"), Read, &hot[n % 64..=n % 64]);
    }
    assert_eq!(grants(&crowd.release("w", &hot).effects), StepLimits::DEFAULT.answers);
    while let Some(piece) = crowd.piece() {
        assert!(piece.effects.wait_ends.len() <= StepLimits::DEFAULT.answers);
    }
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (0, None));
}

#[test]
fn a_reader_behind_a_run_that_was_cut_is_not_forgotten() {
    // What could go wrong: the mark that no request may pass the rest of the run also acts in the scan that grants the
    // rest. There it delays the waiters behind the run. It is removed at the end of that scan, and the queue is not
    // scanned again.
    let mut crowd = Crowd::new();
    let (key, busy) = (name("key"), name("busy"));
    crowd.holds("x", Write, std::slice::from_ref(&busy));
    crowd.holds("w", Write, std::slice::from_ref(&key));
    for n in 0..=StepLimits::DEFAULT.answers {
        crowd.waits(&format!("r{n}"), Read, std::slice::from_ref(&key));
    }
    crowd.waits("many", Read, &[key.clone(), busy]);
    crowd.waits("last", Read, std::slice::from_ref(&key));
    crowd.release("w", std::slice::from_ref(&key));
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.waiting(), 1, "the last reader waits for nothing");
}

#[test]
fn what_an_asker_holds_is_looked_at_once_for_all_whom_it_keeps_waiting() {
    // What could go wrong: for each of 63 keys, each of 200 waiters before the requester, and each of its 64 keys.
    let mut crowd = Crowd::new();
    let wanted = names("key", 64);
    crowd.holds("asker", Write, &wanted[63..]);
    for n in 0..200 {
        crowd.manager.limits.deadlock_detection = false;
        crowd.waits(&format!("w{n}"), Write, &wanted);
    }
    let step = crowd.ask("asker", Write, &wanted[..63], Wait::Never);
    assert!(matches!(step.outcome, Ok(Outcome::Granted(_))), "{:?}", step.outcome);
    assert!(step.peeked <= 64 + 64, "{} locks were looked at", step.peeked);
    assert_eq!(crowd.manager.waiting(), 200);
}

#[test]
fn a_connection_that_closes_is_told_only_to_grants_that_took_its_holds_over() {
    // What could go wrong: each of a thousand connections that close at once is reported to each of a thousand grants.
    // The count is in `WaitTable::closed`; this test checks that the reports go to the right grants.
    let mut crowd = Crowd::new();
    let bound = |crowd: &Crowd, client| {
        Some(Session { connection: crowd.manager.sessions().connection(client), grace: Millis(0) })
    };
    let (mine, hot) = (names("mine", 50), names("hot", 50));
    crowd.holds("w", Write, &hot);
    let mut waiters = Vec::new();
    for n in 0..50 {
        let owner = format!("o{n}");
        let session = bound(&crowd, n as u64);
        let ask = binding(Write, Wait::Never, session);
        assert!(crowd.serve(&owner, &mine[n..=n], Operation::Acquire(ask)).outcome.is_ok());
        // Another connection of the same owner waits for that key and another.
        let session = bound(&crowd, 1_000 + n as u64);
        let ask = binding(Write, Wait::Forever, session);
        let outcome = crowd.serve(&owner, &[mine[n].clone(), hot[n].clone()], Operation::Acquire(ask)).outcome;
        let Ok(Outcome::Begun(Begun::New(waiter))) = outcome else { panic!("{outcome:?}") };
        waiters.push(waiter);
    }
    crowd.release("w", &hot);
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.waiting(), 0);
    // The first connection of each closes, and then no owner learns of its grant: what the grant bound anew ends.
    for (n, waiter) in waiters.iter().enumerate() {
        crowd.manager.disconnect(n as u64, NOW.mono);
        assert!(crowd.manager.client_gone(*waiter, Some(n as u64), NOW.mono));
    }
    let mut taken = 0;
    while let Some(Job::RevokeUndelivered(waiter, ..)) = crowd.manager.next_job() {
        crowd.on(&[], |manager, keys| {
            let mut effects = Effects::new();
            manager.revoke_undelivered(&mut step::Step::new(keys, NOW, &mut effects), waiter, Db(0));
        });
        taken += 1;
    }
    assert_eq!((taken, crowd.keys.locks.len()), (50, 0), "{:?}", crowd.keys.locks.keys());
}

#[test]
fn a_lock_of_many_bound_holds_leaves_its_key_and_comes_to_another_by_its_connections() {
    // What could go wrong: each hold of the lock is looked up on its own. With 65,536 readers of one connection, RENAME
    // took the server 40 ms.
    let mut crowd = Crowd::new();
    let keys = names("key", 2);
    for n in 0..9_000 {
        let connection = crowd.manager.sessions().connection(n % 3);
        // The graces are the client's to choose.
        let session = Some(Session { connection, grace: Millis(n) });
        let ask = Operation::Acquire(binding(Read, Wait::Never, session));
        assert!(crowd.serve(&format!("o{n}"), &keys[..1], ask).outcome.is_ok());
    }
    let found = |crowd: &Crowd, at: &KeyName| {
        let there = crowd.manager.sessions().iter().filter(|(_, _, name, _)| ***name == **at).count();
        (there, crowd.manager.sessions().iter().count(), crowd.manager.sessions().len())
    };
    assert_eq!(found(&crowd, &keys[0]), (3, 3, 9_000));
    crowd.rename(&keys[0], &keys[1]);
    assert_eq!(found(&crowd, &keys[1]), (3, 3, 9_000));
    crowd.unlink(&keys[1]);
    assert_eq!(found(&crowd, &keys[1]), (0, 0, 0));
}

#[test]
fn an_owner_that_waits_much_and_gets_much_is_checked_once() {
    // What could go wrong: each new hold has each of its waits checked. A search begins at the owner, so all found the
    // same: with 900 waits, each new hold took the server two seconds.
    let mut crowd = Crowd::new();
    let hot = names("hot", 30);
    crowd.holds("w", Write, &hot);
    for key in &hot {
        crowd.waits("o", Write, std::slice::from_ref(key));
    }
    for n in 0..100 {
        crowd.holds("o", Write, &[name(&format!("free{n}"))]);
    }
    let mut pieces: BTreeMap<bool, usize> = BTreeMap::new();
    while let Some(work) = crowd.manager.next_job() {
        assert_ne!(work, Job::MarkQueues, "so few are marked at once");
        *pieces.entry(matches!(work, Job::Check(..))).or_default() += 1;
        let _ = crowd.piece();
    }
    assert_eq!(pieces, BTreeMap::from([(true, 1), (false, 30)]), "checks, and wake-ups");
}

#[test]
fn leases_of_very_many_databases_end_each_in_its_time() {
    // What could go wrong: which of them is next is remembered wrongly, once some have ended, moved or changed places.
    let mut crowd = Crowd::new();
    for db in 0..200 {
        crowd.keys.db = db;
        let ask = Acquire { lease: Millis(1 + u64::from(db * 37 % 200) * 50), ..acquire(Write, Wait::Never) };
        assert!(crowd.serve("o", &[name("k")], Operation::Acquire(ask)).outcome.is_ok());
    }
    for db in (0..200).step_by(5) {
        crowd.keys.db = db;
        crowd.release("o", &[name("k")]);
    }
    crowd.manager.swap(Db(1), Db(199));
    crowd.manager.flush(Some(Db(7)));
    assert_eq!(crowd.manager.leases_len(), 159);
    let left = |db: u32| !db.is_multiple_of(5) && db != 7;
    let mut expected: Vec<(u64, u32)> = (0..200)
        .filter(|db| left(*db))
        .map(|db| {
            (
                1 + u64::from(db * 37 % 200) * 50,
                if db == 1 {
                    199
                } else if db == 199 {
                    1
                } else {
                    db
                },
            )
        })
        .collect();
    expected.sort_unstable();
    let mut found = Vec::new();
    while let Some(next) = crowd.manager.next_deadline() {
        let mono = next.max(NOW.mono);
        loop {
            match crowd.manager.poll_leases(mono) {
                LeasePoll::Key(db, entry, _) => {
                    found.push(((mono.0 - NOW.mono.0) / 1_000, db.0));
                    crowd.manager.drop_entry(db, entry);
                }
                LeasePoll::Pending => {}
                LeasePoll::DbUnknown(..) => panic!("the database of each is known"),
                LeasePoll::Idle => break,
            }
        }
        assert!(crowd.manager.next_deadline().is_none_or(|at| at > mono), "the alarm would spin");
    }
    assert_eq!(found, expected);
    assert_eq!(crowd.manager.leases_len(), 0);
}

#[test]
fn waiters_that_a_lock_puts_into_deadlocks_are_checked_one_by_one() {
    // What could go wrong: a lock that is renamed to a key closes a cycle with each of a thousand waiters there. The
    // search for them all in one step took a second.
    let mut crowd = Crowd::new();
    let [shared, source, wanted, busy] = ["shared", "source", "wanted", "busy"].map(|text| [name(text)]);
    let both = [wanted[0].clone(), busy[0].clone()];
    crowd.holds("o", Write, &source);
    crowd.holds("h", Write, &busy);
    for n in 0..50 {
        crowd.holds(&format!("w{n}"), Read, &shared);
        crowd.waits(&format!("w{n}"), Write, &both);
    }
    crowd.waits("o", Write, &shared);
    crowd.rename(&source[0], &wanted[0]);
    let mut refused = 0;
    while let Some(piece) = crowd.piece() {
        assert!(piece.effects.wait_ends.len() <= 1, "{} in one piece", piece.effects.wait_ends.len());
        refused += piece.effects.wait_ends.len();
    }
    assert_eq!((refused, crowd.manager.waiting()), (50, 1), "all but o, which waits for holders that wait no more");
}

#[test]
fn a_search_for_owners_that_may_be_in_deadlocks_is_given_up_when_it_would_take_too_long() {
    // What could go wrong: behind a lock that came to another key, all that can be reached from its waiters is gone
    // through to see which of them could be in a cycle. Or nobody learns that this was given up.
    let mut crowd = Crowd::new();
    let [source, wanted, busy] = ["source", "wanted", "busy"].map(|text| [name(text)]);
    crowd.holds("o", Write, &source);
    crowd.holds("h", Write, &busy);
    crowd.manager.limits.deadlock_detection = false;
    for n in 0..200 {
        let all = [wanted[0].clone(), busy[0].clone()].into_iter().chain(names(&format!("own{n}-"), 62));
        crowd.waits(&format!("w{n}"), Write, &all.collect::<Vec<_>>());
    }
    crowd.manager.limits.deadlock_detection = true;
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.searches_cut(), 0);
    crowd.rename(&source[0], &wanted[0]);
    while let Some(piece) = crowd.piece() {
        assert!(piece.peeked <= 5_000, "{} locks were looked at", piece.peeked);
        assert!(piece.effects.wait_ends.is_empty(), "{:?}", piece.effects.wait_ends);
    }
    assert_eq!((crowd.manager.searches_cut(), crowd.manager.waiting()), (1, 200));
}

#[test]
fn a_place_that_becomes_an_offer_leaves_nothing_to_do() {
    // What could go wrong: each hand-off to a place has the background serve the queue once more, for nobody.
    let (mut crowd, key) = (Crowd::new(), [name("k")]);
    crowd.holds("h", Write, &key);
    let ask = Acquire { queue: Some(Millis(60_000)), ..acquire(Write, Wait::Never) };
    for owner in ["a", "b"] {
        let outcome = crowd.serve(owner, &key, Operation::Acquire(ask.clone())).outcome;
        assert!(matches!(outcome, Ok(Outcome::Begun(Begun::Place(_)))), "{outcome:?}");
    }
    crowd.release("h", &key);
    assert_eq!(crowd.manager.next_job(), None);
    let collected = crowd.serve("a", &key, Operation::Acquire(ask)).outcome;
    assert!(matches!(collected, Ok(Outcome::Granted(_))), "{collected:?}");
    assert_eq!((crowd.manager.next_job(), crowd.manager.waiting()), (None, 1));
}

#[test]
fn long_names_are_hashed_once_in_a_step_whatever_else_their_owner_waits_for() {
    // What could go wrong: each of 64 names is copied and compared again for each key of each place of the owner.
    const LEN: usize = 2_000;
    let mut crowd = Crowd::new();
    let long = |from: usize| (from..from + 63).map(|n| name(&format!("{}{n:06}", "n".repeat(LEN - 6))));
    let hashed = |crowd: &mut Crowd, keys: &[KeyName], ask: Operation| {
        HASHED.set(0);
        let outcome = crowd.serve("o", keys, ask).outcome;
        // Its owner is hashed some times as well.
        assert!(HASHED.get() < 63 * LEN + LEN / 2, "{} bytes", HASHED.get());
        outcome
    };
    for place in 0..100 {
        let held = name(&format!("held{place}"));
        crowd.holds("h", Write, std::slice::from_ref(&held));
        let keys: Vec<KeyName> = [held].into_iter().chain(long(place * 63)).collect();
        let ask = Acquire { queue: Some(Millis(60_000)), ..acquire(Write, Wait::Never) };
        let outcome = hashed(&mut crowd, &keys, Operation::Acquire(ask.clone()));
        assert!(matches!(outcome, Ok(Outcome::Begun(Begun::Place(_)))), "{outcome:?}");
        let outcome = hashed(&mut crowd, &keys, Operation::Acquire(ask));
        assert_eq!(outcome, Ok(Outcome::Unavailable), "it has its place already");
    }
    let free: Vec<KeyName> = long(1_000_000 - 63).collect();
    let outcome = hashed(&mut crowd, &free, Operation::Acquire(acquire(Write, Wait::Never)));
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    let release = Release { mode: None, amount: Amount::All, fence: None };
    let outcome = hashed(&mut crowd, &free, Operation::Release(release));
    assert!(matches!(outcome, Ok(Outcome::Released(_))), "{outcome:?}");
}

#[test]
fn a_holder_that_may_pass_waiters_with_long_names_reads_a_bounded_part_of_their_keys() {
    // What could go wrong: a hundred waiters stand before a holder, each for its hold and for 62 keys with long names,
    // and to see that it may go before them it reads all of these.
    const LEN: usize = 2_000;
    let mut crowd = Crowd::new();
    for n in 0..100 {
        let held = name(&format!("held{n}"));
        crowd.holds("o", Write, std::slice::from_ref(&held));
        let others = (0..62).map(|at| name(&format!("{}{n}-{at}", "n".repeat(LEN))));
        let keys: Vec<KeyName> = others.chain([name("free"), held]).collect();
        crowd.waits(&format!("w{n}"), Write, &keys);
    }
    let tried = crowd.ask("o", Write, &[name("free")], Wait::Never);
    let cost = tried.peeked * (1 + LEN / 256);
    assert!((1_000..6_000).contains(&cost), "{} keys", tried.peeked);
}
