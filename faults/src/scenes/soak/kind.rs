//! The kinds of clients, and how each is started.

use crate::client::{PROGRAM, RUST};
use std::process::Command;
use testbed::file_from;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rust,
    /// The same. No wait has a connection: the server tells it by NOTIFY when to ask.
    RustTold,
    Program,
    Python,
    PythonTold,
    PythonAsyncio,
    PythonAsyncioTold,
    RedisPy,
    RedisCli,
}

impl Kind {
    /// Those that there are, each as often as it runs.
    pub const ALL: [Kind; 11] = [
        Kind::Rust,
        Kind::RustTold,
        Kind::Program,
        Kind::Program,
        Kind::Python,
        Kind::PythonTold,
        Kind::PythonAsyncio,
        Kind::PythonAsyncioTold,
        Kind::RedisPy,
        Kind::RedisPy,
        Kind::RedisCli,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Rust => "rust",
            Kind::RustTold => "rust by NOTIFY",
            Kind::Program => "redis-lock run",
            Kind::Python => "python",
            Kind::PythonTold => "python by NOTIFY",
            Kind::PythonAsyncio => "python-asyncio",
            Kind::PythonAsyncioTold => "python-asyncio by NOTIFY",
            Kind::RedisPy => "redis-py",
            Kind::RedisCli => "redis-cli",
        }
    }

    /// True if its waits are told by NOTIFY.
    pub fn is_told(self) -> bool {
        matches!(self, Kind::RustTold | Kind::PythonTold | Kind::PythonAsyncioTold)
    }

    pub fn is_helper(self) -> bool {
        self.is_told() || matches!(self, Kind::Rust | Kind::Python | Kind::PythonAsyncio)
    }

    pub fn command(self) -> Command {
        let python = || {
            let mut command = Command::new(file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python"));
            command.arg(file_from("REDIS_LOCK_SOAK_AGENT", "faults/agents/soak.py"));
            command
        };
        let mut command = match self {
            Kind::Rust | Kind::RustTold | Kind::Program => Command::new(std::env::current_exe().expect("runs")),
            _ => python(),
        };
        match self {
            Kind::Rust | Kind::RustTold => command.arg(RUST),
            Kind::Program => command.arg(PROGRAM),
            other => command.arg(other.name().trim_end_matches(" by NOTIFY")),
        };
        command
    }
}
