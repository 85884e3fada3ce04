//! Clients that live beside what a program does to their server, and the judgement on what they saw.

use crate::history::{self, Grant};
use crate::options::Options;
use crate::report::Report;
use crate::worker::{Habits, Saw, Worker, together};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Clients of one server.
#[derive(Clone, Debug)]
pub struct Load<'h> {
    /// How many.
    pub clients: u64,
    /// The port on which they ask.
    pub port: u16,
    /// What they do.
    pub habits: &'h Habits,
    /// How long they wait for an answer beyond its time.
    pub patience: Duration,
    /// Tells them apart from those of other loads of the program, also in their dice.
    pub number: u64,
}

impl Load<'_> {
    /// Lets them live while something is done, and returns what that returned and what they saw.
    pub fn during<R>(&self, options: &Options, body: impl FnOnce() -> R) -> (R, Saw) {
        let goes_on = AtomicBool::new(true);
        thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients)
                .map(|client| {
                    let dice = options.dice((self.number << 16) + client + 1);
                    let worker = Worker::new(format!("{}.{client}", self.number), self.habits, dice, self.patience);
                    scope.spawn(|| worker.live(&|_| Some(self.port), &|| goes_on.load(Ordering::Relaxed)))
                })
                .collect();
            // Also when the body panics: the scope waits for them.
            let stop = Stop(&goes_on);
            let returned = body();
            drop(stop);
            let saw = clients.into_iter().map(|client| client.join().expect("clients do not panic"));
            (returned, together(saw))
        })
    }
}

struct Stop<'f>(&'f AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

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
    saw.answers.iter().for_each(|(answer, count)| report.add(&format!("{what}: {answer}"), *count));
}

fn told(what: &str, name: &str, pairs: Vec<(&Grant, &Grant)>) -> impl Iterator<Item = String> {
    pairs.into_iter().map(move |(one, other)| format!("{what}: {name}: {one:?} and {other:?}"))
}
