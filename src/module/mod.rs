//! What the server must do for the locks. It decides nothing: it opens keys, asks the lock manager, and publishes what
//! came of it.
//!
//! The way of a request: `command/` parses it; [`request`] runs a [`step`]; `command/` writes the reply, or the client
//! waits (`waits`). What happens without a command comes from [`server_events`] and runs in `background`.

pub(crate) mod background;
pub mod blocked_clients;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod data_type;
pub mod eviction;
pub mod grace;
pub mod guarded;
pub mod info;
pub mod lost_holds;
pub mod metrics;
pub mod notify;
pub mod open_locks;
pub(crate) mod outbox;
pub mod replication;
pub mod request;
pub mod resync;
pub mod role;
pub mod scheduler;
pub mod server_events;
pub mod shell;
pub mod step;
pub mod view;
pub(crate) mod waits;
