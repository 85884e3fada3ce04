//! Scenes where many wait for shares of a key, each within another limit, and many hold it and wait elsewhere. A search
//! for deadlocks compared each of the ones with all of the others once.

use crate::scenes::{Scene, finish, without_detection};
use lock_core::model::hold::Mode;
use lock_core::model::key::Db;
use lock_core::model::request::{Begun, Operation, Outcome, Share, Wait};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::time::Millis;
use std::num::NonZeroU32;
use world::crowd::{Crowd, names};
use world::{acquire, acquire_or};

/// How many wait, each within a limit below the one before.
const LIMITS: u32 = 1_000;

pub(crate) fn scenes() -> Vec<Scene> {
    vec![
        Scene {
            name: "ACQUIRE BLOCK behind 1000 limits among 6000 holders that wait",
            set: || {
                let holders = 6 * LIMITS;
                let mut crowd = Crowd::new();
                crowd.hold("worker", &names("busy", 1));
                crowd.hold("writer", &names("other", 1));
                without_detection(&mut crowd, |crowd| {
                    (0..holders).for_each(|n| read(crowd, &holder(n), "pool", n + 1));
                    // Each is too low for six more of the holders.
                    (0..LIMITS).for_each(|n| wait_within(crowd, n, holders - 6 * n, 1));
                    (0..holders).for_each(|n| queue_up(crowd, &holder(n), "other"));
                });
                // Without one that waits for it, a request closes no cycle, and that is all that would be asked.
                crowd.hold("asker", &names("mine", 1));
                queue_up(&mut crowd, "waiter", "mine");
                crowd
            },
            measured: |crowd| queue_up(crowd, "asker", "pool"),
        },
        Scene {
            name: "RENAME of a lock with 1000 holders that wait over 1000 limits",
            set: || {
                let mut crowd = Crowd::new();
                crowd.hold("worker", &names("busy", 1));
                crowd.hold("writer", &names("pool", 1));
                without_detection(&mut crowd, |crowd| {
                    // Too much for a limit are all holders together, and none of them: nobody is in a cycle.
                    (0..LIMITS).for_each(|n| wait_within(crowd, n, 3 * LIMITS - n, 3 * LIMITS - n - 2));
                    (0..LIMITS).for_each(|n| read(crowd, &holder(n), "source", 1));
                    (0..LIMITS).for_each(|n| queue_up(crowd, &holder(n), "busy"));
                });
                finish(&mut crowd);
                crowd
            },
            measured: |crowd| {
                rename(crowd, "source", "pool");
                finish(crowd);
                assert_eq!(crowd.manager.searches_cut(), 1, "a search for each holder would pass each limit");
            },
        },
    ]
}

fn holder(n: u32) -> String {
    format!("holder-{n:029}")
}

fn queue_up(crowd: &mut Crowd, owner: &str, key: &str) {
    crowd.wait(owner, Mode::Write, &names(key, 1));
}

/// Reads a key, so many times.
fn read(crowd: &mut Crowd, owner: &str, key: &str, reads: u32) {
    let mut request = acquire(owner, Mode::Read);
    if let Operation::Acquire(asked) = &mut request.operation {
        asked.retry = Some(reads);
    }
    let (outcome, _) = crowd.serve(&names(key, 1), &request);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
}

/// Begins to wait for shares of the pool, and for another key.
fn wait_within(crowd: &mut Crowd, n: u32, limit: u32, take: u32) {
    let owner = format!("limit-{n:030}");
    let mut request = acquire_or(&owner, Mode::Read, Wait::For(Millis(60_000)));
    if let Operation::Acquire(asked) = &mut request.operation {
        let number = |number| NonZeroU32::new(number).expect("above zero");
        asked.share = Some(Share { limit: number(limit), take: number(take) });
    }
    let (outcome, _) = crowd.serve(&names("pool", 1), &request);
    assert!(matches!(outcome, Ok(Outcome::Begun(Begun::New(_)))), "{outcome:?}");
    queue_up(crowd, &owner, "busy");
}

/// Puts a lock in the place of another one, as the server tells the module of it.
fn rename(crowd: &mut Crowd, from: &str, to: &str) {
    let [from, to] = [from, to].map(|prefix| names(prefix, 1).remove(0));
    let mut lock = crowd.keys.locks.remove(&(0, from.clone())).expect("is held");
    for (name, left) in [(&from, Some(&lock)), (&to, crowd.keys.locks.get(&(0, to.clone())))] {
        let unlinked = UnlinkedLock::of(left.expect("is held"));
        crowd.manager.on_unlinked(Db(0), name, &unlinked);
    }
    crowd.manager.carry(Some((Db(0), &from)), Db(0), &to, &mut lock, crowd.now.mono);
    crowd.keys.locks.insert((0, to), lock);
}
