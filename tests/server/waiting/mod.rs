//! Clients that wait for a lock, and how each wait ends.

mod announced;
mod clients;
mod condemned;
mod deadlock;
pub(crate) mod effects;
mod events;
mod expiry;
mod fifo;
mod info;
mod kinds;
mod nowhere;
mod pieces;
mod races;
mod retry;
pub(crate) mod roles;
mod soak;
