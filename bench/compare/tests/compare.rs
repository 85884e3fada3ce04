//! The program `compare` on servers of testbed, with those contenders that need no other server. Too briefly to say
//! anything of times.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CLIENTS: u64 = 3;

fn compare(contenders: &str, folder: &Path) -> Output {
    let _ = std::fs::remove_dir_all(folder);
    let brief = ["--clients", &CLIENTS.to_string(), "--seconds", "0.3", "--rounds", "1", "--lease", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_compare"));
    command.args(["--contenders", contenders]).args(brief).arg("--out").arg(folder);
    command.arg("--json").arg(folder.join("numbers.json")).output().unwrap()
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn every_contender_is_measured_in_every_scene_and_excludes() {
    // A contender that is left out, or a lock that excludes nobody, would not show in a table of medians.
    let folder = folder("compare");
    let output = compare("lock,blpop,set-nx", &folder);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&std::fs::read(folder.join("numbers.json")).unwrap()).unwrap();

    let ids = |rows: &Value| -> Vec<String> {
        rows.as_array().unwrap().iter().map(|row| row["contender"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["lock", "blpop", "set-nx"];
    let scenes = found["scenes"].as_array().unwrap();
    let shapes: Vec<_> =
        scenes.iter().map(|scene| (scene["clients"].as_u64().unwrap(), scene["hold_ms"].as_f64().unwrap())).collect();
    assert_eq!(shapes, [(1, 0.0), (CLIENTS, 0.0), (CLIENTS, 1.0)]);
    for scene in scenes {
        assert_eq!(ids(&scene["rows"]), expected);
        for row in scene["rows"].as_array().unwrap() {
            let [sample] = &row["rounds"].as_array().unwrap()[..] else { panic!("one round: {row}") };
            let number = |of: &str| sample[of].as_u64().unwrap();
            assert!(number("grants") > 0 && number("overlaps") == 0, "{row}");
            assert!(number("least") <= number("most") && number("most") <= number("grants"), "{row}");
            assert_eq!(number("starved") > 0, number("least") == 0 && number("most") >= 2, "{row}");
            assert!(number("starved") < scene["clients"].as_u64().unwrap(), "{row}");
            assert!(sample["wait_p99_ms"].as_f64().unwrap() <= sample["wait_max_ms"].as_f64().unwrap(), "{row}");
        }
    }

    // The end of a connection and the end of a lease free a lock; nothing gives back what a client has popped.
    assert_eq!(ids(&found["deaths"]), expected);
    let never: Vec<_> = found["deaths"].as_array().unwrap().iter().map(|death| death["never"].as_u64()).collect();
    assert_eq!(never, [Some(0), Some(1), Some(0)]);

    let page = std::fs::read_to_string(folder.join("comparison.md")).unwrap();
    for heading in ["## What each promises", "## 3 clients, each holds the lock for 1 ms", "## A holder is killed"] {
        assert!(page.contains(heading), "{page}");
    }
    // For each contender two bars of locks per second, and two of the wait.
    let picture = std::fs::read_to_string(folder.join("comparison.svg")).unwrap();
    assert!(picture.matches("<rect").count() >= 4 * expected.len(), "{picture}");
}

#[test]
fn a_lock_that_excludes_nobody_ends_the_program_with_a_failure() {
    // The fastest lock of all would be one that does nothing.
    let output = compare("nothing", &folder("compare-nothing"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("two held the lock at once"), "{output:?}");
}

#[test]
#[cfg(not(feature = "servers"))]
fn a_contender_that_cannot_be_run_is_named() {
    // A page without it would look as if there were no such contender.
    let folder = folder("compare-not-run");
    let output = compare("blpop,postgres", &folder);
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(folder.join("comparison.md")).unwrap();
    assert!(page.contains("- PostgreSQL, pg_advisory_lock: this program was built without"), "{page}");
    let output = compare("postgers", &folder);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.starts_with("no contender is called postgers; there are lock,"), "{text}");
}
