//! A cluster of three primaries with a replica each, under load. A round is one of these: slots are moved with the
//! locks in them, key by key; a replica takes over by CLUSTER FAILOVER; slots are moved at once, where the server can
//! do that; a primary is killed, and its replica takes over by itself.
//!
//! A move or a CLUSTER FAILOVER loses nothing. No lock may be held on two nodes. Every hold goes on where its slot is
//! served by then, and ends with its lease. Every waiter is answered. A primary that is killed may lose its last
//! grants; the run counts the consequences. Fences never go back.
//!
//! Two more scenes have primaries that are cut off, with a grace after each promotion or without: see [`cut_off`].
//! There, a third as many rounds are as many cuts.

mod cut_off;
mod map;

use self::map::{Map, SLOTS, is_primary, owner, ranges};
use crate::audit;
use crate::crowd::{Crowd, Stop};
use crate::history::{Grant, Moment, Sighting};
use crate::judge::{LOSSES, TWICE, judge};
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::worker::{Habits, Saw};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Cluster, wait_for};

/// Grants so shortly before a kill may be lost by it: far more than replication takes.
const WINDOW_MS: u64 = 1_000;

/// So long after its server was killed an answer may still be read, on a busy machine.
const READ_MS: u64 = 100;

/// So long it may take until all nodes know of a fence that is ahead of the wall clock. That is a tick of the server,
/// and more on a busy machine. A slot that is moved may be faster, and then its free keys get lower ones, as
/// docs/guarantees.md says.
const HEARSAY_MS: u64 = 200;

/// And they are lower by no more than the fences that are given in that time, one for each grant.
const HEARSAY_FENCES: i64 = 1_000;

/// What happened to a primary whose last grants may be lost.
const KILLED: &str = "primaries killed";
/// What else is done.
const FAILOVER: &str = "CLUSTER FAILOVER";
const BY_KEYS: &str = "slots moved key by key";
const AT_ONCE: &str = "slots moved at once";

pub const SCENE: Scene = Scene {
    name: "cluster",
    about: "Moves slots and primaries of a cluster under load, and looks for locks that are lost or held on two nodes",
    rounds: "32",
    variants: (
        "scene",
        "Slots and primaries that move; primaries that are cut off, without a grace or with one",
        &["moves", "cut-off", "cut-off-with-grace"],
    ),
    attempts: 3,
    play: |options, report| match options.variant {
        "moves" => run(options, report),
        topic => cut_off::run(options, topic.ends_with("-with-grace"), report),
    },
    ..Scene::PLAIN
};

fn run(options: &Options, report: &mut Report) {
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
        scope.spawn(|| map.follow(&ports, &|| goes_on.load(Ordering::Relaxed), &|| true));
        let _stop = Stop(&goes_on);
        crowd.during(options, || {
            audit::during(&keys, &place, || {
                (0..options.rounds)
                    .flat_map(|round| event(round, &mut cluster, &map, &mut dice))
                    .collect::<Vec<Event>>()
            })
        })
    });
    judge_moves(&events, &map, (&saw, &sightings), report);
    report.must_see(["holds seen at another node than granted", BY_KEYS, "answered woken by a message"]);
    for (what, rounds, can_be) in [(FAILOVER, 2, true), (AT_ONCE, 3, cluster.can_move_at_once()), (KILLED, 4, true)] {
        report.must_see((options.rounds >= rounds && can_be).then_some(what));
    }
}

/// Some hold for long, so that slots move with locks that have holders and waiters; some write all the time; some wait
/// by NOTIFY.
fn clients() -> [(u64, Habits); 3] {
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
        ..Habits::brief(0)
    };
    let quick = Habits { keys: keys(&["quick"]), lease_ms: 300..=2000, hold_ms: 0..=10, ..slow.clone() };
    let told = Habits { notify: true, hold_ms: 0..=500, ..slow.clone() };
    [(20, slow), (8, quick), (8, told)]
}

#[derive(Debug)]
struct Event {
    what: &'static str,
    slot: Option<i64>,
    /// When it began, and when it was done; a kill is done when the process is gone.
    from: Moment,
    to: Moment,
}

fn event(round: u64, cluster: &mut Cluster, map: &Map, dice: &mut StdRng) -> Vec<Event> {
    // Sometimes at once after the one before.
    thread::sleep(Duration::from_millis(dice.random_range(0..=2000)));
    match round % 4 {
        1 => vec![take_over(cluster, dice)],
        3 => vec![kill(cluster, dice)],
        turn => {
            let at_once = turn == 2 && cluster.can_move_at_once();
            (0..2).map(|_| move_slot(cluster, map, at_once, dice)).collect()
        }
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

fn take_over(cluster: &Cluster, dice: &mut StdRng) -> Event {
    let (_, replica) = pair(cluster, dice);
    let from = Moment::now();
    cluster.conn(replica).ok(&["CLUSTER", "FAILOVER"]);
    wait_for("the replica to take over", || is_primary(cluster, replica));
    Event { what: FAILOVER, slot: None, from, to: Moment::now() }
}

fn kill(cluster: &mut Cluster, dice: &mut StdRng) -> Event {
    let (primary, replica) = pair(cluster, dice);
    let from = Moment::now();
    cluster.nodes[primary].stop(true);
    let to = Moment::now();
    wait_for("the replica to take over", || is_primary(cluster, replica));
    cluster.nodes[primary].start();
    Event { what: KILLED, slot: None, from, to }
}

fn move_slot(cluster: &Cluster, map: &Map, at_once: bool, dice: &mut StdRng) -> Event {
    let slot = *map.slots().choose(dice).expect("there are slots");
    let (old, new) = {
        let (primary, replica) = pair(cluster, dice);
        let old = serving(cluster, replica, slot);
        // Any primary but the one that has it.
        let mut others = (0..cluster.nodes.len()).filter(|number| *number != old && is_primary(cluster, *number));
        (old, if primary == old { others.next().expect("there are three") } else { primary })
    };
    let from = Moment::now();
    if at_once {
        cluster.move_at_once_between(&slot.to_string(), old, new);
    } else {
        move_by_keys(cluster, &slot.to_string(), old, new, dice);
    }
    wait_for("all to know where the slot is", || {
        (0..cluster.nodes.len()).all(|number| serving(cluster, number, slot) == new)
    });
    Event { what: if at_once { AT_ONCE } else { BY_KEYS }, slot: Some(slot), from, to: Moment::now() }
}

/// The node that serves a slot, as one of the nodes says.
fn serving(cluster: &Cluster, number: usize, slot: i64) -> usize {
    let ranges = ranges(cluster.conn(number).get(&["CLUSTER", "SLOTS"]));
    let port = owner(&ranges, slot).expect("all slots are served");
    cluster.nodes.iter().position(|node| node.port() == port).expect("one of them")
}

fn move_by_keys(cluster: &Cluster, slot: &str, old: usize, new: usize, dice: &mut StdRng) {
    let mut pause = || thread::sleep(Duration::from_millis(dice.random_range(0..=100)));
    let mut from = cluster.conn(old);
    cluster.begin_move(slot, old, new);
    let port = cluster.nodes[new].port().to_string();
    loop {
        let keys: Vec<String> = from.get(&["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
        let Some(key) = keys.first() else { break };
        pause();
        // OK, or NOKEY if it was released meanwhile.
        from.get::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    let id = cluster.id(new);
    for number in [new, old] {
        pause();
        cluster.conn(number).ok(&["CLUSTER", "SETSLOT", slot, "NODE", &id]);
    }
}

impl Event {
    /// Whether what happened shortly before this can be undone at the last moment, because the replica may not have
    /// received it.
    fn may_have_lost(&self, first: Moment, last: Moment) -> bool {
        self.what == KILLED
            && first < self.to.after_ms(READ_MS)
            && self.from < first.after_ms(WINDOW_MS)
            && self.to < last
    }

    /// Whether the slot was free to be moved between two grants on one of its keys, and the second node may lack the
    /// first's fence. A key that is held takes its fence along.
    fn outran(&self, slot: i64, first: &Grant, second: &Grant) -> bool {
        (self.what == BY_KEYS && self.slot == Some(slot) && first.node != second.node)
            && (first.asked < self.to && first.held_until() < self.to && self.from < second.told)
            && (second.asked <= first.told.after_ms(HEARSAY_MS) && first.fence - second.fence < HEARSAY_FENCES)
    }
}

fn judge_moves(events: &[Event], map: &Map, (saw, sightings): (&Saw, &[Sighting]), report: &mut Report) {
    events.iter().for_each(|event| report.add(event.what, 1));
    report.add("looks", sightings.len() as u64);
    let granted_at: BTreeMap<&String, u16> = saw.grants.iter().map(|grant| (&grant.owner, grant.node)).collect();
    let elsewhere =
        |look: &&Sighting| look.owners.iter().any(|owner| granted_at.get(owner).is_some_and(|node| *node != look.node));
    report.add("holds seen at another node than granted", sightings.iter().filter(elsewhere).count() as u64);
    judge(report, saw, sightings, |wrong| match wrong.grants[..] {
        [first, second] if wrong.name != TWICE => {
            let outran = |event: &Event| event.outran(map.slots[&first.key], first, second);
            events.iter().any(outran).then_some(", faster than the nodes could tell")
        }
        _ => {
            let (first, last) = wrong.between;
            let by_a_kill = events.iter().any(|event| event.may_have_lost(first, last));
            (LOSSES.contains(&wrong.name) && by_a_kill).then_some(", by a kill")
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000)
    }

    fn event(what: &'static str, slot: Option<i64>) -> Event {
        Event { what, slot, from: ms(10_000), to: ms(10_010) }
    }

    #[test]
    fn a_kill_excuses_what_was_done_shortly_before_it_and_undone_after() {
        let kill = event(KILLED, None);
        assert!(kill.may_have_lost(ms(9_900), ms(12_000)));
        assert!(kill.may_have_lost(ms(10_015), ms(12_000)), "read when the server was gone");
        assert!(!kill.may_have_lost(ms(8_900), ms(12_000)), "long replicated");
        assert!(!kill.may_have_lost(ms(9_900), ms(9_950)), "undone before");
        assert!(!kill.may_have_lost(ms(11_000), ms(12_000)), "done afterwards");
        assert!(!event(FAILOVER, None).may_have_lost(ms(9_900), ms(12_000)));
    }

    #[test]
    fn only_a_free_key_in_a_slot_moved_by_keys_may_have_a_lower_fence() {
        let grant = |node, asked, fence| {
            let (key, owner) = ("key".to_owned(), format!("{fence}"));
            let (asked, told, lease_ends) = (ms(asked), ms(asked + 1), ms(asked + 5_000));
            let release = Some(crate::history::Release { asked: told, answer: None });
            Grant { key, owner, writes: true, fence, node, asked, told, lease_ends, release }
        };
        let (first, second) = (grant(1, 9_990, 100), grant(2, 10_100, 90));
        let moved = event(BY_KEYS, Some(7));
        assert!(moved.outran(7, &first, &second));
        assert!(!moved.outran(8, &first, &second), "another slot");
        assert!(!event(AT_ONCE, Some(7)).outran(7, &first, &second));
        assert!(!event(FAILOVER, None).outran(7, &first, &second));
        assert!(!moved.outran(7, &first, &grant(1, 10_100, 90)), "the same node");
        assert!(!moved.outran(7, &first, &grant(2, 10_300, 90)), "long known");
        assert!(!moved.outran(7, &first, &grant(2, 10_100, -1_000)), "much lower");
        assert!(!moved.outran(7, &grant(1, 9_800, 100), &grant(2, 9_900, 90)), "before the move");
        assert!(!moved.outran(7, &grant(1, 10_100, 100), &grant(2, 10_200, 90)), "after the move");
        assert!(!moved.outran(7, &Grant { release: None, ..first.clone() }, &second), "held while it was moved");
    }
}
