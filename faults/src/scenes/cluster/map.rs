//! Which node of a cluster serves what.

use crate::caller::{Answer, Caller};
use redis::Value;
use std::collections::BTreeMap;
use std::sync::RwLock;
use std::thread;
use std::time::Duration;
use testbed::Cluster;

/// Several keys in each of so many slots.
pub const SLOTS: usize = 6;

/// Which node serves what, as some node says.
pub struct Map {
    pub slots: BTreeMap<String, i64>,
    ranges: RwLock<Ranges>,
}

/// The first and the last slot, and the port of their primary.
pub type Ranges = Vec<(i64, i64, u16)>;

impl Map {
    pub fn of(cluster: &Cluster, keys: &[String]) -> Map {
        let mut conn = cluster.conn(0);
        let mut slot = |key: &String| (key.clone(), conn.get(&["CLUSTER", "KEYSLOT", key]));
        let slots = keys.iter().map(&mut slot).collect();
        Map { slots, ranges: RwLock::default() }
    }

    /// Keeps asking one node after the other while it may go on, and believes what it hears while it may.
    pub fn follow(&self, ports: &[u16], goes_on: &dyn Fn() -> bool, believes: &dyn Fn() -> bool) {
        let mut callers: Vec<Caller> =
            ports.iter().map(|port| Caller::new(*port, Duration::from_millis(200))).collect();
        while goes_on() {
            for caller in &mut callers {
                if let Answer::Value(value) = caller.ask("CLUSTER SLOTS").1
                    && believes()
                {
                    *self.ranges.write().expect("nobody panics with it") = ranges(value);
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    pub fn place(&self, key: &str) -> Option<u16> {
        owner(&self.ranges.read().expect("nobody panics with it"), self.slots[key])
    }

    pub fn slots(&self) -> Vec<i64> {
        let mut slots: Vec<i64> = self.slots.values().copied().collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

/// The port of the primary of a slot.
pub fn owner(ranges: &Ranges, slot: i64) -> Option<u16> {
    ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, port)| *port)
}

pub fn ranges(value: Value) -> Ranges {
    let range = |fields: &Value| {
        let Value::Array(fields) = fields else { return None };
        let (Value::Int(first), Value::Int(last), Value::Array(primary)) = (&fields[0], &fields[1], &fields[2]) else {
            return None;
        };
        let Value::Int(port) = primary[1] else { return None };
        Some((*first, *last, u16::try_from(port).expect("a port")))
    };
    let Value::Array(entries) = value else { panic!("CLUSTER SLOTS -> {value:?}") };
    entries.iter().map(|entry| range(entry).expect("first, last, and the primary's address and port")).collect()
}

/// Whether a node says that it is a primary.
pub fn is_primary(cluster: &Cluster, number: usize) -> bool {
    cluster.conn(number).info("replication", "role") == "master"
}
