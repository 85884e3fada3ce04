//! The manual page: the options as --help has them, and what is more than a screen.

use crate::cli::cli;
use clap::{Arg, Command};
use std::fmt::Write;
use std::io::Write as _;

/// The first argument of the program when it prints the page, for packages.
pub(crate) const ROLE: &str = "__manual";

/// What stands before and after the options.
const HEAD: &str = include_str!("manual-head.roff");
const TAIL: &str = include_str!("manual-tail.roff");

/// Prints the page, and gives the exit code.
pub(crate) fn print() -> u8 {
    // That it cannot be printed is seen by those who make packages.
    u8::from(std::io::stdout().write_all(page().as_bytes()).is_err())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_page_has_each_option_once_with_its_help() {
        let page = page();
        for (heading, option, help) in [
            ("ALL COMMANDS", "\\fB\\-u\\fR, \\fB\\-\\-url\\fR \\fIURL\\fR", "redis://, rediss://, unix://"),
            ("RUN", "\\fB\\-k\\fR, \\fB\\-\\-kill\\-after\\fR \\fITIME\\fR", "Send KILL TIME after TERM"),
            ("BREAK", "\\fB\\-\\-yes\\fR", "Do not ask."),
        ] {
            let (_, section) = page.split_once(&format!("\n.SH OPTIONS OF {heading}\n")).expect("a section");
            let section = section.split("\n.SH ").next().expect("there is always one");
            assert_eq!(section.matches(&format!(".TP\n{option}\n{help}")).count(), 1, "{option}: {section}");
        }
        assert!(page.starts_with(".TH ") && page.contains("\n.SH LIMITS\n"));
    }
}
