//! What people and programs read on the standard output: columns, or JSON.

use crate::exit::{self, printable};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write, stdout};

/// Between two columns.
const GAP: &str = "  ";

/// Rows below a head, whose columns are as wide as what is in them. A first column that is the same in all rows is left
/// out.
pub(crate) struct Table(Vec<Vec<String>>);

impl Table {
    pub(crate) fn new(head: &[&str]) -> Table {
        Table(vec![head.iter().map(ToString::to_string).collect()])
    }

    pub(crate) fn add(&mut self, row: Vec<String>) {
        self.0.push(row.into_iter().map(printable).collect());
    }

    /// Prints it, if it has rows, its head in bold on a terminal. Returns false if nobody reads.
    pub(crate) fn print(&self) -> bool {
        let (on, off) = if stdout().is_terminal() && may_colour() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let styled = |(number, row)| if number == 0 { format!("{on}{row}{off}") } else { row };
        self.lines().into_iter().enumerate().map(styled).all(line)
    }

    /// Its lines, the head first; none without rows.
    pub(crate) fn lines(&self) -> Vec<String> {
        let [head, rows @ ..] = &self.0[..] else { return Vec::new() };
        if rows.is_empty() {
            return Vec::new();
        }
        let one = rows.iter().all(|row| row[0] == rows[0][0]);
        let first = usize::from(head[0] == "SERVER" && one);
        let width = |column: usize| self.0.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).skip(first).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        };
        self.0.iter().map(line).collect()
    }
}

/// Whether the user wants colours where there is a terminal (no-color.org).
pub(crate) fn may_colour() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Prints a line. Returns false if nobody reads.
pub(crate) fn line(text: impl Display) -> bool {
    match writeln!(stdout(), "{text}") {
        Ok(()) => true,
        // As of `| head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => {
            exit::say(format_args!("standard output: {error}"));
            false
        }
    }
}
