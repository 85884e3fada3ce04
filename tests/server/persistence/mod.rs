//! What is saved, restored and kept in memory.

mod earlier;
mod memory;
mod payloads;
mod payloads_mutated;
mod restarts;
