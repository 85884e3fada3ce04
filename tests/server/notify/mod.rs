//! NOTIFY: the owner of a place is told by a message when it is worthwhile to ask again.

mod asking;
mod away;
mod cluster;
mod forged;
mod limits;
mod nodes;
mod rights;
mod tls;
mod told;

use crate::harness::connection::{Connection, Reply};
use testbed::{Client, Server};

/// The channel of most tests.
const CHANNEL: &str = "ch";

/// A subscriber of a channel, which hears what is sent there.
struct Subscriber {
    wire: Connection,
    conn: Client,
    publish: &'static str,
    channel: String,
}

impl Subscriber {
    /// Subscribes to a channel of a standalone server.
    fn of(server: &Server, channel: &str) -> Subscriber {
        Subscriber::by(server, channel, ["SUBSCRIBE", "PUBLISH"])
    }

    /// Subscribes to a channel of a shard.
    fn of_shard(server: &Server, channel: &str) -> Subscriber {
        Subscriber::by(server, channel, ["SSUBSCRIBE", "SPUBLISH"])
    }

    fn by(server: &Server, channel: &str, [subscribe, publish]: [&'static str; 2]) -> Subscriber {
        let mut wire = Connection::resp2(server);
        assert_eq!(wire.ask(&[subscribe, channel]).items()[2], Reply::Int(1));
        Subscriber { wire, conn: server.connect(), publish, channel: channel.to_owned() }
    }

    /// All messages since the last call.
    fn heard(&mut self) -> Vec<String> {
        self.conn.get::<i64>(&[self.publish, &self.channel, "- mark -"]);
        let mut heard = Vec::new();
        loop {
            match self.next() {
                mark if mark == "- mark -" => return heard,
                message => heard.push(message),
            }
        }
    }

    /// Waits for the next message.
    fn next(&mut self) -> String {
        let message = self.wire.read().items();
        assert_eq!(message[1].text(), self.channel);
        message[2].text()
    }
}
