//! DUMP and RESTORE: a lock travels whole, and what is damaged is refused without a trace.

use crate::harness::payload::{dump, own_string, restore, restore_over, seal, with_own_string};
use std::time::Instant;
use testbed::{Client, Server, text_of, wait_for};

/// A server whose payloads hold the module's bytes as they are.
fn plain() -> Server {
    Server::setup().option("rdbcompression", "no").start()
}

/// A lock with every field in use; its payload.
fn sample(conn: &mut Client) -> Vec<u8> {
    let owner: &[u8] = b"host\0\xff";
    conn.call(&[b"LOCK.RW", &b"sample"[..], owner, b"WRITE", b"PX", b"600000", b"NOTE", b"a note"]).unwrap();
    conn.call(&[b"LOCK.RW", &b"sample"[..], owner, b"READ"]).unwrap();
    let payload = dump(conn, "sample");
    conn.int(&["DEL", "sample"]);
    payload
}

/// Of readers; its payload.
fn crowd(conn: &mut Client) -> Vec<u8> {
    for reader in ["a", "b", "c"] {
        conn.int(&["LOCK.RW", "crowd", reader, "READ", "PX", "600000"]).unwrap();
    }
    let payload = dump(conn, "crowd");
    conn.int(&["DEL", "crowd"]);
    payload
}

fn assert_no_trace(conn: &mut Client, what: &str) {
    assert_eq!(conn.int(&["DBSIZE"]), Some(0), "{what}");
    assert_eq!(conn.info("lock", "lock_leases"), "0", "{what}");
}

/// RESTORE of a payload that the module must refuse.
fn assert_refused(conn: &mut Client, payload: &[u8], what: &str) {
    match restore(conn, "k", payload) {
        Err(error) => assert_eq!(text_of(&error), "ERR Bad data format", "{what}"),
        Ok(_) => panic!("{what} was accepted: {:?}", conn.lock_info("k")),
    }
}

#[test]
fn a_payload_is_restored_with_all_that_is_in_it() {
    // On the server it came from, on another, and on one whose wall clock is an hour off: none may shorten the lease.
    let server = plain();
    let mut conn = server.connect();
    let taken = Instant::now();
    let payloads = [sample(&mut conn), crowd(&mut conn)];
    let digest = |conn: &mut Client| conn.get::<Vec<String>>(&["DEBUG", "DIGEST-VALUE", "one", "two"]);
    let mut digests = Vec::new();
    let ahead = Server::setup().wall_offset("+1h").start();
    let behind = Server::setup().wall_offset("-1h").start();
    for other in [&server, &Server::new(), &ahead, &behind] {
        let mut conn = other.connect();
        restore(&mut conn, "one", &payloads[0]).unwrap();
        restore(&mut conn, "two", &payloads[1]).unwrap();
        let one = conn.lock_info("one").unwrap();
        let holder = &one.holders[0];
        assert_eq!((one.mode.as_str(), one.holding, holder.mode.as_str()), ("write", 1, "write"));
        assert_eq!((holder.owner.as_slice(), holder.note.as_deref()), (&b"host\0\xff"[..], Some("a note")));
        assert_eq!((holder.reads, holder.writes, holder.fence), (1, 1, one.fence));
        let two = conn.lock_info("two").unwrap();
        assert_eq!((two.mode.as_str(), two.holding), ("read", 3));
        for holder in one.holders.iter().chain(&two.holders) {
            // The lease counts from the arrival of the payload: never earlier than where it came from.
            let passed = i64::try_from(taken.elapsed().as_millis()).unwrap();
            assert!(holder.ttl_ms <= 600_000 && holder.ttl_ms >= 600_000 - passed, "{holder:?} after {passed} ms");
        }
        assert_eq!(conn.int(&["LOCK.ACQUIRE", "one", "other"]), None);
        assert_eq!(conn.info("lock", "lock_leases"), "2");
        digests.push(digest(&mut conn));
        // The lease has its timer.
        let owner: &[u8] = b"host\0\xff";
        conn.call(&[b"LOCK.EXTEND", &b"one"[..], owner, b"PX", b"1"]).unwrap();
        wait_for("the lease to end", || conn.int(&["EXISTS", "one"]) == Some(0));
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "{digests:?}");
}

#[test]
fn a_restored_lease_is_not_cut_short_by_a_restart() {
    // The append-only file has the RESTORE as it came, with a deadline by the clock of another machine, at an earlier
    // time. Read as this node's own, the lease would be over.
    let behind = Server::setup().wall_offset("-1h").start();
    let mut conn = behind.connect();
    let taken = Instant::now();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let payload = dump(&mut conn, "k");
    for preamble in ["yes", "no"] {
        let setup = Server::setup()
            .option("appendonly", "yes")
            .option("appendfsync", "always")
            .option("aof-use-rdb-preamble", preamble);
        let mut server = setup.start();
        restore(&mut server.connect(), "k", &payload).unwrap();
        // Its facts follow within a millisecond or two; a crash in between would lose them.
        wait_for("its facts to be written", || server.aof_tail().iter().any(|command| command[0] == "LOCK.HOLD"));
        server.crash();
        let left = server.connect().lock_info("k").map_or(0, |info| info.holders[0].ttl_ms);
        // From the ACQUIRE on: what was left when it was dumped is what came here.
        let passed = i64::try_from(taken.elapsed().as_millis()).unwrap() + 1;
        assert!(left <= 600_000 && left >= 600_000 - passed, "{left} ms are left, {passed} ms passed");
    }
}

#[test]
fn each_holder_of_a_restored_lock_has_one_record_however_many_there_are() {
    // The records go out in pieces, since the other clients wait meanwhile: a piece may be forgotten, or come twice.
    let (server, mut conn) =
        Server::setup().option("appendonly", "yes").option("auto-aof-rewrite-percentage", "0").connected();
    conn.call(&["EVAL", "for i=1,1300 do redis.call('LOCK.RW','k','o'..i,'READ','PX',600000) end", "0"]).unwrap();
    let payload = dump(&mut conn, "k");
    restore(&mut conn, "copy", &payload).unwrap();
    let records = || {
        let records = server.raw_aof_tail().into_iter();
        let records = records.filter(|command| command[0] == "LOCK.HOLD" && command[1] == "copy");
        records.map(|mut command| command.swap_remove(2)).collect::<Vec<_>>()
    };
    wait_for("the records", || records().len() >= 1_300);
    // What comes twice comes before this.
    conn.int(&["LOCK.ACQUIRE", "last", "a"]).unwrap();
    wait_for("the last record", || server.raw_aof_tail().iter().any(|words| words.iter().any(|word| word == "last")));
    let mut owners = records();
    owners.sort();
    owners.dedup();
    assert_eq!((owners.len(), records().len()), (1_300, 1_300));
}

#[test]
fn the_facts_of_a_restored_lock_follow_it_through_a_transaction() {
    // They are sent a moment later, when the lock has another name or another database.
    let (server, mut conn) = Server::setup().option("appendonly", "yes").connected();
    let payload = sample(&mut conn);
    let swapped: &[&[&str]] = &[&["RENAME", "k", "l"], &["MOVE", "l", "1"], &["SWAPDB", "1", "2"]];
    conn.ok(&["MULTI"]);
    restore(&mut conn, "k", &payload).unwrap();
    for command in swapped {
        assert_eq!(conn.get::<String>(command), "QUEUED");
    }
    conn.call(&["EXEC"]).unwrap();
    let facts = || {
        let tail = server.aof_tail();
        tail.into_iter().filter(|command| command[0] == "LOCK.HOLD" && command[1] == "l").count()
    };
    wait_for("its facts to be written", || facts() == 1);
    conn.ok(&["SELECT", "2"]);
    assert_eq!(conn.lock_info("l").unwrap().holding, 1);
}

#[test]
fn restore_replaces_only_when_told_to() {
    // The lock that lies there must not be lost, and of two leases only one may be left in the index.
    let server = plain();
    let mut conn = server.connect();
    let payload = sample(&mut conn);
    let held = conn.int(&["LOCK.ACQUIRE", "k", "b", "PX", "500000"]).unwrap();
    let error = restore(&mut conn, "k", &payload).unwrap_err();
    assert_eq!(text_of(&error), "BUSYKEY Target key name already exists.");
    assert_eq!(conn.lock_info("k").unwrap().holders[0].fence, held);
    assert_eq!(conn.info("lock", "lock_leases"), "1");
    restore_over(&mut conn, "k", &payload).unwrap();
    assert_eq!(conn.lock_info("k").unwrap().holders[0].owner, b"host\0\xff");
    assert_eq!(conn.info("lock", "lock_leases"), "1");
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "b"]), None);
}

#[test]
fn restore_with_a_time_to_live_sets_it_beside_the_lease() {
    // The server's time to live and the lease are two things; the earlier ends the lock.
    let server = plain();
    let mut conn = server.connect();
    let payload = sample(&mut conn);
    conn.call(&[&b"RESTORE"[..], b"k", b"300000", &payload]).unwrap();
    assert!((1..=300_000).contains(&conn.int(&["PTTL", "k"]).unwrap()));
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms > 300_000);
    let (now, _): (u64, u64) = conn.get(&["TIME"]);
    let at = ((now + 200) * 1000).to_string();
    conn.call(&[&b"RESTORE"[..], b"k", at.as_bytes(), &payload, b"REPLACE", b"ABSTTL"]).unwrap();
    assert!((1..=200_000).contains(&conn.int(&["PTTL", "k"]).unwrap()));
    assert_eq!(conn.info("lock", "lock_leases"), "1");
    conn.int(&["PEXPIRE", "k", "1"]);
    wait_for("the key to expire", || conn.int(&["EXISTS", "k"]) == Some(0));
    assert_eq!(conn.info("lock", "lock_leases"), "0");
}

#[test]
fn a_payload_that_is_damaged_or_nonsense_is_refused_and_leaves_no_trace() {
    // The server's own sum is made right again, so only the module's stands between a flipped bit and a wrong lock. The
    // codec is shown each change and each cut by itself, and the server 100,000 others in payloads_mutated.rs.
    let server = plain();
    let mut conn = server.connect();
    let payload = crowd(&mut conn);
    let (clock, string) = (conn.info("lock", "lock_fence_clock"), payload[own_string(&payload)].to_vec());
    // One that claims four thousand million holds: no memory may be set aside for them.
    let mut huge = vec![1; 21];
    huge[17..].copy_from_slice(&u32::MAX.to_le_bytes());
    let nonsense = [&b""[..], b"\x01", b"a lock, honestly", &[0; 300], &[0xff; 300], &huge].map(<[u8]>::to_vec);
    let changed = (0..string.len()).map(|at| string.iter().enumerate().map(move |(n, byte)| byte ^ u8::from(n == at)));
    let cut = (0..string.len()).map(|len| string[..len].to_vec());
    let longer = (1..20).map(|more| [&string[..], &vec![0; more]].concat());
    for other in changed.map(Iterator::collect).chain(cut).chain(longer).chain(nonsense) {
        assert_refused(&mut conn, &with_own_string(&payload, &other), &format!("{}", other.escape_ascii()));
    }
    assert_no_trace(&mut conn, "damage");
    assert_eq!(conn.info("lock", "lock_fence_clock"), clock);
    // The way it is put together is sound.
    restore(&mut conn, "k", &with_own_string(&payload, &string)).unwrap();
}

#[test]
fn damage_to_a_compressed_payload_never_ends_the_server() {
    // The server unpacks first: one changed byte may be many, or none, in what the module gets.
    let (_server, mut conn) = Server::setup().option("rdbcompression", "yes").connected();
    for payload in [sample(&mut conn), crowd(&mut conn)] {
        for at in 1..payload.len() - 10 {
            for flipped in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
                let mut damaged = payload.clone();
                damaged[at] ^= flipped;
                // Refused or not: the server must live.
                drop(restore(&mut conn, "k", &seal(damaged)));
                conn.int(&["DEL", "k"]);
            }
            assert_no_trace(&mut conn, &format!("byte {at}"));
        }
    }
}

#[test]
fn a_payload_of_a_later_version_is_refused_with_a_line_in_the_log() {
    // A user that goes back to an older module must learn why the data do not load.
    let server = plain();
    let mut conn = server.connect();
    let payload = sample(&mut conn);
    let mut string = payload[own_string(&payload)].to_vec();
    for version in [2, 3, 255] {
        string[0] = version;
        assert_refused(&mut conn, &with_own_string(&payload, &string), "a later version");
        let line = format!("a saved redislock was refused: saved by a later version of this module (form {version})");
        assert!(server.log().contains(&line), "no {line:?} in:\n{}", server.log());
    }
    assert_no_trace(&mut conn, "a later version");
    string[0] = 0;
    assert_refused(&mut conn, &with_own_string(&payload, &string), "version 0");
    assert!(server.log().contains("a saved redislock was refused: damaged payload"));
}
