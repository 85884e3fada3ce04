//! What waiting for a lock costs, beside its rivals, in the same server and in turn.

mod clients;
mod crowd;
mod driver;
mod handoff;
mod notified;
mod profile;
mod rivals;
mod sample;
mod semaphore;
mod sessions;
mod shoppers;
mod tally;

use bench::options::path;
use bench::results;
use bench::server::{Bench, Plan};
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgMatches, Command, value_parser};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::path::PathBuf;
use std::time::Duration;

const ROWS: [&str; 7] = ["handoff", "notified", "semaphore", "fill", "shoppers", "sessions", "profile"];
/// Files that a process needs beside those of the clients.
const FILES_SPARE: u64 = 200;

fn main() {
    let options = options();
    let chosen = |row: &str| options.get_many::<String>("rows").unwrap().any(|chosen| chosen == row);
    let number = |name: &str| *options.get_one::<usize>(name).unwrap();
    let numbers = |name: &str| options.get_many::<usize>(name).unwrap().copied();
    let seconds = |name: &str| Duration::from_secs_f64(*options.get_one::<f64>(name).unwrap());
    let rounds = number("rounds");

    let clients_max = clients_max();
    let fit = |size: usize| {
        if size > clients_max {
            println!("{size} connections are more than this process may open: measured with {clients_max}");
        }
        size.min(clients_max)
    };
    let sizes: Vec<usize> = numbers("sizes").map(fit).collect();
    let crowd = fit(number("crowd"));

    let all = (sizes.iter().copied().max().unwrap_or(0).max(crowd) + 100).to_string();
    let limits = ["maxclients", "lock.max-waiters", "lock.max-waiters-per-key"];
    let limits: Vec<_> = limits.map(|name| (name.to_owned(), all.clone())).into();
    let program = options.get_one::<PathBuf>("server").cloned();
    let mut server = Plan { program, options: limits.clone(), ..Plan::default() }.start();
    let (kind, version) = server.version();
    println!("{kind} {version}, nothing saved, no replica; the clients are one thread");
    let write = |section: &str, found| {
        if let Some(folder) = options.get_one::<PathBuf>("results") {
            let file = results::write(folder, kind, &version, section, found).unwrap();
            println!("results: {}", file.display());
        }
    };
    if chosen("handoff") {
        write("handoff", handoff::table(&mut server, &sizes, rounds, seconds("seconds")));
    }
    if chosen("profile") {
        write("profile", profile::table(&bench::options::server(&options), &limits, &sizes, number("count")));
    }
    if chosen("notified") {
        write("notified", notified::table(&mut server, rounds, seconds("seconds")));
    }
    if chosen("semaphore") {
        semaphore::table(&mut server, rounds, seconds("seconds"));
    }
    if chosen("fill") {
        crowd::fill_table(&mut server, crowd, rounds);
    }
    if chosen("shoppers") {
        shoppers::table(&mut server, rounds, seconds("seconds-shoppers"));
    }
    if chosen("sessions") {
        sessions::table(&mut server, rounds);
    }
}

/// How many connections there may be, here and in the server: as many files as the system lets a process open.
fn clients_max() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it is refused, it stays at what it was.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files.saturating_sub(FILES_SPARE)).unwrap_or(usize::MAX)
}

fn options() -> ArgMatches {
    let option = |name: &'static str, default: &'static str, parser: ValueParser, help: &'static str| {
        Arg::new(name).long(name).value_delimiter(',').default_value(default).value_parser(parser).help(help)
    };
    let count = || value_parser!(usize).into();
    let one = |option: Arg| option.value_delimiter(None);
    Command::new("waiting")
        .about("What waiting for a lock costs, beside its rivals")
        .arg(option(
            "rows",
            "handoff,notified,semaphore,fill,shoppers,sessions",
            PossibleValuesParser::new(ROWS).into(),
            "What to measure",
        ))
        .arg(option("sizes", "2,16,128,1000,10000", count(), "Clients of the hand-offs"))
        .arg(one(option("crowd", "10000", count(), "Clients of fill")))
        .arg(one(option("count", "5000", count(), "Hand-offs of profile; counted once, and again with twice as many")))
        .arg(one(option("rounds", "5", count(), "Rounds; all are measured in each, in turn")))
        .arg(one(option("seconds", "1", value_parser!(f64).into(), "Of each measurement of hand-offs")))
        .arg(one(option("seconds-shoppers", "5", value_parser!(f64).into(), "Of each measurement of shoppers")))
        .arg(path("server", "The program of the server"))
        .arg(path("results", "The folder to write what was found of hand-offs to"))
        .get_matches()
}

/// Waits until the server has seen all other clients leave, and leaves nothing behind.
fn alone(server: &mut Bench) {
    testbed::wait_for("all other clients to leave", || server.conn.info("clients", "connected_clients") == "1");
    server.conn.ok(&["FLUSHALL"]);
}
