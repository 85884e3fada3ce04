//! Several nodes, slots, and locks that move with them.

pub(crate) mod many;
mod sessions;
mod slots;
mod waiting;
