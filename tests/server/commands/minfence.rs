//! MINFENCE: a hold's fence rises to one that another server gave; and no client carries the fence clock away with it.
//!
//! A server jumps by the skew before its first fence. Where a test is about what a client may ask for, the first fence
//! is given before the skew is raised. Seconds instead of the default's milliseconds, so that no test is decided by how
//! long it takes.

use crate::harness::connection::{Connection, Way};
use crate::harness::stream::Stream;
use crate::harness::transcript::play_in;
use testbed::{Client, Cluster, Server, Setup, wait_for};

const LEASE_MS: &str = "3600000";
pub(super) const SKEW_MS: &str = "60000";
pub(super) const HALF_US: i64 = 30_000_000;
/// More than a test takes.
const MARGIN_US: i64 = 10_000_000;

pub(super) const TOO_FAR: &str = "ERR MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock";

/// A server that has given its first fence, and jumps far from then on.
pub(super) fn settled(setup: Setup) -> Server {
    let server = setup.lock_option("promotion-skew-ms", "0").start();
    let mut conn = server.connect();
    take(&mut conn, "first", "z", None);
    conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", SKEW_MS]);
    server
}

/// A request to hold.
fn asked(key: &str, owner: &str, least: Option<i64>) -> Vec<String> {
    let least = least.map(|least| least.to_string());
    let option = least.iter().flat_map(|least| ["MINFENCE", least]);
    ["LOCK.ACQUIRE", key, owner, "PX", LEASE_MS].into_iter().chain(option).map(str::to_owned).collect()
}

pub(super) fn take(conn: &mut Client, key: &str, owner: &str, least: Option<i64>) -> i64 {
    match conn.call(&asked(key, owner, least)) {
        Ok(redis::Value::Int(fence)) => fence,
        other => panic!("{owner} at {key}: {other:?}"),
    }
}

fn raise(conn: &mut Client, key: &str, owner: &str, least: i64) -> i64 {
    let least = least.to_string();
    let fence = conn.int(&["LOCK.EXTEND", key, owner, "PX", LEASE_MS, "MINFENCE", &least]);
    fence.unwrap_or_else(|| panic!("{owner} does not hold {key}"))
}

pub(super) fn leave(conn: &mut Client, key: &str, owner: &str) {
    assert_eq!(conn.int(&["LOCK.RELEASE", key, owner, "ALL"]), Some(0));
}

pub(super) fn fence_clock(conn: &mut Client) -> i64 {
    conn.info("lock", "lock_fence_clock").parse().unwrap()
}

/// The server's wall clock, in microseconds.
pub(super) fn wall(conn: &mut Client) -> i64 {
    let (seconds, micros): (i64, i64) = conn.get(&["TIME"]);
    seconds * 1_000_000 + micros
}

/// As far ahead as a client may ask, but for the time that a test takes.
fn far_ahead(conn: &mut Client) -> i64 {
    wall(conn) + HALF_US - MARGIN_US
}

#[test]
fn a_hold_rises_to_a_fence_above_all_that_its_key_has_had_and_the_former_one_is_void() {
    // What could go wrong: a quorum cannot bring its nodes to one fence; or a late command still acts by the old one.
    let server = Server::new();
    play_in(
        &server,
        &[Way::Plain, Way::Exec, Way::Script, Way::Function],
        &[
            ("LOCK.ACQUIRE k a PX 60000", "#1"),
            ("LOCK.ACQUIRE j b PX 60000", "#2"),
            ("LOCK.EXTEND k a PX 60000 FENCE #1 MINFENCE #2", "#2"),
            ("LOCK.EXTEND k a PX 60000 FENCE #1", "nil"),
            ("LOCK.EXTEND k a PX 60000 FENCE #1 MINFENCE #2", "nil"),
            ("LOCK.CHECK k a FENCE #1", "nil"),
            ("LOCK.RELEASE k a FENCE #1", "nil"),
            ("LOCK.CHECK k a WRITE FENCE #2", "#2"),
            // As high already.
            ("LOCK.EXTEND k a PX 60000 MINFENCE #2", "#2"),
            ("LOCK.EXTEND k a MINFENCE #1 PX 60000 FENCE #2", "#2"),
            ("LOCK.ACQUIRE k a MINFENCE #1", "#2"),
            ("LOCK.RW k a READ MINFENCE #2", "#2"),
            // By asking again, too.
            ("LOCK.ACQUIRE i c", "#3"),
            ("LOCK.ACQUIRE k a RETRY 1 MINFENCE #3", "#3"),
            ("LOCK.RELEASE k a FENCE #2 ALL", "nil"),
            ("LOCK.RELEASE k a FENCE #3 ALL", "0"),
            // A new hold is above all that the server has given.
            ("LOCK.ACQUIRE k a MINFENCE #1", "#4"),
        ],
    );
    play_in(
        &server,
        &[Way::Plain],
        &[
            ("LOCK.ACQUIRE k a PX 60000", "#1"),
            ("LOCK.ACQUIRE j b PX 60000", "#2"),
            ("LOCK.EXTEND k a PX 60000 MINFENCE #2", "#2"),
            ("LOCK.GUARD k a #1 SET x 1", "nil"),
            ("LOCK.GUARD k a #2 SET x 1", "[#2 OK]"),
        ],
    );
}

#[test]
fn a_fence_further_ahead_than_half_the_skew_is_refused_and_leaves_no_trace() {
    // What could go wrong: one client poisons the clock of the node, and with it every resource.
    let server = settled(Server::setup());
    let mut conn = server.connect();
    let fence = take(&mut conn, "k", "a", None);
    let mut stream = Stream::of(&server);
    let refused = |conn: &mut Client, least: i64| {
        let least = least.to_string();
        for args in [
            // Where it would be granted, where not, and by the holder.
            vec!["LOCK.ACQUIRE", "free", "b"],
            vec!["LOCK.ACQUIRE", "k", "b"],
            vec!["LOCK.ACQUIRE", "k", "b", "BLOCK", "0"],
            vec!["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000"],
            vec!["LOCK.ACQUIRE", "free", "*"],
            vec!["LOCK.RW", "free", "b", "READ"],
            vec!["LOCK.RW", "k", "b", "WRITE", "BLOCK", "0"],
            vec!["LOCK.ACQUIRE", "k", "a"],
            vec!["LOCK.ACQUIRE", "k", "a", "RETRY", "1"],
            vec!["LOCK.EXTEND", "k", "a", "PX", "5"],
            vec!["LOCK.EXTEND", "k", "b", "PX", "5"],
            vec!["LOCK.EXTEND", "free", "b", "PX", "5"],
        ] {
            assert_eq!(conn.error(&[&args[..], &["MINFENCE", &least]].concat()), TOO_FAR, "{args:?}");
        }
    };
    let here = wall(&mut conn);
    for least in [here + HALF_US + MARGIN_US, here + 1_000 * HALF_US, (1 << 53) - 1] {
        refused(&mut conn, least);
    }
    // Between half of the skew and the whole of it.
    refused(&mut conn, here + 2 * HALF_US - 1);
    assert_eq!(stream.commands(&server), Vec::<Vec<String>>::new());
    assert_eq!(fence_clock(&mut conn), fence);
    assert_eq!((conn.info("lock", "lock_leases"), conn.info("lock", "lock_places")), ("2".into(), "0".into()));
    // The bound follows the configuration at once.
    conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "0"]);
    refused(&mut conn, here + MARGIN_US);
    conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "3600000"]);
    let far = here + 1_700_000_000;
    assert_eq!(raise(&mut conn, "k", "a", far), far);
}

#[test]
fn a_waiter_is_granted_the_fence_that_it_asked_for() {
    let server = settled(Server::setup());
    let mut conn = server.connect();
    take(&mut conn, "k", "a", None);
    let least = far_ahead(&mut conn);
    let mut waiter = Connection::resp2(&server);
    waiter.send(&blocked("k", "b", least));
    wait_for("it to wait", || conn.info("lock", "lock_waiters") == "1");
    assert!(fence_clock(&mut conn) < least, "the clock moves with the grant");
    leave(&mut conn, "k", "a");
    assert_eq!(waiter.read().int(), least);
    assert_eq!(fence_clock(&mut conn), least);
}

/// The same, and it waits.
fn blocked(key: &str, owner: &str, least: i64) -> Vec<String> {
    asked(key, owner, Some(least)).into_iter().chain(["BLOCK".to_owned(), "0".to_owned()]).collect()
}

#[test]
fn a_raised_fence_reaches_replicas_and_the_file_in_the_record_of_its_hold() {
    // A replica that did not learn of it would give it again after a failover.
    let server = settled(Server::setup());
    let mut conn = server.connect();
    let mut stream = Stream::of(&server);
    let least = far_ahead(&mut conn);
    take(&mut conn, "k", "a", Some(least));
    raise(&mut conn, "k", "a", least + 7);
    raise(&mut conn, "k", "a", least + 3);
    assert_eq!(take(&mut conn, "k", "a", Some(least + 9)), least + 9);
    let sent = stream.commands(&server);
    let records: Vec<[&str; 6]> = sent.iter().map(|words| std::array::from_fn(|at| words[at].as_str())).collect();
    let [first, second, third] = [least, least + 7, least + 9].map(|fence| fence.to_string());
    let record = |writes, fence| ["LOCK.HOLD", "k", "a", "0", writes, fence];
    assert_eq!(records, [record("1", &first), record("1", &second), record("1", &second), record("2", &third)]);
}

#[test]
fn fences_rise_over_a_slot_that_is_moved_key_by_key_after_a_client_carried_the_clock_ahead() {
    // A key that is free takes no fence along, and nothing tells the new node of the slot.
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut conns = [0, 1].map(|number| cluster.conn(number));
    let old = (0..2).find(|number| conns[*number].call(&["EXISTS", &key]).is_ok()).unwrap();
    let new = 1 - old;
    for (number, conn) in conns.iter_mut().enumerate() {
        conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "0"]);
        take(conn, &cluster.key_of(number), "x", None);
        conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", SKEW_MS]);
    }
    let least = far_ahead(&mut conns[old]);
    let before = take(&mut conns[old], &key, "a", Some(least));
    leave(&mut conns[old], &key, "a");
    assert_eq!(before, least);
    wait_for("the other node to hear how far that was", || fence_clock(&mut conns[new]) >= before);
    cluster.begin_move(&slot, old, new);
    cluster.end_move(&slot, old, new);
    let after = take(&mut conns[new], &key, "b", None);
    assert!(after > before, "{after} is not above {before}");
}
