//! Puts sequences of commands side by side: `load --run 'name: SET {key} {owner}; DEL {key}' --run ...`. They are run
//! in turn, round by round, on the same server process. Fails when a reply is not what it must be.

use bench::Outcome;
use bench::driver::{Driver, Load};
use bench::machine::Machine;
use bench::measure::{self, Bed, Lane, Shape, Slice};
use bench::options::{number, number_of, path};
use bench::ratio::Spread;
use bench::server::Plan;
use bench::template::Sequence;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let number = |name: &str| number_of(options, name);
    let plan = Plan {
        program: options.get_one::<PathBuf>("server").cloned(),
        options: texts(options, "option").map(|text| pair(text, " ")).collect::<Result<_, _>>()?,
        replica: options.get_flag("replica"),
        plain: false,
    };
    let mut server = plan.start();
    let mut names = Vec::new();
    for text in texts(options, "script") {
        let (name, script) = pair(text, ":")?;
        names.push((name, server.conn.get(&["SCRIPT", "LOAD", &script])));
    }
    let mut driver = Driver::connect(server.address(), number("connections"))?;
    let keys = number("keys").max(1);
    for (name, count) in [("setup", 1), ("fill", keys)] {
        for text in texts(options, name) {
            driver.run(&Sequence::parse(text, &names)?, Load { pipeline: 16, keys: count, count })?;
        }
    }

    let mut runs = Vec::new();
    for text in texts(options, "run") {
        let (name, text) = pair(text, ":")?;
        runs.push((name, Sequence::parse(&text, &names)?));
    }
    let shape = Shape {
        pipeline: number("pipeline").max(1),
        keys,
        slice: Slice::Count(number("count").max(1)),
        rounds: number("rounds").max(1),
    };
    let (kind, version, module) = server.versions();
    let machine = Machine::this();
    let lanes: Vec<Lane<'_>> = runs.iter().map(|(_, sequence)| Lane { bed: 0, sequence }).collect();
    let samples = measure::in_turn(&mut [Bed { server, driver }], &lanes, shape)?;

    println!("{kind} {version}, module {module}; {machine}");
    println!("{} rounds of {} each, min - median - max", shape.rounds, number("count"));
    println!("{:<20} {:>24} {:>30} {:>22}", "", "server CPU, us", "per second", "CPU to the first");
    let mut found = Vec::new();
    for ((name, _), samples_of_it) in runs.iter().zip(&samples) {
        let cpu = measure::spread(samples_of_it, |sample| sample.cpu_us);
        let rate = measure::spread(samples_of_it, |sample| sample.rate);
        let ratio = Spread::of_ratios(&measure::cpu_us(samples_of_it), &measure::cpu_us(&samples[0]));
        let rates = format!("{:.0} - {:.0} - {:.0}", rate.min, rate.median, rate.max);
        println!("{name:<20} {cpu:>24} {rates:>30} {ratio:>22}");
        found.push(json!({
            "name": name, "cpu_us": cpu.json(), "rate": rate.json(), "cpu_to_first": ratio.json(),
        }));
    }
    if let Some(path) = options.get_one::<PathBuf>("json") {
        let command: Vec<String> = std::env::args().collect();
        let all = json!({
            "server": kind, "version": version, "module": module, "machine": machine.json(), "command": command,
            "runs": found,
        });
        std::fs::write(path, format!("{all:#}\n"))?;
    }
    Ok(())
}

fn texts<'a>(options: &'a ArgMatches, name: &str) -> impl Iterator<Item = &'a String> {
    options.get_many::<String>(name).unwrap_or_default()
}

/// Both sides of the first divider.
fn pair(text: &str, divider: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(divider).ok_or_else(|| format!("no {divider:?} in {text:?}"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn options() -> ArgMatches {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).action(ArgAction::Append).help(help)
    };
    Command::new("load")
        .about("Puts sequences of commands side by side, on a server of its own")
        .after_help(
            "A sequence is commands divided by ; with {key} (lock:n), {n}, {owner} (36 bytes, one for each connection), {id} \
             (36 bytes, one for each n) and the names of scripts. A command may end in -> and the reply that it must have: \
             null, any, a number or a text; otherwise it may be anything but an error or null.",
        )
        .arg(text("run", "NAME: SEQUENCE", "What to measure; several are run in turn").required(true))
        .arg(text("setup", "SEQUENCE", "Run once before"))
        .arg(text("fill", "SEQUENCE", "Run once for each key before"))
        .arg(text("script", "NAME: LUA", "A script to load; {NAME} is its hash"))
        .arg(path("server", "The program of the server"))
        .arg(text("option", "NAME VALUE", "An option of the server"))
        .arg(Arg::new("replica").long("replica").action(ArgAction::SetTrue).help("With a replica"))
        .arg(number("connections", "16", "Connections, all of one thread"))
        .arg(number("pipeline", "16", "Commands that each has under way"))
        .arg(number("keys", "100000", "Keys; 1 is a lock that all want"))
        .arg(number("count", "100000", "Runs of each sequence in a round"))
        .arg(number("rounds", "5", "Rounds; one more before them does not count"))
        .arg(path("json", "Where to write what was found"))
        .get_matches()
}
