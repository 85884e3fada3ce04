//! Many clients that live while something is done to the servers.

use crate::options::Options;
use crate::worker::{Habits, Saw, Worker, together};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[derive(Clone, Copy)]
pub struct Crowd<'c> {
    /// Distinguishes them from those of the program's other crowds, also in their dice.
    pub number: u64,
    /// What they do: so many of them have these habits.
    pub clients: &'c [(u64, Habits)],
    /// An answer that does not come so long after it was due is missing.
    pub patience: Duration,
    /// Where the lock with this name is to be requested now; None while that is not known.
    pub place: &'c (dyn Fn(&str) -> Option<u16> + Sync),
}

impl Crowd<'_> {
    /// Lets them live while something is done; what that returned, and what they saw.
    pub fn during<R>(&self, options: &Options, body: impl FnOnce() -> R) -> (R, Saw) {
        let goes_on = AtomicBool::new(true);
        thread::scope(|scope| {
            let habits = self.clients.iter().flat_map(|(count, habits)| (0..*count).map(move |_| habits));
            let clients: Vec<_> = (1..)
                .zip(habits)
                .map(|(client, habits)| {
                    let (name, dice) =
                        (format!("c{}.{client}", self.number), options.dice((self.number << 16) + client));
                    let worker = Worker::new(name, habits, dice, self.patience);
                    scope.spawn(|| worker.live(self.place, &|| goes_on.load(Ordering::Relaxed)))
                })
                .collect();
            let stop = Stop(&goes_on);
            let returned = body();
            drop(stop);
            (returned, together(clients.into_iter().map(|client| client.join().expect("clients do not panic"))))
        })
    }
}

/// Ends the background work, also when its owner panics: a scope waits for its threads.
pub struct Stop<'f>(pub &'f AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
