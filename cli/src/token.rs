//! Who holds a lock, in a file: so it is held without a process.

use crate::args::Servers;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

/// Who holds which lock.
#[derive(Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) fence: u64,
    /// How long it is held after a renewal.
    pub(crate) lease_ms: u64,
    #[serde(flatten)]
    pub(crate) servers: Servers,
}

impl Token {
    /// Puts it into the place of this file at once. Nobody else may read it.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(new, "{}", serde_json::to_string(self)?)?;
        new.persist(file)?;
        Ok(())
    }

    /// Returns what a file holds, or says that it holds nothing.
    pub(crate) fn read(file: &Path) -> io::Result<Token> {
        let no_token = |why: &dyn Display| io::Error::other(format!("no token in {}: {why}", file.display()));
        let text = std::fs::read(file).map_err(|error| no_token(&error))?;
        serde_json::from_slice(&text).map_err(|_| no_token(&"redis-lock acquire did not write it"))
    }
}
