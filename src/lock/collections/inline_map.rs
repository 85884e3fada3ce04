//! An ordered map with its only entry in place. Most queues have one waiter, and a tree takes hundreds of bytes.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Range;
use core::ops::RangeBounds;

/// An ordered map. It allocates nothing before its second entry.
#[derive(Debug)]
pub(crate) struct InlineMap<K, V>(Entries<K, V>);

/// A set with its only member in place.
pub(crate) type InlineSet<K> = InlineMap<K, ()>;

#[derive(Debug)]
#[expect(clippy::box_collection, reason = "a tree is larger than most single entries, and than a pointer")]
enum Entries<K, V> {
    None,
    One(K, V),
    /// At least one. A tree stays one until it is empty: else a map that often has one and two would often allocate.
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
            Entries::Tree(tree) => tree.get(&key).copied(),
        }
    }

    /// The first entry.
    #[inline]
    pub(crate) fn first(&self) -> Option<(K, V)> {
        match &self.0 {
            Entries::None => None,
            Entries::One(only, value) => Some((*only, *value)),
            // Not by a range: that goes down to both of its ends.
            Entries::Tree(tree) => tree.first_key_value().map(|(key, value)| (*key, *value)),
        }
    }

    /// Adds an entry, in place of the one with this key if there is one.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match &mut self.0 {
            Entries::Tree(tree) => drop(tree.insert(key, value)),
            Entries::One(only, old) if *only != key => {
                self.0 = Entries::Tree(Box::new(BTreeMap::from([(*only, *old), (key, value)])));
            }
            Entries::None | Entries::One(..) => self.0 = Entries::One(key, value),
        }
    }

    pub(crate) fn remove(&mut self, key: K) {
        match &mut self.0 {
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
            Entries::Tree(tree) => Iter::Tree(tree.range(range)),
        }
    }
}

/// Entries in order.
#[derive(Clone, Debug)]
pub(crate) enum Iter<'m, K, V> {
    /// At most one.
    One(Option<(K, V)>),
    /// Those of a tree.
    Tree(Range<'m, K, V>),
}

impl<K: Copy, V: Copy> Iterator for Iter<'_, K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        match self {
            Iter::One(entry) => entry.take(),
            Iter::Tree(entries) => entries.next().map(|(key, value)| (*key, *value)),
        }
    }
}

impl<K: Copy, V: Copy> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<(K, V)> {
        match self {
            Iter::One(entry) => entry.take(),
            Iter::Tree(entries) => entries.next_back().map(|(key, value)| (*key, *value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::InlineMap;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

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
}
