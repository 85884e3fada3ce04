//! Several nodes, slots, and locks that move with them.

mod many;
mod sessions;
mod slots;
mod waiting;
