//! Who holds a lock, in a file: so it is held without a process.

use serde_json::{Value as Json, json};
use std::io::{self, Write};
use std::path::Path;

/// Who holds which lock.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) fence: u64,
    /// How long it is held after a renewal; 0 where it is renewed anyway.
    pub(crate) lease_ms: u64,
}

impl Token {
    pub(crate) fn json(&self) -> Json {
        let mut json = json!({ "key": self.key, "owner": self.owner, "fence": self.fence });
        if self.lease_ms > 0 {
            json["lease_ms"] = self.lease_ms.into();
        }
        json
    }

    /// Puts it into the place of this file at once. Nobody else may read it.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(new, "{}", self.json())?;
        new.persist(file)?;
        Ok(())
    }

    pub(crate) fn read(file: &Path) -> io::Result<Token> {
        let json: Json = serde_json::from_slice(&std::fs::read(file)?)?;
        let of = || {
            let text = |name: &str| json[name].as_str().map(str::to_owned);
            let number = |name: &str| json[name].as_u64();
            let (key, owner) = (text("key")?, text("owner")?);
            Some(Token { key, owner, fence: number("fence")?, lease_ms: number("lease_ms")? })
        };
        of().ok_or_else(|| io::Error::other("is no token"))
    }
}
