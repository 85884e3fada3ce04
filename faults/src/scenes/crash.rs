//! A server that is killed with `kill -9` every 2 to 5 seconds under load, and started again: a round is one kill.
//!
//! With `appendfsync always` nothing that was acknowledged may be lost, and nothing be held twice. With `everysec` and
//! with an RDB now and then, what is lost is counted. However it saves, no fence goes back and none is given twice.
//!
//! A server that saves nothing forgets all locks. With a grace as long as the longest lease nothing may be held twice
//! all the same. Without one, much is.
//!
//! A kill takes nothing of what the system has in its memory. So with `everysec` the power fails, too: whatever came to
//! the file within its last second is cut off.

use crate::audit;
use crate::crowd::Crowd;
use crate::history::{Freed, Grant, Moment};
use crate::judge::{LOSSES, TWICE, judge};
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::worker::Habits;
use rand::RngExt;
use rand::rngs::StdRng;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;
use testbed::{Server, Setup};

/// The longest lease where nothing is saved, and the grace after each start.
const GRACE_MS: u64 = 2_500;

pub const SCENE: Scene = Scene {
    name: "crash",
    about: "Kills a server under load and starts it again, and looks for locks that were lost or are held twice",
    rounds: "100",
    variants: (
        "saving",
        "How the server saves what it has; not at all with a grace after each start, or without",
        &["always", "everysec", "rdb", "none", "none-without-grace"],
    ),
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    let saving = options.variant;
    let setup = match saving {
        // The file is rewritten again and again, so that the kill also hits a rewrite.
        "always" => with_file("always").option("auto-aof-rewrite-min-size", "32kb"),
        "everysec" => with_file("everysec").option("auto-aof-rewrite-percentage", "0"),
        "rdb" => Setup::default().option("save", "1 1"),
        "none" => Setup::default().lock_option("grace-ms", &GRACE_MS.to_string()),
        _ => Setup::default(),
    };
    let mut server = setup.start();
    let port = AtomicU16::new(server.port());
    let place = |_: &str| Some(port.load(Ordering::Relaxed));
    let clients = clients(saving);
    let keys: Vec<String> = clients.iter().flat_map(|(_, habits)| habits.keys.clone()).collect();
    let crowd = Crowd { number: 0, clients: &clients, patience: Duration::from_secs(5), place: &place };
    let mut dice = options.dice(0);
    let ((kills, sightings), saw) = crowd.during(options, || {
        audit::during(&keys, &place, || {
            (0..options.rounds).map(|_| kill(&mut server, saving, &port, &mut dice)).collect::<Vec<Kill>>()
        })
    });
    let count = |report: &mut Report, name: &str, count: usize| report.add(name, count as u64);
    count(report, "kills", kills.len());
    count(report, "looks", sightings.len());
    report.add("bytes cut off", kills.iter().map(|kill| kill.bytes_cut).sum());
    let outlived = |grant: &&Grant| {
        let freed = grant.release.and_then(|release| release.answer).filter(|(_, freed)| *freed == Freed::Left);
        freed.is_some_and(|(freed, _)| kills.iter().any(|kill| grant.told < kill.down && kill.up < freed))
    };
    count(report, "holds that outlived a kill", saw.grants.iter().filter(outlived).count());
    let forgotten = |grant: &&Grant| {
        let ran = |kill: &Kill| grant.told < kill.down && kill.up < grant.held_until();
        !saves(saving) && kills.iter().any(ran)
    };
    count(report, "holds that were forgotten", saw.grants.iter().filter(forgotten).count());
    judge(report, &saw, &sightings, |wrong| {
        let promised = match saving {
            "always" => true,
            "none" => wrong.name == TWICE || !LOSSES.contains(&wrong.name),
            _ => !LOSSES.contains(&wrong.name),
        };
        (!promised).then_some("")
    });
    report.must_see([match saving {
        "none" => "holds that were forgotten",
        "none-without-grace" => TWICE,
        _ => "holds that outlived a kill",
    }]);
    if saving != "always" {
        // Else it would have shown nothing of fences over a loss.
        report.most("traces of a loss", report.total(&LOSSES));
        report.must_see(["traces of a loss"]);
    }
}

fn saves(saving: &str) -> bool {
    !saving.starts_with("none")
}

fn with_file(fsync: &str) -> Setup {
    Setup::default().option("appendonly", "yes").option("appendfsync", fsync)
}

/// Some write all the time, and some hold for a while. Where the server saves, some hold from one kill to the next.
fn clients(saving: &str) -> Vec<(u64, Habits)> {
    let keys = |kind: &str, count: u32| (0..count).map(|number| format!("{kind}{number}")).collect();
    let slow = Habits {
        keys: keys("slow", 6),
        readers: 40,
        lease_ms: if saves(saving) { 300..=8000 } else { GRACE_MS - 500..=GRACE_MS },
        hold_ms: 0..=3000,
        block_ms: 0..=2000,
        ..Habits::brief(0)
    };
    let quick = Habits { keys: keys("quick", 3), lease_ms: 300..=2000, hold_ms: 0..=5, ..slow.clone() };
    // A kill comes every 2 to 6 seconds, and the file may be seconds old.
    let long = Habits { keys: keys("long", 6), lease_ms: 10_000..=12_000, hold_ms: 4_000..=8_000, ..slow.clone() };
    let mut clients = vec![(10, slow), (6, quick)];
    if saves(saving) {
        clients.push((6, long));
    }
    clients
}

/// When the server was killed, and when it had come up again.
struct Kill {
    down: Moment,
    up: Moment,
    bytes_cut: u64,
}

fn kill(server: &mut Server, saving: &str, port: &AtomicU16, dice: &mut StdRng) -> Kill {
    if saves(saving) {
        thread::sleep(Duration::from_millis(dice.random_range(1000..=4000)));
    } else {
        let grace = if saving == "none" { GRACE_MS } else { 0 };
        thread::sleep(Duration::from_millis(grace + dice.random_range(0..=500)));
    }
    let second_before = newest_file(server);
    thread::sleep(Duration::from_secs(1));
    let down = Moment::now();
    server.stop(true);
    let bytes_cut = match second_before {
        Some((file, len)) if saving == "everysec" => cut(&file, len),
        _ => 0,
    };
    // Leases run meanwhile. What is forgotten is to be looked for soon.
    thread::sleep(Duration::from_millis(dice.random_range(0..=if saves(saving) { 800 } else { 100 })));
    server.start();
    port.store(server.port(), Ordering::Relaxed);
    Kill { down, up: Moment::now(), bytes_cut }
}

/// The file that the server appends to now, and its length.
fn newest_file(server: &Server) -> Option<(PathBuf, u64)> {
    let files =
        fs::read_dir(server.dir().join("appendonlydir")).ok()?.map(|entry| entry.expect("a listed file").path());
    let newest = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max()?;
    let len = fs::metadata(&newest).ok()?.len();
    Some((newest, len))
}

/// Cuts off what came after this length, and says how much that was.
fn cut(file: &PathBuf, len: u64) -> u64 {
    let file = File::options().write(true).open(file).expect("files are not written anew with everysec");
    let had = file.metadata().expect("an open file").len();
    file.set_len(len).expect("an open file");
    had - len
}
