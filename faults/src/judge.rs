//! The judgement on what clients saw.

use crate::history::{self, Grant};
use crate::report::Report;
use crate::worker::Saw;

/// What must be true of what clients saw where leases alone end holds; counts the answers.
pub fn judge(report: &mut Report, what: &str, saw: &Saw) {
    report.violations(told(what, "held twice", history::held_twice(&saw.grants)));
    report.violations(history::lost(&saw.grants).into_iter().map(|grant| format!("{what}: lost: {grant:?}")));
    judge_fences(report, what, saw);
}

/// What must be true of what clients saw even where holds are taken from them; counts the answers.
pub fn judge_fences(report: &mut Report, what: &str, saw: &Saw) {
    report.violations(told(what, "fences go back", history::fences_back(&saw.grants)));
    report.violations(told(what, "fence repeated", history::fences_repeated(&saw.grants)));
    report.violations(saw.forgotten.iter().map(|request| format!("{what}: never answered: {request}")));
    report.violations(saw.too_early.iter().map(|request| format!("{what}: null before its time: {request}")));
    saw.answers.iter().for_each(|(answer, count)| report.add(&format!("{what}: {answer}"), *count));
}

fn told(what: &str, name: &str, pairs: Vec<(&Grant, &Grant)>) -> impl Iterator<Item = String> {
    pairs.into_iter().map(move |(one, other)| format!("{what}: {name}: {one:?} and {other:?}"))
}
