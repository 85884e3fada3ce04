//! The server that is measured, perhaps with a replica, and its own account of what it used.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use testbed::{Client, Server};

/// How the server is to be started.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The program; without it the one that testbed chooses.
    pub program: Option<PathBuf>,
    /// Options as on its command line: a name, and what it is set to.
    pub options: Vec<(String, String)>,
    /// Whether it has a replica.
    pub replica: bool,
    /// Whether it is to be without the module.
    pub plain: bool,
}

/// Options of a [`Plan`].
pub fn options_of<const N: usize>(options: [(&str, &str); N]) -> Vec<(String, String)> {
    options.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// A running server.
pub struct Bench {
    /// For whatever is not measured.
    pub conn: Client,
    server: Server,
    replica: Option<Server>,
}

impl Plan {
    /// Starts it, and a replica of the same kind.
    pub fn start(&self) -> Bench {
        let server = self.server(&self.options);
        let replica = self.replica.then(|| {
            // What it is sent may be of any module of its primary.
            let modules: Vec<_> = self.options.iter().filter(|(name, _)| name == "loadmodule").cloned().collect();
            let replica = self.server(&modules);
            replica.follow(&server);
            replica
        });
        Bench { conn: server.connect(), server, replica }
    }

    fn server(&self, options: &[(String, String)]) -> Server {
        let setup = Server::setup().option("repl-diskless-sync-delay", "0");
        let setup = if self.plain { setup.without_module() } else { setup };
        let setup = options.iter().fold(setup, |setup, (name, value)| setup.option(name, value));
        match &self.program {
            Some(program) => setup.program(&located(program)).start(),
            None => setup.start(),
        }
    }
}

/// A program's path, as it is from any folder: servers are started in folders of their own. A name alone is looked up
/// in PATH.
pub fn located(program: &Path) -> PathBuf {
    if program.components().count() == 1 {
        return program.to_owned();
    }
    std::path::absolute(program).unwrap_or_else(|_| program.to_owned())
}

impl Bench {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// User and system time of the server so far, in microseconds.
    pub fn cpu_us(&mut self) -> f64 {
        self.conn.cpu_us("")
    }

    /// What its allocator has given out, in bytes.
    pub fn memory(&mut self) -> f64 {
        self.conn.info_number("memory", "used_memory") as f64
    }

    /// Waits until what was measured last has no further effect: the replica has caught up.
    pub fn settle(&mut self) {
        if let Some(replica) = &self.replica {
            replica.catch_up(&self.server);
        }
    }

    /// Whether it has a command.
    pub fn knows(&mut self, command: &str) -> bool {
        let known: Vec<Option<Vec<testbed::Value>>> = self.conn.get(&["COMMAND", "INFO", command]);
        known.iter().any(Option::is_some)
    }

    /// What it is and its version: `redis` and `8.6.3`.
    pub fn version(&mut self) -> (&'static str, String) {
        self.conn.version()
    }

    /// The same, and the version of the lock module.
    pub fn versions(&mut self) -> (&'static str, String, String) {
        let (kind, version) = self.version();
        let info: String = self.conn.get(&["INFO", "modules"]);
        let line = info.lines().find(|line| line.starts_with("module:name=lock,"));
        let module = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("ver=")));
        (kind, version, module.expect("the module is loaded").to_owned())
    }
}
