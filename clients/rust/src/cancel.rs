//! A way to end waits from another thread. Knows no server.

use crate::sync::lock;
use std::sync::{Arc, Mutex};

/// Ends waits for locks from another thread, such as the one that handles signals.
///
/// Clones are one and the same. A wait that is ended leaves the queue, and gives [`Error::Cancelled`]. Locks that are
/// held are not touched. A `Cancel` is for good: waits that begin later end at once.
///
/// ```no_run
/// use redis_lock_client::{Cancel, Client, Error};
///
/// let client = Client::open("redis://127.0.0.1")?;
/// let cancel = Cancel::new();
/// let of_signals = cancel.clone();
/// std::thread::spawn(move || {
///     // ... waits for a signal ...
///     of_signals.cancel();
/// });
/// match client.key("report").cancelled_by(&cancel).lock() {
///     Ok(guard) => println!("fence {}", guard.fence()),
///     Err(Error::Cancelled) => println!("gave up"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), Error>(())
/// ```
///
/// [`Error::Cancelled`]: crate::Error::Cancelled
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    cancelled: bool,
    waits: Vec<(u64, Box<dyn Fn() + Send>)>,
    next: u64,
}

impl Cancel {
    /// One that has ended nothing yet.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends all waits that it was given to, and those to come. Returns at once. It takes a mutex, so a signal handler
    /// itself must not call it.
    pub fn cancel(&self) {
        let mut state = lock(&self.0);
        state.cancelled = true;
        for (_, wake) in state.waits.drain(..) {
            wake();
        }
    }

    /// Whether [`cancel`](Cancel::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        lock(&self.0).cancelled
    }

    /// Calls this when it is cancelled, at once if it is already, until the guard is dropped.
    pub(crate) fn notify(&self, wake: impl Fn() + Send + 'static) -> Notified<'_> {
        let mut state = lock(&self.0);
        if state.cancelled {
            wake();
        }
        let number = state.next;
        state.next += 1;
        state.waits.push((number, Box::new(wake)));
        Notified { cancel: self, number }
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// A wait that is told of the cancel as long as this lives.
pub(crate) struct Notified<'a> {
    cancel: &'a Cancel,
    number: u64,
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        lock(&self.cancel.0).waits.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn it_ends_waits_of_before_and_of_after_but_not_those_that_are_over() {
        let cancel = Cancel::new();
        let (events, received) = channel();
        let tell = |event: &'static str| {
            let events = events.clone();
            move || {
                let _: Result<(), _> = events.send(event);
            }
        };
        let over = cancel.notify(tell("over"));
        drop(over);
        let _running = cancel.notify(tell("running"));
        assert!(!cancel.is_cancelled() && received.try_recv().is_err());
        cancel.clone().cancel();
        let _later = cancel.notify(tell("later"));
        assert!(cancel.is_cancelled());
        assert_eq!(received.try_iter().collect::<Vec<_>>(), ["running", "later"]);
    }
}
