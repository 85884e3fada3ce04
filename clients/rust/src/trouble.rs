//! Tells the application what went wrong, by the callback that it gave. A callback that panics or takes long harms no
//! lock: it is never called on a thread that renews.

use crate::error::{Error, io_kind};
use crate::sync::lock;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// How many errors wait for a callback that takes long. The oldest ones go first.
const QUEUE_MAX: usize = 64;

/// A callback, and what it is yet to be told.
#[derive(Clone)]
pub(crate) struct Trouble(Arc<Inner>);

struct Inner {
    tell: Box<dyn Fn(&Error) + Send + Sync>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    errors: VecDeque<Error>,
    has_thread: bool,
}

impl Trouble {
    pub(crate) fn new(tell: impl Fn(&Error) + Send + Sync + 'static) -> Trouble {
        Trouble(Arc::new(Inner { tell: Box::new(tell), queue: Mutex::default() }))
    }

    /// Tells the logger of the application, with the names of the keys.
    #[cfg(feature = "log")]
    pub(crate) fn logged(terms: &crate::request::Terms) -> Trouble {
        let keys = terms.keys.clone();
        Trouble::new(move |error| {
            let names: Vec<String> = keys.iter().map(|key| key.escape_ascii().to_string()).collect();
            log::warn!(target: "redis_lock_client", "lock {}: {error}", names.join(", "));
        })
    }

    /// Tells it on this thread, which is the application's.
    pub(crate) fn tell(&self, error: &Error) {
        // The panic has said what is wrong with the callback.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.0.tell)(error))) {
            // To drop it may panic as well.
            std::mem::forget(payload);
        }
    }

    /// Tells it on a thread that does nothing else.
    pub(crate) fn tell_apart(&self, error: Error) {
        let mut queue = lock(&self.0.queue);
        if queue.errors.len() == QUEUE_MAX {
            queue.errors.pop_front();
        }
        queue.errors.push_back(error);
        if !queue.has_thread {
            let own = self.clone();
            let thread = std::thread::Builder::new().name("redis-lock-trouble".to_owned());
            queue.has_thread = thread.spawn(move || own.tell_all()).is_ok();
        }
    }

    fn tell_all(&self) {
        loop {
            let mut queue = lock(&self.0.queue);
            let Some(error) = queue.errors.pop_front() else {
                queue.has_thread = false;
                return;
            };
            drop(queue);
            self.tell(&error);
        }
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trouble")
    }
}

/// What was told last, so that each kind of trouble is told once until it is over.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<String>);

impl Told {
    /// True if this is of another kind than the last one.
    pub(crate) fn is_new(&mut self, error: &Error) -> bool {
        let kind = match error {
            Error::Server(error) => error.code().map(str::to_owned),
            Error::Connection(error) => io_kind(error).map(|kind| kind.to_string()),
            other => Some(other.to_string()),
        };
        let is_new = kind.is_none() || kind != self.0;
        self.0 = kind;
        is_new
    }

    /// It is over.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_trouble_is_told_once_until_it_is_over() {
        let grace = |ms: u32| {
            let reply = redis::parse_redis_value(format!("-GRACE {ms} ms\r\n").as_bytes()).expect("a reply");
            Error::from(reply.extract_error().expect_err("an error"))
        };
        let mut told = Told::default();
        assert_eq!(
            [&grace(3), &grace(2), &Error::Lost, &grace(1)].map(|error| told.is_new(error)),
            [true, false, true, true]
        );
        told.forget();
        assert!(told.is_new(&grace(1)));
    }
}
