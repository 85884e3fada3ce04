//! Native locks for Redis and Valkey: owned, re-entrant, leased, fenced, shared or exclusive.
//!
//! This is the module's table: its type, commands, configurations and events. It decides nothing. To follow a command
//! read [`command`] (argv to a typed request, outcome to a reply), [`module`] (what the server must do for us) and
//! [`lock_core`] (what is decided, purely); [`server_api`] is the only part that touches C.

pub mod command;
pub mod module;

use module::{config, eviction, grace, info, open_locks, server_events};
use server_api::alloc::ServerAlloc;
use server_api::{LoadError, Loader, Module, server_module};
use std::ffi::CStr;

#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// The version in MODULE LIST: major, minor and patch of Cargo.toml with two digits each. 1.2.3 is 10203.
const VERSION: i32 = 10_000 * part(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * part(env!("CARGO_PKG_VERSION_MINOR"))
    + part(env!("CARGO_PKG_VERSION_PATCH"));

/// A part of the version. One above 99 would not fit its two digits: then nothing compiles.
const fn part(digits: &str) -> i32 {
    match digits.as_bytes() {
        [one] => (*one - b'0') as i32,
        [ten, one] => 10 * (*ten - b'0') as i32 + (*one - b'0') as i32,
        _ => panic!("a part of the version has more than two digits"),
    }
}

/// The module `lock`.
#[derive(Debug)]
pub struct LockModule;

impl Module for LockModule {
    const NAME: &'static CStr = c"lock";
    const VERSION: i32 = VERSION;

    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
        loader.data_type(&open_locks::LOCK)?;
        command::table::load(loader)?;
        loader.configs(config::TABLE, "lock", config::check)?;
        server_events::load(loader)?;
        loader.info::<info::Section>()?;
        grace::on_start();
        eviction::warn_if_locks_may_go();
        // Last: nothing takes it back if the load fails.
        loader.peers::<server_events::PeerMessages>();
        Ok(())
    }
}

server_module!(LockModule);
