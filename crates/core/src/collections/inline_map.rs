//! An ordered map with its only entry in place, and few entries in a row. Most queues have one waiter, and most others
//! get each waiter at the end and lose it at the head: a tree takes hundreds of bytes, and hundreds of instructions.

use alloc::boxed::Box;
use alloc::collections::btree_map::Range;
use alloc::collections::{BTreeMap, VecDeque, vec_deque};
use core::ops::{Bound, RangeBounds};

/// An ordered map. It allocates nothing before its second entry.
#[derive(Debug)]
pub(crate) struct InlineMap<K, V>(Entries<K, V>);

/// A set with its only member in place.
pub(crate) type InlineSet<K> = InlineMap<K, ()>;

/// A map with more entries is a tree: to add one between others, or to take it out, moves up to half of a row.
const ROW_MAX: usize = if cfg!(test) { 40 } else { 1_024 };

/// A row keeps room for so many.
const ROW_KEPT: usize = 16;

type Row<K, V> = VecDeque<(K, V)>;

#[derive(Debug)]
#[expect(clippy::box_collection, reason = "both are larger than most single entries, and than a pointer")]
enum Entries<K, V> {
    None,
    One(K, V),
    /// At least one, in order. A row stays one until it is empty or too long: else a map that often has one and two
    /// would often allocate.
    Row(Box<Row<K, V>>),
    /// At least one. A tree stays one until it is empty.
    Tree(Box<BTreeMap<K, V>>),
}

impl<K, V> Default for InlineMap<K, V> {
    fn default() -> InlineMap<K, V> {
        InlineMap(Entries::None)
    }
}

impl<K: Copy + Ord, V: Copy> InlineMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Entries::None => 0,
            Entries::One(..) => 1,
            Entries::Row(row) => row.len(),
            Entries::Tree(tree) => tree.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, Entries::None)
    }

    pub(crate) fn get(&self, key: K) -> Option<V> {
        match &self.0 {
            Entries::None => None,
            Entries::One(only, value) => (*only == key).then_some(*value),
            Entries::Row(row) => find(row, key).ok().map(|at| row[at].1),
            Entries::Tree(tree) => tree.get(&key).copied(),
        }
    }

    /// The first entry.
    #[inline]
    pub(crate) fn first(&self) -> Option<(K, V)> {
        match &self.0 {
            Entries::None => None,
            Entries::One(only, value) => Some((*only, *value)),
            Entries::Row(row) => row.front().copied(),
            // Not by a range: that goes down to both of its ends.
            Entries::Tree(tree) => tree.first_key_value().map(|(key, value)| (*key, *value)),
        }
    }

    /// Adds an entry, in place of the one with this key if there is one.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match &mut self.0 {
            Entries::Row(row) => match find(row, key) {
                Ok(at) => row[at].1 = value,
                Err(at) if row.len() < ROW_MAX => row.insert(at, (key, value)),
                Err(_) => {
                    let tree = row.drain(..).chain([(key, value)]).collect();
                    self.0 = Entries::Tree(Box::new(tree));
                }
            },
            Entries::Tree(tree) => drop(tree.insert(key, value)),
            Entries::One(only, old) if *only != key => {
                let (old, new) = ((*only, *old), (key, value));
                let row = if old.0 < new.0 { [old, new] } else { [new, old] };
                self.0 = Entries::Row(Box::new(row.into()));
            }
            Entries::None | Entries::One(..) => self.0 = Entries::One(key, value),
        }
    }

    pub(crate) fn remove(&mut self, key: K) {
        match &mut self.0 {
            Entries::Row(row) => {
                if let Ok(at) = find(row, key) {
                    row.remove(at);
                }
                if row.is_empty() {
                    self.0 = Entries::None;
                } else if row.capacity() > ROW_KEPT && row.len() < row.capacity() / 4 {
                    row.shrink_to(row.capacity() / 2);
                }
            }
            Entries::Tree(tree) => {
                tree.remove(&key);
                if tree.is_empty() {
                    self.0 = Entries::None;
                }
            }
            Entries::One(only, _) if *only == key => self.0 = Entries::None,
            Entries::None | Entries::One(..) => {}
        }
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        self.range(..)
    }

    /// The entries within a range, in order. It must not end before it begins.
    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> Iter<'_, K, V> {
        match &self.0 {
            Entries::None => Iter::One(None),
            Entries::One(only, value) => Iter::One(range.contains(only).then_some((*only, *value))),
            Entries::Row(row) => {
                let from = match range.start_bound() {
                    Bound::Unbounded => 0,
                    Bound::Included(from) => count_before(row, |key| key < from),
                    Bound::Excluded(from) => count_before(row, |key| key <= from),
                };
                let to = match range.end_bound() {
                    Bound::Unbounded => row.len(),
                    Bound::Included(to) => count_before(row, |key| key <= to),
                    Bound::Excluded(to) => count_before(row, |key| key < to),
                };
                Iter::Row(row.range(from..to))
            }
            Entries::Tree(tree) => Iter::Tree(tree.range(range)),
        }
    }
}

/// Where a key is in a row, or else where it belongs. Most are asked for at an end.
#[inline]
fn find<K: Ord, V>(row: &Row<K, V>, key: K) -> Result<usize, usize> {
    match (row.front(), row.back()) {
        (Some((first, _)), _) if *first == key => Ok(0),
        (_, Some((last, _))) if *last < key => Err(row.len()),
        _ => row.binary_search_by(|(at, _)| at.cmp(&key)),
    }
}

/// How many entries of a row stand before a place. Mostly none does, the first alone, or all.
#[inline]
fn count_before<K, V>(row: &Row<K, V>, is_before: impl Fn(&K) -> bool) -> usize {
    let stands_before = |at| row.get(at).is_some_and(|(key, _)| is_before(key));
    match row.len() {
        _ if !stands_before(0) => 0,
        _ if !stands_before(1) => 1,
        len if stands_before(len - 1) => len,
        _ => row.partition_point(|(key, _)| is_before(key)),
    }
}

/// Entries in order.
#[derive(Clone, Debug)]
pub(crate) enum Iter<'m, K, V> {
    /// At most one.
    One(Option<(K, V)>),
    /// The entries of a row.
    Row(vec_deque::Iter<'m, (K, V)>),
    /// The entries of a tree.
    Tree(Range<'m, K, V>),
}

impl<K: Copy, V: Copy> Iterator for Iter<'_, K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        match self {
            Iter::One(entry) => entry.take(),
            Iter::Row(entries) => entries.next().copied(),
            Iter::Tree(entries) => entries.next().map(|(key, value)| (*key, *value)),
        }
    }
}

impl<K: Copy, V: Copy> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<(K, V)> {
        match self {
            Iter::One(entry) => entry.take(),
            Iter::Row(entries) => entries.next_back().copied(),
            Iter::Tree(entries) => entries.next_back().map(|(key, value)| (*key, *value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::InlineMap;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use core::ops::Bound::{self, Excluded, Included, Unbounded};
    use core::ops::RangeBounds;

    /// Adds or removes one of three keys.
    const STEPS: u32 = 6;

    #[test]
    fn it_is_an_ordered_map_through_every_history_of_six_steps() {
        for history in 0..STEPS.pow(6) {
            let (mut map, mut model) = (InlineMap::default(), BTreeMap::new());
            for at in 0..6 {
                let step = history / STEPS.pow(at) % STEPS;
                let key = step / 2;
                if step.is_multiple_of(2) {
                    map.insert(key, at);
                    model.insert(key, at);
                } else {
                    map.remove(key);
                    model.remove(&key);
                }
            }
            assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            for range in [0..3, 1..3, 0..2, 1..1] {
                let expected: Vec<_> = model.range(range.clone()).map(|(key, value)| (*key, *value)).collect();
                assert_eq!(map.range(range.clone()).collect::<Vec<_>>(), expected, "{history}");
                assert!(map.range(range).rev().eq(expected.into_iter().rev()), "{history}");
            }
            assert_eq!(map.first(), model.first_key_value().map(|(key, value)| (*key, *value)), "{history}");
            assert!((0..3).all(|key| map.get(key) == model.get(&key).copied()), "{history}");
        }
    }

    /// As many numbers without an order as are wanted, from a seed.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |below| {
            // Knuth's linear congruential generator: its high bits are good.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn it_is_an_ordered_map_however_many_entries_it_has() {
        for seed in 0..200 {
            let mut number = numbers(seed);
            let (mut map, mut model) = (InlineMap::default(), BTreeMap::new());
            for at in 0..400 {
                let key = number(256);
                // Grows to a row of some length or to a tree, is emptied, and grows again.
                let grows = at % 200 < 120 && model.len() < 10 + seed as usize % 50;
                if number(10) < if grows { 8 } else { 2 } {
                    map.insert(key, at);
                    model.insert(key, at);
                } else {
                    let there = model.range(key..).next().map_or(key, |(there, _)| *there);
                    map.remove(there);
                    model.remove(&there);
                }
                let first = model.first_key_value().map(|(key, value)| (*key, *value));
                assert_eq!((map.len(), map.first()), (model.len(), first), "{seed}, {at}");
                assert_eq!(map.get(key), model.get(&key).copied(), "{seed}, {at}");
                let bound = |kind, key| match kind {
                    0 => Unbounded,
                    1 => Included(key),
                    _ => Excluded(key),
                };
                let (from, to) = (number(256), number(256));
                let range: (Bound<u64>, Bound<u64>) =
                    (bound(number(3), from.min(to)), bound(number(3), from.max(to) + 1));
                let expected: Vec<_> = model.iter().map(|(key, value)| (*key, *value)).collect();
                let expected: Vec<_> = expected.into_iter().filter(|(key, _)| range.contains(key)).collect();
                assert!(map.range(range).eq(expected.iter().copied()), "{seed}, {at}, {range:?}");
                assert!(map.range(range).rev().eq(expected.into_iter().rev()), "{seed}, {at}, {range:?}");
            }
        }
    }
}
