//! Any bytes as a saved lock: never a panic, never more memory than a few times their length; what is read keeps the
//! invariants of a lock, and is the same when it is saved and read again.

#![no_main]

use cap::Cap;
use libfuzzer_sys::fuzz_target;
use lock_core::codec::{DecodeError, VERSION, decode, encode};
use lock_core::manager::LockManager;
use lock_core::model::key::Db;
use lock_core::model::limits::{LEASE_CEILING, Limits, StepLimits};
use lock_core::model::record::Origin;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

// Of this year, so that some fences are too far ahead.
const NOW: Now = Now { mono: Timestamp(5_000_000), wall: WallTime(1_790_000_000_000_000) };

/// None of these decides what is read.
const LIMITS: Limits = Limits {
    holders_per_key_max: 1,
    waiters_max: 1,
    waiters_per_key_max: 1,
    places_max: 0,
    place_bytes_max: 0,
    away_max: Millis(0),
    waiter_bytes_max: 0,
    reserve_max: Millis(0),
    deadlock_detection: false,
    promotion_skew: Millis(0),
    grace: Millis(0),
    step: StepLimits::DEFAULT,
};

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // The sum would keep nearly all from being read at all.
    check(&sealed(bytes));
});

fn check(bytes: &[u8]) {
    let before = ALLOCATOR.total_allocated();
    let decoded = decode(bytes);
    let allocated = ALLOCATOR.total_allocated() - before;
    // A fact takes 4 times the bytes of the smallest hold, a list that grows twice as much, and there are sets of them.
    assert!(allocated <= 1_000 + 20 * bytes.len(), "{allocated} bytes for {}", bytes.len());
    let saved = match decoded {
        Ok(saved) => saved,
        Err(DecodeError::Newer(version)) => return assert!(version > VERSION && version == bytes[0]),
        Err(DecodeError::Broken) => return,
    };
    let mut lock = LockManager::load(&saved, Origin::Peer, NOW).expect("a peer is believed");
    assert_eq!(lock.broken_invariant(), None);
    assert!(!lock.is_free());
    assert_eq!((lock.fence(), lock.holds.len()), (saved.fence, saved.holds.len()));

    // No client could release a hold without an owner, or with one that is to be made.
    assert!(saved.holds.iter().all(|record| !matches!(record.owner.as_bytes(), b"" | b"*")));

    // As many bytes, of which only the times may differ.
    let again = encode(&lock, NOW);
    assert_eq!(again.len(), bytes.len());
    let mut expected = saved.clone();
    for record in &mut expected.holds {
        // By the reader's clock; and no lease is longer than any lease can be.
        record.state.left = record.state.left.min(LEASE_CEILING);
        let deadline = NOW.wall_at(NOW.mono + record.state.left);
        record.state.wall_deadline = WallTime::from_millis(deadline.millis());
    }
    assert_eq!(decode(&again).as_ref(), Ok(&expected));

    // Whatever the disk or a client say.
    for origin in [Origin::Disk, Origin::Client] {
        match LockManager::load(&saved, origin, NOW) {
            Ok(other) => {
                assert_eq!(other.broken_invariant(), None);
                assert!(other.holds.iter().all(|(owner, hold)| {
                    let record = saved.holds.iter().find(|record| record.owner == *owner).expect("was saved");
                    let said = (record.state.reads, record.state.writes, record.state.fence);
                    (hold.reads(), hold.writes(), Some(hold.fence())) == said
                        && hold.deadline <= lock.holds.get(owner.as_bytes()).expect("has it").deadline
                }));
            }
            Err(_) => {
                assert!(origin == Origin::Client && saved.fence.is_some_and(|fence| fence.is_far_ahead(NOW.wall)))
            }
        }
    }
    // It lies under a key, and its time comes.
    let mut manager = LockManager::new(LIMITS, |_| 0);
    manager.arrive(Db(0), b"k", &mut lock, NOW.mono);
    let (earliest, _) = lock.holds.earliest().expect("is held");
    assert!(manager.covers(Db(0), &lock, earliest), "I4");
    assert_eq!(manager.last_fence(), saved.fence);
}

/// With the version and the sum of what follows: FNV-1a of all but the sum.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut generated = vec![VERSION];
    generated.extend_from_slice(&[0; 8]);
    generated.extend_from_slice(bytes.get(9..).unwrap_or_default());
    let summed = generated[..1].iter().chain(&generated[9..]);
    let sum =
        summed.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    generated[1..9].copy_from_slice(&sum.to_le_bytes());
    generated
}
