//! One figure beside another, and what it is to be.

use crate::ratio::Spread;
use serde_json::{Value, json};
use std::fmt::{Display, Formatter};

/// What a ratio is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// It must not be above this.
    pub at_most: f64,
    /// It should not be above this.
    pub aim: Option<f64>,
}

/// How a ratio stands to its goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Not above the aim.
    Aim,
    /// Not above the limit.
    Reached,
    /// Above it.
    Missed,
}

/// A comparison that was measured.
#[derive(Clone, Debug)]
pub struct Row {
    pub group: &'static str,
    pub environment: String,
    pub what: String,
    pub with: String,
    /// What both were measured in.
    pub unit: &'static str,
    pub ours: Spread,
    pub theirs: Spread,
    /// Of the same rounds.
    pub ratio: Spread,
    /// What the median is to be.
    pub goal: Option<Goal>,
}

impl Goal {
    pub fn verdict(&self, ratio: f64) -> Verdict {
        if self.aim.is_some_and(|aim| ratio <= aim) {
            Verdict::Aim
        } else if ratio <= self.at_most {
            Verdict::Reached
        } else {
            Verdict::Missed
        }
    }
}

impl Display for Goal {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "at most {}", self.at_most)?;
        self.aim.map_or(Ok(()), |aim| write!(f, ", aim {aim}"))
    }
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Aim => "within the aim",
            Verdict::Reached => "within the bound",
            Verdict::Missed => "above the bound",
        }
    }
}

impl Row {
    /// How its median stands to its goal, if it has one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.goal.map(|goal| goal.verdict(self.ratio.median))
    }

    pub fn json(&self) -> Value {
        json!({
            "group": self.group, "environment": self.environment, "what": self.what, "with": self.with,
            "unit": self.unit, "ours": self.ours.json(), "theirs": self.theirs.json(), "ratio": self.ratio.json(),
            "at_most": self.goal.map(|goal| goal.at_most), "aim": self.goal.and_then(|goal| goal.aim),
            "verdict": self.verdict().map(Verdict::word),
        })
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Row { what, with, ours, theirs, ratio, .. } = self;
        write!(f, "{what:<34} / {with:<34} {:>8.2} {:>8.2}   {ratio:>20}", ours.median, theirs.median)?;
        match (self.goal, self.verdict()) {
            (Some(goal), Some(verdict)) => write!(f, "   {goal}: {}", verdict.word()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_reaches_what_it_is_not_above() {
        let goal = Goal { at_most: 1.3, aim: Some(1.0) };
        assert_eq!(
            [0.9, 1.0, 1.01, 1.3, 1.31].map(|ratio| goal.verdict(ratio).word()),
            ["within the aim", "within the aim", "within the bound", "within the bound", "above the bound"]
        );
        assert_eq!(Goal { at_most: 1.5, aim: None }.verdict(0.1), Verdict::Reached);
    }
}
