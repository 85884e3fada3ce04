//! Ports for servers. No two holders on one machine have the same: each port is a locked file that all test processes
//! share. The kernel unlocks it when its process ends, however it ends.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that kernels give to connections (from 32768 on with Linux): any process may get those at any time.
/// A client that calls a port of its own range may even be connected to itself.
const PORTS: Range<u16> = 20_000..32_000;

/// Not the temporary directory of a user or of a run: all have to see the same files.
const SHARED: &str = "/tmp/redis-lock-ports";

/// A port that no other test is given while this lives, whether or not a server listens on it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked as long as this lives.
    #[expect(dead_code, reason = "closing it gives the port back")]
    claim: File,
}

impl Port {
    /// A port that no test has and no server listens on.
    pub fn claim() -> Port {
        // Each process begins elsewhere and goes on from there. A port that was just given back comes last, so that
        // whatever still calls its former holder does not reach the next one.
        static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
            let scattered = std::process::id().wrapping_mul(0x9E37_79B1) >> 16;
            AtomicU16::new(u16::try_from(scattered).expect("16 bits"))
        });
        for _ in PORTS {
            let place = NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
            if let Some(port) = Port::claim_number(PORTS.start + place) {
                return port;
            }
        }
        panic!("all ports from {} to {} are taken: see {SHARED}", PORTS.start, PORTS.end);
    }

    /// This port, if it can be had.
    fn claim_number(number: u16) -> Option<Port> {
        let claim = shared_file(&format!("{SHARED}/{number}"));
        match claim.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Error(error)) => panic!("{SHARED}/{number} cannot be locked: {error}"),
        }
        // A process that knows nothing of the files may listen, or a server whose test was killed.
        TcpListener::bind(("127.0.0.1", number)).ok()?;
        Some(Port { number, claim })
    }

    /// A port that another has, as if it had been claimed.
    #[cfg(test)]
    pub(crate) fn unclaimed(number: u16) -> Port {
        let claim = shared_file("/dev/null");
        Port { number, claim }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Opens a file for all users of the machine, and makes it if it is not there. To lock it, reading is enough.
fn shared_file(path: &str) -> File {
    for _ in 0..100 {
        match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened.unwrap_or_else(|error| panic!("{path}: {error}")),
        }
        make_shared_directory();
        // Another process may have made it meanwhile: then it is opened in the next turn.
        if let Err(error) = File::create_new(path) {
            assert!(matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound), "{path}: {error}");
        }
    }
    panic!("{path} does not stay where it is");
}

/// Open to all users, as /tmp is.
fn make_shared_directory() {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::create_dir(SHARED) {
        Ok(()) => std::fs::set_permissions(SHARED, PermissionsExt::from_mode(0o1777)).expect("it is ours"),
        Err(_) => assert!(Path::new(SHARED).is_dir(), "{SHARED} is not a directory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    const CHILD: &str = "REDIS_LOCK_CLAIMS_PORTS";

    #[test]
    fn no_two_threads_and_no_two_processes_are_given_one_port() {
        // A port that is free when it is chosen may be chosen by two before either listens on it.
        let own = || -> Vec<Port> { (0..40).map(|_| Port::claim()).collect() };
        if std::env::var_os(CHILD).is_some() {
            let ports = own();
            println!("ports {}", ports.iter().map(|port| port.number().to_string()).collect::<Vec<_>>().join(" "));
            std::io::stdout().flush().unwrap();
            // Holds them until it is asked to end.
            std::io::stdin().read_line(&mut String::new()).unwrap();
            return;
        }
        let name = "port::tests::no_two_threads_and_no_two_processes_are_given_one_port";
        let mut processes: Vec<_> = (0..4)
            .map(|_| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args([name, "--exact", "--nocapture"]).env(CHILD, "yes");
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(own)).collect();
        let here: Vec<Port> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let mut all: Vec<u16> = here.iter().map(Port::number).collect();
        for process in &mut processes {
            let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
            let line = lines.map(Result::unwrap).find(|line| line.contains("ports ")).expect("it says what it has");
            let numbers = line.split_once("ports ").unwrap().1;
            all.extend(numbers.split(' ').map(|number| number.parse::<u16>().unwrap()));
        }
        assert_eq!(all.len(), 8 * 40);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "one port was given twice");
        let theirs = all[4 * 40];
        assert!(Port::claim_number(theirs).is_none(), "a port that another process has was given again");
        for mut process in processes {
            drop(process.stdin.take());
            assert!(process.wait().unwrap().success());
        }
        assert!(had_in_time(theirs), "the port of a process that has ended is lost");
    }

    #[test]
    fn a_port_that_a_stranger_listens_on_is_not_given() {
        // A server of a run that was killed may still be there.
        let port = Port::claim();
        let number = port.number();
        // The claim has tried the port itself: what another test has just started may have it for a moment.
        let stranger = soon(|| TcpListener::bind(("127.0.0.1", number)).ok()).unwrap();
        drop(port);
        assert!(Port::claim_number(number).is_none());
        drop(stranger);
        assert!(had_in_time(number), "the port of a stranger that is gone is lost");
    }

    /// Whether this port can be had soon. Other tests start processes: each has all files and sockets of this one from
    /// its fork until it runs its own program, so what was closed here may be open there for a moment.
    fn had_in_time(number: u16) -> bool {
        soon(|| Port::claim_number(number)).is_some()
    }

    /// What this gives as soon as it gives something.
    fn soon<T>(mut give: impl FnMut() -> Option<T>) -> Option<T> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let given = give();
            if given.is_some() || Instant::now() > end {
                return given;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
