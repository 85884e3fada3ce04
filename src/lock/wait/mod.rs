//! Who waits, in which order, and who waits for whom. Decides nothing about holds.

pub mod deadlock;
pub mod order;
pub mod queue;
pub mod table;
pub mod waiter;
