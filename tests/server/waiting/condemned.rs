//! Grants to clients that the server closes, but later than it decides to. Such a client belongs to a user that is
//! removed, or its output has outgrown its limit. And grants that were renamed or moved before it was known that no
//! client learnt of them.

use crate::harness::connection::{Connection, Reply};
use crate::harness::servers::{acl_load_closes_at_once, subscribers_can_wait};
use crate::harness::state::{holders, let_it_tick, taken_back};
use crate::harness::turn::{Way, turn};
use std::fs;
use testbed::{Client, Server, Setup, Value, wait_for};

/// What closes the waiter, and how it has to be connected for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its user is removed.
    DelUser,
    /// Its user is not in the file that is loaded.
    AclLoad,
    /// It is sent a key with a name of 300 KB, which is more than it may have to read.
    Tracking,
    /// The same, while it may have so much to read for a second.
    SoftLimit,
    /// It is sent a message of 300 KB.
    Message,
}

const FATES: [Fate; 5] = [Fate::DelUser, Fate::AclLoad, Fate::Tracking, Fate::SoftLimit, Fate::Message];

impl Fate {
    /// A connection that this may happen to.
    fn connect(self, server: &Server) -> Connection {
        let ok = Reply::simple("OK");
        match self {
            Fate::DelUser | Fate::AclLoad => {
                let mut wire = Connection::resp2(server);
                assert_eq!(wire.say("AUTH u any"), ok);
                wire
            }
            Fate::Tracking => {
                let mut wire = Connection::resp3(server);
                assert_eq!(wire.say("CLIENT TRACKING ON BCAST"), ok);
                wire
            }
            Fate::SoftLimit => {
                let mut wire = Connection::resp3(server);
                assert_eq!(wire.say("CLIENT TRACKING ON"), ok);
                assert_eq!(wire.ask(&["GET", &long()]), Reply::Null);
                wire
            }
            Fate::Message => {
                let mut wire = Connection::resp3(server);
                assert!(matches!(wire.say("SUBSCRIBE channel"), Reply::Push(_)));
                wire
            }
        }
    }

    /// What lets it happen. A short command, so that the server reads it together with others.
    fn command(self) -> &'static str {
        match self {
            Fate::DelUser => "ACL DELUSER u",
            Fate::AclLoad => "ACL LOAD",
            Fate::Tracking | Fate::SoftLimit => {
                r#"EVAL "return redis.call('SET', string.rep('x', 300000), 'value')" 0"#
            }
            Fate::Message => r#"EVAL "return redis.call('PUBLISH', 'channel', string.rep('x', 300000))" 0"#,
        }
    }

    /// How many grants are rolled back: none when the client is gone before it is granted anything.
    fn taken_back(self, order: &[Step]) -> u64 {
        u64::from(self != Fate::AclLoad || order[0] != Step::Fate || !acl_load_closes_at_once())
    }

    /// The orders in which this and the grant may come. A client that has too much to read for too long is closed when
    /// there is more to read.
    fn orders(self) -> &'static [[Step; 3]] {
        const FIRST: [Step; 3] = [Step::Fate, Step::Nothing, Step::Release];
        const LAST: [Step; 3] = [Step::Release, Step::Nothing, Step::Fate];
        match self {
            Fate::SoftLimit => &[[Step::Fate, Step::Sleep, Step::Release]],
            _ => &[FIRST, LAST],
        }
    }

    /// Within EXEC the server's time stands still, so that nothing lasts too long.
    fn ways(self) -> &'static [Way] {
        if self == Fate::SoftLimit { &[Way::Pipelined] } else { &[Way::Pipelined, Way::Exec] }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Fate,
    Release,
    Sleep,
    Nothing,
}

fn long() -> String {
    "x".repeat(300_000)
}

fn waits(conn: &mut Client, wire: &mut Connection, command: &str) {
    let before = conn.info_number("lock", "lock_waiters");
    wire.send_line(command);
    wait_for(command, || conn.info_number("lock", "lock_waiters") == before + 1);
}

/// Options of a server in whose file of users there is none.
fn setup(dir: &tempfile::TempDir) -> Setup {
    let users = dir.path().join("users.acl");
    fs::write(&users, "").unwrap();
    Server::setup().option("aclfile", users.to_str().unwrap())
}

fn configure(conn: &mut Client, fate: Fate) {
    conn.ok(&["ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all"]);
    let limit = match fate {
        Fate::DelUser | Fate::AclLoad => "normal 0 0 0",
        Fate::Tracking => "normal 200kb 0 0",
        Fate::SoftLimit => "normal 0 200kb 1",
        Fate::Message => "pubsub 200kb 0 0",
    };
    conn.ok(&["CONFIG", "SET", "client-output-buffer-limit", limit]);
}

/// How often a row is played until its premise holds. On a busy machine it fails in a quarter of all tries.
const TRIES: usize = 20;

/// One row of the table, by a session or not.
struct Row {
    fate: Fate,
    way: Way,
    order: [Step; 3],
    session: &'static str,
}

impl Row {
    /// Whether a client that is closed before it learns of its grant does not keep the lock. None if the premise did
    /// not hold: the client was not condemned when it was granted the lock, and has its grant.
    fn play(&self, server: &Server) -> Option<()> {
        let Row { fate, way, order, session } = *self;
        let row = format!("{fate:?} {way:?} {order:?}{session}");
        let mut conn = server.connect();
        configure(&mut conn, fate);
        let before = taken_back(&mut conn);
        let fence = conn.int(&["LOCK.ACQUIRE", "k", "h", "PX", "600000"]).expect("free");
        let mut condemned = fate.connect(server);
        waits(&mut conn, &mut condemned, &format!("LOCK.ACQUIRE k w PX 600000 BLOCK 0{session}"));
        let mut next = Connection::resp2(server);
        waits(&mut conn, &mut next, "LOCK.ACQUIRE k n PX 600000 BLOCK 0");
        let command = |step: &Step| match step {
            Step::Fate => Some(fate.command()),
            Step::Release => Some("LOCK.RELEASE k h"),
            Step::Sleep => Some("DEBUG SLEEP 2.1"),
            Step::Nothing => None,
        };
        turn(server, way, &order.iter().filter_map(command).collect::<Vec<_>>());
        // Redis 8.6 with I/O threads may serve these commands on its way to sleep. Then it sends the client what it has
        // to read before it answers it, in the next turn. The client is below its limit by then, and is not closed.
        let escaped = fate == Fate::SoftLimit && has_its_grant(&mut condemned, &mut conn);
        if escaped {
            assert_eq!((holders(&mut conn, "k"), taken_back(&mut conn)), (vec!["w".to_owned()], before), "{row}");
            conn.int(&["LOCK.RELEASE", "k", "w"]);
        }
        let granted = next.read().int();
        assert!(granted > fence, "{row}");
        assert_eq!(holders(&mut conn, "k"), ["n"], "{row}");
        assert_eq!(conn.info("lock", "lock_lapsed"), "0", "{row}");
        conn.int(&["LOCK.RELEASE", "k", "n"]);
        conn.int(&["DEL", &long()]);
        if escaped {
            return None;
        }
        assert_eq!(taken_back(&mut conn), before + fate.taken_back(&order), "{row}");
        wait_for("it to be closed", || condemned.has_ended());
        Some(())
    }
}

/// Waits until this client has learnt of its grant or is closed. Whether it is there still, and has its grant.
fn has_its_grant(client: &mut Connection, conn: &mut Client) -> bool {
    loop {
        match client.read() {
            Reply::Push(_) => {}
            Reply::Int(_) => break,
            Reply::Closed => return false,
            other => panic!("neither a message nor a fence: {other:?}"),
        }
    }
    // With I/O threads, Valkey may answer a client that it closes.
    let listed: String = conn.get(&["CLIENT", "LIST", "ID", &client.id().to_string()]);
    let flags = listed.split(' ').find_map(|field| field.strip_prefix("flags="));
    flags.is_some_and(|flags| !flags.contains('A'))
}

/// All rows of the table on one server.
fn play(server: &Server, fates: &[Fate]) {
    for fate in fates.iter().copied().filter(|fate| *fate != Fate::Message || subscribers_can_wait()) {
        for (way, order) in fate.ways().iter().flat_map(|way| fate.orders().iter().map(move |order| (*way, *order))) {
            // What is bound to the connection that is closed ends with it, whatever comes first.
            for session in ["", " SESSION 300000"] {
                let row = Row { fate, way, order, session };
                let held = (0..TRIES).find_map(|_| row.play(server));
                held.expect("one of so many clients is over its limit when it is granted the lock");
            }
        }
    }
}

#[test]
fn a_grant_to_a_client_that_the_server_closes_later_goes_to_the_next() {
    // The client is there still when it is answered and unblocked, and no client has the lock until the lease ends.
    let dir = tempfile::tempdir().unwrap();
    play(&setup(&dir).start(), &FATES);
}

#[test]
fn a_grant_to_a_client_that_the_server_closes_later_goes_to_the_next_also_with_io_threads() {
    // The order of events is another one where threads read and write for the server.
    let dir = tempfile::tempdir().unwrap();
    play(&setup(&dir).option("io-threads", "3").start(), &FATES);
}

#[test]
fn an_owner_that_is_heard_of_keeps_what_its_closed_client_did_not_learn_of() {
    // Another connection of the owner knows of the grant: it works already.
    for heard in ["LOCK.EXTEND k w PX 600000", "LOCK.ACQUIRE k w PX 600000 RETRY 1"] {
        for way in [Way::Pipelined, Way::Exec] {
            let (server, mut conn) = Server::connected();
            configure(&mut conn, Fate::DelUser);
            conn.int(&["LOCK.ACQUIRE", "k", "h", "PX", "600000"]).expect("free");
            let mut condemned = Fate::DelUser.connect(&server);
            waits(&mut conn, &mut condemned, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
            let mut next = Connection::resp2(&server);
            waits(&mut conn, &mut next, "LOCK.ACQUIRE k n PX 600000 BLOCK 0");
            turn(&server, way, &["LOCK.RELEASE k h", heard, "ACL DELUSER u"]);
            wait_for("it to be closed", || condemned.has_ended());
            let_it_tick(&mut conn);
            assert_eq!((holders(&mut conn, "k"), taken_back(&mut conn)), (vec!["w".to_owned()], 0), "{heard} {way:?}");
            conn.int(&["LOCK.RELEASE", "k", "w"]);
            next.read().int();
        }
    }
}

#[test]
fn a_client_that_waits_again_before_it_is_closed_loses_both() {
    // It is known by one number: what it was granted, and the place that it has taken since.
    let (server, mut conn) = Server::connected();
    configure(&mut conn, Fate::Tracking);
    for key in ["k", "j"] {
        conn.int(&["LOCK.ACQUIRE", key, "h", "PX", "600000"]).expect("free");
    }
    let mut condemned = Fate::Tracking.connect(&server);
    waits(&mut conn, &mut condemned, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    // Served as soon as the first is over: before the server closes the connection.
    condemned.send_line("LOCK.ACQUIRE j w PX 600000 BLOCK 0");
    let mut next = Connection::resp2(&server);
    waits(&mut conn, &mut next, "LOCK.ACQUIRE k n PX 600000 BLOCK 0");
    turn(&server, Way::Pipelined, &["LOCK.RELEASE k h", Fate::Tracking.command()]);
    next.read().int();
    wait_for("it to be closed", || condemned.has_ended());
    assert_eq!((holders(&mut conn, "k"), taken_back(&mut conn)), (vec!["n".to_owned()], 1));
    wait_for("nobody to wait", || conn.info_number("lock", "lock_waiters") == 0);
    assert_eq!(conn.int(&["LOCK.RELEASE", "j", "h"]), Some(0));
    assert!(holders(&mut conn, "j").is_empty());
}

#[test]
fn a_client_that_reads_its_grant_and_goes_at_once_keeps_it() {
    // As redis-cli does, called for one command. A grant that can be rolled back for longer than it may be unsent is
    // taken from a client that works already.
    for io_threads in ["1", "3"] {
        let (server, mut conn) = Server::setup().option("io-threads", io_threads).connected();
        for round in 0..50 {
            let (key, owner) = (format!("k{round}"), format!("w{round}"));
            conn.int(&["LOCK.ACQUIRE", &key, "h", "PX", "600000"]).expect("free");
            let mut wire = Connection::resp2(&server);
            waits(&mut conn, &mut wire, &format!("LOCK.ACQUIRE {key} {owner} PX 600000 BLOCK 0"));
            conn.send(&["LOCK.RELEASE", &key, "h"]);
            wire.read().int();
            drop(wire);
            // Of the release.
            let _: Value = conn.0.recv_response().unwrap();
        }
        let_it_tick(&mut conn);
        for round in 0..50 {
            assert_eq!(holders(&mut conn, &format!("k{round}")), [format!("w{round}")], "{io_threads}");
        }
        assert_eq!(taken_back(&mut conn), 0);
    }
}

/// What is done with a key between a grant on it and the end of the client that it was granted to. Then: where another
/// client waits; how many grants are rolled back; and which owner has the key there afterwards.
type Journey = (&'static [&'static str], (u32, &'static str), u64, &'static str);

const MOVED: &[Journey] = &[
    (&[], (0, "k"), 1, "n"),
    (&["RENAME k j"], (0, "j"), 1, "n"),
    (&["RENAME k j", "RENAME j i"], (0, "i"), 1, "n"),
    (&["RENAME k j", "RENAME j k"], (0, "k"), 1, "n"),
    (&["RENAME k j", "LOCK.ACQUIRE k other PX 600000"], (0, "j"), 1, "n"),
    (&["SWAPDB 0 1"], (1, "k"), 1, "n"),
    (&["SWAPDB 0 1", "SWAPDB 1 0"], (0, "k"), 1, "n"),
    (&["RENAME k j", "SWAPDB 0 1"], (1, "j"), 1, "n"),
    (&["MOVE k 1"], (1, "k"), 1, "n"),
    (&["RENAME k j", "MOVE j 1"], (1, "j"), 1, "n"),
    // The lock that the other waits for is not the one that was granted.
    (&["RENAME k j", "DEL j"], (0, "j"), 0, "n"),
    (&["RENAME k j", "RENAME l j"], (0, "j"), 0, "x"),
    // The owner knows it, where it lies now.
    (&["RENAME k j", "LOCK.EXTEND j w PX 600000"], (0, "j"), 0, "w"),
    (&["RENAME k j", "LOCK.ACQUIRE k w PX 600000"], (0, "j"), 1, "n"),
];

#[test]
fn a_grant_that_nobody_learnt_of_is_taken_back_where_it_went() {
    // What was renamed, moved or swapped before the module saw that the client had gone would have no live holder until
    // the lease ends.
    for (steps, (db, key), expected, left) in MOVED {
        for end in ["CLIENT KILL ID %w", "ACL DELUSER u"] {
            let row = format!("{steps:?} {end}");
            let (server, mut conn) = Server::connected();
            let mut there = server.connect();
            there.ok(&["SELECT", &db.to_string()]);
            configure(&mut conn, Fate::DelUser);
            conn.int(&["LOCK.ACQUIRE", "k", "h", "PX", "600000"]).expect("free");
            conn.int(&["LOCK.ACQUIRE", "l", "x", "PX", "600000"]).expect("free");
            let mut condemned = Fate::DelUser.connect(&server);
            let id = condemned.say("CLIENT ID").int().to_string();
            waits(&mut conn, &mut condemned, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
            // The waiter waits for another key, too, which is held. So it stands there though the key itself is free,
            // and nothing lies in the way of a MOVE.
            there.int(&["LOCK.ACQUIRE", "bar", "h", "PX", "600000"]);
            let mut next = Connection::resp2(&server);
            next.say(&format!("SELECT {db}"));
            waits(&mut conn, &mut next, &format!("LOCK.MACQUIRE 2 {key} bar n PX 600000 BLOCK 0"));
            let end = end.replace("%w", &id);
            let commands: Vec<&str> = ["LOCK.RELEASE k h"].iter().chain(*steps).copied().chain([&*end]).collect();
            turn(&server, Way::Exec, &commands);
            wait_for("it to be closed", || condemned.has_ended());
            wait_for(&row, || taken_back(&mut conn) == *expected);
            // A swap took the other key along.
            for db in ["0", "1"] {
                conn.ok(&["SELECT", db]);
                conn.int(&["LOCK.RELEASE", "bar", "h"]);
            }
            if *left == "n" {
                assert!(matches!(next.read(), Reply::Array(fences) if fences.len() == 2), "{row}");
            }
            let_it_tick(&mut conn);
            assert_eq!(holders(&mut there, key), [*left], "{row}");
            assert_eq!(taken_back(&mut conn), *expected, "{row}");
            assert_eq!(conn.info("lock", "lock_lapsed"), "0", "{row}");
        }
    }
}

#[test]
fn a_grant_of_several_keys_is_taken_back_in_each_database_that_one_went_to() {
    // Keys are opened in one database at a time: those of the others would stay taken.
    let server = Server::new();
    let (mut conn, mut other) = (server.connect(), server.connect());
    other.ok(&["SELECT", "1"]);
    conn.int(&["LOCK.ACQUIRE", "a", "h", "PX", "600000"]).expect("free");
    let mut condemned = Connection::resp2(&server);
    let id = condemned.say("CLIENT ID").int().to_string();
    waits(&mut conn, &mut condemned, "LOCK.MACQUIRE 4 a b c d w PX 600000 BLOCK 0");
    let commands = ["LOCK.RELEASE a h", "MOVE b 1", "MOVE d 1", "RENAME a z", &format!("CLIENT KILL ID {id}")];
    turn(&server, Way::Exec, &commands);
    wait_for("all to be taken back", || taken_back(&mut conn) == 4);
    for key in ["a", "b", "c", "d", "z"] {
        assert!(conn.lock_info(key).is_none() && other.lock_info(key).is_none(), "{key}");
    }
}
