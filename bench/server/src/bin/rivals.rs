//! What the module's locks cost a server beside what people use without it, each row in turn on one server process,
//! with what it is to cost. Leaves what it found in a file.

use bench::Outcome;
use bench::driver::{Driver, Load};
use bench::machine::{Machine, keep_on_one_processor};
use bench::measure::{self, Bed, Lane, Sample, Shape, Slice};
use bench::options::path;
use bench::ratio::Spread;
use bench::rivals::{self, Fill, Group, HELD, HELD_FEW, KEYS, LOCK, LOCK_NAME, SET_DEL, SET_DEL_NAME};
use bench::row::Row;
use bench::server::Plan;
use bench::template::Sequence;
use bench::{goals, results, scripts};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const ROWS: [&str; 14] = [
    "pair",
    "aof",
    "replicated",
    "refused",
    "again",
    "extend",
    "guard",
    "floor",
    "readers",
    "shares",
    "matrix",
    "held",
    "memory",
    "loaded",
];
/// A slice of a measurement: so much of the server's CPU, or so much time where it waits for the disk.
const SLICE_CPU: Duration = Duration::from_millis(250);
const SLICE_TIME: Duration = Duration::from_millis(600);
const CPU: &str = "server CPU, us";

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

/// What was chosen.
struct Choice {
    server: Option<PathBuf>,
    /// Its kind and its version.
    found: (&'static str, String),
    rounds: usize,
    slice: Slice,
    held: usize,
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let number = |name: &str| options.get_one::<usize>(name).copied();
    let program = options.get_one::<PathBuf>("server").cloned();
    let (kind, version, module) = Plan { program: program.clone(), ..Plan::default() }.start().versions();
    let choice = Choice {
        server: program,
        found: (kind, version.clone()),
        rounds: number("rounds").expect("has a default").max(1),
        slice: number("count").map_or(Slice::Cpu(SLICE_CPU, SLICE_TIME), Slice::Count),
        held: number("held").expect("has a default"),
    };
    let chosen = |row: &str| options.get_many::<String>("rows").is_none_or(|mut rows| rows.any(|chosen| chosen == row));

    let machine = Machine::this();
    let command: Vec<String> = std::env::args().collect();
    println!("{}", command.join(" "));
    println!("{kind} {version}, module {module}; {machine}; {} rounds; ratios: min - median - max", choice.rounds);

    let mut rows = Vec::new();
    for group in rivals::groups().into_iter().filter(|group| chosen(group.name)) {
        rows.extend(choice.measure(&group)?);
    }
    if chosen("held") {
        rows.extend(choice.held()?);
    }
    if chosen("memory") {
        rows.extend(choice.memory()?);
    }
    // The last, since it keeps this thread on one processor.
    if chosen("loaded") {
        rows.extend(choice.loaded()?);
    }

    // Some rows only are no results to keep.
    let folder = options.get_one::<PathBuf>("results").cloned();
    let folder = folder.or_else(|| (!options.contains_id("rows")).then(results::folder));
    if let Some(folder) = folder {
        let all: Vec<Value> = rows.iter().map(Row::json).collect();
        let found = json!({ "module": module, "rounds": choice.rounds, "rows": all });
        let file = results::write(&folder, kind, &version, "rivals", found)?;
        println!("\nresults: {}", file.display());
    }
    Ok(())
}

impl Choice {
    fn plan(&self) -> Plan {
        Plan { program: self.server.clone(), ..Plan::default() }
    }

    fn shape(&self, pipeline: usize) -> Shape {
        Shape { pipeline, keys: KEYS, slice: self.slice, rounds: self.rounds }
    }

    /// Prints rows, each with the verdict on it if it has a bound.
    fn judge(&self, mut rows: Vec<Row>) -> Vec<Row> {
        for row in &mut rows {
            row.goal = goals::of_row(row.group, &row.environment, &row.with, (self.found.0, &self.found.1));
            println!("{row}");
        }
        rows
    }

    /// A group, on a server of its own.
    fn measure(&self, group: &Group) -> Outcome<Vec<Row>> {
        let environment = group.environment;
        let mut options = environment.options();
        // Some groups set holds with fences that their sequences can name.
        options.push(("lock.allow-hold".to_owned(), "yes".to_owned()));
        options.push(("loadmodule".to_owned(), rivals::noop().to_string_lossy().into_owned()));
        let mut server = Plan { options, replica: environment.replica, ..self.plan() }.start();
        let names = scripts::load(&mut server);
        let mut driver = Driver::connect(server.address(), environment.connections())?;
        fill(&mut driver, &group.fills, &names)?;
        server.settle();

        // In the place of each contestant its place among those that are measured.
        let mut places = Vec::new();
        let mut sequences = Vec::new();
        for contestant in &group.contestants {
            let known = contestant.needs.is_none_or(|command| server.knows(command));
            places.push(known.then_some(sequences.len()));
            if known {
                sequences.push(Sequence::parse(&contestant.run, &names)?);
            }
        }
        let lanes: Vec<Lane<'_>> = sequences.iter().map(|sequence| Lane { bed: 0, sequence }).collect();
        let samples = measure::in_turn(&mut [Bed { server, driver }], &lanes, self.shape(environment.pipeline))?;

        headline(group.name, &environment.to_string(), CPU);
        let mut rows = Vec::new();
        for comparison in &group.comparisons {
            if let (Some(what), Some(with)) = (places[comparison.what], places[comparison.with]) {
                let names = [comparison.what, comparison.with].map(|place| group.contestants[place].name.clone());
                rows.push(by_cpu((group.name, &environment.to_string()), names, &samples[what], &samples[with]));
            }
        }
        if let Some(count) = group.flat {
            let medians = samples[..count].iter().map(|samples| Spread::of(measure::cpu_us(samples)).median);
            let medians = Spread::of(medians);
            rows.push(Row {
                group: group.name,
                environment: environment.to_string(),
                what: "the dearest of the medians".to_owned(),
                with: "the cheapest".to_owned(),
                unit: CPU,
                ours: Spread::of([medians.max]),
                theirs: Spread::of([medians.min]),
                ratio: Spread::of([medians.max / medians.min]),
                goal: None,
            });
        }
        Ok(self.judge(rows))
    }

    /// The pair while very many locks are held, and while few are: two servers, in turn.
    fn held(&self) -> Outcome<Vec<Row>> {
        let environment = rivals::BUSY;
        let mut beds = Vec::new();
        for count in [self.held, HELD_FEW] {
            let server = Plan { options: environment.options(), ..self.plan() }.start();
            let mut driver = Driver::connect(server.address(), environment.connections())?;
            let run = HELD[0].replace("{key}", "held:{n}");
            fill(&mut driver, &[Fill { count, run }], &[])?;
            beds.push(Bed { server, driver });
        }
        let pairs = [(LOCK_NAME, Sequence::parse(LOCK, &[])?), (SET_DEL_NAME, Sequence::parse(SET_DEL, &[])?)];
        let lanes = pairs.iter().flat_map(|(_, sequence)| [0, 1].map(|bed| Lane { bed, sequence }));
        let lanes: Vec<Lane<'_>> = lanes.collect();
        let samples = measure::in_turn(&mut beds, &lanes, self.shape(environment.pipeline))?;

        headline("held", &environment.to_string(), CPU);
        let mut rows = Vec::new();
        for ((name, _), samples) in pairs.iter().zip(samples.chunks(2)) {
            let names = [format!("{name} among {}", self.held), format!("{name} among {HELD_FEW}")];
            rows.push(by_cpu(("held", &environment.to_string()), names, &samples[0], &samples[1]));
        }
        Ok(self.judge(rows))
    }

    /// What others run on a server with the module and on one without it, in turn. Each sends one command at a time, so
    /// that each is a turn of the server's loop.
    fn loaded(&self) -> Outcome<Vec<Row>> {
        let mut beds = Vec::new();
        for plain in [false, true] {
            let server = Plan { plain, ..self.plan() }.start();
            let driver = Driver::connect(server.address(), 1)?;
            keep_on_one_processor(Some(server.pid()));
            beds.push(Bed { server, driver });
        }
        let mut sequences = Vec::new();
        for (name, run) in rivals::OTHERS {
            sequences.push((name, Sequence::parse(run, &[])?));
        }
        let lanes = sequences.iter().flat_map(|(_, sequence)| [0, 1].map(|bed| Lane { bed, sequence }));
        let lanes: Vec<Lane<'_>> = lanes.collect();
        keep_on_one_processor(None);
        let samples = measure::in_turn(&mut beds, &lanes, self.shape(1))?;

        let environment = "one connection, one processor, pipeline 1, no AOF, no replica";
        headline("loaded", environment, CPU);
        let rows = sequences.iter().zip(samples.chunks(2)).map(|((name, _), samples)| {
            let names = [format!("{name} with the module"), "without it".to_owned()];
            by_cpu(("loaded", environment), names, &samples[0], &samples[1])
        });
        Ok(self.judge(rows.collect()))
    }

    /// What many held locks take of the server's memory, each: one measurement of each kind, on a server of its own.
    fn memory(&self) -> Outcome<Vec<Row>> {
        let environment = format!("{} held locks, owners of 36 bytes", self.held);
        let mut bytes = Vec::new();
        for run in HELD {
            let mut server = self.plan().start();
            let names = scripts::load(&mut server);
            let mut driver = Driver::connect(server.address(), 16)?;
            // All under the same names, of the same length.
            let run = run.replace("str:{n}", "{key}").replace("hash:{n}", "{key}");
            let before = server.memory();
            fill(&mut driver, &[Fill { count: self.held, run }], &names)?;
            bytes.push(Spread::of([(server.memory() - before) / self.held as f64]));
        }
        headline("memory", &environment, "bytes each");
        let names = ["SET NX PX", "a hash in Redisson's shape"];
        let rows = bytes[1..].iter().zip(names).map(|(theirs, name)| Row {
            group: "memory",
            environment: environment.clone(),
            what: "LOCK.ACQUIRE".to_owned(),
            with: name.to_owned(),
            unit: "bytes each",
            ours: bytes[0],
            theirs: *theirs,
            ratio: Spread::of_ratios(&[bytes[0].median], &[theirs.median]),
            goal: None,
        });
        Ok(self.judge(rows.collect()))
    }
}

fn fill(driver: &mut Driver, fills: &[Fill], names: &[(String, String)]) -> Outcome<()> {
    for Fill { count, run } in fills {
        driver.run(&Sequence::parse(run, names)?, Load { pipeline: 64, keys: *count, count: *count })?;
    }
    Ok(())
}

fn headline(name: &str, environment: &str, unit: &str) {
    println!("\n{name}: {environment}; medians of {unit}");
}

/// A row of a group and its circumstances.
fn by_cpu(
    (group, environment): (&'static str, &str),
    [what, with]: [String; 2],
    ours: &[Sample],
    theirs: &[Sample],
) -> Row {
    let (ours, theirs) = (measure::cpu_us(ours), measure::cpu_us(theirs));
    Row {
        group,
        environment: environment.to_owned(),
        what,
        with,
        unit: CPU,
        ratio: Spread::of_ratios(&ours, &theirs),
        ours: Spread::of(ours),
        theirs: Spread::of(theirs),
        goal: None,
    }
}

fn options() -> ArgMatches {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(usize)).help(help)
    };
    let rows = Arg::new("rows").long("rows").value_delimiter(',').value_parser(PossibleValuesParser::new(ROWS));
    Command::new("rivals")
        .about("What the module's locks cost a server beside what people use without it")
        .arg(path("server", "The program of the server"))
        .arg(rows.help("What to measure; without this everything"))
        .arg(number("rounds", "Rounds; one more before them does not count").default_value("5"))
        .arg(number("count", "Runs of each sequence in a round, instead of as many as take 0.25 s of server CPU"))
        .arg(number("held", "Locks that are held where very many are").default_value("1000000"))
        .arg(path("results", "The folder to write to; without it bench/results, or none with --rows"))
        .get_matches()
}
