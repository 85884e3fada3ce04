//! What operators configure, see and do.

mod commands;
mod config;
mod dashboard;
pub(crate) mod tools;
