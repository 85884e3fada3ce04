//! The instructions and system calls of a hand-off beside those of a list's only element, function by function. Counted
//! and not timed, so they are the same on a busy machine.

use crate::alone;
use crate::clients::Then;
use crate::driver::{Driver, Workload};
use crate::rivals::{Line, list, locks};
use bench::instructions::{Counter, QUIET};
use bench::profile::Profile;
use bench::server::{Bench, Plan, options_of};
use serde_json::{Value, json};
use std::path::Path;

const MODULE: &str = "libredis_lock.so";
const CALLS: [&str; 3] = ["read", "write", "epoll_wait"];
/// How many functions are shown.
const ROWS: usize = 40;

/// Prints it, and returns what was found for other programs.
pub(crate) fn table(program: &Path, options: &[(String, String)], sizes: &[usize], count: usize) -> Value {
    let mut counter = Counter::new(program).expect("a folder for its files");
    let options = [options, &options_of(QUIET)].concat();
    let mut server = Plan { program: Some(counter.program()), options, ..Plan::default() }.start();
    let mut found = Vec::new();
    for &size in sizes {
        let mut driver = Driver::connect(server.address(), size);
        let mut measure = |line| measure(&mut counter, &mut server, &mut driver, line, count);
        let ours = measure(locks(size, Then::AskAgain));
        let theirs = measure(list(size, Then::AskAgain));
        drop(driver);
        alone(&mut server);
        println!("\ninstructions of a hand-off among {size} clients: LOCK, BLPOP, the difference");
        found.push(tell(size, &ours, &theirs));
    }
    json!({ "count": count, "sizes": found })
}

fn measure(counter: &mut Counter, server: &mut Bench, driver: &mut Driver, mut line: Line, count: usize) -> Profile {
    line.fill(server, driver);
    let clients = driver.lines.len();
    line.open.exec(&mut server.conn.0).expect("the gate opens");
    let mut some = |count: usize| {
        line.ring.tally().clear();
        let mut handed_off = 0;
        let work = || {
            driver.run_until(&mut line.ring, |ring| ring.granted() >= count as u64);
            handed_off = line.ring.granted();
            std::io::Result::Ok(())
        };
        let text = counter.counts(server.pid(), work).expect("callgrind counts");
        (handed_off as f64, Profile::parse(&text))
    };
    // Each client has waited once, and no table grows any more.
    some(count.max(2 * clients));
    let (once, twice) = (some(count), some(2 * count));
    line.finish(driver);
    twice.1.since(&once.1, twice.0 - once.0)
}

fn tell(size: usize, ours: &Profile, theirs: &Profile) -> Value {
    let row = |name: &str, ours: f64, theirs: f64| {
        println!("{ours:>9.1} {theirs:>9.1} {:>9.1}  {name}", ours - theirs);
        json!({ "name": name, "lock": ours, "list": theirs })
    };
    let sums = |name: &str, chosen: &dyn Fn(&str) -> bool| {
        let sum = |profile: &Profile| profile.sum(|file, _| chosen(file)).instructions;
        row(name, sum(ours), sum(theirs))
    };
    let is_library = |file: &str| file.contains(".so") && file != MODULE;
    let parts = [
        sums("all", &|_| true),
        sums("the module", &|file| file == MODULE),
        sums("libraries: allocator and libc", &is_library),
        sums("the server", &|file| file != MODULE && !is_library(file)),
    ];
    let calls = CALLS.map(|call| {
        let sum = |profile: &Profile| profile.sum(|file, function| file.starts_with("libc.") && function == call).calls;
        row(&format!("system calls: {call}"), sum(ours), sum(theirs))
    });
    let cost = |profile: &Profile, of| profile.0.get(of).map_or(0.0, |cost| cost.instructions);
    let mut by_difference: Vec<_> =
        ours.0.iter().map(|(function, own)| (function, own.instructions - cost(theirs, function))).collect();
    by_difference.sort_by(|one, other| other.1.total_cmp(&one.1));
    by_difference.truncate(ROWS);
    for (function, _) in by_difference {
        row(&format!("{}: {}", function.0, function.1), cost(ours, function), cost(theirs, function));
    }
    json!({ "clients": size, "parts": parts, "calls": calls })
}
