//! The judgement on what clients saw: what is wrong in it, whichever scene it is, and whether what was done to the
//! servers explains that.

use crate::history::{self, Grant, Moment, Sighting};
use crate::report::Report;
use crate::worker::Saw;
use std::fmt::Debug;

/// A lease must not be seen so long after its end.
const OVERDUE_MS: u64 = 1_000;

pub const TWICE: &str = "held twice";
/// An owner was told within its lease that it does not hold.
pub const DENIED: &str = "denied to its owner";
/// A request had no answer in time, though its connection was open.
pub const UNANSWERED: &str = "never answered";
const MISSING: &str = "missing";
const RETURNED: &str = "released, and there again";
/// What a server shows that has lost grants, or releases.
pub const LOSSES: [&str; 4] = [TWICE, DENIED, MISSING, RETURNED];

#[derive(Clone, Debug)]
pub struct Wrong<'s> {
    pub name: &'static str,
    /// The grants that it concerns, in the order in which they were told.
    pub grants: Vec<&'s Grant>,
    /// From when on the server has known better, and when it showed that it does not.
    pub between: (Moment, Moment),
    text: String,
}

impl<'s> Wrong<'s> {
    fn of(name: &'static str, mut grants: Vec<&'s Grant>, between: (Moment, Moment), text: &dyn Debug) -> Wrong<'s> {
        grants.sort_by_key(|grant| grant.told);
        Wrong { name, grants, between, text: format!("{text:?}") }
    }

    fn pairs(name: &'static str, pairs: Vec<(&'s Grant, &'s Grant)>) -> impl Iterator<Item = Wrong<'s>> {
        pairs.into_iter().map(move |pair| Wrong::of(name, vec![pair.0, pair.1], (pair.0.told, pair.1.told), &pair))
    }
}

/// Holds that exclude each other, that their owners were denied, or that are not what the server showed.
pub fn holds<'s>(grants: &'s [Grant], sightings: &'s [Sighting]) -> Vec<Wrong<'s>> {
    let answered =
        |grant: &Grant| grant.release.and_then(|release| release.answer).map_or(grant.told, |(told, _)| told);
    let denied = history::lost(grants).into_iter();
    let denied = denied.map(|grant| Wrong::of(DENIED, vec![grant], (grant.told, answered(grant)), grant));
    let [missing, returned, overdue] = [
        (MISSING, history::missing(grants, sightings)),
        (RETURNED, history::returned(grants, sightings)),
        ("there after its lease", history::overdue(grants, sightings, OVERDUE_MS)),
    ]
    .map(|(name, seen)| {
        seen.into_iter().map(move |(grant, look)| {
            let since = if name == RETURNED { answered(grant) } else { grant.told };
            Wrong::of(name, vec![grant], (since, look.told), &(grant, look))
        })
    });
    let twice = Wrong::pairs(TWICE, history::held_twice(grants));
    twice.chain(denied).chain(missing).chain(returned).chain(overdue).collect()
}

/// Fences that do not rise.
pub fn fences(grants: &[Grant]) -> Vec<Wrong<'_>> {
    let repeated = Wrong::pairs("fence repeated", history::fences_repeated(grants));
    Wrong::pairs("fences back", history::fences_back(grants)).chain(repeated).collect()
}

/// Requests without an answer, or with null too early.
pub fn answers<'s>(forgotten: &[String], too_early: &[String]) -> Vec<Wrong<'s>> {
    let all = forgotten.iter().map(|request| (UNANSWERED, request));
    let all = all.chain(too_early.iter().map(|request| ("null before its time", request)));
    all.map(|(name, request)| Wrong::of(name, Vec::new(), (Moment(0), Moment(0)), request)).collect()
}

/// What is not explained is a violation. All else is counted, with what explains it.
pub fn tell<'s>(
    report: &mut Report,
    found: impl IntoIterator<Item = Wrong<'s>>,
    explain: impl Fn(&Wrong) -> Option<&'static str>,
) {
    for wrong in found {
        match explain(&wrong) {
            Some(why) => report.add(&format!("{}{why}", wrong.name), 1),
            None => report.violation(format!("{}: {}", wrong.name, wrong.text)),
        }
    }
}

/// Counts what clients were granted and answered.
pub fn count(report: &mut Report, saw: &Saw) {
    report.add("grants", saw.grants.len() as u64);
    saw.answers.iter().for_each(|(answer, count)| report.add(&format!("answered {answer}"), *count));
}

/// Judges all that clients saw, and counts it.
pub fn judge(report: &mut Report, saw: &Saw, sightings: &[Sighting], explain: impl Fn(&Wrong) -> Option<&'static str>) {
    count(report, saw);
    // A client that does not rely on a hold has its fence nevertheless.
    let fenced: Vec<Grant> = saw.grants.iter().chain(&saw.unconfirmed).cloned().collect();
    let answers = answers(&saw.forgotten, &saw.too_early);
    tell(report, [holds(&saw.grants, sightings), fences(&fenced), answers].concat(), explain);
}

/// The same under this name.
pub fn judge_as(report: &mut Report, name: &str, saw: &Saw, explain: impl Fn(&Wrong) -> Option<&'static str>) {
    report.turn_to(name);
    judge(report, saw, &[], explain);
    report.turn_to("");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Freed, Release};

    /// Held from 10 on, under a lease to 100.
    fn grant(owner: &str, fence: i64, freed: Option<Freed>) -> Grant {
        let release = freed.map(|freed| Release { asked: Moment(40), answer: Some((Moment(50), freed)) });
        let (key, owner, lease_ends) = ("k".to_owned(), owner.to_owned(), Moment(100));
        Grant { key, owner, writes: true, fence, node: 1, asked: Moment(5), told: Moment(10), lease_ends, release }
    }

    fn look(owners: &[&str], asked: u64) -> Sighting {
        let owners = owners.iter().map(|owner| (*owner).to_owned()).collect();
        Sighting { key: "k".to_owned(), owners, node: 1, asked: Moment(asked), told: Moment(asked + 1) }
    }

    #[test]
    fn each_wrong_has_its_name_and_the_moments_between_which_a_loss_explains_it() {
        let found = |grants: &[Grant], looks: &[Sighting]| -> Vec<(&str, u64, u64)> {
            let wrong = [holds(grants, looks), fences(grants)].concat();
            wrong.iter().map(|wrong| (wrong.name, wrong.between.0.0, wrong.between.1.0)).collect()
        };
        let later = Grant { asked: Moment(20), told: Moment(30), ..grant("b", 1, None) };
        let both = [("held twice", 10, 30), ("fences back", 10, 30), ("fence repeated", 10, 30)];
        assert_eq!(found(&[grant("a", 1, None), later], &[]), both);
        assert_eq!(found(&[grant("a", 1, Some(Freed::NotHeld))], &[]), [("denied to its owner", 10, 50)]);
        assert_eq!(found(&[grant("a", 1, None)], &[look(&[], 20)]), [("missing", 10, 21)]);
        let back = found(&[grant("a", 1, Some(Freed::Left))], &[look(&["a"], 60)]);
        assert_eq!(back, [("released, and there again", 50, 61)]);
        let late = found(&[grant("a", 1, None)], &[look(&["a"], 2_000_000)]);
        assert_eq!(late, [("there after its lease", 10, 2_000_001)]);
    }

    #[test]
    fn only_what_nothing_explains_is_a_violation() {
        let found = answers(&["one".to_owned()], &["other".to_owned()]);
        let mut report = Report::default();
        tell(&mut report, found, |wrong| (wrong.name == UNANSWERED).then_some(", since it was stopped"));
        assert_eq!((report.violation_count(), report.total(&[UNANSWERED])), (1, 1));
    }
}
