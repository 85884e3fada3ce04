//! More holds of a closed connection than one step ends: each reader of the lock finds them ended all the same.

use testbed::{Client, Server, wait_for};

/// A client whose connection holds this key for reading, as that many owners.
fn crowd(server: &Server, keys: &[&str], each: usize) -> Client {
    let mut holder = server.connect();
    let numbers: Vec<usize> = (0..each).collect();
    for key in keys {
        for batch in numbers.chunks(8_192) {
            let mut pipe = redis::pipe();
            for number in batch {
                let owner = format!("r{number}");
                pipe.cmd("LOCK.RW").arg(&[key, owner.as_str(), "READ", "PX", "6000000", "SESSION", "0"]);
            }
            let fences: Vec<i64> = pipe.query(&mut holder.0).unwrap();
            assert!(fences.iter().all(|fence| *fence > 0));
        }
    }
    holder
}

/// Closes a client's connection and gives these commands, all in one turn of the event loop: nothing is done in the
/// background meanwhile.
fn in_one_turn(conn: &mut Client, holder: &mut Client, commands: &[&str]) -> Vec<redis::Value> {
    let id = holder.get::<i64>(&["CLIENT", "ID"]).to_string();
    let mut pipe = redis::pipe();
    pipe.cmd("CLIENT").arg(&["KILL", "ID", id.as_str()]);
    for command in commands {
        let mut words = command.split(' ');
        pipe.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
    }
    let mut replies: Vec<redis::Value> = pipe.query(&mut conn.0).unwrap();
    assert_eq!(replies.remove(0), redis::Value::Int(1));
    replies
}

fn all_are_announced(conn: &mut Client, count: usize) {
    wait_for("all to be announced", || conn.info_number("lock", "lock_released") == count as u64);
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}

const NULL: redis::Value = redis::Value::Nil;

fn is_fence(reply: &redis::Value) -> bool {
    matches!(reply, redis::Value::Int(1..))
}

#[test]
fn four_locks_of_as_many_holders_as_there_may_be_end_while_others_are_served() {
    // In one step they would keep the server for half a second; in many, some could be forgotten, or be held on by a
    // replica or in the file.
    const EACH: usize = 65_536;
    const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
    let mut server = Server::setup().option("appendonly", "yes").option("appendfsync", "no").option("save", "").start();
    let replica = Server::new();
    replica.follow(&server);
    let mut conn = server.connect();
    let mut holder = crowd(&server, &KEYS, EACH);
    assert_eq!(conn.info_number("lock", "lock_session_holds"), (EACH * KEYS.len()) as u64);
    let replies = in_one_turn(
        &mut conn,
        &mut holder,
        &["LOCK.MRELEASE 4 k0 k1 k2 k3 x", "LOCK.INFO k1", "LOCK.MACQUIRE 2 k2 k3 w PX 6000000"],
    );
    let redis::Value::Array(released) = &replies[0] else { panic!("{replies:?}") };
    assert!(released.iter().all(|left| *left == NULL), "{released:?}");
    assert_eq!(replies[1], NULL);
    let redis::Value::Array(fences) = &replies[2] else { panic!("{replies:?}") };
    assert!(fences.iter().all(is_fence), "{fences:?}");
    all_are_announced(&mut conn, EACH * KEYS.len());
    assert_eq!(conn.get::<usize>(&["DBSIZE"]), 2);
    assert_eq!(conn.info_number("lock", "lock_leases"), 2);
    replica.catch_up(&server);
    let digest: String = conn.get(&["DEBUG", "DIGEST"]);
    assert_eq!(replica.connect().get::<String>(&["DEBUG", "DIGEST"]), digest);
    assert_eq!(replica.connect().get::<usize>(&["DBSIZE"]), 2);
    server.restart();
    let mut conn = server.connect();
    assert_eq!(conn.get::<String>(&["DEBUG", "DIGEST"]), digest, "after a restart");
    assert_eq!(conn.lock_info("k2").unwrap().holders[0].owner, b"w");
}

#[test]
fn holds_that_are_over_and_lie_there_beside_others_count_for_no_reader_of_the_lock() {
    // What could go wrong: each command ends a thousand, and the next takes the rest for holds.
    const MANY: usize = 30_000;
    let (server, mut conn) = Server::connected();
    conn.ok(&["CONFIG", "SET", "lock.max-holders-per-key", &(MANY + 1).to_string()]);
    let mut holder = crowd(&server, &["k"], MANY);
    assert!(conn.int(&["LOCK.RW", "k", "z", "READ", "PX", "6000000"]).is_some());
    let commands = [
        "LOCK.INFO k OWNER r7",
        "LOCK.CHECK k r8",
        "LOCK.EXTEND k r9 PX 5000",
        "LOCK.RELEASE k r10",
        "LOCK.ACQUIRE k w PX 6000000",
        "LOCK.SHARE k s 2 PX 6000000",
        "LOCK.SHARE k t 2 PX 6000000",
        "LOCK.RW k r11 READ PX 6000000",
        "LOCK.ACQUIRE k z",
        "LOCK.RELEASE k s",
        "LOCK.RELEASE k r11",
        "LOCK.BREAK k r12",
        "LOCK.ACQUIRE k z PX 6000000",
    ];
    let replies = in_one_turn(&mut conn, &mut holder, &commands);
    let is_granted = |at: usize| is_fence(&replies[at]);
    for at in [0, 1, 2, 3, 4, 6, 8] {
        assert_eq!(replies[at], NULL, "{}", commands[at]);
    }
    assert!(is_granted(5) && is_granted(7), "{replies:?}");
    assert_eq!(replies[9..12], [0, 0, 0].map(redis::Value::Int));
    assert!(is_granted(12), "it is alone: {replies:?}");
    let info = conn.lock_info("k").unwrap();
    assert_eq!((info.holding, info.holders[0].owner.as_slice()), (1, &b"z"[..]));
    all_are_announced(&mut conn, MANY + 2);
    assert_eq!(conn.lock_info("k").unwrap().holding, 1);
}

#[test]
fn what_is_saved_before_it_has_ended_is_over_where_it_is_loaded() {
    // What could go wrong: the holds of a closed connection come back with the rest of their leases, for hours.
    const MANY: usize = 5_000;
    let (server, mut conn) = Server::connected();
    let mut holder = crowd(&server, &["k"], MANY);
    let replies = in_one_turn(&mut conn, &mut holder, &["DUMP k", "DEBUG RELOAD", "LOCK.INFO k"]);
    let redis::Value::BulkString(payload) = &replies[0] else { panic!("{replies:?}") };
    assert_eq!(replies[2], NULL);
    wait_for("all to lapse", || conn.get::<usize>(&["DBSIZE"]) == 0);
    redis::cmd("RESTORE").arg("j").arg(0).arg(payload.as_slice()).exec(&mut conn.0).unwrap();
    assert_eq!(conn.get::<redis::Value>(&["LOCK.INFO", "j"]), NULL);
    assert!(conn.int(&["LOCK.ACQUIRE", "j", "w"]).is_some());
}

#[test]
fn an_operator_breaks_as_many_holds_as_there_may_be() {
    // In one step with an event for each it would take a third of a second.
    const MANY: usize = 20_000;
    let server = Server::new();
    let replica = Server::new();
    replica.follow(&server);
    let mut conn = server.connect();
    let _holder = crowd(&server, &["k"], MANY);
    assert_eq!(conn.get::<usize>(&["LOCK.BREAK", "k"]), MANY);
    assert_eq!(conn.get::<redis::Value>(&["LOCK.INFO", "k"]), NULL);
    wait_for("all to be announced", || conn.info_number("lock", "lock_broken") == MANY as u64);
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
    replica.catch_up(&server);
    assert_eq!(replica.connect().get::<usize>(&["DBSIZE"]), 0);
}
