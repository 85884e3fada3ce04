//! LOCK.CHECK: whether an owner holds a lock now. What is malformed is in commands/replies_syntax.rs.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::hold_back::HoldBack;
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Player, Row, play_in};
use crate::waiting::effects::{self, Scene};
use testbed::{Server, wait_for};

const HELD: &[Row] = &[
    ("LOCK.CHECK k a", "nil"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.CHECK k a", "#1"),
    ("LOCK.CHECK k a FENCE #1", "#1"),
    ("LOCK.CHECK k a WRITE", "#1"),
    ("lock.check k a fence #1 write", "#1"),
    ("LOCK.CHECK k a READ", "nil"),
    ("LOCK.CHECK k a FENCE #1+1", "nil"),
    ("LOCK.CHECK k a FENCE #1-1", "nil"),
    ("LOCK.CHECK k b", "nil"),
    ("LOCK.CHECK k b FENCE #1", "nil"),
    // Both modes: each is held.
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.CHECK k a READ FENCE #1", "#1"),
    ("LOCK.CHECK k a WRITE FENCE #1", "#1"),
    ("LOCK.RELEASE k a WRITE", "1"),
    ("LOCK.CHECK k a WRITE", "nil"),
    ("LOCK.CHECK k a READ", "#1"),
    ("LOCK.RW k b READ", "#2"),
    ("LOCK.CHECK k a", "#1"),
    ("LOCK.CHECK k b READ FENCE #2", "#2"),
    ("LOCK.CHECK k b READ FENCE #1", "nil"),
    ("LOCK.RELEASE k a", "0"),
    ("LOCK.CHECK k a", "nil"),
    ("LOCK.RELEASE k b", "0"),
    // Lost, and taken again: that is another hold.
    ("LOCK.ACQUIRE k a", "#3"),
    ("LOCK.CHECK k a FENCE #2", "nil"),
    ("LOCK.CHECK k a FENCE #3", "#3"),
    ("LOCK.BREAK k", "1"),
    ("LOCK.CHECK k a FENCE #3", "nil"),
    ("SET s text", "OK"),
    ("LOCK.CHECK s a", WRONGTYPE),
];

#[test]
fn check_tells_an_owner_from_others_a_mode_from_the_other_and_a_hold_from_a_former_one() {
    let server = Server::new();
    play_in(&server, &[Way::Plain, Way::Exec, Way::Script, Way::Function], HELD);
    Player::new(&mut Connection::resp3(&server), Way::Plain).play(HELD);
}

#[test]
fn a_lease_that_is_over_is_not_held_though_nothing_has_ended_it_yet() {
    // What could go wrong: a resource lets in an owner whose lease has ended, until a timer gets to it.
    let (_server, mut wire) = Connection::alone();
    // All of it comes in one turn of the event loop, in which no timer rings.
    wire.send_line("LOCK.ACQUIRE k a PX 100\r\nDEBUG SLEEP 0.15\r\nLOCK.CHECK k a\r\nINFO lock");
    assert!(wire.read().int() > 0);
    assert_eq!((wire.read(), wire.read()), (Reply::simple("OK"), Reply::Null));
    let info = wire.read().text();
    assert!(info.contains("lock_lapsed:0\r\n"), "it was settled before: {info}");
}

#[test]
fn a_check_changes_nothing_and_is_not_sent() {
    // What could go wrong: a resource that asks for each of its clients fills the stream to the replicas, or ends
    // transactions that watch the lock.
    let server = effects::server();
    let mut scene = Scene::new(&server);
    scene.check(&[("LOCK.ACQUIRE k a PX 60000", "#1")], &["LOCK.HOLD k a 0 1 #1 ~ 60000"]);
    scene.check(&[("LOCK.CHECK k a", "#1"), ("LOCK.CHECK k b", "nil"), ("LOCK.CHECK free a", "nil")], &[]);
    let mut wire = Connection::resp2(&server);
    wire.say("WATCH k");
    let mut other = Connection::resp2(&server);
    assert!(other.say("LOCK.CHECK k a").int() > 0);
    assert_eq!(other.say("LOCK.CHECK k b"), Reply::Null);
    wire.say("MULTI");
    wire.say("PING");
    assert_eq!(wire.say("EXEC").items().len(), 1);
}

#[test]
fn a_check_confirms_no_grant() {
    // What could go wrong: a resource asks about an owner whose client has gone before it was told of its grant. That
    // grant is then not taken back, and nobody has the lock.
    let (server, mut conn) = Server::connected();
    let mut eye = Connection::resp2(&server);
    assert!(eye.say("LOCK.ACQUIRE k a").int() > 0);
    for number in 0..20 {
        let waiter = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
        let id = waiter.id().to_string();
        // In one turn: the grant, the check, and the end of the client that was granted.
        eye.send_line(&format!("LOCK.RELEASE k a\r\nLOCK.CHECK k b\r\nCLIENT KILL ID {id}"));
        assert_eq!(eye.read(), Reply::Int(0));
        assert!(eye.read().int() > 0, "it was granted");
        assert_eq!(eye.read(), Reply::Int(1));
        wait_for("the grant to be taken back", || conn.lock_info("k").is_none());
        assert_eq!(conn.info_number("lock", "lock_taken_back"), number + 1);
        assert!(eye.say("LOCK.ACQUIRE k a").int() > 0);
        drop(waiter);
    }
}

#[test]
fn a_read_only_script_may_check() {
    let (_server, mut wire) = Connection::alone();
    let fence = wire.say("LOCK.ACQUIRE k a");
    let script = ["EVAL_RO", "return redis.call('LOCK.CHECK', KEYS[1], ARGV[1])", "1", "k"];
    assert_eq!(wire.ask(&[&script[..], &["a"]].concat()), fence);
    assert_eq!(wire.ask(&[&script[..], &["b"]].concat()), Reply::Null);
}

#[test]
fn a_check_is_answered_while_writes_are_paused_or_impossible() {
    // What could go wrong: resources stand still while an operator fails over, or while no replica is there.
    for how in [HoldBack::Pause, HoldBack::Replicas] {
        let server = Server::new();
        let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
        let fence = wire.say("LOCK.ACQUIRE k a");
        how.begin(&mut conn);
        assert_eq!(wire.say("LOCK.CHECK k a"), fence);
        assert_eq!(wire.say("LOCK.CHECK k b"), Reply::Null);
        how.end(&mut conn);
    }
}

#[test]
fn a_tracked_key_is_tracked_by_a_check() {
    // What could go wrong: an application that keeps the answer is never told that it is not true any more.
    let server = Server::new();
    let (mut cache, mut other) = (Connection::resp3(&server), Connection::resp2(&server));
    cache.say("CLIENT TRACKING ON");
    let invalidation = Reply::Push(vec![Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk("k")])]);
    let fence = other.say("LOCK.ACQUIRE k a");
    for change in ["LOCK.EXTEND k a PX 60000", "LOCK.BREAK k"] {
        assert_eq!(cache.say("LOCK.CHECK k a"), fence);
        other.say(change);
        assert_eq!(cache.read(), invalidation, "{change}");
    }
    assert_eq!(cache.say("LOCK.CHECK k a"), Reply::Null);
}

#[test]
fn a_replica_does_not_answer_a_check() {
    // What could go wrong: a replica that has not heard of the release says that the old owner holds.
    let (primary, replica) = (Server::new(), Server::new());
    replica.follow(&primary);
    let mut wire = Connection::resp2(&primary);
    assert!(wire.say("LOCK.ACQUIRE k a").int() > 0);
    replica.catch_up(&primary);
    let mut there = Connection::resp2(&replica);
    let refused = Reply::error("READONLY locks are checked by the primary only");
    assert_eq!(there.say("LOCK.CHECK k a"), refused);
    there.say("REPLICAOF NO ONE");
    assert!(there.say("LOCK.CHECK k a").int() > 0);
}
