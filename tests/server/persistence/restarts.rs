//! Restarts: what is saved comes back, and a lease goes on by the clock on the wall while the server is down.

use crate::harness::picture::{KEYS, Picture, Ttls, assert_running_on, fill, picture};
use crate::harness::servers::not_run;
use crate::harness::state::{AOF, AOF_PLAIN, rewrite_aof, rewritten};
use std::fs;
use std::path::Path;
use std::time::Instant;
use testbed::{Server, wait_for};

/// What was saved is there again, and no lease has become longer, nor shorter than by the time that passed.
fn assert_back(server: &Server, before: &(Picture, Ttls), taken: Instant, how: &str) {
    let (picture, ttls) = picture(server);
    assert_eq!(picture, before.0, "{how}");
    assert_running_on(&before.1, &ttls, taken, how);
    // The leases have their timers: every key has its entry in the index of leases.
    let keys = before.0.locks.len() as u64;
    assert_eq!(server.connect().info_number("lock", "lock_leases"), keys, "{how}");
    assert_enforced(server, how);
}

fn assert_enforced(server: &Server, how: &str) {
    let mut conn = server.connect();
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "plain", "other"]), None, "{how}");
    assert_eq!(conn.int(&["LOCK.RW", "crowd", "other", "WRITE"]), None, "{how}");
    assert_eq!(conn.int(&["LOCK.RELEASE", "again", "other"]), None, "{how}");
}

/// A way to save and load: its name, the server's options, and what is done.
type Way = (&'static str, &'static [(&'static str, &'static str)], fn(&mut Server));

const WAYS: [Way; 11] = [
    ("RDB at shutdown", &[("save", "3600 1000000")], Server::restart),
    ("RDB by hand", &[], |server| {
        server.connect().ok(&["SAVE"]);
        server.crash();
    }),
    ("AOF tail", AOF, Server::crash),
    ("AOF tail, no preamble", AOF_PLAIN, Server::restart),
    ("AOF rewritten to a preamble", AOF, |server| {
        rewrite_aof(&mut server.connect());
        server.crash();
    }),
    ("AOF rewritten to commands", AOF_PLAIN, |server| {
        rewrite_aof(&mut server.connect());
        server.crash();
    }),
    ("AOF rewritten twice", AOF_PLAIN, |server| {
        for _ in 0..2 {
            rewrite_aof(&mut server.connect());
            server.crash();
        }
    }),
    ("DEBUG RELOAD", &[], |server| server.connect().ok(&["DEBUG", "RELOAD"])),
    // Loading twice would double counts if records were requests instead of facts.
    ("reloads one after the other", AOF_PLAIN, |server| {
        for how in ["RELOAD", "LOADAOF", "LOADAOF", "RELOAD"] {
            server.connect().ok(&["DEBUG", how]);
        }
    }),
    ("DEBUG LOADAOF", AOF, |server| server.connect().ok(&["DEBUG", "LOADAOF"])),
    ("DEBUG LOADAOF, no preamble", AOF_PLAIN, |server| server.connect().ok(&["DEBUG", "LOADAOF"])),
];

#[test]
fn every_hold_comes_back_as_it_was() {
    // A field left out of one of the forms would come back as zero, as empty, or not at all.
    for (how, options, reload) in WAYS {
        let setup = Server::setup().options(options);
        let mut server = setup.start();
        fill(&server);
        let (taken, before) = (Instant::now(), picture(&server));
        assert_eq!(before.0.locks.len(), KEYS.len() + 1, "else something is not looked at");
        reload(&mut server);
        assert_back(&server, &before, taken, how);
        // What came back can be used: the counts are the owner's to give back.
        let mut conn = server.connect();
        assert_eq!(conn.int(&["LOCK.RELEASE", "again", "a"]), Some(2), "{how}");
        assert_eq!(conn.int(&["LOCK.RELEASE", "both", "a", "READ"]), Some(2), "{how}");
        assert_eq!(conn.int(&["LOCK.RELEASE", "crowd", "reader 0"]), Some(0), "{how}");
    }
}

#[test]
fn changes_during_a_rewrite_are_in_the_base_or_in_the_tail() {
    // The base is written by a child that sees the past, the tail by the parent: between them nothing may fall.
    for preamble in ["yes", "no"] {
        let mut server = Server::setup()
            .option("appendonly", "yes")
            .option("appendfsync", "always")
            .option("aof-use-rdb-preamble", preamble)
            // The child pauses that many microseconds behind every key.
            .option("rdb-key-save-delay", "2000")
            .start();
        let (mut conn, mut watch) = (server.connect(), server.connect());
        let key = |n: usize| format!("k{}", n % 200);
        for n in 0..200 {
            conn.int(&["LOCK.ACQUIRE", &key(n), "a", "PX", "600000"]).unwrap();
        }
        let mut changes = 0;
        for _ in 0..3 {
            conn.get::<String>(&["BGREWRITEAOF"]);
            wait_for("the rewrite to begin", || watch.info("persistence", "aof_rewrite_in_progress") == "1");
            let began = changes;
            while watch.info("persistence", "aof_rewrite_in_progress") == "1" {
                for n in changes..changes + 10 {
                    match n % 4 {
                        0 => conn.int(&["LOCK.RELEASE", &key(n * 7), "a", "ALL"]),
                        1 => conn.int(&["LOCK.ACQUIRE", &key(n * 7), "a", "PX", "700000", "NOTE", &n.to_string()]),
                        2 => conn.int(&["LOCK.RW", &key(n * 7), "a", "READ", "PX", "800000"]),
                        _ => conn.int(&["LOCK.EXTEND", &key(n * 7), "a", "PX", "900000"]),
                    };
                }
                changes += 10;
            }
            assert!(changes > began, "else nothing changed meanwhile");
            rewritten(&mut watch);
        }
        let (taken, before) = (Instant::now(), picture(&server));
        let digest: String = conn.get(&["DEBUG", "DIGEST"]);
        server.crash();
        assert_eq!(server.connect().get::<String>(&["DEBUG", "DIGEST"]), digest, "preamble {preamble}");
        let (after, ttls) = picture(&server);
        assert_eq!(after, before.0, "preamble {preamble}");
        assert_running_on(&before.1, &ttls, taken, preamble);
    }
}

#[test]
fn a_lease_runs_on_while_the_server_is_down() {
    // With what was left alone, a server that is down for an hour would give every holder an hour more.
    let hour = 3_600_000;
    for (how, options, _) in [WAYS[0], WAYS[2], WAYS[3], WAYS[4], WAYS[5]] {
        let (mut server, mut conn) = Server::setup().wall_offset("+0").options(options).connected();
        let taken = Instant::now();
        conn.int(&["LOCK.ACQUIRE", "long", "a", "PX", &(3 * hour).to_string()]).unwrap();
        if how.contains("rewritten") {
            rewrite_aof(&mut conn);
        }
        server.restart_at("+1h");
        let left = server.connect().lock_info("long").unwrap().holders[0].ttl_ms;
        let passed = i64::try_from(taken.elapsed().as_millis()).unwrap() + 1;
        assert!(left <= 2 * hour && left >= 2 * hour - passed, "{how}: {left} ms are left");
        // The clock goes back: the lease does not become longer by that.
        server.restart_at("-5h");
        let then = server.connect().lock_info("long").unwrap().holders[0].ttl_ms;
        assert!(then <= 3 * hour, "{how}: {then} ms are left, and the lease was never longer than {} ms", 3 * hour);
    }
}

#[test]
fn a_hold_that_ended_while_the_server_was_down_lapses_at_the_start_with_effect() {
    // Dropped at loading, it would be gone without notice to replicas, AOF and subscribers.
    for (how, options, _) in [WAYS[0], WAYS[2], WAYS[3], WAYS[4], WAYS[5]] {
        let (mut server, mut conn) = Server::setup().wall_offset("+0").options(options).connected();
        let short = conn.int(&["LOCK.ACQUIRE", "short", "a", "PX", "1800000"]).unwrap();
        let reader = conn.int(&["LOCK.RW", "mixed", "a", "READ", "PX", "1800000"]).unwrap();
        conn.int(&["LOCK.RW", "mixed", "b", "READ", "PX", "7200000"]).unwrap();
        if how.contains("rewritten") {
            rewrite_aof(&mut conn);
        }
        server.restart_at("+1h");
        let mut conn = server.connect();
        wait_for("the holds to lapse", || conn.info("lock", "lock_lapsed") == "2");
        assert_eq!(conn.int(&["EXISTS", "short"]), Some(0), "{how}");
        let mixed = conn.lock_info("mixed").unwrap();
        assert_eq!((mixed.holding, &mixed.holders[0].owner[..]), (1, &b"b"[..]), "{how}");
        assert_eq!(conn.info("lock", "lock_leases"), "1", "{how}");
        if how.contains("AOF") {
            let tail = server.aof_tail();
            // Where the grants are in the base, the tail does not tell of which owner the writer's fence was.
            let writer = if how.contains("rewritten") { "?" } else { "a" };
            for (key, owner, fence) in [("short", writer, short), ("mixed", "a", reader)] {
                let effect = ["LOCK.HOLD", key, owner, "0", "0", &fence.to_string()];
                assert!(tail.iter().any(|command| command == &effect), "{how}: no {effect:?} in {tail:?}");
            }
        }
    }
}

#[test]
fn a_hold_that_ended_in_the_tail_is_not_there_again() {
    // A removal that is not replayed would bring back a lock whose holder has left.
    let (mut server, mut conn) =
        Server::setup().option("appendonly", "yes").option("appendfsync", "always").connected();
    for (key, end) in [("released", "LOCK.RELEASE"), ("deleted", "DEL"), ("lapsed", "LOCK.EXTEND")] {
        conn.int(&["LOCK.ACQUIRE", key, "a"]).unwrap();
        match end {
            "DEL" => conn.int(&[end, key]),
            "LOCK.EXTEND" => conn.int(&[end, key, "a", "PX", "1"]),
            _ => conn.int(&[end, key, "a"]),
        };
    }
    wait_for("the lease to end", || conn.info("lock", "lock_lapsed") == "1");
    server.crash();
    let mut conn = server.connect();
    assert_eq!(conn.int(&["DBSIZE"]), Some(0));
    assert_eq!(conn.info("lock", "lock_leases"), "0");
    // Nothing lapsed by the load: it was over before.
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");
}

#[test]
fn a_time_to_live_that_somebody_set_is_saved_with_the_lock() {
    // EXPIRE on a lock is the operator's business and must survive like on any key; the lease goes its own way.
    let (mut server, mut conn) = Server::setup().option("save", "3600 1000000").connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    conn.int(&["PEXPIRE", "k", "300000"]);
    server.restart();
    let mut conn = server.connect();
    assert!((1..=300_000).contains(&conn.int(&["PTTL", "k"]).unwrap()));
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms > 300_000);
    // A grant clears it.
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    assert_eq!(conn.int(&["PTTL", "k"]), Some(-1));
}

#[test]
fn a_lock_whose_time_to_live_ended_while_the_server_was_down_leaves_no_lease() {
    // The server loads the value and frees it at once, without notice to the module.
    let (mut server, mut conn) = Server::setup().wall_offset("+0").option("save", "3600 1000000").connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "7200000"]).unwrap();
    conn.int(&["PEXPIRE", "k", "60000"]);
    server.restart_at("+1h");
    let mut conn = server.connect();
    assert_eq!(conn.int(&["EXISTS", "k"]), Some(0));
    assert_eq!(conn.info("lock", "lock_leases"), "0");
    conn.int(&["LOCK.ACQUIRE", "k", "b"]).expect("free");
}

#[test]
fn an_rdb_of_a_server_that_never_had_a_lock_loads_without_the_module() {
    // An operator who takes the module out again must not lose the data.
    if not_run("persistence::restarts::an_rdb_of_a_server_that_never_had_a_lock_loads_without_the_module") {
        return;
    }
    let (server, mut conn) = Server::connected();
    conn.ok(&["SET", "something", "else"]);
    conn.ok(&["SAVE"]);
    let mut bare = Server::setup().without_module().start();
    bare.stop(true);
    copy(&server.dir().join("dump.rdb"), &bare.dir().join("dump.rdb"));
    bare.start();
    let mut conn = bare.connect();
    assert_eq!(conn.get::<String>(&["GET", "something"]), "else");
    assert!(conn.error(&["LOCK.INFO", "k"]).starts_with("ERR unknown command"), "else this shows nothing");
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

#[test]
fn a_hold_that_could_not_be_saved_is_not_taken_from_the_aof() {
    // What could go wrong: an owner longer than the saved form can say is taken, and saved as another owner.
    let mut server = Server::setup().option("appendonly", "yes").option("aof-use-rdb-preamble", "no").start();
    server.connect().int(&["LOCK.ACQUIRE", "sound", "a", "PX", "600000"]).expect("free");
    server.stop(false);
    let files = fs::read_dir(server.dir().join("appendonlydir")).unwrap().map(|entry| entry.unwrap().path());
    let file =
        files.into_iter().find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("the file of commands");
    let hold = |key: &str, owner_bytes: usize| {
        let words = ["LOCK.HOLD", key, &"x".repeat(owner_bytes), "0", "1", "7", "9999999999999", "600000"];
        let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
    };
    let text = fs::read_to_string(&file).unwrap() + &hold("long", 65_535) + &hold("longer", 65_536);
    fs::write(&file, text).unwrap();
    server.start();
    let mut conn = server.connect();
    assert_eq!(["sound", "long", "longer"].map(|key| conn.get::<i64>(&["EXISTS", key])), [1, 1, 0]);
    assert!(server.log().contains("LIMIT owner is longer than lock.max-owner-bytes (65535)"), "it says so");
    // What was taken can be saved.
    conn.ok(&["DEBUG", "RELOAD"]);
    assert_eq!(conn.lock_info("long").unwrap().holders.remove(0).owner.len(), 65_535);
}
