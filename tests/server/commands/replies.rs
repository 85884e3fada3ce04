//! Replies that a table cannot say: their very bytes in both protocols, how long leases are, and what stands at limits.
//! The tables are in commands/replies_syntax.rs and commands/replies_state.rs.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::transcript::Player;
use testbed::{Client, Server, wait_for};

#[test]
fn null_is_minus_one_in_resp2_and_underscore_in_resp3() {
    // A null array (*-1) where a bulk null is meant makes client libraries return [] or fail.
    let server = Server::new();
    let (mut two, mut three) = (Connection::resp2(&server), Connection::resp3(&server));
    assert!(two.bytes("LOCK.ACQUIRE k a").starts_with(":1"));
    for refused in [
        "LOCK.ACQUIRE k b",
        "LOCK.ACQUIRE k *",
        "LOCK.RW k b READ",
        "LOCK.RW k b WRITE",
        "LOCK.RELEASE k b",
        "LOCK.RELEASE k a FENCE 5",
        "LOCK.EXTEND k b PX 5",
        "LOCK.EXTEND k a PX 5 FENCE 5",
        "LOCK.CHECK k b",
        "LOCK.GUARD k a 5 PING",
        "LOCK.INFO free",
        "LOCK.INFO k OWNER b",
    ] {
        assert_eq!(two.bytes(refused), "$-1\\r\\n", "{refused}");
        assert_eq!(three.bytes(refused), "_\\r\\n", "{refused}");
    }
    let script = ["EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1], 'b')", "1", "k"];
    assert_eq!(two.ask(&script), Reply::Null);
    assert_eq!(three.ask(&script), Reply::Null);
}

#[test]
fn info_is_a_map_in_resp3_and_a_flat_array_in_resp2() {
    // A map announced with the wrong number of pairs leaves the connection out of step.
    let server = Server::new();
    let (mut two, mut three) = (Connection::resp2(&server), Connection::resp3(&server));
    let fence = two.say("LOCK.ACQUIRE k a PX 86400000 NOTE n").int();
    let holder = format!(
        "$5\\r\\nowner\\r\\n$1\\r\\na\\r\\n$4\\r\\nmode\\r\\n$5\\r\\nwrite\\r\\n$5\\r\\nreads\\r\\n:0\\r\\n$6\\r\\nwrites\\r\\n:1\\r\\n\
         $5\\r\\nfence\\r\\n:{fence}\\r\\n$6\\r\\nttl_ms\\r\\n:"
    );
    let head = format!(
        "$4\\r\\nmode\\r\\n$5\\r\\nwrite\\r\\n$5\\r\\nfence\\r\\n:{fence}\\r\\n$6\\r\\nshares\\r\\n:0\\r\\n$7\\r\\nholding\\r\\n:1\\r\\n$7\\r\\nholders\\r\\n*1\\r\\n"
    );
    let (flat, map) = (two.bytes("LOCK.INFO k"), three.bytes("LOCK.INFO k"));
    assert!(flat.starts_with(&format!("*16\\r\\n{head}*22\\r\\n{holder}")), "{flat}");
    assert!(map.starts_with(&format!("%8\\r\\n{head}%11\\r\\n{holder}")), "{map}");
    let rest = |null: &str| {
        format!("$7\\r\\nwaiting\\r\\n:0\\r\\n$7\\r\\nwaiters\\r\\n*0\\r\\n$11\\r\\nreserved_by\\r\\n{null}\\r\\n")
    };
    let (flat_rest, map_rest) = (rest("$-1"), rest("_"));
    for (bytes, rest) in [(&flat, &flat_rest), (&map, &map_rest)] {
        assert!(bytes.ends_with(&format!("$4\\r\\nnote\\r\\n$1\\r\\nn\\r\\n{rest}")), "{bytes}");
    }
    // A hold without a note has the null of its protocol there.
    two.say("LOCK.ACQUIRE bare a");
    assert!(two.bytes("LOCK.INFO bare").ends_with(&format!("$4\\r\\nnote\\r\\n$-1\\r\\n{flat_rest}")));
    assert!(three.bytes("LOCK.INFO bare").ends_with(&format!("$4\\r\\nnote\\r\\n_\\r\\n{map_rest}")));
    assert_eq!(two.say("PING"), Reply::Simple("PONG".to_owned()));
    assert_eq!(three.say("PING"), Reply::Simple("PONG".to_owned()));
}

#[test]
fn a_made_owner_comes_with_its_fence_and_is_never_the_same() {
    // Two clients with the same made owner would both hold the lock.
    let (_server, mut wire) = Connection::alone();
    let mut owners: Vec<String> = (0..100)
        .map(|n| {
            let mut granted = wire.say(&format!("LOCK.ACQUIRE k{n} *")).items();
            let (fence, owner) = (granted.pop().unwrap().int(), granted.pop().unwrap().text());
            assert!(owner.len() == 32 && owner.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            // It is an owner like any other.
            assert_eq!(wire.say(&format!("LOCK.ACQUIRE k{n} {owner}")).int(), fence);
            assert_eq!(wire.say(&format!("LOCK.RELEASE k{n} {owner} ALL FENCE {fence}")).int(), 0);
            owner
        })
        .collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 100);
}

#[test]
fn a_pipeline_is_answered_in_order_with_one_reply_each() {
    // A command that answers twice, or not at all, gives every later reply to the wrong command.
    let server = Server::new();
    let mut wire = Connection::resp3(&server);
    let commands = [
        "LOCK.ACQUIRE k a",
        "LOCK.ACQUIRE k b",
        "LOCK.ACQUIRE k a PX 0",
        "LOCK.RW k a READ",
        "LOCK.RELEASE k a",
        "LOCK.EXTEND k a PX 5000",
        "LOCK.RELEASE k a ALL",
        "LOCK.INFO k",
        "PING",
    ];
    let mut player = Player::new(&mut wire, Way::Plain);
    for command in commands {
        let words = player.words(command);
        player.wire.send(&words);
    }
    let replies: Vec<_> = commands.iter().map(|_| player.wire.read()).collect();
    let shown: Vec<_> = replies.iter().map(|reply| player.show(reply)).collect();
    let px = "ERR PX must be a whole number from 1 to 86400000";
    let both = "ERR the owner holds both modes: name READ or WRITE";
    assert_eq!(shown, ["#1", "nil", px, "#1", both, "#1", "0", "nil", "PONG"]);
}

fn ttl_ms(conn: &mut Client, key: &str) -> i64 {
    conn.lock_info(key).expect("held").holders[0].ttl_ms
}

/// Asserts that the lease is this long, less what time the test takes.
#[track_caller]
fn lease_is(conn: &mut Client, key: &str, ms: i64) {
    let left = ttl_ms(conn, key);
    assert!(ms - 5_000 < left && left <= ms, "{left} ms left, want {ms}");
}

#[test]
fn a_lease_is_as_long_as_asked_or_as_configured() {
    // Seconds taken for milliseconds, or a default that is not the configured one, end a lock while it is in use.
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "default", "a"]);
    lease_is(&mut conn, "default", 30_000);
    conn.ok(&["CONFIG", "SET", "lock.default-lease-ms", "50000"]);
    conn.int(&["LOCK.RW", "configured", "a", "READ"]);
    lease_is(&mut conn, "configured", 50_000);
    conn.int(&["LOCK.ACQUIRE", "px", "a", "PX", "70000"]);
    lease_is(&mut conn, "px", 70_000);
    conn.int(&["LOCK.ACQUIRE", "ex", "a", "EX", "90"]);
    lease_is(&mut conn, "ex", 90_000);
}

#[test]
fn extend_sets_the_lease_be_it_shorter_or_longer() {
    // EXTEND that only lengthens leaves a client without a way to say "I need only a little more".
    let (_server, mut conn) = Server::connected();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]);
    for (unit, length, ms) in [("PX", "10000", 10_000), ("PX", "70000", 70_000), ("EX", "20", 20_000)] {
        assert_eq!(conn.int(&["LOCK.EXTEND", "k", "a", unit, length]), fence);
        lease_is(&mut conn, "k", ms);
    }
    // Not the lease of another.
    conn.int(&["LOCK.ACQUIRE", "other", "a", "PX", "60000"]);
    assert_eq!(conn.int(&["LOCK.EXTEND", "other", "b", "PX", "1"]), None);
    lease_is(&mut conn, "other", 60_000);
}

#[test]
fn info_shows_ten_holders_unless_told_otherwise() {
    // A key with 65,536 readers would answer megabytes to any reader of its state.
    let (_server, mut wire) = Connection::alone();
    for n in 0..12 {
        wire.say(&format!("LOCK.RW k reader-{n:02} READ"));
    }
    let shown = |info: Reply| info.field("holders").items().len();
    let info = wire.say("LOCK.INFO k");
    assert_eq!(info.field("holding"), Reply::Int(12));
    assert_eq!(shown(info), 10);
    assert_eq!(shown(wire.say("LOCK.INFO k COUNT 11")), 11);
    assert_eq!(shown(wire.say("LOCK.INFO k COUNT 4294967295")), 12);
    let info = wire.say("LOCK.INFO k OWNER reader-11");
    assert_eq!(info.field("holding"), Reply::Int(12));
    assert_eq!(info.field("holders").items()[0].field("owner"), Reply::bulk("reader-11"));
}

#[test]
fn an_owner_that_the_server_made_is_usable_under_the_smallest_limits() {
    // Else no client could release its lock.
    let server = Server::setup().lock_option("max-owner-bytes", "32").lock_option("max-note-bytes", "0").start();
    let mut wire = Connection::resp2(&server);
    let made = wire.ask(&["LOCK.ACQUIRE", "k", "*", "NOTE", ""]).items()[0].text();
    assert_eq!(wire.say(&format!("LOCK.RELEASE k {made}")), Reply::Int(0));
}

#[test]
fn held_ms_counts_from_the_grant_and_anew_from_a_rename() {
    // Re-entry or an extension could hide for how long a lock has been held.
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("granted");
    let held_ms = |conn: &mut Client, key: &str| conn.lock_info(key).expect("held").holders[0].held_ms;
    wait_for("half a second to pass", || held_ms(&mut conn, "k") >= 500);
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("again");
    conn.int(&["LOCK.EXTEND", "k", "a", "PX", "60000"]).expect("held");
    assert!(held_ms(&mut conn, "k") >= 500);
    conn.ok(&["RENAME", "k", "l"]);
    assert!(held_ms(&mut conn, "l") < 500);
}
