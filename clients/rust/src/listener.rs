//! What locks do, for the figures of an application. Heard on a thread of its own: no lock waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Hears what the locks of a client do, to count it: [`Client::listener`](crate::Client::listener).
///
/// It is called on a thread of its own, in the order of what happened. One that panics or takes long harms no lock. The
/// key is not told: as a label of a figure it would make one of each key.
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
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    Waited(Duration),
    Refused(Duration),
    Held(Duration),
    Lost(Duration),
    RenewalFailed,
}

/// Passes on figures. Its thread ends with the last clone.
#[derive(Clone)]
pub(crate) struct Figures(Sender<Figure>);

impl Figures {
    pub(crate) fn to(listener: impl Listener + 'static) -> std::io::Result<Figures> {
        let (sender, figures) = channel();
        let listen = move || {
            for figure in figures {
                let tell = AssertUnwindSafe(|| match figure {
                    Figure::Waited(time) => listener.waited(time),
                    Figure::Refused(time) => listener.refused(time),
                    Figure::Held(time) => listener.held(time),
                    Figure::Lost(time) => listener.lost(time),
                    Figure::RenewalFailed => listener.renewal_failed(),
                });
                if let Err(payload) = catch_unwind(tell) {
                    // The panic has said what is wrong. To drop it may panic as well.
                    std::mem::forget(payload);
                }
            }
        };
        std::thread::Builder::new().name("redis-lock-figures".to_owned()).spawn(listen)?;
        Ok(Figures(sender))
    }

    pub(crate) fn tell(&self, figure: Figure) {
        // A child of a fork has no such thread.
        let _: Result<(), _> = self.0.send(figure);
    }
}
