//! A primary with two replicas under three Sentinels, all over TLS, each with its configuration file, as an operator
//! has them.

use crate::agents::boot_us;
use redis::{Client, Connection, RedisError, TlsCertificates, Value};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Certificates, Port, Signal, wait_for};

/// What the Sentinels call the primary.
pub const NAME: &str = "locks";

/// How long the servers may take to come together on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// What a command may take, beyond what it waits.
const LIMIT: Duration = Duration::from_secs(3);

/// The user of applications: docs/operations/acl.md, and the data beside the locks.
const APP: &str = "~lock:* ~data:* +lock.acquire +lock.rw +lock.share +lock.release +lock.extend +lock.check \
    +lock.guard +lock.info +lock.macquire +lock.mrelease +lock.mextend +ping +wait +asking +command \
    +client|setname +rpush +lindex &lock:notify:* +publish +subscribe";

#[derive(Debug)]
pub struct Programs {
    pub server: PathBuf,
    pub cli: PathBuf,
    pub redis_lock: PathBuf,
    pub module: PathBuf,
}

/// A server or a Sentinel.
pub struct Node {
    /// What it is called in what the program says.
    pub name: String,
    port: Port,
    pub dir: PathBuf,
    is_sentinel: bool,
    child: Mutex<Option<Child>>,
    starts: AtomicU64,
}

pub struct Servers {
    pub dir: PathBuf,
    pub tls: Certificates,
    /// The certificate of the authority.
    root: Vec<u8>,
    pub programs: Programs,
    pub app_password: String,
    admin_password: String,
    pub nodes: Vec<Node>,
    sentinels: Vec<Node>,
    /// Connections of the operator, by port.
    idle: Mutex<Vec<(u16, Connection)>>,
}

impl Servers {
    /// Starts them with this module; ready when the Sentinels know all.
    pub fn start(dir: &Path, programs: Programs, module: &Path) -> Servers {
        let tls = Certificates::make().expect("openssl is installed: make soak needs it");
        let root = fs::read(tls.authority()).expect("just made");
        // Without a choice rustls panics.
        let _chosen_before = rustls::crypto::ring::default_provider().install_default();
        let nodes: Vec<Node> = (1..=3).map(|number| Node::new(dir, format!("server-{number}"), false)).collect();
        let sentinels = (1..=3).map(|number| Node::new(dir, format!("sentinel-{number}"), true)).collect();
        let (app_password, admin_password) = ("of-the-applications".to_owned(), "of-the-operator".to_owned());
        let servers = Servers {
            dir: dir.to_owned(),
            tls,
            root,
            programs,
            app_password,
            admin_password,
            nodes,
            sentinels,
            idle: Mutex::default(),
        };
        for (number, node) in servers.nodes.iter().enumerate() {
            servers.install(node, module);
            let leader = (number > 0).then(|| servers.nodes[0].port());
            node.write_config(&servers.config(node, leader));
            servers.run(node);
        }
        wait_for("the replicas", || servers.is_whole(&servers.nodes[0]));
        for sentinel in &servers.sentinels {
            sentinel.write_config(&servers.sentinel_config(sentinel));
            servers.run(sentinel);
        }
        servers.wait_until_whole();
        servers
    }

    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(Node::port).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().chain(&self.sentinels)
    }

    fn common(&self, node: &Node) -> String {
        let (dir, port) = (node.dir.display(), node.port());
        // The last of them is the port of a server alone.
        let tls: String = self.tls.options()[..4].iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        format!("port 0\ntls-port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile {dir}/log\n{tls}tls-replication yes\n")
    }

    /// As redis.conf and docs/operations have it.
    fn config(&self, node: &Node, leader: Option<u16>) -> String {
        let (admin, app, dir) = (&self.admin_password, &self.app_password, node.dir.display());
        let mut text = self.common(node);
        let _infallible = write!(
            text,
            "loadmodule {dir}/libredis_lock.so\nlock.max-lease-ms 60000\nlock.log-max-len 64\nmasterauth {admin}\n\
             user default on >{admin} ~* &* +@all\nuser app on >{app} {APP}\nappendonly yes\nappendfsync everysec\n\
             aof-use-rdb-preamble yes\nsave 3600 1\nmaxmemory-policy noeviction\nmin-replicas-to-write 1\n\
             min-replicas-max-lag 10\nrepl-diskless-sync-delay 0\ntcp-keepalive 15\nnotify-keyspace-events Ed\n"
        );
        if let Some(leader) = leader {
            let _infallible = writeln!(text, "replicaof 127.0.0.1 {leader}");
        }
        text
    }

    fn sentinel_config(&self, sentinel: &Node) -> String {
        let (port, admin) = (self.nodes[0].port(), &self.admin_password);
        format!(
            "{}sentinel monitor {NAME} 127.0.0.1 {port} 2\nsentinel auth-pass {NAME} {admin}\n\
             sentinel down-after-milliseconds {NAME} 3000\nsentinel failover-timeout {NAME} 5000\n",
            self.common(sentinel)
        )
    }

    /// Puts a module where the server will load it at its next start, as a package does.
    pub fn install(&self, node: &Node, module: &Path) {
        let (new, place) = (node.dir.join("libredis_lock.so.new"), node.dir.join("libredis_lock.so"));
        fs::copy(module, &new).unwrap_or_else(|error| panic!("{}: {error}", module.display()));
        fs::rename(new, place).expect("a directory of our own");
    }

    /// Starts a server; ready when it answers.
    pub fn run(&self, node: &Node) {
        let mut command = Command::new(&self.programs.server);
        command.arg(node.dir.join("conf")).current_dir(&node.dir).stdin(Stdio::null());
        if node.is_sentinel {
            command.arg("--sentinel");
        }
        let errors = File::options().create(true).append(true).open(node.dir.join("errors")).expect("our directory");
        command.stdout(errors.try_clone().expect("a file")).stderr(errors).env("RUST_BACKTRACE", "1");
        let child = testbed::spawn(command).expect("a server is installed: make soak does it");
        *node.child() = Some(child);
        node.starts.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        while self.ask(node.port(), &["PING"]).is_err() {
            assert!(node.runs() && Instant::now() < deadline, "{} did not start:\n{}", node.name, node.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Another server, with the module of this one and with the files that lie in this directory.
    pub fn fresh(&self, dir: &Path, like: &Node) -> Node {
        let name = dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let node = Node::at(dir.to_owned(), name, false);
        self.install(&node, &like.dir.join("libredis_lock.so"));
        node.write_config(&self.config(&node, None));
        self.run(&node);
        node
    }

    pub fn connect(&self, port: u16) -> Result<Connection, RedisError> {
        let user = if self.is_sentinel(port) { String::new() } else { format!(":{}@", self.admin_password) };
        let trusted = TlsCertificates { client_tls: None, root_cert: Some(self.root.clone()) };
        let client = Client::build_with_tls(format!("rediss://{user}127.0.0.1:{port}"), trusted)?;
        let conn = client.get_connection_with_timeout(LIMIT)?;
        conn.set_read_timeout(Some(LIMIT))?;
        conn.set_write_timeout(Some(LIMIT))?;
        Ok(conn)
    }

    fn is_sentinel(&self, port: u16) -> bool {
        self.sentinels.iter().any(|sentinel| sentinel.port() == port)
    }

    /// One command, over a connection that was used before if there is one: on a busy machine handshakes take long.
    pub fn ask(&self, port: u16, words: &[&str]) -> Result<Value, RedisError> {
        let idle = |port| {
            let mut idle = self.idle.lock().expect("nobody panics with it");
            let at = idle.iter().position(|(of, _)| *of == port)?;
            Some(idle.swap_remove(at).1)
        };
        let keep = |conn| self.idle.lock().expect("nobody panics with it").push((port, conn));
        while let Some(mut conn) = idle(port) {
            match ask(&mut conn, words) {
                // It was closed meanwhile.
                Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {}
                reply => {
                    keep(conn);
                    return reply;
                }
            }
        }
        let mut conn = self.connect(port)?;
        let reply = ask(&mut conn, words)?;
        keep(conn);
        Ok(reply)
    }

    /// The same, as a type of Rust.
    pub fn get<T: redis::FromRedisValue>(&self, port: u16, words: &[&str]) -> Result<T, RedisError> {
        Ok(redis::from_redis_value(self.ask(port, words)?)?)
    }

    /// A command that must work, maybe later.
    pub fn insist(&self, port: u16, words: &[&str]) -> Value {
        let mut last = String::new();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.ask(port, words) {
                Ok(value) => return value,
                Err(error) => last = testbed::text_of(&error),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{words:?}: {last}");
    }

    pub fn info(&self, port: u16, section: &str) -> Result<Info, RedisError> {
        self.get(port, &["INFO", section]).map(Info)
    }

    /// The server that the Sentinels name; None if they cannot say.
    pub fn primary(&self) -> Option<&Node> {
        let ask = |sentinel: &Node| {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
            self.get::<(String, u16)>(sentinel.port(), &words).ok().map(|(_, port)| port)
        };
        let named: Vec<Option<u16>> = self.sentinels.iter().map(ask).collect();
        let first =
            named.iter().flatten().find(|one| named.iter().flatten().filter(|other| other == one).count() >= 2)?;
        self.nodes.iter().find(|node| node.port() == *first)
    }

    /// The same, as soon as they can.
    pub fn wait_primary(&self) -> &Node {
        let mut found = None;
        testbed::wait_so_long(PATIENCE, "the Sentinels to name a primary", || {
            found = self.primary().filter(|node| self.role(node.port()).as_deref() == Some("master"));
            found.is_some()
        });
        found.expect("just seen")
    }

    pub fn role(&self, port: u16) -> Option<String> {
        let role: Vec<Value> = self.get(port, &["ROLE"]).ok()?;
        redis::from_redis_value(role.into_iter().next()?).ok()
    }

    /// Whether this primary has both replicas in step.
    fn is_whole(&self, primary: &Node) -> bool {
        self.replicas(primary) == 2
    }

    pub fn replicas(&self, primary: &Node) -> usize {
        self.info(primary.port(), "replication").map_or(0, |info| info.0.matches("state=online").count())
    }

    /// Waits until all servers are there, and the Sentinels know it: only then they can fail over.
    pub fn wait_until_whole(&self) -> &Node {
        let mut found = None;
        testbed::wait_so_long(PATIENCE, "the servers to come together", || {
            std::thread::sleep(Duration::from_millis(100));
            found = self.primary().filter(|node| self.is_whole(node));
            found.is_some() && self.sentinels.iter().all(|sentinel| self.knows_all(sentinel))
        });
        found.expect("just seen")
    }

    /// Whether a Sentinel can fail over. It may take a server that is slow for down now and then.
    fn knows_all(&self, sentinel: &Node) -> bool {
        let Ok(state) = self.info(sentinel.port(), "sentinel") else { return false };
        state.field("master0").is_some_and(|state| state.contains("slaves=2,sentinels=3"))
    }
}

pub struct Info(String);

impl Info {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.field(name).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("INFO has no {name}:\n{}", self.0))
    }
}

pub fn ask(conn: &mut Connection, words: &[&str]) -> Result<Value, RedisError> {
    let mut command = redis::Cmd::new();
    command.arg(words).query(conn)
}

impl Node {
    fn new(parent: &Path, name: String, is_sentinel: bool) -> Node {
        let dir = parent.join(&name);
        fs::create_dir(&dir).expect("a directory of our own");
        Node::at(dir, name, is_sentinel)
    }

    fn at(dir: PathBuf, name: String, is_sentinel: bool) -> Node {
        let (child, starts) = (Mutex::default(), AtomicU64::default());
        Node { name, port: Port::claim(), dir, is_sentinel, child, starts }
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().expect("nobody panics with it")
    }

    fn write_config(&self, text: &str) {
        fs::write(self.dir.join("conf"), text).expect("a directory of our own");
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its process number; 0 if it does not run.
    pub fn pid(&self) -> u32 {
        self.child().as_ref().map_or(0, Child::id)
    }

    /// How often it was started: another process each time.
    pub fn starts(&self) -> u64 {
        self.starts.load(Ordering::Relaxed)
    }

    /// Whether its process is there, or was ended by us.
    pub fn is_well(&self) -> bool {
        self.child().as_mut().is_none_or(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    fn runs(&self) -> bool {
        self.child().as_mut().is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    pub fn log(&self) -> String {
        let read = |name| String::from_utf8_lossy(&fs::read(self.dir.join(name)).unwrap_or_default()).into_owned();
        read("log") + &read("errors")
    }

    /// Ends its process, at once or in order; the moment from which on it was gone.
    pub fn stop(&self, at_once: bool) -> u64 {
        let taken = self.child().take();
        if let Some(mut child) = taken {
            // A server refuses to end while it writes its first append-only file, and has to be told again.
            while child.try_wait().expect("a child").is_none() {
                testbed::signal(&child, if at_once { Signal::KILL } else { Signal::TERM });
                let told = Instant::now();
                while told.elapsed() < Duration::from_secs(2) && child.try_wait().expect("a child").is_none() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
        boot_us()
    }

    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() * 1024
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop(true);
    }
}
