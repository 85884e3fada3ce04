//! Stories: what happens in a world, and what must come of it, in sentences. `r writes j. m waits to write jk. 20 ms.
//! k: -/m.` is: r comes to hold j, m waits for j and k, time passes, and m alone waits for k, which nobody holds.
//!
//! A request ends with what is answered to it, unless that is what its verb promises: `a asks to write l: Deadlock`.

use crate::words::Answer;
use crate::world::{LONG, Named, Op, World, acquire, release};
use lock_core::model::hold::Mode;
use lock_core::model::request::{Amount, Wait};
use lock_core::model::time::Millis;

impl World {
    /// Plays a story. What a failed test has printed ends with the sentence that is wrong.
    #[track_caller]
    pub fn play(&mut self, story: &str) {
        for sentence in story.split('.').map(str::trim).filter(|sentence| !sentence.is_empty()) {
            println!("{sentence}.");
            let (told, expected) = match sentence.split_once(": ") {
                Some((told, expected)) => (told, Some(expected)),
                None => (sentence, None),
            };
            self.play_words(&told.split(' ').collect::<Vec<_>>(), expected);
        }
    }

    #[track_caller]
    fn play_words(&mut self, words: &[&str], expected: Option<&str>) {
        match *words {
            // The holders of a key, and its waiters in their order; `-` for none.
            [key] if expected.is_some() => {
                let (holders, waiters) = self.at(byte(key));
                assert_eq!(Some(&*format!("{}/{}", shown(holders), shown(waiters))), expected, "{key}");
            }
            [owner, "has", count, "of", key] => assert_eq!(self.reads(byte(owner), byte(key)), number(count) as u32),
            [key, "is", "offered", "to", owners] => assert_eq!(shown(self.offered(byte(key))), owners),
            [ms, "ms"] => self.pass(number(ms)),
            // Nothing is done about it before the next thing happens.
            [ms, "ms", "unnoticed"] => self.then(&Op::Late { us: number(ms) * 1000 }),
            ["swap"] => self.then(&Op::Swap),
            ["dismissal"] => self.then(&Op::Dismiss),
            ["grace", "of", ms, "ms"] => self.then(&Op::Grace { ms: number(ms) }),
            [count, "wait"] => assert_eq!(self.naive.waiters.len(), number(count) as usize),
            ["client", client, "closes", "unnoticed"] => {
                self.then(&Op::Close { client: number(client) as u8, late: true });
            }
            ["client", client, "closes"] => self.then(&Op::Close { client: number(client) as u8, late: false }),
            ["grant", nth, "is", "lost"] => self.then(&Op::Lose { nth: number(nth) as usize }),
            ["grant", nth, "is", "delivered"] => self.then(&Op::Deliver { nth: number(nth) as usize }),
            ["waiter", nth, "is", "cancelled"] => self.then(&Op::Cancel { nth: number(nth) as usize }),
            [from, "becomes", to] => self.then(&Op::Rename { from: byte(from), to: byte(to) }),
            [key, "moves"] => self.then(&Op::Move { key: byte(key) }),
            [key, "is", "deleted"] => self.then(&Op::Delete { key: byte(key) }),
            [key, "is", "reloaded"] => self.then(&Op::Reload { key: byte(key) }),
            [key, "expires", "in", ms, "ms"] => self.then(&Op::Expire { key: byte(key), ms: Some(number(ms)) }),
            [key, "expires", "never"] => self.then(&Op::Expire { key: byte(key), ms: None }),
            [key, "is", "broken"] => self.then(&Op::Break { key: byte(key), owner: None }),
            [key, "of", owner, "is", "broken"] => self.then(&Op::Break { key: byte(key), owner: Some(byte(owner)) }),
            [owner, "leaves", keys] => self.release_some(owner, keys, Amount::All, expected),
            [owner, "gives", "back", "one", key] => self.release_some(owner, key, Amount::One, expected),
            [owner, "keeps", count, key] => {
                self.release_some(owner, key, Amount::To(number(count) as u32), expected);
            }
            [owner, "extends", keys, ref by @ ..] => {
                let (keys, owner, fence) = (keys.as_bytes().to_vec(), byte(owner), Named::None);
                let session = by.last().map(|by| bound(by));
                self.then(&Op::Extend { keys, owner, lease: LONG, fence, session, note: None });
            }
            [owner, verb @ ("reads" | "writes" | "takes"), ref what @ ..] => {
                // Shares are taken at once, or not at all.
                let wait = if verb == "takes" { Wait::Never } else { Wait::Forever };
                self.request(byte(owner), verb.trim_end_matches('s'), wait, what, expected.unwrap_or("Granted"));
            }
            [owner, verb, "to", deed, ref what @ ..] => {
                let (wait, usual) = match verb {
                    "waits" => (Wait::Forever, Some("Queued")),
                    "asks" => (Wait::Forever, None),
                    "tries" => (Wait::Never, Some("Granted")),
                    "polls" => (Wait::Never, Some("Placed")),
                    other => panic!("no verb: {other}"),
                };
                let expected = expected.or(usual).expect("a request that is asked has an answer");
                self.request(byte(owner), deed, wait, what, expected);
            }
            _ => panic!("no sentence: {words:?}"),
        }
    }

    /// An owner gives back what it holds of keys, or some of it. How much of a single key is left, if that is told.
    #[track_caller]
    fn release_some(&mut self, owner: &str, keys: &str, amount: Amount, left: Option<&str>) {
        self.then(&release(byte(owner), keys.as_bytes(), amount));
        if let Some(left) = left {
            let left = (left != "nil").then(|| number(left));
            assert_eq!(self.last, Some(Answer::Released(vec![left])));
        }
    }

    /// An owner asks to read or write keys, or to take `2/3` of one: two of at most three shares.
    #[track_caller]
    fn request(&mut self, owner: u8, deed: &str, wait: Wait, what: &[&str], expected: &str) {
        let (share, what) = match (deed, what) {
            ("take", [share, what @ ..]) => {
                let (take, limit) = share.split_once('/').expect("so many of so many");
                (Some((number(limit) as u32, number(take) as u32)), what)
            }
            _ => (None, what),
        };
        let mode = if deed == "write" { Mode::Write } else { Mode::Read };
        let mut op = acquire(owner, mode, what[0].as_bytes()).wait(wait).share(share);
        let mut options = &what[1..];
        while !options.is_empty() {
            (op, options) = match *options {
                ["in", db, ref rest @ ..] => (op.db(number(db) as u32), rest),
                ["for", ms, "ms", ref rest @ ..] => (op.lease(number(ms)), rest),
                ["within", ms, "ms", ref rest @ ..] => (op.wait(Wait::For(Millis(number(ms)))), rest),
                // How long its place outlives the request.
                ["keeping", ms, "ms", ref rest @ ..] => (op.queue(Some(number(ms))), rest),
                // RETRY.
                ["again", ref rest @ ..] => (op.retry(Some(1)), rest),
                ["until", count, ref rest @ ..] => (op.retry(Some(number(count) as u32)), rest),
                ["by", client, ref rest @ ..] => (op.session(Some(bound(client))), rest),
                _ => panic!("no option: {options:?}"),
            };
        }
        let answer = format!("{:?}", self.is_told(&op));
        assert_eq!(answer.split('(').next(), Some(expected), "{op:?}");
    }
}

/// Owners; `-` for none.
fn shown(owners: Vec<u8>) -> String {
    if owners.is_empty() { "-".to_owned() } else { String::from_utf8(owners).unwrap() }
}

fn byte(word: &str) -> u8 {
    assert_eq!(word.len(), 1, "the name of an owner or a key: {word}");
    word.as_bytes()[0]
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("no number: {word}"))
}

/// A client, and by how many milliseconds what it holds outlives its connection: `0+10`.
fn bound(word: &str) -> (u8, u64) {
    let (client, grace) = word.split_once('+').unwrap_or((word, "0"));
    (number(client) as u8, number(grace))
}
