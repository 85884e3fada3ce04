//! What the pure core costs by itself, without a server: `cargo bench --bench core`.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod commands;
mod waiting;
#[path = "../world/mod.rs"]
mod world;

use commands::commands;
use criterion::{criterion_group, criterion_main};
use waiting::waiting;

criterion_group!(benches, commands, waiting);
criterion_main!(benches);
