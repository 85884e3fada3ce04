//! Races of delivery: a grant that meets something which keeps it from its client, in the same turn of the server's
//! loop, in either order. Its client gets exactly one reply, and what it was granted and never learnt of goes to the
//! next.
//!
//! On Redis 7.0 and 7.2 clients are unblocked late in the turn (server-api, blocked.rs). So there, too, a client that
//! was served is never sent a second reply. No server that is supported makes an exception to what is tested here.

pub(crate) mod scene;

use crate::harness::connection::{Connection, Reply};
use crate::harness::lapses::alone;
use crate::harness::state::{let_it_tick, taken_back};
use crate::harness::texts::UNBLOCKED;
use crate::harness::transcript::{Names, Stage};
use crate::harness::turn::{CLOSE, PASS, WAYS, Way, turn, while_stopped};
use crate::waiting::effects;
use scene::{PROMPT, Scene, server};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

/// `b` gets no reply before its connection ends.
const CLOSED: &str = "closed";
/// The reply to `b` is that it has the lock.
const FENCE: &str = "#2";

// What may happen in a turn. To all but ours the server answers OK or 1.
const RELEASE: &str = "LOCK.RELEASE $k a";
const ERROR: &str = "CLIENT UNBLOCK $b ERROR";
const TIMEOUT: &str = "CLIENT UNBLOCK $b TIMEOUT";
const KILL: &str = "CLIENT KILL ID $b";
const DEL: &str = "DEL $k";
const FLUSHALL: &str = "FLUSHALL";
/// Longer than what is left of [`LIMITED`].
const SLEEP: &str = "DEBUG SLEEP 3.1";

/// How long `b` waits: for ever, or long enough to come to the turn on a busy machine.
const ENDLESS: &str = "BLOCK 0";
const LIMITED: &str = "BLOCK 3000";

/// What becomes of the lock.
#[derive(Clone, Copy)]
enum Then {
    /// It was granted to `b`, and is rolled back and granted to `c`.
    HandedOn,
    /// It was never granted to `b`; `c` has it.
    PassedBy,
    /// `b` keeps it.
    Kept,
    /// `b` was granted it and has lost it, as any holder would; `c` has it.
    HeldByBoth,
}

/// Plays one race, in all of these ways, on a scene each. These things happen in one turn, in this order; `b` gets this
/// reply and nothing else; and this becomes of the lock.
fn race(limit: &str, ways: &[Way], turns: &[&[&str]], told: &str, then: Then) {
    let server = server();
    for way in ways {
        for turn in turns {
            println!("{way:?} {turn:?}");
            let mut scene = Scene::with(&server, "k", limit);
            scene.turn(*way, turn);
            let reply = if told == CLOSED { scene.b.read() } else { scene.b.only_reply() };
            let mut names = Names::default();
            names.show(&Reply::Int(scene.fence_a));
            assert_eq!(names.show(&reply), told, "{way:?} {turn:?}");
            match then {
                Then::HandedOn => scene.assert_handed_on(),
                Then::PassedBy => scene.assert_passed_by(),
                Then::Kept => scene.assert_kept(&reply),
                Then::HeldByBoth => scene.assert_held_by_both(&reply),
            }
        }
    }
}

/// A table of races, each a test of its own.
macro_rules! races {
    ($($name:ident: $limit:ident, $ways:expr, $([$($step:expr),+])|+ => $told:expr, $then:ident;)+) => {$(
        #[test]
        fn $name() {
            race($limit, &$ways, &[$(&[$($step),+]),+], $told, Then::$then);
        }
    )+};
}

races! {
    // The client would get the error alone, and the lock would have no live holder until its lease ends. Or, on 7.0 and
    // 7.2, the client would get both fence and error.
    a_grant_that_meets_client_unblock_error_goes_to_the_next:
        ENDLESS, WAYS, [RELEASE, ERROR] => UNBLOCKED, HandedOn;

    // A client that is on its way out would be served.
    a_grant_that_comes_after_client_unblock_error_goes_to_the_next:
        ENDLESS, WAYS, [ERROR, RELEASE] => UNBLOCKED, PassedBy;

    // The server asks for the reply to a timeout of a client that was served. Null would lose the lock, and a second
    // reply would come for the grant.
    a_grant_that_meets_client_unblock_timeout_is_delivered:
        ENDLESS, WAYS, [RELEASE, TIMEOUT] => FENCE, Kept;

    // A client whose reply was the timeout would be served.
    a_grant_that_comes_after_client_unblock_timeout_goes_to_the_next:
        ENDLESS, WAYS, [TIMEOUT, RELEASE] => "nil", PassedBy;

    // There is no client to learn of it.
    a_grant_that_meets_client_kill_goes_to_the_next:
        ENDLESS, WAYS, [RELEASE, KILL] => CLOSED, HandedOn;

    // A client that is gone would be served.
    a_grant_that_comes_after_client_kill_goes_to_the_next:
        ENDLESS, WAYS, [KILL, RELEASE] => CLOSED, PassedBy;

    // The reply was asked for already when the client is killed: it lies in an output that is thrown away.
    a_grant_that_meets_client_unblock_timeout_and_client_kill_goes_to_the_next:
        ENDLESS, WAYS, [RELEASE, TIMEOUT, KILL] => CLOSED, HandedOn;

    // The server reads the release first and the end of the connection afterwards, in the same turn.
    a_grant_that_meets_a_socket_that_closes_goes_to_the_next:
        ENDLESS, [Way::Connections], [RELEASE, CLOSE] => CLOSED, HandedOn;

    // The server reads the end of the connection first, in the same turn: a client that is on its way out would be
    // served.
    a_grant_that_comes_after_a_socket_has_closed_goes_to_the_next:
        ENDLESS, [Way::Connections], [CLOSE, RELEASE] => CLOSED, PassedBy;

    // The release and the end of the wait are both pending. Whichever is first decides, and the client learns of that
    // alone. The core asks for the time before it serves: the wait's time is up.
    a_grant_that_meets_a_time_limit_is_answered_once:
        LIMITED, [Way::Connections], [RELEASE, PASS] => "nil", PassedBy;

    // The server's own timeout, were it used, would end the wait without a reply on 7.0, and end the server on 7.2.
    a_grant_whose_time_limit_ends_before_it_is_delivered_is_delivered:
        LIMITED, WAYS, [RELEASE, SLEEP] => FENCE, Kept;

    // The lock that it was granted is gone when its reply comes: as for every other holder, and the next one waits no
    // more.
    a_grant_that_meets_del_is_delivered_and_the_next_is_served:
        ENDLESS, WAYS, [RELEASE, DEL] => FENCE, HeldByBoth;

    // As with DEL, but the server reports no single keys.
    a_grant_that_meets_flushall_is_delivered_and_the_next_is_served:
        ENDLESS, WAYS, [RELEASE, FLUSHALL] => FENCE, HeldByBoth;

    // DEL and FLUSHALL serve the queue later in the turn; a release of what is gone must not serve it twice.
    a_grant_that_comes_after_the_lock_is_gone_goes_by_the_line:
        ENDLESS, [Way::Pipelined, Way::Exec],
        [DEL, "LOCK.RELEASE $k a -> null"] | [FLUSHALL, "LOCK.RELEASE $k a -> null"] => FENCE, Kept;

    // The rollback concerns what was granted, not what lies there now.
    a_grant_that_is_deleted_and_lost_in_one_turn_is_not_taken_from_the_next:
        ENDLESS, WAYS, [RELEASE, DEL, KILL] => CLOSED, PassedBy;

    // Null says that the owner holds nothing by that fence. Were it taken for a sign that it knows of its grant, the
    // lock would have no live holder until the lease ends.
    an_extend_that_was_refused_confirms_nothing:
        ENDLESS, [Way::Pipelined, Way::Connections],
        [RELEASE, "LOCK.EXTEND $k b PX 600000 FENCE 1 -> null", KILL] => CLOSED, HandedOn;

    // The next one's hold would go.
    a_lost_grant_that_its_owner_has_released_is_not_taken_back:
        ENDLESS, WAYS, [RELEASE, "LOCK.RELEASE $k b", KILL] => CLOSED, PassedBy;
}

#[test]
fn a_grant_that_meets_a_demotion_is_answered_once_and_everybody_is_sent_away() {
    // A replica rolls nothing back; a client that did not get its grant gets an error and may ask again, with RETRY.
    for way in WAYS {
        let server = server();
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "REPLICAOF 127.0.0.1 1"]);
        let (b, c) = (scene.b.only_reply(), scene.c.only_reply());
        let sent_away = |line: &Reply| matches!(line, Reply::Error(text) if text.starts_with("UNBLOCKED "));
        assert!(sent_away(&c), "{way:?}: {c:?}");
        assert!(sent_away(&b) || b.int() > scene.fence_a, "{way:?}: {b:?}");
        wait_for("nobody to wait", || scene.conn.info_number("lock", "lock_waiters") == 0);
        let held = scene.conn.lock_info("k").expect("held until its lease ends, or the new primary says otherwise");
        assert_eq!(held.holders[0].owner, b"b");
        scene.conn.ok(&["REPLICAOF", "NO", "ONE"]);
        let again = scene.conn.int(&["LOCK.ACQUIRE", "k", "b", "RETRY", "1"]).expect("its own");
        assert!(again > held.fence);
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0));
        assert_eq!(taken_back(&mut scene.conn), 0);
        scene.end();
    }
}

#[test]
fn a_grant_that_comes_after_a_demotion_is_none() {
    // A replica would grant.
    let server = server();
    let mut scene = Scene::new(&server, "k");
    let mut link = Connection::resp2(&server);
    link.send_line("REPLICAOF 127.0.0.1 1\r\nLOCK.RELEASE k a");
    assert_eq!(link.read(), Reply::simple("OK"));
    assert!(matches!(link.read(), Reply::Error(text) if text.starts_with("READONLY ")));
    for waiter in [&mut scene.b, &mut scene.c] {
        let reply = waiter.only_reply();
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with("UNBLOCKED ")), "{reply:?}");
    }
    assert_eq!(scene.conn.lock_info("k").expect("held").holders[0].owner, b"a");
}

#[test]
fn a_grant_that_is_lost_when_nobody_else_waits_frees_the_lock() {
    // Without a next waiter the lock would stay with the one that never learnt of it.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["CLIENT KILL ID $c"]);
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT KILL ID $b"]);
        scene.c.assert_closed();
        let start = Instant::now();
        wait_for("the lock to be free", || scene.conn.lock_info("k").is_none());
        assert!(start.elapsed() < PROMPT);
        assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before + 1);
        scene.end();
    }
}

#[test]
fn a_waiter_behind_one_that_is_gone_is_granted_at_once() {
    // A writer blocks readers that would fit: when it goes, nothing happens to the key that would serve them.
    let server = server();
    let mut conn = server.connect();
    for end in ["CLIENT KILL ID", "CLIENT UNBLOCK", "close"] {
        let fence = conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).expect("free");
        let mut writer = Connection::waiting(&server, "LOCK.RW k b WRITE PX 600000 BLOCK 0");
        let mut reader = Connection::waiting(&server, "LOCK.RW k c READ PX 600000 BLOCK 0");
        let start = Instant::now();
        match end {
            "close" => writer.close(),
            _ => turn(&server, Way::Pipelined, &[format!("{end} {}", writer.id())]),
        }
        assert!(reader.only_reply().int() > fence);
        assert!(start.elapsed() < PROMPT, "{end}: after {:?}", start.elapsed());
        conn.int(&["DEL", "k"]);
    }
}

#[test]
fn grants_that_are_lost_one_after_the_other_reach_the_last() {
    // A grant that is handed on and lost again must be rolled back again.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        let mut conn = server.connect();
        let mut last = Connection::waiting(&server, "LOCK.ACQUIRE k d PX 600000 BLOCK 0");
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT UNBLOCK $b ERROR", "CLIENT KILL ID $c"]);
        assert!(last.only_reply().int() > scene.fence_a);
        assert_eq!(conn.info("lock", "lock_waiters"), "0");
        scene.end();
    }
}

#[test]
fn only_what_a_lost_upgrade_added_is_taken_back_and_its_reads_have_the_fence_that_their_owner_knows() {
    // The reads that its owner knows of would go with the write that it does not. Or by their fence the owner would
    // learn that it holds nothing, while it does until its lease ends.
    for (way, end) in WAYS.into_iter().flat_map(|way| [(way, "CLIENT KILL ID"), (way, "CLIENT UNBLOCK")]) {
        let server = server();
        let mut stage = Stage::new(&server);
        stage.play(&[
            ("LOCK.RW k a READ PX 600000", "#1"),
            ("LOCK.RW k b READ PX 600000", "#2"),
            ("LOCK.RW k b READ PX 600000", "#2"),
            ("b: LOCK.RW k b WRITE PX 600000 BLOCK 0", "waits"),
            ("c: LOCK.RW k c READ PX 600000 BLOCK 0", "waits"),
        ]);
        let error = if end == "CLIENT UNBLOCK" { " ERROR" } else { "" };
        turn(&server, way, &["LOCK.RELEASE k a", &format!("{end} {}{error}", stage.waiter("b").id())]);
        let told = stage.waiter("b").read();
        assert_eq!(told, if error.is_empty() { Reply::Closed } else { Reply::error(UNBLOCKED) });
        // Once the write is gone, a reader fits in, with a fence above all that were given.
        assert!(stage.waiter("c").only_reply().int() > 0);
        let mut conn = server.connect();
        let info = conn.lock_info("k").expect("held");
        let held: Vec<_> = info.holders.iter().map(|holder| (&holder.owner[..], holder.reads, holder.writes)).collect();
        assert!(held.len() == 2 && held.contains(&(b"b", 2, 0)) && held.contains(&(b"c", 1, 0)), "{held:?}");
        assert_eq!(taken_back(&mut conn), 1);
        stage.play(&[("LOCK.EXTEND k b PX 600000 FENCE #2", "#2"), ("LOCK.RELEASE k c", "0")]);
        let later = conn.int(&["LOCK.RW", "k", "b", "WRITE", "PX", "600000"]).expect("alone");
        assert!(later > info.fence);
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "b", "ALL", "FENCE", &later.to_string()]), Some(0));
    }
}

#[test]
fn what_its_owner_has_confirmed_is_not_taken_back() {
    // The owner has learnt of it on another connection: it would work on without the lock.
    let server = server();
    let confirmations = [
        ("LOCK.ACQUIRE $k b PX 600000", 2),
        ("LOCK.ACQUIRE $k b PX 600000 RETRY 1", 1),
        ("LOCK.EXTEND $k b PX 600000", 1),
    ];
    for way in WAYS {
        for (confirmation, count) in confirmations {
            for lost in ["CLIENT KILL ID $b", "CLIENT UNBLOCK $b ERROR"] {
                for confirmed_first in [true, false] {
                    let mut scene = Scene::new(&server, "k");
                    let then = if confirmed_first { [confirmation, lost] } else { [lost, confirmation] };
                    scene.turn(way, &["LOCK.RELEASE $k a", then[0], then[1]]);
                    let_it_tick(&mut scene.conn);
                    scene.c.assert_waiting();
                    let info = scene.conn.lock_info("k").expect("held");
                    let what = format!("{way:?} {then:?}");
                    assert_eq!((&info.holders[0].owner[..], info.holders[0].writes), (&b"b"[..], count), "{what}");
                    assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before, "{what}");
                    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b", "ALL"]), Some(0));
                    assert!(scene.c.only_reply().int() > info.fence);
                    scene.end();
                }
            }
        }
    }
}

#[test]
fn replicas_learn_of_a_lost_grant_of_its_end_and_of_the_next_in_order() {
    // A replica that is promoted in between would let two hold it, or none, for a lease.
    for way in WAYS {
        let server = server();
        let mut scene = effects::Scene::new(&server);
        scene.check(
            &[
                ("LOCK.ACQUIRE k a PX 600000", "#1"),
                ("b: LOCK.ACQUIRE k b PX 600000 BLOCK 0", "waits"),
                ("c: LOCK.ACQUIRE k c PX 600000 BLOCK 0", "waits"),
            ],
            &["LOCK.HOLD k a 0 1 #1 ~ 600000"],
        );
        let kill = scene.stage.waiter("b").kill();
        turn(&server, way, &["LOCK.RELEASE k a", &kill]);
        scene.stage.until("lock_handed_off", 2);
        // The release and the grant in one transaction, the end of the grant and the next one in another.
        let first = ["MULTI", "LOCK.HOLD k a 0 0 #1", "LOCK.HOLD k b 0 1 #2 ~ 600000", "EXEC"];
        let second = ["MULTI", "LOCK.HOLD k b 0 0 #2", "LOCK.HOLD k c 0 1 #3 ~ 600000", "EXEC"];
        scene.check(&[], &[first, second].concat());
        scene.stage.play(&[("c:", "#3")]);
    }
}

#[test]
fn what_was_lost_before_a_pause_is_taken_back_after_it() {
    // A write during a pause ends the server.
    let server = server();
    for way in WAYS {
        for mode in ["WRITE", "ALL"] {
            let mut scene = Scene::new(&server, "k");
            // Replies to what this connection asks meanwhile would wait for the end of a pause of all.
            let start = Instant::now();
            scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT KILL ID $b", &format!("CLIENT PAUSE 700 {mode}")]);
            scene.b.assert_closed();
            std::thread::sleep(Duration::from_millis(400).saturating_sub(start.elapsed()));
            let waits = scene.c.is_waiting();
            // Read before the clock: what was seen, was seen during the pause.
            if start.elapsed() < Duration::from_millis(690) {
                assert!(waits, "{way:?} {mode}: let in during the pause");
            }
            scene.c.read().int();
            assert!(start.elapsed() >= Duration::from_millis(690), "{way:?} {mode}: after {:?}", start.elapsed());
            assert!(start.elapsed() < PROMPT);
            assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before + 1);
            scene.end();
        }
    }
}

#[test]
fn retry_confirms_a_grant_whose_connection_dies() {
    // The reply to the client that comes back would be that others hold the lock, or that it holds it twice.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        let end = if way == Way::Connections { CLOSE } else { KILL };
        scene.turn(way, &[RELEASE, "LOCK.ACQUIRE $k b PX 600000 BLOCK 0 RETRY 1", end]);
        let fence = scene.conn.lock_info("k").expect("held").fence;
        let_it_tick(&mut scene.conn);
        scene.c.assert_waiting();
        scene.assert_held_by("b", fence);
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0), "{way:?}: held once");
        assert!(scene.c.only_reply().int() > fence);
        assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before);
        scene.end();
    }
}

#[test]
fn a_waiter_that_is_killed_with_its_successor_leaves_nothing() {
    // The place that one took over from the other would be left twice, or never.
    let server = server();
    for way in WAYS {
        for granted in [false, true] {
            let mut scene = Scene::new(&server, "k");
            let mut successor = Connection::resp2(&server);
            successor.send_line("LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1");
            assert_eq!(scene.b.only_reply(), Reply::Null);
            let mut second = Connection::resp2(&server);
            let [kill, kill_second] = [&successor, &second].map(|link| link.kill());
            // The successor's successor arrives in the very turn that ends both.
            while_stopped(&server, || second.send_line("LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1"));
            assert_eq!(successor.read(), Reply::Null);
            let steps = if granted { [RELEASE, &kill, &kill_second] } else { [&kill, &kill_second, RELEASE] };
            scene.turn(way, &steps);
            successor.assert_closed();
            second.assert_closed();
            if granted { scene.assert_handed_on() } else { scene.assert_passed_by() }
        }
    }
}

#[test]
fn a_place_that_is_taken_over_and_lost_in_one_turn_is_lost_for_both() {
    // The answer to the first and the wait of the second end at the same time.
    let server = server();
    let mut scene = Scene::new(&server, "k");
    let mut successor = Connection::resp2(&server);
    let kills = [scene.words("CLIENT KILL ID $b"), successor.kill()];
    let mut killer = Connection::resp2(&server);
    while_stopped(&server, || {
        successor.send_line("LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1");
        killer.send_line(&format!("{}\r\n{}\r\nLOCK.RELEASE k a", kills[0], kills[1]));
    });
    assert_eq!([killer.read(), killer.read(), killer.read()], [Reply::Int(1), Reply::Int(1), Reply::Int(0)]);
    scene.b.assert_closed();
    successor.assert_closed();
    scene.assert_passed_by();
}

#[test]
fn a_thousand_waiters_that_are_killed_at_once_leave_nothing() {
    // Each of them is found, taken out of the queue and freed by itself.
    const WAITERS: u64 = 1_000;
    let _alone = alone();
    let server = server();
    let mut conn = server.connect();
    let kill_all = |conn: &mut Client| {
        let mut links: Vec<Connection> = (0..WAITERS).map(|_| Connection::resp2(&server)).collect();
        for (n, link) in links.iter_mut().enumerate() {
            link.send_line(&format!("LOCK.ACQUIRE k w{n} PX 600000 BLOCK 0"));
        }
        wait_for("all to wait", || conn.info_number("lock", "lock_waiters") == WAITERS);
        let start = Instant::now();
        assert_eq!(conn.int(&["CLIENT", "KILL", "TYPE", "normal"]), Some(WAITERS as i64));
        links.iter_mut().for_each(Connection::assert_closed);
        start.elapsed()
    };
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).expect("free");
    let mut after = Vec::new();
    for _ in 0..3 {
        let took = kill_all(&mut conn);
        assert!(took < PROMPT, "{took:?}");
        assert_eq!(conn.info("lock", "lock_waiters"), "0");
        assert_eq!(conn.info("lock", "lock_contended_keys"), "0");
        assert_eq!(conn.info("clients", "blocked_clients"), "0");
        // The server keeps some of what a parked client needs for the next ones, and frees it tick by tick.
        conn.get::<String>(&["MEMORY", "PURGE"]);
        let mut last = u64::MAX;
        wait_for("memory to come back", || {
            let_it_tick(&mut conn);
            let now = conn.info_number("memory", "used_memory");
            let rests = now >= last;
            last = now;
            rests
        });
        after.push(last);
    }
    println!("used memory after each thousand: {after:?}");
    // Thirty kilobytes for each would be thirty million.
    assert!(after[2] < after[0] + 500_000, "{after:?}");
    // The lock is as it was, and is handed on.
    let mut next = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    assert!(next.only_reply().int() > 0);
}

#[test]
fn an_error_reaches_its_waiter_though_others_begin_to_wait_meanwhile() {
    // Some servers ask for an answer a turn later. Another waiter may have its place by then, and it was answered null.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "busy", "a", "PX", "600000"]).unwrap();
    let (stop, mut answers) = (AtomicBool::new(false), BTreeSet::new());
    let wait_again_and_again = |n: usize| {
        let mut conn = server.connect();
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(conn.int(&["LOCK.ACQUIRE", "busy", &format!("w{n}"), "BLOCK", "1"]), None);
        }
    };
    thread::scope(|scope| {
        for n in 0..8 {
            let wait_again_and_again = &wait_again_and_again;
            scope.spawn(move || wait_again_and_again(n));
        }
        for _ in 0..100 {
            let _: i64 = conn.get(&["DEL", "k"]);
            conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
            let mut waits = server.connect();
            waits.send(&["LOCK.ACQUIRE", "k", "b", "BLOCK", "0"]);
            wait_for("it to wait", || conn.lock_info("k").unwrap().waiting == 1);
            conn.ok(&["SET", "k", "x"]);
            answers.insert(format!("{:?}", waits.0.recv_response()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let answers: Vec<String> = answers.into_iter().collect();
    assert!(matches!(&answers[..], [one] if one.contains("WRONGTYPE")), "{answers:?}");
}
