//! What the keeper's threads tell its main one, which waits for descriptors: a channel that has one.

use redis_lock_client::{Error, Guard};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

pub(crate) enum Notice {
    /// The lock; None if others hold it; or why it cannot be had.
    Acquired(Result<Option<Guard>, Error>),
    /// The lock is not asked for: the exit code, and why.
    Refused(u8, String),
    /// A wait or a renewal is tried again after this; or it is over, but nobody has answered.
    Trouble(Error),
    /// It waits: what to say of that.
    Waiting(String),
    /// The hold ends later now, or is lost.
    Changed,
    /// What came of a renewal that was asked for, by its number.
    Renewed(u64, Result<bool, Error>),
}

#[derive(Clone)]
pub(crate) struct NoticeSender {
    channel: Sender<Notice>,
    wakeup: Arc<OwnedFd>,
}

pub(crate) struct NoticeReceiver {
    channel: Receiver<Notice>,
    wakeup: Arc<OwnedFd>,
}

/// Both ends.
pub(crate) fn notices() -> io::Result<(NoticeSender, NoticeReceiver)> {
    let (sender, receiver) = channel();
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    Ok((NoticeSender { channel: sender, wakeup: wakeup.clone() }, NoticeReceiver { channel: receiver, wakeup }))
}

impl NoticeSender {
    pub(crate) fn send(&self, notice: Notice) {
        // The keeper lives as long as its threads.
        drop(self.channel.send(notice));
        let _: Result<usize, _> = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }
}

impl NoticeReceiver {
    /// Those that have come.
    pub(crate) fn receive(&self) -> Vec<Notice> {
        let _: Result<usize, _> = rustix::io::read(&self.wakeup, &mut [0; 8]);
        self.channel.try_iter().collect()
    }
}

/// Readable when something has come.
impl AsFd for NoticeReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
