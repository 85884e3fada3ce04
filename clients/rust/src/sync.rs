//! What threads and tasks wait for each other with. Mutexes without poison: what they guard here is whole after each
//! statement.

use crate::clock::Moment;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Locks it, also if a thread that had it locked panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until something changed, or so long. It may end for no reason.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

/// Who waits. All that may wait for both is written as a future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A thread, which stands still. Its futures are ready when they are looked at once: see [`here`].
    Thread,
    /// A task of tokio, which is woken.
    #[cfg(feature = "tokio")]
    Task,
}

/// What comes of a future in which a thread waits.
pub(crate) fn here<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a thread waits by itself"),
    }
}

/// A value whose changes can be waited for.
#[derive(Default)]
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    threads: Condvar,
    #[cfg(feature = "tokio")]
    tasks: tokio::sync::Notify,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Watched<T> {
        let (value, threads) = (Mutex::new(value), Condvar::new());
        Watched {
            value,
            threads,
            #[cfg(feature = "tokio")]
            tasks: tokio::sync::Notify::new(),
        }
    }

    /// Whoever changes it then calls [`notify`](Watched::notify).
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// Lets all that wait look.
    pub(crate) fn notify(&self) {
        self.threads.notify_all();
        #[cfg(feature = "tokio")]
        self.tasks.notify_waiters();
    }

    /// Waits until this gives something; None when so much time is over, which may be without end.
    pub(crate) async fn wait<R>(
        &self,
        caller: Caller,
        time: Option<Duration>,
        mut look: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let deadline = time.map(|time| Moment::now() + time);
        match caller {
            Caller::Thread => {
                let mut value = self.lock();
                loop {
                    let found = look(&mut value);
                    let left = deadline.map_or(Duration::MAX, Moment::left);
                    if found.is_some() || left.is_zero() {
                        return found;
                    }
                    value = wait(&self.threads, value, left);
                }
            }
            #[cfg(feature = "tokio")]
            Caller::Task => loop {
                let mut changed = pin!(self.tasks.notified());
                // Counts from here on, not from when it is looked at first.
                changed.as_mut().enable();
                let found = look(&mut self.lock());
                let left = deadline.map(Moment::left);
                if found.is_some() || left == Some(Duration::ZERO) {
                    return found;
                }
                match left {
                    None => changed.await,
                    // Whether the time is over is seen above.
                    Some(left) => drop(tokio::time::timeout(left, changed).await),
                }
            },
        }
    }
}

/// Where one thread or task is told things, by any others. Clones are the same one.
pub(crate) struct Mailbox<T>(Arc<Watched<VecDeque<T>>>);

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox(Arc::new(Watched::new(VecDeque::new())))
    }

    pub(crate) fn send(&self, message: T) {
        self.0.lock().push_back(message);
        self.0.notify();
    }

    /// What came first; None when nothing came in time.
    pub(crate) async fn next(&self, caller: Caller, time: Option<Duration>) -> Option<T> {
        self.0.wait(caller, time, VecDeque::pop_front).await
    }
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Mailbox<T> {
        Mailbox(self.0.clone())
    }
}
