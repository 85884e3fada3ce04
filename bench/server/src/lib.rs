//! A load generator, and what is measured with it: server CPU and memory of one way to lock beside another.
//!
//! Server CPU is the server's own account of its user and system time. On a noisy machine it is steadier than
//! throughput, and ratios of the same round are steadier than either.

pub mod callgrind;
pub mod driver;
pub mod goals;
pub mod instructions;
pub mod machine;
pub mod measure;
pub mod options;
pub mod page;
pub mod profile;
pub mod ratio;
pub mod reply;
pub mod results;
pub mod rivals;
pub mod row;
pub mod scripts;
pub mod server;
pub mod template;

use std::error::Error;
use std::process::ExitCode;

/// What came of a part of a program.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// How a program ends: with the reason, if it failed.
pub fn finish(result: Outcome<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
