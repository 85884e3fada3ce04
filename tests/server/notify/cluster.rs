//! Channels in a cluster: of the shard, and of a slot that this node serves.

use super::Subscriber;
use crate::harness::connection::{Connection, Reply};
use testbed::{Client, Cluster, wait_for};

const ELSEWHERE: &str = "NOTIFYSLOT another node serves the slot of this channel";

/// A name whose slot is, or is not, among the first half; of another slot than this.
fn name_in(conn: &mut Client, first_half: bool, not: &str) -> String {
    let mut slot = |name: &str| conn.int(&["CLUSTER", "KEYSLOT", name]).expect("a number");
    (0..)
        .map(|n| format!("c{n}"))
        .find(|name| (slot(name) < 8192) == first_half && slot(name).to_string() != not)
        .unwrap()
}

fn ask(wire: &mut Connection, key: &str, owner: &str, channel: &str) -> Reply {
    wire.ask(&["LOCK.ACQUIRE", key, owner, "QUEUE", "60000", "NOTIFY", channel])
}

#[test]
fn a_channel_needs_a_slot_of_this_node_though_not_that_of_the_key() {
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut conn = cluster.conn(0);
    let (own, foreign) = (name_in(&mut conn, true, &slot), name_in(&mut conn, false, &slot));
    let mut wire = Connection::resp2(&cluster.nodes[0]);
    wire.ask(&["LOCK.ACQUIRE", &key, "a"]).int();
    assert_eq!(ask(&mut wire, &key, "b", &foreign), Reply::error(ELSEWHERE));
    assert_eq!(conn.info_number("lock", "lock_places"), 0, "refused before anything is changed");
    let mut subscriber = Subscriber::of_shard(&cluster.nodes[0], &own);
    let mut plain = Subscriber::of(&cluster.nodes[1], &own);
    assert_eq!(ask(&mut wire, &key, "b", &own), Reply::Null);
    wire.ask(&["LOCK.RELEASE", &key, "a"]).int();
    assert_eq!(subscriber.heard(), ["b"]);
    assert_eq!(plain.heard(), [""; 0], "other nodes do not hear of it");
    // In a transaction, too.
    wire.say("MULTI");
    assert_eq!(ask(&mut wire, &key, "c", &foreign), Reply::simple("QUEUED"));
    assert_eq!(ask(&mut wire, &key, "c", &own), Reply::simple("QUEUED"));
    assert_eq!(wire.say("EXEC"), Reply::Array(vec![Reply::error(ELSEWHERE), Reply::Null]));
}

#[test]
fn a_slot_on_its_way_serves_channels_at_both_nodes_and_then_at_the_new_one() {
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    // A channel of the slot that moves, and a key at each node that does not.
    let channel = format!("{{{key}}}channel");
    let keys = [name_in(&mut old, true, &slot), name_in(&mut new, false, &slot)];
    let mut wires = [0, 1].map(|node| Connection::resp2(&cluster.nodes[node]));
    for (wire, key) in wires.iter_mut().zip(&keys) {
        wire.ask(&["LOCK.ACQUIRE", key, "a"]).int();
    }
    let mut replies = |owner: &str| [0, 1].map(|node: usize| ask(&mut wires[node], &keys[node], owner, &channel));
    assert_eq!(replies("b"), [Reply::Null, Reply::error(ELSEWHERE)]);
    cluster.begin_move(&slot, 0, 1);
    assert_eq!(replies("c"), [Reply::Null, Reply::Null]);
    cluster.end_move(&slot, 0, 1);
    wait_for("both to know", || replies("d") == [Reply::error(ELSEWHERE), Reply::Null]);
}

#[test]
fn an_owner_whose_key_moves_away_is_told() {
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut old = cluster.conn(0);
    let channel = name_in(&mut old, true, &slot);
    let mut subscriber = Subscriber::of_shard(&cluster.nodes[0], &channel);
    let mut wire = Connection::resp2(&cluster.nodes[0]);
    wire.ask(&["LOCK.ACQUIRE", &key, "a"]).int();
    assert_eq!(ask(&mut wire, &key, "b", &channel), Reply::Null);
    cluster.begin_move(&slot, 0, 1);
    cluster.migrate(&key, 0, 1);
    cluster.end_move(&slot, 0, 1);
    assert_eq!(subscriber.next(), "b");
    assert_eq!(subscriber.heard(), [""; 0]);
    wait_for("the place to be gone", || old.info_number("lock", "lock_places") == 0);
}

#[test]
fn a_failover_tells_the_channels_of_the_old_primary() {
    let cluster = Cluster::start(3, 1);
    let (key, _) = cluster.key();
    let mut old = cluster.conn(0);
    let channel = format!("{{{key}}}c");
    let mut subscriber = Subscriber::of_shard(&cluster.nodes[0], &channel);
    let mut wire = Connection::resp2(&cluster.nodes[0]);
    wire.ask(&["LOCK.ACQUIRE", &key, "a"]).int();
    assert_eq!(ask(&mut wire, &key, "b", &channel), Reply::Null);
    cluster.conn(3).ok(&["CLUSTER", "FAILOVER"]);
    wait_for("the old primary to be a replica", || old.info("replication", "role") == "slave");
    wait_for("all to be told", || old.info_number("lock", "lock_notified") == 1);
    // It is told, unless the server has ended its subscription with the slot.
    let said = subscriber.wire.read().items();
    assert!(said[0].text() == "sunsubscribe" || said[2].text() == "*", "{said:?}");
}

#[test]
fn the_bus_sees_one_message_for_each_offer_and_replica_of_the_shard() {
    // A plain message would go to each node of the cluster.
    let cluster = Cluster::start(3, 1);
    let (key, _) = cluster.key();
    let channel = format!("{{{key}}}c");
    let mut wire = Connection::resp2(&cluster.nodes[0]);
    let sent = |kind: &str| -> Vec<u64> {
        let field = format!("cluster_stats_messages_{kind}_sent:");
        let of = |number| {
            let info: String = cluster.conn(number).get(&["CLUSTER", "INFO"]);
            // A kind that was never sent is not shown.
            info.lines().find_map(|line| line.strip_prefix(&field)).map_or(0, |count| count.parse().unwrap())
        };
        (0..cluster.nodes.len()).map(of).collect()
    };
    const OFFERS: u64 = 100;
    for _ in 0..OFFERS {
        wire.ask(&["LOCK.ACQUIRE", &key, "a"]).int();
        assert_eq!(ask(&mut wire, &key, "b", &channel), Reply::Null);
        wire.ask(&["LOCK.RELEASE", &key, "a"]).int();
        wire.ask(&["LOCK.RELEASE", &key, "b"]).int();
    }
    assert_eq!(cluster.conn(0).info_number("lock", "lock_notified"), OFFERS);
    assert_eq!(sent("publishshard"), [OFFERS, 0, 0, 0, 0, 0]);
    assert_eq!(sent("publish"), [0; 6]);
}
