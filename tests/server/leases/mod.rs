//! Leases on the clock.

mod freeze;
mod in_time;
mod index;
mod mass;
mod notices;
mod units;
