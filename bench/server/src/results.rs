//! The file in which the programs leave what they found of one server, each its own section.

use crate::machine::Machine;
use serde_json::{Map, Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where `make bench` keeps them.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../results")
}

/// The file of a server, without what it ends in.
pub fn stem(folder: &Path, kind: &str, version: &str) -> PathBuf {
    folder.join(format!("{kind}-{version}"))
}

/// Writes a program's section into the file of a server, beside what other programs wrote; says which file it is.
pub fn write(folder: &Path, kind: &str, version: &str, program: &str, found: Value) -> io::Result<PathBuf> {
    let mut path = stem(folder, kind, version).into_os_string();
    path.push(".json");
    let path = PathBuf::from(path);
    fs::create_dir_all(folder)?;
    let mut all: Map<String, Value> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error),
    };
    let command: Vec<String> = std::env::args().collect();
    all.insert("server".to_owned(), json!(format!("{kind} {version}")));
    all.insert(
        program.to_owned(),
        json!({
            "machine": Machine::this().json(), "command": command.join(" "), "found": found,
        }),
    );
    fs::write(&path, format!("{:#}\n", Value::Object(all)))?;
    Ok(path)
}
