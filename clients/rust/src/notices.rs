//! Waits without a connection of their own, and the subscription that those at one server share: opened when the first
//! one begins, and closed when none has waited for a while. Its thread passes on what the server says, and sees each
//! second whether the connection for requests is there. What follows from that is decided in `turns`.

use crate::backoff::Backoff;
use crate::channel::redirection_to;
use crate::clock::{ANSWER, CONFIRM, IDLE, LOOK, Moment, PAUSE_MIN, REFUSED};
use crate::connection::no_answer;
use crate::error::Error;
use crate::lanes::{Lanes, OPEN_LIMIT};
use crate::owner::random_hex;
use crate::pool::Event;
use crate::servers::Servers;
use crate::slot::slot_of;
use crate::subscription::{Heard, Subscription};
use crate::sync::{Mailbox, lock, wait};
use crate::turns::Turns;
use redis::{ConnectionInfo, RedisError};
use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, Weak};

/// How each channel begins.
const HOME: &str = "lock:notify:";

/// Those of one client. Their threads end when it is dropped, or nobody has waited for long.
pub(crate) struct Notices {
    origin: Arc<Origin>,
    posts: Mutex<Posts>,
}

#[derive(Default)]
struct Posts {
    /// By the address of the server.
    by_address: HashMap<String, Arc<Post>>,
    /// In a process that was forked no thread is left.
    pid: u32,
}

/// What all of a client share.
struct Origin {
    servers: Arc<Servers>,
    lanes: Weak<Lanes>,
    /// Of the names of channels, behind what all have.
    prefix: Mutex<String>,
}

/// The waits at one server.
struct Post {
    origin: Arc<Origin>,
    desk: Mutex<Desk>,
    changed: Condvar,
}

struct Desk {
    turns: Turns,
    /// Where each wait hears that it may be its turn.
    events: HashMap<u64, Mailbox<Event>>,
    /// True while there is a thread.
    runs: bool,
}

/// A wait among those at its server, until this is dropped.
pub(crate) struct Seat {
    post: Arc<Post>,
    address: String,
    number: u64,
}

impl Notices {
    pub(crate) fn new(servers: Arc<Servers>, lanes: &Arc<Lanes>) -> Notices {
        let origin = Origin { servers, lanes: Arc::downgrade(lanes), prefix: Mutex::default() };
        Notices { origin: Arc::new(origin), posts: Mutex::default() }
    }

    pub(crate) fn name_channels(&self, prefix: &str) {
        prefix.clone_into(&mut lock(&self.origin.prefix));
    }

    /// Lets a wait for a key of this slot hear when it may be its turn.
    pub(crate) fn seat(&self, slot: u16, owner: &str, events: Mailbox<Event>) -> Seat {
        let address = self.origin.servers.lane(slot);
        let post = {
            let mut posts = lock(&self.posts);
            if posts.pid != std::process::id() {
                *posts = Posts { pid: std::process::id(), ..Posts::default() };
            }
            posts.by_address.entry(address.clone()).or_insert_with(|| Post::new(&self.origin)).clone()
        };
        let number = post.enter(slot, owner, events);
        Seat { post, address, number }
    }
}

impl Seat {
    /// Whether the wait is where requests about its key go.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        self.address == address
    }

    /// Does something to the turns, this one having that number.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Turns, u64) -> T) -> T {
        self.post.with(|turns| change(turns, self.number))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut desk = lock(&self.post.desk);
        desk.turns.leave(self.number);
        desk.events.remove(&self.number);
    }
}

impl Post {
    fn new(origin: &Arc<Origin>) -> Arc<Post> {
        let desk = Desk { turns: Turns::new(), events: HashMap::new(), runs: false };
        Arc::new(Post { origin: origin.clone(), desk: Mutex::new(desk), changed: Condvar::new() })
    }

    fn enter(self: &Arc<Self>, slot: u16, owner: &str, events: Mailbox<Event>) -> u64 {
        let mut desk = lock(&self.desk);
        let number = desk.turns.enter(owner, slot, Moment::now());
        desk.events.insert(number, events);
        if !desk.runs {
            let post = self.clone();
            let thread = std::thread::Builder::new().name("redis-lock-listener".to_owned());
            match thread.spawn(move || post.run()) {
                Ok(_) => desk.runs = true,
                Err(error) => {
                    desk.turns.refused(&Error::Connection(RedisError::from(error)), Moment::now());
                }
            }
        }
        number
    }

    /// Does something to the turns, and wakes those that are due sooner for it.
    fn with<T>(&self, change: impl FnOnce(&mut Turns) -> T) -> T {
        let mut desk = lock(&self.desk);
        let done = change(&mut desk.turns);
        for number in desk.turns.take_woken() {
            if let Some(events) = desk.events.get(&number) {
                events.send(Event::Woken);
            }
        }
        self.changed.notify_all();
        done
    }

    fn run(self: &Arc<Self>) {
        let _end = End(self);
        let mut backoff = Backoff::default();
        while let Some(slot) = self.next() {
            let Some(mut subscription) = self.subscribe(slot, &mut backoff) else { continue };
            let began = Moment::now();
            self.serve(&mut subscription, &mut backoff);
            drop(subscription);
            if began.elapsed() < LOOK {
                std::thread::sleep(PAUSE_MIN);
            }
        }
    }

    /// Waits until there is to be a subscription. The slot of a key for which somebody waits; None when the thread
    /// shall end.
    fn next(&self) -> Option<u16> {
        let mut desk = lock(&self.desk);
        loop {
            match desk.turns.slot() {
                Some(slot) if self.origin.lanes.strong_count() > 0 => {
                    if desk.turns.wants_channel(Moment::now()) {
                        desk.turns.begins();
                        return Some(slot);
                    }
                }
                _ => {
                    desk.runs = false;
                    return None;
                }
            }
            desk = wait(&self.changed, desk, LOOK);
        }
    }

    /// Asks for a subscription where the requests about this slot go. The connection for those is there first.
    fn subscribe(self: &Arc<Self>, slot: u16, backoff: &mut Backoff) -> Option<Subscription> {
        let origin = &self.origin;
        let (sender, looked) = channel();
        self.look(slot, sender);
        if let Ok(Err(_)) = looked.recv_timeout(OPEN_LIMIT + ANSWER) {
            // The waits tell of that: they cannot ask either.
            let now = Moment::now();
            let again = now + backoff.pause();
            self.with(|turns| turns.missing(again, now));
            return None;
        }
        let deadline = Moment::now() + OPEN_LIMIT;
        let prefix = lock(&origin.prefix).clone();
        let name = |in_cluster: bool| name(&prefix, in_cluster.then_some(slot));
        let server = origin.servers.locate(slot, deadline).map_err(Error::from);
        let asked = server.and_then(|server| Subscription::ask(&server, name, deadline));
        asked.inspect_err(|error| self.failed(error, backoff)).ok()
    }

    /// Sees whether the connection for requests is there, and opens it if not.
    fn look(self: &Arc<Self>, slot: u16, done: Sender<Result<(), Error>>) {
        let Some(lanes) = self.origin.lanes.upgrade() else { return };
        let post = self.clone();
        lanes.look(slot, move |looked| {
            let connection = looked.as_ref().ok().copied().flatten();
            post.with(|turns| turns.asks_over(connection, Moment::now()));
            // It may have taken too long for whoever waits for it, or nobody does.
            drop(done.send(looked.map(drop).map_err(Error::from)));
        });
    }

    /// Passes on what comes, until there is to be another subscription, or none.
    fn serve(self: &Arc<Self>, subscription: &mut Subscription, backoff: &mut Backoff) {
        let began = Moment::now();
        let (mut used, mut looks_at, mut is_confirmed) = (began, began + LOOK, false);
        loop {
            let heard = match subscription.read(if is_confirmed { LOOK } else { CONFIRM }) {
                Ok(heard) => heard,
                Err(_) if is_confirmed => return self.with(Turns::lost),
                Err(error) if backoff.is_new() && self.is_elsewhere(subscription.server(), &error) => {
                    // The next time it waits.
                    let _ = backoff.pause();
                    return self.with(Turns::moved);
                }
                Err(error) => return self.failed(&error, backoff),
            };
            let now = Moment::now();
            for heard in heard {
                match heard {
                    Heard::Message(text) => self.with(|turns| turns.heard(&text, now)),
                    Heard::Ended => return self.with(Turns::lost),
                    Heard::Confirmed(channel) => {
                        is_confirmed = true;
                        backoff.reset();
                        self.with(|turns| turns.opened(channel, now));
                    }
                }
            }
            if !is_confirmed {
                if began + REFUSED <= now {
                    return;
                }
                // It may still come.
                let why = Error::Connection(no_answer("the server to a subscription", CONFIRM));
                self.with(|turns| turns.refused(&why, now));
            }
            let (slot, is_stale) = self.with(|turns| (turns.slot(), turns.is_stale()));
            if slot.is_some() {
                used = now;
            }
            if is_stale || used + IDLE <= now || self.origin.lanes.strong_count() == 0 {
                return self.with(|turns| {
                    if !is_stale {
                        turns.lost()
                    }
                });
            }
            if let Some(slot) = slot.filter(|_| looks_at <= now) {
                looks_at = now + LOOK;
                self.look(slot, channel().0);
            }
        }
    }

    /// Whether a server named another one, which is remembered.
    fn is_elsewhere(&self, server: &ConnectionInfo, error: &Error) -> bool {
        let Error::Server(error) = error else { return false };
        let to = redirection_to(error.code().unwrap_or_default(), error.detail().unwrap_or_default());
        to.is_some_and(|to| to.for_good && self.origin.servers.redirected(server, &to).is_some())
    }

    /// There is no subscription. What passes at once need not be told.
    fn failed(&self, why: &Error, backoff: &mut Backoff) {
        let (is_first, now) = (backoff.is_new(), Moment::now());
        let again = now + backoff.pause();
        self.with(
            |turns| if is_first && why.is_transient() { turns.missing(again, now) } else { turns.refused(why, now) },
        );
    }
}

/// Lets the waits go on by themselves if their thread panics.
struct End<'a>(&'a Post);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.desk).runs = false;
            let now = Moment::now();
            self.0.with(|turns| turns.missing(now, now));
        }
    }
}

/// A name for a channel that nobody else has. In a cluster it lies in this slot.
fn name(prefix: &str, slot: Option<u16>) -> Result<String, Error> {
    let tag = slot
        .and_then(|slot| (0..u32::MAX).map(|number| format!("{number:x}")).find(|tag| slot_of(tag.as_bytes()) == slot));
    let tag = tag.map(|tag| format!("{{{tag}}}:")).unwrap_or_default();
    let name = format!("{HOME}{prefix}{tag}{}", random_hex());
    if slot.is_some_and(|slot| slot_of(name.as_bytes()) != slot) {
        return Err(Error::Refused(format!("the prefix \"{prefix}\" of channels has braces")));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_names_of_their_own_and_lie_where_they_are_to() {
        let names = [name("app:", None), name("app:", None)].map(|name| name.expect("a name"));
        assert!(names[0] != names[1] && names.iter().all(|name| name.starts_with("lock:notify:app:")));
        for slot in [0, 5061, 16383] {
            let name = name("app:", Some(slot)).expect("a name");
            assert!(name.starts_with("lock:notify:app:{") && slot_of(name.as_bytes()) == slot, "{name}");
        }
        assert!(matches!(name("{app}:", Some(7)), Err(Error::Refused(_))));
    }
}
