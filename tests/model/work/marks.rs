//! How many queues one step has served later.

use super::*;

/// A crowd with very many queues: 40 waiters, each for 64 keys of its own and one that is held. All have one owner, or
/// each has its own.
fn many_queues(owner: impl Fn(usize) -> String) -> Crowd {
    let mut crowd = Crowd::new();
    crowd.manager.limits.deadlock_detection = false;
    let busy = names("busy", 40);
    crowd.holds("h", Write, &busy);
    for (n, busy) in busy.into_iter().enumerate() {
        let mut wanted = names(&format!("own{n:02}-"), 64);
        wanted.push(busy);
        crowd.waits(&owner(n), Write, &wanted);
    }
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.ready_len(), 0);
    crowd
}

/// Does all that is left, and returns how many queues were served. No piece marks more than it may.
fn serve_marked(crowd: &mut Crowd) -> usize {
    let mut served = 0;
    while let Some(job) = crowd.manager.next_job() {
        let before = crowd.manager.ready_len();
        match job {
            Job::MarkQueues => crowd.manager.mark_queues(),
            _ => {
                served += 1;
                let _ = crowd.piece();
            }
        }
        let marked = crowd.manager.ready_len().saturating_sub(before);
        assert!(marked <= StepLimits::DEFAULT.queues_marked + 64, "{marked} queues marked in one piece");
        assert!(served < 10_000, "it does not come to an end");
    }
    assert_eq!(crowd.manager.broken_invariant(), None);
    served
}

#[test]
fn a_new_hold_of_an_owner_that_waits_for_very_many_keys_has_few_of_their_queues_marked_at_once() {
    // What could go wrong: a thousand parked requests of one owner, for 64 keys each, had all queues marked by the step
    // that gave the owner one more hold.
    let mut crowd = many_queues(|_| "o".into());
    crowd.holds("o", Write, &[name("free")]);
    let marked = crowd.manager.ready_len();
    assert!((1..=StepLimits::DEFAULT.queues_marked + 64).contains(&marked), "{marked} queues marked in the step");
    // What is marked, or will be, is not marked again.
    for n in 0..10 {
        crowd.holds("o", Write, &[name(&format!("more{n}"))]);
    }
    assert_eq!(crowd.manager.ready_len(), marked);
    assert_eq!(serve_marked(&mut crowd), 40 * 65);
}

#[test]
fn an_emptied_or_swapped_database_with_very_many_queues_has_few_of_them_marked_at_once() {
    // What could go wrong: FLUSHALL, SWAPDB and the end of a grace marked each queue there is in one step.
    let sweeps: [fn(&mut Crowd); 4] = [
        |crowd| crowd.manager.flush(None),
        |crowd| crowd.manager.flush(Some(Db(0))),
        |crowd| crowd.manager.swap(Db(0), Db(1)),
        |crowd| crowd.manager.limit_holders(10_000),
    ];
    for sweep in sweeps {
        let mut crowd = many_queues(|n| format!("o{n}"));
        sweep(&mut crowd);
        let marked = crowd.manager.ready_len();
        // SWAPDB: of each database as many.
        assert!((1..=2 * StepLimits::DEFAULT.queues_marked).contains(&marked), "{marked} queues marked in the step");
        assert_eq!(serve_marked(&mut crowd), 40 * 65);
    }
}

#[test]
fn a_sweep_that_begins_anew_again_and_again_comes_to_each_queue() {
    // What could go wrong: each FLUSHALL begins with the first queue, and the last ones are never served.
    let mut crowd = many_queues(|n| format!("o{n}"));
    let mut served = std::collections::BTreeSet::new();
    for _ in 0..2 * 40 * 65 {
        crowd.manager.flush(Some(Db(0)));
        loop {
            match crowd.manager.next_job().expect("a sweep goes on") {
                Job::MarkQueues => crowd.manager.mark_queues(),
                Job::ServeQueue(_, name) => {
                    served.insert(name.to_vec());
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        let _ = crowd.piece();
    }
    assert_eq!(served.len(), 40 * 65);
}

#[test]
fn a_step_on_a_key_that_a_sweep_has_not_come_to_serves_its_waiters_first() {
    // What could go wrong: the databases change places, and a key that was held is held for reading now. A reader comes
    // before the background comes to the queue, and the waiters are not served before it.
    let mut crowd = many_queues(|n| format!("o{n}"));
    let last = name("zzz");
    crowd.holds("w", Write, std::slice::from_ref(&last));
    crowd.waits("first", Read, std::slice::from_ref(&last));
    crowd.waits("second", Write, std::slice::from_ref(&last));
    crowd.keys.db = 1;
    crowd.holds("r", Read, std::slice::from_ref(&last));
    crowd.keys.db = 0;
    let locks = std::mem::take(&mut crowd.keys.locks);
    crowd.keys.locks = locks.into_iter().map(|((db, name), lock)| ((1 - db, name), lock)).collect();
    crowd.manager.swap(Db(0), Db(1));
    let step = crowd.ask("late", Read, std::slice::from_ref(&last), Wait::Never);
    assert_eq!(grants(&step.effects), 1, "the first reader");
    assert!(matches!(step.outcome, Ok(Outcome::Unavailable)), "{:?}", step.outcome);
}
