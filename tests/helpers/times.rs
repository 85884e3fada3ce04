//! The times that all helpers share: the table in clients/README.md, and the constants in the code of each language.

use crate::run::root;
use std::collections::BTreeMap;
use std::fs;

/// The constants of a helper, by the names of the table; times in milliseconds.
type Times = BTreeMap<String, f64>;

#[test]
fn the_table_of_times_is_what_each_helper_has() {
    let table = table();
    assert!(table.len() > 10, "{table:?}");
    for (language, file, read) in [
        ("Python", "clients/python/redis_lock_client/_common.py", python as fn(&str) -> Option<(String, f64)>),
        ("Node.js", "clients/node/engine/times.ts", node),
        ("Rust", "clients/rust/src/clock.rs", rust),
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let begin = text.find("The times that all helpers share").unwrap_or_else(|| panic!("{file}"));
        // They stand together, up to the next empty line.
        let have: Times = text[begin..].lines().skip(1).take_while(|line| !line.is_empty()).filter_map(read).collect();
        assert_eq!(have, table, "{language}, {file}");
    }
}

fn table() -> Times {
    let text = fs::read_to_string(root().join("clients/README.md")).unwrap();
    let (_, section) = text.split_once("\n## Times\n").unwrap();
    let rows = section.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| (cells[1].trim_matches('`').to_owned(), of_table(cells[2]))).collect()
}

/// `2.5 s` or a number.
fn of_table(text: &str) -> f64 {
    let seconds = text.strip_suffix(" s").map(|seconds| seconds.parse::<f64>().unwrap() * 1_000.0);
    seconds.unwrap_or_else(|| text.parse().unwrap())
}

/// True if it is no time but a share or a count.
fn is_plain(name: &str) -> bool {
    name.ends_with("_JITTER") || name == "IDLE_MAX" || name == "BLOCKING_MAX"
}

/// `ANSWER = 2.5`, in seconds.
fn python(line: &str) -> Option<(String, f64)> {
    let (name, value) = line.split_once(" = ")?;
    let value: f64 = value.parse().ok()?;
    Some((name.to_owned(), if is_plain(name) { value } else { value * 1_000.0 }))
}

/// `export const ANSWER_MS = 2_500;`
fn node(line: &str) -> Option<(String, f64)> {
    let (name, value) = line.strip_prefix("export const ")?.split_once(" = ")?;
    let plain = name.strip_suffix("_MS");
    assert_eq!(plain.is_none(), is_plain(name), "{name} says whether it is a time");
    Some((plain.unwrap_or(name).to_owned(), value.trim_end_matches(';').replace('_', "").parse().ok()?))
}

/// `pub(crate) const ANSWER: Duration = Duration::from_millis(2_500);`
fn rust(line: &str) -> Option<(String, f64)> {
    let (_, line) = line.split_once("const ")?;
    let (name, rest) = line.split_once(": ")?;
    let (_, value) = rest.split_once(" = ")?;
    let number = value.trim_start_matches(|c: char| !c.is_ascii_digit()).trim_end_matches([';', ')']);
    let number: f64 = number.replace('_', "").parse().ok()?;
    Some((name.to_owned(), if value.contains("from_secs") { number * 1_000.0 } else { number }))
}
