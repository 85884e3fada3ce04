//! LOCK.GUARD in a cluster: the lock and all keys of the command lie in one slot, and on this node.

use crate::cluster::many::tag_of;
use crate::harness::connection::{Connection, Reply};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use testbed::{Client, Cluster, PATIENCE, Server, text_of, wait_for};

/// The first word of what a guarded command is answered.
fn said(conn: &mut Client, asking: bool, guard: &[&str], command: &[&str]) -> String {
    if asking {
        conn.ok(&["ASKING"]);
    }
    match conn.call(&[&["LOCK.GUARD"], guard, command].concat()) {
        Ok(redis::Value::Array(_)) => "served".to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => text_of(&error).split(' ').next().unwrap().to_owned(),
    }
}

#[test]
fn keys_of_another_slot_than_the_locks_are_refused() {
    // What could go wrong: lock and data are in two streams. After a failover of one of the two nodes, a write of a
    // former holder comes after one of the next.
    let cluster = Cluster::start(2, 0);
    let ((here, _), (there, slot)) = (tag_of(&cluster, 0), tag_of(&cluster, 1));
    let mut conn = cluster.conn(0);
    let lock = format!("{here}lock");
    let fence = conn.int(&["LOCK.ACQUIRE", &lock, "a", "PX", "600000"]).unwrap().to_string();
    let guard = [lock.as_str(), "a", &fence];
    // Another slot of this node.
    let (same, other) = (format!("{here}d"), format!("{here}-"));
    let other_slot = conn.int(&["CLUSTER", "KEYSLOT", "o1"]).unwrap();
    assert_ne!(conn.int(&["CLUSTER", "KEYSLOT", &lock]).unwrap(), other_slot);
    let elsewhere = format!("{there}d");
    for stranger in ["o1", &elsewhere] {
        for command in [
            &["SET", stranger, "x"][..],
            &["MSET", &same, "x", stranger, "x"],
            &["MSET", stranger, "x", &same, "x"],
            &["SORT", &same, "STORE", stranger],
            &["ZUNIONSTORE", &same, "2", &other, stranger],
            &["XREAD", "STREAMS", &same, stranger, "0", "0"],
            &["LOCK.MACQUIRE", "2", &same, stranger, "a"],
            &["DEL", stranger],
        ] {
            assert_eq!(said(&mut conn, false, &guard, command), "CROSSSLOT", "{command:?}");
            // Also of an owner that holds nothing. Redis 7.0 knows the first key alone of a command of a module, which
            // refuses the others when it is run.
            let of_nobody = said(&mut conn, false, &[&lock, "b", "5"], command);
            assert!(of_nobody == "CROSSSLOT" || of_nobody == "nil" && command[0].starts_with("LOCK."), "{command:?}");
        }
        // From a script and a transaction.
        let script = "return redis.pcall('LOCK.GUARD', KEYS[1], 'a', ARGV[1], 'SET', ARGV[2], 'x')";
        assert!(conn.error(&["EVAL", script, "1", &lock, &fence, stranger]).contains("CROSSSLOT"));
        conn.ok(&["MULTI"]);
        assert_eq!(conn.get::<String>(&["LOCK.GUARD", &lock, "a", &fence, "SET", stranger, "x"]), "QUEUED");
        assert!(conn.error(&["EXEC"]).contains("hash to the same slot"));
    }
    // Nothing of it was done, and what is right is done: also after refusals, which some servers remember.
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 1);
    for command in [
        &["SET", &same, "1"][..],
        &["MSET", &same, "2", &other.replace('-', "e"), "2"],
        &["PING"],
        &["LOCK.MACQUIRE", "2", &format!("{here}j"), &format!("{here}k"), "a"],
    ] {
        assert_eq!(said(&mut conn, false, &guard, command), "served", "{command:?}");
    }
    assert!(
        conn.error(&["LOCK.GUARD", &elsewhere, "a", "5", "SET", &elsewhere, "x"])
            .starts_with(&format!("MOVED {slot} "))
    );
    // An error of the command is the command's.
    assert_eq!(said(&mut conn, false, &guard, &["NOSUCH", "o1"]), "ERR");
    assert_eq!(said(&mut conn, false, &guard, &["MSET", &same]), "ERR");
}

#[test]
fn while_its_slot_moves_a_guard_runs_only_where_lock_and_data_are_together() {
    // What could go wrong: the data have not come yet, and the command sees a key that does not exist.
    let cluster = Cluster::start(2, 0);
    let (tag, slot) = tag_of(&cluster, 0);
    let [lock, d, e, nowhere] = ["lock", "d", "e", "nowhere"].map(|name| format!("{tag}{name}"));
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    let fence = old.int(&["LOCK.ACQUIRE", &lock, "a", "PX", "600000"]).unwrap().to_string();
    let guard = [lock.as_str(), "a", &fence];
    old.ok(&["MSET", &d, "1", &e, "1"]);
    let (get, mget, ping) = (["GET", d.as_str()], ["MGET", d.as_str(), e.as_str()], ["PING"]);
    cluster.begin_move(&slot, 0, 1);
    // Both are here.
    assert_eq!(said(&mut old, false, &guard, &get), "served");
    assert_eq!(said(&mut old, false, &guard, &mget), "served");
    assert_eq!(said(&mut old, false, &guard, &["GET", &nowhere]), "TRYAGAIN", "it may have gone");
    assert_eq!(said(&mut new, true, &guard, &get), "TRYAGAIN", "neither has come");
    assert_eq!(said(&mut new, false, &guard, &get), "MOVED", "did not ask by ASKING");
    // The data have gone, and the lock is still here.
    cluster.migrate(&d, 0, 1);
    assert_eq!(said(&mut old, false, &guard, &get), "TRYAGAIN");
    assert_eq!(said(&mut new, true, &guard, &get), "TRYAGAIN", "the lock has not come");
    assert_eq!(said(&mut old, false, &guard, &ping), "served");
    // The lock has gone, and some data are still here.
    cluster.migrate(&lock, 0, 1);
    assert_eq!(said(&mut old, false, &guard, &["GET", &e]), "ASK");
    assert_eq!(said(&mut new, true, &guard, &["GET", &e]), "TRYAGAIN");
    assert_eq!(said(&mut new, true, &guard, &mget), "TRYAGAIN");
    assert_eq!(said(&mut new, true, &guard, &get), "served", "lock and data have come");
    assert_eq!(said(&mut new, true, &guard, &["SET", &nowhere, "1"]), "TRYAGAIN", "it may not have come");
    // All have gone.
    cluster.migrate(&e, 0, 1);
    assert_eq!(said(&mut old, false, &guard, &mget), "ASK");
    assert_eq!(said(&mut new, true, &guard, &mget), "served");
    assert_eq!(said(&mut new, true, &guard, &["SET", &e, "2"]), "served");
    cluster.end_move(&slot, 0, 1);
    assert_eq!(said(&mut new, false, &guard, &mget), "served");
    assert_eq!(said(&mut old, false, &guard, &mget), "MOVED");
}

#[test]
fn getdel_and_getset_are_answered_whole_in_a_cluster_and_their_keys_are_judged() {
    // What could go wrong: for a wrong type these two reply with nothing on Valkey. The module asks the client that the
    // server ran them by for what it keeps, and a node of a cluster checks slots there.
    let cluster = Cluster::start(2, 0);
    let ((here, number), (there, _)) = (tag_of(&cluster, 0), tag_of(&cluster, 1));
    let mut wire = Connection::resp2(&cluster.nodes[0]);
    let mut other = Connection::resp2(&cluster.nodes[0]);
    let fence = wire.say(&format!("LOCK.ACQUIRE {here}lock a PX 600000")).int();
    wire.say(&format!("LOCK.ACQUIRE {here}job a PX 600000"));
    wire.say(&format!("HSET {here}h field 1"));
    let guard = format!("LOCK.GUARD {here}lock a {fence}");
    for (command, new, left) in [("GETDEL", "", Reply::Null), ("GETSET", " new", Reply::bulk("new"))] {
        wire.say(&format!("SET {here}d old"));
        let whole = vec![Reply::Int(fence), Reply::bulk("old")];
        assert_eq!(wire.say(&format!("{guard} {command} {here}d{new}")), Reply::Array(whole), "{command}");
        assert_eq!(wire.say(&format!("GET {here}d")), left, "{command}");
        let nothing = vec![Reply::Int(fence), Reply::Null];
        assert_eq!(
            wire.say(&format!("{guard} {command} {here}none{command}{new}")),
            Reply::Array(nothing),
            "{command}"
        );
        for _ in 0..2 {
            assert_eq!(wire.say(&format!("{guard} {command} {here}h{new}")).code(), "WRONGTYPE", "{command}");
            // Nothing of the error is left for the next call, nor for another client.
            assert_eq!(wire.say(&format!("{guard} STRLEN {here}e")).items()[1], Reply::Int(0), "{command}");
            assert_eq!(other.say(&format!("LOCK.ACQUIRE {here}job b BLOCK 20")), Reply::Null, "{command}");
        }
        // Another slot of this node, and one of the other node.
        for stranger in ["o1", &format!("{there}d")] {
            assert_eq!(wire.say(&format!("{guard} {command} {stranger}{new}")).code(), "CROSSSLOT", "{command}");
        }
        let moved = wire.say(&format!("LOCK.GUARD {there}lock a {fence} {command} {there}d{new}"));
        assert_eq!(moved.code(), "MOVED", "{command}");
        for client in [&mut wire, &mut other] {
            assert_eq!(client.say("PING"), Reply::simple("PONG"), "{command}");
        }
    }
    // While the slot moves, a key that is not here may have gone.
    wire.say(&format!("SET {here}d old"));
    cluster.begin_move(&number, 0, 1);
    for (command, new) in [("GETSET", " new"), ("GETDEL", "")] {
        assert_eq!(wire.say(&format!("{guard} {command} {here}gone{new}")).code(), "TRYAGAIN", "{command}");
        assert_eq!(wire.say(&format!("{guard} {command} {here}h{new}")).code(), "WRONGTYPE", "{command}");
        assert_eq!(wire.say(&format!("{guard} {command} {here}d{new}")).items().len(), 2, "{command}");
        assert_eq!(wire.say("PING"), Reply::simple("PONG"), "{command}");
    }
}

/// A client that follows redirections, key by key.
struct Follower<'c> {
    cluster: &'c Cluster,
    conns: Vec<Client>,
    at: usize,
}

impl Follower<'_> {
    fn new(cluster: &Cluster) -> Follower<'_> {
        Follower { cluster, conns: (0..2).map(|number| cluster.conn(number)).collect(), at: 0 }
    }

    /// The reply, from whatever node gives one.
    fn ask(&mut self, words: &[&str]) -> redis::Value {
        let (mut at, mut asking) = (self.at, false);
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "{words:?} is sent from node to node");
            if asking {
                self.conns[at].ok(&["ASKING"]);
            }
            let text = match self.conns[at].call(words) {
                Ok(value) => return value,
                Err(error) => text_of(&error),
            };
            asking = false;
            match text.split(' ').next().unwrap() {
                "ASK" => (at, asking) = (self.node(&text), true),
                "MOVED" => {
                    self.at = self.node(&text);
                    at = self.at;
                }
                "TRYAGAIN" | "UNBLOCKED" | "CLUSTERDOWN" => at = self.at,
                _ => panic!("{words:?}: {text}"),
            }
        }
    }

    fn node(&self, text: &str) -> usize {
        let port = text.rsplit_once(':').unwrap().1;
        self.cluster.nodes.iter().position(|node| node.port().to_string() == port).expect("one of both")
    }

    /// The guarded reply; None if nothing was run.
    fn guarded(&mut self, words: &[&str]) -> Option<redis::Value> {
        match self.ask(words) {
            redis::Value::Array(mut pair) => pair.pop(),
            redis::Value::Nil => None,
            other => panic!("{words:?}: {other:?}"),
        }
    }
}

/// Tells the clients to stop, also when the test fails.
struct Stops<'o>(&'o AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes the lock, reads, writes one more under the same fence, and gives it back, again and again. How often.
fn count_up(cluster: &Cluster, client: u64, tag: &str, over: &AtomicBool, written: &AtomicU64) {
    let [lock, d] = ["lock", "d"].map(|name| format!("{tag}{name}"));
    let mut conn = Follower::new(cluster);
    for round in 0.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let owner = format!("{client}-{round}");
        let redis::Value::Int(fence) = conn.ask(&["LOCK.ACQUIRE", &lock, &owner, "PX", "60000"]) else { continue };
        let fence = fence.to_string();
        let guard = ["LOCK.GUARD", &lock, &owner, &fence];
        let value = conn.guarded(&[&guard[..], &["GET", &d]].concat());
        let number: u64 = redis::from_redis_value(value.expect("held")).expect("a number");
        let next = (number + 1).to_string();
        let stored = conn.guarded(&[&guard[..], &["SET", &d, &next]].concat());
        assert_eq!(stored, Some(redis::Value::Okay));
        written.fetch_add(1, Ordering::Relaxed);
        conn.ask(&["LOCK.RELEASE", &lock, &owner, "FENCE", &fence]);
    }
}

#[test]
fn no_update_is_lost_while_the_slot_of_lock_and_data_moves_key_by_key() {
    // What could go wrong: a command sees the lock on one node and the data, or their absence, on another.
    const CLIENTS: u64 = 4;
    let cluster = Cluster::start(2, 0);
    let mut old = cluster.conn(0);
    let port = cluster.nodes[1].port().to_string();
    for number in 0..6 {
        let tag = format!("{{moves{number}}}");
        let slot = old.int(&["CLUSTER", "KEYSLOT", &tag]).unwrap();
        if slot >= 16384 / 2 {
            continue;
        }
        let slot = slot.to_string();
        let [lock, d] = ["lock", "d"].map(|name| format!("{tag}{name}"));
        old.ok(&["SET", &d, "0"]);
        let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let more = |by: u64| {
            let before = written.load(Ordering::Relaxed);
            wait_for("the clients to go on", || written.load(Ordering::Relaxed) > before + by);
        };
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (cluster, tag, over, written) = (&cluster, &tag, &over, &written);
                scope.spawn(move || count_up(cluster, client, tag, over, written));
            }
            let _stops = Stops(&over);
            more(10);
            cluster.begin_move(&slot, 0, 1);
            // In both orders.
            let keys = if number % 2 == 0 { [&lock, &d] } else { [&d, &lock] };
            while !old.get::<Vec<String>>(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).is_empty() {
                for key in keys {
                    old.call(&["MIGRATE", "127.0.0.1", &port, key, "0", "20000"])
                        .expect("it has moved, or is not there");
                    thread::yield_now();
                }
            }
            more(10);
            cluster.end_move(&slot, 0, 1);
            more(10);
        });
        let stored: u64 = redis::from_redis_value(Follower::new(&cluster).ask(&["GET", &d])).unwrap();
        assert_eq!(stored, written.load(Ordering::Relaxed), "an update was lost");
    }
}

/// A cluster of one node, with one option more.
fn lone_node(name: &str, value: &str) -> Server {
    let (server, mut conn) = Server::setup().option(name, value).cluster_node().connected();
    conn.ok(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_for("the cluster to be up", || conn.cluster_info("cluster_state") == "ok");
    server
}

#[test]
fn keys_are_found_though_an_operator_has_renamed_command() {
    // What could go wrong: the module asks by that command for the keys, learns of none, and lets all through.
    let server = lone_node("rename-command", "COMMAND hidden");
    let mut conn = server.connect();
    let fence = conn.int(&["LOCK.ACQUIRE", "{k}", "a", "PX", "600000"]).unwrap().to_string();
    let guard = ["{k}", "a", &fence];
    for (command, expected) in [
        (&["SET", "other", "x"][..], "CROSSSLOT"),
        (&["MSET", "{k}d", "x", "other", "x"], "CROSSSLOT"),
        (&["MSET", "{k}d", "x", "{k}e", "x"], "served"),
        (&["PING"], "served"),
    ] {
        assert_eq!(said(&mut conn, false, &guard, command), expected, "{command:?}");
    }
}

#[test]
fn guards_in_a_cluster_with_io_threads_end_no_server() {
    // What could go wrong: the server looks for keys on its I/O threads, and calls the module there. With the flag
    // getkeys-api it crashes: docs/internals/module-api.md.
    const CLIENTS: usize = 8;
    let server = lone_node("io-threads", "4");
    let mut conn = server.connect();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut wire = Connection::resp2(server);
                let (lock, d) = (format!("{{{client}}}lock"), format!("{{{client}}}d"));
                let fence = wire.say(&format!("LOCK.ACQUIRE {lock} a PX 600000")).int();
                let incr = format!("LOCK.GUARD {lock} a {fence} INCR {d}\r\n");
                let bad = format!("LOCK.GUARD {lock} a {fence} SET other{client} x\r\n");
                for batch in 0..50 {
                    wire.send_bytes(format!("{incr}{bad}").repeat(20).as_bytes());
                    for number in 0..20 {
                        assert_eq!(wire.read().items()[1], Reply::Int(batch * 20 + number + 1));
                        assert_eq!(wire.read().code(), "CROSSSLOT");
                    }
                }
            });
        }
    });
    assert_eq!(conn.info_number("lock", "lock_guarded"), CLIENTS as u64 * 1000);
}
