//! What replicas, the append-only file and subscribers receive when a lock is handed on: one step, word by word.

use crate::harness::connection::{Connection, Reply};
use crate::harness::stream::Stream;
use crate::harness::transcript::{Row, Stage};
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::Server;

/// A transcript, and a stream of what the server sends meanwhile.
pub(crate) struct Scene<'s> {
    pub(crate) stage: Stage<'s>,
    stream: Stream,
    /// When it was looked last, by the wall clock.
    since_ms: u64,
}

fn wall_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// A server whose every effect is to be seen.
pub(crate) fn server() -> Server {
    Server::setup().option("appendonly", "yes").start()
}

impl Scene<'_> {
    /// On a server of its own.
    pub(crate) fn alone() -> Scene<'static> {
        Scene::with(Stage::owning(server()))
    }

    pub(crate) fn new(server: &Server) -> Scene<'_> {
        Scene::with(Stage::new(server))
    }

    fn with(stage: Stage<'_>) -> Scene<'_> {
        Scene { stream: Stream::of(stage.server()), stage, since_ms: wall_ms() }
    }

    /// Plays the rows and compares what was sent with what is expected; `#1` is the first fence, `~` any number. Of
    /// each lease the deadline on the wall and what is left say the same, as the clock stood when it was sent.
    #[track_caller]
    pub(crate) fn check(&mut self, rows: &[Row], expected: &[&str]) {
        self.stage.play(rows);
        let sent = self.stream.commands_and_file(self.stage.server());
        let now_ms = wall_ms();
        for lease in sent.iter().filter(|command| command[0] == "LOCK.HOLD" && command.len() > 7) {
            let [deadline, left] = [6, 7].map(|at| lease[at].parse::<u64>().unwrap());
            // Both are rounded up.
            assert!((self.since_ms..=now_ms + 2).contains(&(deadline - left)), "{lease:?} at {now_ms}");
        }
        self.since_ms = now_ms;
        let shown: Vec<String> = sent.iter().map(|command| self.show(command)).collect();
        let as_expected = |(shown, expected): (&String, &&str)| {
            let (shown, expected) = (shown.split(' '), expected.split(' '));
            shown.clone().count() == expected.clone().count()
                && shown.zip(expected).all(|(word, pattern)| {
                    word == pattern || pattern == "~" && word.parse::<u64>().is_ok_and(|number| number > 0)
                })
        };
        let all = shown.len() == expected.len() && shown.iter().zip(expected).all(as_expected);
        assert!(all, "{rows:?} sent {shown:#?}, expected {expected:#?}");
    }

    fn show(&mut self, command: &[String]) -> String {
        let words = command.iter().enumerate().map(|(at, word)| match (command[0].as_str(), at) {
            ("LOCK.HOLD", 5) => self.stage.name_of(word.parse().unwrap()),
            _ => word.clone(),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn a_release_and_the_grant_that_follows_are_sent_as_one() {
    // Between the two, a replica that takes over would give the lock to any requester.
    let mut scene = Scene::alone();
    scene.check(&[("LOCK.ACQUIRE k a PX 60000", "#1")], &["LOCK.HOLD k a 0 1 #1 ~ 60000"]);
    scene.check(&[("LOCK.ACQUIRE k a PX 60000", "#1")], &["LOCK.HOLD k a 0 2 #1 ~ 60000"]);
    // To wait changes nothing that others must know of.
    scene.check(
        &[
            ("b: LOCK.ACQUIRE k b PX 50000 NOTE mine BLOCK 0", "waits"),
            ("c: LOCK.RW k c READ PX 40000 BLOCK 60000", "waits"),
            ("d: LOCK.RW k d READ PX 30000 BLOCK 0", "waits"),
            ("e: LOCK.ACQUIRE k e PX 20000 BLOCK 0 RETRY 3", "waits"),
            ("LOCK.ACQUIRE k x BLOCK 1", "nil"),
        ],
        &[],
    );
    scene.check(&[("LOCK.RELEASE k a", "1")], &["LOCK.HOLD k a 0 1 #1 ~ ~"]);
    scene.check(
        &[("LOCK.RELEASE k a", "0"), ("b:", "#2")],
        &["MULTI", "LOCK.HOLD k a 0 0 #1", "LOCK.HOLD k b 0 1 #2 ~ 50000 mine", "EXEC"],
    );
    scene.check(
        &[("LOCK.RELEASE k b ALL", "0"), ("c:", "#3"), ("d:", "#4")],
        &["MULTI", "LOCK.HOLD k b 0 0 #2", "LOCK.HOLD k c 1 0 #3 ~ 40000", "LOCK.HOLD k d 1 0 #4 ~ 30000", "EXEC"],
    );
    scene.check(&[("LOCK.RELEASE k c TO 0", "0")], &["LOCK.HOLD k c 0 0 #3"]);
    scene.check(
        &[("LOCK.RELEASE k d FENCE #4", "0"), ("e:", "#5")],
        &["MULTI", "LOCK.HOLD k d 0 0 #4", "LOCK.HOLD k e 0 3 #5 ~ 20000", "EXEC"],
    );
    scene.check(&[("LOCK.RELEASE k e ALL", "0")], &["LOCK.HOLD k e 0 0 #5"]);
}

#[test]
fn an_upgrade_and_a_downgrade_hand_on_as_one_too() {
    // The same for holds that stay, in another mode.
    let mut scene = Scene::alone();
    scene.check(
        &[("LOCK.RW k a READ PX 60000", "#1"), ("LOCK.RW k b READ PX 60000", "#2")],
        &["LOCK.HOLD k a 1 0 #1 ~ 60000", "LOCK.HOLD k b 1 0 #2 ~ 60000"],
    );
    scene.check(
        &[
            ("a: LOCK.RW k a WRITE PX 70000 BLOCK 0", "waits"),
            ("r: LOCK.RW k r READ PX 50000 BLOCK 0", "waits"),
            ("LOCK.RELEASE k b", "0 | a: #3"),
        ],
        &["MULTI", "LOCK.HOLD k b 0 0 #2", "LOCK.HOLD k a 1 1 #3 ~ 70000", "EXEC"],
    );
    scene.check(
        &[("LOCK.RELEASE k a WRITE", "1"), ("r:", "#4")],
        &["MULTI", "LOCK.HOLD k a 1 0 #3 ~ ~", "LOCK.HOLD k r 1 0 #4 ~ 50000", "EXEC"],
    );
}

#[test]
fn a_lapse_and_the_grant_that_follows_are_sent_as_one() {
    // No client sends a command here: the timer must keep the two together by itself.
    let mut scene = Scene::alone();
    scene.check(
        &[
            ("LOCK.ACQUIRE k a PX 60000", "#1"),
            ("b: LOCK.ACQUIRE k b PX 50000 BLOCK 0", "waits"),
            ("LOCK.EXTEND k a PX 20", "#1 | b: #2"),
        ],
        &[
            "LOCK.HOLD k a 0 1 #1 ~ 60000",
            "LOCK.HOLD k a 0 1 #1 ~ 20",
            "MULTI",
            "LOCK.HOLD k a 0 0 #1",
            "LOCK.HOLD k b 0 1 #2 ~ 50000",
            "EXEC",
        ],
    );
}

#[test]
fn a_lease_found_over_by_a_command_hands_on_in_the_step_of_that_command() {
    // Whatever the command comes to, what settling did for others must be sent, and no requester passes the queue.
    let server = server();
    let mut scene = Scene::new(&server);
    scene.check(
        &[("LOCK.ACQUIRE k a PX 60000", "#1"), ("b: LOCK.ACQUIRE k b PX 50000 BLOCK 0", "waits")],
        &["LOCK.HOLD k a 0 1 #1 ~ 60000"],
    );
    // The server sleeps while the lease ends; the command is there before the timer.
    let mut pipe = redis::pipe();
    pipe.cmd("LOCK.EXTEND").arg(&["k", "a", "PX", "20"]).ignore();
    pipe.cmd("DEBUG").arg(&["SLEEP", "0.05"]).ignore();
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "c"]);
    let replies: (Option<i64>,) = pipe.query(&mut server.connect().0).unwrap();
    assert_eq!(replies, (None,));
    scene.check(
        &[("b:", "#2")],
        &["LOCK.HOLD k a 0 1 #1 ~ 20", "MULTI", "LOCK.HOLD k a 0 0 #1", "LOCK.HOLD k b 0 1 #2 ~ 50000", "EXEC"],
    );
}

#[test]
fn a_waiter_that_leaves_replicates_what_those_behind_are_granted_and_nothing_else() {
    // A wait is no fact, its end neither; the grants to readers that follow from it are.
    let mut scene = Scene::alone();
    scene.check(
        &[
            ("LOCK.RW k a READ PX 60000", "#1"),
            ("w: LOCK.RW k w WRITE BLOCK 0", "waits"),
            ("r: LOCK.RW k r READ PX 50000 BLOCK 0", "waits"),
            ("CLIENT UNBLOCK %w", "1 | w: nil | r: #2"),
        ],
        &["LOCK.HOLD k a 1 0 #1 ~ 60000", "LOCK.HOLD k r 1 0 #2 ~ 50000"],
    );
    // Several by one step come as one.
    scene.check(
        &[
            ("w: LOCK.RW k w WRITE BLOCK 0", "waits"),
            ("s: LOCK.RW k s READ PX 50000 BLOCK 0", "waits"),
            ("t: LOCK.RW k t READ PX 50000 BLOCK 0", "waits"),
            ("CLIENT KILL ID %w", "1 | s: #3 | t: #4"),
        ],
        &["MULTI", "LOCK.HOLD k s 1 0 #3 ~ 50000", "LOCK.HOLD k t 1 0 #4 ~ 50000", "EXEC"],
    );
    // No waiter behind.
    scene.check(
        &[
            ("v: LOCK.RW k v WRITE BLOCK 0", "waits"),
            ("CLIENT UNBLOCK %v ERROR", "1 | v: UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            ("v: LOCK.RW k v WRITE BLOCK 20", "nil"),
        ],
        &[],
    );
}

#[test]
fn a_transaction_and_a_script_hand_on_within_their_own_step() {
    // The waiter is granted before the next command of the transaction, which must see it.
    let mut scene = Scene::alone();
    scene.check(
        &[
            ("LOCK.ACQUIRE k a PX 60000", "#1"),
            ("b: LOCK.ACQUIRE k b PX 50000 BLOCK 0", "waits"),
            ("c: LOCK.ACQUIRE k c PX 40000 BLOCK 0", "waits"),
            ("t: MULTI", "OK"),
            ("t: LOCK.RELEASE k a", "QUEUED"),
            ("t: LOCK.ACQUIRE k a PX 60000", "QUEUED"),
            ("t: LOCK.EXTEND k b PX 70000", "QUEUED"),
            ("t: EXEC", "[0 nil #2] | b: #2"),
        ],
        &[
            "LOCK.HOLD k a 0 1 #1 ~ 60000",
            "MULTI",
            "LOCK.HOLD k a 0 0 #1",
            "LOCK.HOLD k b 0 1 #2 ~ 50000",
            "LOCK.HOLD k b 0 1 #2 ~ 70000",
            "EXEC",
        ],
    );
    let script = "redis.call('LOCK.RELEASE', KEYS[1], 'b') return redis.call('LOCK.RELEASE', KEYS[1], 'c')";
    assert_eq!(scene.stage.ask(&["EVAL", script, "1", "k"]), Reply::Int(0));
    scene.check(
        // It was granted the lock, and a client that knew its name released it.
        &[("c:", "#3"), ("EXISTS k", "0")],
        &["MULTI", "LOCK.HOLD k b 0 0 #2", "LOCK.HOLD k c 0 1 #3 ~ 40000", "LOCK.HOLD k c 0 0 #3", "EXEC"],
    );
}

#[test]
fn subscribers_hear_of_the_release_first_and_never_of_a_key_that_is_gone() {
    // A subscriber to the events would see two holders, or start something because the key was deleted.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b PX 200 BLOCK 0", "waits"),
        ("c: LOCK.RW k c READ BLOCK 0", "waits"),
        ("d: LOCK.RW k d READ BLOCK 0", "waits"),
        ("w: LOCK.RW k w WRITE BLOCK 0", "waits"),
        ("e: LOCK.RW k e READ BLOCK 0", "waits"),
        // All there are, of new keys too.
        ("CONFIG SET notify-keyspace-events EAn", "OK"),
    ]);
    let mut subscriber = Connection::resp2(&server);
    subscriber.say("PSUBSCRIBE __keyevent@0__:*");
    stage.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2"), ("c:", "#3"), ("d:", "#4")]);
    stage.play(&[("CLIENT UNBLOCK %w", "1"), ("w:", "nil"), ("e:", "#5")]);
    let expected = ["lock.release", "lock.acquire", "lock.lapse", "lock.acquire", "lock.acquire", "lock.acquire"];
    for event in expected {
        let message = subscriber.read().items();
        let channel = format!("__keyevent@0__:{event}");
        assert_eq!(message[2..], [Reply::bulk(&channel), Reply::bulk("k")]);
    }
    assert!(!subscriber.has_reply());
}
