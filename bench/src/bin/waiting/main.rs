//! What waiting for a lock costs, beside its rivals, in the same server and in turn: `cargo bench --bench waiting`, and
//! `-- --help` for what can be chosen.
//!
//! Server CPU is the server's own account; on a noisy machine it is steadier than throughput, and ratios of the same
//! round are steadier than either.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod clients;
mod crowd;
mod driver;
mod fairness;
mod handoff;
mod rivals;
mod sample;
mod sessions;
#[path = "../support/mod.rs"]
mod support;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use support::Server;

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
    // A listener has two connections.
    let contenders: Vec<usize> = numbers("contenders").map(|size| fit(2 * size) / 2).collect();
    let crowd = fit(number("crowd"));

    let all = sizes.iter().copied().chain(contenders.iter().map(|size| 2 * size)).chain([crowd]).max().unwrap();
    let all = (all + 100).to_string();
    let mut server =
        Server::start(&["--maxclients", &all, "--lock.max-waiters", &all, "--lock.max-waiters-per-key", &all]);
    println!(
        "server {}, nothing saved, no replica; the clients are one thread",
        server.info("server", "redis_version")
    );
    if chosen("handoff") {
        handoff::table(&mut server, &sizes, rounds, seconds("seconds"));
    }
    if chosen("fairness") {
        fairness::table(&mut server, &contenders, rounds, seconds("seconds-fairness"));
    }
    if chosen("readers") {
        crowd::readers_table(&mut server, crowd, rounds);
    }
    if chosen("fill") {
        crowd::fill_table(&mut server, crowd, rounds);
    }
    if chosen("sessions") {
        sessions::handoff_table(&mut server, rounds);
        sessions::close_table(&mut server, number("crowd"), rounds);
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
            "handoff,fairness,readers,fill,sessions",
            PossibleValuesParser::new(["handoff", "fairness", "readers", "fill", "sessions"]).into(),
            "What to measure",
        ))
        .arg(option("sizes", "2,16,128,1000,10000", count(), "Clients of the hand-offs"))
        .arg(option("contenders", "128,1000", count(), "Clients of fairness"))
        .arg(one(option("crowd", "10000", count(), "Clients of readers and fill, holds of sessions")))
        .arg(one(option("rounds", "5", count(), "Rounds; all are measured in each, in turn")))
        .arg(one(option("seconds", "1", value_parser!(f64).into(), "Of each measurement of hand-offs")))
        .arg(one(option("seconds-fairness", "2", value_parser!(f64).into(), "Of each measurement of fairness")))
        // Cargo says so to every benchmark.
        .arg(Arg::new("bench").long("bench").action(ArgAction::SetTrue).hide(true))
        .get_matches()
}

impl Server {
    pub(crate) fn address(&mut self) -> SocketAddr {
        let port = self.info("server", "tcp_port").parse().unwrap();
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Waits until the server has seen all other clients leave, and leaves nothing behind.
    pub(crate) fn alone(&mut self) {
        while self.info("clients", "connected_clients") != "1" {
            std::thread::sleep(Duration::from_millis(1));
        }
        let () = redis::cmd("FLUSHALL").query(&mut self.conn).unwrap();
    }
}
