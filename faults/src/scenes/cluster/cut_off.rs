//! Primaries that are cut off from all other nodes, but not from clients. The replica takes over a moment later, by
//! CLUSTER FAILOVER TAKEOVER. The old primary grants until it notices that it hears of no majority: that takes
//! `cluster-node-timeout` or somewhat more. Some clients keep to it, others ask its successor. What it has granted
//! since it was cut off is lost when it hears of its successor.
//!
//! Two owners may then hold a lock. With a grace as long as the longest lease and `cluster-node-timeout` nothing may be
//! held twice, except by what the old primary granted later than `cluster-node-timeout` after the promotion. The
//! clients and this program have one clock, which judges that. A machine that stalls makes more such exceptions.

use super::map::{Map, SLOTS, is_primary};
use crate::crowd::{Crowd, Stop};
use crate::history::{Grant, Moment};
use crate::judge::{TWICE, answers, count, fences, holds, tell};
use crate::options::Options;
use crate::report::Report;
use crate::worker::{Habits, Saw};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Cluster, Proxy, wait_for};

/// As the nodes of the tests' clusters have it.
const NODE_TIMEOUT_MS: u64 = 1_500;
const LEASE_MS_MAX: u64 = 2_500;
/// As docs/operations/failover.md says.
const GRACE_MS: u64 = LEASE_MS_MAX + NODE_TIMEOUT_MS;

/// Grants of primaries that had a successor.
const DEPOSED: &str = "grants of deposed primaries";
/// Holds of a deposed primary that ended within the last second before the grace did, or later.
const BARELY: &str = "holds that a grace one second shorter would not outlast";

pub fn run(options: &Options, has_grace: bool, report: &mut Report) {
    let net = Net::start(if has_grace { GRACE_MS } else { 0 });
    let clients = clients();
    let keys = &clients[0].1.keys;
    let [heard, unheard] = [Map::of(&net.cluster, keys), Map::of(&net.cluster, keys)];
    let (place, old_place) = (|key: &str| heard.place(key), |key: &str| unheard.place(key));
    let patience = Duration::from_secs(5);
    let keeping = Crowd { number: 1, clients: &clients, patience, place: &old_place };
    let turning = Crowd { number: 2, clients: &clients, patience, place: &place };
    let mut dice = options.dice(u64::from(has_grace));
    let [goes_on, is_cut] = [AtomicBool::new(true), AtomicBool::new(false)];
    let on = || goes_on.load(Ordering::Relaxed);
    let ((cuts, one), other) = thread::scope(|scope| {
        scope.spawn(|| heard.follow(&net.ports(), &on, &|| true));
        scope.spawn(|| unheard.follow(&net.ports(), &on, &|| !is_cut.load(Ordering::Relaxed)));
        let _stop = Stop(&goes_on);
        keeping.during(options, || {
            turning.during(options, || {
                let mut cut = |_| net.cut_off(&heard, has_grace, &is_cut, &mut dice);
                (0..options.rounds.div_ceil(3)).map(&mut cut).collect::<Vec<Cut>>()
            })
        })
    });
    judge_cuts(has_grace, &cuts, &crate::worker::together([one, other]), report);
    report.must_see([DEPOSED, if has_grace { BARELY } else { "held twice, by a primary that was cut off" }]);
}

/// Most hold until the lease ends, or longer.
fn clients() -> [(u64, Habits); 1] {
    let of_slot = |slot| (0..12).map(move |number| format!("{{slot{slot}}}{number}"));
    let habits = Habits {
        keys: (0..SLOTS).flat_map(of_slot).collect(),
        readers: 10,
        lease_ms: LEASE_MS_MAX - 500..=LEASE_MS_MAX,
        hold_ms: 1000..=3000,
        block_ms: 0..=300,
        ..Habits::brief(0)
    };
    [(40, habits)]
}

/// A cluster whose nodes reach each other through doors. Clients, too, but no door is ever closed for them.
struct Net {
    cluster: Cluster,
    nodes: Vec<Doors>,
}

struct Doors {
    /// For clients and replicas.
    front: Proxy,
    /// For the other nodes.
    bus: Proxy,
    /// Where the node's own connections come from.
    source: IpAddr,
}

impl Net {
    fn start(grace_ms: u64) -> Net {
        let cluster = Cluster::start(3, 1);
        let doors = |(node, number): (&testbed::Server, u8)| Doors {
            front: Proxy::to(node.port()),
            bus: Proxy::to(node.bus_port()),
            source: IpAddr::from([127, 0, 0, number]),
        };
        let nodes: Vec<Doors> = cluster.nodes.iter().zip(2..).map(doors).collect();
        let set = |number: usize, name: &str, value: &str| cluster.conn(number).ok(&["CONFIG", "SET", name, value]);
        for (number, node) in nodes.iter().enumerate() {
            set(number, "bind-source-addr", &node.source.to_string());
            set(number, "lock.grace-ms", &grace_ms.to_string());
        }
        // The others connect anew to a node that has another address.
        for (number, node) in nodes.iter().enumerate() {
            set(number, "cluster-announce-ip", "127.0.0.1");
            set(number, "cluster-announce-port", &node.front.port().to_string());
            set(number, "cluster-announce-bus-port", &node.bus.port().to_string());
        }
        let net = Net { cluster, nodes };
        for number in 0..net.nodes.len() {
            wait_for("all nodes to use the doors", || {
                let known: String = net.cluster.conn(number).get(&["CLUSTER", "NODES"]);
                let address = |doors: &Doors| format!(" 127.0.0.1:{}@{}", doors.front.port(), doors.bus.port());
                let links = known.lines().filter(|line| line.contains(" connected ") || line.ends_with(" connected"));
                net.nodes.iter().all(|doors| known.contains(&address(doors))) && links.count() == net.nodes.len()
            });
        }
        net
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|doors| doors.front.port()).collect()
    }

    /// A replica that is in sync with this primary.
    fn replica_of(&self, primary: usize) -> Option<usize> {
        let door = format!("master_port:{}\r", self.nodes[primary].front.port());
        (0..self.nodes.len()).find(|number| {
            let state: String = self.cluster.conn(*number).get(&["INFO", "replication"]);
            state.contains(&door) && state.contains("master_link_status:up\r")
        })
    }

    /// Cuts a primary off until it grants nothing any more, and lets its replica take over.
    fn cut_off(&self, map: &Map, has_grace: bool, is_cut: &AtomicBool, dice: &mut StdRng) -> Cut {
        let (mut old, mut new, mut key) = (0, 0, String::new());
        wait_for("every primary to have its replica", || {
            let primaries: Vec<usize> =
                (0..self.nodes.len()).filter(|number| is_primary(&self.cluster, *number)).collect();
            let replicas: Option<Vec<usize>> = primaries.iter().map(|primary| self.replica_of(*primary)).collect();
            key = map.slots.keys().collect::<Vec<_>>().choose(dice).expect("there are keys").to_string();
            let port = map.place(&key);
            let Some(chosen) = primaries.iter().position(|primary| port == Some(self.nodes[*primary].front.port()))
            else {
                return false;
            };
            let Some(replicas) = replicas.filter(|replicas| replicas.len() == 3) else { return false };
            (old, new) = (primaries[chosen], replicas[chosen]);
            true
        });
        // Clients are to hold something.
        thread::sleep(Duration::from_millis(dice.random_range(1000..=2000)));
        is_cut.store(true, Ordering::Relaxed);
        let from = Moment::now();
        // Its replica is to have all that was granted before. The name lies in the slot of that key.
        let mut conn = self.cluster.conn(old);
        conn.ok(&["SET", &format!("{key}-heard"), "1"]);
        assert_eq!(conn.int(&["WAIT", "1", "60000"]).expect("it has a replica"), 1, "the replica hears nothing");
        self.freeze(old, true);
        thread::sleep(Duration::from_millis(dice.random_range(200..=800)));
        let asked = Moment::now();
        let answer = self.cluster.conn(new).call(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        // On a busy machine the others may have chosen it already: at some moment since.
        let promoted = if answer.is_ok() { asked } else { from };
        wait_for("the replica to take over", || is_primary(&self.cluster, new));
        wait_for("the old primary to notice", || conn.cluster_info("cluster_state") == "fail");
        let noticed = Moment::now();
        if has_grace {
            let over_ms = promoted.after_ms(GRACE_MS).0.saturating_sub(noticed.0) / 1_000;
            // And what is granted then is to be held for some time.
            thread::sleep(Duration::from_millis(over_ms + 500));
        }
        self.freeze(old, false);
        wait_for("the old primary to hear of its successor", || !is_primary(&self.cluster, old));
        is_cut.store(false, Ordering::Relaxed);
        let [old, new] = [old, new].map(|number| self.nodes[number].front.port());
        Cut { old, new, from, promoted, to: Moment::now() }
    }

    /// Holds back whatever passes between a node and the others, or lets them meet again. What was held back is lost.
    fn freeze(&self, cut: usize, frozen: bool) {
        let others = || self.nodes.iter().enumerate().filter(|(number, _)| *number != cut).map(|(_, doors)| doors);
        let (theirs, its): (Vec<IpAddr>, Vec<IpAddr>) = if frozen {
            (others().map(|doors| doors.source).collect(), vec![self.nodes[cut].source])
        } else {
            self.nodes.iter().for_each(|doors| doors.bus.cut_all());
            Default::default()
        };
        self.nodes[cut].bus.freeze(frozen);
        self.nodes[cut].front.freeze_from(&theirs);
        for doors in others() {
            doors.bus.freeze_from(&its);
            doors.front.freeze_from(&its);
        }
    }
}

#[derive(Debug)]
struct Cut {
    /// Its port, as clients know it.
    old: u16,
    new: u16,
    /// Its replica has all that was granted before.
    from: Moment,
    /// Its successor was none before.
    promoted: Moment,
    /// It knows of its successor.
    to: Moment,
}

impl Cut {
    /// Whether the successor may not know of this grant.
    fn may_have_lost(&self, grant: &Grant) -> bool {
        grant.node == self.old && self.from < grant.told && grant.asked < self.to
    }

    /// Whether the owner may have been told that it does not hold: by a node that does not know of this grant.
    fn may_deny(&self, grant: &Grant) -> bool {
        // Clients may turn from the successor to the old primary, too.
        let is_of_the_new = grant.node == self.new && self.from < grant.told;
        let asked_the_old = grant.release.is_some_and(|release| release.asked < self.to);
        self.may_have_lost(grant) || is_of_the_new && asked_the_old
    }

    /// Whether the grant was made when there was a successor, maybe.
    fn is_deposed(&self, grant: &Grant) -> bool {
        self.may_have_lost(grant) && self.promoted < grant.told
    }

    /// Whether the hold may last until shortly before the end of the grace, or longer.
    fn barely_ends(&self, grant: &Grant) -> bool {
        let lasts = self.promoted.after_ms(GRACE_MS - 1_000) < grant.held_until();
        self.is_deposed(grant) && !self.is_too_late(grant) && lasts
    }

    /// Whether it may have been made too late for the grace.
    fn is_too_late(&self, grant: &Grant) -> bool {
        self.is_deposed(grant) && self.promoted.after_ms(NODE_TIMEOUT_MS) < grant.told
    }
}

fn judge_cuts(has_grace: bool, cuts: &[Cut], saw: &Saw, report: &mut Report) {
    count(report, saw);
    let any = |judge: fn(&Cut, &Grant) -> bool, grant: &Grant| cuts.iter().any(|cut| judge(cut, grant));
    let mut concerned = |figure: &str, judge| {
        report.add(figure, saw.grants.iter().filter(|grant| any(judge, grant)).count() as u64);
    };
    concerned(DEPOSED, Cut::is_deposed);
    concerned("grants of deposed primaries after cluster-node-timeout", Cut::is_too_late);
    concerned(BARELY, Cut::barely_ends);
    report.add("primaries cut off", cuts.len() as u64);
    tell(report, holds(&saw.grants, &[]), |wrong| {
        let is = |judge| wrong.grants.iter().any(|grant| any(judge, grant));
        match (wrong.name, has_grace) {
            (TWICE, true) => is(Cut::is_too_late).then_some(", granted after cluster-node-timeout"),
            (TWICE, false) => is(Cut::may_have_lost).then_some(", by a primary that was cut off"),
            _ => is(Cut::may_deny).then_some(""),
        }
    });
    // A deposed primary does not know of its successor's.
    let counted: Vec<Grant> = saw.grants.iter().filter(|grant| !any(Cut::is_deposed, grant)).cloned().collect();
    tell(report, [fences(&counted), answers(&saw.forgotten, &saw.too_early)].concat(), |_| None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Freed, Release};

    fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000)
    }

    fn grant(node: u16, owner: &str, told: u64) -> Grant {
        let (key, owner) = ("key".to_owned(), owner.to_owned());
        let (asked, told, lease_ends) = (ms(told - 1), ms(told), ms(told - 1 + LEASE_MS_MAX));
        Grant { key, owner, writes: true, fence: told.0 as i64, node, asked, told, lease_ends, release: None }
    }

    fn violations_in(has_grace: bool, grants: Vec<Grant>) -> usize {
        let cut = Cut { old: 1, new: 2, from: ms(10_000), promoted: ms(10_500), to: ms(13_000) };
        let mut report = Report::default();
        judge_cuts(has_grace, &[cut], &Saw { grants, ..Saw::default() }, &mut report);
        report.violation_count()
    }

    fn violations(has_grace: bool, first: Grant, second: Grant) -> usize {
        violations_in(has_grace, vec![first, second])
    }

    #[test]
    fn with_a_grace_only_a_grant_after_the_node_timeout_may_be_followed_by_another() {
        let after = |told| violations(true, grant(1, "a", told), grant(2, "b", told + 2_000));
        assert_eq!((after(10_200), after(11_900), after(12_100)), (1, 1, 0));
    }

    #[test]
    fn without_a_grace_what_a_cut_primary_granted_may_be_held_by_another() {
        let pair = |node, told| violations(false, grant(node, "a", told), grant(2, "b", told + 2_000));
        assert_eq!((pair(1, 10_200), pair(1, 12_100)), (0, 0));
        assert_eq!((pair(3, 10_200), pair(1, 9_900), pair(1, 13_100)), (1, 1, 1));
    }

    #[test]
    fn only_a_node_that_does_not_know_of_a_grant_may_deny_it() {
        let denied = |node, told| {
            let (asked, answer) = (ms(told + 1_000), (ms(told + 1_001), Freed::NotHeld));
            let release = Some(Release { asked, answer: Some(answer) });
            violations_in(true, vec![Grant { release, ..grant(node, "a", told) }])
        };
        assert_eq!((denied(1, 10_100), denied(2, 11_500)), (0, 0));
        assert_eq!((denied(1, 9_900), denied(2, 9_900), denied(3, 11_500)), (1, 1, 1));
        assert_eq!((denied(1, 13_100), denied(2, 12_500)), (1, 1), "the old primary knows of its successor");
    }
}
