//! A connection to a server.

use crate::lock_info::LockInfo;
use crate::wait_for;
use redis::{Connection, FromRedisValue, RedisError, Value};

/// A connection, with the calls that tests make most.
pub struct Client(pub Connection);

impl Client {
    /// Sends a command of any bytes.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, RedisError> {
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(arg.as_ref());
        }
        command.query(&mut self.0)
    }

    /// Sends a command without waiting for its reply.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(arg.as_ref());
        }
        self.0.send_packed_command(&command.get_packed_command()).unwrap();
    }

    /// The reply, which must not be an error, as a type of Rust.
    pub fn get<T: FromRedisValue>(&mut self, args: &[&str]) -> T {
        let value = self.call(args).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        redis::from_redis_value(value.clone()).unwrap_or_else(|error| panic!("{args:?} -> {value:?}: {error}"))
    }

    /// Sends a command that must answer OK.
    pub fn ok(&mut self, args: &[&str]) {
        assert_eq!(self.get::<String>(args), "OK", "{args:?}");
    }

    /// The reply as a fence or count; None for null.
    pub fn int(&mut self, args: &[&str]) -> Option<i64> {
        self.get(args)
    }

    /// The text of the error that the command must be refused with, code first.
    pub fn error<A: AsRef<[u8]>>(&mut self, args: &[A]) -> String {
        match self.call(args) {
            Err(error) => text_of(&error),
            Ok(value) => panic!("not refused: {value:?}"),
        }
    }

    /// A field of INFO.
    pub fn info(&mut self, section: &str, field: &str) -> String {
        self.field(&["INFO", section], field)
    }

    /// A field of CLUSTER INFO.
    pub fn cluster_info(&mut self, field: &str) -> String {
        self.field(&["CLUSTER", "INFO"], field)
    }

    fn field(&mut self, args: &[&str], field: &str) -> String {
        let text: String = self.get(args);
        let prefix = format!("{field}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("{args:?} has no {field}:\n{text}")).to_owned()
    }

    /// How often the server was asked for the commands whose names begin so.
    pub fn calls(&mut self, command: &str) -> u64 {
        let (text, begin): (String, _) = (self.get(&["INFO", "commandstats"]), format!("cmdstat_{command}"));
        let rows = text.lines().filter(|line| line.starts_with(&begin));
        rows.filter_map(|row| row.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()).sum()
    }

    /// A field of INFO that is a number.
    pub fn info_number(&mut self, section: &str, field: &str) -> u64 {
        self.info(section, field).parse().unwrap()
    }

    /// User and system time so far of the server, or with `_main_thread` of that thread alone, in microseconds.
    pub fn cpu_us(&mut self, of: &str) -> f64 {
        let mut seconds = |kind: &str| self.info("cpu", &format!("used_cpu_{kind}{of}")).parse::<f64>().unwrap();
        (seconds("user") + seconds("sys")) * 1e6
    }

    /// What the server is, and its version: `redis` and `8.6.3`.
    pub fn version(&mut self) -> (&'static str, String) {
        let text: String = self.get(&["INFO", "server"]);
        // Valkey says which Redis it is like, too.
        let kinds = [("valkey", "valkey_version:"), ("redis", "redis_version:")];
        let version = |field| text.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned);
        kinds.into_iter().find_map(|(kind, field)| Some((kind, version(field)?))).unwrap()
    }

    /// LOCK.INFO of a key as a map; None when the key is free.
    pub fn lock_info(&mut self, key: &str) -> Option<LockInfo> {
        match self.call(&["LOCK.INFO", key]).unwrap() {
            Value::Nil => None,
            value => Some(LockInfo::from(value)),
        }
    }

    /// Waits until so many requests or places wait for this key.
    pub fn await_waiters(&mut self, key: &str, count: usize) {
        wait_for("waiters", || self.lock_info(key).map_or(0, |info| info.waiting) == count);
    }
}

/// An error as the server sent it: code, blank, text.
pub fn text_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}
