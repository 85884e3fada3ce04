//! A witness that pings a server all the time. It separates what came late on a busy machine from what the module
//! forgot: the machine keeps a PING waiting as well.

use crate::caller::Caller;
use crate::history::Moment;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(5);
/// What is due may come so many milliseconds later: the timers of a server follow its wall clock, which it checks ten
/// times a second, and the module asks as often whether it may write again.
const LATE_MS: u64 = 500;
/// What is not worth remembering, in microseconds.
const QUICK_US: u64 = 10_000;

#[derive(Debug)]
pub struct Witness {
    over: Arc<AtomicBool>,
    slow: Arc<Mutex<Vec<(Moment, Moment)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    pub fn of(port: u16) -> Witness {
        let (over, slow) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (ends, notes) = (Arc::clone(&over), Arc::clone(&slow));
        let thread = Some(thread::spawn(move || {
            let mut caller = Caller::new(port, Duration::from_secs(60));
            let mut before = Moment::now();
            while !ends.load(Ordering::Relaxed) {
                // The pause counts: the machine may delay this thread as it delays the waiters of a lock.
                thread::sleep(PAUSE);
                let (_, _, told) = caller.ask("PING");
                if told.0 - before.0 > QUICK_US {
                    notes.lock().expect("nobody panics with it").push((before, told));
                }
                before = told;
            }
        }));
        Witness { over, slow, thread }
    }

    /// For how long between two moments it got no answer, in microseconds.
    pub fn stalled_us(&self, from: Moment, to: Moment) -> u64 {
        // Whatever began until then is noted when it has ended.
        thread::sleep(PAUSE * 3);
        let slow = self.slow.lock().expect("nobody panics with it");
        slow.iter().map(|(began, ended)| ended.0.min(to.0).saturating_sub(began.0.max(from.0))).sum()
    }

    /// True if what was due between two moments was told then, or hardly later, stalls of the machine apart.
    pub fn is_in_time(&self, due: (Moment, Moment), told: Moment) -> bool {
        told >= due.0 && told.0 <= due.1.after_ms(LATE_MS).0 + self.stalled_us(due.1, told)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("does not panic");
        }
    }
}
