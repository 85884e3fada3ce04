//! Counts the instructions that a server runs, under valgrind's callgrind: the same from run to run, however busy the
//! machine.

use crate::server::located;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Programs that start a server under callgrind, and the counts that it leaves.
#[derive(Debug)]
pub struct Counter {
    dir: TempDir,
    dumps: usize,
}

impl Counter {
    /// For a server whose program this is.
    pub fn new(server: &Path) -> io::Result<Counter> {
        Counter::with(server, "")
    }

    /// The same, with the counts of each instruction by itself: [`crate::callgrind::Counts`].
    pub fn of_each_instruction(server: &Path) -> io::Result<Counter> {
        Counter::with(server, "--dump-instr=yes --compress-strings=no --compress-pos=no")
    }

    fn with(server: &Path, options: &str) -> io::Result<Counter> {
        let dir = tempfile::tempdir()?;
        let counter = Counter { dir, dumps: 0 };
        let text = format!(
            "#!/bin/sh\nexec valgrind --quiet --tool=callgrind --trace-children=yes {options} \
             --callgrind-out-file='{}' '{}' \"$@\"\n",
            counter.file("%p").display(),
            located(server).display()
        );
        fs::write(counter.program(), text)?;
        fs::set_permissions(counter.program(), fs::Permissions::from_mode(0o755))?;
        Ok(counter)
    }

    /// What to start instead of the server's own program.
    pub fn program(&self) -> PathBuf {
        self.dir.path().join("server")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("counts.{name}"))
    }

    /// The instructions that a process runs while something is done.
    pub fn count<T, E: From<io::Error>>(&mut self, pid: u32, work: impl FnOnce() -> Result<T, E>) -> Result<u64, E> {
        let text = self.counts(pid, work)?;
        let summary = text.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok());
        Ok(summary.ok_or_else(|| io::Error::other("callgrind has left no summary"))?)
    }

    /// The same, as callgrind writes it.
    pub fn counts<T, E: From<io::Error>>(
        &mut self,
        pid: u32,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<String, E> {
        tell(pid, "zero")?;
        work()?;
        tell(pid, "dump")?;
        self.dumps += 1;
        Ok(fs::read_to_string(self.file(&format!("{pid}.{}", self.dumps)))?)
    }
}

/// A command to the valgrind that a process runs in.
fn tell(pid: u32, command: &str) -> io::Result<()> {
    let output = Command::new("vgdb").arg(format!("--pid={pid}")).arg(command).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("vgdb {command}: {}", String::from_utf8_lossy(&output.stderr))))
}
