//! What operators configure, see and do.

mod commands;
mod config;
mod dashboard;
mod log;
pub(crate) mod tools;
