//! `redis-lock completion`: a script for a shell, made from the command line.

use crate::cli::cli;
use clap_complete::{Shell, generate};
use std::io::Write;

/// Prints the script, and gives the exit code.
pub(crate) fn print(shell: Shell) -> u8 {
    let mut script = Vec::new();
    generate(shell, &mut cli(), "redis-lock", &mut script);
    // That it cannot be printed is no error.
    drop(std::io::stdout().write_all(&script));
    0
}
