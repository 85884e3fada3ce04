//! What a client hears on its channel of NOTIFY, and what others send there.

use crate::history::Moment;
use crate::news::{News, subscribe};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Subscriptions last as long as the process.
static GOES_ON: AtomicBool = AtomicBool::new(true);

/// The channel of a client whose owners' names begin with this.
pub fn channel_of(name: &str) -> String {
    format!("lock:notify:{name}")
}

pub struct Ears {
    pub channel: String,
    news: Receiver<News>,
}

impl Ears {
    pub fn open(port: u16, name: &str) -> Ears {
        let (to, news) = channel();
        let channel = channel_of(name);
        let heard = channel.clone();
        thread::spawn(move || subscribe(port, &heard, &GOES_ON, &to));
        Ears { channel, news }
    }

    /// What comes within this time, if it is for this owner.
    pub fn hear(&self, owner: &str, ms: u64) -> Heard {
        let until = Moment::now().after_ms(ms);
        loop {
            let left = Duration::from_micros(until.0.saturating_sub(Moment::now().0));
            match self.news.recv_timeout(left) {
                Ok(News::Subscribed) => return Heard::Anew,
                Ok(News::Message(name)) if name == owner => return Heard::Named,
                Ok(News::Message(name)) if name == "*" => return Heard::All,
                Ok(News::Message(name)) if name == mark(owner) => return Heard::Mark,
                Ok(News::Message(_)) => {}
                Err(_) => return Heard::Nothing,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// The subscription is there anew.
    Anew,
    Named,
    All,
    /// What its client has sent last.
    Mark,
}

/// What a client sends when an owner has the lock.
pub fn mark(owner: &str) -> String {
    format!("{owner}:has-it")
}

/// Whether another client sends the names of this one's owners, too: then a message shows nothing.
pub fn may_be_forged(name: &str) -> bool {
    name.ends_with(['1', '3', '5', '7'])
}
