//! A cluster of three primaries with a replica each, under load. A round is one of these: slots are moved with the locks in
//! them, key by key; a replica takes over by CLUSTER FAILOVER; slots are moved at once, where the server can do that; a primary is
//! killed, and its replica takes over by itself.
//!
//! Nothing is lost by a move or a CLUSTER FAILOVER: no lock may be held on two nodes, every hold goes on where it is served by then
//! and ends with its lease, and everybody who waits is answered. A primary that is killed may take its last grants along;
//! what comes of that is counted. Fences go never back.

use faults::audit;
use faults::caller::{Answer, Caller};
use faults::crowd::{Crowd, Stop};
use faults::history::{self, Grant, Moment, Sighting};
use faults::options::Options;
use faults::report::Report;
use faults::worker::{Habits, Saw};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use redis::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Cluster, wait_for};

/// Grants so shortly before a kill may be lost by it: far more than replication takes.
const WINDOW_MS: u64 = 1_000;

/// So long it may take until all nodes know of a fence that is ahead of the wall clock: a tick of the server, and more on a busy
/// machine. A slot that is moved may be faster, and then its free keys get lower ones, as the README says.
const HEARSAY_MS: u64 = 200;

/// And they are lower by no more than the fences that are given in that time, one for each grant.
const HEARSAY_FENCES: i64 = 1_000;

/// A lease must not be seen so long after its end.
const OVERDUE_MS: u64 = 1_000;

/// What happened to a primary whose last grants may be lost.
const KILLED: &str = "primaries killed";

/// Several keys in each of so many slots.
const SLOTS: usize = 6;

fn main() -> ExitCode {
    let about =
        "Moves slots and primaries of a cluster under load, and looks for locks that are lost or held on two nodes";
    let options = Options::read("cluster", about, "32");
    let mut cluster = Cluster::start(3, 1);
    let clients = clients();
    let keys: Vec<String> = clients.iter().flat_map(|(_, habits)| habits.keys.clone()).collect();
    let map = Map::of(&cluster, &keys);
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port()).collect();
    let place = |key: &str| map.place(key);
    let crowd = Crowd { number: 0, clients: &clients, patience: Duration::from_secs(5), place: &place };
    let mut dice = options.dice(0);
    let goes_on = AtomicBool::new(true);
    let ((events, sightings), saw) = thread::scope(|scope| {
        scope.spawn(|| map.follow(&ports, &|| goes_on.load(Ordering::Relaxed)));
        let _stop = Stop(&goes_on);
        crowd.during(&options, || {
            audit::during(&keys, &place, || {
                (0..options.rounds).map(|round| event(round, &mut cluster, &map, &mut dice)).collect::<Vec<Event>>()
            })
        })
    });
    judge(&events, &saw, &sightings)
}

/// Some hold for long, so that slots are moved with locks in them that are held and waited for; some write all the time.
fn clients() -> [(u64, Habits); 2] {
    let keys = |kinds: &[&str]| {
        let of_slot = |slot| kinds.iter().map(move |kind| format!("{{slot{slot}}}{kind}"));
        (0..SLOTS).flat_map(of_slot).collect()
    };
    let slow = Habits {
        keys: keys(&["a", "b"]),
        readers: 40,
        lease_ms: 300..=8000,
        hold_ms: 0..=4000,
        block_ms: 0..=3000,
        confirm: None,
    };
    let quick = Habits { keys: keys(&["quick"]), lease_ms: 300..=2000, hold_ms: 0..=10, ..slow.clone() };
    [(24, slow), (8, quick)]
}

/// Which node serves what, as some node says.
struct Map {
    slots: BTreeMap<String, i64>,
    ranges: RwLock<Ranges>,
}

/// The first and the last slot, and the port of their primary.
type Ranges = Vec<(i64, i64, u16)>;

impl Map {
    fn of(cluster: &Cluster, keys: &[String]) -> Map {
        let mut conn = cluster.conn(0);
        let mut slot = |key: &String| (key.clone(), conn.get(&["CLUSTER", "KEYSLOT", key]));
        let slots = keys.iter().map(&mut slot).collect();
        Map { slots, ranges: RwLock::default() }
    }

    /// Keeps asking one node after the other while it may go on.
    fn follow(&self, ports: &[u16], goes_on: &dyn Fn() -> bool) {
        let mut callers: Vec<Caller> =
            ports.iter().map(|port| Caller::new(*port, Duration::from_millis(200))).collect();
        while goes_on() {
            for caller in &mut callers {
                if let Answer::Value(value) = caller.ask("CLUSTER SLOTS").1 {
                    *self.ranges.write().expect("nobody panics with it") = ranges(value);
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn place(&self, key: &str) -> Option<u16> {
        owner(&self.ranges.read().expect("nobody panics with it"), self.slots[key])
    }

    /// The slots that are used.
    fn slots(&self) -> Vec<i64> {
        let mut slots: Vec<i64> = self.slots.values().copied().collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

fn owner(ranges: &Ranges, slot: i64) -> Option<u16> {
    ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, port)| *port)
}

/// From the answer to CLUSTER SLOTS.
fn ranges(value: Value) -> Ranges {
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

/// What was done to the cluster, and when.
#[derive(Debug)]
struct Event {
    what: &'static str,
    at: Moment,
}

fn event(round: u64, cluster: &mut Cluster, map: &Map, dice: &mut StdRng) -> Event {
    // Sometimes at once after the one before.
    thread::sleep(Duration::from_millis(dice.random_range(0..=2000)));
    match round % 4 {
        1 => take_over(cluster, dice),
        3 => kill(cluster, dice),
        turn => move_slots(cluster, map, turn == 2 && cluster.can_move_at_once(), dice),
    }
}

impl Event {
    fn now(what: &'static str) -> Event {
        Event { what, at: Moment::now() }
    }
}

/// A primary and its replica, by number.
fn pair(cluster: &Cluster, dice: &mut StdRng) -> (usize, usize) {
    let mut pairs = Vec::new();
    wait_for("every primary to have its replica", || {
        pairs = (0..cluster.nodes.len()).filter_map(|replica| Some((primary_of(cluster, replica)?, replica))).collect();
        pairs.len() == 3
    });
    *pairs.choose(dice).expect("there are three")
}

/// The primary of a replica that is in sync with it.
fn primary_of(cluster: &Cluster, replica: usize) -> Option<usize> {
    let state: String = cluster.conn(replica).get(&["INFO", "replication"]);
    let field = |name: &str| state.lines().find_map(|line| line.strip_prefix(name));
    let port = field("master_port:").filter(|_| field("master_link_status:") == Some("up"))?;
    cluster.nodes.iter().position(|node| node.port().to_string() == port)
}

fn is_primary(cluster: &Cluster, number: usize) -> bool {
    cluster.conn(number).info("replication", "role") == "master"
}

fn take_over(cluster: &Cluster, dice: &mut StdRng) -> Event {
    let (_, replica) = pair(cluster, dice);
    let event = Event::now("CLUSTER FAILOVER");
    cluster.conn(replica).ok(&["CLUSTER", "FAILOVER"]);
    wait_for("the replica to take over", || is_primary(cluster, replica));
    event
}

fn kill(cluster: &mut Cluster, dice: &mut StdRng) -> Event {
    let (primary, replica) = pair(cluster, dice);
    let event = Event::now(KILLED);
    cluster.nodes[primary].stop(true);
    wait_for("the replica to take over", || is_primary(cluster, replica));
    cluster.nodes[primary].start();
    event
}

fn move_slots(cluster: &Cluster, map: &Map, at_once: bool, dice: &mut StdRng) -> Event {
    let event = Event::now(if at_once { "slots moved at once" } else { "slots moved key by key" });
    for _ in 0..2 {
        move_slot(cluster, map, at_once, dice);
    }
    event
}

fn move_slot(cluster: &Cluster, map: &Map, at_once: bool, dice: &mut StdRng) {
    let slot = *map.slots().choose(dice).expect("there are slots");
    let (old, new) = {
        let (primary, replica) = pair(cluster, dice);
        let old = serving(cluster, replica, slot);
        // Any primary but the one that has it.
        let mut others = (0..cluster.nodes.len()).filter(|number| *number != old && is_primary(cluster, *number));
        (old, if primary == old { others.next().expect("there are three") } else { primary })
    };
    if at_once {
        cluster.move_at_once_between(&slot.to_string(), old, new);
    } else {
        move_by_keys(cluster, &slot.to_string(), old, new, dice);
    }
    wait_for("all to know where the slot is", || {
        (0..cluster.nodes.len()).all(|number| serving(cluster, number, slot) == new)
    });
}

/// Who serves a slot, as one of the nodes says.
fn serving(cluster: &Cluster, number: usize, slot: i64) -> usize {
    let ranges = ranges(cluster.conn(number).get(&["CLUSTER", "SLOTS"]));
    let port = owner(&ranges, slot).expect("all slots are served");
    cluster.nodes.iter().position(|node| node.port() == port).expect("one of them")
}

fn move_by_keys(cluster: &Cluster, slot: &str, old: usize, new: usize, dice: &mut StdRng) {
    let mut pause = || thread::sleep(Duration::from_millis(dice.random_range(0..=100)));
    let (mut from, mut to) = (cluster.conn(old), cluster.conn(new));
    to.ok(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &cluster.id(old)]);
    from.ok(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &cluster.id(new)]);
    let port = cluster.nodes[new].port().to_string();
    loop {
        let keys: Vec<String> = from.get(&["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
        let Some(key) = keys.first() else { break };
        pause();
        // OK, or NOKEY if it was released meanwhile.
        from.get::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    pause();
    let id = cluster.id(new);
    to.ok(&["CLUSTER", "SETSLOT", slot, "NODE", &id]);
    pause();
    from.ok(&["CLUSTER", "SETSLOT", slot, "NODE", &id]);
}

fn judge(events: &[Event], saw: &Saw, sightings: &[Sighting]) -> ExitCode {
    let mut report = Report::default();
    events.iter().for_each(|event| report.add(event.what, 1));
    let grants = &saw.grants;
    report.add("grants", grants.len() as u64);
    report.add("looks", sightings.len() as u64);
    let granted_at: BTreeMap<&String, u16> = grants.iter().map(|grant| (&grant.owner, grant.node)).collect();
    let elsewhere =
        |look: &&Sighting| look.owners.iter().any(|owner| granted_at.get(owner).is_some_and(|node| *node != look.node));
    report.add("holds seen at another node than granted", sightings.iter().filter(elsewhere).count() as u64);

    let killed: Vec<Moment> = events.iter().filter(|event| event.what == KILLED).map(|event| event.at).collect();
    // Whether a kill came shortly after the first and before the last.
    let by_a_kill =
        |first: Moment, last: Moment| killed.iter().any(|kill| *kill < first.after_ms(WINDOW_MS) && *kill < last);
    let mut found = Vec::new();
    let pairs = history::held_twice(grants).into_iter();
    found.extend(pairs.map(|(one, other)| ("held twice", by_a_kill(one.told, other.told), text(&(one, other)))));
    let denied = history::lost(grants).into_iter();
    let answered = |grant: &Grant| grant.release.and_then(|release| release.answer).expect("it was denied").0;
    found.extend(denied.map(|grant| ("denied to its owner", by_a_kill(grant.told, answered(grant)), text(grant))));
    let missing = history::missing(grants, sightings).into_iter();
    found.extend(missing.map(|(grant, look)| ("missing", by_a_kill(grant.told, look.told), text(&(grant, look)))));
    let returned = history::returned(grants, sightings).into_iter();
    found.extend(returned.map(|(grant, look)| {
        ("released, and there again", by_a_kill(answered(grant), look.told), text(&(grant, look)))
    }));
    let overdue = history::overdue(grants, sightings, OVERDUE_MS).iter().map(text).collect::<Vec<_>>();
    found.extend(overdue.into_iter().map(|text| ("there after its lease", false, text)));
    for (name, pairs) in
        [("fences back", history::fences_back(grants)), ("fence repeated", history::fences_repeated(grants))]
    {
        for pair in pairs {
            let (first, second) = if pair.0.told < pair.1.told { pair } else { (pair.1, pair.0) };
            let is_late = second.asked > first.told.after_ms(HEARSAY_MS);
            if first.node != second.node && !is_late && first.fence - second.fence < HEARSAY_FENCES {
                report.add(&format!("{name}, faster than the nodes could tell"), 1);
            } else {
                found.push((name, false, text(&pair)));
            }
        }
    }
    found.extend(saw.forgotten.iter().map(|request| ("never answered", false, text(request))));
    for (name, by_a_kill, text) in found {
        if by_a_kill {
            report.add(&format!("{name}, by a kill"), 1);
        } else {
            report.violation(format!("{name}: {text}"));
        }
    }
    report.must_see("holds seen at another node than granted");
    report.must_see("slots moved key by key");
    saw.answers.iter().for_each(|(answer, count)| report.add(&format!("answered {answer}"), *count));
    report.finish()
}

fn text(what: &impl Debug) -> String {
    format!("{what:?}")
}
