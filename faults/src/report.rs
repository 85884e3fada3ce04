//! What a program has found.

use std::collections::BTreeMap;
use std::process::ExitCode;

/// Figures by name, and violations of what is promised.
#[derive(Debug, Default)]
pub struct Report {
    figures: BTreeMap<String, u64>,
    violations: Vec<String>,
    blind: Vec<String>,
}

impl Report {
    /// So many violations are printed; all are counted.
    const SHOWN_MAX: usize = 20;

    /// Adds to a figure.
    pub fn add(&mut self, figure: &str, count: u64) {
        *self.figures.entry(figure.to_owned()).or_default() += count;
    }

    /// Keeps the higher one of a figure and this.
    pub fn most(&mut self, figure: &str, count: u64) {
        let most = self.figures.entry(figure.to_owned()).or_default();
        *most = count.max(*most);
    }

    /// Adds all figures of another.
    pub fn add_all(&mut self, other: Report) {
        other.figures.iter().for_each(|(figure, count)| self.add(figure, *count));
    }

    /// What a figure is now.
    pub fn figure(&self, figure: &str) -> u64 {
        self.figures.get(figure).copied().unwrap_or_default()
    }

    /// Something promised did not hold.
    pub fn violation(&mut self, what: String) {
        // One cause may have thousands of them.
        if self.violations.len() < Report::SHOWN_MAX {
            println!("VIOLATION: {what}");
        }
        self.violations.push(what);
    }

    /// How often something promised did not hold.
    pub fn violation_count(&self) -> usize {
        self.violations.len()
    }

    /// All of these did not hold.
    pub fn violations(&mut self, all: impl IntoIterator<Item = String>) {
        all.into_iter().for_each(|what| self.violation(what));
    }

    /// The run has shown nothing unless this figure is above zero.
    pub fn must_see(&mut self, figure: &str) {
        if self.figure(figure) == 0 {
            self.blind.push(figure.to_owned());
        }
    }

    /// The run has shown nothing unless this figure is at least so high.
    pub fn must_reach(&mut self, figure: &str, least: u64) {
        if self.figure(figure) < least {
            self.blind.push(format!("{figure}: {least}"));
        }
    }

    /// Whether nothing was wrong, and what had to be seen was.
    pub fn is_fine(&self) -> bool {
        self.violations.is_empty() && self.blind.is_empty()
    }

    /// Prints all; a failure if something promised did not hold, or if what had to be seen was not.
    pub fn finish(self) -> ExitCode {
        for (name, count) in &self.figures {
            println!("{name}: {count}");
        }
        for figure in &self.blind {
            println!("BLIND: never seen: {figure}");
        }
        println!("violations: {}", self.violations.len());
        if self.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
