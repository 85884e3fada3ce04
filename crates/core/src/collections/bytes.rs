//! Strings of bytes that are short as a rule: names of keys and owners.

use super::heap::allocated;
use alloc::boxed::Box;
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::hash::{Hash, Hasher};
use core::ops::Deref;

/// Bytes that cannot be changed: up to `N` of them, at most 255, in place, more in an allocation of their own.
///
/// With its length and the mark of which of both it is it takes two bytes more than `N`, and 24 at least.
#[derive(Clone)]
pub struct Bytes<const N: usize>(Repr<N>);

#[derive(Clone)]
enum Repr<const N: usize> {
    Short(u8, [u8; N]),
    Long(Box<[u8]>),
}

impl<const N: usize> Bytes<N> {
    /// No bytes.
    #[must_use]
    pub const fn new() -> Bytes<N> {
        Bytes(Repr::Short(0, [0; N]))
    }

    /// A copy of these.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Bytes<N> {
        let mut made = Bytes::new();
        made.set(bytes);
        made
    }

    /// Makes it a copy of these, where it lies: to move what was just written in other pieces stalls a processor.
    #[inline(never)]
    pub fn set(&mut self, bytes: &[u8]) {
        const { assert!(N <= u8::MAX as usize) };
        if bytes.len() > N {
            self.0 = Repr::Long(bytes.into());
            return;
        }
        self.0 = Repr::Short(bytes.len() as u8, [0; N]);
        if let Repr::Short(_, place) = &mut self.0 {
            place[..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Bytes of memory that so many cost outside of the value itself.
    #[must_use]
    pub fn heap_bytes_of(len: usize) -> usize {
        if len > N { allocated(len) } else { 0 }
    }
}

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Bytes<N> {
        Bytes::new()
    }
}

impl<const N: usize> Deref for Bytes<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Short(len, short) => &short[..usize::from(*len)],
            Repr::Long(long) => long,
        }
    }
}

// Equal, ordered and hashed as a slice, so that maps can be asked with one.
impl<const N: usize> Borrow<[u8]> for Bytes<N> {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> PartialEq for Bytes<N> {
    fn eq(&self, other: &Bytes<N>) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for Bytes<N> {}

impl<const N: usize> PartialOrd for Bytes<N> {
    fn partial_cmp(&self, other: &Bytes<N>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for Bytes<N> {
    fn cmp(&self, other: &Bytes<N>) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl<const N: usize> Hash for Bytes<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<const N: usize> core::fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn bytes_of_any_length_are_kept_and_compared_as_they_are() {
        let all: Vec<Vec<u8>> = (0..40).map(|len| (0..len).map(|at| 250 - at * 3).collect()).collect();
        for one in &all {
            let kept = Bytes::<22>::from_slice(one);
            assert_eq!(*kept, **one);
            assert_eq!(*kept.clone(), **one);
            for other in &all {
                let other_kept = Bytes::<22>::from_slice(other);
                assert_eq!(kept.cmp(&other_kept), one.cmp(other), "{one:?} and {other:?}");
                assert_eq!(kept == other_kept, one == other);
            }
        }
    }

    #[test]
    fn what_is_cut_off_a_string_leaves_no_difference() {
        // A zero that ends a string is part of it, unlike those that fill it up.
        assert_ne!(Bytes::<22>::from_slice(b"a"), Bytes::from_slice(b"a\0"));
        assert!(Bytes::<22>::from_slice(b"a") < Bytes::from_slice(b"a\0"));
    }
}
