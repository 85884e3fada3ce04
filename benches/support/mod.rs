//! What the benchmarks share: a server of its own, with the module loaded and nothing saved, gone with the value; and what
//! people use without the module.

use redis::{Connection, cmd};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What people run today to release only their own lock.
pub(crate) const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub(crate) struct Server {
    child: Child,
    pub(crate) conn: Connection,
    _dir: tempfile::TempDir,
}

impl Server {
    /// A server with the module; `options` are of the server's command line, after the module.
    pub(crate) fn start(options: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let module = std::env::var_os("REDIS_LOCK_MODULE").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/release/libredis_lock.so"),
            PathBuf::from,
        );
        let program = std::env::var_os("REDIS_LOCK_SERVER").unwrap_or_else(|| "redis-server".into());
        let child = Command::new(program)
            .current_dir(dir.path())
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--loadmodule"])
            .arg(module)
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed: make bench does it");
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let conn = (0..500)
            .find_map(|_| {
                std::thread::sleep(Duration::from_millis(10));
                client.get_connection().ok()
            })
            .expect("the server comes up");
        Server { child, conn, _dir: dir }
    }

    pub(crate) fn info(&mut self, section: &str, field: &str) -> String {
        let text: String = cmd("INFO").arg(section).query(&mut self.conn).unwrap();
        let prefix = format!("{field}:");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).expect("a field of INFO").to_owned()
    }

    /// User and system time of the server so far, in microseconds.
    pub(crate) fn cpu_us(&mut self) -> f64 {
        let user: f64 = self.info("cpu", "used_cpu_user").parse().unwrap();
        let system: f64 = self.info("cpu", "used_cpu_sys").parse().unwrap();
        (user + system) * 1e6
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
