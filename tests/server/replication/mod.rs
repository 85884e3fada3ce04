//! What replicas and the append-only file receive, and what a replica does with it.

mod agreement;
mod async_load;
mod effects;
mod replicas;
