//! Each kind of request that waits, where waiting meets something else. The matrix in docs/internals/waiting.md has a
//! row for each kind, and names these tests.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::state::{holders, let_it_tick, nobody_waits, waiters};
use testbed::{Client, Cluster, Server, wait_for};

/// A kind of request.
struct Kind {
    name: &'static str,
    /// What is asked for before, of the key `K`.
    before: &'static [&'static str],
    /// The request of `w`, of the keys `K` and `L`, which then waits for `h`.
    request: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind { name: "single", before: &["LOCK.ACQUIRE K h PX 600000"], request: "LOCK.ACQUIRE K w PX 600000 BLOCK 0" },
    Kind { name: "many", before: &["LOCK.ACQUIRE K h PX 600000"], request: "LOCK.MACQUIRE 2 L K w PX 600000 BLOCK 0" },
    Kind {
        name: "upgrade",
        before: &["LOCK.RW K h READ PX 600000", "LOCK.RW K w READ PX 600000"],
        request: "LOCK.RW K w WRITE PX 600000 BLOCK 0",
    },
    Kind {
        name: "share",
        before: &["LOCK.SHARE K h 2 TAKE 2 PX 600000"],
        request: "LOCK.SHARE K w 2 PX 600000 BLOCK 0",
    },
];

impl Kind {
    /// The key of this kind. They share a slot, that of the tag.
    fn key(&self, tag: &str) -> String {
        format!("{{{tag}}}{}", self.name)
    }

    /// The words of a command, about the keys of this kind.
    fn words(&self, command: &str, tag: &str) -> Vec<String> {
        let name = |word: &str| match word {
            "K" => self.key(tag),
            "L" => format!("{}-other", self.key(tag)),
            word => word.to_owned(),
        };
        command.split(' ').map(name).collect()
    }

    /// Makes the request one that has to wait.
    fn prepare(&self, conn: &mut Client, tag: &str) {
        for command in self.before {
            conn.call(&self.words(command, tag)).unwrap();
        }
    }

    /// Its request, with this option, waits.
    fn waits(&self, server: &Server, tag: &str, option: &str) -> Connection {
        Connection::waiting(server, &(self.words(self.request, tag).join(" ") + option))
    }
}

fn is_granted(reply: &Reply) -> bool {
    match reply {
        Reply::Int(fence) => *fence > 0,
        Reply::Array(fences) => fences.len() == 2 && fences.iter().all(is_granted),
        _ => false,
    }
}

/// A request of each kind waits.
fn all_wait(server: &Server, tag: &str) -> Vec<(&'static str, Connection)> {
    let mut conn = server.connect();
    KINDS.iter().for_each(|kind| kind.prepare(&mut conn, tag));
    KINDS.iter().map(|kind| (kind.name, kind.waits(server, tag, ""))).collect()
}

#[test]
fn each_kind_but_an_upgrade_keeps_its_place_when_its_connection_closes() {
    // What could go wrong: the place goes with the connection; or an upgrade keeps one, and its read hold with it.
    let (server, mut conn) = Server::connected();
    for kind in &KINDS {
        kind.prepare(&mut conn, "t");
        if kind.name == "upgrade" {
            let request = kind.words(&format!("{} QUEUE 60000", kind.request), "t");
            assert_eq!(conn.error(&request), "ERR QUEUE cannot wait for an upgrade: use BLOCK");
            continue;
        }
        kind.waits(&server, "t", " QUEUE 60000").close();
        wait_for("its connection to be closed", || conn.info("clients", "blocked_clients") == "0");
        assert_eq!(waiters(&mut conn), 0, "{}: no client is parked", kind.name);
        assert_eq!(conn.int(&["LOCK.RELEASE", &kind.key("t"), "h", "ALL"]), Some(0));
        assert!(conn.lock_info(&kind.key("t")).unwrap().holders[0].offered, "{}", kind.name);
    }
}

#[test]
fn what_each_kind_is_granted_after_a_wait_ends_with_its_connection() {
    // What could go wrong: only what is granted at once is bound, and the lock stays taken until the lease ends.
    let (server, mut conn) = Server::connected();
    for kind in &KINDS {
        kind.prepare(&mut conn, "t");
        let mut waiter = kind.waits(&server, "t", " SESSION 0");
        assert_eq!(conn.int(&["LOCK.RELEASE", &kind.key("t"), "h", "ALL"]), Some(0));
        let reply = waiter.only_reply();
        assert!(is_granted(&reply), "{}: {reply:?}", kind.name);
        assert_eq!(holders(&mut conn, &kind.key("t")), ["w"]);
        waiter.close();
        wait_for("its holds to end", || conn.int(&["DBSIZE"]) == Some(0));
    }
}

#[test]
fn each_kind_waits_out_a_grace_though_nobody_excludes_it() {
    // What could go wrong: one of them is judged in another place, and let in beside a holder that is forgotten here.
    let (server, mut conn) = Server::connected();
    KINDS.iter().for_each(|kind| kind.prepare(&mut conn, "t"));
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", "600000"]);
    // No server listens there. It is the primary again, and keeps its locks.
    conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
    for kind in &KINDS {
        assert!(conn.int(&["LOCK.RELEASE", &kind.key("t"), "h", "ALL"]).is_some(), "{}", kind.name);
    }
    let mut all: Vec<_> = KINDS.iter().map(|kind| (kind.name, kind.waits(&server, "t", ""))).collect();
    let_it_tick(&mut conn);
    for (name, waiter) in &mut all {
        assert!(waiter.is_waiting(), "{name}");
    }
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    for (name, waiter) in &mut all {
        let reply = waiter.only_reply();
        assert!(is_granted(&reply), "{name}: {reply:?}");
    }
}

#[test]
fn each_kind_is_tried_once_in_a_transaction_a_script_or_a_function() {
    // What could go wrong: it stands in the queue though nobody will be told of its grant.
    let server = Server::new();
    let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
    wire.load_function();
    for kind in &KINDS {
        kind.prepare(&mut conn, "t");
        for way in [Way::Exec, Way::Script, Way::Function] {
            assert_eq!(wire.ask_by(way, &kind.words(kind.request, "t")), Reply::Null, "{} {way:?}", kind.name);
            assert_eq!(waiters(&mut conn), 0, "{} {way:?}", kind.name);
        }
    }
}

#[test]
fn a_full_server_parks_no_client_of_any_kind_and_an_upgrade_needs_no_memory() {
    // What could go wrong: a client is parked where there is no memory for it; or a holder is refused what it can have.
    let server = Server::new();
    let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
    KINDS.iter().for_each(|kind| kind.prepare(&mut conn, "t"));
    conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
    for kind in &KINDS {
        assert_eq!(wire.ask(&kind.words(kind.request, "t")).code(), "OOM", "{}", kind.name);
    }
    assert_eq!(waiters(&mut conn), 0);
    for kind in &KINDS {
        assert_eq!(conn.int(&["LOCK.RELEASE", &kind.key("t"), "h", "ALL"]), Some(0), "{}", kind.name);
        let reply = wire.ask(&kind.words(kind.request, "t"));
        let is_right = if kind.name == "upgrade" { is_granted(&reply) } else { reply.code() == "OOM" };
        assert!(is_right, "{}: {reply:?}", kind.name);
    }
}

#[test]
fn each_kind_is_sent_after_a_key_that_is_migrated() {
    // What could go wrong: MIGRATE removes the key as DEL does, and one of them is granted what its holder has
    // elsewhere.
    let cluster = Cluster::start(2, 0);
    let (tag, slot) = cluster.key();
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    let mut all = all_wait(&cluster.nodes[0], &tag);
    cluster.begin_move(&slot, 0, 1);
    let granted = old.info("lock", "lock_granted");
    KINDS.iter().for_each(|kind| cluster.migrate(&kind.key(&tag), 0, 1));
    cluster.end_move(&slot, 0, 1);
    for (name, waiter) in &mut all {
        waiter.assert_sent_away(name);
    }
    nobody_waits(&mut old);
    assert_eq!(old.info("lock", "lock_granted"), granted);
    for kind in &KINDS {
        assert_eq!(holders(&mut new, &kind.key(&tag))[0], "h", "{}", kind.name);
    }
}

#[test]
fn each_kind_is_sent_away_by_a_primary_that_becomes_a_replica() {
    // What could go wrong: one of them is forgotten, and waits for ever for a node that grants nothing any more.
    let (server, mut conn) = Server::connected();
    let mut all = all_wait(&server, "t");
    // The servers know nothing of a place.
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "{t}single", "place", "QUEUE", "60000"]), None);
    let granted = conn.info("lock", "lock_granted");
    conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    for (name, waiter) in &mut all {
        waiter.assert_sent_away(name);
    }
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
    let_it_tick(&mut conn);
    assert_eq!((waiters(&mut conn), conn.info("lock", "lock_granted")), (0, granted));
    assert_eq!(conn.info("lock", "lock_places"), "0");
}
