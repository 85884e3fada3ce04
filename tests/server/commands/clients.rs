//! Client libraries written outside this project, each as its user would write it: redis-py, node-redis, redis-rs.

use crate::commands::acl::{PASSWORD, application_lines};
use crate::harness::scripts::run_script;
use redis::{Connection, RedisResult, Value, cmd, pipe};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::thread;
use testbed::{Cluster, Server, file_from, text_of, wait_for};

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

/// A lock as a value: held from [`Guard::take`] until it is dropped.
struct Guard<'c> {
    conn: &'c RefCell<Connection>,
    key: String,
    owner: String,
    fence: u64,
}

impl<'c> Guard<'c> {
    /// None when another owner holds it. The server makes the owner.
    fn take(conn: &'c RefCell<Connection>, key: &str, lease_ms: u64) -> RedisResult<Option<Guard<'c>>> {
        let granted: Option<(String, u64)> =
            cmd("LOCK.ACQUIRE").arg(key).arg("*").arg("PX").arg(lease_ms).query(&mut *conn.borrow_mut())?;
        Ok(granted.map(|(owner, fence)| Guard { conn, key: key.to_owned(), owner, fence }))
    }

    /// True while the lease was extended in time; false when the lock was lost.
    fn extend(&self, lease_ms: u64) -> RedisResult<bool> {
        let mut command = cmd("LOCK.EXTEND");
        command.arg(&self.key).arg(&self.owner).arg("PX").arg(lease_ms).arg("FENCE").arg(self.fence);
        let fence: Option<u64> = command.query(&mut *self.conn.borrow_mut())?;
        Ok(fence.is_some())
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // If the server cannot be reached, the lease ends the hold.
        let mut command = cmd("LOCK.RELEASE");
        command.arg(&self.key).arg(&self.owner).arg("FENCE").arg(self.fence);
        let _: RedisResult<Option<u64>> = command.query(&mut *self.conn.borrow_mut());
    }
}

/// Works under a lock, if it is free.
fn with_lock<R>(conn: &RefCell<Connection>, key: &str, work: impl FnOnce(u64) -> R) -> RedisResult<Option<R>> {
    let Some(guard) = Guard::take(conn, key, 30_000)? else { return Ok(None) };
    Ok(Some(work(guard.fence)))
}

/// The protected resource: takes a write only from the newest holder it has met.
#[derive(Default)]
struct Resource {
    fence_seen: u64,
    text: String,
}

impl Resource {
    fn write(&mut self, fence: u64, text: &str) -> bool {
        let accepted = fence >= self.fence_seen;
        if accepted {
            self.fence_seen = fence;
            self.text = text.to_owned();
        }
        accepted
    }
}

fn smoke(conn: Connection, other: Connection, mut worker: Connection) {
    let (conn, other) = (RefCell::new(conn), RefCell::new(other));
    let mut resource = Resource::default();

    // A guard holds the lock for as long as it lives.
    let first = Guard::take(&conn, "k", 30_000).unwrap().expect("free");
    assert!(Guard::take(&other, "k", 30_000).unwrap().is_none());
    assert!(with_lock(&other, "k", |_| ()).unwrap().is_none());
    assert!(first.extend(60_000).unwrap());
    assert!(resource.write(first.fence, "first"));
    let late = first.fence;
    drop(first);

    // The next one has a higher fence, by which the resource tells it from a late holder.
    let written = with_lock(&other, "k", |fence| resource.write(fence, "second")).unwrap();
    assert_eq!(written, Some(true));
    assert!(!resource.write(late, "late"));
    assert_eq!(resource.text, "second");

    // A lock that was lost is noticed, and its guard does not release the next holder's.
    let lost = Guard::take(&conn, "k", 30_000).unwrap().expect("free");
    let _: i64 = cmd("DEL").arg("k").query(&mut *other.borrow_mut()).unwrap();
    let next = Guard::take(&other, "k", 30_000).unwrap().expect("free");
    assert!(!lost.extend(30_000).unwrap());
    drop(lost);
    assert!(next.extend(30_000).unwrap());
    drop(next);

    // The waiter has it when the guard is dropped.
    let held = Guard::take(&conn, "k", 30_000).unwrap().expect("free");
    let fence = held.fence;
    let mut borrowed = other.borrow_mut();
    let patient = &mut *borrowed;
    let wait = |conn: &mut Connection, ms: u64| {
        cmd("LOCK.ACQUIRE").arg("k").arg("patient").arg("BLOCK").arg(ms).query::<Option<u64>>(conn)
    };
    assert_eq!(wait(patient, 20).unwrap(), None);
    let waited = thread::scope(|scope| {
        let waits = scope.spawn(|| wait(patient, 10_000));
        wait_for("somebody to wait", || {
            let info: String = cmd("INFO").arg("lock").query(&mut *conn.borrow_mut()).unwrap();
            info.contains("lock_waiters:1")
        });
        drop(held);
        waits.join().unwrap()
    });
    assert!(waited.unwrap().is_some_and(|next| next > fence));
    let _: i64 = cmd("LOCK.RELEASE").arg("k").arg("patient").query(patient).unwrap();
    drop(borrowed);

    let mut conn = conn.into_inner();
    // A hold that ends with the connection that it was taken over, however long its lease.
    let mut command = cmd("LOCK.ACQUIRE");
    command.arg("k").arg("worker").arg("EX").arg(3600).arg("SESSION").arg(0);
    let fence: Option<u64> = command.query(&mut worker).unwrap();
    assert_eq!(cmd("LOCK.ACQUIRE").arg("k").arg("next").query::<Option<u64>>(&mut conn).unwrap(), None);
    drop(worker);
    let mut command = cmd("LOCK.ACQUIRE");
    let next: Option<u64> = command.arg("k").arg("next").arg("BLOCK").arg(10_000).query(&mut conn).unwrap();
    assert!(fence.is_some() && next > fence);
    assert_eq!(cmd("LOCK.RELEASE").arg("k").arg("next").query::<u64>(&mut conn).unwrap(), 0);

    // Several locks in one step: all or none.
    let many = |name: &str, keys: &[&str]| {
        let mut command = cmd(name);
        command.arg(keys.len()).arg(keys);
        command
    };
    let granted: Option<(String, Vec<u64>)> =
        many("LOCK.MACQUIRE", &["i", "j", "k"]).arg("*").query(&mut conn).unwrap();
    let (owner, fences) = granted.expect("free");
    assert!(fences.len() == 3 && fences.is_sorted());
    let refused: Option<Vec<u64>> =
        many("LOCK.MACQUIRE", &["free", "k"]).arg("b").arg("READ").query(&mut conn).unwrap();
    assert_eq!(refused, None);
    let mut command = many("LOCK.MEXTEND", &["k", "free", "i"]);
    let extended: Vec<Option<u64>> = command.arg(&owner).arg("PX").arg(5000).query(&mut conn).unwrap();
    assert_eq!(extended, [Some(fences[2]), None, Some(fences[0])]);
    let left: Vec<Option<u64>> = many("LOCK.MRELEASE", &["i", "j", "k"]).arg(&owner).query(&mut conn).unwrap();
    assert_eq!(left, [Some(0); 3]);

    // An operator takes a lock away, and sees later which client lost what.
    let _: Value = cmd("LOCK.LOG").arg("RESET").query(&mut conn).unwrap();
    let fence: u64 = cmd("LOCK.ACQUIRE").arg("k").arg("stuck").arg("NOTE").arg("host 3").query(&mut conn).unwrap();
    assert_eq!(cmd("LOCK.BREAK").arg("k").query::<u64>(&mut conn).unwrap(), 1);
    let mut command = cmd("LOCK.EXTEND");
    let told: Option<u64> = command.arg("k").arg("stuck").arg("PX").arg(1000).query(&mut conn).unwrap();
    assert_eq!(told, None);
    let lost: Vec<HashMap<String, Value>> = cmd("LOCK.LOG").query(&mut conn).unwrap();
    assert_eq!(lost.len(), 1);
    let text = |field: &str| redis::from_redis_value::<String>(lost[0][field].clone()).unwrap();
    assert_eq!(
        ["reason", "key", "owner", "note", "fence"].map(text),
        ["break", "k", "stuck", "host 3", &fence.to_string()]
    );

    // Bytes, notes, counts.
    let owner: Vec<u8> = (0..=255).collect();
    let acquire = |owner: &[u8]| {
        let mut command = cmd("LOCK.RW");
        command.arg(&b"k\0\xff"[..]).arg(owner).arg("READ").arg("EX").arg(20).arg("NOTE").arg(&b"\xff"[..]);
        command
    };
    let fence: Option<u64> = acquire(&owner).query(&mut conn).unwrap();
    assert_eq!(acquire(&owner).query::<Option<u64>>(&mut conn).unwrap(), fence);
    assert!(acquire(b"another").query::<Option<u64>>(&mut conn).unwrap() > fence);
    let released = |owner: &[u8], conn: &mut Connection| -> Option<u64> {
        cmd("LOCK.RELEASE").arg(&b"k\0\xff"[..]).arg(owner).arg("READ").arg("ALL").query(conn).unwrap()
    };
    assert_eq!(released(&owner, &mut conn), Some(0));
    assert_eq!(released(&owner, &mut conn), None);
    assert_eq!(released(b"another", &mut conn), Some(0));

    // A pipeline, and a transaction.
    for mut commands in [pipe(), pipe().atomic().clone()] {
        commands.cmd("LOCK.ACQUIRE").arg("k").arg("a").cmd("LOCK.ACQUIRE").arg("k").arg("b");
        commands.cmd("SET").arg("written").arg("x").ignore().cmd("LOCK.RELEASE").arg("k").arg("a");
        let (a, b, left): (Option<u64>, Option<u64>, Option<u64>) = commands.query(&mut conn).unwrap();
        assert!(a.is_some_and(|fence| fence > late));
        assert_eq!((b, left), (None, Some(0)));
    }

    // Errors have a code.
    let error = cmd("LOCK.ACQUIRE").arg("written").arg("a").query::<Value>(&mut conn).unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
    let error = cmd("LOCK.ACQUIRE").arg("k").arg(vec![b'x'; 257]).query::<Value>(&mut conn).unwrap_err();
    assert_eq!(text_of(&error), "LIMIT owner is longer than lock.max-owner-bytes (256)");
    let error = cmd("LOCK.EXTEND").arg("k").arg("a").arg("PX").arg(-5).query::<Value>(&mut conn).unwrap_err();
    assert_eq!(text_of(&error), "ERR PX must be a whole number from 1 to 86400000");
    assert_eq!(cmd("DEL").arg("written").query::<i64>(&mut conn).unwrap(), 1);
    assert_eq!(cmd("DBSIZE").query::<i64>(&mut conn).unwrap(), 0);
}

#[test]
fn redis_rs_works_as_its_user_would_write_it_in_resp2() {
    // Null must be None, and not an empty vector or an error.
    let server = Server::new();
    smoke(server.connect().0, server.connect().0, server.connect().0);
}

#[test]
fn redis_rs_works_as_its_user_would_write_it_in_resp3() {
    // The same replies in the other protocol, where null and maps are others.
    let server = Server::new();
    smoke(server.connect_resp3().0, server.connect_resp3().0, server.connect_resp3().0);
    // INFO is a map there: by name, in whatever order.
    let mut conn = server.connect_resp3();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("granted");
    let info = conn.call(&["LOCK.INFO", "k"]).unwrap();
    assert!(matches!(&info, Value::Map(pairs) if pairs.len() >= 4), "{info:?}");
    let info: HashMap<String, Value> = redis::from_redis_value(info).unwrap();
    assert_eq!(redis::from_redis_value::<String>(info["mode"].clone()).unwrap(), "write");
}
