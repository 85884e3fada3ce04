//! What a program has found.

use std::collections::BTreeMap;
use std::process::ExitCode;

/// Figures by name, and violations of what is promised.
#[derive(Debug, Default)]
pub struct Report {
    /// What stands before the names of the figures of a variant.
    prefix: String,
    figures: BTreeMap<String, u64>,
    violations: Vec<String>,
    /// How high these figures must be at least.
    needed: BTreeMap<String, u64>,
}

impl Report {
    /// So many violations are printed; all are counted.
    const SHOWN_MAX: usize = 20;

    /// What follows is of this variant of the scene.
    pub fn turn_to(&mut self, variant: &str) {
        self.prefix = if variant.is_empty() { String::new() } else { format!("{variant}: ") };
    }

    fn name(&self, figure: &str) -> String {
        format!("{}{figure}", self.prefix)
    }

    fn entry(&mut self, figure: &str) -> &mut u64 {
        self.figures.entry(self.name(figure)).or_default()
    }

    pub fn add(&mut self, figure: &str, count: u64) {
        *self.entry(figure) += count;
    }

    pub fn add_all<'f>(&mut self, figures: impl IntoIterator<Item = (&'f String, &'f u64)>) {
        figures.into_iter().for_each(|(figure, count)| self.add(figure, *count));
    }

    /// Keeps the higher one of a figure and this.
    pub fn most(&mut self, figure: &str, count: u64) {
        let most = self.entry(figure);
        *most = count.max(*most);
    }

    pub fn figure(&self, figure: &str) -> u64 {
        self.figures.get(&self.name(figure)).copied().unwrap_or_default()
    }

    /// The sum of all figures whose names begin with one of these.
    pub fn total(&self, names: &[&str]) -> u64 {
        let begins = |figure: &str| names.iter().any(|name| figure.starts_with(&self.name(name)));
        self.figures.iter().filter(|(figure, _)| begins(figure)).map(|(_, count)| count).sum()
    }

    /// Something promised did not hold.
    pub fn violation(&mut self, what: String) {
        let what = self.name(&what);
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

    pub fn violations(&mut self, all: impl IntoIterator<Item = String>) {
        all.into_iter().for_each(|what| self.violation(what));
    }

    /// The run has shown nothing unless these figures are above zero.
    pub fn must_see<F: AsRef<str>>(&mut self, figures: impl IntoIterator<Item = F>) {
        figures.into_iter().for_each(|figure| self.must_reach(figure.as_ref(), 1));
    }

    /// The run has shown nothing unless this figure is at least so high.
    pub fn must_reach(&mut self, figure: &str, least: u64) {
        self.needed.insert(self.name(figure), least);
    }

    fn unseen(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.needed.iter().filter(|(figure, least)| self.figures.get(*figure).is_none_or(|count| count < *least))
    }

    /// Whether what had to be seen was.
    pub fn has_seen_all(&self) -> bool {
        self.unseen().next().is_none()
    }

    /// Whether nothing was wrong, and what had to be seen was.
    pub fn is_fine(&self) -> bool {
        self.violations.is_empty() && self.has_seen_all()
    }

    /// Prints all; a failure if something promised did not hold, or if what had to be seen was not.
    pub fn finish(self) -> ExitCode {
        for (name, count) in &self.figures {
            println!("{name}: {count}");
        }
        for (figure, least) in self.unseen() {
            println!("BLIND: seen less than {least} times: {figure}");
        }
        println!("violations: {}", self.violations.len());
        if self.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
