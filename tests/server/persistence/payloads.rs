//! DUMP and RESTORE: a lock travels whole, and what is damaged is refused without a trace.

use crate::harness::payload::{dump, own_string, restore, seal, with_own_string};
use redis::Value;
use std::time::Instant;
use testbed::{Client, Fields, Server, text_of, wait_for};

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
fn a_restored_lease_ends_by_itself() {
    // RESTORE is no command of the module: unless the module learns of it, no timer is set for the lease.
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "3000"]).unwrap();
    let payload = dump(&mut conn, "k");
    conn.int(&["DEL", "k"]);
    restore(&mut conn, "k", &payload).unwrap();
    assert_eq!(conn.int(&["EXISTS", "k"]), Some(1));
    wait_for("the lease to end", || conn.int(&["EXISTS", "k"]) == Some(0));
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
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
    conn.call(&[&b"RESTORE"[..], b"k", b"0", &payload, b"REPLACE"]).unwrap();
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
fn restore_to_a_time_that_is_past_leaves_no_lease() {
    // The server loads the value, sees that its time is over, and frees it without notice to the module.
    let server = plain();
    let mut conn = server.connect();
    let payload = sample(&mut conn);
    conn.call(&[&b"RESTORE"[..], b"k", b"1", &payload, b"ABSTTL"]).unwrap();
    assert_no_trace(&mut conn, "RESTORE to a time that is past");
}

#[test]
fn a_payload_with_any_byte_changed_is_refused() {
    // The server's own sum is made right again, so only the module's stands between a flipped bit and a wrong lock.
    let server = plain();
    let mut conn = server.connect();
    for payload in [sample(&mut conn), crowd(&mut conn)] {
        let clock = conn.info("lock", "lock_fence_clock");
        for at in own_string(&payload) {
            for flipped in 1..=255 {
                let mut damaged = payload.clone();
                damaged[at] ^= flipped;
                assert_refused(&mut conn, &seal(damaged), &format!("byte {at} changed by {flipped}"));
            }
            assert_no_trace(&mut conn, &format!("byte {at}"));
        }
        assert_eq!(conn.info("lock", "lock_fence_clock"), clock);
        restore(&mut conn, "k", &payload).expect("the payload itself is sound");
        conn.int(&["DEL", "k"]);
    }
}

#[test]
fn a_payload_cut_short_anywhere_is_refused() {
    // Every length in it is a promise of bytes that are not there any more.
    let server = plain();
    let mut conn = server.connect();
    for payload in [sample(&mut conn), crowd(&mut conn)] {
        let string = payload[own_string(&payload)].to_vec();
        for len in 0..string.len() {
            assert_refused(&mut conn, &with_own_string(&payload, &string[..len]), &format!("cut to {len} bytes"));
        }
        for more in 1..20 {
            let longer = [&string[..], &vec![0; more]].concat();
            assert_refused(&mut conn, &with_own_string(&payload, &longer), &format!("{more} bytes too long"));
        }
        assert_no_trace(&mut conn, "cut short");
        // The way it is put together is sound.
        restore(&mut conn, "k", &with_own_string(&payload, &string)).unwrap();
        conn.int(&["DEL", "k"]);
    }
}

#[test]
fn a_payload_of_nonsense_is_refused() {
    // Never a lock at all, or one that claims four thousand million holds: no memory may be set aside for them.
    let server = plain();
    let mut conn = server.connect();
    let payload = sample(&mut conn);
    let mut huge = vec![1; 21];
    huge[17..].copy_from_slice(&u32::MAX.to_le_bytes());
    for nonsense in [&b""[..], b"\x01", b"a lock, honestly", &[0; 300], &[0xff; 300], &huge] {
        assert_refused(&mut conn, &with_own_string(&payload, nonsense), &format!("{nonsense:?}"));
    }
    assert_no_trace(&mut conn, "nonsense");
}

/// The module's own sum over its bytes, FNV-1a, so that what it guards can be changed behind it.
fn with_own_sum(mut string: Vec<u8>) -> Vec<u8> {
    let summed = string[..1].iter().chain(&string[9..]);
    let sum =
        summed.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    string[1..9].copy_from_slice(&sum.to_le_bytes());
    string
}

/// A writer holds alone, each holder counts, and no fence is above the lock's highest. Owners and notes may be
/// anything.
fn assert_sound(info: Value) {
    let shown = format!("{info:?}");
    let info = Fields::from(info);
    let Value::Array(holders) = info.value("holders") else { panic!("{shown}") };
    for holder in holders.into_iter().map(Fields::from) {
        let (reads, writes) = (holder.get::<i64>("reads"), holder.get::<i64>("writes"));
        assert!(reads + writes > 0, "{shown}");
        assert!(writes == 0 || info.get::<i64>("holding") == 1, "{shown}");
        assert!(holder.get::<i64>("fence") <= info.get("fence"), "{shown}");
    }
}

#[test]
fn a_payload_made_to_deceive_is_an_error_or_a_sound_lock() {
    // With both sums right, every byte can be chosen: what is then accepted must be a lock that can be used.
    let server = plain();
    let mut conn = server.connect();
    for payload in [sample(&mut conn), crowd(&mut conn)] {
        let string = payload[own_string(&payload)].to_vec();
        assert_eq!(with_own_sum(string.clone()), string, "else the sums are not right");
        let mut accepted = 0;
        for at in 9..string.len() {
            for flipped in [0x01, 0x80, 0xff, 0x10] {
                let mut made = string.clone();
                made[at] ^= flipped;
                let made = with_own_string(&payload, &with_own_sum(made));
                if restore(&mut conn, "k", &made).is_ok() {
                    accepted += 1;
                    // Its lease may be over at once; then it lapses.
                    match conn.call(&["LOCK.INFO", "k"]).unwrap() {
                        Value::Nil => {}
                        info => assert_sound(info),
                    }
                    conn.get::<String>(&["PING"]);
                    conn.int(&["DEL", "k"]);
                }
            }
        }
        assert!(accepted > 0, "a changed owner is a lock like any other");
        assert_no_trace(&mut conn, "made to deceive");
    }
}

#[test]
fn a_payload_whose_owner_nobody_could_name_is_refused() {
    // It would be held until its lease ends: RELEASE takes * for an owner that is still to be made. (Mutated payloads.)
    let server = plain();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let payload = dump(&mut conn, "k");
    conn.int(&["DEL", "k"]);
    let string = payload[own_string(&payload)].to_vec();
    let owner_at = 1 + 8 + 8 + 4 + 2;
    assert_eq!(string[owner_at], b'a');
    let named = |owner| {
        let mut string = string.clone();
        string[owner_at] = owner;
        with_own_string(&payload, &with_own_sum(string))
    };
    assert_refused(&mut conn, &named(b'*'), "owner *");
    assert_no_trace(&mut conn, "owner *");
    restore(&mut conn, "k", &named(b'b')).expect("any other will do");
}

#[test]
fn damage_around_the_module_s_bytes_never_ends_the_server() {
    // The type, the module's id, the marks between its fields: the server's own, but it calls the module half-way.
    damage(&plain(), 1..=255, |payload| {
        let own = own_string(payload);
        (1..own.start).chain(own.end..payload.len() - 10).collect()
    });
}

#[test]
fn damage_to_a_compressed_payload_never_ends_the_server() {
    // The server unpacks first: one changed byte may be many, or none, in what the module gets.
    let server = Server::setup().option("rdbcompression", "yes").start();
    let flips = [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff];
    damage(&server, flips, |payload| (1..payload.len() - 10).collect());
}

/// Restores payloads in which one byte is not what it was: in each of these places, with these bits flipped.
fn damage(server: &Server, flips: impl IntoIterator<Item = u8> + Clone, places: impl Fn(&[u8]) -> Vec<usize>) {
    let mut conn = server.connect();
    for payload in [sample(&mut conn), crowd(&mut conn)] {
        for at in places(&payload) {
            for flipped in flips.clone() {
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
