//! A client in Rust, in a process of its own: the crate `redis-lock-client`. Its lines are those of
//! faults/agents/agent.py.

use redis_lock_client::{Error, Guard, Moment, Quorum};
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, Stdin};
use std::thread;
use std::time::Duration;

#[derive(Deserialize)]
struct Config {
    urls: Vec<String>,
    key: String,
    lease_ms: u64,
    wait_ms: u64,
}

/// Takes the lock as it is told, until it is told to end.
pub fn agent(words: &[String]) {
    let config: Config = serde_json::from_str(&words[0]).expect("ours");
    let quorum = Quorum::open(config.urls).expect("they are URLs");
    let lock = quorum.key(config.key).lease(Duration::from_millis(config.lease_ms));
    let wait = Duration::from_millis(config.wait_ms);
    let stdin = std::io::stdin();
    for number in 1.. {
        println!("{}", json!({"event": "next"}));
        let words = told(&stdin);
        let [word, hold_ms, work_ms] = words.as_slice() else { return };
        assert_eq!(word, "go");
        let millis = |word: &str| Duration::from_millis(word.parse().expect("a number"));
        match lock.try_lock_for(wait) {
            Ok(Some(guard)) => hold(number, guard, millis(hold_ms), millis(work_ms), &stdin),
            Ok(None) => println!("{}", json!({"event": "failed", "why": "in use"})),
            Err(error) => println!("{}", json!({"event": "failed", "why": kind(&error)})),
        }
    }
}

fn hold(number: u64, guard: Guard, time: Duration, work: Duration, stdin: &Stdin) {
    let start = Moment::now();
    let (fence, until) = (guard.fence(), guard.valid_until());
    println!("{}", json!({"event": "held", "hold": number, "fence": fence, "at": us(start), "until": us(until)}));
    let mut until = until;
    while Moment::now() < start + time {
        let checked = Moment::now();
        if guard.is_lost() {
            println!("{}", json!({"event": "lost", "hold": number, "at": us(checked)}));
            break;
        }
        until = guard.valid_until();
        thread::sleep(work);
        println!("{}", json!({"event": "write", "hold": number, "until": us(until)}));
        if told(stdin) != ["yes"] {
            break;
        }
    }
    let now = us(Moment::now());
    println!("{}", json!({"event": "releasing", "hold": number, "at": now, "until": us(until)}));
    println!("{}", json!({"event": "released", "ok": guard.release().is_ok()}));
}

/// The words of the next line; none at the end.
fn told(stdin: &Stdin) -> Vec<String> {
    let mut line = String::new();
    stdin.lock().read_line(&mut line).expect("a pipe");
    line.split_whitespace().map(str::to_owned).collect()
}

fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split(|character: char| !character.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned()
}

fn us(moment: Moment) -> u64 {
    moment.since_boot().as_micros() as u64
}
