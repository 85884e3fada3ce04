//! The proof that `src/lock` is pure: it compiles without the standard library. So there is no clock, no randomness, no
//! thread, no file and no server that it could reach.

#![no_std]

extern crate alloc;

#[path = "../../../../src/lock/mod.rs"]
pub mod lock;
