//! Everything at once, as an operator has it: a primary and two replicas under three Sentinels, all over TLS, with an
//! AOF and `min-replicas-to-write 1`. Clients in Python (the helper with threads and asyncio, redis-py, redis-cli), in
//! Rust, and `redis-lock run` take locks of all kinds; some wait by NOTIFY. Meanwhile servers are upgraded one by one,
//! primaries fail over or are killed, clients are killed or stopped, connections, users, configuration and certificates
//! change.
//!
//! Nothing is held twice but where a failover explains it (`crate::claims`), no resource takes a late write, and at
//! the end nothing is left: no lock, no waiter, no memory. What is saved comes back in a fresh server.

mod agents;
mod ending;
mod heart;
mod kind;
mod operator;
mod record;
mod servers;

use self::agents::{Phase, Stage, start};
use self::heart::Heart;
use self::kind::Kind;
use self::operator::Operator;
use self::servers::{Node, Programs, Servers};
use crate::agents::{Process, boot_us};
use crate::options::{Options, Scene};
use crate::report::Report;
use clap::{Arg, value_parser};
use redis::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use testbed::file_from;

/// What the end takes, at least: the last leases run out, and the servers are looked at.
const ENDING: Duration = Duration::from_secs(30);
/// A failover that is not known yet explains nothing. So what is judged is older than this until all is over.
const KNOWN_US: u64 = 60_000_000;
/// So much longer it may take until all has been seen that must be.
const LONGER: Duration = Duration::from_secs(600);

/// So long an owner may leave an offer to it. One that missed the message asks by itself after 10 s, and may be stopped
/// for 7.5 s just then; one that neither hears nor asks loses the offer after 30 s.
const COLLECTED_MS: i64 = 18_000;

/// What must be above zero, besides the holds of each kind of client.
const MUST_SEE: [&str; 12] = [
    MESSAGES,
    "renewals",
    "guarded writes",
    "late writes refused",
    "losses told",
    "extensions that replicas have",
    "rolling upgrades",
    "failovers by a kill",
    "restarts of a killed primary",
    "clients killed",
    "clients stopped",
    "sessions that ended with their client",
];

/// Those that somebody heard.
const MESSAGES: &str = "messages of one server";

pub const SCENE: Scene = Scene {
    name: "soak",
    about: "Clients of all kinds, failovers, upgrades, kills; nothing is held twice, and nothing is left; a round is a minute",
    rounds: "60",
    more: || {
        let old = Arg::new("old").long("old").value_parser(value_parser!(PathBuf));
        vec![old.help("The module to begin with; it is upgraded to the present one")]
    },
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    let old: Option<&PathBuf> = options.path("old");
    let begun = Instant::now();
    // Kept also where the program panics.
    let dir = tempfile::Builder::new().prefix("soak-").tempdir().expect("a temporary directory").keep();
    let path = |name: &str, default: &str| file_from(name, default);
    let sibling = |name: &str| std::env::current_exe().expect("runs").with_file_name(name);
    let server = std::env::var_os("REDIS_LOCK_SERVER").unwrap_or_else(|| "redis-server".into());
    let programs = Programs {
        cli: cli_of(Path::new(&server)),
        server: server.into(),
        redis_lock: std::env::var_os("REDIS_LOCK_PROGRAM").map_or_else(|| sibling("redis-lock"), PathBuf::from),
        module: path("REDIS_LOCK_MODULE", "target/release/libredis_lock.so"),
    };
    let module = programs.module.clone();
    let servers = Arc::new(Servers::start(&dir, programs, old.unwrap_or(&module)));
    let stage = Stage::new(servers, options.dice(0));
    let run = Run { options, begun, modules: old.into_iter().chain([&module]).map(PathBuf::as_path).collect() };
    let waits = run.play(&stage);
    let mut record = stage.record();
    println!("{}", ending::summary(&record, begun.elapsed().as_secs() / 60, waits));
    record.report.must_see(must_see());
    *report = std::mem::take(&mut record.report);
    if report.is_fine() {
        std::fs::remove_dir_all(&dir).expect("our own directory");
    } else {
        println!("logs and files: {}", dir.display());
    }
}

/// The run has shown nothing unless these are above zero.
fn must_see() -> impl Iterator<Item = String> {
    let kinds = Kind::ALL.map(|kind| format!("holds: {}", kind.name()));
    MUST_SEE.iter().map(|name| (*name).to_owned()).chain(kinds)
}

/// redis-cli, or valkey-cli, beside the server.
fn cli_of(server: &Path) -> PathBuf {
    let name = server.file_name().unwrap_or_default().to_string_lossy().replace("-server", "-cli");
    server.with_file_name(name)
}

struct Run<'p> {
    options: &'p Options,
    begun: Instant,
    modules: Vec<&'p Path>,
}

impl Run<'_> {
    /// All of it; how many requests waited.
    fn play(&self, stage: &Arc<Stage>) -> u64 {
        let servers = &stage.servers;
        let (heart, goes_on) = (Heart::default(), AtomicBool::new(true));
        // A long run also has servers that live long: what grows slowly is seen there.
        let calm = Duration::from_secs((self.options.rounds * 3).saturating_sub(15));
        let diary = Mutex::new(File::create(servers.dir.join("diary")).expect("a directory of our own"));
        let operator = Operator { stage, heart: &heart, modules: self.modules.clone(), diary, calm };
        let (waits, clients) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for number in 0..servers.nodes.len() {
                let heart = &heart;
                scope.spawn(move || heart.watch(servers, number));
            }
            scope.spawn(|| heart.beat(servers));
            let _stop = Stop(&heart, &goes_on);
            testbed::wait_for("the heart to beat", || heart.count() > 0);
            let started = (1..).zip(Kind::ALL).map(|(number, kind)| start(stage, number, kind));
            clients.lock().expect("nobody panics with it").extend(started);
            let on = || goes_on.load(Ordering::Relaxed);
            let (mut first, mut second) = (self.options.dice(1), self.options.dice(2));
            let works = scope.spawn({
                let operator = &operator;
                move || operator.work(&mut first, &on)
            });
            let harasses = scope.spawn({
                let (operator, clients) = (&operator, &clients);
                move || operator.harass(clients, &mut second, &on)
            });
            self.wait(stage, &heart, &waits, &|| works.is_finished() || harasses.is_finished());
            goes_on.store(false, Ordering::Relaxed);
            for thread in [works, harasses] {
                if thread.join().is_err() {
                    stage.record().report.violation("the operator could not go on: see above".to_owned());
                }
            }
            self.end(stage, &heart, &mut clients.lock().expect("nobody panics with it"));
        });
        waits.into_inner().expect("nobody panics with it").values().sum()
    }

    /// Waits until the time is up; says how it goes, once a minute.
    fn wait(
        &self,
        stage: &Stage,
        heart: &Heart,
        waits: &Mutex<BTreeMap<(usize, u64), u64>>,
        gave_up: &dyn Fn() -> bool,
    ) {
        let ends = self.begun + Duration::from_secs(self.options.rounds * 60).saturating_sub(ENDING);
        let mut said = 0;
        loop {
            thread::sleep(Duration::from_millis(500));
            let servers = &stage.servers;
            for (number, node) in servers.nodes.iter().enumerate() {
                let starts = node.starts();
                if let Ok(info) = servers.info(node.port(), "lock") {
                    waits.lock().expect("nobody panics with it").insert((number, starts), info.number("lock_queued"));
                    // An old module may not have them.
                    let of = |name| info.field(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
                    let heard = of("lock_notified").saturating_sub(of("lock_notified_unheard"));
                    stage.record().report.most(MESSAGES, heard);
                    if of("lock_offered") > 0 {
                        offers_are_collected(stage, node);
                    }
                }
            }
            for node in servers.all().filter(|node| !node.is_well()) {
                stage.record().report.violation(format!("{} ended by itself:\n{}", node.name, tail(&node.log())));
            }
            let minute = self.begun.elapsed().as_secs() / 60;
            if minute > said {
                said = minute;
                judge_until(stage, heart, boot_us() - KNOWN_US);
                let waits: u64 = waits.lock().expect("nobody panics with it").values().sum();
                println!("{}", ending::summary(&stage.record(), minute, waits));
            }
            let record = stage.record();
            let is_over = Instant::now() >= ends
                && (must_see().all(|figure| record.report.figure(&figure) > 0) || Instant::now() >= ends + LONGER);
            if is_over || record.report.violation_count() > 0 || gave_up() {
                return;
            }
        }
    }

    /// Lets the clients rest, and judges.
    fn end(&self, stage: &Stage, heart: &Heart, clients: &mut [Process<Kind>]) {
        stage.turn_to(Phase::Rest);
        let count = clients.len();
        let deadline = Instant::now() + servers::PATIENCE;
        while stage.record().idle() < count && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        let idle = stage.record().idle();
        if idle < count {
            stage.record().report.violation(format!("{} clients never come to rest", count - idle));
        }
        // They still live: whatever they renew without holding it, is found.
        ending::judge(stage);
        stage.turn_to(Phase::End);
        for client in clients {
            if !client.ends_within(servers::PATIENCE) {
                let what = format!("client {}, {}, does not end, or failed", client.client, client.kind.name());
                stage.record().report.violation(what);
            }
        }
        heart.stop();
        judge_until(stage, heart, u64::MAX);
        let mut record = stage.record();
        record.report.most("changes of the primary", heart.changes() as u64);
        record.report.most("windows of failovers together, in ms", heart.window_ms());
    }
}

/// Judges how long the owners of offers let others wait.
fn offers_are_collected(stage: &Stage, node: &Node) {
    let servers = &stage.servers;
    let scan = servers.get(node.port(), &["SCAN", "0", "MATCH", "lock:*", "COUNT", "1000"]);
    let (_, keys): (String, Vec<String>) = scan.unwrap_or_default();
    for key in keys {
        // It may be free by now, or the server gone.
        let Ok(reply @ Value::Array(_)) = servers.ask(node.port(), &["LOCK.INFO", &key]) else { continue };
        for offer in testbed::LockInfo::from(reply).holders.iter().filter(|holder| holder.offered) {
            let mut record = stage.record();
            record.report.most("longest offer, in ms", offer.held_ms.unsigned_abs());
            if offer.held_ms > COLLECTED_MS {
                record.report.violation(format!("{key} at {}: nobody collects {offer:?}", node.name));
            }
        }
    }
}

/// Judges what clients relied on, as far as it began before this moment.
fn judge_until(stage: &Stage, heart: &Heart, moment: u64) {
    let windows = heart.windows();
    let mut record = stage.record();
    let claims: Vec<_> = record.claims.iter().filter(|claim| claim.told < moment).copied().collect();
    let refused: Vec<_> = record.refused.iter().filter(|claim| claim.told < moment).copied().collect();
    let wrong = crate::claims::wrong(&record.holds, &claims, &windows);
    let gone = crate::claims::gone(&record.holds, &refused, &windows);
    wrong.into_iter().take(10).chain(gone.into_iter().take(10)).for_each(|what| record.report.violation(what));
    let lost = windows.iter().map(|window| (window.end - window.start) / 1_000).max().unwrap_or_default();
    record.report.most("longest window of a failover, in ms", lost);
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Ends the background work, also when its owner panics: a scope waits for its threads.
struct Stop<'r>(&'r Heart, &'r AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
        self.1.store(false, Ordering::Relaxed);
    }
}
