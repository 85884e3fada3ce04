//! All that is sent to a server without waiting there: renewals, releases, requests that are asked again and again. For
//! each server one connection and one thread, so that one that hangs does not delay the others. What is due together
//! goes out in one write. The connection is there before the first lock is taken, and no request waits on it.

use crate::channel::{Channel, Failure, Parting};
use crate::clock::{IDLE, LOOK, Moment};
use crate::errand::Errand;
use crate::error::Error;
use crate::hold::Hold;
use crate::renew::Renewal;
use crate::servers::Servers;
use crate::sync::{Caller, Mailbox, lock, wait};
use redis::{Cmd, RedisError, Value};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How many locks or requests go out in one write.
const BATCH: usize = 1024;

/// How long it may take to open the connection.
pub(crate) const OPEN_LIMIT: Duration = Duration::from_secs(2);

/// Those of one client. Their threads end when it is dropped and nothing is left to do.
pub(crate) struct Lanes(Arc<Inner>);

struct Inner {
    servers: Arc<Servers>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By the address of the server. Each has a thread.
    by_address: HashMap<String, Lane>,
    /// The number of the next lane, or of the next item.
    next: u64,
    /// In a process that was forked no thread is left.
    pid: u32,
    is_closed: bool,
}

struct Lane {
    number: u64,
    /// By the time when it is due, and by its number.
    items: BTreeMap<(Moment, u64), Item>,
    /// Where the renewal of a hold stands among them, by the hold's address.
    renewals: HashMap<usize, (Moment, u64)>,
    /// How long the renewal of the shortest lease may take. What is sent with it must not make it miss its turn.
    pace: Option<Duration>,
    /// When the thread looks again by itself.
    looks_at: Moment,
    /// When there was something to do.
    used: Moment,
    /// The number of its connection.
    connection: Option<u64>,
}

/// Something to be sent.
pub(crate) enum Item {
    Renewal(Renewal),
    Errand(Errand),
}

impl Lanes {
    pub(crate) fn new(servers: Arc<Servers>) -> Lanes {
        Lanes(Arc::new(Inner { servers, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Sees that there is a connection for renewals of this slot's locks. True if there is one; else it is being
    /// opened within this time, and what came of that is told.
    pub(crate) fn prepare(
        &self,
        slot: u16,
        limit: Duration,
        tell: impl FnOnce(Result<(), Failure>) + Send + 'static,
    ) -> bool {
        let address = self.0.servers.lane(slot);
        if let Some(lane) = self.0.state().by_address.get_mut(&address).filter(|lane| lane.connection.is_some()) {
            lane.used = Moment::now();
            return true;
        }
        let opened = move |replies: Result<Vec<Value>, Failure>, _| tell(replies.map(drop));
        self.send(Errand::once(slot, Vec::new(), limit.min(OPEN_LIMIT), opened));
        false
    }

    /// The address of the server that requests about this slot go to, as far as it is known.
    pub(crate) fn address(&self, slot: u16) -> String {
        self.0.servers.lane(slot)
    }

    /// Sees whether the server has closed the connection for this slot, and then opens another one. Tells its number.
    pub(crate) fn look(&self, slot: u16, tell: impl FnOnce(Result<Option<u64>, Failure>) + Send + 'static) {
        let lanes = Arc::downgrade(&self.0);
        let connection = move || lanes.upgrade().and_then(|lanes| lanes.connection(slot));
        self.send(Errand::once(slot, Vec::new(), OPEN_LIMIT, move |opened, _| tell(opened.map(|_| connection()))));
    }

    /// The number of the connection for this slot; None if there is none, as far as is known.
    pub(crate) fn connection(&self, slot: u16) -> Option<u64> {
        self.0.connection(slot)
    }

    /// Renews a hold from now on, until it is over. Fails if there can be no thread.
    pub(crate) fn add(&self, hold: &Arc<Hold>, sent: Moment) -> io::Result<()> {
        let renewal = Renewal::new(hold.clone(), sent);
        let due = renewal.due();
        let slot = hold.terms.slot();
        if self.0.put(Item::Renewal(renewal), due)? {
            // Connected to now, and not when the renewal is due.
            self.prepare(slot, OPEN_LIMIT, |_| {});
        }
        Ok(())
    }

    /// Renews it no more.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        for lane in self.0.state().by_address.values_mut() {
            if let Some(place) = lane.renewals.remove(&address_of(hold)) {
                lane.items.remove(&place);
                lane.used = Moment::now();
            }
        }
    }

    /// Sends requests from now on.
    pub(crate) fn send(&self, errand: Errand) {
        // Without a thread it has been told.
        drop(self.0.put(Item::Errand(errand), Moment::now()));
    }

    /// The replies to requests, which may be done twice. An error reply is one of them. They count as unread until
    /// the server has answered each that it may have got.
    pub(crate) async fn ask(
        &self,
        caller: Caller,
        slot: u16,
        requests: Vec<Cmd>,
        limit: Duration,
        unread: &Arc<AtomicUsize>,
    ) -> Result<Vec<Value>, Failure> {
        let replies = Mailbox::new();
        let (told, unread) = (replies.clone(), unread.clone());
        unread.fetch_add(1, Ordering::Relaxed);
        let errand = Errand::once(slot, requests, limit, move |replies, attempts| {
            if attempts.unanswered == 0 {
                unread.fetch_sub(1, Ordering::Relaxed);
            }
            told.send(replies);
        });
        self.send(errand.until(Moment::now() + limit));
        // What was sent before it may take as long.
        replies.next(caller, Some(limit * 2)).await.unwrap_or_else(|| Err(self.silence(slot, limit)))
    }

    /// That the server did not answer in time.
    pub(crate) fn silence(&self, slot: u16, limit: Duration) -> Failure {
        Failure::silent(&self.0.servers.lane(slot), limit)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if state.pid != std::process::id() {
            *state = State { pid: std::process::id(), next: state.next, ..State::default() };
        }
        state
    }

    fn connection(&self, slot: u16) -> Option<u64> {
        let address = self.servers.lane(slot);
        self.state().by_address.get(&address).and_then(|lane| lane.connection)
    }

    /// Notes what connection a lane has.
    fn has(&self, address: &str, number: u64, connection: Option<u64>) {
        if let Some(lane) = self.state().by_address.get_mut(address).filter(|lane| lane.number == number) {
            lane.connection = connection;
        }
    }

    /// Lets an item be sent at this time. Tells whether the lane is a new one. Fails if there can be no thread.
    fn put(self: &Arc<Self>, item: Item, due: Moment) -> io::Result<bool> {
        let address = self.servers.lane(item.slot());
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let is_new = !state.by_address.contains_key(&address);
        if is_new {
            let (lanes, of_thread) = (self.clone(), address.clone());
            let thread = std::thread::Builder::new().name("redis-lock-renewer".to_owned());
            // It finds its lane, since the mutex is locked until then.
            if let Err(error) = thread.spawn(move || lanes.run(&of_thread, number)) {
                drop(state);
                if let Item::Errand(errand) = item {
                    let why = RedisError::from(io::Error::from(error.kind()));
                    errand.fail(Failure { error: Error::Connection(why), sent: false });
                }
                return Err(error);
            }
        }
        let lane = state.by_address.entry(address).or_insert_with(|| Lane::new(number));
        if due < lane.looks_at {
            self.changed.notify_all();
        }
        lane.put(item, (due, number));
        Ok(is_new)
    }

    fn run(self: &Arc<Self>, address: &str, number: u64) {
        let _end = End { lanes: self, address, number };
        let mut channel = Channel::new(&self.servers);
        while let Some((mut due, pace)) = self.next(address, number) {
            while !due.is_empty() {
                let later = due.split_off(due.len().min(BATCH));
                let note = |connection| self.has(address, number, connection);
                self.converse(&mut channel, std::mem::replace(&mut due, later), pace, note);
            }
        }
    }

    /// What is to be sent now, and how long it may take. None when the thread shall end.
    fn next(&self, address: &str, number: u64) -> Option<(Vec<Item>, Option<Duration>)> {
        let mut state = self.state();
        loop {
            let is_closed = state.is_closed;
            let lane = state.by_address.get_mut(address).filter(|lane| lane.number == number)?;
            let now = Moment::now();
            let look_at = match lane.items.first_key_value() {
                Some(((first, _), _)) if *first <= now => return Some(lane.take_due(now)),
                Some(((first, _), _)) => (*first).min(now + LOOK),
                None if is_closed || lane.used + IDLE <= now => {
                    state.by_address.remove(address);
                    return None;
                }
                None => lane.used + IDLE,
            };
            lane.looks_at = look_at;
            state = wait(&self.changed, state, look_at.since(now));
        }
    }

    /// Sends items in one write, notes which connection there is then, and lets each hear what came of it.
    fn converse(
        self: &Arc<Self>,
        channel: &mut Channel,
        mut items: Vec<Item>,
        pace: Option<Duration>,
        note: impl FnOnce(Option<u64>),
    ) {
        items.retain(|item| !item.is_over());
        let Some(slot) = items.first().map(Item::slot) else { return };
        let limit = items.iter().filter_map(Item::limit).chain(pace).min().unwrap_or(OPEN_LIMIT);
        let requests: Vec<Vec<Cmd>> = items.iter().map(Item::requests).collect();
        channel.part_with(items.iter().filter_map(Item::parting).collect());
        let all = requests.concat();
        if all.is_empty() {
            channel.look();
        }
        let opened = channel.open(slot, Moment::now() + if all.is_empty() { limit } else { OPEN_LIMIT.min(limit * 2) });
        let sent = Moment::now();
        let replies = match opened {
            Ok(()) if all.is_empty() => Ok(Vec::new()),
            Ok(()) => channel.exchange(slot, &all, sent + limit),
            // None of them was.
            Err(failure) => Err(Failure { sent: false, ..failure }),
        };
        note(channel.number());
        let mut replies = replies.map(Vec::into_iter);
        for (item, requests) in items.into_iter().zip(&requests) {
            let own = match &mut replies {
                Ok(replies) => Ok(replies.by_ref().take(requests.len()).collect::<Vec<_>>()),
                Err(failure) => Err(failure.clone()),
            };
            let own = match own {
                Ok(own) if item.follows() && own.iter().any(is_redirection) => {
                    self.ask_elsewhere(item.slot(), requests, limit)
                }
                own => own,
            };
            // It may have been released meanwhile.
            if let Some((item, due)) = item.settle(own, sent).filter(|(item, _)| !item.is_over()) {
                // Its slot may have moved to another server.
                drop(self.put(item, due));
            }
        }
    }

    /// The slot is on its way to another server, or has arrived there.
    fn ask_elsewhere(&self, slot: u16, requests: &[Cmd], limit: Duration) -> Result<Vec<Value>, Failure> {
        let mut channel = Channel::new(&self.servers);
        let deadline = Moment::now() + limit;
        requests.iter().map(|request| channel.ask(slot, request, deadline)).collect()
    }
}

/// Takes the lane away when its thread ends, for whatever reason: the next lock gets a new one.
struct End<'a> {
    lanes: &'a Inner,
    address: &'a str,
    number: u64,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.lanes.state();
        if state.by_address.get(self.address).is_some_and(|lane| lane.number == self.number) {
            state.by_address.remove(self.address);
        }
    }
}

impl Lane {
    fn new(number: u64) -> Lane {
        let now = Moment::now();
        let (items, renewals) = (BTreeMap::new(), HashMap::new());
        Lane { number, items, renewals, pace: None, looks_at: now, used: now, connection: None }
    }

    fn put(&mut self, item: Item, place: (Moment, u64)) {
        if let Item::Renewal(renewal) = &item {
            self.renewals.insert(address_of(renewal.hold()), place);
            self.pace = Some(self.pace.map_or(renewal.limit(), |pace| pace.min(renewal.limit())));
        }
        self.items.insert(place, item);
        self.used = Moment::now();
    }

    fn take_due(&mut self, now: Moment) -> (Vec<Item>, Option<Duration>) {
        let limits = self.items.values().filter_map(|item| match item {
            Item::Renewal(renewal) => Some(renewal.limit()),
            Item::Errand(_) => None,
        });
        self.pace = limits.min();
        let later = self.items.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut self.items, later).into_values();
        let due: Vec<Item> = due
            .inspect(|item| {
                if let Item::Renewal(renewal) = item {
                    self.renewals.remove(&address_of(renewal.hold()));
                }
            })
            .collect();
        (due, self.pace)
    }
}

impl Item {
    fn slot(&self) -> u16 {
        match self {
            Item::Renewal(renewal) => renewal.hold().terms.slot(),
            Item::Errand(errand) => errand.slot,
        }
    }

    fn requests(&self) -> Vec<Cmd> {
        match self {
            Item::Renewal(renewal) => renewal.requests(),
            Item::Errand(errand) => errand.requests(),
        }
    }

    fn limit(&self) -> Option<Duration> {
        match self {
            Item::Renewal(renewal) => Some(renewal.limit()),
            Item::Errand(errand) => Some(errand.limit),
        }
    }

    fn follows(&self) -> bool {
        !matches!(self, Item::Errand(Errand { follows: false, .. }))
    }

    fn parting(&self) -> Option<Parting> {
        match self {
            Item::Renewal(_) => None,
            Item::Errand(errand) => errand.parting.clone(),
        }
    }

    /// Whether it is not to be sent any more. One whose validity has ended is not extended, whatever the server would
    /// say.
    fn is_over(&self) -> bool {
        matches!(self, Item::Renewal(renewal) if renewal.hold().is_over())
    }

    fn settle(self, replies: Result<Vec<Value>, Failure>, sent: Moment) -> Option<(Item, Moment)> {
        match self {
            Item::Renewal(renewal) => renewal.settle(replies, sent).map(|(next, due)| (Item::Renewal(next), due)),
            Item::Errand(errand) => errand.settle(replies).map(|(next, due)| (Item::Errand(next), due)),
        }
    }
}

/// It is kept by its item, so no other has this address.
fn address_of(hold: &Arc<Hold>) -> usize {
    Arc::as_ptr(hold) as usize
}

fn is_redirection(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if ["MOVED", "ASK", "TRYAGAIN"].contains(&error.code()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_request_whose_connection_ends_before_it_is_not_sent() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let url = format!("redis://127.0.0.1:{port}").parse().expect("a URL");
        let lanes = Lanes::new(Arc::new(Servers::nodes(vec![url])));
        let (sender, received) = channel();
        lanes.send(Errand::once(0, vec![redis::cmd("PING")], Duration::from_secs(1), move |replies, _| {
            let _: Result<(), _> = sender.send(replies.is_err_and(|failure| !failure.sent));
        }));
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn a_lane_whose_thread_ends_for_whatever_reason_makes_room_for_the_next() {
        let nobody = "redis://127.0.0.1:1".parse().expect("a URL");
        let lanes = Lanes::new(Arc::new(Servers::nodes(vec![nobody])));
        let limit = Duration::from_secs(1);
        lanes.send(Errand::once(0, Vec::new(), limit, |_, _| panic!("what nobody has thought of")));
        let deadline = Moment::now() + Duration::from_secs(60);
        while !lanes.0.state().by_address.is_empty() {
            assert!(!deadline.is_past(), "its thread has ended, and it is there");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (sender, received) = channel();
        lanes.send(Errand::once(0, Vec::new(), limit, move |replies, _| {
            let _: Result<(), _> = sender.send(replies.is_err());
        }));
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(true), "nobody listens there");
    }
}
