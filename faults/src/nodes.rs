//! Servers that can be cut off from their replicas: these come through a door in front of the server, clients do not.

use crate::caller::{Answer, Caller};
use redis::Value;
use std::time::Duration;
use testbed::{Proxy, Server, Setup};

/// A server, and its door.
pub struct Node {
    pub server: Server,
    pub door: Proxy,
}

impl Node {
    pub fn start(setup: Setup) -> Node {
        let server = setup.option("repl-diskless-sync-delay", "0").start();
        let door = Proxy::to(server.port());
        Node { server, door }
    }

    /// Follows another from now on, through its door, and says which its own is.
    pub fn follow(&self, primary: &Node) {
        let mut conn = self.server.connect();
        conn.ok(&["CONFIG", "SET", "replica-announce-port", &self.door.port().to_string()]);
        // OK, or that a Sentinel has said so before.
        conn.get::<String>(&["REPLICAOF", "127.0.0.1", &primary.door.port().to_string()]);
    }

    /// Starts it where clients know it, after it was killed.
    pub fn start_again(&mut self) {
        let port = self.server.port();
        self.server.start();
        assert_eq!(self.server.port(), port, "somebody has taken its port");
    }

    /// How many replicas are in step. Sentinels may close any connection of its clients, this one too.
    pub fn replicas(&self) -> usize {
        let (_, answer, _) = Caller::new(self.server.port(), Duration::from_secs(1)).ask("INFO replication");
        let Answer::Value(Value::BulkString(state)) = answer else { return 0 };
        String::from_utf8_lossy(&state).matches("state=online").count()
    }
}
