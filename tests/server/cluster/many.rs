//! Several locks in one step, in a cluster: all keys in one slot, found by the number before them.

use crate::harness::connection::{Connection, Reply};
use crate::harness::scripts::run_script;
use crate::harness::state::{let_it_tick, nobody_waits};
use crate::harness::turn::{Way, turn};
use testbed::{Client, Cluster, file_from, wait_for};

/// A tag whose keys the node of this number serves, and its slot.
pub(crate) fn tag_of(cluster: &Cluster, number: usize) -> (String, String) {
    let mut conn = cluster.conn(number);
    let slot_of = |tag: &str, conn: &mut Client| conn.int(&["CLUSTER", "KEYSLOT", tag]).unwrap();
    let range = 16384 / cluster.nodes.len() as i64;
    let tags = (0..).map(|number| format!("{{t{number}}}"));
    let tag = tags.into_iter().find(|tag| slot_of(tag, &mut conn) / range == number as i64).unwrap();
    let slot = slot_of(&tag, &mut conn).to_string();
    (tag, slot)
}

/// How often a node has sent this word to any client.
fn said(conn: &mut Client, code: &str) -> u64 {
    let text: String = conn.get(&["INFO", "errorstats"]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn a_cluster_client_finds_the_node_by_the_number_of_keys() {
    // What could go wrong: a client takes the number for the key, and every request goes to a wrong node first.
    let cluster = Cluster::start(3, 0);
    let python = file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python");
    run_script(&cluster.nodes[0], &python, "cluster.py", &[]);
    for number in 0..3 {
        let mut conn = cluster.conn(number);
        assert_eq!(said(&mut conn, "MOVED"), 0, "node {number} was asked for keys of another");
        assert!(conn.info_number("lock", "lock_granted") > 0, "node {number} was never asked");
    }
}

#[test]
fn keys_of_two_slots_or_of_another_node_are_refused_by_the_server() {
    // What could go wrong: half of the keys are taken here, though another node serves the others.
    let cluster = Cluster::start(2, 0);
    let ((here, _), (there, slot)) = (tag_of(&cluster, 0), tag_of(&cluster, 1));
    let mut conn = cluster.conn(0);
    let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes[1].port());
    let key = |tag: &str, name: &str| format!("{tag}{name}");
    for (command, lease) in [("LOCK.MACQUIRE", &[][..]), ("LOCK.MRELEASE", &[]), ("LOCK.MEXTEND", &["PX", "5"])] {
        let mut refused = |one: &str, other: &str| conn.error(&[&[command, "2", one, other, "a"], lease].concat());
        assert_eq!(refused(&key(&there, "j"), &key(&there, "k")), moved, "{command}");
        assert!(refused(&key(&here, "j"), &key(&there, "k")).starts_with("CROSSSLOT "), "{command}");
        // Some servers check the first key alone, and leave the others to us.
        let other = refused(&key(&there, "k"), &key(&here, "j"));
        assert!(other == moved || other.starts_with("CROSSSLOT "), "{command}: {other}");
    }
    assert!(conn.error(&["LOCK.BREAK", &key(&there, "j")]).starts_with("MOVED "));
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0);
    let fences: Vec<i64> = conn.get(&["LOCK.MACQUIRE", "2", &key(&here, "j"), &key(&here, "k"), "a"]);
    assert_eq!(fences.len(), 2);
}

#[test]
fn a_waiter_for_several_keys_is_redirected_when_one_has_moved() {
    // What could go wrong: it is granted the key that is still here, and the one that is elsewhere has another holder.
    let cluster = Cluster::start(2, 0);
    let (tag, slot) = tag_of(&cluster, 0);
    let [j, k] = ["j", "k"].map(|name| format!("{tag}{name}"));
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    old.int(&["LOCK.ACQUIRE", &j, "a", "PX", "600000"]).expect("free");
    let mut waiter = Connection::waiting(&cluster.nodes[0], &format!("LOCK.MACQUIRE 2 {j} {k} m BLOCK 0"));
    let granted = old.info("lock", "lock_granted");
    cluster.begin_move(&slot, 0, 1);
    cluster.migrate(&j, 0, 1);
    let_it_tick(&mut old);
    assert_eq!(old.info("lock", "lock_granted"), granted, "granted between MIGRATE and SETSLOT NODE");
    cluster.end_move(&slot, 0, 1);
    waiter.assert_sent_away("moved");
    nobody_waits(&mut old);
    assert_eq!(old.info("lock", "lock_granted"), granted);
    wait_for("the other to serve it", || new.call(&["EXISTS", &k]).is_ok());
    assert_eq!(new.int(&["LOCK.RELEASE", &j, "a"]), Some(0));
    let fences: Vec<i64> = new.get(&["LOCK.MACQUIRE", "2", &j, &k, "m"]);
    assert_eq!(fences.len(), 2);
}

#[test]
fn a_key_that_has_just_moved_is_not_granted_with_one_that_is_still_here() {
    // What could go wrong: the last awaited key is released in the same event-loop turn as the other key's MIGRATE. The
    // migrated key is then granted here as well as there.
    let cluster = Cluster::start(2, 0);
    let (tag, slot) = tag_of(&cluster, 0);
    let [j, k] = ["j", "k"].map(|name| format!("{tag}{name}"));
    let mut old = cluster.conn(0);
    for key in [&j, &k] {
        old.int(&["LOCK.ACQUIRE", key, "a", "PX", "600000"]).expect("free");
    }
    let mut waiter = Connection::waiting(&cluster.nodes[0], &format!("LOCK.MACQUIRE 2 {j} {k} m BLOCK 0"));
    cluster.begin_move(&slot, 0, 1);
    let migrate = format!("MIGRATE 127.0.0.1 {} {k} 0 20000", cluster.nodes[1].port());
    turn(&cluster.nodes[0], Way::Pipelined, &[migrate, format!("LOCK.RELEASE {j} a")]);
    let end = waiter.read();
    assert!(end == Reply::Closed || ["MOVED", "ASK", "TRYAGAIN", "UNBLOCKED"].contains(&end.code()), "{end:?}");
    assert_eq!(old.get::<i64>(&["DBSIZE"]), 0);
}
