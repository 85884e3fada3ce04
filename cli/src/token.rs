//! Who holds a lock, in a file: so it is held without a process.

use crate::args::Servers;
use serde_json::{Value as Json, json};
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

/// Who holds which lock.
pub(crate) struct Token {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) fence: u64,
    /// How long it is held after a renewal.
    pub(crate) lease_ms: u64,
    pub(crate) servers: Servers,
}

impl Token {
    /// Puts it into the place of this file at once. Nobody else may read it.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        let Token { key, owner, fence, lease_ms, servers: Servers { urls, sentinel } } = self;
        let json = json!({
            "key": key, "owner": owner, "fence": fence, "lease_ms": lease_ms, "servers": urls, "sentinel": sentinel
        });
        writeln!(new, "{json}")?;
        new.persist(file)?;
        Ok(())
    }

    /// Returns what a file holds, or says that it holds nothing.
    pub(crate) fn read(file: &Path) -> io::Result<Token> {
        let no_token = |why: &dyn Display| io::Error::other(format!("no token in {}: {why}", file.display()));
        let text = std::fs::read(file).map_err(|error| no_token(&error))?;
        let json: Json = serde_json::from_slice(&text).unwrap_or_default();
        let of = || {
            let text = |name: &str| json[name].as_str().map(str::to_owned);
            let number = |name: &str| json[name].as_u64();
            let (key, owner) = (text("key")?, text("owner")?);
            let urls = json["servers"].as_array()?.iter().filter_map(|url| url.as_str().map(str::to_owned)).collect();
            let servers = Servers { urls, sentinel: text("sentinel") };
            Some(Token { key, owner, fence: number("fence")?, lease_ms: number("lease_ms")?, servers })
        };
        of().ok_or_else(|| no_token(&"redis-lock acquire did not write it"))
    }
}
