//! MINFENCE: a hold's fence rises to one that another server gave; and no client carries the fence clock away with it.
//!
//! A server jumps by the skew before its first fence. Where a test is about what a client may ask for, the first fence
//! is given before the skew is raised. Seconds instead of the default's milliseconds, so that no test is decided by how
//! long it takes.

use crate::harness::connection::{Connection, Way};
use crate::harness::payload::{dump, restore};
use crate::harness::scene::Scene;
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

fn leave(conn: &mut Client, key: &str, owner: &str) {
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
fn readers_of_one_lock_have_different_fences_however_they_are_raised() {
    // The resource could not tell their requests apart, nor could the server.
    play_in(
        &Server::new(),
        &[Way::Plain],
        &[
            ("LOCK.RW k a READ", "#1"),
            ("LOCK.RW k b READ", "#2"),
            ("LOCK.EXTEND k a PX 60000 MINFENCE #2", "#3"),
            ("LOCK.RW k b READ RETRY 1 MINFENCE #3", "#4"),
            ("LOCK.RW k c READ MINFENCE #4", "#5"),
            ("LOCK.EXTEND k c PX 60000 MINFENCE #4", "#5"),
            // Also one that has gone counts.
            ("LOCK.RELEASE k c", "0"),
            ("LOCK.EXTEND k a PX 60000 MINFENCE #5", "#6"),
            // An upgrade has a new one in any case, a downgrade keeps it.
            ("LOCK.RELEASE k b ALL", "0"),
            ("LOCK.RW k a WRITE MINFENCE #2", "#7"),
            ("LOCK.RW k a READ MINFENCE #7", "#7"),
        ],
    );
}

#[test]
fn a_hold_has_just_the_fence_that_is_asked_for_if_none_is_above_it() {
    let server = settled(Server::setup());
    let mut conn = server.connect();
    let ahead = far_ahead(&mut conn);
    assert_eq!(take(&mut conn, "k", "a", Some(ahead)), ahead);
    assert_eq!(fence_clock(&mut conn), ahead, "the clock takes note of it");
    assert_eq!(take(&mut conn, "j", "a", Some(ahead)), ahead + 1);
    assert_eq!(take(&mut conn, "i", "a", None), ahead + 2);
    assert_eq!(raise(&mut conn, "first", "z", ahead + 1_000_000), ahead + 1_000_000);
    assert_eq!(fence_clock(&mut conn), ahead + 1_000_000);
    let fence = conn.int(&["LOCK.RW", "r", "a", "READ", "MINFENCE", &(ahead + 2_000_000).to_string()]);
    assert_eq!(fence, Some(ahead + 2_000_000));
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
fn a_fence_that_was_given_or_seen_is_accepted_whatever_the_wall_clock_says() {
    // A node that was just promoted, or whose wall clock was set back, has given fences that others must be raised to.
    let server = settled(Server::setup().wall_offset("+0"));
    let mut conn = server.connect();
    let last = take(&mut conn, "k", "a", None);
    server.set_wall_offset("-1h");
    wait_for("the module to see it", || conn.call(&asked("k", "b", Some(last + 1))).is_err());
    assert_eq!(conn.error(&asked("free", "b", Some(last + 1))), TOO_FAR);
    assert_eq!(raise(&mut conn, "first", "z", last), last);
    assert_eq!(take(&mut conn, "free", "b", Some(last)), last + 1);
    // Seen in a lock that came from elsewhere.
    let ahead = settled(Server::setup().wall_offset("+1d"));
    let mut there = ahead.connect();
    let came = take(&mut there, "k", "a", None);
    restore(&mut conn, "came", &dump(&mut there, "k")).unwrap();
    assert_eq!(conn.error(&asked("j", "b", Some(came + 1))), TOO_FAR);
    assert_eq!(take(&mut conn, "j", "b", Some(came)), came + 1);
}

#[test]
fn a_lock_that_was_renamed_rises_to_no_fence_that_its_new_key_may_have_had() {
    // The lock that came knows of its own fences alone.
    let server = Server::new();
    let mut conn = server.connect();
    let old = take(&mut conn, "from", "a", None);
    take(&mut conn, "elsewhere", "c", None);
    let had = take(&mut conn, "onto", "b", None);
    leave(&mut conn, "onto", "b");
    conn.ok(&["RENAME", "from", "onto"]);
    assert!(old + 1 < had);
    let raised = raise(&mut conn, "onto", "a", old + 1);
    assert!(raised > had, "{raised} is not above {had}");
    assert_eq!(take(&mut conn, "onto", "a", None), raised, "from then on it is its own");
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
fn a_waiter_whose_fence_is_too_far_ahead_at_its_turn_is_told_so_and_the_next_is_served() {
    // The wall clock was set back while it waited: its grant would carry the fence clock an hour ahead.
    let server = settled(Server::setup().wall_offset("+0"));
    let mut conn = server.connect();
    take(&mut conn, "k", "a", None);
    let least = far_ahead(&mut conn);
    let mut waiters = [Connection::resp2(&server), Connection::resp2(&server)];
    waiters[0].send(&blocked("k", "b", least));
    wait_for("the first to wait", || conn.info("lock", "lock_waiters") == "1");
    waiters[1].send(&blocked("k", "c", 1));
    wait_for("the second to wait", || conn.info("lock", "lock_waiters") == "2");
    server.set_wall_offset("-1h");
    wait_for("the module to see it", || conn.call(&asked("k", "d", Some(least))).is_err());
    let last = fence_clock(&mut conn);
    leave(&mut conn, "k", "a");
    assert_eq!(waiters[0].read().text(), TOO_FAR);
    assert_eq!(waiters[1].read().int(), last + 1);
}

#[test]
fn an_offer_has_the_next_fence_and_rises_when_it_is_collected() {
    // A place keeps nothing of its request. The fence is that of the request that is answered with it.
    let server = settled(Server::setup());
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let ahead = far_ahead(&mut scene.conn).to_string();
    assert_eq!(scene.conn.int(&["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000", "MINFENCE", &ahead]), None);
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    let offered = scene.conn.lock_info("k").unwrap().holders[0].fence;
    assert!(offered < ahead.parse().unwrap());
    assert_eq!(scene.conn.int(&["LOCK.EXTEND", "k", "b", "PX", "60000", "MINFENCE", &offered.to_string()]), None);
    let again = ["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000", "MINFENCE", &(offered + 5).to_string()];
    assert_eq!(scene.conn.int(&again), Some(offered + 5));
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
fn fences_rise_over_a_failover_to_a_replica_whose_clock_is_behind_by_half_the_skew() {
    // The old primary's clock was carried ahead by half of the skew, and the new one has not seen it.
    let primary = settled(Server::setup());
    let replica = Server::setup().wall_offset("-29").lock_option("promotion-skew-ms", SKEW_MS).start();
    replica.follow(&primary);
    let (mut old, mut new) = (primary.connect(), replica.connect());
    let seen = take(&mut old, "seen", "a", Some(wall(&mut replica.connect())));
    replica.catch_up(&primary);
    assert_eq!(fence_clock(&mut new), seen, "the replica takes note of it");
    // The link is cut, the role stays.
    new.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    let furthest = wall(&mut old) + HALF_US - 1_000;
    let unseen = take(&mut old, "k", "b", Some(furthest));
    assert_eq!(unseen, furthest);
    leave(&mut old, "k", "b");
    drop(primary);
    new.ok(&["REPLICAOF", "NO", "ONE"]);
    let fence = take(&mut new, "k", "a", None);
    assert!(fence > unseen, "{fence} is not above {unseen}");
}

#[test]
fn fences_rise_over_a_restart_with_all_or_nothing_saved() {
    const KEPT: [&[(&str, &str)]; 2] =
        [&[("appendonly", "yes"), ("appendfsync", "always")], &[("save", "3600 1000000")]];
    for (options, is_kept) in [(KEPT[0], true), (KEPT[1], true), (&[("save", "")][..], false)] {
        let setup = options.iter().fold(Server::setup(), |setup, (name, value)| setup.option(name, value));
        let mut server = settled(setup);
        let mut conn = server.connect();
        let held = take(&mut conn, "k", "a", None);
        let furthest = far_ahead(&mut conn);
        let raised = raise(&mut conn, "k", "a", furthest);
        assert_eq!(raised, furthest);
        take(&mut conn, "free", "b", Some(raised));
        leave(&mut conn, "free", "b");
        let highest = fence_clock(&mut conn);
        // Where nothing is to be saved at the end, it is killed.
        server.stop(options != KEPT[1]);
        server.start();
        let mut conn = server.connect();
        conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", SKEW_MS]);
        assert_eq!(conn.int(&["EXISTS", "k"]), Some(i64::from(is_kept)));
        if is_kept {
            assert_eq!(conn.int(&["LOCK.EXTEND", "k", "a", "PX", LEASE_MS, "FENCE", &held.to_string()]), None);
            let fence = conn.int(&["LOCK.EXTEND", "k", "a", "PX", LEASE_MS, "FENCE", &raised.to_string()]);
            assert_eq!(fence, Some(raised), "the hold has the fence that its owner knows");
            assert_eq!(fence_clock(&mut conn), highest);
            // It was not granted by this process: of what its key has had, nothing is known.
            let again = raise(&mut conn, "k", "a", raised + 1);
            assert!(again > highest + HALF_US, "{again} leaves no room above {highest}");
        }
        let fence = take(&mut conn, "free", "c", None);
        assert!(fence > highest, "{fence} is not above {highest} ({options:?})");
    }
}

#[test]
fn fences_rise_over_a_slot_that_is_moved_key_by_key_after_a_client_carried_the_clock_ahead() {
    // A key that is free takes no fence along, and nothing tells the new node of the slot.
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut conns = [0, 1].map(|number| cluster.conn(number));
    let old = (0..2).find(|number| conns[*number].call(&["EXISTS", &key]).is_ok()).unwrap();
    let new = 1 - old;
    for conn in &mut conns {
        let there = (0..).map(|number| format!("j{number}")).find(|key| conn.call(&["EXISTS", key]).is_ok()).unwrap();
        conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "0"]);
        take(conn, &there, "x", None);
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
