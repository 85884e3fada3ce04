//! docs/guide/clients.md: its sections, their examples, and the table of what was measured.

pub(crate) const PAGE: &str = include_str!("../../docs/guide/clients.md");

/// What stands below a heading of the third rank.
pub(crate) struct Section {
    pub(crate) heading: &'static str,
    pub(crate) text: &'static str,
}

impl Section {
    /// The language of each example, and its text.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.text.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap())
    }
}

/// One for each client.
pub(crate) fn sections() -> Vec<Section> {
    let split = |part: &'static str| {
        let (heading, rest) = part.split_once('\n').unwrap();
        Section { heading, text: rest.split("\n## ").next().unwrap() }
    };
    PAGE.split("\n### ").skip(1).map(split).collect()
}

/// The cells of the table behind a client's name, without the marks of code.
pub(crate) fn row(client: &str) -> Option<Vec<String>> {
    let line = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| {client} | ")))?;
    Some(line.trim_end_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect())
}
