//! The tests that each helper has in the manner of its language.

use crate::language::{Language, node, python};
use crate::packages::{has_the_licence, version_in};
use crate::run::{passes, root};
use crate::stage::Play;
use std::process::Command;
use testbed::{Server, module, say_not_run};

#[test]
fn the_tests_of_the_helper_for_python_pass() {
    python_tests("test_[!nq]*.py");
}

#[test]
fn the_quorum_of_the_helper_for_python_passes() {
    python_tests("test_q*.py");
}

#[test]
fn the_helper_for_python_bears_bad_networks_and_servers() {
    python_tests("test_n[!o]*.py");
}

#[test]
fn the_helper_for_python_waits_by_messages() {
    python_tests("test_no*.py");
}

/// Plays the files of this pattern. Together the patterns have each file once. Most tests wait, so the parts run at
/// once.
fn python_tests(files: &str) {
    let mut command = Command::new(python());
    command.args(["-m", "unittest", "discover", "-s", "clients/python/tests", "-p", files]);
    // Five, for the lock over a quorum. It starts nodes of a cluster by itself.
    passes_on_servers(5, command.env("REDIS_LOCK_MODULE", module()));
}

#[test]
fn the_tests_of_the_helper_for_node_pass() {
    let mut command = Command::new(node());
    command.arg("--test");
    let names = ["redis-lock", "hold", "lead", "figures", "migrating", "testing"];
    command.args(names.map(|name| format!("clients/node/tests/{name}.test.mjs")));
    passes_on_servers(1, command.env("REDIS_LOCK_MODULE", module()));
}

/// On a server of its own, of which it changes the settings.
#[test]
fn the_helper_for_node_bears_bad_networks_and_servers() {
    let mut command = Command::new(node());
    passes_on_servers(1, command.args(["--test", "clients/node/tests/network.test.mjs"]));
}

/// On a server of its own, and on the nodes of a cluster, which it starts.
#[test]
fn the_helper_for_node_waits_by_messages() {
    let mut command = Command::new(node());
    command.args(["--test", "clients/node/tests/notify.test.mjs"]).env("REDIS_LOCK_MODULE", module());
    passes_on_servers(1, &mut command);
}

#[test]
fn the_tests_of_the_helper_for_go_pass() {
    Play::scenario(Language::GoRedis, "own::the_tests_of_the_helper_for_go_pass", |_| {
        let mut command = Command::new(root().join("tools/go.sh"));
        // Not from its cache: the server is a new one.
        passes_on_servers(1, command.args(["test", "-count=1", "./clients/go/tests/...", "./clients/bench/go/..."]));
    });
}

/// Maven builds it as well, beside what the agents run from: warnings are errors. The compiler looks for gaps in the
/// pages, so these need not be made for that.
#[test]
fn the_tests_of_the_helper_for_java_pass() {
    Play::scenario(Language::Lettuce, "own::the_tests_of_the_helper_for_java_pass", |_| {
        let mut command = Command::new(root().join("tools/java.sh"));
        let built = root().join("target/java/tested");
        let target = format!("-Dredislock.target={}", built.display());
        // Its tests start servers by themselves.
        passes(command.args([&target, "-Dmaven.javadoc.skip=true", "verify"]).env("REDIS_LOCK_MODULE", module()));
        let version = version_in(&root().join("Cargo.toml"), "version = ");
        for name in
            ["core", "lettuce", "jedis", "test", "micrometer", "shedlock", "spring-integration", "spring-boot-starter"]
        {
            has_the_licence(&built.join(format!("redislock-{name}/redislock-{name}-{version}.jar")));
        }
    });
}

/// The suites run other makers' tests, with a list of what differs and why.
#[test]
fn the_lock_suites_of_other_makers_for_python_pass_but_for_what_is_listed() {
    let name = "own::the_lock_suites_of_other_makers_for_python_pass_but_for_what_is_listed";
    passes_unless_not_run(name, Command::new(python()).arg("tests/helpers/suites/python_suites.py"));
}

#[test]
fn the_lock_suite_of_another_maker_for_node_passes_but_for_what_is_listed() {
    let name = "own::the_lock_suite_of_another_maker_for_node_passes_but_for_what_is_listed";
    let server = Server::new();
    let mut command = Command::new(node());
    command.arg("tests/helpers/suites/node_suites.mjs").env("REDIS_LOCK_PORT", server.port().to_string());
    passes_unless_not_run(name, &mut command);
}

/// Exit code 77 says that the suite cannot be had here, and the last line says why.
fn passes_unless_not_run(name: &str, command: &mut Command) {
    let output = command.env("REDIS_LOCK_MODULE", module()).current_dir(root()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) => {}
        Some(77) => say_not_run(name, said.lines().last().unwrap_or_default()),
        _ => panic!("{command:?} ended with {}:\n{said}", output.status),
    }
}

/// The command succeeds with new servers, which it finds by REDIS_LOCK_PORTS, and the first by REDIS_LOCK_PORT.
fn passes_on_servers(count: usize, command: &mut Command) {
    let servers: Vec<Server> = (0..count).map(|_| Server::new()).collect();
    let ports: Vec<String> = servers.iter().map(|server| server.port().to_string()).collect();
    passes(command.env("REDIS_LOCK_PORT", &ports[0]).env("REDIS_LOCK_PORTS", ports.join(" ")));
}
