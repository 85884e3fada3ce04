//! Client libraries written outside this project read each reply as what it is: redis-py, node-redis, redis-rs.

use crate::commands::acl::{PASSWORD, application_lines};
use crate::harness::scripts::run_script;
use redis::{Cmd, Connection, FromRedisValue, RedisResult, Value, cmd, pipe};
use std::collections::HashMap;
use std::path::Path;
use testbed::{Cluster, Server, file_from, text_of};

/// Runs a script of tests/clients against a server of this test's own.
fn run(program: &Path, script: &str) {
    let server = Server::new();
    run_script(&server, program, script, &[]);
    let mut conn = server.connect();
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0, "the script leaves nothing behind");
    assert!(conn.info_number("lock", "lock_granted") > 0, "the script has talked to this server");
}

/// Runs such a script for each line of docs/operations/acl.md that makes an application's user on this server, as that
/// user.
fn run_as_user_of_page(program: &Path, script: &str) {
    let server = Server::new();
    for line in application_lines(&server) {
        server.connect().ok(&line.split(' ').collect::<Vec<_>>());
        run_script(&server, program, script, &["app", PASSWORD]);
    }
    assert_eq!(server.connect().get::<i64>(&["DBSIZE"]), 0, "the script leaves nothing behind");
}

#[test]
fn redis_py_works_as_the_user_of_the_page() {
    // A user made by the page's line cannot log in, or a client sends at the start what it may not.
    run_as_user_of_page(&file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python"), "acl.py");
}

#[test]
fn node_redis_works_as_the_user_of_the_page() {
    // The same; this one names its connections.
    run_as_user_of_page(&file_from("REDIS_LOCK_NODE", "target/node/bin/node"), "acl.mjs");
}

#[test]
fn the_cluster_client_of_redis_py_works_as_the_user_of_the_page() {
    // A cluster client that may not ask for the slots says that there is no cluster.
    let cluster = Cluster::start(3, 0);
    let python = file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python");
    for line in application_lines(&cluster.nodes[0]) {
        for node in &cluster.nodes {
            node.connect().ok(&line.split(' ').collect::<Vec<_>>());
        }
        run_script(&cluster.nodes[0], &python, "acl.py", &["app", PASSWORD, "cluster"]);
    }
    for number in 0..3 {
        assert!(cluster.conn(number).info_number("lock", "lock_granted") > 0, "node {number} was never asked");
    }
}

#[test]
fn redis_py_reads_each_reply_as_what_it_is() {
    // A reply that redis-py reads as another type makes `if lock(...) is None` true or false for ever.
    run(&file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python"), "smoke.py");
}

#[test]
fn node_redis_reads_each_reply_as_what_it_is() {
    // A fence that is no safe integer would be rounded in JavaScript.
    run(&file_from("REDIS_LOCK_NODE", "target/node/bin/node"), "smoke.mjs");
}

/// The reply to these words, as the type that a program asks for.
fn ask<T: FromRedisValue>(conn: &mut Connection, words: &str) -> RedisResult<T> {
    Cmd::new().arg(words.split(' ').collect::<Vec<_>>()).query(conn)
}

fn smoke(mut conn: Connection) {
    let conn = &mut conn;
    let (owner, fence): (String, u64) = ask(conn, "LOCK.ACQUIRE k * PX 30000").unwrap();
    assert_eq!(ask::<Option<(String, u64)>>(conn, "LOCK.ACQUIRE k *").unwrap(), None);
    assert_eq!(ask::<Option<u64>>(conn, "LOCK.ACQUIRE k other BLOCK 20").unwrap(), None);
    assert_eq!(ask::<Option<u64>>(conn, &format!("LOCK.EXTEND k {owner} PX 9000")).unwrap(), Some(fence));
    assert_eq!(ask::<Option<u64>>(conn, "LOCK.EXTEND k other PX 9000").unwrap(), None);
    assert_eq!(ask::<Option<u64>>(conn, &format!("LOCK.RELEASE k {owner}")).unwrap(), Some(0));

    let (owner, fences): (String, Vec<u64>) = ask(conn, "LOCK.MACQUIRE 3 i j k *").unwrap();
    assert!(fences.len() == 3 && fences.is_sorted());
    assert_eq!(ask::<Option<Vec<u64>>>(conn, "LOCK.MACQUIRE 2 free k other READ").unwrap(), None);
    let extended: Vec<Option<u64>> = ask(conn, &format!("LOCK.MEXTEND 3 k free i {owner} PX 5000")).unwrap();
    assert_eq!(extended, [Some(fences[2]), None, Some(fences[0])]);
    let left: Vec<Option<u64>> = ask(conn, &format!("LOCK.MRELEASE 3 i j k {owner}")).unwrap();
    assert_eq!(left, [Some(0); 3]);

    let fence: u64 = ask(conn, "LOCK.ACQUIRE k stuck NOTE host").unwrap();
    let info: HashMap<String, Value> = ask(conn, "LOCK.INFO k").unwrap();
    assert_eq!(redis::from_redis_value::<String>(info["mode"].clone()).unwrap(), "write");
    assert_eq!(ask::<u64>(conn, "LOCK.BREAK k").unwrap(), 1);
    let lost: Vec<HashMap<String, Value>> = ask(conn, "LOCK.LOG").unwrap();
    let text = |field: &str| redis::from_redis_value::<String>(lost[0][field].clone()).unwrap();
    assert_eq!(
        ["reason", "key", "owner", "note", "fence"].map(text),
        ["break", "k", "stuck", "host", &fence.to_string()]
    );

    let owner: Vec<u8> = (0..=255).collect();
    let taken: Option<u64> = cmd("LOCK.ACQUIRE").arg(&b"k\0\xff"[..]).arg(&owner).query(conn).unwrap();
    assert!(taken.is_some());
    let left: Option<u64> = cmd("LOCK.RELEASE").arg(&b"k\0\xff"[..]).arg(&owner).query(conn).unwrap();
    assert_eq!(left, Some(0));

    for mut commands in [pipe(), pipe().atomic().clone()] {
        commands.cmd("LOCK.ACQUIRE").arg("k").arg("a").cmd("LOCK.ACQUIRE").arg("k").arg("b");
        commands.cmd("SET").arg("written").arg("x").ignore().cmd("LOCK.RELEASE").arg("k").arg("a");
        let (a, b, left): (Option<u64>, Option<u64>, Option<u64>) = commands.query(conn).unwrap();
        assert!(a.is_some_and(|next| next > fence));
        assert_eq!((b, left), (None, Some(0)));
    }

    let error = ask::<Value>(conn, "LOCK.ACQUIRE written a").unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
    let error = ask::<Value>(conn, "LOCK.EXTEND k a PX -5").unwrap_err();
    assert_eq!(text_of(&error), "ERR PX must be a whole number from 1 to 86400000");
    assert_eq!(ask::<i64>(conn, "DEL written").unwrap(), 1);
    assert_eq!(ask::<i64>(conn, "DBSIZE").unwrap(), 0);
}

#[test]
fn redis_rs_reads_each_reply_as_what_it_is() {
    // Null must be None, and not an empty vector or an error; in RESP3 null and maps are others.
    let server = Server::new();
    smoke(server.connect().0);
    server.connect().ok(&["LOCK.LOG", "RESET"]);
    smoke(server.connect_resp3().0);
}
