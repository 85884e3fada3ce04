//! The keyed hash by which owners and long names are told apart and ordered.
//!
//! The shell hands it in, with a key that is drawn at the start: the core has no chance of its own. No client can tell
//! which bytes collide. Equal hashes prove nothing: what has them is compared by its bytes.

/// A function that hashes bytes under a key that no client knows.
pub type KeyedHash = fn(&[u8]) -> u64;
