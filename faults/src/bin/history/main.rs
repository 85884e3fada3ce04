//! Clients lock, lock again, upgrade, extend, hold too long and release. Meanwhile they and the server are stopped, and
//! their connections are cut in the middle of a request or a reply. From the replies, the run checks that some order of
//! events explains everything. At every moment there is one writer or only readers. Fences rise, and every acknowledged
//! release has freed its lock. No waiter is forgotten: none is answered null before its time-out, and none waits while
//! its lock cannot be held.
//!
//! Some ask with QUEUE: they lose their connection, come back over another one, over two at once, too late or never.
//! Places are granted in the order in which they were first asked for. What is kept for owners that never come back
//! ends with QUEUE, as LOCK.INFO shows.
//!
//! A round is five seconds of that on fresh locks. The clients are four processes of eight, so that they can be
//! stopped. Most of them share four locks, which receive requests all the time. The others are quiet, two to a lock of
//! another four. A waiter that is forgotten in such a queue stays forgotten, because no other request makes the module
//! serve that queue again.

mod client;
mod standing;

use crate::client::{Client, KEYS, Saw};
use faults::audit;
use faults::history::{Moment, Stop, fences_back, fences_repeated, held_twice, passed_over};
use faults::linear::explained;
use faults::options::Options;
use faults::places::{View, out_of_order, outstayed};
use faults::report::Report;
use rand::RngExt;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;
use testbed::{Proxy, Server, wait_for};

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 8;
const LOAD_MS: u64 = 5_000;

/// How long an answer may be late, all stops taken together: a waiter without one by then is forgotten.
const PATIENCE: Duration = Duration::from_secs(15);

/// What happens at once is known outside after so long, stops apart.
const PROMPT_MS: u64 = 300;

/// The lock that two clients have for themselves.
fn quiet_key(round: u64, process: u64, client: u64) -> String {
    format!("r{round}.quiet{}.{client}", process / 2)
}

/// All locks of a round.
fn keys(round: u64) -> Vec<String> {
    let quiet = (0..PROCESSES).step_by(2).flat_map(|process| [1, 5].map(|client| quiet_key(round, process, client)));
    (0..KEYS).map(|number| format!("r{round}.k{number}")).chain(quiet).collect()
}

/// One process of clients; says on standard output what they saw.
fn clients(words: &[String]) {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let (port, process, round, seed) = (number(0) as u16, number(1), number(2), number(3));
    let options = Options { seed, rounds: 0 };
    let end = Moment::now().after_ms(LOAD_MS);
    let mut all = Saw::default();
    thread::scope(|scope| {
        let living: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let dice = options.dice((round * PROCESSES + process) * CLIENTS + client);
                // One of them is in this process, the other in the one beside.
                let quiet = (client % 4 == 1).then(|| quiet_key(round, process, client));
                let name = format!("r{round}.c{process}.{client}");
                scope.spawn(move || Client::new(port, name, round, quiet, dice).live(end))
            })
            .collect();
        living.into_iter().for_each(|client| all.add(client.join().expect("see above")));
    });
    println!("{}", serde_json::to_string(&all).expect("plain data"));
}

/// Stops clients and the server, and cuts connections, until the clients have ended. Returns the stretches in which a
/// process did not run, because it was stopped or because the machine was busy.
fn disturb(
    server: &Server,
    proxies: &[Proxy],
    children: &mut [Child],
    dice: &mut StdRng,
    round: u64,
    report: &mut Report,
) -> Vec<Stop> {
    let running = |child: &mut Child| child.try_wait().expect("a child").is_none();
    let mut stops = Vec::new();
    while children.iter_mut().any(running) {
        let ms = dice.random_range(1..=60);
        let awake = Moment::now().after_ms(ms);
        thread::sleep(Duration::from_millis(ms));
        let from = Moment::now();
        stops.push(Stop { whose: String::new(), from: awake, to: from });
        let mut whose = String::new();
        let nth = dice.random_range(0..children.len());
        match dice.random_range(0..100) {
            0..90 => proxies[nth].cut_after(dice.random_range(0..200)),
            90..97 if running(&mut children[nth]) => {
                let pid = Pid::from_child(&children[nth]);
                kill_process(pid, Signal::STOP).expect("it runs");
                thread::sleep(Duration::from_millis(dice.random_range(50..=1_500)));
                kill_process(pid, Signal::CONT).expect("it was stopped");
                whose = format!("r{round}.c{nth}.");
                report.add("clients stopped", CLIENTS);
            }
            _ => {
                server.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(dice.random_range(10..=500)));
                server.signal(Signal::CONT);
                report.add("server stopped", 1);
            }
        }
        stops.push(Stop { whose, from, to: Moment::now() });
    }
    stops
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && first == "clients"
    {
        clients(words);
        return ExitCode::SUCCESS;
    }
    let options = Options::read("history", "Checks the histories of 32 clients on 12 locks; a round is 5 s", "4");
    let mut dice = options.dice(u64::MAX);
    let mut report = Report::default();
    let server = Server::new();
    let mut conn = server.connect();
    for round in 0..options.rounds {
        let proxies: Vec<Proxy> = (0..PROCESSES).map(|_| Proxy::to(server.port())).collect();
        let start = |process: u64| {
            let words = [proxies[process as usize].port().into(), process, round, options.seed];
            Command::new(std::env::current_exe().expect("runs"))
                .arg("clients")
                .args(words.map(|word: u64| word.to_string()))
                .stdout(Stdio::piped())
                .spawn()
                .expect("it is this program")
        };
        let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
        // Read as they write, or they would wait for it.
        let outputs: Vec<_> = children
            .iter_mut()
            .map(|child| {
                let output = child.stdout.take().expect("piped");
                thread::spawn(move || serde_json::from_reader::<_, Saw>(output))
            })
            .collect();
        let (stops, views) = audit::views_during(&keys(round), server.port(), || {
            disturb(&server, &proxies, &mut children, &mut dice, round, &mut report)
        });
        let mut all = Saw::default();
        outputs.into_iter().for_each(|output| all.add(output.join().expect("no panic").expect("whole")));
        report.add("connections cut", proxies.iter().map(Proxy::cuts).sum());
        judge(&all, &stops, &views, &mut report);
        wait_for("all leases to be over", || conn.get::<u64>(&["DBSIZE"]) == 0);
        wait_for("all places to be over", || conn.info("lock", "lock_places") == "0");
        for field in ["lock_waiters", "lock_leases"] {
            assert_eq!(conn.info("lock", field), "0", "{field}");
        }
        report.add("rounds", 1);
    }
    let seen = [
        "granted",
        "null",
        "released",
        "lapsed before the release",
        "released about when the lease ends",
        "extended",
        "held again",
        "upgraded or anew",
        "stood in line for long",
    ];
    let done =
        ["repeated", "looks", "connections cut", "connections lost in a request", "clients stopped", "server stopped"];
    let standing = [
        "granted to a place",
        "came back over another connection",
        "asked twice at once",
        "came back too late",
        "never came back",
        "gave its place up",
        "places compared",
        "views of offers to owners that never came back",
    ];
    seen.iter().chain(&done).chain(&standing).for_each(|figure| report.must_see(figure));
    report.finish()
}

fn judge(all: &Saw, stops: &[Stop], views: &[View], report: &mut Report) {
    all.counts.iter().for_each(|(what, count)| report.add(what, *count));
    report.violations(all.forgotten.iter().map(|request| format!("forgotten: {request}")));
    report.violations(all.too_early.iter().map(|request| format!("null before its time: {request}")));
    let alone = passed_over(&all.stays, &all.maybes, stops, PROMPT_MS);
    report.violations(alone.iter().map(|stay| format!("in line while nobody held: {stay:?}")));
    // Against no holds at all, these count as passed over: they are the waiters that could show the fault.
    report.add("stood in line for long", passed_over(&all.stays, &[], stops, PROMPT_MS).len() as u64);
    report.violations(held_twice(&all.pieces).iter().map(|pair| format!("held twice: {pair:?}")));
    report.violations(fences_back(&all.grants).iter().map(|pair| format!("a fence went back: {pair:?}")));
    report.violations(fences_repeated(&all.grants).iter().map(|pair| format!("a fence twice: {pair:?}")));
    let (compared, passed) = out_of_order(&all.places);
    report.add("places compared", compared);
    report.violations(passed.iter().map(|(first, later)| format!("passed in its place: {first:?} by {later:?}")));
    let (offers, stayed) = outstayed(&all.places, views);
    report.add("views of offers to owners that never came back", offers);
    report.violations(stayed.iter().map(|(place, view)| format!("kept for too long: {place:?} in {view:?}")));
    for (key, events) in &all.events {
        report.add("events explained", events.len() as u64);
        if !explained(events, &all.uncertain) {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/faults");
            std::fs::create_dir_all(&directory).expect("a place for it");
            let file = directory.join(format!("history-{key}.json"));
            std::fs::write(&file, serde_json::to_string(events).expect("plain data")).expect("a place for it");
            report.violation(format!("no order explains what happened to {key}: see {}", file.display()));
        }
    }
}
