//! What only one language has: a fork, and the tests that each helper has in the manner of its language.

use crate::language::{Language, node, python};
use crate::run::{passes, root};
use crate::stage::{Play, Stage, holders};
use serde_json::json;
use std::process::Command;
use testbed::Server;

/// A child of a fork is another process: it neither releases nor renews its parent's lock.
#[test]
fn a_fork_of_python_has_lost_the_lock_of_its_parent() {
    Language::Python.play("own::a_fork_of_python_has_lost_the_lock_of_its_parent", |play: Play| {
        let mut stage = play.stage();
        let Stage { agent, conn, .. } = &mut stage;
        agent.open("a", json!({"keys": ["k"], "lease": 1.0}));
        let fence = agent.acquired("a");
        let owner = agent.owner("a");
        assert_eq!(agent.ask(json!({"do": "fork", "lock": "a"}))["lost_in_child"], true);
        assert_eq!((conn.lock_info("k").unwrap().fence, holders(conn, "k")), (fence, vec![owner]));
        assert!(!agent.is_lost("a"));
        agent.released("a");
    });
}

#[test]
fn the_tests_of_the_helper_for_python_pass() {
    let mut command = Command::new(python());
    passes_on_a_server(command.args(["-m", "unittest", "discover", "-s", "clients/python/tests"]));
}

#[test]
fn the_tests_of_the_helper_for_node_pass() {
    let mut command = Command::new(node());
    passes_on_a_server(command.args(["--test", "clients/node/tests/redis-lock.test.mjs"]));
}

#[test]
fn the_tests_of_the_helper_for_go_pass() {
    Language::Go.play("own::the_tests_of_the_helper_for_go_pass", |_| {
        let mut command = Command::new(root().join("tools/go.sh"));
        // Not from its cache: the server is a new one.
        passes_on_a_server(command.args(["test", "-count=1", "./clients/go/..."]));
    });
}

/// The command succeeds with a new server, which it finds by REDIS_LOCK_PORT.
fn passes_on_a_server(command: &mut Command) {
    let server = Server::new();
    passes(command.env("REDIS_LOCK_PORT", server.port().to_string()));
}
