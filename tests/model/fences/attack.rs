//! An attack on the bounds of MINFENCE: clients, restarts and failovers at random.

use super::{HALF_US, acquisition, ask, extend};
use lock_core::codec;
use lock_core::manager::LockManager;
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode::{self, Read, Write};
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::limits::Limits;
use lock_core::model::lock::Lock;
use lock_core::model::record::{Origin, Update};
use lock_core::model::request::{Amount, Operation, Outcome, Refusal, Release};
use lock_core::model::time::{Now, Timestamp, WallTime};
use naive_model::words::Rules;
use naive_model::world::{RULES, SKEW, Side, limits, name, update_of};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What clients and operators do to nodes of which one after the other is the primary.
#[derive(Clone, Debug)]
enum Deed {
    Take {
        key: u8,
        owner: u8,
        mode: Mode,
        least: Option<Asked>,
    },
    Extend {
        key: u8,
        owner: u8,
        least: Option<Asked>,
    },
    Release {
        key: u8,
        owner: u8,
    },
    Delete {
        key: u8,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Pass {
        us: u64,
    },
    /// The process is killed and started again, with all that it knew or with nothing.
    Restart {
        saved: bool,
    },
    /// The primary is gone. Its replica has received so many in a hundred of the records that it had not yet.
    FailOver {
        received: u64,
        wall_ahead_us: u64,
    },
}

/// A fence that a client asks for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Wall(i64),
    Furthest(i64),
    Last(i64),
    OfKey(i64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let (key, owner) = (|| b'j'..=b'l', || b'a'..=b'c');
    let by = || prop_oneof![4 => -2..=2i64, 1 => -9_000..9_000i64];
    let asked = move || {
        prop_oneof![
            1 => by().prop_map(Asked::Wall),
            3 => by().prop_map(Asked::Furthest),
            1 => by().prop_map(Asked::Last),
            1 => by().prop_map(Asked::OfKey),
        ]
    };
    let least = move || option::weighted(0.8, asked());
    let mode = prop_oneof![Just(Read), Just(Write)];
    prop_oneof![
        8 => (key(), owner(), mode, least())
            .prop_map(|(key, owner, mode, least)| Deed::Take { key, owner, mode, least }),
        8 => (key(), owner(), least()).prop_map(|(key, owner, least)| Deed::Extend { key, owner, least }),
        4 => (key(), owner()).prop_map(|(key, owner)| Deed::Release { key, owner }),
        1 => key().prop_map(|key| Deed::Delete { key }),
        1 => (key(), key()).prop_map(|(from, to)| Deed::Rename { from, to }),
        2 => (1..10_000u64).prop_map(|us| Deed::Pass { us }),
        1 => any::<bool>().prop_map(|saved| Deed::Restart { saved }),
        1 => (0..=100u64, 0..=HALF_US).prop_map(|(received, wall_ahead_us)| Deed::FailOver { received, wall_ahead_us }),
    ]
}

/// A primary and its replica, by what clients can see of them.
struct Nodes {
    primary: Side,
    replica: Side,
    /// What the replica has not received yet.
    under_way: Vec<(u8, Update)>,
    now_us: u64,
    /// How far the primary's wall clock is ahead of the slowest there may be.
    wall_ahead_us: u64,
    /// Whether the process has given a fence.
    begun: bool,
    /// The highest fence that clients have been given on each key, by whatever node, and to whom each was given.
    highest: BTreeMap<u8, u64>,
    given: BTreeMap<(u8, u64), u8>,
}

fn few() -> Limits {
    limits(Rules { holders_max: 9, ..RULES })
}

impl Nodes {
    fn new() -> Nodes {
        Nodes {
            primary: Side::new(few()),
            replica: Side::new(few()),
            under_way: Vec::new(),
            now_us: 5_000_000,
            wall_ahead_us: HALF_US,
            begun: false,
            highest: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    fn now(&self) -> Now {
        Now { mono: Timestamp(self.now_us), wall: WallTime(1_000_000_000 + self.now_us + self.wall_ahead_us) }
    }

    fn last(&self) -> u64 {
        self.primary.manager.last_fence().map_or(0, Fence::get)
    }

    fn fence(&self, key: u8, owner: u8) -> Option<u64> {
        Some(self.primary.locks.get(&(0, key))?.holds.get(&[owner])?.fence().get())
    }

    fn least(&self, asked: Asked, key: u8) -> Option<Fence> {
        let wall = self.now().wall.0;
        let (from, by) = match asked {
            Asked::Wall(by) => (wall, by),
            Asked::Furthest(by) => (wall + HALF_US, by),
            Asked::Last(by) => (self.last(), by),
            Asked::OfKey(by) => (self.highest.get(&key).copied().unwrap_or(0), by),
        };
        Fence::new(from.saturating_add_signed(by).max(1))
    }

    /// A request of a client. No command takes less than a microsecond.
    fn asks(&mut self, key: u8, owner: u8, operation: Operation) {
        self.now_us += 1;
        let (now, before, least) = (self.now(), self.fence(key, owner), operation.min_fence().map(Fence::get));
        let (last, may_begin) = (self.last(), !self.begun);
        let (told, changes) = ask(&mut self.primary, key, owner, operation, now);
        self.under_way.extend(changes.iter().map(|change| (key, update_of(change, now))));
        let fence = match told {
            Ok(Outcome::Granted(fences)) => Some(fences[0].get()),
            Ok(Outcome::Extended(fences)) => fences[0].map(Fence::get),
            Err(Refusal::MinFenceAhead) => {
                let least = least.expect("asked for one");
                assert!(least > last && least > now.wall.0 + HALF_US, "{least} is refused");
                None
            }
            _ => None,
        };
        let Some(fence) = fence else { return };
        assert!(least.is_none_or(|least| fence >= least), "{fence} is below {least:?}");
        if before == Some(fence) {
            return;
        }
        let highest = self.highest.insert(key, fence);
        assert!(highest.is_none_or(|highest| highest < fence), "{fence} after {highest:?}");
        assert_eq!(self.given.insert((key, fence), owner), None, "{fence} is given once more");
        // A process skips what the one before it may have given; else a client brings the clock no further than this.
        let jumped = if may_begin { last.max(now.wall.0) + SKEW.0 * 1000 } else { last };
        self.begun = true;
        assert!(self.last() <= (jumped + 1).max(now.wall.0 + HALF_US), "{} at {}", self.last(), now.wall.0);
    }

    /// Time passes until the last jump is over: what is lost then is not also lost by a jump.
    fn calm_down(&mut self) {
        let ahead = self.last().saturating_sub(self.now().wall.0 + HALF_US);
        self.now_us += ahead + 1;
    }

    fn restart(&mut self, saved: bool) {
        self.calm_down();
        let now = self.now();
        let old = std::mem::replace(&mut self.primary, Side::new(few()));
        if saved {
            self.primary.manager.observe_fence(old.manager.last_fence().unwrap_or(Fence::new(1).unwrap()));
            for ((db, key), lock) in old.locks {
                let saved = codec::decode(&codec::encode(&lock, now)).unwrap();
                let mut lock = LockManager::load(&saved, Origin::Disk, now).unwrap();
                self.primary.manager.arrive(Db(db), name(key), &mut lock, now.mono);
                self.primary.locks.insert((db, key), lock);
            }
        }
        self.begun = false;
        self.resync();
    }

    fn fail_over(&mut self, received: u64, wall_ahead_us: u64) {
        self.calm_down();
        let now = self.now();
        let count = self.under_way.len() * received as usize / 100;
        for (key, update) in self.under_way.drain(..).take(count) {
            let told = self
                .replica
                .in_step(0, &[key], now, |manager, step| manager.apply(step, KeyIndex(0), &update, Origin::Peer));
            assert_eq!(told.outcome, Ok(()));
        }
        self.wall_ahead_us = wall_ahead_us;
        self.primary = std::mem::replace(&mut self.replica, Side::new(few()));
        self.primary.manager.promote(self.now().wall);
        self.begun = true;
        self.resync();
    }

    /// A new replica has all that the primary has.
    fn resync(&mut self) {
        let now = self.now();
        self.under_way.clear();
        self.replica = Side::new(few());
        self.replica.manager.observe_fence(self.primary.manager.last_fence().unwrap_or(Fence::new(1).unwrap()));
        for ((db, key), lock) in &self.primary.locks {
            let saved = codec::decode(&codec::encode(lock, now)).unwrap();
            let mut lock = LockManager::load(&saved, Origin::Peer, now).unwrap();
            self.replica.manager.arrive(Db(*db), &[*key], &mut lock, now.mono);
            self.replica.locks.insert((*db, *key), lock);
        }
    }

    fn happens(&mut self, deed: &Deed) {
        match *deed {
            Deed::Take { key, owner, mode, least } => {
                let least = least.and_then(|least| self.least(least, key));
                self.asks(key, owner, acquisition(mode, least));
            }
            Deed::Extend { key, owner, least } => {
                let least = least.and_then(|least| self.least(least, key));
                self.asks(key, owner, extend(least));
            }
            Deed::Release { key, owner } => {
                self.asks(key, owner, Operation::Release(Release { mode: None, amount: Amount::All, fence: None }));
            }
            Deed::Delete { key } => self.move_lock(key, None),
            Deed::Rename { from, to } => self.move_lock(from, Some(to)),
            Deed::Pass { us } => self.now_us += us,
            Deed::Restart { saved } => self.restart(saved),
            Deed::FailOver { received, wall_ahead_us } => self.fail_over(received, wall_ahead_us),
        }
    }

    /// DEL and RENAME reach the replica as themselves, at once: the records that are under way come before them.
    fn move_lock(&mut self, from: u8, to: Option<u8>) {
        let now = self.now();
        if to == Some(from) || !self.primary.locks.contains_key(&(0, from)) {
            return;
        }
        let mut lock: Lock = self.primary.locks.remove(&(0, from)).unwrap();
        lock.lease = None;
        if let Some(to) = to {
            self.primary.locks.remove(&(0, to));
            self.primary.manager.carry(Some((Db(0), name(from))), Db(0), name(to), &mut lock, now.mono);
            self.primary.locks.insert((0, to), lock);
        }
        self.resync();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::random::cases(), ..ProptestConfig::default() })]

    #[test]
    fn no_client_carries_the_clock_away_and_none_makes_a_fence_repeat_or_go_back(deeds in vec(deed(), 1..120)) {
        // Wall clocks differ by up to half of the skew, nodes lose what they knew, and clients push as far as they may.
        let mut nodes = Nodes::new();
        for deed in &deeds {
            nodes.happens(deed);
        }
    }
}
