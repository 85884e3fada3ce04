//! Data beside the locks, on a primary with one replica. An operator breaks the locks. Or again and again the wire to
//! the replica is frozen, the primary is killed a little later, and the replica is promoted. So what the primary did
//! last is lost, and its clients go on with the successor: with holds, and with values that they have read, of which it
//! knows nothing.
//!
//! What survives is judged, in the order in which the last primary has it: see [`crate::chain`]. No clock takes part.
//! Updates that were acknowledged and died with their primary are counted, and are no violation.

use crate::breaks::break_locks;
use crate::caller::{Answer, Caller};
use crate::chain::{self, Update};
use crate::crowd::Stop;
use crate::nodes::Node;
use crate::options::Options;
use crate::report::Report;
use rand::{RngExt, rngs::StdRng};
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Setup, wait_for};

/// Each under a lock of its own.
const COUNTERS: usize = 8;
/// Of each counter: two with one name for all requests, and one with a new name each time.
const CLIENTS_EACH: usize = 3;
/// In half a round.
const KILLS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);

/// What is done to those that hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// For so long an operator breaks locks.
    Breaks(Duration),
    Kills,
}

impl Harm {
    /// How many primaries die in half a round.
    fn kills(self) -> usize {
        if self == Harm::Kills { KILLS } else { 0 }
    }

    /// What its figures are called.
    fn name(self, guarded: bool) -> String {
        let guarded = if guarded { "guarded" } else { "not guarded" };
        format!("{guarded}{}", if self == Harm::Kills { ", with kills" } else { "" })
    }
}

pub fn play(harm: Harm, options: &Options, report: &mut Report) {
    for (number, guarded) in (0..options.rounds).flat_map(|round| [(2 * round + 1, true), (2 * round, false)]) {
        half_round(harm, number, guarded, options, report);
    }
    // Without these a run could not have shown a violation.
    let [guarded, other] = [true, false].map(|guarded| harm.name(guarded));
    report.must_see([format!("{guarded}: refused as too late"), format!("{other}: updates lost")]);
    if harm == Harm::Kills {
        report.must_see([
            format!("{guarded}: acknowledged, and died with a primary"),
            format!("{guarded}: refused by a successor"),
            format!("{other}: computed from an update that died"),
        ]);
    }
}

fn half_round(harm: Harm, number: u64, guarded: bool, options: &Options, report: &mut Report) {
    let mut nodes: [Node; 2] = std::array::from_fn(|_| Node::start(Setup::default()));
    nodes[1].follow(&nodes[0]);
    let primary = Mutex::new(Primary { port: nodes[0].server.port(), reign: 0 });
    let goes_on = AtomicBool::new(true);
    // Apart from the numbers of the clients of the other scenes.
    let dice = |party: usize| options.dice((1 << 32) + number * 1000 + party as u64);
    let sent = thread::scope(|scope| {
        let clients: Vec<_> = (0..COUNTERS * CLIENTS_EACH)
            .map(|client| {
                let dice = dice(1 + client);
                let client = Client::new(client, dice, guarded, &primary);
                scope.spawn(|| client.live(&goes_on))
            })
            .collect();
        let stop = Stop(&goes_on);
        let mut dice = dice(0);
        for kill in 0..harm.kills() {
            let (old, new) = (kill % 2, (kill + 1) % 2);
            replace(&mut nodes, (old, new), &primary, &mut dice);
        }
        match harm {
            Harm::Breaks(time) => break_locks(&nodes[0].server, COUNTERS, dice, Instant::now() + time),
            // The last successor is to have some work, too.
            Harm::Kills => thread::sleep(Duration::from_millis(500)),
        }
        drop(stop);
        clients.into_iter().map(|client| client.join().expect("clients do not panic")).collect::<Vec<Saw>>()
    });
    judge(harm, guarded, &nodes[harm.kills() % 2], &sent, report);
}

/// The server that clients are to ask now.
#[derive(Clone, Copy)]
struct Primary {
    port: u16,
    /// How many there were before.
    reign: usize,
}

/// Kills the primary while its replica hears nothing of it, promotes the replica, and lets the old one follow.
fn replace(nodes: &mut [Node; 2], (old, new): (usize, usize), primary: &Mutex<Primary>, dice: &mut StdRng) {
    wait_for("the replica", || nodes[old].replicas() == 1);
    thread::sleep(Duration::from_millis(dice.random_range(100..=400)));
    nodes[old].door.freeze(true);
    thread::sleep(Duration::from_millis(dice.random_range(50..=400)));
    nodes[old].server.stop(true);
    // What is in transit is lost.
    nodes[old].door.cut_all();
    nodes[old].door.freeze(false);
    nodes[new].server.connect().ok(&["REPLICAOF", "NO", "ONE"]);
    {
        let mut primary = primary.lock().expect("nobody panics with it");
        *primary = Primary { port: nodes[new].server.port(), reign: primary.reign + 1 };
    }
    nodes[old].start_again();
    nodes[old].follow(&nodes[new]);
}

struct Sent {
    counter: usize,
    update: Update,
    /// In which reign it was acknowledged; None if it was refused, or had no answer.
    acknowledged: Option<usize>,
}

#[derive(Default)]
struct Saw {
    sent: Vec<Sent>,
    too_late: u64,
    /// Of these: what was read under the same fence from a primary that has died since.
    too_late_for_successor: u64,
    no_answer: u64,
}

/// Why an update was not done, as far as its client knows.
enum Failed {
    TooLate,
    NoAnswer,
}

struct Client<'p> {
    number: usize,
    /// Whether it has one name for all its requests. So it may take the lock again that it has lost.
    has_one_name: bool,
    caller: Caller,
    dice: StdRng,
    guarded: bool,
    primary: &'p Mutex<Primary>,
    requests: u64,
    saw: Saw,
}

impl<'p> Client<'p> {
    fn new(number: usize, dice: StdRng, guarded: bool, primary: &'p Mutex<Primary>) -> Client<'p> {
        let caller = Caller::new(primary.lock().expect("nobody panics with it").port, PATIENCE);
        let has_one_name = number / COUNTERS < 2;
        Client { number, has_one_name, caller, dice, guarded, primary, requests: 0, saw: Saw::default() }
    }

    fn counter(&self) -> usize {
        self.number % COUNTERS
    }

    fn live(mut self, goes_on: &AtomicBool) -> Saw {
        while goes_on.load(Ordering::Relaxed) {
            self.requests += 1;
            let name = if self.has_one_name { 0 } else { self.requests };
            let owner = format!("{}.{name}", self.number);
            let is_short = self.dice.random::<bool>();
            let lease_ms = self.dice.random_range(if is_short { 10..60 } else { 300..900 });
            match self.acquire(&owner, lease_ms, 100) {
                Some(fence) => self.work(&owner, fence, lease_ms, is_short),
                None => thread::sleep(Duration::from_millis(self.dice.random_range(1..5))),
            }
        }
        self.saw
    }

    fn acquire(&mut self, owner: &str, lease_ms: u64, block_ms: u64) -> Option<i64> {
        let request = format!("LOCK.ACQUIRE lock{} {owner} PX {lease_ms} BLOCK {block_ms}", self.counter());
        self.turn();
        self.caller.ask_long(&request, Duration::from_millis(block_ms)).1.int()
    }

    /// One update, and the release of all that the owner holds.
    fn work(&mut self, owner: &str, fence: i64, lease_ms: u64, is_short: bool) {
        match self.update(owner, fence, lease_ms, is_short) {
            Ok(()) => {}
            Err(Failed::TooLate) => self.saw.too_late += 1,
            Err(Failed::NoAnswer) => self.saw.no_answer += 1,
        }
        self.turn();
        self.caller.ask(&format!("LOCK.RELEASE lock{} {owner} ALL", self.counter()));
    }

    /// Reads, sleeps, and writes: sometimes when the lease is over, or to another server.
    fn update(&mut self, owner: &str, fence: i64, lease_ms: u64, is_short: bool) -> Result<(), Failed> {
        let counter = self.counter();
        let reign = self.turn();
        let last = match self.ask(owner, fence, &format!("LINDEX data{counter} -1"))? {
            Value::Nil => Update::NONE.to_owned(),
            value => redis::from_redis_value::<String>(value).expect("an entry"),
        };
        let parent = last.split(':').next().expect("there is always one").to_owned();
        let late = self.dice.random_bool(0.2);
        let pause_ms = match (late, is_short) {
            (true, true) => self.dice.random_range(lease_ms..lease_ms * 4),
            (true, false) => self.dice.random_range(50..200),
            (false, _) => 2,
        };
        thread::sleep(Duration::from_millis(pause_ms));
        if late && self.has_one_name && self.dice.random() {
            // What follows is then a late command of an owner that has the lock once more.
            self.acquire(owner, lease_ms, 1);
        }
        let update = Update { id: format!("{}.{}", self.number, self.requests), parent, fence };
        let command = format!("RPUSH data{counter} {update}");
        self.saw.sent.push(Sent { counter, update, acknowledged: None });
        let now = self.turn();
        let done = self.ask(owner, fence, &command);
        match &done {
            Ok(_) => self.saw.sent.last_mut().expect("just sent").acknowledged = Some(now),
            Err(Failed::TooLate) => self.saw.too_late_for_successor += u64::from(now != reign),
            Err(Failed::NoAnswer) => {}
        }
        done.map(drop)
    }

    /// What a command on the data is answered.
    fn ask(&mut self, owner: &str, fence: i64, command: &str) -> Result<Value, Failed> {
        let request = if self.guarded {
            format!("LOCK.GUARD lock{} {owner} {fence} {command}", self.counter())
        } else {
            command.to_owned()
        };
        match self.caller.ask(&request).1 {
            Answer::Value(Value::Array(mut pair)) if self.guarded => Ok(pair.pop().expect("the fence and the reply")),
            Answer::Value(value) if !self.guarded => Ok(value),
            Answer::Null if self.guarded => Err(Failed::TooLate),
            Answer::Null => Ok(Value::Nil),
            Answer::Lost | Answer::Silence => Err(Failed::NoAnswer),
            other => panic!("{request}: {other:?}"),
        }
    }

    /// Asks the present primary from now on, and says which one that is.
    fn turn(&mut self) -> usize {
        let Primary { port, reign } = *self.primary.lock().expect("nobody panics with it");
        self.caller.turn_to(port);
        reign
    }
}

fn judge(harm: Harm, guarded: bool, last: &Node, saw: &[Saw], report: &mut Report) {
    let how = harm.name(guarded);
    let mut add = |what: &str, count: usize| report.add(&format!("{how}: {what}"), count as u64);
    let mut conn = last.server.connect();
    let mut violations = Vec::new();
    add("primaries killed", harm.kills());
    for counter in 0..COUNTERS {
        let entries: Vec<String> = conn.get(&["LRANGE", &format!("data{counter}"), "0", "-1"]);
        let survived: Vec<Update> = entries.iter().map(|entry| Update::parse(entry).expect("an entry")).collect();
        let sent: Vec<&Sent> = saw.iter().flat_map(|saw| &saw.sent).filter(|sent| sent.counter == counter).collect();
        let fences: BTreeMap<String, i64> =
            sent.iter().map(|sent| (sent.update.id.clone(), sent.update.fence)).collect();
        let wrong = chain::judge(&survived, &fences);
        let there: BTreeSet<&String> = survived.iter().map(|update| &update.id).collect();
        let dead = |sent: &&&Sent| sent.acknowledged.is_some() && !there.contains(&sent.update.id);
        add("updates acknowledged", sent.iter().filter(|sent| sent.acknowledged.is_some()).count());
        add("updates that survived", survived.len());
        add("acknowledged, and died with a primary", sent.iter().filter(dead).count());
        add("updates lost", wrong.lost());
        add("computed from an update that died", wrong.of_the_dead.len());
        add("computed from one of the same hold that died", wrong.of_its_own.len());
        add("updates after one of a later hold", wrong.back.len());
        // Nobody has killed that one.
        let for_nothing = sent.iter().filter(dead).filter(|sent| sent.acknowledged == Some(harm.kills()));
        violations.extend(for_nothing.map(|sent| format!("acknowledged, and not there: {}", sent.update)));
        violations.extend(wrong.repeated.iter().map(|update| format!("there more than once: {update}")));
        if guarded {
            let lost = wrong.overwriting.iter().chain(&wrong.of_the_dead);
            violations.extend(lost.map(|(before, update)| match before {
                Some(before) => format!("lost update: {update} is after {before}"),
                None => format!("lost update: {update} is the first"),
            }));
            let back = wrong.back.iter();
            violations.extend(back.map(|(before, update)| format!("of a former hold: {update} is after {before}")));
        }
    }
    for (what, count) in [
        ("refused as too late", saw.iter().map(|saw| saw.too_late).sum::<u64>()),
        ("refused by a successor", saw.iter().map(|saw| saw.too_late_for_successor).sum()),
        ("updates without an answer", saw.iter().map(|saw| saw.no_answer).sum()),
    ] {
        add(what, count as usize);
    }
    report.violations(violations.into_iter().map(|text| format!("{how}: {text}")));
}
