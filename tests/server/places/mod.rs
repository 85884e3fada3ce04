//! Places in the wait queue that outlive their connections (QUEUE), and offers: grants that lie there for their owner.
//! What the core alone decides of them is in tests/model.

mod asking;
pub(crate) mod away;
mod clients;
mod keys;
mod leaving;
mod limits;
mod many;
mod nodes;
mod offers;
mod options;
mod seen;
mod undelivered;

use crate::harness::connection::{Connection, Reply};
use crate::harness::scene::Scene;
use testbed::{Client, Server};

/// A server on which a place lasts as long as QUEUE when its connection closes.
fn patient_server() -> Server {
    Server::setup().lock_option("away-ms", "0").start()
}

impl Scene<'_> {
    /// Plays one row.
    #[track_caller]
    fn row(&mut self, command: &'static str, reply: &'static str) {
        self.stage.play(&[(command, reply)]);
    }

    /// Which owners hold a key or are offered it, and which wait, in order: `a holds; b c`, `a is offered; b`.
    fn on(&mut self, key: &str) -> String {
        let info = self.stage.ask(&["LOCK.INFO", key, "COUNT", "1000"]);
        if info == Reply::Null {
            return "free".to_owned();
        }
        let holders = info.field("holders").items().into_iter().map(|holder| {
            let what = if holder.field("offered") == Reply::Int(1) { "is offered" } else { "holds" };
            format!("{} {what}", holder.field("owner").text())
        });
        let waiters = info.field("waiters").items().into_iter().map(|waiter| waiter.field("owner").text());
        let shown = [holders.collect::<Vec<_>>().join(" "), waiters.collect::<Vec<_>>().join(" ")];
        shown.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    #[track_caller]
    fn expect(&mut self, key: &str, expected: &str) {
        assert_eq!(self.on(key), expected, "{key}");
    }

    /// The counters of INFO that places change: places, parked clients, offers.
    #[track_caller]
    fn expect_numbers(&mut self, places: u64, waiters: u64, offered: u64) {
        let fields = ["lock_places", "lock_waiters", "lock_offered"];
        let seen = fields.map(|field| self.conn.info_number("lock", field));
        assert_eq!(seen, [places, waiters, offered], "{fields:?}");
    }

    fn number(&mut self, field: &str) -> u64 {
        self.conn.info_number("lock", field)
    }
}

/// Events of locks in database 0, in order, each as `acquire k`.
pub(crate) struct Events {
    wire: Connection,
    conn: Client,
}

impl Events {
    /// Listens from now on.
    pub(crate) fn of(server: &Server) -> Events {
        let mut conn = server.connect();
        conn.ok(&["CONFIG", "SET", "notify-keyspace-events", "Ed"]);
        let mut wire = Connection::resp2(server);
        wire.say("PSUBSCRIBE __keyevent@0__:lock.*");
        Events { wire, conn }
    }

    /// All since the last call.
    pub(crate) fn since(&mut self) -> Vec<String> {
        self.conn.get::<i64>(&["PUBLISH", "__keyevent@0__:lock.mark", ""]);
        let mut events = Vec::new();
        loop {
            let message = self.wire.read().items();
            let event = message[2].text().replace("__keyevent@0__:lock.", "");
            if event == "mark" {
                return events;
            }
            events.push(format!("{event} {}", message[3].text()));
        }
    }
}
