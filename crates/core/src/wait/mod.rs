//! What waits, in which order (FIFO), and for what. It reads holds, and changes none.

mod channels;
mod checks;
mod connections;
pub mod deadlock;
mod expiries;
mod invariants;
pub mod jobs;
pub mod order;
mod owners;
pub mod places;
pub mod queue;
pub(crate) mod retired;
pub(crate) mod sweep;
pub mod table;
pub mod timers;
mod told;
pub mod undelivered;
pub mod waiter;
