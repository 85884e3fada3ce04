//! What a search may cost.

/// How much searches may cost that the server waits for together. A visit of a waiter at a key counts 1, a key that is
/// met first 32.
#[derive(Debug)]
pub(crate) struct Budget(usize);

/// A search was given up: it would have exceeded its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

impl Budget {
    /// Some milliseconds on a processor of today.
    pub(super) const WHOLE: usize = 1 << 17;

    pub(crate) const fn new() -> Budget {
        Budget(Budget::WHOLE)
    }

    /// All that is left of it.
    pub(super) fn take(&mut self) -> Budget {
        Budget(core::mem::take(&mut self.0))
    }

    /// Pays for a piece of a search. False if that was the last one.
    pub(super) fn pay(&mut self, cost: usize) -> bool {
        self.0 = self.0.saturating_sub(cost);
        !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }
}
