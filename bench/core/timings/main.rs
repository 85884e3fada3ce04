//! What the pure core costs by itself, without a server: `cargo bench --bench core`.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod commands;
mod parts;
mod waiting;

use commands::commands;
use criterion::{criterion_group, criterion_main};
use parts::parts;
use waiting::waiting;

criterion_group!(benches, commands, parts, waiting);
criterion_main!(benches);
