//! A data set that is loaded beside the one that is served. Each lock has one entry in the index at every moment,
//! whether the load ends well or not. It does not matter whether the server reports databases.

use lock_core::codec;
use lock_core::collections::wheel::EntryId;
use lock_core::manager::{LeasePoll, LockManager};
use lock_core::model::fence::Fence;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::lock::Lock;
use lock_core::model::owner::Owner;
use lock_core::model::record::{HoldRecord, Origin, Update};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::state::State;
use lock_core::model::step::Step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use naive_model::words::Rules;
use naive_model::world::{RULES, Side, limits, name};
use proptest::prelude::*;
use std::collections::BTreeMap;

const DATABASES: u32 = 3;
const NOW: Now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_000_000) };

#[derive(Clone, Debug)]
enum Op {
    /// The primary says that an owner holds this, or that the key is free.
    Hold {
        db: u32,
        key: u8,
        lease: Option<u64>,
    },
    Move {
        key: u8,
        from: u32,
        to: u32,
    },
    Flush {
        db: Option<u32>,
    },
    Swap {
        one: u32,
        other: u32,
    },
    Begin,
    Load {
        db: u32,
        key: u8,
        lease: u64,
    },
    Complete,
    Abort,
    PlaceOne,
}

fn op() -> impl Strategy<Value = Op> {
    let db = || 0..DATABASES;
    let key = || b'j'..=b'l';
    let lease = || prop_oneof![1..5u64, 1..100_000u64];
    prop_oneof![
        8 => (db(), key(), proptest::option::of(lease())).prop_map(|(db, key, lease)| Op::Hold { db, key, lease }),
        2 => (key(), db(), db()).prop_map(|(key, from, to)| Op::Move { key, from, to }),
        1 => proptest::option::of(db()).prop_map(|db| Op::Flush { db }),
        1 => (db(), db()).prop_map(|(one, other)| Op::Swap { one, other }),
        3 => Just(Op::Begin),
        8 => (db(), key(), lease()).prop_map(|(db, key, lease)| Op::Load { db, key, lease }),
        3 => Just(Op::Complete),
        1 => Just(Op::Abort),
        2 => Just(Op::PlaceOne),
    ]
}

/// A replica, and the data set that it loads.
struct Replica {
    side: Side,
    incoming: Option<BTreeMap<(u32, u8), Lock>>,
    /// Whether the server reports the databases of keys that it loads.
    tells: bool,
    fence: u64,
}

impl Replica {
    fn new(tells: bool) -> Replica {
        let rules: Rules = RULES;
        Replica { side: Side::new(limits(rules)), incoming: None, tells, fence: 0 }
    }

    fn update(&mut self, lease: Option<u64>) -> Update {
        self.fence += 1;
        Update::State(HoldRecord {
            owner: Owner::new(b"a"),
            state: State {
                writes: u32::from(lease.is_some()),
                left: Millis(lease.unwrap_or(0)),
                ..State::end(Fence::new(self.fence))
            },
            note: None,
        })
    }

    fn step(&mut self, op: &Op) {
        let manager = &mut self.side.manager;
        match *op {
            Op::Hold { db, key, lease } => {
                let update = self.update(lease);
                let apply = |manager: &mut LockManager, step: &mut Step<'_, Side>| {
                    manager.apply(step, KeyIndex(0), &update, Origin::Peer)
                };
                self.side.in_step(db, &[key], NOW, apply).outcome.unwrap();
            }
            Op::Move { key, from, to } => {
                if from == to || self.side.locks.contains_key(&(to, key)) {
                    return;
                }
                if let Some(mut lock) = self.side.locks.remove(&(from, key)) {
                    manager.on_unlinked(Db(from), name(key), &UnlinkedLock::of(&lock));
                    lock.lease = None;
                    manager.carry(Some((Db(from), name(key))), Db(to), name(key), &mut lock, NOW.mono);
                    self.side.locks.insert((to, key), lock);
                }
            }
            Op::Flush { db } => {
                manager.flush(db.map(Db));
                self.side.locks.retain(|(at, _), _| db.is_some_and(|db| db != *at));
            }
            Op::Swap { one, other } => {
                manager.swap(Db(one), Db(other));
                let swapped = |db| {
                    if db == one {
                        other
                    } else if db == other {
                        one
                    } else {
                        db
                    }
                };
                let locks = std::mem::take(&mut self.side.locks).into_iter();
                self.side.locks = locks.map(|((db, key), lock)| ((swapped(db), key), lock)).collect();
            }
            Op::Begin => {
                manager.begin_incoming();
                self.incoming = Some(BTreeMap::new());
            }
            Op::Load { db, key, lease } => {
                let mut lock = self.lock(lease);
                let Some(incoming) = &mut self.incoming else { return };
                if incoming.contains_key(&(db, key)) {
                    return;
                }
                self.side.manager.index_incoming(self.tells.then_some(Db(db)), name(key), &mut lock);
                assert_eq!(self.side.manager.last_fence(), lock.fence(), "no later fence is below it");
                incoming.insert((db, key), lock);
            }
            Op::Complete => {
                manager.take_incoming();
                if let Some(incoming) = self.incoming.take() {
                    self.side.locks = incoming;
                }
            }
            Op::Abort => {
                manager.drop_incoming();
                self.incoming = None;
            }
            Op::PlaceOne => {
                self.place_one();
            }
        }
        assert_eq!(self.side.manager.has_incoming(), self.incoming.is_some());
    }

    /// A lock as it is loaded.
    fn lock(&mut self, lease: u64) -> Lock {
        let mut saved = Replica::new(true);
        saved.fence = self.fence;
        saved.step(&Op::Hold { db: 0, key: b'k', lease: Some(lease) });
        self.fence = saved.fence;
        let lock = codec::encode(&saved.side.locks[&(0, b'k')], NOW);
        LockManager::load(&codec::decode(&lock).unwrap(), Origin::Peer, NOW).unwrap()
    }

    fn place_one(&mut self) -> bool {
        let Some((entry, name)) = self.side.manager.next_db_unknown() else { return false };
        self.resolve(entry, name[0], NOW);
        true
    }

    fn resolve(&mut self, entry: EntryId, key: u8, now: Now) {
        for db in 0..DATABASES {
            if let Some(lock) = self.side.locks.get_mut(&(db, key))
                && self.side.manager.resolve_db(Db(db), name(key), lock, entry, now.mono)
            {
                return;
            }
        }
        self.side.manager.drop_db_unknown(entry);
    }

    fn check(&self) {
        for (&(db, _), lock) in &self.side.locks {
            let (earliest, _) = lock.holds.earliest().expect("I6");
            assert!(self.side.manager.covers(Db(db), lock, earliest), "I4");
        }
        let (entries, locks) = (self.side.manager.leases_len(), self.side.locks.len());
        assert!(if self.tells { entries == locks } else { entries >= locks }, "{entries} entries, {locks} locks");
    }

    /// As a primary: ends all that is over then.
    fn end_all(&mut self, now: Now) {
        loop {
            match self.side.manager.poll_leases(now.mono) {
                LeasePoll::Key(db, entry, name) => {
                    let lapse = |manager: &mut LockManager, step: &mut Step<'_, Side>| {
                        manager.lapse(step, KeyIndex(0), entry, 64);
                    };
                    self.side.in_step(db.0, &[name[0]], now, lapse);
                }
                LeasePoll::DbUnknown(entry, name) => self.resolve(entry, name[0], now),
                LeasePoll::Pending => {}
                LeasePoll::Idle => return,
            }
        }
    }
}

proptest! {
    #[test]
    fn every_lock_has_one_entry_whatever_becomes_of_a_load(
        ops in proptest::collection::vec(op(), 0..60),
        tells: bool,
        places: bool,
        later_ms in 0..200_000u64,
    ) {
        let mut replica = Replica::new(tells);
        for op in &ops {
            replica.step(op);
            replica.check();
        }
        while places && replica.place_one() {}
        if places || tells {
            assert_eq!(replica.side.manager.leases_len(), replica.side.locks.len(), "no entry is left over");
        }
        // Promoted, also while it is not known yet where some of them are.
        replica.side.manager.promote(NOW.wall);
        let later = Now { mono: Timestamp(NOW.mono.0 + later_ms * 1000), wall: NOW.wall };
        replica.end_all(later);
        for lock in replica.side.locks.values() {
            assert_eq!(lock.holds.over(later.mono), 0, "a lease was forgotten");
        }
        let end = Now { mono: Timestamp(NOW.mono.0 + 200_000_000), wall: NOW.wall };
        replica.end_all(end);
        assert!(replica.side.locks.is_empty());
        assert_eq!(replica.side.manager.leases_len(), 0);
        while replica.side.manager.shed() {}
    }
}

#[test]
fn a_record_finds_a_lock_whose_entry_was_dropped() {
    // A replica does not see a key that has expired, though its primary has just taken the time to live away. It drops
    // the entry that it was to place. Then the record comes that says so.
    let mut replica = Replica::new(false);
    for op in [Op::Begin, Op::Load { db: 0, key: b'k', lease: 1_000 }, Op::Complete] {
        replica.step(&op);
    }
    let unseen = std::mem::take(&mut replica.side.locks);
    assert!(replica.place_one());
    replica.side.locks = unseen;
    replica.step(&Op::Hold { db: 0, key: b'k', lease: Some(60_000) });
    replica.check();
}

#[test]
fn an_entry_that_falls_due_on_a_replica_moves_with_the_next_record() {
    // A promotion would find the entries of all locks that were extended on the old primary, and end none of them.
    let mut replica = Replica::new(true);
    let hold = |replica: &mut Replica, now: Now| {
        let update = replica.update(Some(1_000));
        let apply = |manager: &mut LockManager, step: &mut Step<'_, Side>| {
            manager.apply(step, KeyIndex(0), &update, Origin::Peer)
        };
        replica.side.in_step(0, b"k", now, apply).outcome.unwrap();
    };
    hold(&mut replica, NOW);
    let later = Now { mono: Timestamp(NOW.mono.0 + 1_500_000), wall: WallTime(NOW.wall.0 + 1_500_000) };
    hold(&mut replica, later);
    let found = loop {
        match replica.side.manager.poll_leases(later.mono) {
            LeasePoll::Pending => {}
            found => break found,
        }
    };
    assert_eq!(found, LeasePoll::Idle);
}

#[test]
fn a_large_index_of_data_that_are_gone_is_given_back_bit_by_bit() {
    // To free a million entries at the moment when the new data are in would stall the server.
    for complete in [true, false] {
        let mut replica = Replica::new(true);
        let mut lock = replica.lock(1_000);
        let load = |manager: &mut LockManager, lock: &mut Lock| {
            manager.begin_incoming();
            for number in 0..100_000u32 {
                manager.index_incoming(Some(Db(1)), &number.to_be_bytes(), lock);
            }
        };
        let manager = &mut replica.side.manager;
        load(manager, &mut lock);
        manager.take_incoming();
        assert_eq!(manager.leases_len(), 100_000);
        load(manager, &mut lock);
        if complete {
            manager.take_incoming()
        } else {
            manager.drop_incoming()
        }
        assert_eq!(manager.leases_len(), 100_000);
        let mut pieces = 0;
        while replica.side.manager.shed() {
            pieces += 1;
        }
        assert!(pieces > 100, "{pieces}");
    }
}
