//! The kinds of clients, and how each is started.

use std::process::Command;
use testbed::file_from;

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The crate redis-lock-client.
    Rust,
    /// `redis-lock run`.
    Program,
    Python,
    PythonAsyncio,
    RedisPy,
    RedisCli,
}

impl Kind {
    /// Those that there are, each as often as it runs.
    pub const ALL: [Kind; 11] = [
        Kind::Rust,
        Kind::Rust,
        Kind::Program,
        Kind::Program,
        Kind::Python,
        Kind::Python,
        Kind::PythonAsyncio,
        Kind::PythonAsyncio,
        Kind::RedisPy,
        Kind::RedisPy,
        Kind::RedisCli,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Rust => "rust",
            Kind::Program => "redis-lock run",
            Kind::Python => "python",
            Kind::PythonAsyncio => "python-asyncio",
            Kind::RedisPy => "redis-py",
            Kind::RedisCli => "redis-cli",
        }
    }

    /// The command that starts one.
    pub fn command(self) -> Command {
        let python = || {
            let mut command = Command::new(file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python"));
            command.arg(file_from("REDIS_LOCK_SOAK_AGENT", "faults/agents/soak.py"));
            command
        };
        let mut command = match self {
            Kind::Rust | Kind::Program => Command::new(std::env::current_exe().expect("runs")),
            _ => python(),
        };
        match self {
            Kind::Rust => command.arg(RUST),
            Kind::Program => command.arg(PROGRAM),
            other => command.arg(other.name()),
        };
        command
    }
}

/// The first argument of this program when it is a client itself.
pub const RUST: &str = "client-of-soak";
/// The same where it starts `redis-lock run` over and over.
pub const PROGRAM: &str = "starter-of-soak";
