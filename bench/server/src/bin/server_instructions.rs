//! Instructions that a server runs for the commands that `rivals` times, so that a change can be judged on a noisy
//! machine.

use bench::Outcome;
use bench::driver::Load;
use bench::goals::{self, Measured};
use bench::instructions::{Counted, Counter};
use bench::options::{number, number_of, path, server};
use bench::profile::Profile;
use bench::results;
use bench::rivals::{self, Group};
use bench::server::Plan;
use bench::template::Sequence;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const GROUPS: [&str; 5] = ["pair", "refused", "again", "extend", "floor"];
/// Few, to fill them soon: a server is fifty times slower here.
const KEYS: usize = 1_000;

/// The module's file.
const MODULE: &str = "libredis_lock.so";

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let count = number_of(options, "count");
    let server = server(options);
    let (kind, version, module) = Plan { program: Some(server.clone()), ..Plan::default() }.start().versions();
    println!(
        "{kind} {version}, module {module}: instructions for each run, one connection, pipeline {}",
        rivals::BUSY.pipeline
    );
    let mut found = Vec::new();
    let groups = rivals::groups();
    let chosen = |row: &str| options.get_many::<String>("rows").is_none_or(|mut rows| rows.any(|chosen| chosen == row));
    let counted =
        |group: &&Group| GROUPS.contains(&group.name) && chosen(group.name) && group.environment == rivals::BUSY;
    println!("{:<36} {:>10} {:>16}", "", "all", "the module's own");
    for group in groups.iter().filter(counted) {
        found.extend(measure(&server, (kind, &version), group, count)?);
    }
    let found = json!({ "module": module, "connections": 1, "pipeline": rivals::BUSY.pipeline, "commands": found });
    let folder = options.get_one::<PathBuf>("results").cloned().unwrap_or_else(results::folder);
    let file = results::write(&folder, kind, &version, "instructions", found)?;
    println!("\nresults: {}", file.display());
    Ok(())
}

fn measure(program: &Path, on: goals::Server<'_>, group: &Group, count: usize) -> Outcome<Vec<Value>> {
    let mut counter = Counter::new(program)?;
    let Counted { mut server, mut driver, names } = Counted::start(&counter, group, KEYS)?;
    let load = |count| Load { pipeline: group.environment.pipeline, keys: KEYS, count };
    let mut found = Vec::new();
    for contestant in &group.contestants {
        if contestant.needs.is_some_and(|command| !server.knows(command)) {
            continue;
        }
        let sequence = Sequence::parse(&contestant.run, &names)?;
        // Warm, so that no table grows and no buffer is allocated for the first time.
        driver.run(&sequence, load(KEYS))?;
        let mut profile = |count| -> Outcome<Profile> {
            let run = || driver.run(&sequence, load(count)).map_err(Box::<dyn Error>::from);
            Ok(Profile::parse(&counter.counts(server.pid(), run)?))
        };
        // What the counting itself takes is in both.
        let (once, twice) = (profile(count)?, profile(2 * count)?);
        let each = twice.since(&once, count as f64);
        let (all, own) = (each.sum(|_, _| true).instructions, each.sum(|file, _| file == MODULE).instructions);
        let is_bounded = (group.name, &contestant.name[..]) == ("pair", rivals::LOCK_NAME);
        let goal = |measured| goals::of(measured, on).filter(|_| is_bounded);
        let (all_text, all_judged) = goals::judged(goal(Measured::Instructions), all);
        let (own_text, own_judged) = goals::judged(goal(Measured::Own), own);
        println!("{:<36} {all:>10.0} {own:>16.0}   {all_text}", contestant.name);
        if !own_text.is_empty() {
            println!("{:<36} {:>27}   {own_text}", "", "of these the module's own");
        }
        found.push(json!({
            "group": group.name, "name": contestant.name, "instructions": all, "own": own, "judged": all_judged,
            "own_judged": own_judged,
        }));
    }
    Ok(found)
}

fn options() -> ArgMatches {
    Command::new("server_instructions")
        .about("Instructions that a server runs for a command; needs valgrind")
        .arg(path("server", "The program of the server"))
        .arg(path("results", "The folder to write to; without it bench/results"))
        .arg(
            Arg::new("rows")
                .long("rows")
                .value_delimiter(',')
                .value_parser(PossibleValuesParser::new(GROUPS))
                .help("What to count; without this everything"),
        )
        .arg(number("count", "2000", "Runs of each sequence; counted once, and again with twice as many"))
        .get_matches()
}
