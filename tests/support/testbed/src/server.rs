//! A server process: how it is started, stopped, and what it leaves behind.

use crate::client::{Client, text_of};
use crate::{PATIENCE, Port, Speller, module, parse_commands, spawn, wait_for};
use redis::{Connection, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running server with the module, and its data directory, which outlives restarts.
pub struct Server {
    port: Port,
    /// Where other nodes of its cluster find it.
    bus: Option<Port>,
    dir: TempDir,
    options: Vec<String>,
    child: Option<Child>,
    /// Where tests/support/wallclock reads how far the wall clock is off; None where it is the machine's.
    wall_offset: Option<PathBuf>,
    with_module: bool,
    config_file: Option<PathBuf>,
    is_sentinel: bool,
    outlives_full_files: bool,
    program: OsString,
}

/// How a server is to be started.
#[derive(Default)]
pub struct Setup {
    options: Vec<String>,
    wall_offset: Option<String>,
    without_module: bool,
    config_file: Option<PathBuf>,
    sentinel: Option<String>,
    outlives_full_files: bool,
    cluster_node: bool,
    program: Option<OsString>,
}

impl Setup {
    /// Adds an option of the server, as on its command line: `option("appendonly", "yes")`.
    pub fn option(mut self, name: &str, value: &str) -> Setup {
        self.options.push(format!("--{name}"));
        self.options.extend(value.split(' ').map(str::to_owned));
        self
    }

    /// Adds several options of the server.
    pub fn options(self, options: &[(&str, &str)]) -> Setup {
        options.iter().fold(self, |setup, (name, value)| setup.option(name, value))
    }

    /// Adds a configuration of the module, or any other line that must come after loadmodule.
    pub fn lock_option(self, name: &str, value: &str) -> Setup {
        self.option(&format!("lock.{name}"), value)
    }

    /// Lets the server's wall clock be off by this much (`+1h`, `-3600s`, `+0`), so that [`Server::set_wall_offset`]
    /// can change it while it runs. Its monotonic clock is not touched.
    pub fn wall_offset(mut self, offset: &str) -> Setup {
        self.wall_offset = Some(offset.to_owned());
        self
    }

    /// A plain server, without the module.
    pub fn without_module(mut self) -> Setup {
        self.without_module = true;
        self
    }

    /// Also loads tests/support/probe-module, which is built beside the module under test.
    pub fn probe_module(self) -> Setup {
        self.beside("libprobe_module.so")
    }

    /// Also loads tests/support/turns, which is built beside the module under test.
    pub fn turns(self) -> Setup {
        self.beside("libturns.so")
    }

    fn beside(self, name: &str) -> Setup {
        let path = module().with_file_name(name);
        assert!(path.exists(), "{} is missing: cargo build --release --workspace makes it", path.display());
        self.option("loadmodule", &path.display().to_string())
    }

    /// Starts from a configuration file; all other options override it.
    pub fn config_file(mut self, path: &Path) -> Setup {
        self.config_file = Some(path.to_owned());
        self
    }

    /// A Sentinel with this configuration, instead of a server that has keys.
    pub fn sentinel(mut self, config: &str) -> Setup {
        self.sentinel = Some(config.to_owned());
        self
    }

    /// A node of a cluster, with a port for the other nodes as well.
    pub fn cluster_node(mut self) -> Setup {
        self.cluster_node = true;
        self
    }

    /// Lets writing to a file that may not grow further fail, as on a full disk, rather than end the process.
    pub fn outlives_full_files(mut self) -> Setup {
        self.outlives_full_files = true;
        self
    }

    /// The program of the server, instead of the one that REDIS_LOCK_SERVER names.
    pub fn program(mut self, path: &Path) -> Setup {
        self.program = Some(path.into());
        self
    }

    /// Starts it. A connection to it as well.
    pub fn connected(self) -> (Server, Client) {
        let server = self.start();
        let conn = server.connect();
        (server, conn)
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Server {
        self.start_on(Port::claim())
    }

    fn start_on(self, port: Port) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let is_sentinel = self.sentinel.is_some();
        let sentinel_file = self.sentinel.map(|config| {
            let path = dir.path().join("sentinel.conf");
            fs::write(&path, config).unwrap();
            path
        });
        let wall_offset = self.wall_offset.map(|offset| {
            let path = dir.path().join("wall-offset");
            fs::write(&path, offset).unwrap();
            path
        });
        let mut server = Server {
            port,
            bus: self.cluster_node.then(Port::claim),
            dir,
            options: self.options,
            child: None,
            wall_offset,
            with_module: !self.without_module && !is_sentinel,
            config_file: sentinel_file.or(self.config_file),
            is_sentinel,
            outlives_full_files: self.outlives_full_files,
            program: self
                .program
                .or_else(|| std::env::var_os("REDIS_LOCK_SERVER"))
                .unwrap_or_else(|| "redis-server".into()),
        };
        server.start();
        server
    }
}

impl Server {
    /// A server with the module and nothing saved to disk.
    #[expect(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Server {
        Setup::default().start()
    }

    /// The same, and a connection to it.
    pub fn connected() -> (Server, Client) {
        Server::setup().connected()
    }

    /// To choose options first.
    pub fn setup() -> Setup {
        Setup::default()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where the other nodes of its cluster find it.
    pub fn bus_port(&self) -> u16 {
        self.bus.as_ref().expect("a node of a cluster").number()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// The server's data directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the server has logged since its first start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Starts it (again), on the same port, with the same data.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "runs already");
        let logged = self.log().len();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.spawn();
            if self.comes_up(deadline) {
                return;
            }
            let log = self.log();
            // Only a program that knows nothing of our claims takes a port that is ours.
            let taken = log[logged..].contains("Address already in use");
            assert!(taken && Instant::now() < deadline, "the server did not start:\n{log}");
            self.stop(true);
            // After a restart others may know where it was: then it has to be there again.
            if logged == 0 {
                self.port = Port::claim();
                self.bus = self.bus.take().map(|_| Port::claim());
            }
        }
    }

    fn spawn(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir().join("log")).unwrap();
        let mut command = if self.outlives_full_files {
            // What ignores a signal leaves that to the program that takes its place.
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(&self.program);
            shell
        } else {
            Command::new(&self.program)
        };
        command.current_dir(self.dir()).stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        // As an operator may have set it: a panic must not take the server along whatever it says.
        command.env("RUST_BACKTRACE", "1");
        command.args(&self.config_file);
        if self.is_sentinel {
            command.arg("--sentinel");
        } else {
            command.args(["--save", "", "--enable-debug-command", "yes"]);
            // A replica has its data at once. By default a server waits five seconds for more of them.
            command.args(["--repl-diskless-sync-delay", "0"]);
        }
        command.args(["--port", &self.port().to_string(), "--bind", "127.0.0.1"]);
        if let Some(bus) = &self.bus {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &bus.number().to_string()]);
        }
        if self.with_module {
            command.arg("--loadmodule").arg(module());
        }
        command.args(&self.options);
        if let Some(offset) = &self.wall_offset {
            command.env("LD_PRELOAD", module().with_file_name("libwallclock.so"));
            command.env("REDIS_LOCK_WALL_OFFSET", offset);
        }
        self.child = Some(spawn(command).expect("redis-server is installed: make test does it"));
    }

    /// Waits until it serves, or has ended.
    fn comes_up(&mut self, deadline: Instant) -> bool {
        loop {
            if self.child.as_mut().expect("spawned").try_wait().unwrap().is_some() {
                return false;
            }
            if self.serves() {
                return true;
            }
            assert!(Instant::now() < deadline, "the server does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether this process, and not another on the same port, has loaded its data and answers.
    fn serves(&self) -> bool {
        let Ok(conn) = self.try_connect(ProtocolVersion::RESP2) else { return false };
        let mut client = Client(conn);
        // Answered while it loads, too.
        if client.call(&["INFO", "server"]).is_err() || client.info("server", "process_id") != self.pid().to_string() {
            return false;
        }
        match client.call(&["PING"]) {
            Ok(_) => true,
            Err(error) if text_of(&error).starts_with("LOADING") => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends it: at once (`kill -9`), or after it has saved what it saves at a shutdown.
    pub fn stop(&mut self, at_once: bool) {
        if self.child.is_some() && !at_once {
            self.signal(Signal::TERM);
        }
        if let Some(mut child) = self.child.take() {
            // Does nothing to one that has ended already.
            if at_once {
                child.kill().unwrap();
            }
            child.wait().unwrap();
        }
    }

    /// Lets it end by itself, if it does so in time: a killed server cannot tell valgrind what was lost.
    fn shut_down(&mut self) {
        if let Some(mut child) = self.child.take_if(|child| child.try_wait().is_ok_and(|ended| ended.is_none())) {
            for signal in [Signal::CONT, Signal::TERM] {
                crate::signal(&child, signal);
            }
            let deadline = Instant::now() + PATIENCE;
            while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.child = Some(child);
        }
    }

    /// Lets none of its files grow beyond so many bytes, or as far as they will. Set it up with
    /// [`Setup::outlives_full_files`] first.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = Pid::from_child(self.child.as_ref().expect("running"));
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        crate::signal(self.child.as_ref().expect("running"), signal);
    }

    /// `kill -9` and start again.
    pub fn crash(&mut self) {
        self.stop(true);
        self.start();
    }

    /// Shutdown and start again.
    pub fn restart(&mut self) {
        self.stop(false);
        self.start();
    }

    /// The same, and its wall clock is set while it is down: see [`Server::set_wall_offset`].
    pub fn restart_at(&mut self, offset: &str) {
        self.stop(false);
        self.set_wall_offset(offset);
        self.start();
    }

    /// Sets the wall clock of a server that was set up with [`Setup::wall_offset`].
    pub fn set_wall_offset(&self, offset: &str) {
        let file = self.wall_offset.as_ref().expect("set up with wall_offset");
        // Renamed over, so that the server never reads half of it.
        let whole = file.with_extension("new");
        fs::write(&whole, offset).unwrap();
        fs::rename(whole, file).unwrap();
        // Valkey 9 checks it again after a millisecond only.
        std::thread::sleep(Duration::from_millis(2));
    }

    fn try_connect(&self, protocol: ProtocolVersion) -> Result<Connection, RedisError> {
        let info: ConnectionInfo = format!("redis://127.0.0.1:{}", self.port()).into_connection_info()?;
        let settings = info.redis_settings().clone().set_protocol(protocol);
        redis::Client::open(info.set_redis_settings(settings))?.get_connection()
    }

    /// A new connection.
    pub fn connect(&self) -> Client {
        Client(self.try_connect(ProtocolVersion::RESP2).unwrap())
    }

    /// A new connection to a database.
    pub fn connect_in(&self, db: &str) -> Client {
        let mut conn = self.connect();
        conn.ok(&["SELECT", db]);
        conn
    }

    /// A new connection that speaks RESP3.
    pub fn connect_resp3(&self) -> Client {
        Client(self.try_connect(ProtocolVersion::RESP3).unwrap())
    }

    /// Makes it a replica of another and waits until it has all of its data.
    pub fn follow(&self, primary: &Server) {
        let mut conn = self.connect();
        conn.ok(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        wait_for("the replica to be in sync", || conn.info("replication", "master_link_status") == "up");
        self.catch_up(primary);
    }

    /// Waits until this replica has seen all that its primary sent.
    pub fn catch_up(&self, primary: &Server) {
        let (mut here, mut there) = (self.connect(), primary.connect());
        wait_for("the replica to catch up", || {
            there.info("replication", "master_repl_offset") == here.info("replication", "slave_repl_offset")
        });
    }

    /// Waits until all that the server has for its append-only file is in it.
    pub fn await_aof(&self) {
        let mut conn = self.connect();
        wait_for("the append-only file to be written", || {
            conn.info("persistence", "aof_buffer_length") == "0"
                && conn.info("persistence", "aof_rewrite_in_progress") == "0"
        });
    }

    /// The commands in the append-only file, in order, each as its arguments; without SELECT.
    pub fn raw_aof_tail(&self) -> Vec<Vec<String>> {
        self.await_aof();
        let mut files: Vec<PathBuf> = fs::read_dir(self.dir().join("appendonlydir"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .collect();
        files.sort();
        let bytes: Vec<u8> = files.iter().flat_map(|path| fs::read(path).unwrap()).collect();
        parse_commands(&bytes).into_iter().filter(|command| command[0] != "SELECT").collect()
    }

    /// The same, with records [spelled out](Speller).
    pub fn aof_tail(&self) -> Vec<Vec<String>> {
        Speller::default().spell_all(self.raw_aof_tail())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::env::var_os("REDIS_LOCK_SHUTDOWN").is_some() {
            self.shut_down();
        }
        self.stop(true);
        if std::thread::panicking() {
            eprintln!("--- log of the server on port {} ---\n{}", self.port(), self.log());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_on_the_port_already_is_not_taken_for_ones_own() {
        // It answers at once, before the one that was started finds that it cannot listen: a test would talk to a
        // stranger.
        let stranger = Setup::default().without_module().start();
        let server = Setup::default().without_module().start_on(Port::unclaimed(stranger.port()));
        assert_ne!(server.port(), stranger.port());
        for server in [&stranger, &server] {
            assert_eq!(server.connect().info("server", "process_id"), server.pid().to_string());
        }
    }

    #[test]
    fn a_server_that_is_started_again_has_its_port_again() {
        // Replicas and clients know it by its port; meanwhile no other server may be given that.
        let mut server = Setup::default().without_module().cluster_node().start();
        let ports = (server.port(), server.bus_port());
        server.crash();
        server.restart();
        assert_eq!((server.port(), server.bus_port()), ports);
        assert_eq!(server.connect().info("server", "process_id"), server.pid().to_string());
    }
}
