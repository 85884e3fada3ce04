//! The locks as the stream of a replica tells of them, and what must be true of each record. Nothing is known here of
//! the requests.

use std::collections::{BTreeSet, HashMap};

/// A hold, as its last record says.
#[derive(Clone, Debug)]
struct Hold {
    reads: u64,
    writes: u64,
    fence: u64,
}

#[derive(Debug, Default)]
pub struct Records {
    db: u32,
    locks: HashMap<(u32, String), HashMap<String, Hold>>,
    /// To whom each fence was given.
    given: HashMap<u64, String>,
    highest: u64,
    /// Commands of a transaction that is not over yet.
    is_unit_open: bool,
    /// Keys that were changed in it.
    touched: Vec<(u32, String)>,
    /// How many records there were, and how many of these ended a hold.
    pub seen: u64,
    /// The same, of ends.
    pub ends: u64,
    pub violations: Vec<String>,
}

/// How many shares of a key are requested at most: its name says so, as `s3-1`. None for other keys.
pub fn limit_of(key: &str) -> Option<u64> {
    key.strip_prefix('s')?.split('-').next()?.parse().ok()
}

impl Records {
    /// The next command of the stream.
    pub fn read(&mut self, command: &[String]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = words[0].to_uppercase();
        match (&*name, &words[1..]) {
            ("MULTI", _) => self.is_unit_open = true,
            ("EXEC", _) => self.is_unit_open = false,
            ("SELECT", [db]) => self.db = db.parse().expect("a number"),
            ("LOCK.HOLD", rest) => self.hold(rest),
            ("DEL" | "UNLINK", keys) => keys.iter().for_each(|key| self.remove(key)),
            ("SET", [key, ..]) => self.remove(key),
            ("RENAME", [from, to]) => {
                let there = self.locks.remove(&(self.db, (*from).to_owned()));
                self.put(self.db, to, there);
            }
            ("MOVE", [key, db]) => {
                let there = self.locks.remove(&(self.db, (*key).to_owned()));
                self.put(db.parse().expect("a number"), key, there);
            }
            ("SWAPDB", [one, other]) => {
                let [one, other] = [one, other].map(|db| db.parse::<u32>().expect("a number"));
                let swapped = |db| {
                    if db == one {
                        other
                    } else if db == other {
                        one
                    } else {
                        db
                    }
                };
                let locks = std::mem::take(&mut self.locks);
                self.locks = locks.into_iter().map(|((db, key), lock)| ((swapped(db), key), lock)).collect();
            }
            ("FLUSHDB", _) => self.locks.retain(|(db, _), _| *db != self.db),
            ("FLUSHALL", _) => self.locks.clear(),
            ("PEXPIREAT" | "PERSIST" | "PING" | "REPLCONF" | "PUBLISH", _) => {}
            _ => self.violations.push(format!("an unknown command in the stream: {words:?}")),
        }
        if !self.is_unit_open {
            for at in BTreeSet::from_iter(std::mem::take(&mut self.touched)) {
                self.check(&at);
            }
        }
    }

    pub fn held(&self) -> impl Iterator<Item = &(u32, String)> {
        self.locks.keys()
    }

    /// Whether a fence was given to some owner.
    pub fn was_given(&self, fence: u64) -> bool {
        self.given.contains_key(&fence)
    }

    fn remove(&mut self, key: &str) {
        self.locks.remove(&(self.db, key.to_owned()));
    }

    fn put(&mut self, db: u32, key: &str, there: Option<HashMap<String, Hold>>) {
        match there {
            Some(lock) => drop(self.locks.insert((db, key.to_owned()), lock)),
            // Something else than a lock.
            None => drop(self.locks.remove(&(db, key.to_owned()))),
        }
    }

    /// LOCK.HOLD: a key, an owner unless a writer's hold ends, a state, and perhaps a note.
    fn hold(&mut self, words: &[&str]) {
        self.seen += 1;
        let state_at = if words.len() > 2 { 2 } else { 1 };
        let owner = (state_at == 2).then(|| words[1]);
        let (key, state) = (words[0], words[state_at]);
        let [reads, writes, fence] = ["R", "W", "F"].map(|letter| number_behind(state, letter));
        let Some(fence) = fence else {
            return self.violations.push(format!("a record without a fence: {words:?}"));
        };
        let at = (self.db, key.to_owned());
        self.touched.push(at.clone());
        let lock = self.locks.entry(at.clone()).or_default();
        let [reads, writes] = [reads, writes].map(Option::unwrap_or_default);
        if reads + writes == 0 {
            self.ends += 1;
            let is_it = |(holder, hold): &(&String, &Hold)| {
                hold.fence == fence && owner.map_or(hold.writes > 0, |owner| owner == *holder)
            };
            let ended = lock.iter().find(is_it).map(|(holder, _)| holder.clone());
            match ended {
                Some(holder) => drop(lock.remove(&holder)),
                None => self.violations.push(format!("an end of no hold: {words:?}, there is {lock:?}")),
            }
            if lock.is_empty() {
                self.locks.remove(&at);
            }
            return;
        }
        let Some(owner) = owner else {
            return self.violations.push(format!("a hold without an owner: {words:?}"));
        };
        match self.given.get(&fence) {
            // Its own, or one that it had before a grant that was rolled back.
            Some(holder) if holder == owner => {}
            Some(holder) => self.violations.push(format!("the fence of {holder} is given again: {words:?}")),
            None if fence <= self.highest => {
                self.violations.push(format!("a fence that is not above {}: {words:?}", self.highest));
            }
            None => {}
        }
        self.given.insert(fence, owner.to_owned());
        self.highest = self.highest.max(fence);
        lock.insert(owner.to_owned(), Hold { reads, writes, fence });
    }

    /// What must be true of a lock between two units.
    fn check(&mut self, at: &(u32, String)) {
        let Some(lock) = self.locks.get(at) else { return };
        if lock.len() > 1 && lock.values().any(|hold| hold.writes > 0) {
            self.violations.push(format!("a writer beside others on {at:?}: {lock:?}"));
        }
        let reads: u64 = lock.values().map(|hold| hold.reads).sum();
        if limit_of(&at.1).is_some_and(|limit| reads > limit) {
            self.violations.push(format!("{reads} shares of {at:?}: {lock:?}"));
        }
        let mut fences: Vec<u64> = lock.values().map(|hold| hold.fence).collect();
        fences.sort_unstable();
        if fences.windows(2).any(|two| two[0] == two[1]) {
            self.violations.push(format!("two holds with one fence on {at:?}: {lock:?}"));
        }
    }
}

/// The number behind a letter of a state, as `V1R2F12`.
fn number_behind(state: &str, letter: &str) -> Option<u64> {
    let rest = state.strip_prefix("V1")?.split_once(letter)?.1;
    rest.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()
}
