//! The languages, and how the agent of each is started.

use std::path::PathBuf;
use std::process::Command;
use testbed::file_from;

/// A helper, with the client library that it is used with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    PythonAsyncio,
    NodeRedis,
    Ioredis,
    GoRedis,
    Rueidis,
    Redigo,
    Rust,
    RustTokio,
    Lettuce,
    Jedis,
}

impl Language {
    /// The agent, without its arguments.
    pub(crate) fn agent(self) -> Command {
        let agents = file_from("REDIS_LOCK_AGENTS", "tests/helpers/agents");
        match self {
            Language::Python => with(python(), agents.join("python.py")),
            Language::PythonAsyncio => with(python(), agents.join("python_asyncio.py")),
            Language::NodeRedis | Language::Ioredis => {
                let mut command = with(node(), agents.join("node.mjs"));
                command.arg(if self == Language::Ioredis { "ioredis" } else { "node-redis" });
                command
            }
            Language::GoRedis => go("go-redis"),
            Language::Rueidis => go("rueidis"),
            Language::Redigo => go("redigo"),
            Language::Rust => Command::new(rust_agent()),
            Language::RustTokio => {
                let mut command = Command::new(rust_agent());
                command.arg("tokio");
                command
            }
            Language::Lettuce => java_agent("lettuce"),
            Language::Jedis => java_agent("jedis"),
        }
    }

    /// How many connections all waits by NOTIFY share: the subscription, and one for requests. Go has another one for
    /// those of other waits.
    pub(crate) fn shared_connections(self) -> usize {
        match self {
            Language::GoRedis | Language::Rueidis | Language::Redigo => 3,
            _ => 2,
        }
    }

    /// Why it does not play a scenario that others do.
    pub(crate) fn leaves_out(self, scenario: &str) -> Option<String> {
        let is_for_blocking = scenario.ends_with("::a_wait_outlives_its_connection")
            || scenario.ends_with("::an_early_null_is_no_reason_to_ask_at_once");
        (self == Language::RustTokio && is_for_blocking).then(|| "no task waits by BLOCK".to_owned())
    }

    /// What the machine lacks to run it. tools/install.sh says so as well.
    pub(crate) fn lacks(self) -> Option<String> {
        let (is_there, missing) = match self {
            Language::GoRedis | Language::Rueidis | Language::Redigo => (go_agent().exists(), "go"),
            Language::Lettuce | Language::Jedis => (java_agents().exists(), "java"),
            _ => return None,
        };
        let variable = format!("REDIS_LOCK_{}_MISSING", missing.to_uppercase());
        let why = file_from(&variable, &format!("target/helpers/{missing}-is-missing"));
        (!is_there).then(|| std::fs::read_to_string(why).ok()).flatten()
    }
}

/// The agent for Go, with this client library.
fn go(library: &str) -> Command {
    let mut command = Command::new(go_agent());
    command.arg(library);
    command
}

/// An interpreter and its script.
fn with(interpreter: PathBuf, script: PathBuf) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(script);
    command
}

pub(crate) fn python() -> PathBuf {
    file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python")
}

pub(crate) fn node() -> PathBuf {
    file_from("REDIS_LOCK_NODE", "target/node/bin/node")
}

fn go_agent() -> PathBuf {
    file_from("REDIS_LOCK_GO_AGENT", "target/helpers/go-agent")
}

fn rust_agent() -> PathBuf {
    file_from("REDIS_LOCK_RUST_AGENT", "target/debug/examples/agent")
}

/// What tools/install.sh java-helper has built.
fn java_agents() -> PathBuf {
    file_from("REDIS_LOCK_JAVA_AGENT", "target/java/redislock-agent")
}

/// A virtual machine of its own, small and quick to start.
fn java_agent(library: &str) -> Command {
    let (built, mut command) = (java_agents(), Command::new("java"));
    let path = format!("{}:{}", built.join("classes").display(), built.join("libraries/*").display());
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", &path, "Agent", library]);
    command
}
