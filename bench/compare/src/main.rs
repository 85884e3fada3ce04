//! Ways to lock beside each other: what one would pick instead, and LOCK.ACQUIRE with BLOCK. Each has a server of its
//! own. All are measured in turn, in slices of the same length, by clients on one thread.

mod clients;
mod contenders;
mod contention;
mod death;
mod disk;
mod hold;
mod picture;
mod process;
mod report;
mod server;
mod tally;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};
use clients::{NOT_BUILT, Target};
use contenders::{Contender, End, contenders};
use contention::{Sample, Slice};
use report::{Death, Report, Scene};
use server::Server;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::LocalSet;

/// Why something could not be measured.
type Failure = Box<dyn Error>;

/// Of all leases, unless a holder is killed. Long enough that none ends in a measurement.
const LEASE: Duration = Duration::from_secs(60);
/// After a slice, so that its connections are gone when the next one begins.
const SETTLE: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let options = options().get_matches();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    bench::finish(runtime.map_err(Failure::from).and_then(|runtime| {
        LocalSet::new().block_on(&runtime, async {
            if let Some(words) = options.get_many::<String>(death::HOLD) {
                return death::hold(holder_target(&words.map(String::as_str).collect::<Vec<_>>())?).await;
            }
            tokio::select! {
                done = compare(&options) => done,
                // The servers end with this program.
                _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
            }
        })
    }))
}

/// A contender with its server.
struct Running {
    contender: Contender,
    server: Server,
    memory_mib: f64,
}

impl Running {
    /// A lock that no measurement has had.
    fn target(&self, locks: &mut u64, lease: Duration) -> Result<Target, Failure> {
        *locks += 1;
        target(&self.contender, self.server.port, *locks, lease)
    }
}

fn target(contender: &Contender, port: u16, lock: u64, lease: Duration) -> Result<Target, Failure> {
    if !contender.kind.is_built() {
        return Err(NOT_BUILT.into());
    }
    Ok(Target { kind: contender.kind, port, lock, lease })
}

fn holder_target(words: &[&str]) -> Result<Target, Failure> {
    let [id, port, lock, lease_ms] = words else { return Err("a contender, a port, a lock and a lease".into()) };
    let contender = chosen(&[id])?.remove(0);
    target(&contender, port.parse()?, lock.parse()?, Duration::from_millis(lease_ms.parse()?))
}

/// The contenders of these words; all of them without any.
fn chosen(ids: &[&str]) -> Result<Vec<Contender>, Failure> {
    let all = contenders();
    if let Some(unknown) = ids.iter().find(|id| all.iter().all(|contender| contender.id != **id)) {
        let known: Vec<&str> = all.iter().map(|contender| contender.id).collect();
        return Err(format!("no contender is called {unknown}; there are {}", known.join(", ")).into());
    }
    let default = ids.is_empty();
    let wanted = |contender: &Contender| if default { !contender.is_no_lock() } else { ids.contains(&contender.id) };
    Ok(all.into_iter().filter(wanted).collect())
}

async fn compare(options: &ArgMatches) -> Result<(), Failure> {
    let words: Vec<&str> = options.get_many::<String>("contenders").into_iter().flatten().map(String::as_str).collect();
    let number = |name: &str| *options.get_one::<usize>(name).expect("it has a default");
    let time = Duration::from_secs_f64(*options.get_one::<f64>("seconds").expect("it has a default"));
    let sizes: Vec<usize> = options.get_many::<usize>("clients").expect("it has a default").copied().collect();
    let out = options.get_one::<PathBuf>("out").expect("it has a default");
    let rounds = number("rounds");
    let lease = Duration::from_secs(*options.get_one::<u64>("lease").expect("it has a default"));

    let mut locks = 0;
    let (mut running, mut not_run) = (Vec::new(), Vec::new());
    for contender in chosen(&words)? {
        match start(&contender, &mut locks).await {
            Ok(server) => {
                println!("{}: {}", contender.name, server.version);
                let memory_mib = server.tree.memory() as f64 / f64::from(1 << 20);
                running.push(Running { contender, server, memory_mib });
            }
            Err(error) => {
                println!("{}: not run: {error}", contender.name);
                not_run.push((contender, error.to_string()));
            }
        }
    }
    if running.is_empty() {
        return Err("no contender can be run".into());
    }

    let mut scenes = vec![Scene::new(1, Duration::ZERO, running.len())];
    for hold in [Duration::ZERO, Duration::from_millis(1)] {
        scenes.extend(sizes.iter().map(|clients| Scene::new(*clients, hold, running.len())));
    }
    let mut deaths: Vec<Death> = running.iter().map(|_| Death::default()).collect();
    for round in 1..=rounds {
        for scene in &mut scenes {
            println!("round {round} of {rounds}: {} clients, a hold of {:?}", scene.clients, scene.hold);
            for (place, one) in running.iter().enumerate() {
                let sample = measure(one, &mut locks, scene, time).await;
                scene.samples[place].push(sample.map_err(|error| format!("{}: {error}", one.contender.name))?);
            }
        }
        println!("round {round} of {rounds}: a holder is killed");
        kill_holders(&running, &mut locks, lease, &mut deaths).await?;
    }

    let versions = running.iter().map(|one| one.server.version.clone()).collect();
    let idle_mib = running.iter().map(|one| one.memory_mib).collect();
    let contenders = running.iter().map(|one| one.contender).collect();
    drop(running);
    let command = command(options);
    let report = Report { contenders, versions, idle_mib, not_run, scenes, deaths, time, lease, rounds, command };
    report.write(out, options.get_one::<PathBuf>("json").map(PathBuf::as_path))?;
    println!("\n{}", report.markdown()?);
    Ok(())
}

/// The task that does the same.
fn command(options: &ArgMatches) -> String {
    let words = |name: &str| options.get_raw(name).into_iter().flatten().map(|word| word.to_string_lossy());
    let chosen = |name: &str| options.value_source(name) == Some(ValueSource::CommandLine);
    let names = [("seconds", "SECONDS"), ("rounds", "ROUNDS"), ("contenders", "CONTENDERS"), ("clients", "CLIENTS")];
    let settings = names
        .into_iter()
        .filter(|(name, _)| chosen(name))
        .map(|(name, setting)| format!(" {setting}={}", words(name).collect::<Vec<_>>().join(",")));
    format!("make compare{}", settings.collect::<String>())
}

async fn start(contender: &Contender, locks: &mut u64) -> Result<Server, Failure> {
    target(contender, 0, 0, LEASE)?;
    let target = |port| {
        *locks += 1;
        target(contender, port, *locks, LEASE).expect("checked above")
    };
    // Each attempt takes a lock of its own: what a failed one left behind is of no effect.
    let target = std::cell::RefCell::new(target);
    contender.setup.start(|port| target.borrow_mut()(port)).await
}

/// Fails if it was no lock.
async fn measure(one: &Running, locks: &mut u64, scene: &Scene, time: Duration) -> Result<Sample, Failure> {
    let slice = Slice { clients: scene.clients, hold: scene.hold, time };
    let sample = contention::measure(&one.server, one.target(locks, LEASE)?, slice).await?;
    if sample.found.overlaps > 0 {
        return Err(format!("two held the lock at once, {} times", sample.found.overlaps).into());
    }
    tokio::time::sleep(SETTLE).await;
    Ok(sample)
}

/// Where the end of a connection ends the hold, one after the other; all others at once, since they only wait.
async fn kill_holders(
    running: &[Running],
    locks: &mut u64,
    lease: Duration,
    deaths: &mut [Death],
) -> Result<(), Failure> {
    let mut waiting = tokio::task::JoinSet::new();
    for (place, one) in running.iter().enumerate() {
        let (contender, target) = (one.contender, one.target(locks, lease)?);
        if one.contender.end == End::Connection {
            deaths[place].add(death::measure(&contender, target).await?);
        } else {
            waiting.spawn_local(async move { (place, death::measure(&contender, target).await) });
        }
    }
    while let Some(ended) = waiting.join_next().await {
        let (place, found) = ended?;
        deaths[place].add(found.map_err(|error| format!("{}: {error}", running[place].contender.name))?);
    }
    Ok(())
}

fn options() -> Command {
    let all = contenders();
    let ids: Vec<&str> = all.iter().filter(|one| !one.is_no_lock()).map(|one| one.id).collect();
    let option = |name: &'static str, default: &'static str| Arg::new(name).long(name).default_value(default);
    Command::new("compare")
        .about("Ways to lock beside LOCK.ACQUIRE with BLOCK, in turn")
        .arg(
            Arg::new("contenders")
                .long("contenders")
                .value_delimiter(',')
                .help(format!("Which, instead of all: {}", ids.join(", "))),
        )
        .arg(option("clients", "16,64,128").value_delimiter(',').value_parser(value_parser!(usize)).help("How many"))
        .arg(option("seconds", "1.5").value_parser(value_parser!(f64)).help("Of each slice"))
        .arg(option("rounds", "3").value_parser(value_parser!(usize)).help("Slices of each"))
        .arg(
            option("lease", "4")
                .value_parser(value_parser!(u64))
                .help("Where a holder is killed: its lease or session timeout, in seconds. ZooKeeper takes at least 4"),
        )
        .arg(option("out", "docs").value_parser(value_parser!(PathBuf)).help("The folder of comparison.md, .svg"))
        .arg(Arg::new("json").long("json").value_parser(value_parser!(PathBuf)).help("A file for all numbers"))
        .arg(Arg::new(death::HOLD).long(death::HOLD).num_args(4).hide(true))
}
