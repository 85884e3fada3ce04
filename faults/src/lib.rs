//! What the fault programs share. Each program in `bin/` starts real servers, lets clients lock and unlock on them,
//! breaks something meanwhile, and judges the clients' own histories.
//!
//! A program is a number of rounds with one seed; it prints both, then its figures. It fails if it has found a
//! violation, or if it has not seen what it must see to have shown anything.

pub mod audit;
pub mod breaks;
pub mod caller;
pub mod chain;
pub mod claims;
pub mod crowd;
pub mod history;
pub mod judge;
pub mod linear;
pub mod look;
pub mod options;
pub mod places;
pub mod quorum;
pub mod report;
pub mod requester;
pub mod views;
pub mod witness;
pub mod worker;
