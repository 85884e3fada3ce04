//! The program `rivals`, all rows of it, too briefly to say anything of times.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn every_row_is_measured_and_told_with_its_goal() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rivals");
    let _ = std::fs::remove_dir_all(&folder);
    let few = ["--rounds", "1", "--count", "100", "--held", "2000", "--results"];
    let output = Command::new(env!("CARGO_BIN_EXE_rivals")).args(few).arg(&folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let found: Value = serde_json::from_slice(&std::fs::read(&files[0]).unwrap()).unwrap();
    let rows = found["rivals"]["found"]["rows"].as_array().unwrap();
    let groups: BTreeSet<&str> = rows.iter().map(|row| row["group"].as_str().unwrap()).collect();
    let expected = "again aof extend floor guard held loaded matrix memory pair readers refused replicated shares";
    assert_eq!(groups.into_iter().collect::<Vec<_>>().join(" "), expected);
    for row in rows {
        let number = |of: &str| row["ratio"][of].as_f64().unwrap();
        assert!(number("min") > 0.0 && number("min") <= number("median") && number("median") <= number("max"), "{row}");
        assert_eq!(row["at_most"].is_null(), row["verdict"].is_null(), "{row}");
    }
    // Three rows have their bound with and without a pipeline; beside whichever of DELEX and DELIFEQ the server has
    // there is one more.
    let goals = rows.iter().filter(|row| !row["at_most"].is_null()).count();
    let newest =
        rows.iter().filter(|row| row["group"] == "pair" && row["with"].as_str().unwrap().contains("IFEQ")).count();
    assert_eq!(goals, 15 + newest);

    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("at most ").count(), goals, "{text}");
}
