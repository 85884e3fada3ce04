//! The owner of a request, and its note about itself. Opaque bytes, never text.

use crate::collections::bytes::Bytes;
use alloc::boxed::Box;
use core::borrow::Borrow;
use core::fmt;

/// A name that no owner has: a request of this owner is given a generated name. A hold of such an owner could not be
/// released.
pub const NOBODY: &[u8] = b"*";

/// An owner: one thread of control, named by 1 to `lock.max-owner-bytes` opaque bytes.
///
/// The usual UUID (36 bytes) and the server-made 32 characters live in place, without an allocation of their own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(OwnerBytes);

/// With 38 bytes in place it takes 40.
type OwnerBytes = Bytes<38>;

impl Owner {
    /// An owner of these bytes. Length is the parser's concern.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Owner {
        Owner(Bytes::from_slice(bytes))
    }

    /// An owner that is yet to be [`set`](Owner::set).
    #[must_use]
    pub(super) const fn unnamed() -> Owner {
        Owner(Bytes::new())
    }

    /// Makes it the owner of these bytes, where it lies.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.0.set(bytes);
    }

    /// The bytes as the client sent them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes allocated outside of the value itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        OwnerBytes::heap_bytes_of(self.0.len())
    }
}

// Lets maps keyed by Owner be asked with the client's bytes.
impl Borrow<[u8]> for Owner {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0.escape_ascii())
    }
}

/// A holder's note about itself (host, pid, job), at most `lock.max-note-bytes` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub Box<[u8]>);

impl Note {
    /// A note of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Note {
        Note(bytes.into())
    }
}
