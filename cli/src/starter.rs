//! Becomes the command, once parent and keeper both know its process group.

use crate::exit;
use crate::sys;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The word that makes this program a starter.
pub(crate) const ROLE: &str = "__command";

/// Waits for a byte on the descriptor, the first word. The second is its parent. The others are the command.
pub(crate) fn start(words: &[OsString]) -> u8 {
    let number = |at: usize| words.get(at).and_then(|word| word.to_str()).and_then(|word| word.parse().ok());
    let (Some(gate), Some(parent), Some(program)) = (number(0), number(1), words.get(2)) else { return exit::USAGE };
    sys::name();
    sys::give_back();
    // Stays with the program that is executed.
    set_parent_process_death_signal(Some(Signal::TERM)).ok();
    let mut gate = File::from(sys::inherited(gate));
    let opened = gate.read_exact(&mut [0]);
    // A parent that was killed before this asked for its signal sends none.
    if opened.is_err() || getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
        return exit::by_signal(Signal::TERM.as_raw());
    }
    // The command does not get it.
    fcntl_setfd(&gate, FdFlags::CLOEXEC).ok();
    let mut command = Command::new(program);
    command.args(&words[3..]).envs(systemd_variables(parent));
    let error = command.exec();
    // The parent may be gone.
    drop(gate.write_all(&[1]));
    let (code, why) = if error.kind() == io::ErrorKind::NotFound {
        (exit::NOT_FOUND, not_found(program))
    } else {
        (exit::CANNOT_RUN, format!("{}: {error}", program.display()))
    };
    exit::say_of(&std::env::var_os("REDIS_LOCK_KEY").unwrap_or_default(), why);
    code
}

/// What systemd said to the process that it started, it says to the command: sockets, and how to be watched.
fn systemd_variables(parent: i32) -> impl Iterator<Item = (&'static str, String)> {
    let is_for_parent = move |name: &str| std::env::var(name).is_ok_and(|pid| pid == parent.to_string());
    // The command will be this process.
    let own = || std::process::id().to_string();
    ["LISTEN_PID", "WATCHDOG_PID"].into_iter().filter(move |name| is_for_parent(name)).map(move |name| (name, own()))
}

/// What may be wrong with a command that is not there.
fn not_found(program: &OsStr) -> String {
    let name = program.display();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let is_there = if program.as_encoded_bytes().contains(&b'/') {
        Path::new(program).exists()
    } else {
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    };
    if is_there {
        format!("{name}: its interpreter was not found")
    } else if program.as_encoded_bytes().contains(&b' ') {
        format!("\"{name}\" was not found: a shell command needs -c")
    } else {
        format!("\"{name}\" was not found")
    }
}
