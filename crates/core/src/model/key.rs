//! What a key is called: by its name, in a database, or by its place in a step.

use super::hashing::KeyedHash;
use crate::collections::bytes::Bytes;
use crate::collections::heap::allocated;
use alloc::rc::Rc;
use core::cmp::Ordering;
use core::fmt;
use core::ops::Deref;
use smallvec::SmallVec;

/// A key's name within its database, as it is kept where no names are compared. Short ones live in place.
pub type PlainName = Bytes<22>;

/// A key's name within its database, to be looked up and compared.
///
/// Short ones live in place. Long ones are shared, not copied, and have a keyed hash beside them: names that are alike
/// but for their ends differ in that.
#[derive(Clone)]
pub struct KeyName(Repr);

#[derive(Clone)]
enum Repr {
    Short(u8, [u8; KeyName::SHORT]),
    /// A part of the hash, and the bytes.
    Long(u32, Rc<[u8]>),
}

impl KeyName {
    /// The length up to which a name lives in place.
    const SHORT: usize = 22;

    /// Bytes that one allocation of a long name has beside the name: two counts of references.
    const COUNTS: usize = 2 * size_of::<usize>();

    /// No bytes: the first of all names.
    pub(crate) const EMPTY: KeyName = KeyName(Repr::Short(0, [0; KeyName::SHORT]));

    /// A name of these bytes. They are hashed if they are many.
    #[must_use]
    pub fn new(bytes: &[u8], hash: KeyedHash) -> KeyName {
        if bytes.len() > KeyName::SHORT {
            return KeyName(Repr::Long(hash(bytes) as u32, bytes.into()));
        }
        let mut short = [0; KeyName::SHORT];
        short[..bytes.len()].copy_from_slice(bytes);
        KeyName(Repr::Short(bytes.len() as u8, short))
    }

    /// True if to make it once more takes longer than to keep it.
    #[must_use]
    pub fn is_long(&self) -> bool {
        matches!(self.0, Repr::Long(..))
    }

    /// Returns what a budget counts for a key of this name that is opened or read: 1, and 1 more for each 256 bytes.
    ///
    /// The server copies and hashes the name each time, which takes as long for so many bytes as all else that it does.
    #[must_use]
    pub fn cost(&self) -> usize {
        1 + self.len() / 256
    }

    /// Bytes of memory that the first of the names that share these bytes costs outside of the value itself.
    #[must_use]
    pub(crate) fn heap_bytes(&self) -> usize {
        if self.is_long() { allocated(KeyName::COUNTS + self.len()) } else { 0 }
    }
}

impl Deref for KeyName {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Short(len, short) => &short[..usize::from(*len)],
            Repr::Long(_, long) => long,
        }
    }
}

impl PartialEq for KeyName {
    fn eq(&self, other: &KeyName) -> bool {
        match (&self.0, &other.0) {
            (Repr::Short(len, short), Repr::Short(other_len, other)) => len == other_len && short == other,
            (Repr::Long(hash, long), Repr::Long(other_hash, other)) => {
                hash == other_hash && (Rc::ptr_eq(long, other) || long == other)
            }
            _ => false,
        }
    }
}

impl Eq for KeyName {}

// Short names in the order of their bytes. Behind them long ones, in the order of their hashes.
impl Ord for KeyName {
    fn cmp(&self, other: &KeyName) -> Ordering {
        match (&self.0, &other.0) {
            (Repr::Short(..), Repr::Short(..)) => (**self).cmp(&**other),
            (Repr::Short(..), Repr::Long(..)) => Ordering::Less,
            (Repr::Long(..), Repr::Short(..)) => Ordering::Greater,
            (Repr::Long(hash, long), Repr::Long(other_hash, other)) => match hash.cmp(other_hash) {
                Ordering::Equal if Rc::ptr_eq(long, other) => Ordering::Equal,
                Ordering::Equal => long.cmp(other),
                order => order,
            },
        }
    }
}

impl PartialOrd for KeyName {
    fn partial_cmp(&self, other: &KeyName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

// As small as a name that is not shared.
const _: () = assert!(size_of::<KeyName>() == size_of::<PlainName>());

/// Some names, each found by few comparisons.
#[derive(Debug)]
pub(crate) struct NameSet(SmallVec<[KeyName; 1]>);

impl FromIterator<KeyName> for NameSet {
    fn from_iter<I: IntoIterator<Item = KeyName>>(names: I) -> NameSet {
        let mut names: SmallVec<[KeyName; 1]> = names.into_iter().collect();
        names.sort_unstable();
        NameSet(names)
    }
}

impl NameSet {
    /// True if this name is among them.
    pub(crate) fn contains(&self, name: &KeyName) -> bool {
        match &self.0[..] {
            [only] => only == name,
            all => all.binary_search(name).is_ok(),
        }
    }
}

/// A key of the current step, by its place among the step's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyIndex(pub usize);

/// The number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Db(pub u32);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_long_name_costs_a_budget_more_than_a_short_one() {
        let cost = |len| KeyName::new(&[0; 70_000][..len], |_| 0).cost();
        assert_eq!([0, 16, 255, 256, 512, 65_536].map(cost), [1, 1, 1, 2, 3, 257]);
    }

    #[test]
    fn names_of_any_length_are_equal_as_their_bytes_are_and_in_one_order_whatever_the_hash() {
        // What could go wrong: two names of one hash are taken for one, or are in no order.
        let all: Vec<Vec<u8>> = (0..60).map(|len| (0..len / 2).map(|at| len % 2 + at).collect()).collect();
        let hashes: [KeyedHash; 3] = [|_| 7, |bytes| bytes.len() as u64 / 8, |bytes| !u64::from(bytes[0])];
        for hash in hashes {
            let names: Vec<KeyName> = all.iter().map(|bytes| KeyName::new(bytes, hash)).collect();
            for (one, bytes) in names.iter().zip(&all) {
                assert_eq!(**one, **bytes);
                for (other, other_bytes) in names.iter().zip(&all) {
                    assert_eq!(one == other, bytes == other_bytes, "{one:?} and {other:?}");
                    assert_eq!(one.cmp(other) == Ordering::Equal, one == other);
                    assert_eq!(one.cmp(other), other.cmp(one).reverse());
                    for third in &names {
                        assert!(!(one < other && other < third) || one < third, "{one:?}, {other:?}, {third:?}");
                    }
                }
                assert!(*one == KeyName::new(bytes, hash) && *one == one.clone());
            }
        }
    }

    #[test]
    fn a_long_name_is_shared_and_the_hash_comes_before_the_bytes() {
        // What could go wrong: ten thousand names of 50 KB that differ at their ends are copied and compared whole.
        let long = KeyName::new(&[b'n'; 50_000], |_| 3);
        assert_eq!(long.clone().as_ptr(), long.as_ptr());
        let mut later = [b'n'; 50_000];
        later[49_999] = b'a';
        let later = KeyName::new(&later, |_| 4);
        assert!(long < later, "by their bytes it would be the other way round");
    }
}
