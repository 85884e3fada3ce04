//! What the tests of leases share: leases with the moments between which they must end, and a subscriber to
//! `lock.lapse`.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Client, PATIENCE, Server};

/// Keeps tests that measure time or load the machine from running beside each other. The others run beside them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed has nothing in here to spoil.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running lease, on this process's monotonic clock. The server read its own somewhere between the request and the
/// reply, so the deadline is known up to that.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) key: String,
    pub(crate) fence: i64,
    pub(crate) earliest: Instant,
    pub(crate) latest: Instant,
}

/// Sends a command that starts or moves a lease with `PX ms`, and must be granted.
pub(crate) fn lease(conn: &mut Client, command: &str) -> Lease {
    let args: Vec<&str> = command.split(' ').collect();
    let px = args.iter().position(|arg| *arg == "PX").expect("says PX");
    let length = Duration::from_millis(args[px + 1].parse().unwrap());
    let before = Instant::now();
    let fence = conn.int(&args).unwrap_or_else(|| panic!("refused: {command}"));
    let after = Instant::now();
    Lease { key: args[1].to_owned(), fence, earliest: before + length, latest: after + length }
}

impl Lease {
    /// The same lease, on a key of another name.
    pub(crate) fn on(&self, key: &str) -> Lease {
        Lease { key: key.to_owned(), ..self.clone() }
    }

    /// The same lease, after a trip over the wall clock, on which a moment is known to the millisecond. Between the
    /// readings of that and of the monotonic clock a process may have to wait for its turn, on a busy machine for long.
    pub(crate) fn over_the_wall_clock(&self) -> Lease {
        const INEXACT: Duration = Duration::from_millis(500);
        Lease { earliest: self.earliest - INEXACT, latest: self.latest + INEXACT, ..self.clone() }
    }
}

/// Sleeps until a moment at which something must not have happened.
pub(crate) fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// A `lock.lapse` event, and when it arrived.
#[derive(Debug)]
pub(crate) struct Lapse {
    pub(crate) db: u32,
    pub(crate) key: String,
    pub(crate) at: Instant,
}

/// The `lock.lapse` events of all databases of a server, in order.
///
/// How late they come says nothing: the machine may be busy. What a test sees is the order in which the server ends
/// leases, and that none ends before its time. Leases that end after minutes are for those that must not be waited for.
pub(crate) struct Lapses {
    events: Receiver<Lapse>,
    /// Came while the test waited for another, with its place in the order.
    others: Vec<(usize, Lapse)>,
    /// The leases that have ended as expected, with their places.
    ended: Vec<(usize, Lease)>,
    count: usize,
}

impl Lapses {
    /// Listens to a server of its own. That, and a connection to it.
    pub(crate) fn alone() -> (Server, Lapses, Client) {
        let (server, conn) = Server::connected();
        let lapses = Lapses::of(&server);
        (server, lapses, conn)
    }

    /// Listens from now on.
    pub(crate) fn of(server: &Server) -> Lapses {
        let mut conn = server.connect();
        conn.ok(&["CONFIG", "SET", "notify-keyspace-events", "Ed"]);
        let (tell, events) = channel();
        let (ready, listening) = channel();
        // Ends with the server, or with the test.
        thread::spawn(move || {
            let mut pubsub = conn.0.as_pubsub();
            pubsub.psubscribe("__keyevent@*__:lock.lapse").unwrap();
            ready.send(()).unwrap();
            while let Ok(message) = pubsub.get_message() {
                let at = Instant::now();
                let channel = message.get_channel_name();
                let db = channel.trim_start_matches("__keyevent@").split('_').next().unwrap().parse().unwrap();
                let key = String::from_utf8(message.get_payload_bytes().to_vec()).unwrap();
                if tell.send(Lapse { db, key, at }).is_err() {
                    return;
                }
            }
        });
        listening.recv_timeout(PATIENCE).expect("subscribed");
        Lapses { events, others: Vec::new(), ended: Vec::new(), count: 0 }
    }

    /// The next event.
    pub(crate) fn next(&mut self) -> Lapse {
        assert!(self.others.is_empty(), "lapsed too: {:?}", self.others);
        self.receive().1
    }

    fn receive(&mut self) -> (usize, Lapse) {
        let lapse = self.events.recv_timeout(PATIENCE);
        self.count += 1;
        (self.count, lapse.unwrap_or_else(|_| panic!("waited in vain for a lapse; besides: {:?}", self.others)))
    }

    /// This lease ends, not before its time, and in the right order with those that were expected before. Returns when.
    pub(crate) fn expect(&mut self, db: u32, lease: &Lease) -> Instant {
        let is_it = |lapse: &Lapse| lapse.db == db && lapse.key == lease.key;
        let seen = self.others.iter().position(|(_, lapse)| is_it(lapse));
        let (place, lapse) = match seen {
            Some(at) => self.others.remove(at),
            None => loop {
                let next = self.receive();
                if is_it(&next.1) {
                    break next;
                }
                self.others.push(next);
            },
        };
        let early = lease.earliest.saturating_duration_since(lapse.at);
        assert!(early.is_zero(), "{} lapsed {early:?} early", lease.key);
        for (before, ended) in &self.ended {
            let (first, second) = if *before < place { (ended, lease) } else { (lease, ended) };
            // Leases may have begun later than they were asked for, so that only some pairs have an order.
            let in_order = first.earliest <= second.latest;
            assert!(in_order, "{} of fence {} lapsed before fence {}", first.key, first.fence, second.fence);
        }
        self.ended.push((place, lease.clone()));
        lapse.at
    }

    /// Nothing else has lapsed until now.
    pub(crate) fn expect_no_more(&mut self, conn: &mut Client) {
        // The server sends events in order: whatever came before this one would be received before it.
        let marker = lease(conn, "LOCK.ACQUIRE no-more-lapses owner PX 1");
        let lapse = self.next();
        assert_eq!(lapse.key, marker.key, "lapsed too");
    }
}
