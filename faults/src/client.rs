//! Clients in processes of their own: the crate redis-lock-client, and what `redis-lock run` starts. Their lines are
//! those of faults/agents/agent.py.

use crate::agents::{Task, boot_us};
use redis_lock_client::redis::{self, RedisConnectionInfo};
use redis_lock_client::{Client, Error, Guard, Lock, Moment, Quorum};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The first argument of this program when it is a client with the crate itself.
pub const RUST: &str = "client-of-soak";
/// The same over several servers.
pub const QUORUM: &str = "client-of-quorum";
/// The same where it starts `redis-lock run` over and over.
pub const PROGRAM: &str = "starter-of-soak";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    client: String,
    name: String,
    user: String,
    password: String,
    sentinels: Vec<u16>,
    /// Of several servers.
    urls: Vec<String>,
    program: String,
    /// How many waits have a connection each.
    blocking: usize,
}

impl Config {
    fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|port| format!("rediss://127.0.0.1:{port}")).collect()
    }
}

/// Does as it is told until it is told to end.
fn follow(mut once: impl FnMut(u64, &Task)) {
    for number in 1.. {
        say(&json!({"event": "next"}));
        let task: Task = serde_json::from_str(&told()).unwrap_or_default();
        match task.what.as_str() {
            "take" => once(number, &task),
            "rest" => thread::sleep(Duration::from_millis(200)),
            _ => return,
        }
    }
}

pub fn rust(words: &[String]) {
    let config: Config = serde_json::from_str(&words[0]).expect("ours");
    let settings = RedisConnectionInfo::default().set_username(&config.user).set_password(&config.password);
    let client = Client::sentinel(config.urls(), &config.name, settings).expect("they are URLs");
    let client = client.max_blocking(config.blocking);
    follow(|number, task| take(&config, number, task, &locked(&client, task).note(config.client.as_str())));
}

/// The same over several servers.
pub fn quorum(words: &[String]) {
    let config: Config = serde_json::from_str(&words[0]).expect("ours");
    let quorum = Quorum::open(config.urls.clone()).expect("they are URLs");
    follow(|number, task| {
        let lock = quorum.key(&task.keys[0]).lease(Duration::from_millis(task.lease_ms));
        take(&config, number, task, &lock);
    });
}

fn take(config: &Config, number: u64, task: &Task, lock: &Lock) {
    let asked = boot_us();
    match lock.try_lock_for(Duration::from_millis(task.wait_ms)) {
        Ok(Some(guard)) => hold(config, number, task, guard, asked),
        Ok(None) => say(&json!({"event": "failed", "why": "in use"})),
        Err(error) => {
            say(&json!({"event": "failed", "why": kind(&error)}));
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn locked(client: &Client, task: &Task) -> Lock {
    let lock = match task.keys.as_slice() {
        [key] => client.key(key),
        keys => client.keys(keys),
    };
    let lock = match task.mode.as_str() {
        "read" => lock.shared(),
        "share" => lock.limit(task.limit).take(task.take),
        _ => lock,
    };
    lock.lease(Duration::from_millis(task.lease_ms))
}

fn hold(config: &Config, number: u64, task: &Task, guard: Guard, asked: u64) {
    let (at, until) = (boot_us(), us(guard.valid_until()));
    let (owner, fences) = (guard.owner().to_string(), guard.fences());
    say(&json!({"event": "held", "hold": number, "owner": owner, "fences": fences, "asked": asked, "at": at,
        "until": until}));
    let (ends, mut parent) = (at + task.hold_ms * 1_000, None);
    for step in 1.. {
        let asked = boot_us();
        if asked >= ends {
            break;
        }
        if is_lost(number, &guard) {
            say(&json!({"event": "lost", "hold": number, "at": asked}));
            break;
        }
        let (until, at) = (us(guard.valid_until()), boot_us());
        thread::sleep(Duration::from_millis(task.work_ms));
        if task.guarded {
            let name = format!("{}.{number}.{step}", config.client);
            if let Err(error) = update(number, task, &guard, &name, &mut parent) {
                say(&json!({"event": "trouble", "why": kind(&error)}));
                break;
            }
        }
        say(&json!({"event": "write", "hold": number, "asked": asked, "at": at, "until": until}));
        if told() != "yes" {
            break;
        }
    }
    is_lost(number, &guard);
    say(&json!({"event": "releasing", "hold": number, "at": boot_us()}));
    match guard.release() {
        Ok(()) => say(&json!({"event": "released", "hold": number, "ok": true})),
        Err(Error::Lost) => say(&json!({"event": "released", "hold": number, "ok": false})),
        Err(error) => say(&json!({"event": "trouble", "why": kind(&error)})),
    }
}

/// Whether it is lost, as the library says, which may not say no once validity is over.
fn is_lost(number: u64, guard: &Guard) -> bool {
    let at = boot_us();
    let is_lost = guard.is_lost();
    // Each renewal moves it on, so it was no later when the library looked.
    let until = us(guard.valid_until());
    if !is_lost && at > until {
        say(&json!({"event": "believes", "hold": number, "at": at, "until": until}));
    }
    is_lost
}

/// Appends to the data beside the lock what was computed from the last entry.
fn update(number: u64, task: &Task, guard: &Guard, name: &str, parent: &mut Option<String>) -> Result<(), Error> {
    let data = format!("data:{}", task.keys[0]);
    let before = match parent.take() {
        Some(parent) => parent,
        None => {
            let last: Option<String> = guard.guard(redis::cmd("LINDEX").arg(&data).arg(-1))?;
            last.and_then(|last| Some(last.split(':').next()?.to_owned())).unwrap_or_else(|| "-".to_owned())
        }
    };
    say(&json!({"event": "guarding", "hold": number, "name": name}));
    let entry = format!("{name}:{before}:{}", guard.fence());
    guard.guard::<u64>(redis::cmd("RPUSH").arg(&data).arg(entry))?;
    say(&json!({"event": "guarded"}));
    *parent = Some(name.to_owned());
    Ok(())
}

/// A client that starts `redis-lock run` over and over, as cron does.
pub fn starter(words: &[String]) {
    let config: Config = serde_json::from_str(&words[0]).expect("ours");
    follow(|number, task| {
        let mut command = Command::new(&config.program);
        command.env("REDIS_LOCK_URL", urls_of(&config)).args(["run", "-q", "--sentinel", &config.name]);
        command.args(["-t", &format!("{}ms", task.lease_ms), "-k", "1500ms", "-w", &format!("{}ms", task.wait_ms)]);
        match task.mode.as_str() {
            "read" => drop(command.arg("-s")),
            "share" => drop(command.args(["-N", &task.limit.to_string(), "--take", &task.take.to_string()])),
            _ => {}
        }
        let own = std::env::current_exe().expect("runs");
        command.arg(&task.keys[0]).arg("--").arg(own).arg(INSIDE);
        command.args([number, boot_us(), task.hold_ms, task.work_ms].map(|number| number.to_string()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("redis-lock is built");
        // What the command says goes through here, so that nobody else reads the answers to it.
        let (from, mut to) = (child.stdout.take().expect("piped"), child.stdin.take().expect("piped"));
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let expects = line.contains(r#""event":"write""#);
            println!("{line}");
            if expects {
                // It may have been ended meanwhile.
                let _: std::io::Result<()> = writeln!(to, "{}", told());
            }
        }
        let code = child.wait().expect("a child").code();
        if code != Some(0) {
            thread::sleep(Duration::from_millis(100));
        }
        say(&json!({"event": "exit", "code": code}));
    });
}

fn urls_of(config: &Config) -> String {
    let with_user = |url: &String| url.replace("rediss://", &format!("rediss://{}@", config.user));
    config.urls().iter().map(with_user).collect::<Vec<_>>().join(",")
}

/// The first argument of the command that `redis-lock run` runs.
pub const INSIDE: &str = "inside-of-soak";

/// That command. It is ended when the lock is lost.
pub fn inside(words: &[String]) {
    let [number, asked, hold_ms, work_ms] = [0, 1, 2, 3].map(|at| words[at].parse::<u64>().expect("ours"));
    let of = |name: &str| std::env::var(name).expect("redis-lock sets it");
    let fence: u64 = of("REDIS_LOCK_FENCE").parse().expect("a number");
    let start = boot_us();
    say(&json!({"event": "held", "hold": number, "owner": of("REDIS_LOCK_OWNER"), "fences": [fence], "asked": asked,
        "at": start, "until": start}));
    while boot_us() < start + hold_ms * 1_000 {
        thread::sleep(Duration::from_millis(work_ms));
        let now = boot_us();
        say(&json!({"event": "write", "hold": number, "asked": now, "at": now, "until": now}));
        if told() != "yes" {
            break;
        }
    }
    say(&json!({"event": "releasing", "hold": number, "at": boot_us()}));
}

/// In one write, so that one that is killed says all or nothing.
fn say(what: &Value) {
    let line = format!("{what}\n");
    let mut out = std::io::stdout().lock();
    // The soak may have ended.
    let _: std::io::Result<()> = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The next line; empty at the end.
fn told() -> String {
    let mut line = String::new();
    let _: std::io::Result<usize> = std::io::stdin().lock().read_line(&mut line);
    line.trim_end().to_owned()
}

fn us(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_micros()).expect("the machine is younger")
}

fn kind(error: &Error) -> String {
    match error {
        Error::Deadlock(_) => "deadlock".to_owned(),
        Error::Lost => "lost".to_owned(),
        Error::Server(error) => error.code().unwrap_or("error").to_owned(),
        // Without numbers of ports.
        Error::Connection(error) => {
            error.to_string().split(' ').filter(|word| !word.contains(':')).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}
