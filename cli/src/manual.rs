//! The manual page: the options as --help has them, and what is more than a screen.

use crate::cli::cli;
use clap::{Arg, Command};
use std::fmt::Write;

/// What stands before and after the options.
const HEAD: &str = include_str!("manual-head.roff");
const TAIL: &str = include_str!("manual-tail.roff");

/// The page, in the language of man.
fn page() -> String {
    let mut page = HEAD.to_owned();
    let all = cli();
    options("ALL COMMANDS", &all, &mut page);
    for command in all.get_subcommands() {
        options(&command.get_name().to_uppercase(), command, &mut page);
    }
    page + TAIL
}

/// Adds the options of this command, if it has some.
fn options(of: &str, command: &Command, page: &mut String) {
    let mut head = format!(".SH OPTIONS OF {of}\n");
    for option in command.get_arguments().filter(|option| !option.is_positional()) {
        let help = option.get_help().map(ToString::to_string).filter(|help| !help.is_empty());
        let help = help.unwrap_or_else(|| panic!("{of}: {} has no help", option.get_id()));
        let head = std::mem::take(&mut head);
        writeln!(page, "{head}.TP\n{}\n{}.", name(option), escaped(&help)).expect("text takes all");
    }
}

/// `-w, --wait TIME`, with what is typed as it is in bold.
fn name(option: &Arg) -> String {
    let short = option.get_short().map(|short| format!("\\fB\\-{short}\\fR"));
    let long = option.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", escaped(long)));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let takes_value = option.get_action().takes_values();
    let value = option.get_value_names().filter(|_| takes_value).and_then(|names| names.first());
    let value = value.map(|value| format!(" \\fI{value}\\fR")).unwrap_or_default();
    names.join(", ") + &value
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[test]
fn the_manual_page_is_that_of_the_options() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/redis-lock.1");
    if std::env::var_os("REDIS_LOCK_WRITE_MANUAL").is_some() {
        std::fs::write(file, page()).expect("a file");
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(written == page(), "write it anew: REDIS_LOCK_WRITE_MANUAL=1 cargo test -p redis-lock-cli manual");
}
