//! Becomes the command, once parent and keeper both know its process group.

use crate::exit;
use crate::sys;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The word that makes this program a starter.
pub(crate) const ROLE: &str = "__command";

/// Waits for a byte on the descriptor, the first word. The second is its parent. The others are the command.
pub(crate) fn start(words: &[OsString]) -> u8 {
    let number = |at: usize| words.get(at).and_then(|word| word.to_str()).and_then(|word| word.parse().ok());
    let (Some(gate), Some(parent), Some(program)) = (number(0), number(1), words.get(2)) else { return exit::USAGE };
    sys::give_back();
    // Stays with the program that is executed.
    set_parent_process_death_signal(Some(Signal::TERM)).ok();
    let opened = File::from(sys::inherited(gate)).read_exact(&mut [0]);
    // A parent that was killed before this asked for its signal sends none.
    if opened.is_err() || getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
        return exit::by_signal(Signal::TERM.as_raw());
    }
    let error = Command::new(program).args(&words[3..]).exec();
    let program = program.display();
    if error.kind() == io::ErrorKind::NotFound {
        exit::say(format_args!("{program}: {error}"));
        exit::NOT_FOUND
    } else {
        exit::say(format_args!("{program}: {error}"));
        exit::CANNOT_RUN
    }
}
