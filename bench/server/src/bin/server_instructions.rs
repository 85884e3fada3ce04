//! Instructions that a server runs for the commands that `rivals` times, so that a change can be judged on a noisy
//! machine.

use bench::driver::{Driver, Load};
use bench::instructions::Counter;
use bench::rivals::{self, Group};
use bench::server::Plan;
use bench::template::Sequence;
use bench::{results, scripts};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const GROUPS: [&str; 4] = ["pair", "refused", "again", "extend"];
/// Few, to fill them soon: a server is fifty times slower here.
const KEYS: usize = 1_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let count = *options.get_one::<usize>("count").expect("has a default");
    let server = options.get_one::<PathBuf>("server").cloned();
    let server = server.or_else(|| std::env::var_os("REDIS_LOCK_SERVER").map(Into::into));
    let server = server.unwrap_or_else(|| "redis-server".into());
    let (kind, version, module) = Plan { program: Some(server.clone()), ..Plan::default() }.start().versions();
    println!(
        "{kind} {version}, module {module}: instructions for each run, one connection, pipeline {}",
        rivals::BUSY.pipeline
    );
    let mut found = Vec::new();
    let groups = rivals::groups();
    let counted = |group: &&Group| GROUPS.contains(&group.name) && group.environment == rivals::BUSY;
    for group in groups.iter().filter(counted) {
        found.extend(measure(&server, group, count)?);
    }
    let found = json!({ "module": module, "connections": 1, "pipeline": rivals::BUSY.pipeline, "commands": found });
    let folder = options.get_one::<PathBuf>("results").cloned().unwrap_or_else(results::folder);
    let file = results::write(&folder, kind, &version, "instructions", found)?;
    println!("\nresults: {}", file.display());
    Ok(())
}

fn measure(program: &Path, group: &Group, count: usize) -> Outcome<Vec<Value>> {
    let mut counter = Counter::new(program)?;
    let mut options = group.environment.options();
    options.push(("loadmodule".to_owned(), rivals::noop().to_string_lossy().into_owned()));
    // What the server does ten times a second by itself is not what is counted.
    options.extend([("hz", "1"), ("dynamic-hz", "no")].map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mut server = Plan { program: Some(counter.program()), options, ..Plan::default() }.start();
    let names = scripts::load(&mut server);
    let mut driver = Driver::connect(server.address(), 1)?;
    let load = |count| Load { pipeline: group.environment.pipeline, keys: KEYS, count };
    for fill in &group.fills {
        driver.run(&Sequence::parse(&fill.run, &names)?, load(KEYS))?;
    }
    let mut found = Vec::new();
    for contestant in &group.contestants {
        if contestant.needs.is_some_and(|command| !server.knows(command)) {
            continue;
        }
        let sequence = Sequence::parse(&contestant.run, &names)?;
        // Warm, so that no table grows and no buffer is allocated for the first time.
        driver.run(&sequence, load(KEYS))?;
        let mut total =
            |count| counter.count(server.pid(), || driver.run(&sequence, load(count)).map_err(Box::<dyn Error>::from));
        // What the counting itself takes is in both.
        let (once, twice) = (total(count)?, total(2 * count)?);
        let each = twice.saturating_sub(once) as f64 / count as f64;
        println!("{:<36} {each:>10.0}", contestant.name);
        found.push(json!({ "group": group.name, "name": contestant.name, "instructions": each }));
    }
    Ok(found)
}

fn options() -> ArgMatches {
    let path = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(PathBuf)).help(help)
    };
    Command::new("server_instructions")
        .about("Instructions that a server runs for a command; needs valgrind")
        .arg(path("server", "The program of the server"))
        .arg(path("results", "The folder to write to; without it bench/results"))
        .arg(
            Arg::new("count")
                .long("count")
                .default_value("2000")
                .value_parser(value_parser!(usize))
                .help("Runs of each sequence; counted once, and again with twice as many"),
        )
        .get_matches()
}
