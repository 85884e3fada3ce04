//! The command, as the keeper follows it: by its process, which is no child of this one, and by its group.

use crate::group::Group;
use redis_lock_client::Moment;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;
use std::os::fd::OwnedFd;

pub(crate) struct Followed {
    pub(crate) group: Group,
    /// Shows its end; None where there is none, or it has ended.
    pub(crate) process: Option<OwnedFd>,
    /// When it was seen to have ended.
    pub(crate) ended: Option<Moment>,
    /// When it was told to end: here, or by the parent.
    pub(crate) told: Option<Moment>,
}

impl Followed {
    pub(crate) fn new(group: Group) -> Followed {
        let process = pidfd_open(group.0, PidfdFlags::empty()).ok();
        Followed { group, process, ended: None, told: None }
    }

    /// Notes its end, if that has come.
    pub(crate) fn look(&mut self) {
        if self.process.as_ref().is_some_and(is_readable) {
            self.process = None;
            self.ended = Some(Moment::now());
        }
    }

    /// Whether it has ended, and all of its group unless that may live on. The process counts besides the group: it may
    /// have left that.
    pub(crate) fn is_over(&self, group_may_live: bool) -> bool {
        if group_may_live { self.ended.is_some() } else { self.process.is_none() && !self.group.lives() }
    }

    /// Sends a signal to all of the group, and to a command that has left it for another.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(process) = self.process.as_ref().filter(|_| self.group.leader_has_left()) {
            // It may have ended meanwhile.
            pidfd_send_signal(process, signal).ok();
        }
        self.group.signal(signal);
    }
}

fn is_readable(file: &OwnedFd) -> bool {
    let mut files = [PollFd::new(file, PollFlags::IN)];
    poll(&mut files, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}
