//! Connections that close while something else happens to their holds: a grant, a wait, a change of place.

use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{gone, holders, let_it_tick, nobody_waits, waiters};
use crate::harness::transcript::Stage;
use crate::harness::turn::{Way, turn};
use crate::sessions::binding::{lost, only_hold};
use testbed::{Client, Server, wait_for};

#[test]
fn a_hold_that_was_granted_after_a_wait_is_bound_as_well() {
    // The grant is made in the step of another client, whose connection it must not be bound to.
    let (server, mut conn) = Server::connected();
    for give in ["LOCK.RELEASE k a", "LOCK.EXTEND k a PX 1", "DEL k", "LOCK.BREAK k"] {
        let mut stage = Stage::new(&server);
        stage.play(&[
            ("a: LOCK.ACQUIRE k a PX 600000 SESSION 0", "#1"),
            ("b: LOCK.ACQUIRE k b PX 600000 BLOCK 0 SESSION 5000", "waits"),
            ("c: LOCK.ACQUIRE k c PX 600000 BLOCK 0 SESSION 0", "waits"),
        ]);
        stage.ask(&give.split(' ').collect::<Vec<_>>());
        stage.play(&[("b:", "#2")]);
        let hold = only_hold(&mut conn, "k");
        assert_eq!((hold.session, hold.client), (Some(5000), Some(stage.waiter("b").id())), "{give}");
        stage.leave("a");
        let_it_tick(&mut conn);
        assert_eq!(holders(&mut conn, "k"), ["b"], "{give}: ended with another connection");
        stage.play(&[("LOCK.RELEASE k b", "0"), ("c:", "#3")]);
        stage.leave("c");
        wait_for("it to be ended", || conn.int(&["EXISTS", "k"]) == Some(0));
        assert_eq!(conn.info("lock", "lock_session_holds"), "0");
    }
}

#[test]
fn a_client_that_leaves_in_the_turn_of_its_grant_holds_nothing_and_the_next_is_granted() {
    // Rolled back as undelivered and ended as a closed session: it must be one of the two, once.
    for session in ["SESSION 0", "SESSION 600000", ""] {
        let (server, mut conn) = Server::connected();
        conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
        let first = Connection::waiting(&server, &format!("LOCK.ACQUIRE k w1 PX 600000 BLOCK 0 {session}"));
        let mut next = Connection::waiting(&server, "LOCK.ACQUIRE k w2 PX 600000 BLOCK 0");
        turn(&server, Way::Pipelined, &["LOCK.RELEASE k a", &first.kill()]);
        next.only_reply().int();
        assert_eq!(holders(&mut conn, "k"), ["w2"], "{session}");
        nobody_waits(&mut conn);
        let_it_tick(&mut conn);
        assert_eq!(conn.info("lock", "lock_session_holds"), "0", "{session}");
        assert_eq!(conn.info("lock", "lock_taken_back"), "1", "{session}");
        assert_eq!(conn.info("lock", "lock_released"), "1", "{session}");
        assert!(lost(&mut conn).is_empty(), "{session}: it never knew that it had it");
    }
}

#[test]
fn what_is_asked_for_before_a_grant_is_taken_back_leaves_the_hold_of_before() {
    // What could go wrong: a request in that moment settles the lock, and the reader loses what it never bound to
    // anything.
    for grace in ["0", "300"] {
        let (server, mut conn) = Server::connected();
        for owner in ["a", "b"] {
            conn.int(&["LOCK.RW", "k", owner, "READ", "PX", "600000"]).unwrap();
        }
        let upgrade = Connection::waiting(&server, &format!("LOCK.RW k a WRITE PX 600000 BLOCK 0 SESSION {grace}"));
        turn(&server, Way::Pipelined, &["LOCK.RELEASE k b", &upgrade.kill(), "LOCK.RW k c WRITE -> null"]);
        wait_for("it to be taken back", || conn.info("lock", "lock_taken_back") == "1");
        let hold = only_hold(&mut conn, "k");
        assert_eq!((hold.reads, hold.writes, hold.client), (1, 0, None), "SESSION {grace}");
        assert!(hold.ttl_ms > 500_000, "SESSION {grace}: cut to {} ms", hold.ttl_ms);
    }
}

#[test]
fn a_hold_in_place_of_one_that_has_expired_is_bound_as_well() {
    // What could go wrong: the event of the old one's end comes after the new one, and removes the entry that leads to
    // it.
    let (server, mut conn) = Server::connected();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("DEBUG SET-ACTIVE-EXPIRE 0", "OK"),
        ("LOCK.ACQUIRE k x PX 600000", "#1"),
        ("w: LOCK.ACQUIRE j w PX 600000 SESSION 0", "#2"),
        ("w: LOCK.MACQUIRE 2 j k w PX 600000 BLOCK 0 SESSION 0", "waits"),
    ]);
    // In one turn, so that the step of the grant is the first to open the key.
    turn(&server, Way::Pipelined, &["PEXPIRE j 20", "DEBUG SLEEP 0.05", "LOCK.RELEASE k x"]);
    stage.play(&[("w:", "[#3 #4]")]);
    assert_eq!(conn.info("lock", "lock_session_holds"), "2");
    stage.leave("w");
    wait_for("both to be ended", || conn.int(&["EXISTS", "j", "k"]) == Some(0));
}

#[test]
fn what_is_asked_for_in_the_turn_of_the_close_finds_the_hold_ended() {
    // Between the close and the work that follows, the hold is over all the same: settle first.
    for (command, reply) in [
        ("LOCK.RELEASE k a", Reply::Null),
        ("LOCK.EXTEND k a PX 600000", Reply::Null),
        ("LOCK.INFO k", Reply::Null),
        ("LOCK.ACQUIRE k b PX 600000", Reply::Int(1)),
        ("LOCK.RW k b READ PX 600000", Reply::Int(1)),
        ("LOCK.MACQUIRE 2 j k b PX 600000", Reply::Array(vec![])),
        ("LOCK.BREAK k", Reply::Int(0)),
        ("RENAME k l", Reply::simple("OK")),
        ("MOVE k 3", Reply::Int(1)),
        ("SWAPDB 0 3", Reply::simple("OK")),
        ("DEL k", Reply::Int(1)),
    ] {
        let (server, mut conn) = Server::connected();
        let mut holder = Connection::resp2(&server);
        holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
        let mut pipe = Connection::resp2(&server);
        let id = holder.id();
        pipe.send_bytes(format!("CLIENT KILL ID {id}\r\n{command}\r\n").as_bytes());
        assert_eq!(pipe.read(), Reply::Int(1));
        match (pipe.read(), reply) {
            (Reply::Int(fence), Reply::Int(1)) => assert!(fence > 0, "{command}"),
            (Reply::Array(_), Reply::Array(_)) => {}
            (got, expected) => assert_eq!(got, expected, "{command}"),
        }
        wait_for("the work to be done", || conn.info("lock", "lock_session_holds") == "0");
        for db in ["0", "3"] {
            conn.ok(&["SELECT", db]);
            for key in ["k", "l"] {
                assert_ne!(holders(&mut conn, key), ["a"], "{command} in {db}");
            }
        }
        assert_eq!(conn.info("lock", "lock_sessions_closed"), "1", "{command}");
    }
}

#[test]
fn a_client_that_kills_itself_in_a_transaction_leaves_nothing() {
    // It is closed when its command is done: what it takes after that is bound to it still.
    let (server, mut conn) = Server::connected();
    let mut holder = Connection::resp2(&server);
    let id = holder.id();
    let kill = format!("CLIENT KILL ID {id} SKIPME no");
    for command in
        ["MULTI", "LOCK.ACQUIRE k a PX 600000 SESSION 0", &kill, "LOCK.ACQUIRE l a PX 600000 SESSION 0", "EXEC"]
    {
        holder.send_bytes(format!("{command}\r\n").as_bytes());
    }
    gone(&mut conn, id);
    wait_for("both to be ended", || conn.int(&["EXISTS", "k", "l"]) == Some(0));
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}

#[test]
fn connections_that_close_together_each_leave_what_is_theirs() {
    // Found while the server works off others; and waiters are granted in between, bound to connections that close as
    // well.
    let (server, mut conn) = Server::connected();
    let mut all: Vec<Connection> = (0..60).map(|_| Connection::resp2(&server)).collect();
    for (number, holder) in all.iter_mut().enumerate() {
        let command = format!("LOCK.RW shared r{number} READ PX 600000 SESSION 0");
        holder.say(&command);
        // Each waits for the one before it.
        let command = format!("LOCK.ACQUIRE k{} o{number} PX 600000 SESSION 0 BLOCK 0", number / 2);
        holder.send(&command.split(' ').collect::<Vec<_>>());
    }
    wait_for("half of them to wait", || waiters(&mut conn) == 30);
    let mut last = Connection::waiting(&server, "LOCK.ACQUIRE shared last PX 600000 BLOCK 0");
    turn(&server, Way::Pipelined, &all.iter().map(Connection::kill).collect::<Vec<_>>());
    assert!(last.read().int() > 0);
    wait_for("all to be ended", || conn.get::<usize>(&["DBSIZE"]) == 1);
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
    nobody_waits(&mut conn);
}

/// Takes and gives back different locks over one connection, all bound to it.
fn take_and_give_back(conn: &mut Client, count: usize) {
    for batch in (0..count).collect::<Vec<_>>().chunks(500) {
        let mut pipe = redis::pipe();
        for number in batch {
            pipe.cmd("LOCK.ACQUIRE").arg(&[&format!("key:{number}"), "owner", "SESSION", "0"]).ignore();
            pipe.cmd("LOCK.RELEASE").arg(&[&format!("key:{number}"), "owner"]).ignore();
        }
        pipe.query::<()>(&mut conn.0).unwrap();
    }
}

#[test]
fn a_connection_that_lives_long_leaves_no_growth() {
    // What is remembered of each hold would grow with all the locks that a client ever took.
    let (_server, mut conn) = Server::connected();
    take_and_give_back(&mut conn, 10_000);
    let before = conn.info_number("memory", "used_memory");
    take_and_give_back(&mut conn, 100_000);
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
    let after = || conn.info_number("memory", "used_memory");
    // Less than a byte for each.
    let mut after = after;
    wait_for("the memory to be given back", || after() < before + 100_000);
}
