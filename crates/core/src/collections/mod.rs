//! Containers that know no lock: a timing wheel, an arena, short byte strings, and what they cost in memory.

pub mod arena;
pub mod bytes;
pub mod heap;
pub(crate) mod inline_map;
pub mod wheel;
