//! Scenes where many wait: what was worse than linear once. Each costs what it reaches, and is held to that by its
//! figure.

use lock_core::model::effect::Effects;
use lock_core::model::hold::{Mode, Session};
use lock_core::model::key::{KeyIndex, PlainName};
use lock_core::model::request::{Operation, Outcome, Terms, Wait};
use lock_core::model::step;
use lock_core::model::time::Millis;
use lock_core::wait::jobs::Job;
use std::hint::black_box;
use world::crowd::{Crowd, names};
use world::{OWNER, acquire_or, release};

/// What is measured where many wait: once, because setting the scene takes long.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) set: fn() -> Crowd,
    pub(crate) measured: fn(&mut Crowd),
}

/// What was worse than linear once, each with the bound that it has to keep: it costs what it reaches.
pub(crate) fn scenes() -> Vec<Scene> {
    let scene = |name, set, measured| Scene { name, set, measured };
    vec![
        scene("ACQUIRE BLOCK behind 980 waiters of 4 keys", || searched(4, 0), queue_up),
        scene("ACQUIRE BLOCK behind 980 waiters of 16 keys", || searched(16, 0), queue_up),
        scene("ACQUIRE BLOCK behind 980 waiters of 64 keys", || searched(64, 0), queue_up),
        scene("the same when reservations are over", || searched(64, 10_000_000), queue_up),
        scene("the same behind 980 waiters of 63 other keys each", searched_apart, queue_up),
        scene(
            "MACQUIRE of 63 keys by a holder that 980 waiters want",
            || waiting_for_many_keys("asker", 980, 64),
            |crowd| {
                crowd.hold("asker", &names("key", 64)[1..]);
            },
        ),
        scene(
            "MRELEASE of 64 keys before 256 waiters of 64 keys",
            || before_a_release(256),
            |crowd| {
                give_back(crowd, OWNER, &names("hot", 64));
            },
        ),
        scene(
            "the same with all that is granted after it",
            || before_a_release(256),
            |crowd| {
                give_back(crowd, OWNER, &names("hot", 64));
                finish(crowd);
            },
        ),
        scene(
            "a new hold of an owner with 900 waits, and its check",
            || waiting_much(900),
            |crowd| {
                crowd.hold(OWNER, &names("free", 1));
                finish(crowd);
            },
        ),
        scene(
            "1000 connections close beside 1000 undelivered grants",
            || undelivered_grants(1_000),
            |crowd| {
                for client in 0..1_000 {
                    crowd.manager.disconnect(client, crowd.now.mono);
                }
            },
        ),
        scene(
            "ACQUIRE beside leases in 10000 databases",
            || databases(10_000),
            |crowd| {
                crowd.hold(OWNER, &names("another", 1));
                black_box(crowd.manager.next_deadline());
            },
        ),
    ]
}

/// Many waiters for the same keys, which have waited for so long, and an owner that another waits for. Only a full
/// search can tell that it closes no cycle.
fn searched(keys: usize, waited_us: u64) -> Crowd {
    let mut crowd = waiting_for_many_keys(OWNER, 980, keys);
    crowd.hold("asker", &names("mine", 1));
    crowd.wait("other", Mode::Write, &names("mine", 1));
    crowd.now.mono.0 += waited_us;
    crowd
}

/// As many waiters for one key, and for 63 keys that are asked for by none but that waiter. The search is given up.
fn searched_apart() -> Crowd {
    let mut crowd = Crowd::new();
    crowd.hold(OWNER, &names("key", 1));
    without_detection(&mut crowd, |crowd| {
        for n in 0..980 {
            let keys = [names("key", 1), names(&format!("own{n}-"), 63)].concat();
            crowd.wait(&format!("waiter-{n:029}"), Mode::Write, &keys);
        }
    });
    crowd
}

fn queue_up(crowd: &mut Crowd) {
    crowd.wait("asker", Mode::Write, &names("key", 1));
}

/// Many waiters for the same keys, all of them, of which this owner holds the first.
fn waiting_for_many_keys(owner: &str, waiters: usize, keys: usize) -> Crowd {
    let mut crowd = Crowd::new();
    let keys = names("key", keys);
    crowd.hold(owner, &keys[..1]);
    without_detection(&mut crowd, |crowd| {
        for n in 0..waiters {
            crowd.wait(&format!("waiter-{n:029}"), Mode::Write, &keys);
        }
    });
    crowd
}

/// An owner that waits for as many keys, each held by another owner.
fn waiting_much(waits: usize) -> Crowd {
    let mut crowd = Crowd::new();
    without_detection(&mut crowd, |crowd| {
        for (n, key) in names("hot", waits).iter().enumerate() {
            crowd.hold(&format!("holder-{n:029}"), std::slice::from_ref(key));
            crowd.wait(OWNER, Mode::Write, std::slice::from_ref(key));
        }
    });
    crowd
}

/// An owner that holds 64 keys, and readers that wait each for one of them and for 63 of its own.
fn before_a_release(waiters: usize) -> Crowd {
    let mut crowd = Crowd::new();
    let hot = names("hot", 64);
    crowd.hold(OWNER, &hot);
    without_detection(&mut crowd, |crowd| {
        for n in 0..waiters {
            let mut keys = names(&format!("own{n}-"), 63);
            keys.push(hot[n % hot.len()].clone());
            crowd.wait(&format!("waiter-{n:029}"), Mode::Read, &keys);
        }
    });
    crowd
}

/// As many grants without a delivered reply, each of which has taken a hold over from another connection.
fn undelivered_grants(count: usize) -> Crowd {
    let mut crowd = Crowd::new();
    let hot = names("hot", 1);
    for n in 0..count {
        let (owner, mine) = (format!("owner-{n}"), names(&format!("mine{n}-"), 1));
        crowd.hold(OWNER, &hot);
        bound(&mut crowd, &owner, n as u64, Wait::Never, &mine);
        let both = [mine[0].clone(), hot[0].clone()];
        bound(&mut crowd, &owner, (count + n) as u64, Wait::Forever, &both);
        give_back(&mut crowd, OWNER, &hot);
        drop(crowd.serve(&hot, &release(&owner)));
    }
    crowd
}

/// As many databases, with a lease in each.
fn databases(count: u32) -> Crowd {
    let mut crowd = Crowd::new();
    for db in 0..count {
        crowd.keys.db = db;
        crowd.hold(OWNER, &names("key", 1));
    }
    crowd
}

/// Sets a scene that would take long to search in again and again.
pub(crate) fn without_detection(crowd: &mut Crowd, set: impl FnOnce(&mut Crowd)) {
    crowd.manager.limits.deadlock_detection = false;
    set(crowd);
    crowd.manager.limits.deadlock_detection = true;
}

fn give_back(crowd: &mut Crowd, owner: &str, keys: &[PlainName]) {
    let (outcome, _) = crowd.serve(keys, &release(owner));
    assert!(matches!(outcome, Ok(Outcome::Released(_))), "{outcome:?}");
}

/// Does all the work that is left for the waiters.
pub(crate) fn finish(crowd: &mut Crowd) {
    while let Some(work) = crowd.manager.next_job() {
        if work == Job::MarkQueues {
            crowd.manager.mark_queues();
            continue;
        }
        let (Job::ServeQueue(_, name) | Job::Check(_, _, name)) = &work else { panic!("{work:?}") };
        let now = crowd.now;
        crowd.on(&[PlainName::from_slice(name)], |manager, keys| {
            let mut effects = Effects::new();
            let mut step = step::Step::new(keys, now, &mut effects);
            match work {
                Job::Check(waiter, ..) => manager.check_waiter(&mut step, waiter),
                _ => manager.serve_ready_queue(&mut step, KeyIndex(0), 64),
            }
        });
    }
}

fn bound(crowd: &mut Crowd, owner: &str, client: u64, wait: Wait, keys: &[PlainName]) {
    let mut request = acquire_or(owner, Mode::Write, wait);
    let session = Session { connection: crowd.manager.sessions().connection(client), grace: Millis(0) };
    if let Operation::Acquire(ask) = &mut request.operation {
        ask.terms = Terms::of(None, Some(session), None);
    }
    crowd.serve(keys, &request).0.expect("is not refused");
}
