//! The process group of the command: what is sent to it, and whether any of it is still alive.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process, test_kill_process_group};
use std::fs;

/// Named after its leader, the command itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    pub(crate) fn of(leader: u32) -> Option<Group> {
        Some(Group(Pid::from_raw(i32::try_from(leader).ok()?)?))
    }

    /// Sends a signal to all of it. False if none of it may be signalled: it runs as another user.
    pub(crate) fn signal(self, signal: Signal) -> bool {
        kill_process_group(self.0, signal) != Err(Errno::PERM)
    }

    /// Whether the command itself may be signalled.
    pub(crate) fn is_ours(self) -> bool {
        test_kill_process(self.0) != Err(Errno::PERM)
    }

    /// Whether any process of it lives. One that has ended and was not yet waited for does not.
    pub(crate) fn lives(self) -> bool {
        if test_kill_process_group(self.0) == Err(Errno::SRCH) {
            return false;
        }
        let Ok(processes) = fs::read_dir("/proc") else { return true };
        processes.flatten().any(|process| {
            let is_number = process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
            is_number && fs::read_to_string(process.path().join("stat")).is_ok_and(|stat| self.has_living(&stat))
        })
    }

    /// Whether this line of /proc is about a living process of the group: `pid (name) state ppid pgrp ...`.
    fn has_living(self, stat: &str) -> bool {
        let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
        let mut fields = fields.split(' ');
        let (state, group) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        !matches!(state, "Z" | "X") && group == self.0.as_raw_nonzero().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_only_waits_to_be_reaped_does_not_live() {
        let group = Group::of(77).expect("a number");
        assert!(group.has_living("80 (a) b) S 1 77 77 0"));
        assert!(!group.has_living("80 (a) Z 1 77 77 0"));
        assert!(!group.has_living("80 (a) S 77 1 77 0"));
        assert!(!group.has_living(""));
        assert!(Group::of(0).is_none() && Group::of(u32::MAX).is_none());
    }

    #[test]
    fn the_group_of_this_process_lives() {
        assert!(Group(rustix::process::getpgrp()).lives());
    }
}
