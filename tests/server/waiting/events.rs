//! Waiters for a key to which something else happens than a step of ours: it goes, is replaced, moves, or its database
//! does. Which waiter is granted, and in which order replicas and the file learn of it.

use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{holders, let_it_tick, nobody_waits, waiters};
use crate::harness::stream::Stream;
use testbed::{Client, Server, Setup, Signal, wait_for};

/// A server, and streams of its file and of its link to replicas.
struct Scene {
    server: Server,
    conn: Client,
    stream: Stream,
    in_file: usize,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Server::setup())
    }

    fn with(setup: Setup) -> Scene {
        let server = setup.option("appendonly", "yes").option("repl-diskless-sync-delay", "0").start();
        let (conn, stream) = (server.connect(), Stream::of(&server));
        Scene { server, conn, stream, in_file: 0 }
    }

    /// A client holds a key for as long as the test lasts, and these wait for it in this order.
    fn held<const N: usize>(&mut self, key: &str, holder: &str, waiting: [&str; N]) -> [Connection; N] {
        self.hold(key, holder);
        let parked = waiting.map(|owner| self.wait(key, owner));
        self.sent();
        parked
    }

    fn hold(&mut self, key: &str, holder: &str) -> i64 {
        self.conn.int(&["LOCK.ACQUIRE", key, holder, "PX", "600000"]).expect("free")
    }

    fn wait(&self, key: &str, owner: &str) -> Connection {
        Connection::waiting(&self.server, &format!("LOCK.ACQUIRE {key} {owner} PX 600000 BLOCK 0"))
    }

    /// What replicas and the file were sent since the last call: of a fact its key, owner and counts.
    fn sent(&mut self) -> Vec<String> {
        let sent = self.stream.commands(&self.server);
        let file = self.server.aof_tail();
        assert_eq!(&file[self.in_file..], sent, "replicas and file must receive the same");
        self.in_file = file.len();
        let facts = sent.iter().map(|command| match &*command[0] {
            "LOCK.HOLD" => format!("HOLD {}", command[1..5].join(" ")),
            _ => command.join(" "),
        });
        facts.collect()
    }

    /// A crash, after which the holder is the one of before.
    fn survives(&mut self, key: &str, holder: &str) {
        assert_eq!(holders(&mut self.conn, key), [holder]);
        let file = self.server.aof_tail();
        self.server.crash();
        self.conn = self.server.connect();
        assert_eq!(holders(&mut self.conn, key), [holder], "after a restart from the file: {file:?}");
        assert_eq!(waiters(&mut self.conn), 0, "nobody waits after a restart");
    }

    /// `k` expires, and these are the first commands after that: in the same turn, before anybody else looks.
    fn unnoticed(&mut self, commands: &[&str]) -> Vec<redis::Value> {
        let mut pipe = redis::pipe();
        for command in [&["PEXPIRE k 20", "DEBUG SLEEP 0.05"], commands].concat() {
            let mut words = words(command).into_iter();
            pipe.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
        }
        pipe.query::<Vec<redis::Value>>(&mut self.conn.0).unwrap().split_off(2)
    }

    fn call(&mut self, command: &str) -> redis::Value {
        self.conn.call(&words(command)).unwrap_or_else(|error| panic!("{command}: {error}"))
    }
}

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

/// The key went, and was granted to a waiter: in this order, whatever the deletion is called here.
fn assert_gone_then(sent: &[String], key: &str, grant: &str) {
    let grant = format!("HOLD {grant}");
    let facts: Vec<&str> = sent.iter().map(String::as_str).filter(|word| !["MULTI", "EXEC"].contains(word)).collect();
    let (del, unlink) = (format!("DEL {key}"), format!("UNLINK {key}"));
    assert!(facts == [&*del, &*grant] || facts == [&*unlink, &*grant], "{sent:?}");
}

#[test]
fn when_a_key_is_deleted_the_next_in_line_holds_a_fresh_one() {
    // A grant that replicas learn of before the deletion is deleted there, and after a restart.
    for (command, told) in [("DEL k", "DEL k"), ("UNLINK k", "UNLINK k"), ("PEXPIRE k -1", "DEL k")] {
        let mut scene = Scene::new();
        let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
        let old = scene.conn.lock_info("k").unwrap().fence;
        scene.call(command);
        assert!(b.only_reply().int() > old, "{command}");
        let sent = scene.sent();
        if command.starts_with("PEXPIRE") {
            assert_gone_then(&sent, "k", "k b 0 1");
        } else {
            assert_eq!(sent, [told, "HOLD k b 0 1"], "{command}");
        }
        assert!(c.is_waiting(), "{command}");
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "a"]), None, "{command}: what was deleted is nobody's");
        scene.survives("k", "b");
        assert_eq!(c.read(), Reply::Closed);
    }
}

#[test]
fn when_a_key_is_deleted_a_whole_run_of_readers_is_granted() {
    // The module might visit only the first.
    let mut scene = Scene::new();
    scene.hold("k", "a");
    let mut readers: Vec<Connection> = (0..100)
        .map(|number| Connection::waiting(&scene.server, &format!("LOCK.RW k r{number} READ PX 600000 BLOCK 0")))
        .collect();
    let mut writer = scene.wait("k", "w");
    scene.call("DEL k");
    let fences: Vec<i64> = readers.iter_mut().map(|reader| reader.only_reply().int()).collect();
    assert!(fences.is_sorted(), "{fences:?}");
    assert!(writer.is_waiting());
    assert_eq!(scene.conn.lock_info("k").unwrap().holding, 100);
    scene.call("DEL k");
    assert!(writer.only_reply().int() > fences[99]);
}

#[test]
fn when_a_lock_is_overwritten_its_waiters_are_told() {
    // They would wait for a lock that is none, for ever.
    for command in [
        "SET k string",
        "GETSET k string",
        "MSET other x k string",
        "RENAME string k",
        "RESTORE k 0 string REPLACE",
        "COPY string k REPLACE",
        "SORT list STORE k",
        "SINTERSTORE k set",
    ] {
        let mut scene = Scene::new();
        let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
        scene.call("SET string x");
        scene.call("RPUSH list 1");
        scene.call("SADD set 1");
        let reply = if command.starts_with("RESTORE") {
            let payload: Vec<u8> = redis::from_redis_value(scene.call("DUMP string")).unwrap();
            scene.conn.call(&[b"RESTORE", &b"k"[..], b"0", &payload, b"REPLACE"])
        } else {
            scene.conn.call(&words(command))
        };
        if command.starts_with("GETSET") {
            // It wants a string.
            assert!(reply.is_err() && b.is_waiting());
            continue;
        }
        reply.unwrap_or_else(|error| panic!("{command}: {error}"));
        for waiter in [&mut b, &mut c] {
            let told = "WRONGTYPE Operation against a key holding the wrong kind of value";
            assert_eq!(waiter.only_reply(), Reply::error(told), "{command}");
        }
        nobody_waits(&mut scene.conn);
        let sent = scene.sent();
        assert!(!sent.iter().any(|command| command.contains("HOLD")), "{command}: {sent:?}");
    }
}

#[test]
fn when_a_key_expires_by_itself_the_next_in_line_holds_a_fresh_one() {
    // No other client touches the key: the server's own search comes upon it, or the module has to look.
    for searches in ["1", "0"] {
        let mut scene = Scene::new();
        scene.call(&format!("DEBUG SET-ACTIVE-EXPIRE {searches}"));
        let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
        scene.call("PEXPIRE k 100");
        b.only_reply().int();
        let sent = scene.sent();
        assert!(sent[0].starts_with("PEXPIREAT k"), "{sent:?}");
        assert_gone_then(&sent[1..], "k", "k b 0 1");
        assert!(c.is_waiting());
        assert_eq!(scene.conn.int(&["PTTL", "k"]), Some(-1), "the next holder's key does not expire");
        scene.survives("k", "b");
    }
}

#[test]
fn when_a_key_is_found_to_have_expired_the_next_in_line_holds_a_fresh_one() {
    // It is deleted in the middle of a client's command, which may be one of ours.
    for command in [
        "EXISTS k",
        "GET k",
        "LOCK.INFO k",
        "LOCK.ACQUIRE k x",
        "LOCK.RELEASE k a",
        "LOCK.EXTEND k a PX 1000",
        "LOCK.RW k x READ",
        "TYPE k",
        "RANDOMKEY",
        "EVAL return{redis.call('EXISTS','k'),redis.call('LOCK.ACQUIRE','k','x')} 0",
    ] {
        let mut scene = Scene::new();
        let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
        let reply = scene.unnoticed(&[command]).remove(0);
        if command.starts_with("LOCK") && command != "LOCK.INFO k" {
            assert_eq!(reply, redis::Value::Nil, "{command}: nobody goes before who waits");
        }
        b.only_reply().int();
        let sent = scene.sent();
        assert_gone_then(&sent[1..], "k", "k b 0 1");
        assert!(c.is_waiting(), "{command}");
        scene.survives("k", "b");
    }
}

#[test]
fn when_a_key_expires_in_a_transaction_replicas_learn_of_it_in_order() {
    // The deletion and the grant are part of the transaction, or come after it.
    let mut scene = Scene::new();
    let [mut b] = scene.held("k", "a", ["b"]);
    let replies = scene.unnoticed(&["MULTI", "SET x 1", "GET k", "LOCK.ACQUIRE k c", "SET y 1", "EXEC"]);
    let replies: Vec<redis::Value> = redis::from_redis_value(replies[5].clone()).unwrap();
    assert_eq!(replies[2], redis::Value::Nil);
    b.only_reply().int();
    let sent = scene.sent();
    let place = |what: &str| sent.iter().position(|sent| sent.contains(what)).unwrap_or_else(|| panic!("{sent:?}"));
    let del = sent.iter().position(|sent| sent == "DEL k" || sent == "UNLINK k").unwrap();
    assert!(del < place("HOLD k b 0 1"), "{sent:?}");
    scene.survives("k", "b");
}

#[test]
fn when_a_key_is_evicted_the_next_in_line_holds_a_fresh_one() {
    // Memory is short, and the grant needs some: it would be refused to a client, but not to the next waiter in the
    // queue.
    let mut scene = Scene::new();
    let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
    scene.call("PEXPIRE k 600000");
    scene.sent();
    // Of the two keys, only what has a time to live goes: what b is granted has none.
    scene.conn.ok(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    scene.conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
    b.only_reply().int();
    assert!(scene.conn.error(&["LOCK.ACQUIRE", "other", "x"]).starts_with("OOM"));
    let_it_tick(&mut scene.conn);
    assert!(c.is_waiting());
    scene.conn.ok(&["CONFIG", "SET", "maxmemory", "0"]);
    let sent = scene.sent();
    assert_gone_then(&sent, "k", "k b 0 1");
    assert_eq!(scene.conn.info("stats", "evicted_keys"), "1");
    scene.survives("k", "b");
}

#[test]
fn when_every_key_is_evicted_at_once_all_are_served_in_order() {
    // Each grant is evicted in turn, maybe before its reply is written.
    let mut scene = Scene::new();
    let parked = scene.held("k", "a", ["b", "c", "d", "e"]);
    scene.conn.ok(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    scene.conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut last = 0;
    for mut waiter in parked {
        let fence = waiter.only_reply().int();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    wait_for("the last grant to be evicted", || {
        scene.conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
        scene.conn.int(&["DBSIZE"]) == Some(0)
    });
    scene.conn.ok(&["CONFIG", "SET", "maxmemory", "0"]);
    nobody_waits(&mut scene.conn);
    let sent = scene.sent();
    let owners: Vec<&String> = sent.iter().filter(|sent| sent.starts_with("HOLD")).collect();
    assert_eq!(owners, ["HOLD k b 0 1", "HOLD k c 0 1", "HOLD k d 0 1", "HOLD k e 0 1"], "{sent:?}");
    let dels = sent.iter().filter(|sent| sent.starts_with("DEL k") || sent.starts_with("UNLINK k")).count();
    assert_eq!(dels, 5, "{sent:?}");
    assert!(sent.last().unwrap().ends_with("LINK k") || sent.last().unwrap() == "DEL k", "{sent:?}");
}

#[test]
fn when_databases_are_emptied_every_line_is_served_on_a_fresh_key_in_order() {
    // The server does not report the single keys.
    for command in ["FLUSHDB SYNC", "FLUSHDB ASYNC", "FLUSHALL SYNC", "FLUSHALL ASYNC", "FLUSHALL"] {
        let mut scene = Scene::new();
        let mut firsts = Vec::new();
        let mut seconds = Vec::new();
        for number in 0..10 {
            let key = format!("k{number}");
            let [first, second] = scene.held(&key, "a", ["b", "c"]);
            firsts.push(first);
            seconds.push(second);
        }
        let mut readers = Vec::new();
        scene.hold("shared", "a");
        for owner in ["r1", "r2"] {
            readers.push(Connection::waiting(&scene.server, &format!("LOCK.RW shared {owner} READ PX 600000 BLOCK 0")));
        }
        let mut writer = scene.wait("shared", "w");
        // Another database, which FLUSHDB leaves alone.
        let mut five = scene.server.connect_in("5");
        five.int(&["LOCK.ACQUIRE", "k0", "a", "PX", "600000"]).unwrap();
        let mut elsewhere = Connection::waiting_in(&scene.server, 5, "LOCK.ACQUIRE k0 e PX 600000 BLOCK 0");
        scene.sent();

        let before = scene.conn.info_number("lock", "lock_fence_clock");
        scene.call(command);
        for waiter in firsts.iter_mut().chain(&mut readers) {
            assert!(waiter.only_reply().int() as u64 > before, "{command}");
        }
        assert!(seconds.iter_mut().chain([&mut writer]).all(Connection::is_waiting), "{command}");
        if command.starts_with("FLUSHALL") {
            assert!(elsewhere.only_reply().int() as u64 > before, "{command}");
        } else {
            let_it_tick(&mut scene.conn);
            assert!(elsewhere.is_waiting(), "{command}");
        }
        let sent = scene.sent();
        let flush = sent.iter().position(|sent| sent.to_uppercase().starts_with("FLUSH"));
        assert_eq!(flush, Some(0), "{sent:?}");
        // Then those below, in one transaction or each alone.
        let holds = sent.iter().filter(|sent| sent.starts_with("HOLD")).count();
        assert_eq!(holds, if command.starts_with("FLUSHALL") { 13 } else { 12 }, "{sent:?}");
        for number in 0..10 {
            assert_eq!(holders(&mut scene.conn, &format!("k{number}")), ["b"]);
            assert_eq!(scene.conn.int(&["LOCK.RELEASE", &format!("k{number}"), "b"]), Some(0));
        }
        for waiter in &mut seconds {
            waiter.only_reply().int();
        }
        assert_eq!(holders(&mut scene.conn, "shared"), ["r1", "r2"]);
        scene.survives("k7", "c");
        assert_eq!(holders(&mut scene.conn, "shared"), ["r1", "r2"]);
    }
}

#[test]
fn when_a_lock_is_renamed_its_line_stays_and_its_holder_goes() {
    // The waiters of the old name wait for no holder any more; those of the new one wait for another holder.
    for (command, moved) in [("RENAME a b", true), ("RENAMENX a b", false), ("RENAMENX a free", true)] {
        let mut scene = Scene::new();
        let [mut of_a, mut next_of_a] = scene.held("a", "A", ["w1", "w2"]);
        let [mut of_b] = scene.held("b", "B", ["x1"]);
        let reply = scene.call(command);
        if !moved {
            assert_eq!(reply, redis::Value::Int(0));
            let_it_tick(&mut scene.conn);
            assert!(of_a.is_waiting() && of_b.is_waiting());
            continue;
        }
        of_a.only_reply().int();
        assert_eq!(scene.sent(), [command, "HOLD a w1 0 1"]);
        assert!(next_of_a.is_waiting() && of_b.is_waiting());
        let to = command.split(' ').next_back().unwrap();
        assert_eq!(holders(&mut scene.conn, to), ["A"], "{command}");
        assert_eq!(holders(&mut scene.conn, "b"), [if to == "b" { "A" } else { "B" }]);
        if to == "b" {
            // It is A that blocks them now, and not B.
            assert_eq!(scene.conn.int(&["LOCK.RELEASE", "b", "B"]), None);
            assert!(of_b.is_waiting());
            assert_eq!(scene.conn.int(&["LOCK.RELEASE", "b", "A"]), Some(0));
            of_b.only_reply().int();
        }
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "a", "w1"]), Some(0));
        next_of_a.only_reply().int();
        scene.survives("a", "w2");
    }
}

#[test]
fn when_a_lock_is_renamed_to_where_its_holder_waits_that_wait_is_over() {
    // The holder waits for a key that it now holds itself: it would wait for itself for ever.
    let mut scene = Scene::new();
    scene.hold("a", "A");
    let [mut waits] = scene.held("b", "B", ["A"]);
    scene.call("RENAME a b");
    let fence = waits.only_reply().int();
    let info = scene.conn.lock_info("b").unwrap();
    assert_eq!((&*info.holders[0].owner, info.holders[0].writes), (&b"A"[..], 2));
    assert_eq!(info.holders[0].fence, fence);
    assert_eq!(scene.sent(), ["RENAME a b", "HOLD b A 0 2"]);
    scene.survives("b", "A");
}

#[test]
fn when_a_lock_is_moved_to_another_database_its_line_stays() {
    // The waiter stays with the number of the database; the lease goes along.
    let mut scene = Scene::new();
    let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
    assert_eq!(scene.conn.int(&["MOVE", "k", "1"]), Some(1));
    b.only_reply().int();
    assert!(c.is_waiting());
    assert_eq!(scene.sent(), ["MOVE k 1", "HOLD k b 0 1"]);
    let mut one = scene.server.connect_in("1");
    assert_eq!(holders(&mut one, "k"), ["a"]);
    // The waiters there wait for a, and the waiters here for b.
    let mut there = Connection::waiting_in(&scene.server, 1, "LOCK.ACQUIRE k d PX 600000 BLOCK 0");
    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0));
    c.only_reply().int();
    assert!(there.is_waiting());
    assert_eq!(one.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    there.only_reply().int();
    scene.survives("k", "c");
    let mut one = scene.server.connect_in("1");
    assert_eq!(holders(&mut one, "k"), ["d"]);
}

#[test]
fn waiters_stay_with_the_number_when_databases_are_swapped() {
    // Locks go with their data: a waiter finds a free key, another holder, or something else than a lock.
    let mut scene = Scene::new();
    let mut one = scene.server.connect_in("1");
    let in_one = |command: &str| Connection::waiting_in(&scene.server, 1, command);
    // Held on both sides.
    one.int(&["LOCK.ACQUIRE", "both", "B", "PX", "600000"]).unwrap();
    let mut both_one = in_one("LOCK.ACQUIRE both x1 PX 600000 BLOCK 0");
    one.ok(&["SET", "string", "x"]);
    let [mut both_zero] = scene.held("both", "A", ["x0"]);
    // Held here, free there; held here, a string there.
    let [mut alone, mut behind] = scene.held("alone", "A", ["y0", "z0"]);
    let [mut string] = scene.held("string", "A", ["s0"]);
    scene.call("SWAPDB 0 1");
    alone.only_reply().int();
    assert_eq!(string.only_reply().code(), "WRONGTYPE");
    let_it_tick(&mut scene.conn);
    assert!(both_zero.is_waiting() && both_one.is_waiting() && behind.is_waiting());
    assert_eq!((holders(&mut scene.conn, "both"), holders(&mut one, "both")), (vec!["B".into()], vec!["A".into()]));
    assert_eq!(holders(&mut one, "alone"), ["A"]);
    assert_eq!(scene.sent(), ["SWAPDB 0 1", "HOLD alone y0 0 1"]);
    // Each is served by a release in its own database.
    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "both", "A"]), None);
    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "both", "B"]), Some(0));
    both_zero.only_reply().int();
    assert!(both_one.is_waiting());
    assert_eq!(one.int(&["LOCK.RELEASE", "both", "A"]), Some(0));
    both_one.only_reply().int();
    scene.survives("alone", "y0");
    assert_eq!(holders(&mut scene.conn, "both"), ["x0"]);
    let mut one = scene.server.connect_in("1");
    assert_eq!((holders(&mut one, "both"), holders(&mut one, "alone")), (vec!["x1".into()], vec!["A".into()]));
}

#[test]
fn a_lease_that_ends_after_a_move_serves_the_waiters_at_the_new_key() {
    // The timer would search under the old name.
    for command in ["RENAME k l", "MOVE k 1", "SWAPDB 0 1"] {
        let mut scene = Scene::new();
        scene.conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "3000"]).unwrap();
        scene.call(command);
        let (db, key) = if command == "RENAME k l" { (0, "l") } else { (1, "k") };
        let mut waiter = Connection::waiting_in(&scene.server, db, &format!("LOCK.ACQUIRE {key} b PX 600000 BLOCK 0"));
        waiter.only_reply().int();
        assert_eq!(scene.conn.info("lock", "lock_lapsed"), "1", "{command}");
    }
}

#[test]
fn waiters_see_the_new_holder_when_a_lock_is_restored_over_another() {
    // They would wait for a holder that is gone; or, if the payload's holder is one of them, for themselves.
    let mut scene = Scene::new();
    scene.hold("source", "B");
    let payload: Vec<u8> = redis::from_redis_value(scene.call("DUMP source")).unwrap();
    let [mut c, mut b, mut d] = scene.held("k", "a", ["c", "B", "d"]);
    scene.conn.call(&[b"RESTORE", &b"k"[..], b"0", &payload, b"REPLACE"]).unwrap();
    // B's own hold lies there: it asks again, and never has to wait for others then.
    let_it_tick(&mut scene.conn);
    assert!(c.is_waiting() && d.is_waiting());
    assert_eq!(holders(&mut scene.conn, "k"), ["B"]);
    b.only_reply().int();
    assert_eq!(scene.conn.lock_info("k").unwrap().holders[0].writes, 2);
    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "B", "ALL"]), Some(0));
    c.only_reply().int();
    assert!(d.is_waiting());
    scene.survives("k", "c");
}

#[test]
fn a_reload_keeps_everybody_in_line_and_brings_the_holders_back() {
    // For a moment every key is gone: no waiter may be granted then.
    for command in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        let mut scene = Scene::new();
        let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
        scene.hold("shared", "a");
        let mut reader = Connection::waiting(&scene.server, "LOCK.RW shared r READ PX 600000 BLOCK 0");
        let granted = scene.conn.info("lock", "lock_granted");
        for _ in 0..3 {
            scene.call(command);
            let_it_tick(&mut scene.conn);
            assert!(b.is_waiting() && c.is_waiting() && reader.is_waiting(), "{command}");
            assert_eq!(holders(&mut scene.conn, "k"), ["a"], "{command}");
        }
        assert_eq!(scene.conn.info("lock", "lock_granted"), granted, "{command}");
        assert_eq!(waiters(&mut scene.conn), 3, "{command}");
        for (holder, waiter) in [("a", &mut b), ("b", &mut c)] {
            assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", holder]), Some(0), "{command}");
            waiter.only_reply().int();
        }
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "shared", "a"]), Some(0), "{command}");
        reader.only_reply().int();
    }
}

#[test]
fn a_transaction_that_deletes_and_asks_finds_earlier_waiters() {
    // Between the deletion and the next visit in the background another requester could slip in.
    let script = "redis.call('DEL','k')return{redis.call('LOCK.ACQUIRE','k','x')}";
    for commands in [&["DEL k", "LOCK.ACQUIRE k x"][..], &["UNLINK k", "LOCK.RW k x READ BLOCK 100"], &[script]] {
        let mut scene = Scene::new();
        let [mut b, mut c] = scene.held("k", "a", ["b", "c"]);
        if commands.len() == 1 {
            let replies: Vec<redis::Value> = scene.conn.get(&["EVAL", commands[0], "0"]);
            assert!(replies.is_empty() || replies == [redis::Value::Nil], "{replies:?}");
        } else {
            scene.conn.ok(&["MULTI"]);
            for command in commands {
                scene.call(command);
            }
            assert_eq!(scene.conn.get::<Vec<Option<i64>>>(&["EXEC"]), [Some(1), None]);
        }
        b.only_reply().int();
        assert!(c.is_waiting());
        let sent = scene.sent();
        let [multi, gone, hold, exec] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!([multi, &**hold, exec], ["MULTI", "HOLD k b 0 1", "EXEC"]);
        assert!(gone.ends_with(" k"), "{sent:?}");
        scene.survives("k", "b");
    }
}

#[test]
fn waiters_are_judged_by_what_a_transaction_or_script_leaves() {
    // In between the key was free, or no lock: no waiter may have been granted or refused for that.
    for (commands, left) in [
        (&["DEL k", "SET k string"][..], "string"),
        (&["SET k string", "DEL k"], "free"),
        (&["DEL k", "SET k string", "DEL k"], "free"),
        (&["RENAME k away", "RENAME away k"], "lock"),
        (&["MOVE k 1", "SWAPDB 0 1"], "lock"),
        (&["SET k string", "SWAPDB 0 1"], "free"),
        (&["FLUSHALL", "SET k string"], "string"),
        (&["SET k string", "FLUSHALL"], "free"),
        (&["DEL k", "RPUSH k x", "RPOP k"], "free"),
    ] {
        for in_script in [false, true] {
            if in_script && commands.iter().any(|command| command.starts_with("SWAPDB") || command.starts_with("MOVE"))
            {
                continue;
            }
            let mut scene = Scene::new();
            let [mut b] = scene.held("k", "a", ["b"]);
            if in_script {
                let calls = commands.iter().map(|command| {
                    let args: Vec<String> = words(command).iter().map(|word| format!("'{word}'")).collect();
                    format!("redis.call({})", args.join(","))
                });
                let script = calls.collect::<Vec<_>>().join(" ");
                scene.conn.call(&["EVAL", &script, "0"]).unwrap();
            } else {
                scene.conn.ok(&["MULTI"]);
                for command in commands {
                    scene.call(command);
                }
                scene.call("EXEC");
            }
            match left {
                "string" => {
                    assert_eq!(b.only_reply().code(), "WRONGTYPE", "{commands:?}");
                    nobody_waits(&mut scene.conn);
                }
                "free" => {
                    b.only_reply().int();
                    scene.survives("k", "b");
                }
                _ => {
                    let_it_tick(&mut scene.conn);
                    assert!(b.is_waiting(), "{commands:?}");
                    assert_eq!(holders(&mut scene.conn, "k"), ["a"]);
                    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
                    b.only_reply().int();
                }
            }
        }
    }
}

#[test]
fn a_granted_waiter_may_release_with_what_it_has_sent_already() {
    // The next commands of a client are served while the server wakes it: a hand-off within a hand-off.
    let mut scene = Scene::new();
    scene.hold("k", "a");
    let mut parked: Vec<Connection> = (0..50)
        .map(|number| {
            let mut parked = scene.wait("k", &format!("w{number}"));
            parked.send_line(&format!("LOCK.RELEASE k w{number}"));
            parked
        })
        .collect();
    scene.call("DEL k");
    let mut last = 0;
    for waiter in &mut parked {
        let fence = waiter.read().int();
        assert!(fence > last);
        last = fence;
        assert_eq!(waiter.only_reply(), Reply::Int(0));
    }
    nobody_waits(&mut scene.conn);
    assert_eq!(scene.conn.int(&["DBSIZE"]), Some(0));
}

#[test]
fn waiting_for_replicas_after_a_wait_covers_the_grant() {
    // WAIT would count replicas that have not seen the grant, because another client's command made it.
    let primary = Server::setup().option("repl-diskless-sync-delay", "0").start();
    let replica = Server::new();
    replica.follow(&primary);
    let mut conn = primary.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let mut b = Connection::waiting(&primary, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    replica.signal(Signal::STOP);
    b.send_line("WAIT 1 300");
    conn.int(&["DEL", "k"]).unwrap();
    b.read().int();
    assert_eq!(b.read(), Reply::Int(0), "no replica has it");
    b.send_line("WAIT 1 0");
    replica.signal(Signal::CONT);
    assert_eq!(b.only_reply(), Reply::Int(1));
    assert_eq!(holders(&mut replica.connect(), "k"), ["b"]);
}

#[test]
fn lists_and_locks_do_not_wake_each_other() {
    // The server visits all clients that are parked on a key whenever it is created, whatever they wait for.
    let mut scene = Scene::new();
    let mut popper = Connection::resp2(&scene.server);
    popper.send_line("BLPOP k 0");
    wait_for("it to be blocked", || scene.conn.info("clients", "blocked_clients") == "1");
    let [mut b] = scene.held("k", "a", ["b"]);
    wait_for("both to be blocked", || scene.conn.info("clients", "blocked_clients") == "2");
    scene.call("DEL k");
    b.only_reply().int();
    let_it_tick(&mut scene.conn);
    assert!(popper.is_waiting());
    let mut c = scene.wait("k", "c");
    // Gone in the same step as it came: the list serves the one, and the lock the other.
    scene.conn.ok(&["MULTI"]);
    scene.call("DEL k");
    scene.call("RPUSH k x");
    scene.call("EXEC");
    wait_for("both to be answered", || !popper.is_waiting() && !c.is_waiting());
    let end = c.only_reply();
    assert!(matches!(end, Reply::Int(_)) || end.code() == "WRONGTYPE", "{end:?}");
    nobody_waits(&mut scene.conn);
}
