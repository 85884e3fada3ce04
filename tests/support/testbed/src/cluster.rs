//! Servers that are the nodes of a cluster.

use crate::{Client, Server, wait_for};

/// The nodes of a cluster: its primaries in the order of their slots, then the replicas of the first, of the second,
/// and so on.
pub struct Cluster {
    /// All nodes.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Primaries that share the slots out evenly, each with so many replicas; ready when all of them agree.
    pub fn start(primaries: usize, replicas: usize) -> Cluster {
        let node = |_| {
            let setup = Server::setup().cluster_node();
            setup.option("cluster-node-timeout", "1500").option("appendonly", "yes").start()
        };
        let count = primaries * (1 + replicas);
        let nodes: Vec<Server> = (0..count).map(node).collect();
        let mut conn = nodes[0].connect();
        for node in nodes.iter().skip(1) {
            let (port, bus) = (node.port().to_string(), node.bus_port().to_string());
            conn.ok(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        for node in &nodes {
            let mut conn = node.connect();
            wait_for("the nodes to know each other", || conn.cluster_info("cluster_known_nodes") == count.to_string());
            let handshakes = |conn: &mut Client| conn.get::<String>(&["CLUSTER", "NODES"]).contains("handshake");
            wait_for("the nodes to have met", || !handshakes(&mut conn));
        }
        let cluster = Cluster { nodes };
        let share = 16384 / primaries;
        for number in 0..primaries {
            let last = if number + 1 == primaries { 16383 } else { (number + 1) * share - 1 };
            let (first, last) = ((number * share).to_string(), last.to_string());
            cluster.conn(number).ok(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            let id = cluster.id(number);
            for replica in 0..replicas {
                let mut conn = cluster.conn(primaries + number * replicas + replica);
                wait_for("the primary to be known", || conn.call(&["CLUSTER", "REPLICATE", &id]).is_ok());
                wait_for("the replica to be in sync", || conn.info("replication", "master_link_status") == "up");
            }
        }
        for number in 0..count {
            let mut conn = cluster.conn(number);
            wait_for("the cluster to be up", || conn.cluster_info("cluster_state") == "ok");
            wait_for("all slots to be known", || conn.cluster_info("cluster_slots_ok") == "16384");
        }
        cluster
    }

    /// A new connection to one of the nodes.
    pub fn conn(&self, number: usize) -> Client {
        self.nodes[number].connect()
    }

    /// The name that the cluster has for one of the nodes.
    pub fn id(&self, number: usize) -> String {
        self.conn(number).get(&["CLUSTER", "MYID"])
    }

    /// A key of the first node, and its slot.
    pub fn key(&self) -> (String, String) {
        let mut conn = self.conn(0);
        let slot_of = |key: &str, conn: &mut Client| conn.int(&["CLUSTER", "KEYSLOT", key]).unwrap();
        let key = (0..).map(|number| format!("k{number}")).find(|key| slot_of(key, &mut conn) < 16384 / 4).unwrap();
        let slot = slot_of(&key, &mut conn).to_string();
        (key, slot)
    }

    /// A key that one of the nodes serves.
    pub fn key_of(&self, number: usize) -> String {
        let mut conn = self.conn(number);
        (0..).map(|number| format!("j{number}")).find(|key| conn.call(&["EXISTS", key]).is_ok()).unwrap()
    }

    /// Begins to move a slot from one node to another, key by key.
    pub fn begin_move(&self, slot: &str, old: usize, new: usize) {
        self.conn(new).ok(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &self.id(old)]);
        self.conn(old).ok(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &self.id(new)]);
    }

    /// Moves a key of such a slot.
    pub fn migrate(&self, key: &str, old: usize, new: usize) {
        let port = self.nodes[new].port().to_string();
        self.conn(old).ok(&["MIGRATE", "127.0.0.1", &port, key, "0", "20000"]);
    }

    /// Ends such a move: both nodes know that the slot is the new one's.
    pub fn end_move(&self, slot: &str, old: usize, new: usize) {
        for number in [new, old] {
            self.conn(number).ok(&["CLUSTER", "SETSLOT", slot, "NODE", &self.id(new)]);
        }
    }

    /// Moves a slot at once from the first node to the second, as Redis does from 8.4 on, or as Valkey does from 9.0
    /// on. Fails on others.
    pub fn move_at_once(&self, slot: &str) {
        self.move_at_once_between(slot, 0, 1);
    }

    /// The same between any two nodes. When this returns the slot is on its way.
    pub fn move_at_once_between(&self, slot: &str, old: usize, new: usize) {
        let attempts = [
            self.conn(new).call(&["CLUSTER", "MIGRATION", "IMPORT", slot, slot]),
            self.conn(old).call(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", &self.id(new)]),
        ];
        let refusals: Vec<String> =
            attempts.iter().filter_map(|reply| reply.as_ref().err().map(ToString::to_string)).collect();
        assert!(refusals.len() < attempts.len(), "{refusals:?}");
    }

    /// Whether the nodes can do that.
    pub fn can_move_at_once(&self) -> bool {
        let help: Vec<String> = self.conn(0).get(&["CLUSTER", "HELP"]);
        help.iter().any(|line| line.starts_with("MIGRATION ") || line.starts_with("MIGRATESLOTS "))
    }
}
