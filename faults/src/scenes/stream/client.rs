//! A client that sends any command at random, and sees that each gets exactly one reply.

use super::records::limit_of;
use crate::wire::Wire;
use rand::rngs::StdRng;
use rand::{RngExt, seq::IndexedRandom};
use redis::{ErrorKind, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longer than any wait: without an answer by then a request is forgotten.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest lease, and the longest time of a place.
pub const LEASE_MS_MAX: u64 = 1_500;
const KEYS: [&str; 8] = ["k1", "k2", "k3", "k4", "k5", "s2-1", "s3-1", "s3-2"];
/// Only these are renamed, moved or swapped: shares would meet those of another limit.
const PLAIN: usize = 5;

#[derive(Debug, Default)]
pub struct Saw {
    /// How often each kind of request was answered how.
    pub figures: BTreeMap<String, u64>,
    pub fences: Vec<u64>,
    pub violations: Vec<String>,
}

pub struct Client {
    port: u16,
    dice: StdRng,
    saw: Saw,
    sent: u64,
}

impl Client {
    pub fn new(port: u16, dice: StdRng) -> Client {
        Client { port, dice, saw: Saw::default(), sent: 0 }
    }

    pub fn live(mut self, until: Instant) -> Saw {
        let mut wire = None;
        while Instant::now() < until {
            let Some(open) = wire.as_mut() else {
                wire = Wire::new(self.port, PATIENCE).ok();
                continue;
            };
            let commands = self.request();
            self.sent += 1;
            let mark = format!("mark {}", self.sent);
            let mut all = commands.clone();
            all.push(vec!["ECHO".to_owned(), mark.clone()]);
            if open.send(&all).is_err() {
                wire = None;
                continue;
            }
            if self.dice.random_ratio(1, 40) {
                // It does not wait for the answer.
                self.count("hung up");
                wire = None;
                continue;
            }
            match self.replies(open, commands.len(), &mark) {
                Ok(replies) => self.note(&commands, &replies),
                Err(None) => wire = None,
                Err(Some(what)) => {
                    self.saw.violations.push(format!("{commands:?}: {what}"));
                    wire = None;
                }
            }
        }
        self.saw
    }

    /// One reply for each command, and the mark behind them. None: the connection is lost.
    fn replies(&mut self, wire: &mut Wire, count: usize, mark: &str) -> Result<Vec<Value>, Option<String>> {
        let mut replies = Vec::new();
        let is_mark = |reply: &Value| matches!(reply, Value::BulkString(text) if text == mark.as_bytes());
        for _ in 0..=count {
            match wire.read() {
                Ok(reply) => replies.push(reply),
                Err(error) if error.is_timeout() => return Err(Some(format!("no reply behind {replies:?}"))),
                Err(error) if error.kind() == ErrorKind::Parse => return Err(Some(error.to_string())),
                Err(_) => {
                    self.count("closed by the server");
                    return Err(None);
                }
            }
        }
        match replies.pop() {
            Some(last) if is_mark(&last) && !replies.iter().any(is_mark) => Ok(replies),
            last => Err(Some(format!("not one reply each: {replies:?}, {last:?}"))),
        }
    }

    fn note(&mut self, commands: &[Vec<String>], replies: &[Value]) {
        for (command, reply) in commands.iter().zip(replies) {
            let kind = match reply {
                Value::ServerError(error) => error.code(),
                Value::Nil => "null",
                _ => "served",
            };
            self.count(&format!("{} {kind}", command[0]));
            if let ("LOCK.ACQUIRE" | "LOCK.RW" | "LOCK.SHARE" | "LOCK.MACQUIRE" | "LOCK.EXTEND", false) =
                (&*command[0], commands.len() > 1)
            {
                self.note_fences(reply);
            }
        }
        if commands[0][0] == "MULTI"
            && let Some(Value::Array(inner)) = replies.last()
            && inner.len() != commands.len() - 2
        {
            self.saw.violations.push(format!("EXEC answers {inner:?} to {commands:?}"));
        }
    }

    fn note_fences(&mut self, reply: &Value) {
        match reply {
            Value::Int(fence) => self.saw.fences.push(*fence as u64),
            Value::Array(all) => all.iter().for_each(|reply| self.note_fences(reply)),
            _ => {}
        }
    }

    fn count(&mut self, figure: &str) {
        *self.saw.figures.entry(figure.to_owned()).or_default() += 1;
    }

    /// A command, or a transaction of some.
    fn request(&mut self) -> Vec<Vec<String>> {
        if !self.dice.random_ratio(1, 12) {
            return vec![words(&self.command())];
        }
        let inner = (0..self.dice.random_range(1..4)).map(|_| self.command());
        let inner: Vec<String> = inner.filter(|command| !command.starts_with("CLIENT")).collect();
        let all = std::iter::once("MULTI".to_owned()).chain(inner).chain(["EXEC".to_owned()]);
        all.map(|command| words(&command)).collect()
    }

    fn command(&mut self) -> String {
        let dice = &mut self.dice;
        let key = *KEYS.choose(dice).expect("some");
        let [plain, other] = [0; 2].map(|_| *KEYS[..PLAIN].choose(dice).expect("some"));
        let owner = ["a", "b", "c", "d", "e", "f"].choose(dice).expect("some");
        let mode = if limit_of(key).is_none() && dice.random_ratio(1, 2) { "READ" } else { "WRITE" };
        let lease = dice.random_range(1..LEASE_MS_MAX);
        let some =
            |dice: &mut StdRng, part: u32, text: String| if dice.random_ratio(part, 10) { text } else { String::new() };
        let block = format!(" BLOCK {}", dice.random_range(1..400));
        let queue = format!(" QUEUE {}", dice.random_range(1..LEASE_MS_MAX));
        let session = format!(" SESSION {}", [0, 0, 50].choose(dice).expect("some"));
        let wait = [some(dice, 5, block), some(dice, 3, queue), some(dice, 2, session)].concat();
        let retry = some(dice, 2, " RETRY 1".to_owned());
        match dice.random_range(0..100) {
            0..14 => format!("LOCK.ACQUIRE {key} {owner} PX {lease}{wait}{retry}"),
            14..16 => format!("LOCK.ACQUIRE {key} * PX {lease}"),
            16..18 => format!("LOCK.ACQUIRE {key} {owner} PX {lease} NOTE text MINFENCE 1"),
            18..28 => format!("LOCK.RW {key} {owner} {mode} PX {lease}{wait}"),
            28..42 => {
                let key = *KEYS[PLAIN..].choose(dice).expect("some");
                let limit = limit_of(key).expect("says it");
                let take = dice.random_range(1..=limit);
                format!("LOCK.SHARE {key} {owner} {limit} TAKE {take} PX {lease}{wait}")
            }
            42..50 if plain != other => format!(
                "LOCK.MACQUIRE 2 {plain} {other} {owner} {} PX {lease}{wait}",
                ["READ", "WRITE"].choose(dice).expect("some")
            ),
            42..60 => format!("LOCK.RELEASE {key} {owner}{}", some(dice, 3, " ALL".to_owned())),
            60..64 if plain != other => format!("LOCK.MRELEASE 2 {plain} {other} {owner}"),
            60..68 => format!("LOCK.EXTEND {key} {owner} PX {lease}"),
            68..70 if plain != other => format!("LOCK.MEXTEND 2 {plain} {other} {owner} PX {lease}"),
            68..72 => format!("LOCK.CHECK {key} {owner}"),
            72..74 => format!("LOCK.INFO {key}"),
            74 => "LOCK.TOP".to_owned(),
            75 => "LOCK.LOG".to_owned(),
            76..78 => format!("LOCK.BREAK {key}{}", some(dice, 5, format!(" {owner}"))),
            78 => format!("LOCK.GUARD {key} {owner} 1 SET data x"),
            79 => format!("LOCK.HOLD {key} {owner} V1W1F5D1L1"),
            80..84 => format!(
                "EVAL return{{redis.pcall('LOCK.ACQUIRE',KEYS[1],'{owner}','PX','{lease}'),redis.pcall('LOCK.RELEASE',KEYS[1],'{owner}')}} 1 {key}"
            ),
            84..87 => format!("{} {key}", ["DEL", "UNLINK"].choose(dice).expect("some")),
            87..91 => format!("PEXPIRE {key} {}", dice.random_range(1..200)),
            91 => format!("PERSIST {key}"),
            92..94 => format!("RENAME {plain} {other}"),
            94 => format!("MOVE {plain} 1"),
            95 => format!("SET {plain} over PX 20"),
            96 => "SWAPDB 0 1".to_owned(),
            97 => ["FLUSHDB", "FLUSHALL"].choose(dice).expect("some").to_string(),
            98 => format!("SELECT {}", dice.random_range(0..2)),
            _ if dice.random_ratio(1, 50) => "CLIENT KILL TYPE normal SKIPME yes".to_owned(),
            _ => "PING".to_owned(),
        }
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}
