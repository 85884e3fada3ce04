//! Messages prove nothing: they are forged, doubled and lost here, and no lock is wrong.

use super::CHANNEL;
use crate::harness::connection::{Connection, Reply};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Client, Server};

const OWNERS: usize = 8;
const LOCKS_EACH: usize = 25;

/// What an owner that waits for a message does at most: then it asks by itself.
const POLL: Duration = Duration::from_millis(100);

/// Who is inside now, and the fences in the order in which their owners were inside.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    fences: Mutex<Vec<i64>>,
}

/// Takes the lock so often, each time as a new owner: asks, waits for its name or `*`, asks again.
fn take(server: &Server, number: usize, inside: &Inside) {
    let mut wire = Connection::resp2(server);
    let mut ear = Ear::new(server);
    for round in 0..LOCKS_EACH {
        let owner = format!("o{number}-{round}");
        let fence = loop {
            let ask = ["LOCK.ACQUIRE", "k", &owner, "PX", "60000", "QUEUE", "30000", "NOTIFY", CHANNEL];
            match wire.ask(&ask) {
                Reply::Int(fence) => break fence,
                reply => assert_eq!(reply, Reply::Null),
            }
            ear.wait_for(server, &owner);
        };
        assert_eq!(inside.now.fetch_add(1, Ordering::SeqCst), 0, "two owners hold the lock");
        inside.fences.lock().unwrap().push(fence);
        inside.now.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(wire.ask(&["LOCK.RELEASE", "k", &owner]), Reply::Int(0));
    }
}

/// A subscription, which others kill.
struct Ear(Option<Connection>);

impl Ear {
    fn new(server: &Server) -> Ear {
        let mut wire = Connection::try_resp2(server);
        if let Some(wire) = &mut wire {
            wire.say(&format!("SUBSCRIBE {CHANNEL}"));
        }
        Ear(wire)
    }

    /// Waits until it hears this name or `*`, has lost its subscription, or has waited long enough.
    fn wait_for(&mut self, server: &Server, owner: &str) {
        let deadline = Instant::now() + POLL;
        while let Some(wire) = &mut self.0
            && Instant::now() < deadline
        {
            if !wire.has_reply() {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            match wire.read() {
                Reply::Array(message) if [owner, "*"].contains(&&*message[2].text()) => return,
                Reply::Array(_) => {}
                _ => {
                    *self = Ear::new(server);
                    return;
                }
            }
        }
        if self.0.is_none() {
            *self = Ear::new(server);
        }
    }
}

#[test]
fn no_lock_is_wrong_while_messages_are_forged_and_subscriptions_are_killed() {
    let server = Server::new();
    let (inside, over) = (Inside::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let owners: Vec<_> = (0..OWNERS)
            .map(|number| {
                scope.spawn({
                    let (server, inside) = (&server, &inside);
                    move || take(server, number, inside)
                })
            })
            .collect();
        let mischief = |work: fn(&mut Client, usize)| {
            let (server, over) = (&server, &over);
            move || {
                let mut conn = server.connect();
                for n in 0.. {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    work(&mut conn, n);
                    thread::sleep(Duration::from_millis(5));
                }
            }
        };
        scope.spawn(mischief(|conn, n| {
            let name = if n % 10 == 0 { "*".to_owned() } else { format!("o{}-{}", n % OWNERS, n % LOCKS_EACH) };
            conn.get::<i64>(&["PUBLISH", CHANNEL, &name]);
        }));
        scope.spawn(mischief(|conn, n| {
            if n % 10 == 0 {
                conn.get::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
        }));
        let ended: Vec<bool> = owners.into_iter().map(|owner| owner.join().is_ok()).collect();
        over.store(true, Ordering::SeqCst);
        assert_eq!(ended, [true; OWNERS]);
    });
    let fences = inside.fences.lock().unwrap();
    assert_eq!(fences.len(), OWNERS * LOCKS_EACH);
    assert!(fences.is_sorted(), "the fences tell another order");
}
