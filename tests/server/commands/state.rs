//! The word of a record: what is written comes back, one word for each state, and nothing else is read.

use linked::command::args::Parser;
use linked::command::hold::{UNBOUND, parse};
use lock_core::model::fence::Fence;
use lock_core::model::owner::{NOBODY, Note, Owner};
use lock_core::model::record::{HoldRecord, Update};
use lock_core::model::state::{State, StateError};
use lock_core::model::time::{Millis, WallTime};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

/// A number of any length, and mostly one at the end of its range.
fn number(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..=max, 0..=max.min(9), Just(max), (0..64u32).prop_map(move |bits| (u64::MAX >> bits).min(max))]
}

fn state() -> impl Strategy<Value = State> {
    let count = || number(u64::from(u32::MAX)).prop_map(|count| count as u32);
    let fence = || number(Fence::MAX.get()).prop_map(|fence| Fence::new(fence.max(1)).unwrap());
    let hold = (count(), count(), fence(), number(State::DEADLINE_MAX), number(u64::MAX));
    let hold = hold.prop_map(|(reads, writes, fence, deadline, left)| State {
        reads,
        writes: if reads == 0 { writes.max(1) } else { writes },
        fence: Some(fence),
        wall_deadline: WallTime::from_millis(deadline),
        left: Millis(left),
    });
    prop_oneof![4 => hold, 1 => option::of(fence()).prop_map(State::end)]
}

fn record() -> impl Strategy<Value = HoldRecord> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..60);
    let owner = bytes().prop_filter("an owner", |owner| !owner.is_empty() && owner != NOBODY);
    (owner, state(), option::of(bytes())).prop_map(|(owner, state, note)| HoldRecord {
        owner: Owner::new(&owner),
        state,
        note: note.map(|note| Note::new(&note)),
    })
}

/// The state in the words of the earlier form.
fn in_numbers(state: State) -> Vec<Vec<u8>> {
    let State { reads, writes, fence, wall_deadline, left } = state;
    let all = [u64::from(reads), writes.into(), fence.map_or(0, Fence::get), wall_deadline.millis(), left.0];
    let len = match (state.is_end(), fence) {
        (true, None) => 2,
        (true, Some(_)) => 3,
        (false, _) => 5,
    };
    all[..len].iter().map(|number| number.to_string().into_bytes()).collect()
}

fn read(key: &[u8], record: &HoldRecord, state: &[Vec<u8>]) -> HoldRecord {
    let mut words: Vec<&[u8]> = vec![b"LOCK.HOLD", key, record.owner.as_bytes()];
    words.extend(state.iter().map(Vec::as_slice));
    words.extend(record.note.as_ref().map(|note| &*note.0));
    let (read_key, read) = parse(Parser::new(&words[..], UNBOUND)).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert_eq!(read_key, key);
    let Update::State(record) = read else { panic!("{words:?}: {read:?}") };
    record
}

proptest! {
    #[test]
    fn a_record_that_was_written_is_read_as_it_was(record in record()) {
        let word = record.state.word().as_bytes().to_vec();
        prop_assert_eq!(State::read(&word), Ok(record.state));
        prop_assert_eq!(&read(b"k", &record, &[word]), &record);
    }

    #[test]
    fn a_record_without_an_owner_is_an_end_or_refused(state in state(), key in any::<[u8; 4]>()) {
        // A record that lost its owner must not be taken for an end: the lock would be free.
        let word = state.word();
        match (parse(Parser::new(&[b"LOCK.HOLD", &key[..], word.as_bytes()][..], UNBOUND)), state.fence) {
            (Ok(read), Some(fence)) if state.is_end() => prop_assert_eq!(read, (&key[..], Update::End(fence))),
            (Err(error), _) if !state.is_end() || state.fence.is_none() => {
                prop_assert_eq!(error.to_string(), "ERR owner needs a value");
            }
            (read, _) => prop_assert!(false, "{state:?}: {read:?}"),
        }
    }

    #[test]
    fn both_forms_of_a_record_say_the_same(record in record()) {
        // A node of an earlier version, and its files, write the form with a word for each number. Nobody wrote a note
        // behind an end, or more milliseconds than a signed number has.
        let is_written = record.state.left.0 <= i64::MAX as u64 && !(record.state.is_end() && record.note.is_some());
        prop_assume!(is_written);
        prop_assert_eq!(&read(b"k", &record, &in_numbers(record.state)), &record);
    }

    #[test]
    fn what_is_read_of_any_word_is_written_as_that_word(
        state in state(),
        changes in proptest::collection::vec((any::<Index>(), 0..4u8, any::<u8>()), 1..4),
    ) {
        // So no two words say the same, and no damage is taken for something that nobody wrote.
        let mut word = state.word().as_bytes().to_vec();
        for (at, change, byte) in changes {
            let byte = if byte < 128 { b"V1RWFDL0123456789 -+.e"[usize::from(byte) % 22] } else { byte };
            let at = at.index(word.len() + 1);
            match change {
                0 => word.insert(at, byte),
                1 if at < word.len() => word[at] = byte,
                2 if at < word.len() => drop(word.remove(at)),
                _ => word.truncate(at),
            }
        }
        if let Ok(read) = State::read(&word) {
            prop_assert!(read.word().as_bytes() == word, "{}", word.escape_ascii());
            prop_assert!(read.is_end() || read.fence.is_some());
        }
    }

    #[test]
    fn no_hold_becomes_an_end_by_one_change(state in state(), at in any::<Index>(), byte in any::<u8>()) {
        // A lock that is taken for free is worse than a record that is refused.
        prop_assume!(!state.is_end());
        let whole = state.word().as_bytes().to_vec();
        let at = at.index(whole.len());
        let (mut other, mut shorter) = (whole.clone(), whole.clone());
        other[at] = byte;
        shorter.remove(at);
        for word in [&other[..], &shorter[..]] {
            prop_assert!(State::read(word).map_or(true, |read| !read.is_end()), "{}", word.escape_ascii());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(word in proptest::collection::vec(any::<u8>(), 0..100)) {
        match State::read(&word) {
            Ok(read) => prop_assert!(read.word().as_bytes() == word, "{}", word.escape_ascii()),
            Err(StateError::Mark) => {}
            Err(_) => prop_assert!(word.starts_with(b"V1")),
        }
    }
}
