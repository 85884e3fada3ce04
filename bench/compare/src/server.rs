//! Servers of all kinds, each in a folder of its own and on a port of its own, known by its process and ended with this
//! program.

use crate::Failure;
use crate::clients::{Requests, Target, connect, prepare};
use crate::process::Tree;
use bench::server::{Bench, Plan, options_of};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testbed::Port;

/// How long a server may take to start, and to end once it is asked to.
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(5);
/// The user and group that files of nobody belong to. PostgreSQL and MariaDB do not run as root.
const NOBODY: u32 = 65_534;

/// Which server, and with which options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setup {
    /// Redis or Valkey, perhaps with the module, perhaps with an AOF that is on disk before each reply.
    Redis { module: bool, aof_always: bool },
    /// PostgreSQL as it is installed.
    Postgres,
    /// MariaDB as it is installed.
    MariaDb,
    /// etcd, one node.
    Etcd { fsync: bool },
    /// ZooKeeper, one node.
    ZooKeeper { fsync: bool },
}

/// A running server.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) tree: Tree,
    /// Its name and its version.
    pub(crate) version: String,
    /// Dropped last.
    process: Process,
}

enum Process {
    /// Its connection is of no use here, but keeps it alive.
    Redis(#[expect(dead_code, reason = "ended when dropped")] Box<Bench>),
    Other(Daemon),
}

/// A process in a folder.
struct Daemon {
    child: Child,
    stop: Signal,
    dir: TempDir,
    _ports: Vec<Port>,
}

impl Setup {
    /// Starts it, and waits until a client has taken and released a lock. Fails with the reason.
    pub(crate) async fn start(self, target: impl Fn(u16) -> Target) -> Result<Server, Failure> {
        let mut server = self.spawn()?;
        let start = Instant::now();
        while let Err(error) = first_lock(target(server.port)).await {
            if let Process::Other(daemon) = &mut server.process
                && let Some(status) = daemon.child.try_wait()?
            {
                return Err(format!("it ended ({status}): {}", daemon.last_words()).into());
            }
            if start.elapsed() > START {
                return Err(format!("no lock within {START:?}: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if let Setup::ZooKeeper { .. } = self {
            server.version = zookeeper_version(server.port)?;
        }
        Ok(server)
    }

    fn spawn(self) -> Result<Server, Failure> {
        match self {
            Setup::Redis { module, aof_always } => Ok(redis(module, aof_always)),
            Setup::Postgres => postgres(),
            Setup::MariaDb => mariadb(),
            Setup::Etcd { fsync } => etcd(fsync),
            Setup::ZooKeeper { fsync } => zookeeper(fsync),
        }
    }
}

async fn first_lock(target: Target) -> Result<(), Failure> {
    prepare(target).await?;
    let mut client = connect(target, 0, Requests::default()).await?;
    client.acquire().await?;
    client.release().await
}

fn redis(module: bool, aof_always: bool) -> Server {
    let aof = [("appendonly", "yes"), ("appendfsync", "always"), ("auto-aof-rewrite-percentage", "0")];
    let options = if aof_always { options_of(aof) } else { Vec::new() };
    let mut server = Plan { options, plain: !module, ..Plan::default() }.start();
    let (kind, version) = server.version();
    let name = if kind == "valkey" { "Valkey" } else { "Redis" };
    Server {
        port: server.address().port(),
        tree: Tree(server.pid()),
        version: format!("{name} {version}"),
        process: Process::Redis(Box::new(server)),
    }
}

fn postgres() -> Result<Server, Failure> {
    let program = newest("/usr/lib/postgresql", "bin/postgres").or_else(|_| in_path("postgres"))?;
    let version = version(&program, "--version")?;
    let (dir, port) = (folder()?, Port::claim());
    let mut init = Command::new(program.with_file_name("initdb"));
    init.args(["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
    finish(as_nobody(&mut init, &dir)?)?;
    let mut command = Command::new(&program);
    command.args(["-D", "data", "-p", &port.number().to_string(), "-c", "listen_addresses=127.0.0.1"]);
    command.args(["-c", "unix_socket_directories=", "-c", "max_connections=300"]);
    // SIGQUIT: at once, and without its children left behind.
    as_nobody(&mut command, &dir)?;
    daemon(command, Signal::QUIT, dir, vec![port], format!("PostgreSQL {version}"))
}

fn mariadb() -> Result<Server, Failure> {
    let program = in_path("mariadbd")?;
    let version = version(&program, "--version")?;
    let (dir, port) = (folder()?, Port::claim());
    let data = format!("--datadir={}", dir.path().join("data").display());
    let mut init = Command::new(in_path("mariadb-install-db")?);
    init.args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"]);
    finish(as_nobody(&mut init, &dir)?)?;
    let mut command = Command::new(&program);
    command.args(["--no-defaults", &data, "--bind-address=127.0.0.1", "--max-connections=300"]);
    command.arg(format!("--port={}", port.number())).arg(format!("--socket={}", dir.path().join("socket").display()));
    as_nobody(&mut command, &dir)?;
    daemon(command, Signal::TERM, dir, vec![port], format!("MariaDB {version}"))
}

fn etcd(fsync: bool) -> Result<Server, Failure> {
    let program = in_path("etcd")?;
    let version = version(&program, "--version")?;
    let (dir, port, peers) = (folder()?, Port::claim(), Port::claim());
    let (client, peer) = (url(&port), url(&peers));
    let mut command = Command::new(&program);
    command.current_dir(&dir).args(["--name", "compare", "--data-dir", "data"]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("compare={peer}"), "--logger", "zap"]);
    if !fsync {
        command.arg("--unsafe-no-fsync");
    }
    daemon(command, Signal::TERM, dir, vec![port, peers], format!("etcd {version}"))
}

fn zookeeper(fsync: bool) -> Result<Server, Failure> {
    // The path of Debian's package. The file names all others that it needs.
    let jar = Path::new("/usr/share/java/zookeeper.jar");
    if !jar.exists() {
        return Err(format!("{} is missing", jar.display()).into());
    }
    let (dir, port) = (folder()?, Port::claim());
    let config = format!(
        "tickTime=2000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
         admin.enableServer=false\n",
        dir.path().join("data").display(),
        port.number()
    );
    fs::write(dir.path().join("zoo.cfg"), config)?;
    let mut command = Command::new(in_path("java")?);
    // As much heap as its own start script gives it.
    command
        .current_dir(&dir)
        .args(["-Xmx1000m", &format!("-Dzookeeper.forceSync={}", if fsync { "yes" } else { "no" })]);
    command.arg("-cp").arg(jar).args(["org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]);
    daemon(command, Signal::TERM, dir, vec![port], "ZooKeeper".to_owned())
}

/// The first line of what it answers to srvr: Zookeeper version: 3.8.0-...
fn zookeeper_version(port: u16) -> Result<String, Failure> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"srvr")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let version = answer.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    Ok(format!("ZooKeeper {}", version.unwrap_or("of an unknown version")))
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

fn folder() -> Result<TempDir, Failure> {
    Ok(tempfile::Builder::new().prefix("redis-lock-compare-").tempdir()?)
}

/// Lets a command run in a folder. If this program is root's, both become nobody's.
fn as_nobody<'a>(command: &'a mut Command, dir: &TempDir) -> Result<&'a mut Command, Failure> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY))?;
        command.uid(NOBODY).gid(NOBODY);
    }
    Ok(command.current_dir(dir))
}

/// Runs a command to its end.
fn finish(command: &mut Command) -> Result<(), Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    Err(format!("{:?} failed: {}", command.get_program(), last_lines(&text)).into())
}

fn daemon(
    mut command: Command,
    stop: Signal,
    dir: TempDir,
    ports: Vec<Port>,
    version: String,
) -> Result<Server, Failure> {
    let log = File::create(dir.path().join("log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = testbed::spawn(command)?;
    Ok(Server {
        port: ports[0].number(),
        tree: Tree(child.id()),
        version,
        process: Process::Other(Daemon { child, stop, dir, _ports: ports }),
    })
}

impl Daemon {
    fn last_words(&self) -> String {
        last_lines(&fs::read_to_string(self.dir.path().join("log")).unwrap_or_default())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to end.
        let _ = kill_process(Pid::from_child(&self.child), self.stop);
        let start = Instant::now();
        while start.elapsed() < STOP && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// The program of this name. Debian keeps servers where only root's PATH looks.
fn in_path(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()));
    found.ok_or_else(|| format!("{name} is missing").into())
}

/// The program in the folder of the highest number, as in /usr/lib/postgresql/15.
fn newest(root: &str, program: &str) -> Result<PathBuf, Failure> {
    let number = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let folders = fs::read_dir(root)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = folders.filter(|folder| folder.join(program).is_file()).max_by_key(number);
    found.map(|folder| folder.join(program)).ok_or_else(|| format!("{program} is missing below {root}").into())
}

/// The first word of a program's account of itself that begins with a digit.
fn version(program: &Path, option: &str) -> Result<String, Failure> {
    let output = Command::new(program).arg(option).stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let word = words.next().unwrap_or("of an unknown version");
    Ok(word.split('-').next().unwrap_or(word).to_owned())
}
