//! The program `load`, against a real server.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn load(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_load")).args(args).args(["--count", "300", "--rounds", "2"]).output().unwrap()
}

const LOCK: &str = "lock: LOCK.ACQUIRE {key} {owner} PX 600000; LOCK.RELEASE {key} {owner} -> 0";
const STRING: &str = "string: SET {key} {owner} NX PX 600000 -> OK; DEL {key} -> 1";

#[test]
fn sequences_are_measured_side_by_side() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("load.json");
    let json = dir.to_str().unwrap();
    let keys = ["--connections", "3", "--keys", "20", "--pipeline", "5", "--option", "appendonly yes"];
    let output = load(&[&["--run", LOCK, "--run", STRING, "--json", json][..], &keys].concat());
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&std::fs::read(&dir).unwrap()).unwrap();
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["name"].as_str().unwrap()).collect::<Vec<_>>(), ["lock", "string"]);
    for run in runs {
        for value in ["cpu_us", "rate", "cpu_to_first"] {
            let number = |of: &str| run[value][of].as_f64().unwrap();
            assert!(number("min") > 0.0 && number("min") <= number("median") && number("median") <= number("max"));
        }
    }
    assert_eq!(runs[0]["cpu_to_first"]["max"], 1.0);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("2 rounds of 300 each") && text.contains("\nlock ") && text.contains("\nstring "), "{text}");
}

/// With one key and many connections some client is refused, which the sequence must allow; waiting in the queue needs
/// no such thing.
#[test]
fn a_lock_that_all_want_is_handed_from_one_to_the_next() {
    let waits = "waits: LOCK.ACQUIRE {key} {owner} PX 600000 BLOCK 0; LOCK.RELEASE {key} {owner} -> 0";
    for pipeline in ["1", "2"] {
        let output = load(&["--run", waits, "--keys", "1", "--connections", "8", "--pipeline", pipeline]);
        assert!(output.status.success(), "{output:?}");
    }
    let output = load(&["--run", LOCK, "--keys", "1", "--connections", "8", "--pipeline", "1"]);
    assert!(!output.status.success());
}

#[test]
fn what_is_prepared_before_is_there() {
    let held = "held: LOCK.ACQUIRE {key} {owner} PX 600000 -> null; EVALSHA {both} 1 {key} -> 7";
    let fill = ["--fill", "LOCK.ACQUIRE {key} {id} PX 600000", "--setup", "SET seven 7"];
    let script = ["--script", "both: return redis.call('get', 'seven')"];
    let output = load(&[&["--run", held, "--keys", "30"][..], &fill, &script].concat());
    assert!(output.status.success(), "{output:?}");
}

/// A benchmark that measures errors is worthless.
#[test]
fn a_reply_that_must_not_be_ends_the_program_with_a_failure() {
    for (run, reason) in [
        ("x: LOCK.ACQUIRE {key}", "LOCK.ACQUIRE {key}: answered ERR wrong number of arguments"),
        ("x: SET a b; GET nothing", "GET nothing: answered null"),
        ("x: SET a b; GET a -> null", "GET a -> null: answered b"),
        ("x: INCR {n} -> 1", "INCR {n} -> 1: answered 2"),
        ("x: GET {what}", "nothing is called {what}"),
        ("GET a", "no \":\" in \"GET a\""),
    ] {
        let output = load(&["--run", run, "--keys", "10", "--connections", "2"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.starts_with(reason), "{run}: {text}");
    }
}
