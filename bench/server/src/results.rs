//! The file in which the programs leave what they found of one server, each its own section. Its name says when, on
//! which processor and of which server, so that figures of one machine never replace those of another.

use crate::machine::Machine;
use serde_json::{Map, Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where `make bench` keeps them.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../results")
}

/// The file of a server, as of today and of this machine: 2026-10-05-amd-epyc-redis-7.0.15.json.
pub fn file(folder: &Path, kind: &str, version: &str, end: &str) -> PathBuf {
    let name = format!("{}-{}-{kind}-{version}.{end}", today(), Machine::this().short_cpu());
    folder.join(name)
}

/// The date, as of UTC.
pub fn today() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is set");
    date(now.as_secs() / 86_400)
}

/// The date of a day, counted from the first of 1970. A year is taken to begin in March, so that a leap day is its
/// last.
fn date(day: u64) -> String {
    // From the first of March of the year 0; the calendar repeats itself every 400 years.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02}", 400 * era + year)
}

/// Writes a program's section into the file of a server, beside what other programs wrote; says which file it is.
pub fn write(folder: &Path, kind: &str, version: &str, program: &str, found: Value) -> io::Result<PathBuf> {
    let path = file(folder, kind, version, "json");
    fs::create_dir_all(folder)?;
    let mut all: Map<String, Value> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error),
    };
    let command: Vec<String> = std::env::args().collect();
    all.insert("server".to_owned(), json!(format!("{kind} {version}")));
    all.insert("date".to_owned(), json!(today()));
    all.insert(
        program.to_owned(),
        json!({
            "machine": Machine::this().json(), "command": command.join(" "), "found": found,
        }),
    );
    fs::write(&path, rows(&Value::Object(all)))?;
    Ok(path)
}

/// Returns what a file of results holds: a row a line, so that a change shows which rows it is about. A float has six
/// digits, more than a run repeats.
pub fn rows(results: &Value) -> String {
    let mut text = String::new();
    add(&mut text, &rounded(results), 0);
    text.push('\n');
    text
}

/// Adds a value at this depth: on one line if it is short enough for a row, each of its parts on its own otherwise.
fn add(text: &mut String, value: &Value, depth: usize) {
    const ROW: usize = 600;
    let short = value.to_string();
    let parts: Vec<(String, &Value)> = match value {
        Value::Array(parts) if short.len() > ROW => parts.iter().map(|part| (String::new(), part)).collect(),
        Value::Object(parts) if short.len() > ROW => {
            parts.iter().map(|(name, part)| (format!("{}: ", json!(name)), part)).collect()
        }
        _ => return text.push_str(&short),
    };
    let (open, close) = if value.is_array() { ('[', ']') } else { ('{', '}') };
    text.push(open);
    for (index, (name, part)) in parts.into_iter().enumerate() {
        let between = if index == 0 { "" } else { "," };
        text.push_str(&format!("{between}\n{:1$}{name}", "", depth + 1));
        add(text, part, depth + 1);
    }
    text.push_str(&format!("\n{:depth$}{close}", ""));
}

/// Returns the value with six digits of each float.
fn rounded(value: &Value) -> Value {
    match value {
        Value::Array(parts) => parts.iter().map(rounded).collect(),
        Value::Object(parts) => parts.iter().map(|(name, part)| (name.clone(), rounded(part))).collect(),
        Value::Number(number) if number.is_f64() => format!("{:.5e}", number.as_f64().unwrap_or_default())
            .parse::<f64>()
            .map_or_else(|_| value.clone(), |float| json!(float)),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_the_dates_of_the_calendar() {
        // A result would be named by a day that it was not measured on.
        let days = [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (19_782, "2024-02-29"),
            (20_453, "2025-12-31"),
            (20_454, "2026-01-01"),
        ];
        for (day, expected) in days {
            assert_eq!(date(day), expected, "{day}");
        }
    }
}
