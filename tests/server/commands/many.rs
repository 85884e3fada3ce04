//! Several locks in one step: LOCK.MACQUIRE, LOCK.MRELEASE and LOCK.MEXTEND. All or none, and a waiter stands in all
//! queues at once. What is malformed is in commands/replies_syntax.rs.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Player, Row, Stage};
use crate::waiting::effects::{self, Scene};
use testbed::{Server, wait_for};

/// Writers, when no mode is named: all keys or none, fences and counts in the order in which the keys are named.
const WRITERS: &[Row] = &[
    ("LOCK.MACQUIRE 2 j k a", "[#1 #2]"),
    // Again: the same fences, in the order of this request.
    ("LOCK.MACQUIRE 2 k j a", "[#2 #1]"),
    ("LOCK.MACQUIRE 3 j l k a WRITE", "[#1 #3 #2]"),
    // One of them is held: none is taken, wherever it stands.
    ("LOCK.MACQUIRE 2 m j b", "nil"),
    ("LOCK.MACQUIRE 3 j m n b", "nil"),
    ("LOCK.MACQUIRE 2 m k b READ", "nil"),
    ("LOCK.MACQUIRE 2 m l *", "nil"),
    ("EXISTS m n", "0"),
    ("LOCK.INFO k", "[mode write fence #2 holding 1 holders [[owner a mode write writes 3 fence #2]]]"),
    // It is a lock like any other.
    ("LOCK.ACQUIRE k a", "#2"),
    ("LOCK.RELEASE k a", "3"),
    ("LOCK.MRELEASE 4 j k l m a", "[2 2 0 nil]"),
    ("LOCK.MEXTEND 4 m k l j a PX 60000", "[nil #2 nil #1]"),
    ("LOCK.MEXTEND 2 j k b EX 60", "[nil nil]"),
    ("LOCK.MRELEASE 2 k j a TO 1", "[1 1]"),
    ("LOCK.MRELEASE 2 k j a TO 1", "[1 1]"),
    ("LOCK.MRELEASE 2 k j b", "[nil nil]"),
    ("LOCK.MRELEASE 2 k j a READ", "[1 1]"),
    ("LOCK.MRELEASE 2 k j a ALL", "[0 0]"),
    ("LOCK.MRELEASE 2 k j a ALL", "[nil nil]"),
    ("DBSIZE", "0"),
    // One key is enough.
    ("LOCK.MACQUIRE 1 k a", "[#4]"),
    ("LOCK.MACQUIRE 1 k b", "nil"),
    ("LOCK.MEXTEND 1 k a PX 5000", "[#4]"),
    ("LOCK.MRELEASE 1 k a", "[0]"),
    ("LOCK.MRELEASE 1 k a", "[nil]"),
];

/// Readers of several keys, the upgrade of all of them, and the way back.
const READERS: &[Row] = &[
    ("LOCK.MACQUIRE 2 j k r READ", "[#1 #2]"),
    ("LOCK.MACQUIRE 2 k j s read PX 5000", "[#3 #4]"),
    ("LOCK.MACQUIRE 2 j k w", "nil"),
    ("LOCK.MACQUIRE 2 j k r WRITE", "nil"),
    ("LOCK.MRELEASE 2 j k s READ TO 0", "[0 0]"),
    // New fences, as for one key.
    ("LOCK.MACQUIRE 2 j k r WRITE", "[#5 #6]"),
    ("LOCK.MACQUIRE 2 j l s READ", "nil"),
    ("LOCK.MRELEASE 2 j k r", "ERR the owner holds both modes: name READ or WRITE"),
    ("LOCK.MRELEASE 2 j k r WRITE", "[1 1]"),
    ("LOCK.MRELEASE 2 j k r WRITE", "[1 1]"),
    ("LOCK.MACQUIRE 2 j k s READ", "[#7 #8]"),
    ("LOCK.MRELEASE 2 j k r", "[0 0]"),
    // Upgraded here, new there.
    ("LOCK.MACQUIRE 2 l k s", "[#9 #10]"),
    ("LOCK.MRELEASE 3 j k l s READ", "[0 1 1]"),
    ("LOCK.MRELEASE 3 j k l s", "[nil 0 0]"),
    ("DBSIZE", "0"),
];

/// The options of LOCK.ACQUIRE, for all keys at once.
const OPTIONS: &[Row] = &[
    ("LOCK.MACQUIRE 2 j k * NOTE text EX 60", "[<made> [#1 #2]]"),
    ("LOCK.MACQUIRE 2 k j *", "nil"),
    ("DEL j k", "2"),
    ("LOCK.MACQUIRE 2 j k a RETRY 1 NOTE one", "[#3 #4]"),
    ("LOCK.MACQUIRE 2 j k a RETRY 1 NOTE two PX 60000", "[#3 #4]"),
    ("LOCK.MACQUIRE 3 j k l a RETRY 2", "[#3 #4 #5]"),
    ("LOCK.INFO j", "[mode write fence #3 holding 1 holders [[owner a mode write writes 2 fence #3 note two]]]"),
    ("LOCK.INFO l", "[mode write fence #5 holding 1 holders [[owner a mode write writes 2 fence #5]]]"),
    (r#"LOCK.MACQUIRE 2 "" "\x00\xff" "\x00o""#, "[#6 #7]"),
    (r#"LOCK.MRELEASE 2 "\x00\xff" "" "\x00o""#, "[0 0]"),
    // A key may be named like a word of the command.
    ("LOCK.MACQUIRE 3 READ PX 5 WRITE READ", "[#8 #9 #10]"),
    ("LOCK.MRELEASE 3 PX READ 5 WRITE ALL", "[0 0 0]"),
];

/// BLOCK, where no client can wait.
const ONCE: &[Row] = &[
    ("LOCK.ACQUIRE j a", "#1"),
    ("LOCK.MACQUIRE 2 j k b BLOCK 0", "nil"),
    ("LOCK.MACQUIRE 2 k j * BLOCK 60000", "nil"),
    ("LOCK.MACQUIRE 2 j k b READ BLOCK 1 RETRY 1", "nil"),
    ("LOCK.MACQUIRE 2 j k a BLOCK 0", "[#1 #2]"),
    ("LOCK.INFO k COUNT 0", "[mode write fence #2 holding 1 holders []]"),
    ("LOCK.MRELEASE 2 j k a ALL", "[0 0]"),
];

#[test]
fn all_keys_are_taken_or_none() {
    // What could go wrong: half of them is taken, or the fences come in another order than the keys.
    let server = Server::new();
    for mut wire in [Connection::resp2(&server), Connection::resp3(&server)] {
        for rows in [WRITERS, READERS, OPTIONS] {
            Player::new(&mut wire, Way::Plain).play(rows);
        }
    }
}

#[test]
fn in_a_transaction_a_script_or_a_function_the_replies_are_the_same_and_nobody_waits() {
    // What could go wrong: a null within an array ends the array in a script, or the script waits for ever.
    let (server, mut wire) = Connection::alone();
    wire.load_function();
    for way in [Way::Exec, Way::Script, Way::Function] {
        for rows in [WRITERS, READERS, OPTIONS, ONCE] {
            Player::new(&mut wire, way).play(rows);
        }
    }
    let mut conn = server.connect();
    assert_eq!(["lock_queued", "lock_waiters"].map(|field| conn.info_number("lock", field)), [0, 0]);
}

#[test]
fn the_replies_have_these_bytes_in_both_protocols() {
    // What could go wrong: an array is announced with the wrong length, or a null comes as an empty array.
    let server = Server::new();
    for (mut wire, null) in [(Connection::resp2(&server), "$-1\\r\\n"), (Connection::resp3(&server), "_\\r\\n")] {
        let fences = wire.say("LOCK.MACQUIRE 2 j k a").items();
        let [j, k] = [&fences[0], &fences[1]].map(Reply::int);
        assert!(j < k);
        assert_eq!(wire.bytes("LOCK.MACQUIRE 2 k j a"), format!("*2\\r\\n:{k}\\r\\n:{j}\\r\\n"));
        assert_eq!(wire.bytes("LOCK.MACQUIRE 2 k j b"), null);
        assert_eq!(wire.bytes("LOCK.MACQUIRE 2 k j *"), null);
        assert_eq!(wire.bytes("LOCK.MRELEASE 3 j x k a"), format!("*3\\r\\n:1\\r\\n{null}:1\\r\\n"));
        assert_eq!(wire.bytes("LOCK.MEXTEND 3 j x k a PX 50000"), format!("*3\\r\\n:{j}\\r\\n{null}:{k}\\r\\n"));
        let made = wire.bytes("LOCK.MACQUIRE 2 m n *");
        let (owner, fences) = made.strip_prefix("*2\\r\\n$32\\r\\n").unwrap().split_once("\\r\\n").unwrap();
        assert!(owner.len() == 32 && fences.starts_with("*2\\r\\n:"), "{made}");
        assert_eq!(wire.say("DEL j k m n").int(), 4);
    }
}

#[test]
fn as_many_keys_can_be_named_as_the_limit_says_at_that_moment() {
    // What could go wrong: a limit that is off by one, or in force only after a restart.
    let (_server, mut conn) = Server::connected();
    let names: Vec<String> = (0..256).map(|number| format!("k{number}")).collect();
    let command = |count: usize| {
        let numkeys = count.to_string();
        let words = ["LOCK.MACQUIRE", &numkeys].map(str::to_owned).into_iter();
        words.chain(names[..count].iter().cloned()).chain(["a".to_owned()]).collect::<Vec<_>>()
    };
    for (limit, most) in [(None, 64), (Some("1"), 1), (Some("256"), 256)] {
        if let Some(limit) = limit {
            conn.ok(&["CONFIG", "SET", "lock.max-keys", limit]);
        }
        let fences: Vec<i64> = redis::from_redis_value(conn.call(&command(most)).unwrap()).unwrap();
        assert!(fences.len() == most && fences.is_sorted());
        conn.ok(&["FLUSHALL"]);
        if most < names.len() {
            let refused = format!("LIMIT numkeys is above lock.max-keys ({most})");
            assert_eq!(conn.error(&command(most + 1)), refused);
            assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0);
        }
    }
}

#[test]
fn replicas_and_the_file_receive_all_keys_of_a_step_as_one() {
    // What could go wrong: a replica that takes over between two of the keys has half of a request.
    let mut scene = Scene::alone();
    scene.check(
        &[("LOCK.MACQUIRE 2 j k a PX 60000 NOTE x", "[#1 #2]")],
        &["MULTI", "LOCK.HOLD j a 0 1 #1 ~ 60000 x", "LOCK.HOLD k a 0 1 #2 ~ 60000 x", "EXEC"],
    );
    scene.check(&[("LOCK.MACQUIRE 1 one a READ PX 60000", "[#3]")], &["LOCK.HOLD one a 1 0 #3 ~ 60000"]);
    // All or nothing: nothing.
    scene.check(
        &[
            ("LOCK.MACQUIRE 2 free k b", "nil"),
            ("LOCK.MACQUIRE 2 free one b", "nil"),
            ("LOCK.MRELEASE 2 free k b", "[nil nil]"),
            ("LOCK.MEXTEND 2 free k b PX 5", "[nil nil]"),
            ("LOCK.MRELEASE 2 j k a TO 1", "[1 1]"),
            ("LOCK.MACQUIRE 2 free free a", r#"ERR key "free" is given twice"#),
        ],
        &[],
    );
    scene.check(
        &[("LOCK.MEXTEND 3 k free j a PX 70000", "[#2 nil #1]")],
        &["MULTI", "LOCK.HOLD k a 0 1 #2 ~ 70000 x", "LOCK.HOLD j a 0 1 #1 ~ 70000 x", "EXEC"],
    );
    scene.check(
        &[("LOCK.MRELEASE 3 j one k a", "[0 0 0]")],
        &["MULTI", "LOCK.HOLD j a 0 0 #1", "LOCK.HOLD one a 0 0 #3", "LOCK.HOLD k a 0 0 #2", "EXEC"],
    );
    // The hand-off of one release, to a waiter for more than was released.
    scene.check(
        &[
            ("LOCK.ACQUIRE j a PX 60000", "#4"),
            ("m: LOCK.MACQUIRE 3 k j l m PX 50000 BLOCK 0", "waits"),
            ("LOCK.RELEASE j a", "0 | m: [#5 #6 #7]"),
        ],
        &[
            "LOCK.HOLD j a 0 1 #4 ~ 60000",
            "MULTI",
            "LOCK.HOLD j a 0 0 #4",
            "LOCK.HOLD k m 0 1 #5 ~ 50000",
            "LOCK.HOLD j m 0 1 #6 ~ 50000",
            "LOCK.HOLD l m 0 1 #7 ~ 50000",
            "EXEC",
        ],
    );
    // And of one step to several.
    scene.check(
        &[
            ("b: LOCK.ACQUIRE j b PX 40000 BLOCK 0", "waits"),
            ("c: LOCK.ACQUIRE k c PX 40000 BLOCK 0", "waits"),
            ("LOCK.MRELEASE 3 j k l m", "[0 0 0] | b: #8 | c: #9"),
        ],
        &[
            "MULTI",
            "LOCK.HOLD j m 0 0 #6",
            "LOCK.HOLD k m 0 0 #5",
            "LOCK.HOLD l m 0 0 #7",
            "LOCK.HOLD j b 0 1 #8 ~ 40000",
            "LOCK.HOLD k c 0 1 #9 ~ 40000",
            "EXEC",
        ],
    );
}

const IN_ALL_LINES: &[Row] = &[
    ("LOCK.ACQUIRE j x", "#1"),
    ("m: LOCK.MACQUIRE 2 j k m BLOCK 60000", "waits"),
    (
        "LOCK.INFO j",
        "[mode write fence #1 holding 1 holders [[owner x mode write writes 1 fence #1]] waiting 1 waiters [[owner m mode write left_ms ~ keys 2]]]",
    ),
    // The free one is kept for it, though no client has asked for it since.
    (
        "LOCK.INFO k",
        "[mode nil fence nil holding 0 holders [] waiting 1 waiters [[owner m mode write left_ms ~ keys 2]] reserved_by m]",
    ),
    ("LOCK.ACQUIRE k y", "nil"),
    ("LOCK.RW k y READ", "nil"),
    ("LOCK.MACQUIRE 2 k l y", "nil"),
    // It holds nothing meanwhile.
    ("EXISTS k", "0"),
    ("LOCK.RELEASE k m", "nil"),
    ("LOCK.MRELEASE 2 j k m", "[nil nil]"),
    ("LOCK.MEXTEND 2 j k m PX 5", "[nil nil]"),
    ("LOCK.INFO k OWNER m", "nil"),
    // Others stand behind it in both queues.
    ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
    ("c: LOCK.ACQUIRE j c BLOCK 0", "waits"),
    ("LOCK.RELEASE j x", "0 | m: [#2 #3] | b: waits | c: waits"),
    ("LOCK.INFO k COUNT 0", "[mode write fence #3 holding 1 holders [] waiting 1]"),
    ("LOCK.RELEASE k m", "0 | b: #4 | c: waits"),
    ("LOCK.RELEASE j m", "0 | c: #5"),
];

#[test]
fn a_waiter_for_several_keys_stands_in_all_queues_and_holds_nothing() {
    // What could go wrong: it has one key and waits for the other, as two clients that do the same will for ever.
    Stage::alone().play(IN_ALL_LINES);
}

/// A client waits for j and k, and others behind it for either.
const BEHIND: &[Row] = &[
    ("LOCK.ACQUIRE j x", "#1"),
    ("m: LOCK.MACQUIRE 2 j k m PX 60000 BLOCK 0", "waits"),
    ("b: LOCK.ACQUIRE k b PX 60000 BLOCK 0", "waits"),
    ("c: LOCK.ACQUIRE j c PX 60000 BLOCK 0", "waits"),
];

#[test]
fn a_waiter_that_leaves_all_queues_is_answered_once_and_those_behind_pass() {
    // What could go wrong: the waiter stays in the queue of one key, and that key is kept for no client.
    let ends: &[&[Row]] = &[
        &[("CLIENT UNBLOCK %m", "1"), ("m:", "nil"), ("m: PING", "PONG")],
        &[("CLIENT UNBLOCK %m ERROR", "1 | m: UNBLOCKED client unblocked via CLIENT UNBLOCK"), ("m: PING", "PONG")],
        &[("CLIENT KILL ID %m", "1")],
        // Its place is taken over by a request that waits for a moment only.
        &[("n: LOCK.MACQUIRE 2 j k m RETRY 1 BLOCK 20", "nil | m: nil"), ("m: PING", "PONG"), ("n: PING", "PONG")],
    ];
    for end in ends {
        let mut stage = Stage::alone();
        stage.play(BEHIND);
        stage.play(end);
        stage.play(&[("b:", "#2"), ("c:", "waits"), ("LOCK.RELEASE j x", "0"), ("c:", "#3")]);
        stage.until("lock_waiters", 0);
        stage.until("lock_contended_keys", 0);
        if end[0].0.starts_with("CLIENT KILL") {
            assert!(stage.waiter("m").is_closed());
        }
    }
    let mut stage = Stage::alone();
    stage.play(BEHIND);
    stage.leave("m");
    stage.play(&[("b:", "#2"), ("LOCK.RELEASE j x", "0"), ("c:", "#3")]);
}

#[test]
fn what_happens_to_one_of_the_keys_reaches_the_waiters_for_all() {
    // What could go wrong: a key becomes free in another way than by a release, and its waiters are not visited.
    let granted: &[Row] = &[("m:", "[#2 #3]"), ("b:", "waits"), ("c:", "waits")];
    let refused: &[Row] = &[("m:", WRONGTYPE)];
    let cases: &[(&[Row], &[Row])] = &[
        (&[("DEL j", "1")], granted),
        (&[("UNLINK j", "1")], granted),
        (&[("FLUSHDB", "OK")], granted),
        (&[("FLUSHALL ASYNC", "OK")], granted),
        (&[("RENAME j elsewhere", "OK")], granted),
        (&[("MOVE j 1", "1")], granted),
        (&[("SWAPDB 0 1", "OK")], granted),
        (&[("PEXPIRE j 1", "1")], granted),
        (&[("LOCK.EXTEND j x PX 1", "#1")], granted),
        (&[("LOCK.BREAK j", "1")], granted),
        // Another value lies there: of the one that is held, or of the one that is free.
        (&[("SET j text", "OK"), ("c:", WRONGTYPE)], refused),
        (&[("SET k text", "OK"), ("b:", WRONGTYPE)], refused),
        (&[("SET s text", "OK"), ("RENAME s k", "OK"), ("b:", WRONGTYPE)], refused),
    ];
    for (rows, expected) in cases {
        let mut stage = Stage::alone();
        stage.play(BEHIND);
        stage.play(rows);
        stage.play(expected);
        if *expected == refused {
            // The other key is not kept for it.
            let (command, reply) =
                if rows.iter().any(|row| row.0 == "c:") { ("b:", "#2") } else { ("LOCK.RELEASE j x", "0") };
            stage.play(&[(command, reply)]);
            stage.until("lock_contended_keys", 0);
        }
    }
}

#[test]
fn a_grant_that_meets_the_end_of_its_client_is_taken_back_on_all_keys() {
    // What could go wrong: one of the keys stays held for no client until its lease ends.
    let server = effects::server();
    let mut scene = Scene::new(&server);
    scene.stage.play(&[
        ("LOCK.ACQUIRE j x PX 60000", "#1"),
        ("m: LOCK.MACQUIRE 2 j k m PX 60000 BLOCK 0", "waits"),
        ("b: LOCK.ACQUIRE k b PX 50000 BLOCK 0", "waits"),
        ("t: MULTI", "OK"),
        ("t: LOCK.RELEASE j x", "QUEUED"),
        ("t: CLIENT KILL ID %m", "QUEUED"),
        ("t: EXEC", "[0 1]"),
    ]);
    scene.stage.until("lock_handed_off", 2);
    scene.check(
        &[],
        &[
            "LOCK.HOLD j x 0 1 #1 ~ 60000",
            "MULTI",
            "LOCK.HOLD j x 0 0 #1",
            "LOCK.HOLD j m 0 1 #2 ~ 60000",
            "LOCK.HOLD k m 0 1 #3 ~ 60000",
            "EXEC",
            "MULTI",
            "LOCK.HOLD j m 0 0 #2",
            "LOCK.HOLD k m 0 0 #3",
            "LOCK.HOLD k b 0 1 #4 ~ 50000",
            "EXEC",
        ],
    );
    scene.stage.play(&[("b:", "#4"), ("EXISTS j", "0"), ("LOCK.RELEASE k b", "0")]);
    assert_eq!(server.connect().info_number("lock", "lock_taken_back"), 2);
}

#[test]
fn a_grant_is_taken_back_also_where_one_of_its_keys_is_no_lock_any_more() {
    // What could go wrong: the other keys stay held for no client, and their waiters are told that they are no locks.
    Stage::alone().play(&[
        ("LOCK.ACQUIRE j x PX 60000", "#1"),
        ("m: LOCK.MACQUIRE 2 j k m PX 60000 BLOCK 0", "waits"),
        ("b: LOCK.ACQUIRE k b PX 50000 BLOCK 0", "waits"),
        ("t: MULTI", "OK"),
        ("t: LOCK.RELEASE j x", "QUEUED"),
        ("t: CLIENT KILL ID %m", "QUEUED"),
        ("t: SET j v", "QUEUED"),
        ("t: EXEC", "[0 1 OK] | b: #2"),
        ("GET j", "v"),
    ]);
}

#[test]
fn a_free_key_is_reserved_for_a_waiter_of_several_keys_for_a_limited_time() {
    // What could go wrong: one client that waits for a busy key blocks all others at a free one for ever.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("CONFIG SET lock.max-reserve-ms 60000", "OK"),
        ("LOCK.ACQUIRE j x PX 600000", "#1"),
        ("m: LOCK.MACQUIRE 2 j k m BLOCK 0", "waits"),
        ("n: LOCK.MACQUIRE 2 j l n BLOCK 0", "waits"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("LOCK.INFO k COUNT 0", "[mode nil fence nil holding 0 holders [] waiting 2 reserved_by m]"),
        ("LOCK.INFO l COUNT 0", "[mode nil fence nil holding 0 holders [] waiting 1 reserved_by n]"),
        // As it was when it began.
        ("CONFIG SET lock.max-reserve-ms 50", "OK | b: waits"),
        ("CLIENT UNBLOCK %n", "1 | n: nil"),
        ("LOCK.INFO l", "nil"),
        // From here on it is short.
        ("n: LOCK.MACQUIRE 2 j l n BLOCK 0", "waits"),
        ("c: LOCK.ACQUIRE l c BLOCK 0", "sent | c: #2"),
        ("LOCK.INFO l COUNT 0", "[mode write fence #2 holding 1 holders [] waiting 1]"),
        ("n:", "waits"),
        // Free again, it is kept again; then any requester passes, without waiting.
        ("LOCK.RELEASE l c", "0"),
    ]);
    let mut conn = server.connect();
    let reserved = || Connection::resp2(&server).say("LOCK.INFO l").field("reserved_by");
    wait_for("it to be kept no longer", || reserved() == Reply::Null);
    assert!(conn.int(&["LOCK.RW", "l", "d", "READ"]).is_some());
    stage.play(&[("n:", "waits"), ("LOCK.RELEASE l d", "0"), ("b:", "waits"), ("LOCK.RELEASE j x", "0")]);
    // The waiter that was passed has kept its place.
    stage.play(&[("m:", "[#3 #4]"), ("LOCK.MRELEASE 2 j k m", "[0 0]"), ("n:", "[#5 #6]"), ("b:", "#7")]);
}

#[test]
fn a_time_of_zero_keeps_nothing() {
    // What could go wrong: the least that can be set means for ever.
    Stage::new(&Server::setup().lock_option("max-reserve-ms", "0").start()).play(&[
        ("LOCK.ACQUIRE j x", "#1"),
        ("m: LOCK.MACQUIRE 2 j k m BLOCK 0", "waits"),
        ("LOCK.INFO k COUNT 0", "[mode nil fence nil holding 0 holders [] waiting 1]"),
        ("LOCK.ACQUIRE k b", "#2"),
        ("LOCK.RELEASE j x", "0 | m: waits"),
        ("LOCK.RELEASE k b", "0 | m: [#3 #4]"),
    ]);
}
