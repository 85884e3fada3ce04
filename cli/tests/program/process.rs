//! What the system knows of processes: read from /proc.

use rustix::process::Pid;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A variable in the environment of a process and of all that it starts.
pub(crate) struct Mark(String);

const MARK: &str = "REDIS_LOCK_TEST_RUN";

/// Waits for the end of these tests, however they end. Then it kills all that has a mark of theirs: a keeper may be
/// stopped, and a command may have no keeper.
const WARDEN: &str = "trap '' HUP INT QUIT TERM; read end
for each in /proc/[0-9]*; do
    if grep -qsaz \"^$0\" $each/environ; then kill -9 ${each#/proc/}; fi
done";

fn start_warden() -> Child {
    let mut warden = Command::new("sh");
    warden.args(["-c", WARDEN]).arg(format!("{MARK}={}-", std::process::id()));
    // Its input ends with this process.
    warden.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap()
}

impl Mark {
    /// One that no other has.
    pub(crate) fn new() -> Mark {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static STARTED: OnceLock<Child> = OnceLock::new();
        STARTED.get_or_init(start_warden);
        Mark(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn put_on(&self, command: &mut Command) {
        command.env(MARK, &self.0);
    }

    /// All processes that have it and have not ended.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let wanted = format!("{MARK}={}", self.0);
        let has_it = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let files = fs::read_dir("/proc").unwrap().flatten();
        let numbers = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
        numbers.filter(has_it).filter(|pid| lives(*pid)).collect()
    }
}

pub(crate) fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

/// Its command line.
pub(crate) fn words(pid: u32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The fields of /proc behind its name: state, parent, process group, session and more.
pub(crate) fn fields(pid: u32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').map(str::to_owned).collect()).unwrap_or_default()
}

/// The letter of its state.
pub(crate) fn state(pid: u32) -> char {
    fields(pid).first().and_then(|field| field.chars().next()).unwrap_or('-')
}

/// Whether it runs; not one that has ended and waits to be reaped.
pub(crate) fn lives(pid: u32) -> bool {
    !matches!(state(pid), '-' | 'Z' | 'X')
}

pub(crate) fn children(pid: u32) -> Vec<u32> {
    let file = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The names of its threads.
pub(crate) fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default()).collect()
}

/// What its descriptors are open on: their numbers, and names.
pub(crate) fn files(pid: u32) -> Vec<(u32, String)> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let number = |file: &fs::DirEntry| file.file_name().to_str()?.parse().ok();
    let target = |file: &fs::DirEntry| fs::read_link(file.path()).unwrap_or_default().display().to_string();
    let mut files: Vec<(u32, String)> = files.filter_map(|file| Some((number(&file)?, target(&file)))).collect();
    files.sort();
    files
}
