//! Which functions of the module run how many instructions for a command, and how many the server and libc run that
//! they call. Writes a table for each server to bench/results.

use bench::Outcome;
use bench::callgrind::{At, Counts, functions};
use bench::driver::Load;
use bench::instructions::{Counted, Counter};
use bench::machine::Machine;
use bench::options::{number, number_of, path, server};
use bench::results;
use bench::rivals::{self, Group};
use bench::server::Plan;
use bench::template::Sequence;
use clap::{Arg, ArgMatches, Command};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const GROUPS: [&str; 4] = ["pair", "refused", "again", "extend"];
/// What the module is made of. Instructions of other crates count for the one of these that called them.
const CRATES: [&str; 3] = ["redis_lock", "lock_core", "server_api"];
/// As of `server_instructions`.
const KEYS: usize = 1_000;

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let [count, rows] = ["count", "rows"].map(|name| number_of(options, name));
    let wanted = options.get_one::<String>("group");
    let server = server(options);
    let (kind, version, module) = Plan { program: Some(server.clone()), ..Plan::default() }.start().versions();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut text = format!(
        "# Instructions by function: {kind} {version}, module {module}\n\n\
         {}, {}. The output of `target/release/profile {}`.\n\n\
         *own*: in the function, with what the compiler has put into it. *libc*: what it calls there, such as to copy \
         memory. *server*: what it calls there, with all that the server calls back. Each figure is of one run of the \
         commands: the count for {} runs less the count for {count}, on one connection, in pipelines of {}.\n",
        Machine::this(),
        results::today(),
        args.join(" "),
        2 * count,
        rivals::BUSY.pipeline
    );
    let groups = rivals::groups();
    let measured = groups.iter().filter(|group| group.environment == rivals::BUSY);
    for group in measured.filter(|group| wanted.map_or(GROUPS.contains(&group.name), |name| name == group.name)) {
        text.push_str(&table(&profile(&server, group, count)?, &group.contestants[0].name, count, rows)?);
    }
    println!("{text}");
    if let Some(folder) = options.get_one::<PathBuf>("results") {
        let file = results::file(folder, kind, &version, "profile.md");
        fs::write(&file, text)?;
        println!("results: {}", file.display());
    }
    Ok(())
}

/// What so many runs of the first contestant take more than none.
fn profile(program: &Path, group: &Group, count: usize) -> Outcome<Counts> {
    let mut counter = Counter::of_each_instruction(program)?;
    let Counted { server, mut driver, names } = Counted::start(&counter, group, KEYS)?;
    let load = |count| Load { pipeline: group.environment.pipeline, keys: KEYS, count };
    let sequence = Sequence::parse(&group.contestants[0].run, &names)?;
    driver.run(&sequence, load(KEYS))?;
    let mut counts =
        |count| counter.counts(server.pid(), || driver.run(&sequence, load(count)).map_err(Box::<dyn Error>::from));
    let (once, twice) = (counts(count)?, counts(2 * count)?);
    Ok(Counts::parse(&twice).less(&Counts::parse(&once)))
}

/// Of one function.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    own: i64,
    libc: i64,
    server: i64,
}

fn table(counts: &Counts, name: &str, count: usize, rows: usize) -> Outcome<String> {
    let each = |cost: i64| (cost as f64 / count as f64).round();
    let mut by_file: BTreeMap<&str, i64> = BTreeMap::new();
    for ((file, _), cost) in &counts.own {
        *by_file.entry(if file.contains(".so") { short(file) } else { "the server itself" }).or_default() += cost;
    }
    let (mut text, whole) = (String::new(), by_file.values().sum::<i64>());
    writeln!(text, "\n## {name}\n\n| instructions | in |\n| ---: | --- |\n| {} | all |", each(whole))?;
    let mut by_file: Vec<_> = by_file.into_iter().filter(|(_, cost)| each(*cost) >= 1.0).collect();
    by_file.sort_by_key(|(name, cost)| (-cost, *name));
    for (name, cost) in by_file {
        writeln!(text, "| {} | {name} |", each(cost))?;
    }

    let found = by_function(counts)?;
    let total = found.values().fold(Row::default(), add);
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(name, row)| (-row.own - row.libc, name.clone()));
    let rest = found.split_off(rows.min(found.len()));
    let named = found.iter().map(|(name, row)| (format!("`{name}`"), *row));
    let rest = (format!("{} more", rest.len()), rest.iter().map(|(_, row)| row).fold(Row::default(), add));
    writeln!(text, "\n| own | libc | server | function of the module |\n| ---: | ---: | ---: | --- |")?;
    for (name, row) in std::iter::once(("all".to_owned(), total)).chain(named).chain([rest]) {
        writeln!(text, "| {} | {} | {} | {name} |", each(row.own), each(row.libc), each(row.server))?;
    }
    Ok(text)
}

/// The instructions of each function of the module, and those that it calls outside of it.
fn by_function(counts: &Counts) -> Outcome<BTreeMap<String, Row>> {
    let is_ours = |at: &At| short(&at.0) == "libredis_lock.so";
    let callers = counts.calls.keys().flat_map(|(from, to)| [from, to]);
    let mut at: Vec<&At> = counts.own.keys().chain(callers).filter(|at| is_ours(at)).collect();
    at.sort_unstable();
    at.dedup();
    let Some((module, _)) = at.first() else { return Err("the module ran no instruction".into()) };
    let at: Vec<u64> = at.iter().map(|(_, at)| *at).collect();
    let names = functions(Path::new(module), &at, &CRATES)?;
    let name_of = |at: &At| names.get(&at.1).cloned().flatten();
    let mut found: BTreeMap<String, Row> = BTreeMap::new();
    for (at, cost) in counts.own.iter().filter(|(at, _)| is_ours(at)) {
        // What has no name is on the way to libc, and counts with the call.
        if let Some(name) = name_of(at) {
            found.entry(name).or_default().own += cost;
        }
    }
    for ((from, to), cost) in counts.calls.iter().filter(|((from, _), _)| is_ours(from)) {
        let Some(name) = name_of(from) else { continue };
        let row = found.entry(name).or_default();
        match is_ours(to) {
            true if name_of(to).is_some() => {}
            true => row.libc += cost,
            false if is_libc(&to.0) => row.libc += cost,
            false => row.server += cost,
        }
    }
    Ok(found)
}

fn add(sum: Row, row: &Row) -> Row {
    Row { own: sum.own + row.own, libc: sum.libc + row.libc, server: sum.server + row.server }
}

/// A file's name without its folder.
fn short(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn is_libc(file: &str) -> bool {
    ["libc.so", "libc-", "libm.so", "ld-linux", "libgcc", "[vdso]"].iter().any(|name| short(file).starts_with(name))
}

fn options() -> ArgMatches {
    Command::new("profile")
        .about("Instructions by function of the module; needs valgrind and addr2line")
        .arg(path("server", "The program of the server"))
        .arg(path("results", "The folder to write to; without it only to the screen"))
        .arg(Arg::new("group").long("group").help("One of pair, refused, again, extend; without it all of them"))
        .arg(number("count", "1000", "Runs of each sequence; counted once, and again with twice as many"))
        .arg(number("rows", "40", "How many functions are shown"))
        .get_matches()
}
