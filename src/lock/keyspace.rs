//! Where the locks of a step lie. The core reaches them through this and nothing else.

use super::value::Lock;

/// A key of the current step, by its place among the step's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub u16);

/// The number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Db(pub u32);

/// Where the locks of one step lie: over Redis in the module, over a map in the tests.
pub trait Keyspace {
    /// The key in this slot.
    fn at(&mut self, slot: Slot) -> Place<'_>;
    /// Puts a fresh lock under a key that has no value.
    fn create(&mut self, slot: Slot) -> &mut Lock;

    /// The key's lock, if there is one.
    fn lock(&mut self, slot: Slot) -> Option<&mut Lock> {
        self.at(slot).lock
    }
}

/// A key: where it is and what lies there.
#[derive(Debug)]
pub struct Place<'a> {
    /// Its database.
    pub db: Db,
    /// Its name.
    pub name: &'a [u8],
    /// Its lock; None when it has none.
    pub lock: Option<&'a mut Lock>,
}
