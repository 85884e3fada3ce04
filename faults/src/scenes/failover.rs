//! A primary with two replicas under three Sentinels, and clients that ask the Sentinels for the primary. Every few
//! seconds the primary is killed, or is stopped and resumed when it has a successor: a round is one of these.
//!
//! Fences never go back. A lock that is granted within the last moments of a primary may have a second holder, because
//! replication is asynchronous: the run counts these. To produce such moments at all, the wire to the replicas is
//! frozen shortly before (with `WAIT 1`: to one of them). What is in transit is lost. With `WAIT` for both replicas
//! there must be no such holder. With a grace after each promotion, as long as the longest lease, there must be none
//! without `WAIT` either.
//!
//! Only grants of the node that is primary at the time count. Each node is asked for its role all the time. The reign
//! of a node is taken to begin at the last moment at which it said "replica", before it first said "primary". The reign
//! of its predecessor is taken to end at the same moment. So a deposed primary's grants are left out too often rather
//! than too seldom. None of the new primary's are left out, because it grants nothing while it is a replica.

use crate::caller::{Answer, Caller};
use crate::crowd::{Crowd, Stop};
use crate::history::{self, Grant, Moment};
use crate::judge::{DENIED, LOSSES, TWICE, UNANSWERED, Wrong, judge};
use crate::nodes::Node;
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::worker::{Habits, Saw};
use rand::RngExt;
use rand::rngs::StdRng;
use redis::Value;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Server, Setup, Signal, wait_for, wait_so_long};

/// The longest lease where there is a grace, and the grace after each promotion.
const GRACE_MS: u64 = 6_000;

/// Whether there is a grace after each promotion.
fn has_grace(confirm: &str) -> bool {
    confirm.ends_with("-with-grace")
}

fn replicas_of(confirm: &str) -> usize {
    confirm.split('-').next().and_then(|number| number.parse().ok()).expect("one of the choices")
}

/// What replication takes on a busy machine when nothing is in its way.
const REPLICATION_MS: u64 = 100;

/// Sentinels that did not agree try again after twice their time limit; on a busy machine, more than once.
const FAILOVER_TAKES: Duration = Duration::from_secs(60);

pub const SCENE: Scene = Scene {
    name: "failover",
    about: "Kills or stops primaries under Sentinels, and looks at fences and at locks that are held twice",
    rounds: "60",
    variants: (
        "confirm",
        "For how many replicas clients wait after each acquisition; for none, but with a grace after each promotion",
        &["0", "1", "2", "0-with-grace"],
    ),
    attempts: 3,
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    let confirm = options.variant;
    let replicas = replicas_of(confirm);
    // A round takes twice as long, and shows as much.
    let rounds = if has_grace(confirm) { options.rounds.div_ceil(3) } else { options.rounds };
    let grace_ms = if has_grace(confirm) { GRACE_MS } else { 0 };
    let mut nodes: Vec<Node> = (0..3).map(|number| start(number, grace_ms)).collect();
    let sentinels = watch_over(&nodes);
    let reigns = Reigns(Mutex::new(vec![(Moment(0), nodes[0].server.port())]));
    let doors: Vec<(u16, u16)> = nodes.iter().map(|node| (node.door.port(), node.server.port())).collect();
    let primary = Mutex::new(Some(nodes[0].server.port()));
    let place = |_: &str| *primary.lock().expect("nobody panics with it");
    // The first primary has forgotten nothing. Those that follow have the whole grace.
    let mut conn = nodes[0].server.connect();
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", &grace_ms.to_string()]);
    let clients = clients(replicas as u64, has_grace(confirm));
    // With a grace, owners are to turn to the successor while their leases run.
    let patience = Duration::from_secs(if has_grace(confirm) { 1 } else { 3 });
    let crowd = Crowd { number: 0, clients: &clients, patience, place: &place };
    let mut dice = options.dice(0);
    let goes_on = AtomicBool::new(true);
    let on = || goes_on.load(Ordering::Relaxed);
    let (strikes, saw) = thread::scope(|scope| {
        for &(_, port) in &doors {
            let (reigns, on) = (&reigns, &on);
            scope.spawn(move || reigns.watch(port, on));
        }
        scope.spawn(|| follow(&sentinels[0], &doors, &primary, &on));
        let _stop = Stop(&goes_on);
        crowd.during(options, || {
            let mut strike = |round| {
                if round > 0 {
                    // Clients are to hold something again.
                    thread::sleep(Duration::from_millis(grace_ms));
                }
                // There are few rounds with a grace, and each is to show something.
                let for_certain = round == 0 || has_grace(confirm);
                strike(&mut nodes, &sentinels, &reigns, confirm, for_certain, &mut dice)
            };
            (0..rounds).map(&mut strike).collect::<Vec<Strike>>()
        })
    });
    judge_reigns(confirm, &strikes, &reigns, saw, report);
    report.must_see(match confirm {
        "0" | "0-with-grace" => vec!["grants", "traces of lost grants"],
        // With one replica that receives everything, it depends on when the primary is struck.
        "2" => vec!["grants", "answered not confirmed"],
        _ => vec!["grants"],
    });
}

/// Where a node's own connections come from, by which a door tells one replica from the other.
fn source(number: usize) -> IpAddr {
    IpAddr::from([127, 0, 0, number as u8 + 2])
}

fn start(number: usize, grace_ms: u64) -> Node {
    let setup = Setup::default().option("bind-source-addr", &source(number).to_string()).option("repl-timeout", "5");
    // Sentinels go by this before they compare replication offsets: so they may well choose the replica that is behind.
    let setup = setup.option("replica-priority", &(10 + number).to_string());
    Node::start(setup.lock_option("grace-ms", &grace_ms.to_string()))
}

/// Lets two nodes follow the first, and three Sentinels watch them; ready when all know of each other.
fn watch_over(nodes: &[Node]) -> Vec<Server> {
    nodes[1..].iter().for_each(|node| node.follow(&nodes[0]));
    wait_for("the replicas", || nodes[0].replicas() == 2);
    // Newer Sentinels take a second to reach a primary they have just made, and would take it for dead.
    let config = format!(
        "sentinel monitor locks 127.0.0.1 {} 2\nsentinel down-after-milliseconds locks 2000\n\
         sentinel failover-timeout locks 3000\n",
        nodes[0].door.port()
    );
    let sentinels: Vec<Server> = (0..3).map(|_| Setup::default().sentinel(&config).start()).collect();
    for sentinel in &sentinels {
        let mut conn = sentinel.connect();
        wait_for("the Sentinels to know all", || {
            let state = conn.info("sentinel", "master0");
            state.contains("status=ok") && state.contains("slaves=2,sentinels=3")
        });
    }
    sentinels
}

/// Whether a Sentinel takes this node for the primary.
fn names(sentinel: &Server, node: &Node) -> bool {
    let (_, door): (String, u16) = sentinel.connect().get(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks"]);
    door == node.door.port()
}

/// Some hold for long, so that a lock that was lost is taken by another meanwhile; some write all the time.
fn clients(confirm: u64, has_grace: bool) -> [(u64, Habits); 2] {
    let keys = |kind: &str, count: u64| (0..count).map(|number| format!("{kind}{number}")).collect();
    // In a grace nobody else takes a lost lock. Only its owner sees that it is lost, and only while the lease runs. So
    // there are more owners. Half of them release when the successor is there, but before the lease ends. The others
    // hold to the end of their lease: a grace that is too short lets in another meanwhile.
    let (count, lease_ms, hold_ms) =
        if has_grace { (100, GRACE_MS - 200..=GRACE_MS, 2000..=8000) } else { (32, 5000..=12000, 2000..=9000) };
    let slow = Habits {
        keys: keys("slow", count),
        readers: 20,
        lease_ms,
        hold_ms,
        block_ms: 0..=2000,
        notify: false,
        confirm: (confirm > 0).then_some((confirm, 500)),
    };
    let quick = Habits { keys: keys("quick", 3), lease_ms: 300..=2000, hold_ms: 0..=10, ..slow.clone() };
    [(count, slow), (6, quick)]
}

/// Which node was primary from when on, in order.
struct Reigns(Mutex<Vec<(Moment, u16)>>);

impl Reigns {
    /// Asks the node on a port for its role while it may go on.
    fn watch(&self, port: u16, goes_on: &dyn Fn() -> bool) {
        let mut caller = Caller::new(port, Duration::from_millis(200));
        let mut replica_at = None;
        while goes_on() {
            let (asked, answer, _) = caller.ask("ROLE");
            match role(&answer) {
                Some("slave") => replica_at = Some(asked),
                // One that has just started, or was stopped, has not become primary by that.
                Some("master") => replica_at.take().into_iter().for_each(|since| self.list().push((since, port))),
                _ => {}
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<(Moment, u16)>> {
        self.0.lock().expect("nobody panics with it")
    }

    /// When some node became primary though its predecessor had not been struck: on a busy machine the Sentinels may
    /// take a live primary for dead.
    fn unasked(&self, strikes: &[Strike]) -> Vec<Moment> {
        let list = self.list();
        let changes = list.windows(2).map(|two| (two[0].0, two[1].0));
        let is_asked = |from: Moment, to: Moment| strikes.iter().any(|strike| (from..to).contains(&strike.at));
        changes.filter(|(from, to)| !is_asked(*from, *to)).map(|(_, to)| to).collect()
    }

    fn last(&self) -> u16 {
        self.list().last().expect("there was one from the start").1
    }

    fn at(&self, moment: Moment) -> u16 {
        let list = self.list();
        list.iter().rev().find(|(since, _)| *since <= moment).expect("there was one from the start").1
    }
}

fn role(answer: &Answer) -> Option<&str> {
    let Answer::Value(Value::Array(fields)) = answer else { return None };
    let Some(Value::BulkString(role)) = fields.first() else { return None };
    std::str::from_utf8(role).ok()
}

/// Keeps asking a Sentinel for the primary.
fn follow(sentinel: &Server, doors: &[(u16, u16)], primary: &Mutex<Option<u16>>, goes_on: &dyn Fn() -> bool) {
    let mut conn = sentinel.connect();
    while goes_on() {
        let (_, door): (String, u16) = conn.get(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks"]);
        *primary.lock().expect("nobody panics with it") =
            doors.iter().find(|(front, _)| *front == door).map(|(_, port)| *port);
        thread::sleep(Duration::from_millis(20));
    }
}

struct Strike {
    killed: bool,
    /// From here on the replicas, or one of them, did not receive everything.
    unheard_from: Moment,
    at: Moment,
}

impl Strike {
    /// Whether the replicas may not have received the first grant before the second was made.
    fn may_have_lost(&self, first: &Grant, second: &Grant) -> bool {
        self.unheard_from < first.told.after_ms(REPLICATION_MS) && first.asked < self.at && self.at < second.told
    }
}

/// The number of the node that is primary.
fn primary(nodes: &[Node], reigns: &Reigns) -> usize {
    nodes.iter().position(|node| node.server.port() == reigns.last()).expect("one of them")
}

fn strike(
    nodes: &mut [Node],
    sentinels: &[Server],
    reigns: &Reigns,
    confirm: &str,
    for_certain: bool,
    dice: &mut StdRng,
) -> Strike {
    let mut old = 0;
    wait_so_long(FAILOVER_TAKES, "both replicas to follow", || {
        // On a busy machine the Sentinels may replace a primary that was not struck.
        old = primary(nodes, reigns);
        nodes[old].replicas() == 2
    });
    let replicas = [(old + 1) % 3, (old + 2) % 3].map(source);
    thread::sleep(Duration::from_millis(dice.random_range(1000..=2500)));

    let unheard_from = Moment::now();
    // With WAIT 1 one replica receives everything. That may be the one that is not chosen.
    let deaf = if replicas_of(confirm) == 1 { &replicas[dice.random_range(0..2)..][..1] } else { &replicas[..] };
    // The first time for certain, and for as long as it takes to lose some grants.
    if for_certain || dice.random_range(0..4) > 0 {
        nodes[old].door.freeze_from(deaf);
        thread::sleep(Duration::from_millis(if for_certain { 1500 } else { dice.random_range(100..=600) }));
    }
    let killed = dice.random();
    let at = Moment::now();
    if killed {
        nodes[old].server.stop(true);
    } else {
        nodes[old].server.signal(Signal::STOP);
    }
    // What is in transit is lost.
    nodes[old].door.cut_all();
    nodes[old].door.freeze_from(&[]);

    // One Sentinel is enough: that has led the failover to its end.
    let mut new = old;
    wait_so_long(FAILOVER_TAKES, "another primary", || {
        new = primary(nodes, reigns);
        new != old && sentinels.iter().any(|sentinel| names(sentinel, &nodes[new]))
    });
    if !killed {
        if has_grace(confirm) {
            // Until the owners have asked the successor. Else the old primary would answer most of their releases.
            thread::sleep(Duration::from_millis(1500));
        }
        // It is deposed and does not know it: for a moment it goes on granting to the clients that asked it.
        nodes[old].server.signal(Signal::CONT);
    }
    wait_so_long(FAILOVER_TAKES, "the Sentinels to agree", || {
        new = primary(nodes, reigns);
        new != old && sentinels.iter().all(|sentinel| names(sentinel, &nodes[new]))
    });
    thread::sleep(Duration::from_millis(dice.random_range(100..=1000)));
    if killed {
        // Not before: it comes up with nothing, and clients must not take it for the primary.
        nodes[old].start_again();
    }
    nodes[old].follow(&nodes[new]);
    Strike { killed, unheard_from, at }
}

fn judge_reigns(confirm: &str, strikes: &[Strike], reigns: &Reigns, mut saw: Saw, report: &mut Report) {
    let all = saw.grants.len();
    let by_the_primary = |grant: &Grant| reigns.at(grant.told) == grant.node;
    saw.grants.retain(by_the_primary);
    saw.unconfirmed.retain(by_the_primary);
    let killed = strikes.iter().filter(|strike| strike.killed).count();
    // The next primary may even be one that was still copying from the one before: nothing is promised then.
    let unasked = reigns.unasked(strikes);
    for (figure, count) in [
        ("primaries killed", killed),
        ("primaries stopped", strikes.len() - killed),
        ("grants of deposed primaries, not counted", all - saw.grants.len()),
        ("fences compared", saw.grants.len() + saw.unconfirmed.len()),
        ("failovers nobody asked for", unasked.len()),
    ] {
        report.add(figure, count as u64);
    }
    judge(report, &saw, &[], |wrong: &Wrong| {
        let (from, to) = wrong.between;
        let by_itself = unasked.iter().any(|at| from < *at && *at < to);
        match wrong.name {
            TWICE | DENIED if by_itself => Some(", after a failover nobody asked for"),
            TWICE => {
                let strike = strikes.iter().find(|strike| strike.may_have_lost(wrong.grants[0], wrong.grants[1]));
                let how = if strike?.killed { ", after a kill" } else { ", after a stop" };
                matches!(confirm, "0" | "1").then_some(how)
            }
            DENIED => (confirm != "2").then_some(""),
            // The primary was stopped.
            UNANSWERED => Some(""),
            _ => None,
        }
    });
    let longest = history::held_twice(&saw.grants).into_iter().map(history::overlap_ms).max().unwrap_or_default();
    report.most("longest of these, ms", longest);
    report.most("traces of lost grants", report.total(&LOSSES));
}
