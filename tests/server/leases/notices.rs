//! What a lease says to those who are interested: its holder's note, and notices of its loss by CLIENT TRACKING.

use crate::harness::connection::{Connection, Reply};
use testbed::Server;

fn invalidation(key: &str) -> Reply {
    Reply::Push(vec![Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk(key)])])
}

/// The ways to track the key `k`.
const TRACKING: [&str; 4] = [
    "CLIENT TRACKING ON",
    "CLIENT TRACKING ON NOLOOP",
    "CLIENT TRACKING ON OPTIN",
    "CLIENT TRACKING ON BCAST PREFIX k",
];

/// A holder that hears of changes to its lock, by this way of tracking.
struct Holder {
    conn: Connection,
    how: &'static str,
}

impl Holder {
    fn new(server: &Server, how: &'static str) -> Holder {
        let mut conn = Connection::resp3(server);
        assert_eq!(conn.say(how), Reply::simple("OK"));
        Holder { conn, how }
    }

    /// Reads its hold, and hears of the next change from now on. None if it holds nothing any more.
    fn track(&mut self) -> Option<Reply> {
        if self.how.ends_with("OPTIN") {
            assert_eq!(self.conn.say("CLIENT CACHING YES"), Reply::simple("OK"));
        }
        Some(self.conn.say("LOCK.INFO k OWNER a")).filter(|info| *info != Reply::Null)
    }

    /// Takes the lock over another connection, and tracks it before the lease is over.
    fn hold(&mut self, other: &mut Connection, options: &str) {
        let leases: &[u32] = if options.is_empty() { &[30, 300, 3_000, 30_000] } else { &[600_000] };
        for lease_ms in leases {
            assert!(other.say(&format!("LOCK.ACQUIRE k a PX {lease_ms}{options}")).int() > 0);
            if self.how.contains("BCAST") {
                assert_eq!(self.conn.read(), invalidation("k"), "of the grant");
                return;
            }
            // The machine may be too slow for such a lease.
            if self.track().is_some() {
                return;
            }
        }
        panic!("no lease is long enough");
    }
}

#[test]
fn a_holder_that_tracks_its_key_is_told_of_every_loss() {
    // What could go wrong: what no client's command did (a lapse, a closed session) is told to nobody, so that a holder
    // learns of its loss by its next EXTEND alone.
    let server = Server::new();
    for how in TRACKING {
        let mut holder = Holder::new(&server, how);
        for loss in ["", "LOCK.BREAK k", "LOCK.BREAK k a", "LOCK.RELEASE k a", "DEL k", "QUIT"] {
            let (mut other, mut client) = (Connection::resp2(&server), Connection::resp2(&server));
            let options = match loss {
                // Its lease ends.
                "" => "",
                "QUIT" => " SESSION 0",
                _ => " RETRY 1",
            };
            holder.hold(&mut client, options);
            if !loss.is_empty() {
                let by = if loss == "QUIT" { &mut client } else { &mut other };
                by.say(loss);
            }
            assert_eq!(holder.conn.read(), invalidation("k"), "{how}: {loss:?}");
            // Read over another connection: this one would hear of the next grant, too.
            assert_eq!(other.say("LOCK.INFO k OWNER a"), Reply::Null, "{how}: {loss:?}");
        }
    }
}

#[test]
fn a_watcher_that_tracks_a_key_is_told_of_extensions_and_notes_but_not_of_refusals() {
    // What could go wrong: a dashboard shows an old note, or is woken by each refused request.
    let server = Server::new();
    let mut other = Connection::resp2(&server);
    other.say("LOCK.ACQUIRE k a PX 600000");
    for how in TRACKING {
        let mut watcher = Holder::new(&server, how);
        for (n, change) in ["PX 500000", "PX 500000 NOTE 40%", "PX 400000"].into_iter().enumerate() {
            watcher.track().expect("held");
            for refused in ["LOCK.EXTEND k b PX 5", "LOCK.EXTEND k a PX 5 FENCE 5 NOTE x", "LOCK.EXTEND k a PX 0"] {
                other.say(refused);
                assert_eq!(watcher.conn.say("PING"), Reply::simple("PONG"), "{how}: {refused}");
            }
            assert!(other.say(&format!("LOCK.EXTEND k a {change}")).int() > 0);
            assert_eq!(watcher.conn.read(), invalidation("k"), "{how}: {change}");
            let note = watcher.track().expect("held").field("holders").items()[0].field("note");
            assert_eq!(note, if n == 0 { Reply::Null } else { Reply::bulk("40%") }, "{how}");
        }
        other.ask(&["LOCK.EXTEND", "k", "a", "PX", "600000", "NOTE", ""]);
        assert_eq!(watcher.conn.read(), invalidation("k"), "{how}: no note any more");
    }
}

#[test]
fn a_client_of_resp2_is_told_over_the_connection_that_it_redirects_to() {
    let server = Server::new();
    let (mut ear, mut holder) = (Connection::resp2(&server), Connection::resp2(&server));
    let mut other = Connection::resp2(&server);
    assert_eq!(ear.say("SUBSCRIBE __redis__:invalidate").items()[0], Reply::bulk("subscribe"));
    assert_eq!(holder.say(&format!("CLIENT TRACKING ON REDIRECT {}", ear.id())), Reply::simple("OK"));
    for loss in ["LOCK.BREAK k", "LOCK.EXTEND k a PX 1"] {
        assert!(holder.say("LOCK.ACQUIRE k a PX 600000").int() > 0);
        assert!(matches!(holder.say("LOCK.INFO k"), Reply::Array(_)));
        other.say(loss);
        let told = ear.read().items();
        assert_eq!(told[1..], [Reply::bulk("__redis__:invalidate"), Reply::Array(vec![Reply::bulk("k")])], "{loss}");
    }
}

#[test]
fn a_note_that_is_too_long_leaves_the_lease_as_it_was() {
    let (_server, mut conn) = Server::setup().lock_option("max-note-bytes", "3").connected();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000", "NOTE", "one"]);
    let error = conn.error(&["LOCK.EXTEND", "k", "a", "PX", "5", "NOTE", "four"]);
    assert_eq!(error, "LIMIT note is longer than lock.max-note-bytes (3)");
    let holder = |info: testbed::LockInfo| (info.holders[0].ttl_ms > 500_000, info.holders[0].note.clone());
    assert_eq!(holder(conn.lock_info("k").unwrap()), (true, Some("one".to_owned())));
    assert_eq!(conn.int(&["LOCK.EXTEND", "k", "a", "PX", "700000", "NOTE", "two"]), fence);
    let info = conn.lock_info("k").unwrap();
    assert!(info.holders[0].ttl_ms > 650_000);
    assert_eq!(info.holders[0].note.as_deref(), Some("two"));
}
