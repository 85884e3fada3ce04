//! The longest uninterrupted step of the server, by its CPU, for the worst that an ordinary client builds with default
//! limits. Beside it stands the same request on an empty server, or on plain values of the same size.
//!
//! A round measures each row of the table once. What counts is the median. The bounds are those of a machine on which
//! 10,000 uncontended pairs of ACQUIRE and RELEASE take a certain time; where they take longer, the bounds are higher.

mod scenes;
mod stage;

use clap::Arg;
use faults::options::Options;
use faults::report::Report;
use scenes::{Bound, SCENES, Scene};
use stage::{Stage, pairs_us};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use testbed::{Server, Setup};

/// What 10,000 pairs take where the bounds hold as they stand.
const PAIRS_US: u64 = 22_000;

/// What was found of a row on one server, in microseconds.
struct Found {
    full: u64,
    empty: u64,
}

fn main() -> ExitCode {
    let many = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).action(clap::ArgAction::Append)
    };
    let (options, found) = Options::read_with("worst_step", "The longest uninterrupted step of the server", "5", [
        many("row", "Only rows whose name contains this"),
        many("server", "The program of a server, instead of REDIS_LOCK_SERVER"),
        Arg::new("write").long("write").num_args(0).help("Writes the table into docs/reliability.md"),
    ]);
    println!("worst_step --rounds {}", options.rounds);
    let words = |name: &str| found.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<_>>();
    let rows = words("row");
    let chosen: Vec<&Scene> =
        SCENES.iter().filter(|scene| rows.is_empty() || rows.iter().any(|row| scene.name.contains(&**row))).collect();
    let servers = words("server");
    let servers: Vec<Option<PathBuf>> =
        if servers.is_empty() { vec![None] } else { servers.into_iter().map(|path| Some(path.into())).collect() };

    let mut report = Report::default();
    let columns: Vec<Column> =
        servers.iter().map(|server| Column::measure(server.as_deref(), &chosen, options.rounds, &mut report)).collect();
    if found.get_flag("write") {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reliability.md");
        let text = fs::read_to_string(&page).expect("the page");
        fs::write(&page, filled(&text, &table(&chosen, &columns))).expect("the page");
    }
    report.must_reach("rows", (chosen.len() * columns.len()) as u64);
    report.finish()
}

/// One server.
struct Column {
    server: String,
    pairs_us: u64,
    found: Vec<Found>,
}

impl Column {
    fn measure(program: Option<&Path>, chosen: &[&Scene], rounds: u64, report: &mut Report) -> Column {
        let setup = |scene: Option<&Scene>| {
            let setup = scene.into_iter().flat_map(|scene| scene.options).fold(Server::setup(), |setup, (name, value)| {
                setup.option(name, value)
            });
            program.into_iter().fold(setup, Setup::program)
        };
        let mut stage = Stage::new(setup(None), true);
        let text: String = stage.conn.get(&["INFO", "server"]);
        // Valkey says which Redis it is like, too.
        let named = [("valkey_version:", "Valkey"), ("redis_version:", "Redis")].into_iter().find_map(|(field, name)| {
            Some(format!("{name} {}", text.lines().find_map(|line| line.strip_prefix(field))?))
        });
        let server = named.expect("one of the two");
        let pairs_us = median((0..5).map(|_| pairs_us(&mut stage)).collect());
        println!("{server}: 10,000 pairs take {} of CPU", ms(pairs_us));
        let found = chosen.iter().map(|scene| {
            let began = std::time::Instant::now();
            let [full, empty] = [true, false].map(|full| measure(scene, || setup(Some(scene)), full, rounds));
            let judged = if scene.bound == Bound::Beyond { full.saturating_sub(empty) } else { full };
            let bound = if scene.bound == Bound::Long { 20_000 } else { 10_000 } * pairs_us.max(PAIRS_US) / PAIRS_US;
            println!("{:>5} {} {:>9} {:>9}  {}", began.elapsed().as_millis(), if judged > bound { "ABOVE" } else { "     " }, ms(full), ms(empty), scene.name);
            report.add("rows", 1);
            if judged > bound {
                report.violation(format!("{server}: {}: {} of CPU, above {}", scene.name, ms(judged), ms(bound)));
            }
            Found { full, empty }
        });
        let found = found.collect();
        Column { server, pairs_us, found }
    }
}

fn measure(scene: &Scene, setup: impl Fn() -> Setup, full: bool, rounds: u64) -> u64 {
    let built = || {
        let mut stage = Stage::new(setup(), full);
        (scene.build)(&mut stage);
        stage
    };
    if scene.once {
        return median((0..rounds).map(|_| built().longest_us(scene.act)).collect());
    }
    let mut stage = built();
    median((0..rounds).map(|_| stage.longest_us(scene.act)).collect())
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1_000, us % 1_000 / 100)
}

fn table(chosen: &[&Scene], columns: &[Column]) -> String {
    let heads: String = columns.iter().map(|column| format!(" {} | |", column.server)).collect();
    let rules = " ---: | ---: |".repeat(columns.len());
    let pairs: Vec<String> = columns.iter().map(|column| format!("{} ({})", ms(column.pairs_us), column.server)).collect();
    let rows: String = chosen.iter().enumerate().map(|(at, scene)| {
        let cells: String =
            columns.iter().map(|column| format!(" {} | {} |", ms(column.found[at].full), ms(column.found[at].empty))).collect();
        format!("| {} |{cells}\n", scene.name)
    }).collect();
    format!("10,000 pairs: {}\n\n| |{heads}\n| --- |{rules}\n{rows}", pairs.join(", "))
}

const BEGIN: &str = "<!-- the worst step -->\n";
const END: &str = "<!-- end of the worst step -->";

/// A page with this between its marks.
fn filled(page: &str, table: &str) -> String {
    let (before, after) = page.split_once(BEGIN).expect("a mark");
    let (_, after) = after.split_once(END).expect("a mark");
    format!("{before}{BEGIN}\n{table}\n{END}{after}")
}
