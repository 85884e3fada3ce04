//! Counts the instructions that a server runs, under valgrind's callgrind: the same from run to run, however busy the
//! machine.

use crate::driver::{Driver, Load};
use crate::rivals::{self, Group};
use crate::scripts;
use crate::server::{Bench, Plan, located, options_of};
use crate::template::Sequence;
use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What the server does ten times a second by itself is not what is counted.
pub const QUIET: [(&str, &str); 2] = [("hz", "1"), ("dynamic-hz", "no")];

/// Programs that start a server under callgrind, and the counts that it leaves.
#[derive(Debug)]
pub struct Counter {
    dir: TempDir,
    dumps: usize,
}

/// A server for the rows of a group whose instructions are counted.
pub struct Counted {
    /// The server, with the empty commands too.
    pub server: Bench,
    pub driver: Driver,
    /// What its scripts are called.
    pub names: Vec<(String, String)>,
}

impl Counted {
    /// Starts it under a counter, and fills these many keys as the group says.
    ///
    /// # Errors
    /// When the server cannot be reached, or a reply is not the one expected.
    pub fn start(counter: &Counter, group: &Group, keys: usize) -> Result<Counted, Box<dyn Error>> {
        let mut options = group.environment.options();
        options.push(("loadmodule".to_owned(), rivals::noop().to_string_lossy().into_owned()));
        options.extend(options_of(QUIET));
        let mut server = Plan { program: Some(counter.program()), options, ..Plan::default() }.start();
        let names = scripts::load(&mut server);
        let mut driver = Driver::connect(server.address(), 1)?;
        for fill in &group.fills {
            let load = Load { pipeline: group.environment.pipeline, keys, count: keys };
            driver.run(&Sequence::parse(&fill.run, &names)?, load)?;
        }
        Ok(Counted { server, driver, names })
    }
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

    /// What a process runs while something is done, as callgrind writes it.
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
