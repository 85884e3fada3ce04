//! The process group of the command: what is sent to it, and whether any of it is still alive.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use rustix::process::{test_kill_process, test_kill_process_group};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Named after its leader, the command itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    pub(crate) fn of(leader: u32) -> Option<Group> {
        Some(Group(Pid::from_raw(i32::try_from(leader).ok()?)?))
    }

    /// Sends a signal to all of it, and to a leader that has left it for another group. The leader must not be reaped.
    /// False if none of it may be signalled: it runs as another user.
    pub(crate) fn signal_with_leader(self, signal: Signal) -> bool {
        if self.leader_has_left() {
            kill_process(self.0, signal).ok();
        }
        self.signal(signal)
    }

    /// Sends a signal to all of it. False if none of it may be signalled: it runs as another user.
    pub(crate) fn signal(self, signal: Signal) -> bool {
        kill_process_group(self.0, signal) != Err(Errno::PERM)
    }

    /// Whether the command itself may be signalled.
    pub(crate) fn is_ours(self) -> bool {
        test_kill_process(self.0) != Err(Errno::PERM)
    }

    /// Whether the command has joined another group. Then signals to this one miss it.
    pub(crate) fn leader_has_left(self) -> bool {
        getpgid(Some(self.0)).is_ok_and(|group| group != self.0)
    }

    /// Whether any process of it may live. One that has ended and was not yet waited for does not.
    pub(crate) fn lives(self) -> bool {
        // Those that are known to have ended, besides the leader.
        let (mut known, mut strangers) = (Vec::new(), HashSet::new());
        for _ in 0..LOOKS_MAX {
            // The kernel knows, but for those that were not yet waited for.
            if test_kill_process_group(self.0) == Err(Errno::SRCH) {
                return false;
            }
            match if proc_is_ours() { self.look(&mut strangers) } else { Look::Alive } {
                Look::Dead(dead) if dead == known => return false,
                // One that ended just now may have started another, which was not seen.
                Look::Dead(dead) => known = dead,
                Look::Unsure => {}
                Look::Alive => return true,
            }
        }
        true
    }

    /// Looks at all processes but the strangers, which are known to be of other groups. So the next look takes so short
    /// a time that hardly any process vanishes meanwhile.
    fn look(self, strangers: &mut HashSet<PathBuf>) -> Look {
        let Ok(processes) = fs::read_dir("/proc") else { return Look::Unsure };
        let (mut dead, mut is_sure) = (Vec::new(), true);
        for process in numbered(processes) {
            if strangers.contains(&process) {
                continue;
            }
            match fs::read_to_string(process.join("stat")) {
                Ok(stat) if self.has(&stat) => {}
                // It vanished. One that may not be read does not, and is another user's.
                Err(error) if error.kind() != ErrorKind::PermissionDenied => {
                    is_sure = false;
                    continue;
                }
                Ok(_) | Err(_) => {
                    strangers.insert(process);
                    continue;
                }
            }
            match look_at_member(&process) {
                Look::Alive => return Look::Alive,
                Look::Unsure => is_sure = false,
                Look::Dead(_) => dead.extend(self.other_than_leader(process)),
            }
        }
        if is_sure { Look::Dead(dead) } else { Look::Unsure }
    }

    fn other_than_leader(self, process: PathBuf) -> Option<PathBuf> {
        let leader = self.0.as_raw_nonzero().to_string();
        process.file_name().is_some_and(|name| name != OsStr::new(&leader)).then_some(process)
    }

    /// Whether this line of /proc is about a process of the group: `pid (name) state ppid pgrp ...`.
    fn has(self, stat: &str) -> bool {
        let group = self.0.as_raw_nonzero().to_string();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.split(' ').nth(2) == Some(&group))
    }
}

/// How often all processes are looked at, while some vanish meanwhile.
const LOOKS_MAX: usize = 8;

/// What a look at processes shows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Look {
    /// Every process of it was seen, and has ended. These wait to be reaped.
    Dead(Vec<PathBuf>),
    /// Some process vanished meanwhile.
    Unsure,
    Alive,
}

/// A process whose first thread has ended lives as long as another one does.
fn look_at_member(process: &Path) -> Look {
    let Ok(threads) = fs::read_dir(process.join("task")) else { return Look::Unsure };
    let mut is_sure = true;
    for thread in numbered(threads) {
        match fs::read_to_string(thread.join("stat")) {
            Ok(stat) if has_ended(&stat) => {}
            Ok(_) => return Look::Alive,
            Err(_) => is_sure = false,
        }
    }
    if is_sure { Look::Dead(Vec::new()) } else { Look::Unsure }
}

/// Whether this line of /proc is about a thread that only waits to be reaped.
fn has_ended(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['Z', 'X']))
}

/// The folders of processes or threads.
fn numbered(folder: fs::ReadDir) -> impl Iterator<Item = PathBuf> {
    let is_number = |name: &OsStr| name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
    folder.flatten().filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path())
}

/// Whether /proc shows the processes of this namespace, by the numbers that they have here.
pub(crate) fn proc_is_ours() -> bool {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    *IS_OURS.get_or_init(|| {
        let shown = fs::read_link("/proc/self").ok();
        shown.is_some_and(|shown| shown.to_str() == Some(&std::process::id().to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_only_waits_to_be_reaped_does_not_live() {
        let group = Group::of(77).expect("a number");
        assert!(group.has("80 (a) b) S 1 77 77 0") && group.has("80 (a) Z 1 77 77 0"));
        assert!(!group.has("80 (a) S 77 1 77 0") && !group.has(""));
        assert!(has_ended("80 (S) Z 1 77 77 0") && !has_ended("80 (Z) S 1 77 77 0") && !has_ended(""));
        assert!(Group::of(0).is_none() && Group::of(u32::MAX).is_none());
    }

    #[test]
    fn what_vanished_is_no_proof_that_all_is_dead() {
        assert_eq!(look_at_member(Path::new("/proc/0")), Look::Unsure);
        assert_eq!(look_at_member(Path::new("/proc/self")), Look::Alive);
    }

    #[test]
    fn the_group_of_this_process_lives() {
        assert!(Group(rustix::process::getpgrp()).lives());
    }
}
