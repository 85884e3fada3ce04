//! What the command lines of the programs have in common.

use clap::{Arg, ArgMatches, value_parser};
use std::path::PathBuf;

pub fn path(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_parser(value_parser!(PathBuf)).help(help)
}

pub fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).default_value(default).value_parser(value_parser!(usize)).help(help)
}

pub fn number_of(options: &ArgMatches, name: &str) -> usize {
    *options.get_one(name).expect("has a default")
}

/// The program of the server: that of the option `server`, else that of the environment, else that in PATH.
pub fn server(options: &ArgMatches) -> PathBuf {
    let named = options.get_one::<PathBuf>("server").cloned();
    named.or_else(|| std::env::var_os("REDIS_LOCK_SERVER").map(Into::into)).unwrap_or_else(|| "redis-server".into())
}
