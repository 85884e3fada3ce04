//! Real servers for the tests: each test starts its own, on a free port, in a directory of its own, and kills it by its
//! handle when it drops it. Never by name, never one that somebody else runs.

use redis::{Connection, ConnectionInfo, FromRedisValue, IntoConnectionInfo, ProtocolVersion, RedisError, Value, cmd};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a condition may take to come true before a test gives up. Generous: it ends early when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A file of this machine that the tests need: from the environment, else where make puts it.
pub(crate) fn file_from(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(default), PathBuf::from)
}

/// The module under test.
pub(crate) fn module() -> PathBuf {
    let path = file_from("REDIS_LOCK_MODULE", "target/release/libredis_lock.so");
    assert!(path.exists(), "{} is missing: run the tests with make test", path.display());
    path
}

/// A running server with the module, and its data directory, which outlives restarts.
pub(crate) struct Server {
    port: u16,
    dir: TempDir,
    options: Vec<String>,
    child: Option<Child>,
    /// Where tests/wallclock reads how far the wall clock is off; None where it is the machine's.
    wall_offset: Option<PathBuf>,
    with_module: bool,
    config_file: Option<PathBuf>,
}

/// How a server is to be started.
#[derive(Default)]
pub(crate) struct Setup {
    options: Vec<String>,
    wall_offset: Option<String>,
    without_module: bool,
    config_file: Option<PathBuf>,
}

impl Setup {
    /// Adds an option of the server, as on its command line: `option("appendonly", "yes")`.
    pub(crate) fn option(mut self, name: &str, value: &str) -> Setup {
        self.options.push(format!("--{name}"));
        self.options.extend(value.split(' ').map(str::to_owned));
        self
    }

    /// Adds a configuration of the module, or any other line that must stand behind loadmodule.
    pub(crate) fn lock_option(self, name: &str, value: &str) -> Setup {
        self.option(&format!("lock.{name}"), value)
    }

    /// Lets the server's wall clock be off by this much (`+1h`, `-3600s`, `+0`), so that [`Server::set_wall_offset`] can
    /// change it while it runs. Its monotonic clock is not touched.
    pub(crate) fn wall_offset(mut self, offset: &str) -> Setup {
        self.wall_offset = Some(offset.to_owned());
        self
    }

    /// A plain server, without the module.
    pub(crate) fn without_module(mut self) -> Setup {
        self.without_module = true;
        self
    }

    /// Starts from a configuration file; all other options override it.
    pub(crate) fn config_file(mut self, path: &Path) -> Setup {
        self.config_file = Some(path.to_owned());
        self
    }

    /// Starts it and waits until it answers.
    pub(crate) fn start(self) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let wall_offset = self.wall_offset.map(|offset| {
            let path = dir.path().join("wall-offset");
            fs::write(&path, offset).unwrap();
            path
        });
        let mut server = Server {
            port: free_port(),
            dir,
            options: self.options,
            child: None,
            wall_offset,
            with_module: !self.without_module,
            config_file: self.config_file,
        };
        server.start();
        server
    }
}

impl Server {
    /// A server with the module and nothing saved to disk.
    pub(crate) fn new() -> Server {
        Setup::default().start()
    }

    /// To choose options first.
    pub(crate) fn setup() -> Setup {
        Setup::default()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// The server's data directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the server has logged since its first start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Starts it (again), on the same port, with the same data.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "runs already");
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.spawn();
            if self.comes_up(deadline) {
                return;
            }
            // Somebody took the port between the choice and the start.
            assert!(self.log().contains("Address already in use"), "the server did not start:\n{}", self.log());
            self.stop(true);
            self.port = free_port();
        }
    }

    fn spawn(&mut self) {
        let program = std::env::var_os("REDIS_LOCK_SERVER").unwrap_or_else(|| "redis-server".into());
        let log = File::options().create(true).append(true).open(self.dir().join("log")).unwrap();
        let mut command = Command::new(program);
        command.current_dir(self.dir()).stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        // As an operator may have set it: a panic must not take the server along whatever it says.
        command.env("RUST_BACKTRACE", "1");
        command.args(&self.config_file);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--enable-debug-command", "yes"]);
        if self.with_module {
            command.arg("--loadmodule").arg(module());
        }
        command.args(&self.options);
        if let Some(offset) = &self.wall_offset {
            command.env("LD_PRELOAD", module().with_file_name("libwallclock.so"));
            command.env("REDIS_LOCK_WALL_OFFSET", offset);
        }
        self.child = Some(command.spawn().expect("redis-server is installed: make test does it"));
    }

    fn comes_up(&mut self, deadline: Instant) -> bool {
        loop {
            if self.child.as_mut().expect("spawned").try_wait().unwrap().is_some() {
                return false;
            }
            if let Ok(mut conn) = self.try_connect(ProtocolVersion::RESP2) {
                match cmd("PING").query::<String>(&mut conn) {
                    Ok(_) => return true,
                    // Loading its data still.
                    Err(error) => assert!(text_of(&error).starts_with("LOADING"), "{error}"),
                }
            }
            assert!(Instant::now() < deadline, "the server does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it: at once (`kill -9`), or after it has saved what it saves at a shutdown.
    pub(crate) fn stop(&mut self, at_once: bool) {
        if self.child.is_some() && !at_once {
            self.signal(libc::SIGTERM);
        }
        if let Some(mut child) = self.child.take() {
            // Does nothing to one that has ended already.
            if at_once {
                child.kill().unwrap();
            }
            child.wait().unwrap();
        }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: sends a signal to a child of ours that has not been waited for.
        #[expect(unsafe_code, reason = "std can only kill -9")]
        let sent = unsafe { libc::kill(self.pid() as libc::pid_t, signal) };
        assert_eq!(sent, 0);
    }

    /// `kill -9` and start again.
    pub(crate) fn crash(&mut self) {
        self.stop(true);
        self.start();
    }

    /// Shutdown and start again.
    pub(crate) fn restart(&mut self) {
        self.stop(false);
        self.start();
    }

    /// Sets the wall clock of a server that was set up with [`Setup::wall_offset`].
    pub(crate) fn set_wall_offset(&self, offset: &str) {
        let file = self.wall_offset.as_ref().expect("set up with wall_offset");
        // Renamed over, so that the server never reads half of it.
        let whole = file.with_extension("new");
        fs::write(&whole, offset).unwrap();
        fs::rename(whole, file).unwrap();
        // Valkey 9 looks at it again after a millisecond only.
        std::thread::sleep(Duration::from_millis(2));
    }

    fn try_connect(&self, protocol: ProtocolVersion) -> Result<Connection, RedisError> {
        let info: ConnectionInfo = format!("redis://127.0.0.1:{}", self.port).into_connection_info()?;
        let settings = info.redis_settings().clone().set_protocol(protocol);
        redis::Client::open(info.set_redis_settings(settings))?.get_connection()
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Client {
        Client(self.try_connect(ProtocolVersion::RESP2).unwrap())
    }

    /// A new connection that speaks RESP3.
    pub(crate) fn connect_resp3(&self) -> Client {
        Client(self.try_connect(ProtocolVersion::RESP3).unwrap())
    }

    /// Makes it a replica of another and waits until it has all of its data.
    pub(crate) fn follow(&self, primary: &Server) {
        let mut conn = self.connect();
        conn.ok(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        wait_for("the replica to be in sync", || conn.info("replication", "master_link_status") == "up");
        self.catch_up(primary);
    }

    /// Waits until this replica has seen all that its primary sent.
    pub(crate) fn catch_up(&self, primary: &Server) {
        let (mut here, mut there) = (self.connect(), primary.connect());
        wait_for("the replica to catch up", || {
            there.info("replication", "master_repl_offset") == here.info("replication", "slave_repl_offset")
        });
    }

    /// The commands in the append-only file, in order, each as its arguments; without SELECT.
    pub(crate) fn aof_tail(&self) -> Vec<Vec<String>> {
        let mut conn = self.connect();
        // Whatever is in the server's buffer is in the file after this.
        wait_for("the append-only file to be written", || {
            conn.info("persistence", "aof_buffer_length") == "0"
                && conn.info("persistence", "aof_rewrite_in_progress") == "0"
        });
        let mut files: Vec<PathBuf> = fs::read_dir(self.dir().join("appendonlydir"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .collect();
        files.sort();
        let bytes: Vec<u8> = files.iter().flat_map(|path| fs::read(path).unwrap()).collect();
        parse_commands(&bytes).into_iter().filter(|command| command[0] != "SELECT").collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(true);
        if std::thread::panicking() {
            eprintln!("--- log of the server on port {} ---\n{}", self.port, self.log());
        }
    }
}

/// A connection, with the calls that tests make most.
pub(crate) struct Client(pub(crate) Connection);

impl Client {
    /// Sends a command of any bytes.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, RedisError> {
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(arg.as_ref());
        }
        command.query(&mut self.0)
    }

    /// Sends a command without waiting for its reply.
    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(arg.as_ref());
        }
        self.0.send_packed_command(&command.get_packed_command()).unwrap();
    }

    /// The reply, which must not be an error, as a type of Rust.
    pub(crate) fn get<T: FromRedisValue>(&mut self, args: &[&str]) -> T {
        let value = self.call(args).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        redis::from_redis_value(value.clone()).unwrap_or_else(|error| panic!("{args:?} -> {value:?}: {error}"))
    }

    /// Sends a command that must answer OK.
    pub(crate) fn ok(&mut self, args: &[&str]) {
        assert_eq!(self.get::<String>(args), "OK", "{args:?}");
    }

    /// The reply as a fence or count; None for null.
    pub(crate) fn int(&mut self, args: &[&str]) -> Option<i64> {
        self.get(args)
    }

    /// The text of the error that the command must be refused with, code first.
    pub(crate) fn error<A: AsRef<[u8]>>(&mut self, args: &[A]) -> String {
        match self.call(args) {
            Err(error) => text_of(&error),
            Ok(value) => panic!("not refused: {value:?}"),
        }
    }

    /// A field of INFO.
    pub(crate) fn info(&mut self, section: &str, field: &str) -> String {
        let text: String = self.get(&["INFO", section]);
        let prefix = format!("{field}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("INFO {section} has no {field}:\n{text}")).to_owned()
    }

    /// A field of INFO that is a number.
    pub(crate) fn info_number(&mut self, section: &str, field: &str) -> u64 {
        self.info(section, field).parse().unwrap()
    }

    /// LOCK.INFO of a key as a map; None when nobody holds it.
    pub(crate) fn lock_info(&mut self, key: &str) -> Option<LockInfo> {
        match self.call(&["LOCK.INFO", key]).unwrap() {
            Value::Nil => None,
            value => Some(LockInfo::from(value)),
        }
    }
}

/// What LOCK.INFO says.
#[derive(Debug, Clone)]
pub(crate) struct LockInfo {
    pub(crate) mode: String,
    pub(crate) fence: i64,
    pub(crate) holding: usize,
    pub(crate) holders: Vec<HolderInfo>,
    pub(crate) waiting: usize,
    pub(crate) waiters: Vec<WaiterInfo>,
}

/// What LOCK.INFO says of one who waits.
#[derive(Debug, Clone)]
pub(crate) struct WaiterInfo {
    pub(crate) owner: Vec<u8>,
    pub(crate) mode: String,
    pub(crate) waited_ms: i64,
    pub(crate) left_ms: Option<i64>,
    pub(crate) client: i64,
}

/// What LOCK.INFO says of one holder.
#[derive(Debug, Clone)]
pub(crate) struct HolderInfo {
    pub(crate) owner: Vec<u8>,
    pub(crate) mode: String,
    pub(crate) reads: i64,
    pub(crate) writes: i64,
    pub(crate) fence: i64,
    pub(crate) ttl_ms: i64,
    pub(crate) held_ms: i64,
    pub(crate) session: Option<i64>,
    pub(crate) client: Option<i64>,
    pub(crate) note: Option<String>,
}

impl From<Value> for LockInfo {
    fn from(value: Value) -> LockInfo {
        let fields = Fields::from(value);
        let Value::Array(holders) = fields.value("holders") else { panic!("holders is an array") };
        let Value::Array(waiters) = fields.value("waiters") else { panic!("waiters is an array") };
        LockInfo {
            mode: fields.get("mode"),
            fence: fields.get("fence"),
            holding: fields.get("holding"),
            holders: holders.into_iter().map(HolderInfo::from).collect(),
            waiting: fields.get("waiting"),
            waiters: waiters.into_iter().map(WaiterInfo::from).collect(),
        }
    }
}

impl From<Value> for WaiterInfo {
    fn from(value: Value) -> WaiterInfo {
        let fields = Fields::from(value);
        WaiterInfo {
            owner: fields.get("owner"),
            mode: fields.get("mode"),
            waited_ms: fields.get("waited_ms"),
            left_ms: fields.get("left_ms"),
            client: fields.get("client"),
        }
    }
}

impl From<Value> for HolderInfo {
    fn from(value: Value) -> HolderInfo {
        let fields = Fields::from(value);
        HolderInfo {
            owner: fields.get("owner"),
            mode: fields.get("mode"),
            reads: fields.get("reads"),
            writes: fields.get("writes"),
            fence: fields.get("fence"),
            ttl_ms: fields.get("ttl_ms"),
            held_ms: fields.get("held_ms"),
            session: fields.get("session"),
            client: fields.get("client"),
            note: fields.get("note"),
        }
    }
}

/// The pairs of a map, which RESP2 sends as a flat array.
pub(crate) struct Fields(Vec<(String, Value)>);

impl From<Value> for Fields {
    fn from(value: Value) -> Fields {
        let pairs: Vec<(Value, Value)> = match value {
            Value::Map(pairs) => pairs,
            Value::Array(flat) => flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
            other => panic!("neither map nor array: {other:?}"),
        };
        Fields(pairs.into_iter().map(|(name, value)| (redis::from_redis_value(name).unwrap(), value)).collect())
    }
}

impl Fields {
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    pub(crate) fn value(&self, name: &str) -> Value {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.unwrap_or_else(|| panic!("no field {name} in {:?}", self.names())).1.clone()
    }

    pub(crate) fn get<T: FromRedisValue>(&self, name: &str) -> T {
        redis::from_redis_value(self.value(name)).unwrap()
    }
}

/// An error as the server sent it: code, blank, text.
pub(crate) fn text_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

/// Waits until a condition holds; fails loudly if it does not.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Commands in the protocol's form, as an append-only file or a replication stream has them; any bytes are kept, as
/// Latin-1 characters.
pub(crate) fn parse_commands(mut bytes: &[u8]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let line = take_line(&mut bytes);
        // Time stamps and the like.
        if line.starts_with(b"#") {
            continue;
        }
        let count: usize = number_after(line, b'*');
        commands.push(
            (0..count)
                .map(|_| {
                    let len: usize = number_after(take_line(&mut bytes), b'$');
                    let (arg, rest) = bytes.split_at(len);
                    bytes = &rest[2..];
                    arg.iter().map(|byte| char::from(*byte)).collect()
                })
                .collect(),
        );
    }
    commands
}

fn take_line<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a whole line");
    let line = &bytes[..end];
    *bytes = &bytes[end + 2..];
    line
}

fn number_after(line: &[u8], sign: u8) -> usize {
    assert_eq!(line[0], sign, "{}", line.escape_ascii());
    std::str::from_utf8(&line[1..]).unwrap().parse().unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
