//! What is saved, restored and kept in memory.

mod memory;
mod payloads;
mod payloads_mutated;
mod restarts;
