//! Waiters as clients: killed, unblocked by others, gone, evicted; and a server that ends or is busy. Each waiter is
//! answered at most once, and the waiters behind it are visited.

use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{holders, let_it_tick, nobody_waits, waiters};
use crate::harness::texts::UNBLOCKED;
use testbed::{Server, Setup, Signal, wait_for};

#[test]
fn when_the_first_in_line_goes_those_behind_it_are_looked_at() {
    // Readers would wait behind a writer that is not there any more, until another request comes.
    for how in ["kill", "timeout", "error", "close", "time", "half"] {
        let (server, mut conn) = Server::connected();
        conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
        // All have to stand behind the writer before its timeout, also on a busy machine.
        let block = if how == "time" { 5_000 } else { 0 };
        let mut writer = Connection::waiting(&server, &format!("LOCK.ACQUIRE k w BLOCK {block}"));
        let mut readers: Vec<Connection> =
            (0..100).map(|number| Connection::waiting(&server, &format!("LOCK.RW k r{number} READ BLOCK 0"))).collect();
        let mut last = Connection::waiting(&server, "LOCK.ACQUIRE k last BLOCK 0");
        let expected = match how {
            "kill" => {
                assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &writer.id().to_string()]), Some(1));
                Reply::Closed
            }
            "timeout" => {
                assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &writer.id().to_string(), "TIMEOUT"]), Some(1));
                Reply::Null
            }
            "error" => {
                assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &writer.id().to_string(), "ERROR"]), Some(1));
                Reply::error(UNBLOCKED)
            }
            "close" => {
                drop(writer);
                writer = Connection::resp2(&server);
                writer.send_line("SET x");
                Reply::error("ERR wrong number of arguments for 'set' command")
            }
            "half" => {
                // What it has sent meanwhile is not served before it is answered.
                writer.send_line("QUIT");
                assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &writer.id().to_string()]), Some(1));
                Reply::Closed
            }
            _ => Reply::Null,
        };
        assert_eq!(writer.only_reply(), expected, "{how}");
        for reader in &mut readers {
            reader.only_reply().int();
        }
        assert!(last.is_waiting(), "{how}");
        assert_eq!(conn.lock_info("k").unwrap().holding, 101, "{how}");
        assert_eq!(waiters(&mut conn), 1);
        let [timed_out, cancelled] = ["lock_timed_out", "lock_cancelled"].map(|field| conn.info_number("lock", field));
        let counted = if ["timeout", "time"].contains(&how) { (1, 0) } else { (0, 1) };
        assert_eq!((timed_out, cancelled), counted, "{how}");
    }
}

#[test]
fn a_client_that_leaves_the_middle_of_a_queue_is_passed_over() {
    // A grant to a client that is not there would block every waiter for its whole lease.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let mut parked: Vec<Connection> = (0..5)
        .map(|number| Connection::waiting(&server, &format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0")))
        .collect();
    conn.int(&["CLIENT", "KILL", "ID", &parked[0].id().to_string()]);
    conn.int(&["CLIENT", "UNBLOCK", &parked[1].id().to_string(), "ERROR"]);
    conn.int(&["CLIENT", "UNBLOCK", &parked[2].id().to_string()]);
    drop(parked.remove(3));
    wait_for("them to be out of line", || waiters(&mut conn) == 1);
    assert!(parked[3].is_waiting());
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    parked[3].only_reply().int();
    assert_eq!(holders(&mut conn, "k"), ["w4"]);
    assert_eq!(parked[0].read(), Reply::Closed);
    assert_eq!(parked[1].only_reply(), Reply::error(UNBLOCKED));
    assert_eq!(parked[2].only_reply(), Reply::Null);
    // They may wait again.
    for waiter in &mut parked[1..3] {
        waiter.send_line("LOCK.ACQUIRE k again BLOCK 1");
        assert_eq!(waiter.only_reply(), Reply::Null);
    }
    // A client that does not wait any more cannot be unblocked.
    for waiter in &parked {
        assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &waiter.id().to_string()]), Some(0));
    }
}

#[test]
fn a_client_that_is_evicted_leaves_the_line() {
    // The server may close clients for the memory that they take, and a waiter takes more than others.
    let (server, mut conn) = Server::connected();
    conn.ok(&["CLIENT", "NO-EVICT", "on"]);
    conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
    let mut writer = Connection::waiting(&server, "LOCK.ACQUIRE k w BLOCK 0");
    let mut reader = Connection::waiting(&server, "LOCK.RW k r READ BLOCK 0");
    // What it sends while it waits lies in the server's memory until it is answered.
    conn.ok(&["CONFIG", "SET", "maxmemory-clients", "2mb"]);
    // It may be gone before it has sent all of it.
    writer.send_bytes(&vec![b'x'; 8 << 20]);
    assert_eq!(writer.read(), Reply::Closed);
    reader.only_reply().int();
    nobody_waits(&mut conn);
    assert_eq!(conn.info("stats", "evicted_clients"), "1");
    assert_eq!(holders(&mut conn, "k"), ["a", "r"]);
}

#[test]
fn a_server_that_ends_lets_go_of_everybody() {
    // The server could wait for the waiters, save them, or grant while it is ending.
    for at_once in [false, true] {
        let (mut server, mut conn) = Server::setup().option("appendonly", "yes").connected();
        conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
        conn.int(&["LOCK.RW", "shared", "a", "READ", "PX", "600000"]).unwrap();
        let mut parked: Vec<Connection> =
            (0..50).map(|number| Connection::waiting(&server, &format!("LOCK.ACQUIRE k w{number} BLOCK 0"))).collect();
        parked.push(Connection::waiting(&server, "LOCK.ACQUIRE shared w BLOCK 0"));
        parked.push(Connection::waiting(&server, "LOCK.RW shared r READ BLOCK 600000"));
        let granted = conn.info("lock", "lock_granted");
        assert_eq!(granted, "2");
        let facts = server.aof_tail().len();
        server.stop(at_once);
        for mut waiter in parked {
            assert_eq!(waiter.read(), Reply::Closed);
        }
        server.start();
        let mut conn = server.connect();
        assert_eq!((waiters(&mut conn), conn.info("clients", "blocked_clients")), (0, "0".to_owned()));
        assert_eq!(
            (holders(&mut conn, "k"), holders(&mut conn, "shared")),
            (vec!["a".to_owned()], vec!["a".to_owned()])
        );
        assert_eq!(server.aof_tail().len(), facts, "nothing was granted at the end");
        // It goes on as it was.
        let mut next = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
        next.only_reply().int();
    }
}

#[test]
fn a_server_that_waits_for_its_replicas_before_it_ends_grants_nothing() {
    // Writes are paused then; replication all the same aborts the server.
    let primary = Server::setup().option("appendonly", "yes");
    let mut primary = primary.option("shutdown-timeout", "10").start();
    let replica = Server::new();
    replica.follow(&primary);
    let mut conn = primary.connect();
    conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
    conn.int(&["LOCK.ACQUIRE", "l", "a", "PX", "4000"]).unwrap();
    let writer = Connection::waiting(&primary, "LOCK.ACQUIRE k w BLOCK 0");
    let mut reader = Connection::waiting(&primary, "LOCK.RW k r READ BLOCK 0");
    let mut next = Connection::waiting(&primary, "LOCK.ACQUIRE l b BLOCK 0");
    let mut short = Connection::waiting(&primary, "LOCK.ACQUIRE l c BLOCK 4000");
    replica.signal(Signal::STOP);
    conn.ok(&["SET", "unseen", "x"]);
    primary.signal(Signal::TERM);
    wait_for("it to wait for its replica", || primary.log().contains("before shutting down"));
    drop(writer);
    assert_eq!(short.read(), Reply::Null, "timeouts are answered");
    assert_eq!(reader.read(), Reply::Closed);
    assert_eq!(next.read(), Reply::Closed);
    replica.signal(Signal::CONT);
    primary.stop(false);
    assert!(!primary.log().contains("crashed by signal"), "{}", primary.log());
    assert!(primary.log().contains("ready to exit"), "{}", primary.log());
    primary.start();
    let mut conn = primary.connect();
    assert_eq!(holders(&mut conn, "k"), ["a"]);
    assert!(!holders(&mut conn, "l").contains(&"b".to_owned()));
}

#[test]
fn with_threads_for_its_connections_a_server_answers_everybody_once_and_in_order() {
    // Replies are written, and requests read, beside the main thread.
    const CLIENTS: usize = 60;
    const ROUNDS: usize = 20;
    let mut setup = Server::setup().option("io-threads", "3");
    if knows(&Server::new(), "io-threads-do-reads") {
        setup = setup.option("io-threads-do-reads", "yes");
    }
    let server = setup.start();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let mut parked: Vec<Connection> = (0..CLIENTS)
        .map(|number| {
            // All of it is sent at once: the rest lies there while it waits.
            let mut parked = Connection::waiting(&server, &format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0"));
            let release = format!("LOCK.RELEASE k w{number}\r\n");
            let again = format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0\r\n{release}");
            parked.send_bytes(format!("{release}{}", again.repeat(ROUNDS - 1)).as_bytes());
            parked
        })
        .collect();
    let mut busy: Vec<Connection> = (0..4).map(|_| Connection::resp2(&server)).collect();
    for client in &mut busy {
        client.send_bytes("INCR n\r\n".repeat(5000).as_bytes());
    }
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    let mut fences = Vec::new();
    for waiter in &mut parked {
        let mine: Vec<i64> = (0..ROUNDS)
            .map(|_| {
                let fence = waiter.read().int();
                assert_eq!(waiter.read(), Reply::Int(0));
                fence
            })
            .collect();
        assert!(mine.is_sorted(), "{mine:?}");
        fences.push(mine);
    }
    // Each waiter was served before the one behind it in the queue, each time.
    for round in 0..ROUNDS {
        let of_round: Vec<i64> = fences.iter().map(|mine| mine[round]).collect();
        assert!(of_round.is_sorted(), "round {round}: {of_round:?}");
    }
    for waiter in &mut parked {
        waiter.send_line("LOCK.RELEASE k nobody");
        assert_eq!(waiter.only_reply(), Reply::Null, "no more answers than requests");
    }
    for client in &mut busy {
        for _ in 0..5000 {
            client.read().int();
        }
    }
    let_it_tick(&mut conn);
    nobody_waits(&mut conn);
    assert_eq!(conn.info_number("lock", "lock_granted"), (CLIENTS * ROUNDS + 1) as u64);
    assert_eq!(conn.info("lock", "lock_taken_back"), "0");
}

fn knows(server: &Server, directive: &str) -> bool {
    !server.connect().get::<Vec<String>>(&["CONFIG", "GET", directive]).is_empty()
}

#[test]
fn a_client_that_a_key_of_the_background_did_not_release_may_be_killed() {
    // What could go wrong: the background creates a key that a client is parked on, and Redis 7.0 takes that client for
    // its current one. It then reads the client's memory after the client is gone.
    let server = Setup::default().option("appendonly", "yes").start();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k1", "a", "PX", "500"]).unwrap();
    let mut many = Connection::waiting(&server, "LOCK.MACQUIRE 2 k1 k2 many PX 60000 BLOCK 0");
    let parked = Connection::waiting(&server, "LOCK.ACQUIRE k2 parked BLOCK 0");
    // The lease of k1 ends by the timer, and k2 is created there.
    assert!(matches!(many.only_reply(), Reply::Array(_)));
    let_it_tick(&mut conn);
    conn.int(&["LOCK.ACQUIRE", "z", "b", "PX", "500"]).unwrap();
    let mut next = Connection::waiting(&server, "LOCK.ACQUIRE z next BLOCK 0");
    assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &parked.id().to_string()]), Some(1));
    // Other values get the memory of the client.
    for len in (400..1_400).step_by(4) {
        conn.ok(&["SET", &format!("value{len}"), &"A".repeat(len)]);
    }
    // A hand-off by the timer sends two records.
    next.only_reply().int();
    let_it_tick(&mut conn);
    assert_eq!(waiters(&mut conn), 0);
}
