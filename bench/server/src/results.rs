//! The file in which the programs leave what they found of one server, each its own section. Its name says when, on
//! which processor and of which server, so that figures of one machine never replace those of another.

use crate::machine::Machine;
use serde_json::{Map, Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// Where `make bench` keeps them.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../results")
}

/// The file of a server, as of today and of this machine: 2026-10-05-amd-epyc-redis-7.0.15.json.
pub fn file(folder: &Path, kind: &str, version: &str, end: &str) -> PathBuf {
    let name = format!("{}-{}-{kind}-{version}.{end}", today(), Machine::this().short_cpu());
    folder.join(name)
}

pub fn today() -> String {
    OffsetDateTime::now_utc().date().to_string()
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
