//! What locks do, for the figures of an application. Heard on a thread of its own: no lock waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// So many figures wait for a listener that takes long; those that come meanwhile are dropped.
const FIGURES_MAX: usize = 1024;

/// Hears what the locks of a client do, to count it: [`Client::listener`](crate::Client::listener).
///
/// It is called on a thread of its own, in the order of what happened. One that panics or takes long harms no lock:
/// 1,024 calls wait for it at most, and what comes meanwhile is [`dropped`](Listener::dropped). The key is not told: as
/// a label of a figure it would make one of each key.
pub trait Listener: Send {
    /// A lock was granted, so long after it was asked for.
    fn waited(&self, _time: Duration) {}

    /// A lock was not granted: others had it, for so long.
    fn refused(&self, _time: Duration) {}

    /// A lock was released, or let lapse, after it was held for so long.
    fn held(&self, _time: Duration) {}

    /// A lock was lost, after it was held for so long.
    fn lost(&self, _time: Duration) {}

    /// A renewal failed, and will be tried again.
    fn renewal_failed(&self) {}

    /// So many calls were dropped since the last one of this: the listener took too long.
    fn dropped(&self, _calls: u64) {}
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    Waited(Duration),
    Refused(Duration),
    Held(Duration),
    Lost(Duration),
    RenewalFailed,
    Dropped(u64),
}

/// Passes on figures. Its thread ends with the last clone.
#[derive(Clone)]
pub(crate) struct Figures {
    queue: SyncSender<Figure>,
    dropped: Arc<AtomicU64>,
}

impl Figures {
    pub(crate) fn to(listener: impl Listener + 'static) -> std::io::Result<Figures> {
        let (queue, figures) = sync_channel(FIGURES_MAX);
        let dropped = Arc::<AtomicU64>::default();
        let missed = dropped.clone();
        let listen = move || {
            let hear = |figure| {
                let tell = AssertUnwindSafe(|| match figure {
                    Figure::Waited(time) => listener.waited(time),
                    Figure::Refused(time) => listener.refused(time),
                    Figure::Held(time) => listener.held(time),
                    Figure::Lost(time) => listener.lost(time),
                    Figure::RenewalFailed => listener.renewal_failed(),
                    Figure::Dropped(calls) => listener.dropped(calls),
                });
                if let Err(payload) = catch_unwind(tell) {
                    // The panic has said what is wrong. To drop it may panic as well.
                    std::mem::forget(payload);
                }
            };
            // What is dropped finds the queue full: another figure follows, after which that is told.
            for figure in figures {
                hear(figure);
                match missed.swap(0, Ordering::Relaxed) {
                    0 => {}
                    calls => hear(Figure::Dropped(calls)),
                }
            }
        };
        std::thread::Builder::new().name("redis-lock-figures".to_owned()).spawn(listen)?;
        Ok(Figures { queue, dropped })
    }

    pub(crate) fn tell(&self, figure: Figure) {
        // A child of a fork has no such thread.
        if self.queue.try_send(figure).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Says what it hears, and waits at the first refusal until it may go on.
    struct Slow {
        heard: Sender<Result<Duration, u64>>,
        go_on: Receiver<()>,
    }

    impl Listener for Slow {
        fn refused(&self, _: Duration) {
            self.heard.send(Ok(Duration::MAX)).expect("a test that listens");
            self.go_on.recv_timeout(PATIENCE).expect("a test that lets it go on");
        }

        fn held(&self, time: Duration) {
            self.heard.send(Ok(time)).expect("a test that listens");
        }

        fn dropped(&self, calls: u64) {
            self.heard.send(Err(calls)).expect("a test that listens");
        }
    }

    #[test]
    fn what_a_slow_listener_misses_is_counted_and_not_kept() {
        let (heard, hears) = channel();
        let (lets, go_on) = channel();
        let figures = Figures::to(Slow { heard, go_on }).expect("a thread");
        figures.tell(Figure::Refused(Duration::ZERO));
        assert_eq!(hears.recv_timeout(PATIENCE), Ok(Ok(Duration::MAX)));
        let times = (1..).map(Duration::from_secs);
        times.clone().take(FIGURES_MAX + 5).for_each(|time| figures.tell(Figure::Held(time)));
        lets.send(()).expect("a listener");
        drop(figures);
        // The first ones, in their order, and then the end of its thread.
        let expected = times.take(FIGURES_MAX).map(Ok);
        let all: Vec<_> = hears.iter().collect();
        assert_eq!(all[0], Err(5));
        assert!(all[1..].iter().copied().eq(expected), "{all:?}");
    }
}
