//! What a request says of the channel: the last one with QUEUE counts, and one that is refused changes nothing.

use super::{CHANNEL, Subscriber};
use crate::harness::connection::Reply;
use crate::harness::scene::Scene;
use crate::harness::transcript::Row;
use testbed::Server;

/// What the two channels hear when the key becomes free, after these rows.
fn heard(rows: &[Row]) -> [Vec<String>; 2] {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    let mut subscribers = [CHANNEL, "other"].map(|channel| Subscriber::of(&server, channel));
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    scene.play(rows);
    scene.stage.ask(&["LOCK.RELEASE", "k", "a"]);
    let heard = [subscribers[0].heard(), subscribers[1].heard()];
    scene.stage.ask(&["LOCK.RELEASE", "k", "b"]);
    let left = ["lock_notify_channels", "lock_place_bytes"].map(|field| scene.conn.info_number("lock", field));
    assert_eq!(left, [0, 0], "{rows:?}");
    heard
}

fn told() -> Vec<String> {
    vec!["b".to_owned()]
}

const NONE: Vec<String> = Vec::new();

#[test]
fn of_the_requests_with_queue_the_last_sets_the_channel_or_takes_it_away() {
    const ASKS: Row = ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil");
    assert_eq!(heard(&[ASKS]), [told(), NONE]);
    assert_eq!(heard(&[ASKS, ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY other", "nil")]), [NONE, told()]);
    assert_eq!(heard(&[ASKS, ("LOCK.ACQUIRE k b QUEUE 60000", "nil")]), [NONE, NONE]);
    assert_eq!(heard(&[("LOCK.ACQUIRE k b QUEUE 60000", "nil"), ASKS]), [told(), NONE]);
    // In any order of the options.
    assert_eq!(heard(&[("LOCK.ACQUIRE k b NOTIFY ch PX 5000 QUEUE 60000", "nil")]), [told(), NONE]);
}

#[test]
fn a_request_without_queue_leaves_the_channel_as_it_is() {
    const ASKS: Row = ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil");
    assert_eq!(heard(&[ASKS, ("LOCK.ACQUIRE k b", "nil")]), [told(), NONE]);
}

#[test]
fn a_script_cannot_name_a_channel_and_leaves_it_as_it_is() {
    const ASKS: Row = ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil");
    const SCRIPT: Row = ("EVAL \"return redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 'QUEUE', '60000')\" 1 k", "nil");
    assert_eq!(heard(&[ASKS, SCRIPT]), [told(), NONE]);
    assert_eq!(heard(&[SCRIPT]), [NONE, NONE]);
}

#[test]
fn a_transaction_names_a_channel_as_its_client_does() {
    let server = Server::new();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("MULTI", "OK"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "QUEUED"),
        ("EXEC", "[nil]"),
        ("LOCK.RELEASE k a", "0"),
    ]);
    assert_eq!(subscriber.next(), "b");
}

#[test]
fn a_refused_request_changes_nothing() {
    const ASKS: Row = ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil");
    for (command, error) in [
        ("LOCK.RW k b READ QUEUE 60000 NOTIFY other", "ERR owner stands there in another mode: release that first"),
        ("LOCK.ACQUIRE k b NOTIFY other", "ERR NOTIFY needs QUEUE"),
        ("LOCK.ACQUIRE k b BLOCK 10 NOTIFY other", "ERR NOTIFY needs QUEUE"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY \"\"", "ERR NOTIFY channel must have 1 to 256 bytes"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY @257", "ERR NOTIFY channel must have 1 to 256 bytes"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY other NOTIFY other", "ERR NOTIFY is given twice"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY", "ERR NOTIFY needs a value"),
        ("LOCK.RELEASE k b NOTIFY other", "ERR unknown option \"NOTIFY\""),
    ] {
        assert_eq!(heard(&[ASKS, (command, error)]), [told(), NONE], "{command}");
    }
}

#[test]
fn a_channel_of_one_byte_and_one_of_256_are_told_byte_by_byte() {
    let server = Server::new();
    for channel in ["c".to_owned(), "x".repeat(256)] {
        let mut subscriber = Subscriber::of(&server, &channel);
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
        let ask: [&[u8]; 7] = [b"LOCK.ACQUIRE", b"k", b"\r\n b", b"QUEUE", b"60000", b"NOTIFY", channel.as_bytes()];
        assert_eq!(scene.stage.ask(&ask), Reply::Null);
        scene.play(&[("LOCK.RELEASE k a", "0")]);
        assert_eq!(subscriber.heard(), ["\r\n b"]);
        scene.stage.ask(&["FLUSHALL"]);
    }
}

#[test]
fn a_second_request_sets_the_channel_of_one_that_is_parked() {
    let server = Server::new();
    let mut subscribers = [CHANNEL, "other"].map(|channel| Subscriber::of(&server, channel));
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000 NOTIFY ch", "waits"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY other", "nil | b: waits"),
        ("CLIENT UNBLOCK %b TIMEOUT", "1 | b: nil"),
        ("LOCK.RELEASE k a", "0"),
    ]);
    assert_eq!([subscribers[0].heard(), subscribers[1].heard()], [NONE, told()]);
}

#[test]
fn a_retry_that_waits_without_queue_makes_a_plain_wait_whose_channel_is_gone() {
    let server = Server::new();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 RETRY 1", "waits"),
    ]);
    assert_eq!(scene.conn.info_number("lock", "lock_notify_channels"), 0);
    scene.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2")]);
    assert_eq!(subscriber.heard(), NONE);
}

#[test]
fn an_owner_that_asks_in_a_grace_is_told_after_it() {
    let server = Server::setup().lock_option("grace-ms", "1500").start();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    let reply = scene.stage.ask(&["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000", "NOTIFY", CHANNEL]);
    if reply.code() != "GRACE" {
        // The machine was so slow that the grace was over.
        assert!(matches!(reply, Reply::Int(_)), "{reply:?}");
        return;
    }
    assert_eq!(subscriber.next(), "b");
    scene.play(&[("LOCK.ACQUIRE k b", "#1")]);
}

#[test]
fn nobody_is_told_while_writes_are_paused() {
    let server = Server::new();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a PX 200", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil")]);
    scene.conn.ok(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    let start = scene.conn.info_number("server", "uptime_in_seconds");
    scene.stage.until("lock_offered", 0);
    testbed::wait_for("the lease to be over", || scene.conn.info_number("server", "uptime_in_seconds") > start + 1);
    assert_eq!(scene.conn.info_number("lock", "lock_notified"), 0);
    scene.conn.ok(&["CLIENT", "UNPAUSE"]);
    assert_eq!(subscriber.next(), "b");
}

#[test]
fn neither_info_of_a_lock_nor_the_saved_data_shows_a_channel() {
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch-hidden", "nil")]);
    let info = format!("{:?}", scene.stage.ask(&["LOCK.INFO", "k"]));
    assert!(!info.contains("hidden"), "{info}");
    let dump = scene.stage.ask(&["DUMP", "k"]);
    let Reply::Bulk(dump) = dump else { panic!("{dump:?}") };
    assert!(!dump.windows(6).any(|part| part == b"hidden"));
}
