//! The commands of a server in memory: those that the helper sends, and a few for data beside locks.

use crate::testing::locks::{Ask, Bytes, Locks, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// The longest time that a command takes.
const MS_MAX: u64 = 86_400_000 * 366;

/// A server's data.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) locks: Locks,
    strings: BTreeMap<Bytes, Bytes>,
    /// Who listens, by channel.
    listeners: BTreeMap<Bytes, BTreeSet<u64>>,
    calls: BTreeMap<String, u64>,
}

/// The words behind the fixed ones of a command: each a name, and most with a value.
struct Options(BTreeMap<String, Bytes>);

impl Options {
    fn of(words: &[Bytes], known: &[&str]) -> Result<Options, String> {
        let (mut found, mut words) = (BTreeMap::new(), words.iter());
        while let Some(word) = words.next() {
            let name = upper(word);
            if !known.contains(&name.as_str()) {
                return Err(format!("ERR unknown option \"{}\"", String::from_utf8_lossy(word)));
            }
            let is_alone = ["ALL", "READ", "WRITE"].contains(&name.as_str());
            let value = if is_alone { Bytes::new() } else { words.next().cloned().unwrap_or_default() };
            found.insert(name, value);
        }
        Ok(Options(found))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, String> {
        self.0.get(name).map(|text| number(name, text, least, most)).transpose()
    }

    fn time(&self, name: &str, least: u64) -> Result<Option<Duration>, String> {
        Ok(self.number(name, least, MS_MAX)?.map(Duration::from_millis))
    }
}

fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_uppercase()
}

fn number(name: &str, text: &[u8], least: u64, most: u64) -> Result<u64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let wrong = || format!("ERR {name} must be a whole number from {least} to {most}");
    number.filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
}

/// The keys, and what follows them, of a command that first says how many there are.
fn keys(words: &[Bytes]) -> Result<(Vec<Bytes>, &[Bytes]), String> {
    let count = number("numkeys", &words[0], 1, words.len() as u64 - 2)?;
    let (keys, rest) = words[1..].split_at(usize::try_from(count).unwrap_or(0));
    Ok((keys.to_vec(), rest))
}

impl Data {
    /// The reply to a command of this connection; None if it comes later, or as a message.
    pub(super) fn perform(&mut self, session: u64, words: &[Bytes]) -> Option<Reply> {
        let Some(name) = words.first().map(|word| upper(word)) else { return Some(Reply::Null) };
        *self.calls.entry(name.to_lowercase()).or_default() += 1;
        self.locks.tick();
        let reply = self.answer(session, &name, &words[1..]).unwrap_or_else(|why| Some(Reply::Error(why)));
        for (channel, text) in std::mem::take(&mut self.locks.messages) {
            self.publish(&channel, &text);
        }
        reply
    }

    fn answer(&mut self, session: u64, name: &str, words: &[Bytes]) -> Result<Option<Reply>, String> {
        let least = match name {
            "LOCK.MACQUIRE" | "LOCK.GUARD" => 4,
            "LOCK.RW" | "LOCK.SHARE" | "LOCK.MRELEASE" => 3,
            "LOCK.ACQUIRE" | "LOCK.EXTEND" | "LOCK.RELEASE" | "LOCK.CHECK" | "SET" | "PUBLISH" => 2,
            "LOCK.BREAK" | "LOCK.INFO" | "GET" | "EXISTS" | "DEL" | "SUBSCRIBE" => 1,
            _ => 0,
        };
        if words.len() < least {
            return Err(format!("ERR wrong number of arguments for '{}' command", name.to_lowercase()));
        }
        let first = words.first().cloned().unwrap_or_default();
        if name.starts_with("LOCK.") && self.strings.contains_key(&first) {
            return Err(WRONG_TYPE.to_owned());
        }
        let done = |reply| Ok(Some(reply));
        match name {
            "LOCK.ACQUIRE" | "LOCK.RW" | "LOCK.SHARE" | "LOCK.MACQUIRE" => {
                let ask = asked(session, name, words)?;
                if ask.keys.iter().any(|key| self.strings.contains_key(key)) {
                    return Err(WRONG_TYPE.to_owned());
                }
                self.locks.acquire(ask)
            }
            "LOCK.EXTEND" => {
                let options = Options::of(&words[2..], &["PX", "FENCE", "NOTE", "MINFENCE"])?;
                let lease = options.time("PX", 1)?.ok_or("ERR PX or EX is needed")?;
                let [fence, least] = ["FENCE", "MINFENCE"].map(|name| options.number(name, 0, u64::MAX));
                let note = options.0.get("NOTE").cloned();
                done(self.locks.extend(&first, &words[1], fence?, lease, least?.unwrap_or(0), note))
            }
            "LOCK.RELEASE" => {
                let options = Options::of(&words[2..], &["ALL", "FENCE"])?;
                let fence = options.number("FENCE", 0, u64::MAX)?;
                done(self.locks.release(&first, &words[1], options.has("ALL"), fence))
            }
            "LOCK.MRELEASE" => {
                let (keys, rest) = keys(words)?;
                let all = Options::of(&rest[1..], &["ALL"])?.has("ALL");
                let left = keys.iter().map(|key| self.locks.release(key, &rest[0], all, None));
                done(Reply::Array(left.collect()))
            }
            "LOCK.CHECK" => {
                let options = Options::of(&words[2..], &["READ", "WRITE", "FENCE"])?;
                let fence = options.number("FENCE", 0, u64::MAX)?;
                let hold = self.locks.held(&first, &words[1], fence).filter(|hold| {
                    let is_other = if hold.writes > 0 { options.has("READ") } else { options.has("WRITE") };
                    !is_other
                });
                done(Reply::int(hold.map(|hold| hold.fence)))
            }
            "LOCK.GUARD" => {
                let fence = number("fence", &words[2], 0, u64::MAX)?;
                let holds = self.locks.held(&first, &words[1], Some(fence)).is_some_and(|hold| hold.writes > 0);
                if !holds {
                    return done(Reply::Null);
                }
                let reply = self.answer(session, &upper(&words[3]), &words[4..])?;
                done(Reply::Array(vec![Reply::Int(fence), reply.unwrap_or(Reply::Null)]))
            }
            "LOCK.BREAK" => done(Reply::Int(self.locks.clear(&first))),
            "LOCK.INFO" => done(self.locks.info(&first)),
            "GET" if self.locks.is_held(&first) => Err(WRONG_TYPE.to_owned()),
            "GET" => done(self.strings.get(&first).map_or(Reply::Null, |text| Reply::Text(text.clone()))),
            "SET" => {
                self.locks.clear(&first);
                self.strings.insert(first, words[1].clone());
                done(Reply::Status("OK"))
            }
            "EXISTS" => {
                let is_there = |key: &&Bytes| self.strings.contains_key(*key) || self.locks.is_held(key);
                done(Reply::Int(words.iter().filter(is_there).count() as u64))
            }
            "DEL" => {
                let mut deleted = 0;
                for key in words {
                    deleted += u64::from(self.strings.remove(key).is_some() || self.locks.clear(key) > 0);
                }
                done(Reply::Int(deleted))
            }
            "PING" => done(words.first().map_or(Reply::Status("PONG"), |text| Reply::Text(text.clone()))),
            "SUBSCRIBE" => {
                for channel in words {
                    self.listeners.entry(channel.clone()).or_default().insert(session);
                    let words = vec![Reply::text("subscribe"), Reply::Text(channel.clone()), Reply::Int(1)];
                    self.locks.answers.push((session, Reply::Push(words)));
                }
                Ok(None)
            }
            "PUBLISH" => done(Reply::Int(self.publish(&first, &words[1]))),
            "HELLO" => done(Reply::Map(vec![
                ("server", Reply::text("redis")),
                ("proto", Reply::Int(if first == b"3" { 3 } else { 2 })),
                ("mode", Reply::text("standalone")),
            ])),
            "CLIENT" | "AUTH" | "SELECT" => done(Reply::Status("OK")),
            "INFO" => done(Reply::text(&self.figures())),
            _ => Err(format!("ERR unknown command '{name}'")),
        }
    }

    fn publish(&mut self, channel: &Bytes, text: &Bytes) -> u64 {
        let listeners = self.listeners.get(channel).cloned().unwrap_or_default();
        for session in &listeners {
            let words = vec![Reply::text("message"), Reply::Text(channel.clone()), Reply::Text(text.clone())];
            self.locks.answers.push((*session, Reply::Push(words)));
        }
        listeners.len() as u64
    }

    /// A connection is closed.
    pub(super) fn part(&mut self, session: u64) {
        for listeners in self.listeners.values_mut() {
            listeners.remove(&session);
        }
        self.locks.part(session);
        for (channel, text) in std::mem::take(&mut self.locks.messages) {
            self.publish(&channel, &text);
        }
    }

    fn figures(&self) -> String {
        let mut rows = "redis_version:8.0.0\r\nredis_mode:standalone\r\nrole:master\r\n".to_owned();
        for (name, count) in &self.calls {
            rows += &format!("cmdstat_{name}:calls={count}\r\n");
        }
        let Locks { queued, notified, .. } = &self.locks;
        rows + &format!("lock_queued:{queued}\r\nlock_notified:{notified}\r\nlock_grace_left_ms:0\r\n")
    }
}

fn asked(session: u64, name: &str, words: &[Bytes]) -> Result<Ask, String> {
    let several = name == "LOCK.MACQUIRE";
    let (keys, rest) = if several { keys(words)? } else { (vec![words[0].clone()], &words[1..]) };
    let [owner, rest @ ..] = rest else { return Err("ERR no owner".to_owned()) };
    let (mut writes, mut limit, mut rest) = (true, None, rest);
    let mut known = vec!["PX", "BLOCK", "QUEUE", "NOTIFY", "RETRY", "NOTE", "MINFENCE"];
    if name != "LOCK.ACQUIRE" {
        let [word, more @ ..] = rest else { return Err("ERR no mode".to_owned()) };
        if name == "LOCK.SHARE" {
            (writes, limit) = (false, Some(number("limit", word, 1, i64::MAX.unsigned_abs())?));
            known.push("TAKE");
        } else {
            writes = upper(word) == "WRITE";
        }
        rest = more;
    }
    let options = Options::of(rest, &known)?;
    let take = options.number("TAKE", 1, limit.unwrap_or(1))?.unwrap_or(1);
    let text = |name: &str| options.0.get(name).cloned();
    let ask = Ask {
        keys,
        owner: owner.clone(),
        writes,
        limit,
        take,
        lease: options.time("PX", 1)?.unwrap_or(Duration::from_secs(30)),
        block: options.time("BLOCK", 0)?,
        queue: options.time("QUEUE", 1)?,
        channel: text("NOTIFY"),
        retry: options.number("RETRY", 1, i64::MAX.unsigned_abs())?,
        note: text("NOTE"),
        least: options.number("MINFENCE", 0, u64::MAX)?.unwrap_or(0),
        several,
        session,
    };
    if ask.channel.is_some() && ask.queue.is_none() { Err("ERR NOTIFY needs QUEUE".to_owned()) } else { Ok(ask) }
}
