//! Where something was measured.

use serde_json::{Value, json};
use std::fmt::{Display, Formatter};
use std::fs;
use std::sync::OnceLock;

/// A machine, as far as it matters for times.
#[derive(Clone, Debug)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    /// The one that this runs on. The processors are those that it may use when this is asked first.
    pub fn this() -> Machine {
        static THIS: OnceLock<Machine> = OnceLock::new();
        THIS.get_or_init(Machine::found).clone()
    }

    fn found() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let system = rustix::system::uname();
        Machine {
            cpu: model
                .map_or_else(|| system.machine().to_string_lossy().into_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        }
    }

    /// Its processor as part of a file's name: `AMD EPYC`, or `Intel(R) Xeon(R) Processor`, as amd-epyc or intel-xeon.
    pub fn short_cpu(&self) -> String {
        short(&self.cpu)
    }

    pub fn json(&self) -> Value {
        json!({ "cpu": self.cpu, "cores": self.cores, "kernel": self.kernel })
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} cores, {}", self.cpu, self.cores, self.kernel)
    }
}

/// A processor's words, small, without those that each of them bears.
fn short(cpu: &str) -> String {
    let cpu = cpu.to_lowercase().replace("(r)", " ").replace("(tm)", " ");
    let words = cpu.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let telling = |word: &&str| !["", "cpu", "processor"].contains(word);
    words.filter(telling).collect::<Vec<_>>().join("-")
}

/// Keeps a process, or else this thread, on the first processor that it may use, from now on. To wake a thread on
/// another processor costs some machines ten times what a command costs, and only now and then. Does nothing where the
/// system cannot do it.
pub fn keep_on_one_processor(pid: Option<u32>) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        let first = sched_getaffinity(pid).ok().and_then(|all| (0..CpuSet::MAX_CPU).find(|at| all.is_set(*at)));
        if let Some(first) = first {
            let mut one = CpuSet::new();
            one.set(first);
            // Where it is not allowed, it is measured as it is.
            let _ = sched_setaffinity(pid, &one);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pid;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_named_in_words_that_a_file_may_bear() {
        // A slash or a blank in a file's name, or a name that says nothing.
        let names = [
            ("AMD EPYC", "amd-epyc"),
            ("Intel(R) Xeon(R) Processor", "intel-xeon"),
            ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "intel-core-i7-9750h-2.60ghz"),
            ("aarch64", "aarch64"),
        ];
        for (cpu, expected) in names {
            assert_eq!(short(cpu), expected);
        }
    }
}
