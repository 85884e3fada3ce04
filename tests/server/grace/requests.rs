//! What a request gets during a grace: without BLOCK, with it, and with QUEUE.

use super::{Scene, started};
use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::texts::{TAKEN_OVER, WRONGTYPE};
use crate::harness::transcript::Player;
use testbed::Server;

/// Requests of others, and of an owner that seems to hold `held` for writing and `shared` for reading.
const REQUESTS: [&str; 15] = [
    "LOCK.ACQUIRE free a",
    "LOCK.ACQUIRE free *",
    "LOCK.RW free a READ",
    "LOCK.RW free a WRITE",
    "LOCK.MACQUIRE 2 free other a",
    "LOCK.MACQUIRE 2 free other a READ",
    // Null says that another holds it. That may be wrong: its release may be among what was forgotten.
    "LOCK.ACQUIRE held b",
    "LOCK.RW shared b READ",
    "LOCK.MACQUIRE 2 free held b",
    // An owner that seems to hold: the lock may have been granted to another since.
    "LOCK.ACQUIRE held a",
    "LOCK.ACQUIRE held a RETRY 1",
    "LOCK.RW held a READ",
    "LOCK.RW shared a READ RETRY 1",
    "LOCK.RW shared a WRITE",
    "LOCK.MACQUIRE 2 held shared a READ RETRY 1",
];

/// A server that was promoted with these locks.
fn promoted(server: &Server) -> Scene<'_> {
    let mut scene = Scene::new(server);
    scene.play(&[("LOCK.ACQUIRE held a PX 600000", "#1"), ("LOCK.RW shared a READ PX 600000", "#2")]);
    scene.promote();
    scene
}

#[test]
fn a_request_without_block_is_refused_whoever_asks_and_whatever_for() {
    // What could go wrong: null is said, and a job concludes that another runs it; or an owner is let in again that has
    // lost the lock.
    let server = Server::new();
    let mut scene = promoted(&server);
    let digest: String = scene.conn.get(&["DEBUG", "DIGEST"]);
    let offset = scene.conn.info_number("replication", "master_repl_offset");
    for request in REQUESTS {
        scene.play(&[(request, "GRACE ~")]);
    }
    assert_eq!(scene.conn.get::<String>(&["DEBUG", "DIGEST"]), digest, "an error leaves no trace");
    assert_eq!(scene.conn.info_number("replication", "master_repl_offset"), offset);
    assert_eq!(scene.conn.info_number("lock", "lock_refused"), REQUESTS.len() as u64);
    scene.end();
    scene.play(&[
        ("LOCK.ACQUIRE free b", "#3"),
        ("LOCK.ACQUIRE held b", "nil"),
        // What was granted before the promotion has a new fence.
        ("LOCK.ACQUIRE held a", "#4"),
        ("LOCK.RW shared a WRITE", "#5"),
    ]);
}

#[test]
fn a_request_that_cannot_wait_is_refused_as_without_block() {
    // A transaction, a script and a function wait for nothing.
    let server = Server::new();
    let mut scene = promoted(&server);
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    for way in [Way::Exec, Way::Script, Way::Function] {
        for options in ["", " BLOCK 0", " BLOCK 600000"] {
            let mut player = Player::new(&mut wire, way);
            for request in REQUESTS {
                assert_eq!(player.reply_to(&format!("{request}{options}")), "GRACE ~", "{request}{options} {way:?}");
            }
        }
    }
    assert_eq!(scene.conn.info_number("lock", "lock_waiters"), 0);
}

#[test]
fn an_argument_that_is_wrong_is_told_before_the_grace() {
    let mut scene = Scene::owning(started());
    scene.play(&[
        ("SET text x", "OK"),
        ("LOCK.ACQUIRE k a PX 0", "ERR PX must be a whole number from 1 to 86400000"),
        ("LOCK.ACQUIRE text a", WRONGTYPE),
        ("LOCK.RW k a", "ERR wrong number of arguments for 'lock.rw' command"),
    ]);
}

#[test]
fn a_request_with_block_waits_and_is_served_after_the_grace() {
    let server = Server::new();
    let mut scene = promoted(&server);
    scene.play(&[
        ("a: LOCK.ACQUIRE free a BLOCK 600000", "waits"),
        ("b: LOCK.RW free b READ BLOCK 0", "waits"),
        ("c: LOCK.MACQUIRE 2 free other c BLOCK 0", "waits"),
        ("d: LOCK.ACQUIRE held d BLOCK 0", "waits"),
        // Owners that seem to hold wait like all others.
        ("e: LOCK.ACQUIRE held a BLOCK 0", "waits"),
        ("f: LOCK.RW shared a READ BLOCK 0 RETRY 1", "waits"),
        // A free key is reserved for nobody meanwhile.
        ("LOCK.INFO free", "[mode nil fence nil holding 0 holders [] waiting 3 waiters [[owner a mode write left_ms ~] [owner b mode read] [owner c mode write keys 2]]]"),
    ]);
    scene.end();
    for name in ["a", "e", "f"] {
        assert!(matches!(scene.stage.waiter(name).read(), Reply::Int(1..)), "{name}");
    }
    scene.play(&[("b:", "waits"), ("c:", "waits"), ("d:", "waits")]);
    scene.conn.int(&["LOCK.RELEASE", "free", "a"]);
    assert!(matches!(scene.stage.waiter("b").read(), Reply::Int(1..)), "in order");
}

#[test]
fn a_request_with_queue_gets_grace_and_keeps_its_place() {
    let server = Server::new();
    let mut scene = promoted(&server);
    scene.play(&[
        ("LOCK.ACQUIRE free a QUEUE 60000", "GRACE ~"),
        ("LOCK.ACQUIRE free b QUEUE 60000", "GRACE ~"),
        ("LOCK.MACQUIRE 2 other free c QUEUE 60000", "GRACE ~"),
        ("LOCK.ACQUIRE held a QUEUE 60000", "GRACE ~"),
        // Asking again keeps the place, over any connection, with BLOCK and without.
        ("LOCK.ACQUIRE free a QUEUE 60000", "GRACE ~"),
        ("w: LOCK.ACQUIRE free a QUEUE 60000 BLOCK 5", "GRACE ~"),
        ("w: LOCK.ACQUIRE held a QUEUE 60000 BLOCK 5", "GRACE ~"),
        ("LOCK.ACQUIRE held a QUEUE 60000", "GRACE ~"),
        ("x: LOCK.ACQUIRE free b QUEUE 60000 BLOCK 0", "waits"),
        ("y: LOCK.ACQUIRE free b QUEUE 60000 BLOCK 0", "waits"),
        ("x:", TAKEN_OVER),
        ("LOCK.ACQUIRE free b QUEUE 60000", "GRACE ~"),
        ("LOCK.RW free a READ QUEUE 60000", "ERR owner stands there in another mode: release that first"),
    ]);
    assert_eq!(scene.conn.info_number("lock", "lock_places"), 4);
    scene.end();
    // Nobody waits for the first place: it is offered.
    scene.stage.until("lock_offered", 1);
    scene.play(&[
        ("LOCK.ACQUIRE free z", "nil"),
        ("LOCK.ACQUIRE free a QUEUE 60000", "#3"),
        ("LOCK.RELEASE free a", "0 | y: #4"),
        ("LOCK.ACQUIRE held a QUEUE 60000", "#5"),
        ("LOCK.RELEASE free b", "0"),
        ("LOCK.MACQUIRE 2 other free c QUEUE 60000", "[#6 #7]"),
    ]);
    assert_eq!(scene.conn.info_number("lock", "lock_places"), 0);
}

#[test]
fn a_request_with_queue_may_ask_from_a_script_during_a_grace() {
    let server = started();
    let mut scene = Scene::new(&server);
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    for (way, owner) in [(Way::Exec, "a"), (Way::Script, "b"), (Way::Function, "c")] {
        let reply = Player::new(&mut wire, way).reply_to(&format!("LOCK.ACQUIRE k {owner} BLOCK 0 QUEUE 60000"));
        assert_eq!(reply, "GRACE ~", "{way:?}");
    }
    scene.end();
    scene.stage.until("lock_offered", 1);
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000", "nil"), ("LOCK.ACQUIRE k a QUEUE 60000", "#1")]);
}
