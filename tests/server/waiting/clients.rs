//! Those who wait, as clients: killed, unblocked by others, gone, evicted; and a server that ends or is busy. Each is
//! answered at most once, and those behind it are looked at.

use crate::harness::parked::{End, Parked, holders, let_it_tick, nobody_waits, waiters};
use testbed::{Server, Signal, wait_for};

const BY_COMMAND: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

#[test]
fn when_the_first_in_line_goes_those_behind_it_are_looked_at() {
    // Readers would wait behind a writer who is not there any more, until somebody asks again.
    for how in ["kill", "timeout", "error", "close", "time", "half"] {
        let server = Server::new();
        let mut conn = server.connect();
        conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
        // All have to stand behind the writer before its time is up, also on a busy machine.
        let block = if how == "time" { 5_000 } else { 0 };
        let mut writer = Parked::wait(&server, &format!("LOCK.ACQUIRE k w BLOCK {block}"));
        let mut readers: Vec<Parked> =
            (0..100).map(|number| Parked::wait(&server, &format!("LOCK.RW k r{number} READ BLOCK 0"))).collect();
        let mut last = Parked::wait(&server, "LOCK.ACQUIRE k last BLOCK 0");
        let expected = match how {
            "kill" => {
                assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &writer.id]), Some(1));
                End::Closed
            }
            "timeout" => {
                assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &writer.id, "TIMEOUT"]), Some(1));
                End::Null
            }
            "error" => {
                assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &writer.id, "ERROR"]), Some(1));
                End::Error(BY_COMMAND.to_owned())
            }
            "close" => {
                drop(writer);
                writer = Parked::connect(&server, 0);
                writer.send("SET x");
                End::Error("ERR wrong number of arguments for 'set' command".to_owned())
            }
            "half" => {
                // What it has sent meanwhile is not served before it is answered.
                writer.send("QUIT");
                assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &writer.id]), Some(1));
                End::Closed
            }
            _ => End::Null,
        };
        assert_eq!(writer.only_end(), expected, "{how}");
        for reader in &mut readers {
            reader.only_end().fence();
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
fn who_goes_from_the_middle_of_a_line_is_passed_over() {
    // A grant to one who is not there would keep everybody waiting for its whole lease.
    let server = Server::new();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let mut parked: Vec<Parked> =
        (0..5).map(|number| Parked::wait(&server, &format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0"))).collect();
    conn.int(&["CLIENT", "KILL", "ID", &parked[0].id]);
    conn.int(&["CLIENT", "UNBLOCK", &parked[1].id, "ERROR"]);
    conn.int(&["CLIENT", "UNBLOCK", &parked[2].id]);
    drop(parked.remove(3));
    wait_for("them to be out of line", || waiters(&mut conn) == 1);
    assert!(parked[3].is_waiting());
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    parked[3].only_end().fence();
    assert_eq!(holders(&mut conn, "k"), ["w4"]);
    assert_eq!(parked[0].end(), End::Closed);
    assert_eq!(parked[1].only_end(), End::Error(BY_COMMAND.to_owned()));
    assert_eq!(parked[2].only_end(), End::Null);
    // They may wait again.
    for waiter in &mut parked[1..3] {
        waiter.send("LOCK.ACQUIRE k again BLOCK 1");
        assert_eq!(waiter.only_end(), End::Null);
    }
    // Who does not wait any more cannot be unblocked.
    for waiter in &parked {
        assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &waiter.id]), Some(0));
    }
}

#[test]
fn all_who_wait_can_be_killed_at_once() {
    // Each is reported while the server is going through its clients.
    let server = Server::new();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let mut parked: Vec<Parked> =
        (0..200).map(|number| Parked::wait(&server, &format!("LOCK.RW k w{number} READ BLOCK 0"))).collect();
    assert_eq!(
        conn.int(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).map(|killed| killed >= 200),
        Some(true)
    );
    for waiter in &mut parked {
        assert!(waiter.is_closed());
    }
    nobody_waits(&mut conn);
    wait_for("the server to have let go of them", || conn.info("clients", "blocked_clients") == "0");
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    assert_eq!(conn.int(&["EXISTS", "k"]), Some(0), "nobody was let in");
}

#[test]
fn a_client_that_is_evicted_leaves_the_line() {
    // Clients may be sent away for the memory that they take; those who wait more than others.
    let server = Server::new();
    let mut conn = server.connect();
    conn.ok(&["CLIENT", "NO-EVICT", "on"]);
    conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
    let mut writer = Parked::wait(&server, "LOCK.ACQUIRE k w BLOCK 0");
    let mut reader = Parked::wait(&server, "LOCK.RW k r READ BLOCK 0");
    // What it sends while it waits lies in the server's memory until it is answered.
    conn.ok(&["CONFIG", "SET", "maxmemory-clients", "2mb"]);
    // It may be gone before it has sent all of it.
    let _ = writer.try_send(&vec![b'x'; 8 << 20]);
    assert_eq!(writer.end(), End::Closed);
    reader.only_end().fence();
    nobody_waits(&mut conn);
    assert_eq!(conn.info("stats", "evicted_clients"), "1");
    assert_eq!(holders(&mut conn, "k"), ["a", "r"]);
}

#[test]
fn a_server_that_ends_lets_go_of_everybody() {
    // It could wait for those who wait, save them, or grant while it is ending.
    for at_once in [false, true] {
        let mut server = Server::setup().option("appendonly", "yes").start();
        let mut conn = server.connect();
        conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
        conn.int(&["LOCK.RW", "shared", "a", "READ", "PX", "600000"]).unwrap();
        let mut parked: Vec<Parked> =
            (0..50).map(|number| Parked::wait(&server, &format!("LOCK.ACQUIRE k w{number} BLOCK 0"))).collect();
        parked.push(Parked::wait(&server, "LOCK.ACQUIRE shared w BLOCK 0"));
        parked.push(Parked::wait(&server, "LOCK.RW shared r READ BLOCK 600000"));
        let granted = conn.info("lock", "lock_granted");
        assert_eq!(granted, "2");
        let facts = server.aof_tail().len();
        server.stop(at_once);
        for mut waiter in parked {
            assert_eq!(waiter.end(), End::Closed);
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
        let mut next = Parked::wait(&server, "LOCK.ACQUIRE k b BLOCK 0");
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
        next.only_end().fence();
    }
}

#[test]
fn a_server_that_waits_for_its_replicas_before_it_ends_lets_nobody_in() {
    // Writes are paused then; what is replicated all the same aborts the server.
    let primary = Server::setup().option("appendonly", "yes").option("repl-diskless-sync-delay", "0");
    let mut primary = primary.option("shutdown-timeout", "10").start();
    let replica = Server::new();
    replica.follow(&primary);
    let mut conn = primary.connect();
    conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
    conn.int(&["LOCK.ACQUIRE", "l", "a", "PX", "4000"]).unwrap();
    let writer = Parked::wait(&primary, "LOCK.ACQUIRE k w BLOCK 0");
    let mut reader = Parked::wait(&primary, "LOCK.RW k r READ BLOCK 0");
    let mut next = Parked::wait(&primary, "LOCK.ACQUIRE l b BLOCK 0");
    let mut short = Parked::wait(&primary, "LOCK.ACQUIRE l c BLOCK 4000");
    replica.signal(Signal::STOP);
    conn.ok(&["SET", "unseen", "x"]);
    primary.signal(Signal::TERM);
    wait_for("it to wait for its replica", || primary.log().contains("before shutting down"));
    drop(writer);
    assert_eq!(short.end(), End::Null, "time-outs are answered");
    assert_eq!(reader.end(), End::Closed);
    assert_eq!(next.end(), End::Closed);
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
    let mut parked: Vec<Parked> = (0..CLIENTS)
        .map(|number| {
            // All of it is sent at once: the rest lies there while it waits.
            let mut parked = Parked::wait(&server, &format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0"));
            let release = format!("LOCK.RELEASE k w{number}\r\n");
            let again = format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0\r\n{release}");
            parked.send_bytes(format!("{release}{}", again.repeat(ROUNDS - 1)).as_bytes());
            parked
        })
        .collect();
    let mut busy: Vec<Parked> = (0..4).map(|_| Parked::connect(&server, 0)).collect();
    for client in &mut busy {
        client.send_bytes("INCR n\r\n".repeat(5000).as_bytes());
    }
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    let mut fences = Vec::new();
    for waiter in &mut parked {
        let mine: Vec<i64> = (0..ROUNDS)
            .map(|_| {
                let fence = waiter.end().fence();
                assert_eq!(waiter.end(), End::Int(0));
                fence
            })
            .collect();
        assert!(mine.is_sorted(), "{mine:?}");
        fences.push(mine);
    }
    // Whoever was before another in line was served before it, each time.
    for round in 0..ROUNDS {
        let of_round: Vec<i64> = fences.iter().map(|mine| mine[round]).collect();
        assert!(of_round.is_sorted(), "round {round}: {of_round:?}");
    }
    for waiter in &mut parked {
        waiter.send("LOCK.RELEASE k nobody");
        assert_eq!(waiter.only_end(), End::Null, "no more answers than requests");
    }
    for client in &mut busy {
        for _ in 0..5000 {
            client.end().fence();
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
