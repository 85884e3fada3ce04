//! The saved form: what is saved comes back, and what is damaged does not.

use lock_core::codec::{DecodeError, VERSION, decode, encode};
use lock_core::manager::LockManager;
use lock_core::model::fence::Fence;
use lock_core::model::hold::{Epoch, Hold};
use lock_core::model::limits::SAVED_BYTES_CEILING;
use lock_core::model::lock::Lock;
use lock_core::model::owner::{NOBODY, Note, Owner};
use lock_core::model::record::{HoldRecord, Origin};
use lock_core::model::time::{Now, Timestamp, WallTime};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

const NOW: Now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };

fn lock() -> impl Strategy<Value = Lock> {
    let bytes = |max: usize| vec(any::<u8>(), 0..max);
    let hold = (1..4u32, 0..4u32, 0..9_000_000u64, option::of(bytes(20)));
    // The number of readers, and whether the first is a writer instead.
    // A request of the owner * is given another owner, so no lock has that one.
    let owner = vec(any::<u8>(), 1..60).prop_filter("the owner *", |owner| owner != NOBODY);
    (btree_map(owner, hold, 1..6), any::<bool>()).prop_map(|(holds, writer)| {
        let mut lock = Lock::default();
        let holds = holds.into_iter().take(if writer { 1 } else { usize::MAX });
        for (n, (owner, (reads, writes, deadline, note))) in holds.enumerate() {
            let fence = Fence::new(1_000 + n as u64 * 7).unwrap();
            lock.holds.raise_fence(fence);
            let mut hold = Hold::new(fence, Timestamp(deadline), NOW.mono, Epoch::FIRST);
            hold.set_counts(reads, if writer { writes } else { 0 });
            hold.set_note(note.map(|note| Note::new(&note)));
            lock.holds.put(&Owner::new(&owner), hold);
        }
        lock
    })
}

/// The sum that fits, FNV-1a of all but itself.
fn with_sum(mut saved: Vec<u8>) -> Vec<u8> {
    let summed = saved[..1].iter().chain(&saved[9..]);
    let sum =
        summed.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    saved[1..9].copy_from_slice(&sum.to_le_bytes());
    saved
}

#[test]
fn holds_in_another_order_than_they_are_saved_in_are_refused() {
    // What could go wrong: one lock has several saved forms, and what is loaded is not what is saved again. (Fuzzing.)
    let mut lock = Lock::default();
    for (n, owner) in [b"a", b"b"].into_iter().enumerate() {
        let fence = Fence::new(1 + n as u64).unwrap();
        lock.holds.raise_fence(fence);
        let mut hold = Hold::new(fence, Timestamp(9_000_000), NOW.mono, Epoch::FIRST);
        hold.set_counts(1, 0);
        lock.holds.put(&Owner::new(owner), hold);
    }
    let saved = encode(&lock, NOW);
    assert_eq!(with_sum(saved.clone()), saved, "else the sums are not right");
    let (head, holds) = saved.split_at(1 + 8 + 8 + 4);
    let (one, other) = holds.split_at(holds.len() / 2);
    assert!(decode(&with_sum([head, one, other].concat())).is_ok());
    assert_eq!(decode(&with_sum([head, other, one].concat())), Err(DecodeError::Broken));
    assert_eq!(decode(&with_sum([head, one, one].concat())), Err(DecodeError::Broken));
}

/// A lock with one hold of an owner and a note of so many bytes.
fn lock_of(owner_bytes: usize, note_bytes: usize) -> Lock {
    let mut lock = Lock::default();
    let fence = Fence::new(1).unwrap();
    lock.holds.raise_fence(fence);
    let mut hold = Hold::new(fence, Timestamp(9_000_000), NOW.mono, Epoch::FIRST);
    hold.set_counts(0, 1);
    hold.set_note(Some(Note::new(&vec![b'n'; note_bytes])));
    lock.holds.put(&Owner::new(&vec![b'o'; owner_bytes]), hold);
    lock
}

#[test]
fn the_longest_owner_and_the_longest_note_come_back_whole() {
    let hold = decode(&encode(&lock_of(SAVED_BYTES_CEILING, SAVED_BYTES_CEILING), NOW)).unwrap().holds.remove(0);
    let lengths = (hold.owner.as_bytes().len(), hold.note.map(|note| note.0.len()));
    assert_eq!(lengths, (SAVED_BYTES_CEILING, Some(SAVED_BYTES_CEILING)));
}

#[test]
#[should_panic(expected = "no owner or note is above SAVED_BYTES_CEILING")]
fn an_owner_too_long_for_the_saved_form_is_not_saved_as_another() {
    // What could go wrong: it comes back cut, as an owner that never held the lock.
    let _ = encode(&lock_of(SAVED_BYTES_CEILING + 1, 0), NOW);
}

#[test]
#[should_panic(expected = "no owner or note is above SAVED_BYTES_CEILING")]
fn a_note_too_long_for_the_saved_form_is_not_saved_cut() {
    let _ = encode(&lock_of(1, SAVED_BYTES_CEILING + 1), NOW);
}

proptest! {
    #[test]
    fn what_is_saved_comes_back(lock in lock()) {
        // What could go wrong: a field forgotten, or a time rounded down.
        let saved = decode(&encode(&lock, NOW)).unwrap();
        prop_assert_eq!(saved.fence, lock.fence());
        let expected: Vec<HoldRecord> = lock.holds.iter().map(|(owner, hold)| {
            let mut record = HoldRecord::of(owner, hold, NOW);
            record.state.wall_deadline = WallTime::from_millis(record.state.wall_deadline.millis());
            record
        }).collect();
        prop_assert_eq!(saved.holds, expected);
    }

    #[test]
    fn holds_that_are_loaded_together_are_kept_as_if_each_had_been_put(lock in lock()) {
        // What could go wrong: one is found by its owner and not by its deadline, or not counted.
        let saved = decode(&encode(&lock, NOW)).unwrap();
        let mut expected = Lock::default();
        saved.fence.into_iter().for_each(|fence| expected.holds.raise_fence(fence));
        for record in saved.holds.iter().rev() {
            let state = record.state;
            let mut hold = Hold::new(state.fence.unwrap(), NOW.mono + state.left, NOW.mono, Epoch::CARRIED);
            hold.set_counts(state.reads, state.writes);
            hold.set_note(record.note.clone());
            expected.holds.put(&record.owner, hold);
        }
        let loaded = LockManager::load(&saved, Origin::Peer, NOW).unwrap();
        prop_assert_eq!(format!("{:?}", loaded), format!("{:?}", expected));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed(lock in lock(), flip in 1..=255u8) {
        // What could go wrong: a length believed before it is checked, or a change that makes another valid lock.
        let saved = encode(&lock, NOW);
        for len in 0..saved.len() {
            prop_assert_eq!(decode(&saved[..len]), Err(DecodeError::Broken));
        }
        for at in 0..saved.len() {
            let mut changed = saved.clone();
            changed[at] ^= flip;
            let newer = at == 0 && changed[0] > VERSION;
            let expected = if newer { DecodeError::Newer(changed[0]) } else { DecodeError::Broken };
            prop_assert_eq!(decode(&changed), Err(expected), "byte {}", at);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(mut bytes in vec(any::<u8>(), 0..200)) {
        // What could go wrong: an index out of range, or an allocation of the size that a payload claims.
        prop_assert!(decode(&bytes).is_err());
        if let Some(version) = bytes.first_mut() {
            *version = VERSION;
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
