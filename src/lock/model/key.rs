//! What a key is called: by its name, in a database, or by its place in a step.

use crate::lock::collections::bytes::Bytes;

/// A key's name within its database. Short ones live in place.
pub type KeyName = Bytes<22>;

impl KeyName {
    /// Returns what a budget counts for a key of this name that is opened or read: 1, and 1 more for each 256 bytes.
    ///
    /// The server copies and hashes the name each time, which takes as long for so many bytes as all else that it does.
    #[must_use]
    pub fn cost(&self) -> usize {
        1 + self.len() / 256
    }
}

/// A key of the current step, by its place among the step's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyIndex(pub u16);

/// The number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Db(pub u32);

#[cfg(test)]
mod tests {
    use super::KeyName;

    #[test]
    fn a_long_name_costs_a_budget_more_than_a_short_one() {
        let cost = |len| KeyName::from_slice(&[0; 70_000][..len]).cost();
        assert_eq!([0, 16, 255, 256, 512, 65_536].map(cost), [1, 1, 1, 2, 3, 257]);
    }
}
