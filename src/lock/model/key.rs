//! What a key is called: by its name, in a database, or by its place in a step.

use crate::lock::collections::bytes::Bytes;

/// A key's name within its database. Short ones live in place.
pub type KeyName = Bytes<22>;

/// A key of the current step, by its place among the step's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyIndex(pub usize);

/// The number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Db(pub u32);
