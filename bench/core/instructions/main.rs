//! How many instructions the pure core takes for a command, beside the figures that were committed: fails when one has
//! grown by more than 5 %. `make instructions`; `make instructions RECORD=1` writes the figures anew.
//!
//! Instructions, unlike times, are the same on a noisy machine. Valgrind's callgrind counts them in this program, which
//! it starts again for each figure. Counted are those of our own code alone, whose number only the compiler changes; of
//! the C library, which allocates and copies, another version of which does so in another way, it is the calls that are
//! counted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod limits;
mod scenes;

use clap::{Arg, ArgAction, Command as Options};
use lock_core::model::hold::Mode;
use lock_core::model::request::{Operation, Request, Share};
use scenes::{Scene, scenes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Command, ExitCode};
use world::{OWNER, World, acquire, extend, release};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json");
/// By how much a figure may differ from the committed one.
const PERCENT: f64 = 5.0;
/// Enough that what happens now and then counts as much as it does in the long run.
const ROUNDS: usize = 100;
const LEASES: [u64; 2] = [0, 100_000];

/// What is measured, and what surrounds it.
struct Case {
    name: &'static str,
    readers: u64,
    once: Vec<Request>,
    before: Vec<Request>,
    measured: Vec<Request>,
    after: Vec<Request>,
}

fn cases() -> Vec<Case> {
    let case = |name, measured: &[&Request]| Case {
        name,
        readers: 0,
        once: Vec::new(),
        before: Vec::new(),
        measured: measured.iter().copied().cloned().collect(),
        after: Vec::new(),
    };
    let (take, give, read) = (acquire(OWNER, Mode::Write), release(OWNER), acquire(OWNER, Mode::Read));
    let share = share(OWNER, 20_000);
    let held = || vec![take.clone()];
    vec![
        Case { after: vec![give.clone()], ..case("ACQUIRE", &[&take]) },
        Case { before: held(), ..case("RELEASE", &[&give]) },
        Case { once: held(), ..case("ACQUIRE, held by another", &[&acquire("another", Mode::Write)]) },
        Case { once: held(), ..case("ACQUIRE again + RELEASE", &[&take, &give]) },
        Case { once: held(), ..case("EXTEND", &[&extend(OWNER)]) },
        Case { readers: 1_000, ..case("RW READ + RELEASE beside 1000 readers", &[&read, &give]) },
        Case { readers: 10, ..case("SHARE + RELEASE beside 10 holders", &[&share, &give]) },
        Case { readers: 10_000, ..case("SHARE + RELEASE beside 10000 holders", &[&share, &give]) },
    ]
}

/// Asks for one share, of so many.
fn share(owner: &str, limit: u32) -> Request {
    let mut request = acquire(owner, Mode::Read);
    if let Operation::Acquire(ask) = &mut request.operation {
        ask.share = NonZeroU32::new(limit).map(|limit| Share { limit, take: NonZeroU32::MIN });
    }
    request
}

/// Every figure has a name: that of the case, and how many other leases are running; or that of the scene.
fn named() -> impl Iterator<Item = (String, Measured)> {
    let cases = LEASES.into_iter().flat_map(|leases| {
        let name = move |case: &Case| format!("{}, {leases} leases running", case.name);
        cases().into_iter().map(move |case| (name(&case), Measured::Case(leases, case)))
    });
    let scenes = scenes().into_iter().chain(limits::scenes());
    cases.chain(scenes.map(|scene| (scene.name.to_owned(), Measured::Scene(scene))))
}

enum Measured {
    Case(u64, Case),
    Scene(Scene),
}

impl Measured {
    fn rounds(&self) -> usize {
        match self {
            Measured::Case(..) => ROUNDS,
            Measured::Scene(_) => 1,
        }
    }

    /// Does what is measured, round after round.
    fn play(&self) {
        match self {
            Measured::Case(leases, case) => {
                let mut world = World::new(*leases, case.readers);
                serve(&mut world, &case.once);
                for _ in 0..ROUNDS {
                    serve(&mut world, &case.before);
                    counted(&mut || serve(&mut world, black_box(&case.measured)));
                    end(&mut || serve(&mut world, &case.after));
                    world.now.mono.0 += 1_000;
                }
            }
            Measured::Scene(scene) => {
                let mut crowd = (scene.set)();
                counted(&mut || (scene.measured)(&mut crowd));
                end(&mut || ());
                assert_eq!(crowd.manager.broken_invariant(), None);
            }
        }
    }
}

fn main() -> ExitCode {
    let options = Options::new("instructions")
        .about("Instructions per command in the pure core, beside the committed figures")
        .arg(Arg::new("record").long("record").action(ArgAction::SetTrue).help("write the figures to be committed"))
        .arg(Arg::new("play").long("play").hide(true).help("what callgrind is to count"))
        .arg(Arg::new("bench").long("bench").action(ArgAction::SetTrue).hide(true).help("cargo says it"))
        .get_matches();
    if let Some(name) = options.get_one::<String>("play") {
        named().find(|(other, _)| other == name).expect("a figure's name").1.play();
        return ExitCode::SUCCESS;
    }

    let figures: BTreeMap<String, Figure> =
        named().map(|(name, what)| (name.clone(), count(&name, what.rounds()))).collect();
    let rustc = output(Command::new("rustc").arg("--version")).trim().to_owned();
    let text = std::fs::read_to_string(COMMITTED).expect(COMMITTED);
    let mut committed: Value = serde_json::from_str(&text).expect("the committed figures are JSON");
    if options.get_flag("record") {
        record(&mut committed, &figures, &rustc);
        return ExitCode::SUCCESS;
    }
    let Some(here) = committed.get(ARCH) else {
        println!("nothing to compare with: no figures are committed for {ARCH}");
        return ExitCode::SUCCESS;
    };
    if compare(here, &figures) {
        return ExitCode::SUCCESS;
    }
    println!(
        "FAILED. If what it does is worth that, `make instructions RECORD=1` and commit bench/core/instructions.json."
    );
    if here["rustc"] != rustc {
        println!("It may be the compiler's doing: this is {rustc}; the figures were made with {}.", here["rustc"]);
    }
    ExitCode::FAILURE
}

fn serve(world: &mut World, requests: &[Request]) {
    for request in requests {
        black_box(world.serve(request));
    }
}

/// When this begins, callgrind begins to count anew.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}

/// When this begins, callgrind writes down what it has counted since [`counted`] began.
#[inline(never)]
fn end(work: &mut dyn FnMut()) {
    work();
    // Unlike [`counted`], or the compiler makes one function of both.
    black_box(0);
}

/// What one round costs.
#[derive(Clone, Copy, Default)]
struct Figure {
    /// Instructions of our own code.
    instructions: u64,
    /// Calls of others' code: the C library's.
    calls: u64,
}

impl Figure {
    /// What it consists of, each with its name.
    fn parts(self) -> [(&'static str, u64); 2] {
        [("instructions", self.instructions), ("calls", self.calls)]
    }
}

/// Counts what a round of this figure costs.
fn count(name: &str, rounds: usize) -> Figure {
    let this = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--compress-strings=no"]);
    valgrind.args(["--dump-before=instructions::counted", "--dump-before=instructions::end"]);
    valgrind.arg(format!("--callgrind-out-file={}/profile", dir.path().display())).arg(&this).args(["--play", name]);
    output(&mut valgrind);
    let profiles =
        std::fs::read_dir(dir.path()).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let of_rounds = profiles.filter(|profile| profile.contains("\ndesc: Trigger: --dump-before=instructions::end\n"));
    let figures: Vec<Figure> = of_rounds.map(|profile| sum(&profile, &this)).collect();
    assert_eq!(figures.len(), rounds, "what callgrind has written of {name}");
    let mean = |part: fn(&Figure) -> u64| {
        let sum: u64 = figures.iter().map(part).sum();
        (sum + rounds as u64 / 2) / rounds as u64
    };
    Figure { instructions: mean(|figure| figure.instructions), calls: mean(|figure| figure.calls) }
}

/// Adds up what callgrind has written of this program. After each function come the instructions by line, and the calls
/// that it made, each with what the callee took.
fn sum(profile: &str, this: &Path) -> Figure {
    let this = this.to_str().unwrap();
    let mut sum = Figure::default();
    // Whose function it is, and whose the one that it calls, if that is another's.
    let (mut caller, mut callee) = ("", None);
    let mut of_callee = false;
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            caller = object;
        } else if let Some(object) = line.strip_prefix("cob=") {
            callee = Some(object);
        } else if let Some(call) = line.strip_prefix("calls=") {
            of_callee = true;
            if caller == this && callee.take().is_some_and(|callee| callee != this) {
                sum.calls += number(call.split(' ').next());
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
            && !std::mem::take(&mut of_callee)
            && caller == this
        {
            sum.instructions += number(line.split(' ').nth(1));
        }
    }
    sum
}

fn number(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).expect("callgrind's format is another one")
}

/// What a program prints; it has to succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn record(committed: &mut Value, figures: &BTreeMap<String, Figure>, rustc: &str) {
    let figures: BTreeMap<_, BTreeMap<_, _>> =
        figures.iter().map(|(name, figure)| (name, figure.parts().into_iter().collect())).collect();
    committed[ARCH] = json!({ "rustc": rustc, "figures": figures });
    // A figure a line.
    let text = format!("{committed:#}\n").replace("{\n        ", "{ ").replace(",\n        ", ", ");
    std::fs::write(COMMITTED, text.replace("\n      }", " }")).unwrap();
    println!("recorded for {ARCH} in {COMMITTED}");
}

/// Prints all figures, and how they differ from the committed ones. Whether none has grown too much, and the same are
/// there.
fn compare(committed: &Value, figures: &BTreeMap<String, Figure>) -> bool {
    let mut good = true;
    for (name, figure) in figures {
        println!("{name:<62} {:>11} instructions {:>8} calls", figure.instructions, figure.calls);
        for (what, now) in figure.parts() {
            let Some(then) = committed["figures"][name][what].as_u64() else {
                println!("  {what}: NEW, none are committed");
                good = false;
                continue;
            };
            let percent = (now as f64 / then as f64 - 1.0) * 100.0;
            if percent > PERCENT {
                println!("  {what}: GREW by {percent:.1} %, from {then} to {now}; at most {PERCENT} % are allowed");
                good = false;
            } else if percent < -PERCENT {
                println!("  {what}: {percent:.1} %, from {then} to {now}: to be recorded, so that it stays so");
            } else if now != then {
                println!("  {what}: {percent:+.1} %, from {then} to {now}");
            }
        }
    }
    for name in committed["figures"].as_object().into_iter().flat_map(|figures| figures.keys()) {
        if !figures.contains_key(name) {
            println!("{name}: GONE, committed but not measured any more");
            good = false;
        }
    }
    good
}
