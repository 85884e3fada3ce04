//! What the system knows of a server: the times, the memory and the writes of its process and of all below it. Each
//! kind of server is measured in the same way, whether it has one process or one for each client.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// A process and all that descend from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree(pub(crate) u32);

/// User and system time of each process of a tree, so far.
#[derive(Debug)]
pub(crate) struct Cpu(HashMap<u32, Duration>);

impl Cpu {
    /// What the processes that are left have used since.
    pub(crate) fn since(&self, before: &Cpu) -> Duration {
        let used = |(pid, now): (&u32, &Duration)| *now - before.0.get(pid).copied().unwrap_or_default().min(*now);
        self.0.iter().map(used).sum()
    }
}

impl Tree {
    /// The times, not in the 10 ms of /proc: a process for each of many clients uses less than that.
    pub(crate) fn cpu(self) -> Cpu {
        let members = self.members(&parents());
        Cpu(members.into_iter().filter_map(|pid| Some((pid, cpu_of(pid)?))).collect())
    }

    /// The memory in bytes. What several processes share counts once.
    pub(crate) fn memory(self) -> u64 {
        self.sum("smaps_rollup", "Pss:") * 1024
    }

    /// The bytes that were changed in files so far, in whole pages.
    pub(crate) fn written(self) -> u64 {
        self.sum("io", "write_bytes:")
    }

    fn sum(self, file: &str, name: &str) -> u64 {
        let value = |pid: &u32| -> Option<u64> {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        self.members(&parents()).iter().filter_map(value).sum()
    }

    fn members(self, parents: &HashMap<u32, u32>) -> Vec<u32> {
        let mut found = vec![self.0];
        let mut at = 0;
        while at < found.len() {
            let this = found[at];
            found.extend(parents.iter().filter(|(_, parent)| **parent == this).map(|(pid, _)| *pid));
            at += 1;
        }
        found
    }
}

/// The parent of each process. Empty on a system without /proc.
fn parents() -> HashMap<u32, u32> {
    let Ok(folder) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))).collect()
}

fn parent(stat: &str) -> Option<u32> {
    // The name may hold blanks and brackets; behind the last bracket come the state and the parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// None if the process has ended meanwhile.
#[cfg(target_os = "linux")]
fn cpu_of(pid: u32) -> Option<Duration> {
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    Some(clock.now().ok()?.into())
}

#[cfg(not(target_os = "linux"))]
fn cpu_of(_pid: u32) -> Option<Duration> {
    None
}

/// User and system time of this process so far.
pub(crate) fn own_cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        // A name with a bracket would shift all fields.
        assert_eq!(parent("12 (a) b (c) S 7 12 12 0 -1 4194560 100"), Some(7));
    }

    #[test]
    fn the_children_of_a_server_count_as_the_server() {
        // PostgreSQL has a process for each client: without them it would seem to cost nothing.
        let mut parent =
            Command::new("sh").args(["-c", "sleep 60 & wait"]).stdout(Stdio::null()).spawn().expect("a shell");
        let tree = Tree(parent.id());
        let mut members = Vec::new();
        testbed::wait_for("the child", || {
            members = tree.members(&parents());
            members.len() == 2
        });
        assert!(tree.memory() > 0);
        let (before, after) = (tree.cpu(), tree.cpu());
        assert_eq!(before.0.keys().copied().collect::<HashSet<_>>(), members.iter().copied().collect());
        assert!(after.since(&before) <= after.since(&Cpu(HashMap::new())));
        let pid = |pid: &u32| rustix::process::Pid::from_raw(*pid as i32).expect("a process");
        for member in members.iter().rev() {
            rustix::process::kill_process(pid(member), rustix::process::Signal::KILL).expect("it is ours");
        }
        parent.wait().expect("it has ended");
    }
}
