//! Holds that end with their connection.

pub(crate) mod binding;
mod connections;
mod crowd;
mod effects;
mod moved;
mod nowhere;
pub(crate) mod races;
mod roles;
mod together;
