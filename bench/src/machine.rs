//! Where something was measured.

use serde_json::{Value, json};
use std::fmt::{Display, Formatter};
use std::fs;

/// A machine, as far as it matters for times.
#[derive(Clone, Debug)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    /// The one that this runs on.
    pub fn this() -> Machine {
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

    /// For other programs.
    pub fn json(&self) -> Value {
        json!({ "cpu": self.cpu, "cores": self.cores, "kernel": self.kernel })
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} cores, {}", self.cpu, self.cores, self.kernel)
    }
}
