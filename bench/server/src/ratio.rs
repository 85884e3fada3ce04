//! What one is to the other in the same round: the least, the median and the most of all rounds.

use serde_json::{Value, json};
use std::fmt::{Display, Formatter};

/// The least, the median and the most of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub min: f64,
    /// The one in the middle; of an even number the upper of two.
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Spread { min: values[0], median: values[values.len() / 2], max: values[values.len() - 1] }
    }

    /// What each of `ours` is to the one of `theirs` in the same round.
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Spread {
        assert_eq!(ours.len(), theirs.len(), "as many rounds of both");
        Spread::of(ours.iter().zip(theirs).map(|(our, their)| our / their))
    }

    pub fn json(&self) -> Value {
        json!({ "min": self.min, "median": self.median, "max": self.max })
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        // Two digits that say something, also of what is hundreds of times cheaper.
        let digits = if self.median < 0.1 { 4 } else { 2 };
        f.pad(&format!("{:.digits$} - {:.digits$} - {:.digits$}", self.min, self.median, self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        // Divided after sorting, all three would be 2.
        let spread = Spread::of_ratios(&[2.0, 4.0, 6.0], &[3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { min: 2.0 / 3.0, median: 3.0, max: 4.0 });
        assert_eq!(spread.to_string(), "0.67 - 3.00 - 4.00");
    }

    #[test]
    fn a_small_ratio_is_no_nothing() {
        assert_eq!(Spread::of([0.0021, 0.003, 0.0024]).to_string(), "0.0021 - 0.0024 - 0.0030");
    }

    #[test]
    fn one_round_is_its_own_spread() {
        assert_eq!(Spread::of([7.0]), Spread { min: 7.0, median: 7.0, max: 7.0 });
    }
}
