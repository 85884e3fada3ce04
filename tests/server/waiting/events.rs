//! Waiters for a key to which something else happens than a step of ours: it goes, is replaced, moves, or its database
//! does. Which waiter is granted, and in which order replicas and the file learn of it.

use crate::harness::connection::{Connection, Reply};
use crate::harness::payload::{dump, restore_over};
use crate::harness::state::{holders, let_it_tick, nobody_waits, waiters};
use crate::harness::stream::Stream;
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Row, Stage};
use testbed::{Client, Server, Signal, wait_for};

/// `a` holds `k`, and two wait for it.
const QUEUE: &[Row] = &[
    ("LOCK.ACQUIRE k a PX 600000", "#1"),
    ("b: LOCK.ACQUIRE k b PX 600000 BLOCK 0", "waits"),
    ("c: LOCK.ACQUIRE k c PX 600000 BLOCK 0", "waits"),
];

/// A transcript, and streams of the server's file and of its link to replicas.
struct Scene {
    stage: Stage<'static>,
    conn: Client,
    stream: Stream,
}

impl Scene {
    /// Begins with these rows, and with what is sent after them.
    fn after(rows: &[Row]) -> Scene {
        let server = Server::setup().option("appendonly", "yes").start();
        let stream = Stream::of(&server);
        let stage = Stage::owning(server);
        let mut scene = Scene { conn: stage.connect(), stage, stream };
        scene.stage.play(rows);
        scene.sent();
        scene
    }

    #[track_caller]
    fn play(&mut self, rows: &[Row]) {
        self.stage.play(rows);
    }

    /// What replicas and the file were sent since the last call: of a fact its key, owner and counts.
    fn sent(&mut self) -> Vec<String> {
        let sent = self.stream.commands_and_file(self.stage.server());
        let facts = sent.iter().map(|command| match &*command[0] {
            "LOCK.HOLD" => format!("HOLD {}", command[1..5].join(" ")),
            _ => command.join(" "),
        });
        facts.collect()
    }

    /// The key `k` went, and was granted to `b`: in this order, whatever the deletion is called here.
    #[track_caller]
    fn assert_gone_to_b(sent: &[String]) {
        let facts: Vec<&str> =
            sent.iter().map(String::as_str).filter(|sent| !["MULTI", "EXEC"].contains(sent)).collect();
        assert!(matches!(facts[..], ["DEL k" | "UNLINK k", "HOLD k b 0 1"]), "{sent:?}");
    }

    /// A crash, after which the holder is the one of before.
    fn survives(&mut self, key: &str, holder: &str) {
        assert_eq!(holders(&mut self.conn, key), [holder]);
        let file = self.stage.server().aof_tail();
        self.stage.crash();
        self.conn = self.stage.connect();
        assert_eq!(holders(&mut self.conn, key), [holder], "after a restart from the file: {file:?}");
        assert_eq!(waiters(&mut self.conn), 0, "nobody waits after a restart");
    }

    /// `k` expires, and these are the first commands after that: in the same turn, before anybody else looks.
    fn unnoticed(&mut self, commands: &[&str]) -> Vec<redis::Value> {
        let mut pipe = redis::pipe();
        for command in [&["PEXPIRE k 20", "DEBUG SLEEP 0.05"], commands].concat() {
            pipe.add_command(redis::Cmd::new().arg(words(command)).clone());
        }
        pipe.query::<Vec<redis::Value>>(&mut self.conn.0).unwrap().split_off(2)
    }

    /// Runs these commands as one: in a transaction or a script.
    fn as_one(&mut self, in_script: bool, commands: &[&str]) {
        if in_script {
            let call = |command: &&str| format!("redis.call('{}')", command.replace(' ', "','"));
            let script = commands.iter().map(call).collect::<Vec<_>>().join(" ");
            self.conn.call(&["EVAL", &script, "0"]).unwrap();
        } else {
            self.conn.ok(&["MULTI"]);
            commands.iter().chain([&"EXEC"]).for_each(|command| drop(self.conn.call(&words(command)).unwrap()));
        }
    }

    /// The same server, in another database.
    fn holders_in(&self, db: &str, key: &str) -> Vec<String> {
        holders(&mut self.stage.server().connect_in(db), key)
    }
}

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

#[test]
fn when_a_key_is_deleted_the_next_in_line_holds_a_fresh_one() {
    // A grant that replicas learn of before the deletion is deleted there, and after a restart.
    for command in ["DEL k", "UNLINK k", "PEXPIRE k -1"] {
        let mut scene = Scene::after(QUEUE);
        // What was deleted is nobody's.
        scene.play(&[(command, "1 | b: #2 | c: waits"), ("LOCK.RELEASE k a", "nil")]);
        let sent = scene.sent();
        assert!(command.starts_with("PEXPIRE") || sent == [command, "HOLD k b 0 1"], "{sent:?}");
        Scene::assert_gone_to_b(&sent);
        scene.survives("k", "b");
    }
}

#[test]
fn when_a_key_is_deleted_a_whole_run_of_readers_is_granted() {
    // The module might visit only the first.
    let mut scene = Scene::after(&QUEUE[..1]);
    let server = scene.stage.server();
    let wait = |command: &str| Connection::waiting(server, command);
    let mut readers: Vec<Connection> =
        (0..100).map(|number| wait(&format!("LOCK.RW k r{number} READ PX 600000 BLOCK 0"))).collect();
    let mut writer = wait("LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    assert_eq!(scene.conn.int(&["DEL", "k"]), Some(1));
    let fences: Vec<i64> = readers.iter_mut().map(|reader| reader.only_reply().int()).collect();
    assert!(fences.is_sorted() && writer.is_waiting(), "{fences:?}");
    assert_eq!(scene.conn.lock_info("k").unwrap().holding, 100);
    assert_eq!(scene.conn.int(&["DEL", "k"]), Some(1));
    assert!(writer.only_reply().int() > fences[99]);
}

#[test]
fn when_a_lock_is_overwritten_its_waiters_are_told() {
    // They would wait for a lock that is none, for ever.
    for (command, reply) in [
        ("SET k string", "OK"),
        ("MSET other x k string", "OK"),
        ("RENAME string k", "OK"),
        ("COPY string k REPLACE", "1"),
        ("SORT list STORE k", "1"),
        ("SINTERSTORE k set", "1"),
        ("RESTORE", "OK"),
    ] {
        let mut scene = Scene::after(QUEUE);
        scene.play(&[("SET string x", "OK"), ("RPUSH list 1", "1"), ("SADD set 1", "1")]);
        // It wants a string.
        scene.play(&[("GETSET k string", WRONGTYPE), ("b:", "waits")]);
        if command == "RESTORE" {
            let payload = dump(&mut scene.conn, "string");
            restore_over(&mut scene.conn, "k", &payload).unwrap();
        } else {
            scene.play(&[(command, reply)]);
        }
        scene.play(&[("b:", WRONGTYPE), ("c:", WRONGTYPE)]);
        nobody_waits(&mut scene.conn);
        let sent = scene.sent();
        assert!(!sent.iter().any(|command| command.contains("HOLD")), "{command}: {sent:?}");
    }
}

#[test]
fn when_a_key_expires_by_itself_the_next_in_line_holds_a_fresh_one() {
    // No other client touches the key: the server's own search comes upon it, or the module has to look.
    for searches in ["DEBUG SET-ACTIVE-EXPIRE 1", "DEBUG SET-ACTIVE-EXPIRE 0"] {
        let mut scene = Scene::after(QUEUE);
        // The next holder's key does not expire.
        scene.play(&[(searches, "OK"), ("PEXPIRE k 100", "1 | b: #2 | c: waits"), ("PTTL k", "-1")]);
        let sent = scene.sent();
        assert!(sent[0].starts_with("PEXPIREAT k"), "{sent:?}");
        Scene::assert_gone_to_b(&sent[1..]);
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
        let mut scene = Scene::after(QUEUE);
        let reply = scene.unnoticed(&[command]).remove(0);
        let asks = command.starts_with("LOCK") && command != "LOCK.INFO k";
        assert!(!asks || reply == redis::Value::Nil, "{command}: nobody goes before who waits");
        scene.play(&[("b:", "#2"), ("c:", "waits")]);
        Scene::assert_gone_to_b(&scene.sent()[1..]);
        scene.survives("k", "b");
    }
}

#[test]
fn when_a_key_expires_in_a_transaction_replicas_learn_of_it_in_order() {
    // The deletion and the grant are part of the transaction, or come after it.
    let mut scene = Scene::after(&QUEUE[..2]);
    let replies = scene.unnoticed(&["MULTI", "SET x 1", "GET k", "LOCK.ACQUIRE k c", "SET y 1", "EXEC"]);
    let replies: Vec<redis::Value> = redis::from_redis_value(replies[5].clone()).unwrap();
    assert_eq!(replies[2], redis::Value::Nil);
    scene.play(&[("b:", "#2")]);
    let sent = scene.sent();
    let del = sent.iter().position(|sent| sent == "DEL k" || sent == "UNLINK k");
    let hold = sent.iter().position(|sent| sent == "HOLD k b 0 1");
    assert!(del.is_some() && del < hold, "{sent:?}");
    scene.survives("k", "b");
}

#[test]
fn when_a_key_is_evicted_the_next_in_line_holds_a_fresh_one() {
    // Memory is short, and the grant needs some: it would be refused to a client, but not to the next waiter in the
    // queue.
    let mut scene = Scene::after(QUEUE);
    scene.play(&[("PEXPIRE k 600000", "1")]);
    scene.sent();
    // Of the two keys, only what has a time to live goes: what b is granted has none.
    scene.play(&[
        ("CONFIG SET maxmemory-policy volatile-lru maxmemory 1", "OK | b: #2"),
        ("LOCK.ACQUIRE other x", "OOM command not allowed when used memory > 'maxmemory'."),
    ]);
    let_it_tick(&mut scene.conn);
    scene.play(&[("c:", "waits"), ("CONFIG SET maxmemory 0", "OK")]);
    Scene::assert_gone_to_b(&scene.sent());
    assert_eq!(scene.conn.info("stats", "evicted_keys"), "1");
    scene.survives("k", "b");
}

#[test]
fn when_every_key_is_evicted_at_once_all_are_served_in_order() {
    // Each grant is evicted in turn, maybe before its reply is written.
    let mut scene = Scene::after(QUEUE);
    scene.play(&[("CONFIG SET maxmemory-policy allkeys-lru", "OK")]);
    wait_for("the last grant to be evicted", || {
        scene.conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
        scene.conn.info("lock", "lock_waiters") == "0" && scene.conn.int(&["DBSIZE"]) == Some(0)
    });
    scene.play(&[("b:", "#2"), ("c:", "#3"), ("CONFIG SET maxmemory 0", "OK")]);
    nobody_waits(&mut scene.conn);
    let sent = scene.sent();
    let facts = sent.iter().map(|sent| sent.replace("UNLINK", "DEL")).filter(|sent| sent != "MULTI" && sent != "EXEC");
    assert_eq!(facts.collect::<Vec<_>>(), ["DEL k", "HOLD k b 0 1", "DEL k", "HOLD k c 0 1", "DEL k"], "{sent:?}");
}

#[test]
fn when_databases_are_emptied_every_line_is_served_on_a_fresh_key_in_order() {
    // The server does not report the single keys.
    for command in ["FLUSHDB SYNC", "FLUSHDB ASYNC", "FLUSHALL SYNC", "FLUSHALL ASYNC", "FLUSHALL"] {
        let mut scene = Scene::after(QUEUE);
        scene.play(&[
            ("LOCK.ACQUIRE shared a PX 600000", "#2"),
            ("r1: LOCK.RW shared r1 READ PX 600000 BLOCK 0", "waits"),
            ("r2: LOCK.RW shared r2 READ PX 600000 BLOCK 0", "waits"),
            ("w: LOCK.ACQUIRE shared w PX 600000 BLOCK 0", "waits"),
            // Another database, which FLUSHDB leaves alone.
            ("five: SELECT 5", "OK"),
            ("e: SELECT 5", "OK"),
            ("five: LOCK.ACQUIRE k a PX 600000", "#3"),
            ("e: LOCK.ACQUIRE k e PX 600000 BLOCK 0", "waits"),
        ]);
        let mut more: Vec<Connection> = (0..10)
            .map(|number| {
                scene.conn.int(&["LOCK.ACQUIRE", &format!("k{number}"), "a", "PX", "600000"]).expect("free");
                Connection::waiting(scene.stage.server(), &format!("LOCK.ACQUIRE k{number} b PX 600000 BLOCK 0"))
            })
            .collect();
        scene.sent();
        let before = scene.conn.info_number("lock", "lock_fence_clock");
        scene.conn.ok(&words(command));
        let mut granted: Vec<i64> = more.iter_mut().map(|waiter| waiter.only_reply().int()).collect();
        let is_all = command.starts_with("FLUSHALL");
        granted.extend(["b", "r1", "r2"].map(|name| scene.stage.waiter(name).only_reply().int()));
        granted.extend(is_all.then(|| scene.stage.waiter("e").only_reply().int()));
        assert!(granted.iter().all(|fence| *fence as u64 > before), "{command}: {granted:?} above {before}");
        let_it_tick(&mut scene.conn);
        scene.play(&[("c:", "waits"), ("w:", "waits")]);
        assert!(is_all || scene.stage.waiter("e").is_waiting(), "{command}");
        // Then those below, in one transaction or each alone.
        let sent = scene.sent();
        assert!(sent[0].to_uppercase().starts_with("FLUSH"), "{sent:?}");
        assert_eq!(sent.iter().filter(|sent| sent.starts_with("HOLD")).count(), granted.len(), "{sent:?}");
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0));
        scene.stage.waiter("c").only_reply().int();
        assert_eq!(holders(&mut scene.conn, "shared"), ["r1", "r2"]);
        scene.survives("k", "c");
        assert_eq!(holders(&mut scene.conn, "shared"), ["r1", "r2"]);
    }
}

#[test]
fn when_a_lock_is_renamed_its_line_stays_and_its_holder_goes() {
    // The waiters of the old name wait for no holder any more; those of the new one wait for another holder.
    let before: &[Row] = &[("LOCK.ACQUIRE j B PX 600000", "#2"), ("x: LOCK.ACQUIRE j x PX 600000 BLOCK 0", "waits")];
    for (command, to) in [("RENAME k j", "j"), ("RENAMENX k j", ""), ("RENAMENX k free", "free")] {
        let mut scene = Scene::after(&[QUEUE, before].concat());
        if to.is_empty() {
            scene.play(&[(command, "0")]);
            let_it_tick(&mut scene.conn);
            scene.play(&[("b:", "waits"), ("x:", "waits")]);
            continue;
        }
        let told = if to == "j" { "OK" } else { "1" };
        scene.play(&[(command, told), ("b:", "#3"), ("c:", "waits"), ("x:", "waits")]);
        assert_eq!(scene.sent(), [command, "HOLD k b 0 1"]);
        assert_eq!(holders(&mut scene.conn, to), ["a"], "{command}");
        assert_eq!(holders(&mut scene.conn, "j"), [if to == "j" { "a" } else { "B" }]);
        if to == "j" {
            // It is a that blocks them now, and not B.
            scene.play(&[("LOCK.RELEASE j B", "nil"), ("x:", "waits"), ("LOCK.RELEASE j a", "0 | x: #4")]);
        }
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0));
        scene.stage.waiter("c").only_reply().int();
        scene.survives("k", "c");
    }
}

#[test]
fn when_a_lock_is_renamed_to_where_its_holder_waits_that_wait_is_over() {
    // The holder waits for a key that it now holds itself: it would wait for itself for ever.
    let mut scene = Scene::after(&[
        ("LOCK.ACQUIRE k A PX 600000", "#1"),
        ("LOCK.ACQUIRE b B PX 600000", "#2"),
        ("a: LOCK.ACQUIRE b A PX 600000 BLOCK 0", "waits"),
    ]);
    let shown = "[mode write fence #3 holding 1 holders [[owner A mode write writes 2 fence #3]]]";
    scene.play(&[("RENAME k b", "OK | a: #3"), ("LOCK.INFO b", shown)]);
    assert_eq!(scene.sent(), ["RENAME k b", "HOLD b A 0 2"]);
    scene.survives("b", "A");
}

#[test]
fn when_a_lock_is_moved_to_another_database_its_line_stays() {
    // The waiter stays with the number of the database; the lease goes along.
    let mut scene = Scene::after(QUEUE);
    scene.play(&[("MOVE k 1", "1 | b: #2 | c: waits")]);
    assert_eq!(scene.sent(), ["MOVE k 1", "HOLD k b 0 1"]);
    assert_eq!(scene.holders_in("1", "k"), ["a"]);
    // The waiters there wait for a, and the waiters here for b.
    scene.play(&[
        ("d: SELECT 1", "OK"),
        ("d: LOCK.ACQUIRE k d PX 600000 BLOCK 0", "waits"),
        ("LOCK.RELEASE k b", "0 | c: #3 | d: waits"),
        ("one: SELECT 1", "OK"),
        ("one: LOCK.RELEASE k a", "0 | d: #4"),
    ]);
    scene.survives("k", "c");
    assert_eq!(scene.holders_in("1", "k"), ["d"]);
}

#[test]
fn waiters_stay_with_the_number_when_databases_are_swapped() {
    // Locks go with their data: a waiter finds a free key, another holder, or something else than a lock.
    let mut scene = Scene::after(&[
        // Held on both sides.
        ("one: SELECT 1", "OK"),
        ("one: LOCK.ACQUIRE both B PX 600000", "#1"),
        ("x1: SELECT 1", "OK"),
        ("x1: LOCK.ACQUIRE both x1 PX 600000 BLOCK 0", "waits"),
        ("LOCK.ACQUIRE both A PX 600000", "#2"),
        ("x0: LOCK.ACQUIRE both x0 PX 600000 BLOCK 0", "waits"),
        // Held here, free there; held here, a string there.
        ("LOCK.ACQUIRE alone A PX 600000", "#3"),
        ("y0: LOCK.ACQUIRE alone y0 PX 600000 BLOCK 0", "waits"),
        ("z0: LOCK.ACQUIRE alone z0 PX 600000 BLOCK 0", "waits"),
        ("one: SET string x", "OK"),
        ("LOCK.ACQUIRE string A PX 600000", "#4"),
        ("s0: LOCK.ACQUIRE string s0 PX 600000 BLOCK 0", "waits"),
    ]);
    scene.play(&[("SWAPDB 0 1", "OK | y0: #5"), ("s0:", WRONGTYPE)]);
    let_it_tick(&mut scene.conn);
    scene.play(&[("x0:", "waits"), ("x1:", "waits"), ("z0:", "waits")]);
    assert_eq!([holders(&mut scene.conn, "both"), scene.holders_in("1", "both")], [["B"], ["A"]]);
    assert_eq!(scene.holders_in("1", "alone"), ["A"]);
    assert_eq!(scene.sent(), ["SWAPDB 0 1", "HOLD alone y0 0 1"]);
    // Each is served by a release in its own database.
    scene.play(&[
        ("LOCK.RELEASE both A", "nil"),
        ("LOCK.RELEASE both B", "0 | x0: #6 | x1: waits"),
        ("one: LOCK.RELEASE both A", "0 | x1: #7"),
    ]);
    scene.survives("alone", "y0");
    assert_eq!(holders(&mut scene.conn, "both"), ["x0"]);
    assert_eq!([scene.holders_in("1", "both"), scene.holders_in("1", "alone")], [["x1"], ["A"]]);
}

#[test]
fn a_lease_that_ends_after_a_move_serves_the_waiters_at_the_new_key() {
    // The timer would search under the old name.
    for (command, reply, db, waits) in [
        ("RENAME k l", "OK", "b: SELECT 0", "b: LOCK.ACQUIRE l b PX 600000 BLOCK 0"),
        ("MOVE k 1", "1", "b: SELECT 1", "b: LOCK.ACQUIRE k b PX 600000 BLOCK 0"),
        ("SWAPDB 0 1", "OK", "b: SELECT 1", "b: LOCK.ACQUIRE k b PX 600000 BLOCK 0"),
    ] {
        let mut scene = Scene::after(&[("LOCK.ACQUIRE k a PX 3000", "#1"), (command, reply), (db, "OK")]);
        scene.play(&[(waits, "waits"), ("b:", "#2")]);
        assert_eq!(scene.conn.info("lock", "lock_lapsed"), "1", "{command}");
    }
}

#[test]
fn waiters_see_the_new_holder_when_a_lock_is_restored_over_another() {
    // They would wait for a holder that is gone; or, if the payload's holder is one of them, for themselves.
    let mut scene = Scene::after(QUEUE);
    scene.play(&[("LOCK.ACQUIRE source B PX 600000", "#2"), ("B: LOCK.ACQUIRE k B PX 600000 BLOCK 0", "waits")]);
    let payload = dump(&mut scene.conn, "source");
    restore_over(&mut scene.conn, "k", &payload).unwrap();
    // B's own hold lies there: it asks again, and never has to wait for others then.
    let_it_tick(&mut scene.conn);
    scene.play(&[("b:", "waits"), ("c:", "waits")]);
    assert_eq!(holders(&mut scene.conn, "k"), ["B"]);
    scene.stage.waiter("B").only_reply().int();
    assert_eq!(scene.conn.lock_info("k").unwrap().holders[0].writes, 2);
    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "B", "ALL"]), Some(0));
    scene.stage.waiter("b").only_reply().int();
    scene.play(&[("c:", "waits")]);
    scene.survives("k", "b");
}

#[test]
fn a_reload_keeps_everybody_in_line_and_brings_the_holders_back() {
    // For a moment every key is gone: no waiter may be granted then.
    for command in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        let mut scene = Scene::after(QUEUE);
        scene.play(&[
            ("LOCK.ACQUIRE shared a PX 600000", "#2"),
            ("r: LOCK.RW shared r READ PX 600000 BLOCK 0", "waits"),
        ]);
        let granted = scene.conn.info("lock", "lock_granted");
        for _ in 0..3 {
            scene.play(&[(command, "OK")]);
            let_it_tick(&mut scene.conn);
            scene.play(&[("b:", "waits"), ("c:", "waits"), ("r:", "waits")]);
            assert_eq!(holders(&mut scene.conn, "k"), ["a"], "{command}");
        }
        assert_eq!((scene.conn.info("lock", "lock_granted"), waiters(&mut scene.conn)), (granted, 3), "{command}");
        scene.play(&[
            ("LOCK.RELEASE k a", "0 | b: #3"),
            ("LOCK.RELEASE k b", "0 | c: #4"),
            ("LOCK.RELEASE shared a", "0 | r: #5"),
        ]);
    }
}

#[test]
fn a_transaction_that_deletes_and_asks_finds_earlier_waiters() {
    // Between the deletion and the next visit in the background another requester could slip in.
    for (in_script, commands) in [
        (false, ["DEL k", "LOCK.ACQUIRE k x"]),
        (false, ["UNLINK k", "LOCK.RW k x READ BLOCK 100"]),
        (true, ["DEL k", "LOCK.ACQUIRE k x"]),
    ] {
        let mut scene = Scene::after(QUEUE);
        scene.as_one(in_script, &commands);
        scene.play(&[("b:", "#2"), ("c:", "waits")]);
        assert_eq!(scene.sent(), ["MULTI", commands[0], "HOLD k b 0 1", "EXEC"]);
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
        let may_be_script = !commands.iter().any(|command| command.starts_with("SWAPDB"));
        for in_script in [false].into_iter().chain(may_be_script.then_some(true)) {
            let mut scene = Scene::after(&QUEUE[..2]);
            scene.as_one(in_script, commands);
            match left {
                "string" => {
                    scene.play(&[("b:", WRONGTYPE)]);
                    nobody_waits(&mut scene.conn);
                }
                "free" => {
                    scene.play(&[("b:", "#2")]);
                    scene.survives("k", "b");
                }
                _ => {
                    let_it_tick(&mut scene.conn);
                    scene.play(&[("b:", "waits"), ("LOCK.RELEASE k a", "0 | b: #2")]);
                }
            }
        }
    }
}

#[test]
fn waiting_for_replicas_after_a_wait_covers_the_grant() {
    // WAIT would count replicas that have not seen the grant, because another client's command made it.
    let primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    let mut stage = Stage::new(&primary);
    stage.play(&QUEUE[..2]);
    replica.signal(Signal::STOP);
    stage.waiter("b").send_line("WAIT 1 300");
    // No replica has it.
    stage.play(&[("DEL k", "1 | b: #2 | b: 0")]);
    stage.waiter("b").send_line("WAIT 1 0");
    replica.signal(Signal::CONT);
    assert_eq!(stage.waiter("b").only_reply(), Reply::Int(1));
    assert_eq!(holders(&mut replica.connect(), "k"), ["b"]);
}
