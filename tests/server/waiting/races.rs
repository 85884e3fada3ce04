//! Races of delivery: a grant that meets something which keeps it from its client, in the same turn of the server's
//! loop, in either order. Its client gets exactly one reply, and what it was granted and never learnt of goes to the
//! next.
//!
//! On Redis 7.0 and 7.2 clients are unblocked late in the turn (src/ffi/blocked.rs), so that there, too, a client that
//! was served is never sent a second reply. No server that is supported makes an exception to what is tested here.

use crate::harness::lapses::alone;
use crate::harness::link::{Line, Link};
use crate::harness::stream::Stream;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Client, Server, Signal, wait_for};

/// How long a lock may take to be handed on after it could not be delivered. The leases here are far longer.
const PROMPT: Duration = Duration::from_secs(60);

/// How the commands of one turn reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In one write of one connection.
    Pipelined,
    /// Between MULTI and EXEC.
    Exec,
    /// Each by a connection of its own, all of them pending when the server looks.
    Connections,
}

const WAYS: [Way; 3] = [Way::Pipelined, Way::Exec, Way::Connections];

/// A lock that `a` holds and for which `b` and then `c` wait.
struct Scene<'s> {
    server: &'s Server,
    conn: Client,
    key: String,
    fence_a: i64,
    b: Link,
    c: Link,
    taken_back_before: u64,
}

impl<'s> Scene<'s> {
    fn new(server: &'s Server, key: &str) -> Scene<'s> {
        Scene::with(server, key, "BLOCK 0")
    }

    /// The limit is that of `b`.
    fn with(server: &'s Server, key: &str, limit: &str) -> Scene<'s> {
        let mut conn = server.connect();
        let taken_back_before = taken_back(&mut conn);
        let fence_a = conn.int(&["LOCK.ACQUIRE", key, "a", "PX", "600000"]).expect("free");
        let b = parked(server, &mut conn, &format!("LOCK.ACQUIRE {key} b PX 600000 {limit}"));
        let c = parked(server, &mut conn, &format!("LOCK.ACQUIRE {key} c PX 600000 BLOCK 0"));
        Scene { server, conn, key: key.to_owned(), fence_a, b, c, taken_back_before }
    }

    /// Lets the server do these things in one turn, in this order. In them, `$k` is the key, `$b` and `$c` are the
    /// clients.
    fn turn(&self, way: Way, commands: &[&str]) {
        turn(self.server, way, &commands.iter().map(|command| self.words(command)).collect::<Vec<_>>());
    }

    fn words(&self, command: &str) -> String {
        let id = |link: &Link| link.id.to_string();
        command.replace("$k", &self.key).replace("$b", &id(&self.b)).replace("$c", &id(&self.c))
    }

    /// What `b` never learnt of was taken back: `c` has the lock, soon, and with a higher fence.
    fn assert_handed_on(mut self) {
        let start = Instant::now();
        let fence = self.c.only_reply().fence();
        assert!(start.elapsed() < PROMPT, "handed on after {:?}", start.elapsed());
        assert!(fence > self.fence_a);
        self.assert_held_by("c", fence);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before + 1);
        self.end();
    }

    /// `c` has the lock, which `b` was never granted.
    fn assert_passed_by(mut self) {
        let fence = self.c.only_reply().fence();
        assert!(fence > self.fence_a);
        self.assert_held_by("c", fence);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before);
        self.end();
    }

    /// `b` knows that it has the lock, so it keeps it.
    fn assert_kept(mut self, reply: &Line) {
        let fence = reply.fence();
        assert!(fence > self.fence_a);
        // Whatever the server would take back by itself, it would do in the turns and the tick that come.
        pass_ticks();
        self.c.assert_waits();
        self.assert_held_by("b", fence);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before);
        // And it is a hold like any other.
        assert_eq!(self.conn.int(&["LOCK.RELEASE", &self.key, "b"]), Some(0));
        assert!(self.c.only_reply().fence() > fence);
        self.end();
    }

    fn assert_held_by(&mut self, owner: &str, fence: i64) {
        let info = self.conn.lock_info(&self.key).expect("held");
        let holders: Vec<_> = info.holders.iter().map(|holder| (&holder.owner[..], holder.fence)).collect();
        assert_eq!(holders, [(owner.as_bytes(), fence)]);
    }

    /// Leaves nothing behind; what the append-only file has is whole.
    fn end(mut self) {
        self.conn.int(&["DEL", &self.key]);
        wait_for("nobody to be left", || self.conn.info_number("lock", "lock_waiters") == 0);
        assert_eq!(self.conn.info("clients", "blocked_clients"), "0");
        assert_exclusive(&self.server.aof_tail(), &self.key);
    }
}

/// A server whose append-only file can be read by the test.
fn server() -> Server {
    Server::setup().option("appendonly", "yes").option("appendfsync", "no").start()
}

fn taken_back(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_taken_back")
}

/// A client that has sent a command and waits.
fn parked(server: &Server, conn: &mut Client, command: &str) -> Link {
    let before = conn.info_number("lock", "lock_waiters");
    let mut link = Link::new(server);
    link.send(command);
    wait_for("the client to wait", || conn.info_number("lock", "lock_waiters") == before + 1);
    link
}

/// Lets the server's tick pass, twice: for what must not happen there is no condition to wait for.
fn pass_ticks() {
    std::thread::sleep(Duration::from_millis(250));
}

/// Lets the server serve these commands in one turn of its loop, and waits until it has.
fn turn(server: &Server, way: Way, commands: &[String]) {
    match way {
        Way::Pipelined => {
            let mut link = Link::new(server);
            link.send(&commands.join("\r\n"));
            for command in commands {
                assert_served(command, &link.read());
            }
        }
        Way::Exec => {
            let mut link = Link::new(server);
            link.send(&format!("MULTI\r\n{}\r\nEXEC", commands.join("\r\n")));
            assert_eq!(link.read(), Line::Simple("OK".to_owned()));
            for command in commands {
                assert_eq!(link.read(), Line::Simple("QUEUED".to_owned()), "{command}");
            }
            assert_eq!(link.read(), Line::Head(commands.len()));
            for command in commands {
                assert_served(command, &link.read());
            }
        }
        Way::Connections => {
            let mut links: Vec<Link> = commands.iter().map(|_| Link::new(server)).collect();
            while_stopped(server, || {
                for (link, command) in links.iter_mut().zip(commands) {
                    link.send(command);
                }
            });
            for (link, command) in links.iter_mut().zip(commands) {
                assert_served(command, &link.read());
            }
        }
    }
}

fn assert_served(command: &str, reply: &Line) {
    match reply {
        Line::Fence(0) => assert!(command.starts_with("LOCK.RELEASE"), "{command} did nothing"),
        Line::Fence(_) | Line::Simple(_) => {}
        other => panic!("{command}: {other:?}"),
    }
}

/// Does something while the server stands still, so that it finds all of it pending in one turn, in this order.
///
/// It is stopped within a command: the kernel gives what happens in the middle of a wait for events in another order.
fn while_stopped(server: &Server, work: impl FnOnce()) {
    let mut sleeper = Link::new(server);
    loop {
        sleeper.send("DEBUG SLEEP 0.2");
        let state = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", server.pid())).unwrap();
        let is_asleep = || {
            let syscall = state("syscall");
            let number = syscall.split(' ').next().and_then(|number| number.parse().ok());
            number.is_some_and(|number| [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&number))
        };
        let deadline = Instant::now() + Duration::from_millis(100);
        while !is_asleep() && Instant::now() < deadline {}
        server.signal(Signal::STOP);
        wait_for("the server to stand still", || {
            state("stat").rsplit(')').next().unwrap().trim_start().starts_with('T')
        });
        if sleeper.waits() {
            break;
        }
        // It slept no more.
        server.signal(Signal::CONT);
        assert_eq!(sleeper.read(), Line::Simple("OK".to_owned()));
    }
    work();
    server.signal(Signal::CONT);
    assert_eq!(sleeper.read(), Line::Simple("OK".to_owned()));
}

/// Whether in the facts that replicas and the append-only file learn no two owners hold a key for writing at once, and
/// fences rise from grant to grant.
fn assert_exclusive(commands: &[Vec<String>], key: &str) {
    let mut holder: Option<&str> = None;
    let mut last_fence = 0;
    for command in commands {
        match command[0].to_ascii_uppercase().as_str() {
            "LOCK.HOLD" if command[1] == key => {}
            "DEL" | "UNLINK" if command[1..].iter().any(|name| name == key) => {
                holder = None;
                continue;
            }
            "FLUSHALL" => {
                holder = None;
                continue;
            }
            _ => continue,
        }
        let (owner, writes, fence) = (&command[2], &command[4], command[5].parse::<i64>().unwrap());
        if writes == "0" {
            assert_eq!(holder.take(), Some(owner.as_str()), "{command:?} in {commands:#?}");
        } else if holder == Some(owner) {
            // Carried, it gets a new one.
            assert!(fence >= last_fence, "{command:?} in {commands:#?}");
            last_fence = fence;
        } else {
            assert_eq!(holder.replace(owner), None, "{command:?} in {commands:#?}");
            assert!(fence > last_fence, "{command:?} in {commands:#?}");
            last_fence = fence;
        }
    }
}

const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

#[test]
fn a_grant_that_meets_client_unblock_error_goes_to_the_next() {
    // The client would get the error alone, and the lock would be nobody's until its lease ends; or, on 7.0 and 7.2,
    // both fence and error.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT UNBLOCK $b ERROR"]);
        assert_eq!(scene.b.only_reply(), Line::Error(UNBLOCKED.to_owned()), "{way:?}");
        scene.assert_handed_on();
    }
}

#[test]
fn a_grant_that_comes_after_client_unblock_error_goes_to_the_next() {
    // A client that is on its way out would be served.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["CLIENT UNBLOCK $b ERROR", "LOCK.RELEASE $k a"]);
        assert_eq!(scene.b.only_reply(), Line::Error(UNBLOCKED.to_owned()), "{way:?}");
        scene.assert_passed_by();
    }
}

#[test]
fn a_grant_that_meets_client_unblock_timeout_is_delivered() {
    // The server asks for the reply to a time-out of a client that was served: null would lose the lock, and a second
    // reply would come for the grant.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT UNBLOCK $b TIMEOUT"]);
        let reply = scene.b.only_reply();
        scene.assert_kept(&reply);
    }
}

#[test]
fn a_grant_that_comes_after_client_unblock_timeout_goes_to_the_next() {
    // A client that was told that its time is up would be served.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["CLIENT UNBLOCK $b TIMEOUT", "LOCK.RELEASE $k a"]);
        assert_eq!(scene.b.only_reply(), Line::Null, "{way:?}");
        scene.assert_passed_by();
    }
}

#[test]
fn a_grant_that_meets_client_kill_goes_to_the_next() {
    // Nobody is there to learn of it.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT KILL ID $b"]);
        scene.b.assert_closed_in_silence();
        scene.assert_handed_on();
    }
}

#[test]
fn a_grant_that_comes_after_client_kill_goes_to_the_next() {
    // A client that is gone would be served.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["CLIENT KILL ID $b", "LOCK.RELEASE $k a"]);
        scene.b.assert_closed_in_silence();
        scene.assert_passed_by();
    }
}

#[test]
fn a_grant_that_meets_client_unblock_timeout_and_client_kill_goes_to_the_next() {
    // The reply was asked for already when the client is killed: it lies in an output that is thrown away.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT UNBLOCK $b TIMEOUT", "CLIENT KILL ID $b"]);
        scene.b.assert_closed_in_silence();
        scene.assert_handed_on();
    }
}

#[test]
fn a_grant_that_meets_a_socket_that_closes_goes_to_the_next() {
    // The server hears of the release first and of the end of the connection afterwards, in the same turn.
    let server = server();
    let mut scene = Scene::new(&server, "k");
    let mut releaser = Link::new(&server);
    while_stopped(&server, || {
        releaser.send("LOCK.RELEASE k a");
        scene.b.close();
    });
    assert_eq!(releaser.read(), Line::Fence(0));
    scene.assert_handed_on();
}

#[test]
fn a_grant_that_comes_after_a_socket_has_closed_goes_to_the_next() {
    // The server hears of the end of the connection first, in the same turn: a client that is on its way out would be
    // served.
    let server = server();
    let mut scene = Scene::new(&server, "k");
    let mut releaser = Link::new(&server);
    while_stopped(&server, || {
        scene.b.close();
        releaser.send("LOCK.RELEASE k a");
    });
    assert_eq!(releaser.read(), Line::Fence(0));
    scene.assert_passed_by();
}

#[test]
fn a_grant_that_meets_a_time_limit_is_answered_once() {
    // The release and the end of the wait are both pending. Whoever is first decides, and the client hears of that
    // alone.
    let server = server();
    // Long enough to come to the next step on a busy machine.
    let mut scene = Scene::with(&server, "k", "BLOCK 3000");
    let mut releaser = Link::new(&server);
    while_stopped(&server, || {
        releaser.send("LOCK.RELEASE k a");
        std::thread::sleep(Duration::from_millis(3100));
    });
    assert_eq!(releaser.read(), Line::Fence(0));
    // The core asks for the time before it serves: this one's is up.
    assert_eq!(scene.b.only_reply(), Line::Null);
    scene.assert_passed_by();
}

#[test]
fn a_grant_whose_time_limit_ends_before_it_is_delivered_is_delivered() {
    // The server's own time-out, were it used, would end the wait without a reply on 7.0, and end the server on 7.2.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::with(&server, "k", "BLOCK 3000");
        // Longer than what is left of the time limit, which is long enough to come here on a busy machine.
        scene.turn(way, &["LOCK.RELEASE $k a", "DEBUG SLEEP 3.1"]);
        let reply = scene.b.only_reply();
        scene.assert_kept(&reply);
    }
}

#[test]
fn a_grant_that_meets_del_is_delivered_and_the_next_is_served() {
    // The lock that it was granted is gone when it hears of it: as for every other holder, and the next one waits no
    // more.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "DEL $k"]);
        let fence = scene.b.only_reply().fence();
        let next = scene.c.only_reply().fence();
        assert!(next > fence && fence > scene.fence_a, "{way:?}");
        scene.assert_held_by("c", next);
        assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before);
        scene.end();
    }
}

#[test]
fn a_grant_that_meets_flushall_is_delivered_and_the_next_is_served() {
    // As with DEL, but the server tells nothing of single keys.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "FLUSHALL"]);
        let fence = scene.b.only_reply().fence();
        let next = scene.c.only_reply().fence();
        assert!(next > fence && fence > scene.fence_a, "{way:?}");
        scene.assert_held_by("c", next);
        assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before);
        scene.end();
    }
}

#[test]
fn a_grant_that_comes_after_the_lock_is_gone_goes_by_the_line() {
    // DEL and FLUSHALL serve the line later in the turn; a release of what is gone must not serve it twice.
    let server = server();
    for way in [Way::Pipelined, Way::Exec] {
        for gone in ["DEL $k", "FLUSHALL"] {
            let mut scene = Scene::new(&server, "k");
            let mut link = Link::new(&server);
            let release = "LOCK.RELEASE k a";
            let commands = [scene.words(gone), release.to_owned()];
            if way == Way::Exec {
                link.send(&format!("MULTI\r\n{}\r\nEXEC", commands.join("\r\n")));
            } else {
                link.send(&commands.join("\r\n"));
            }
            let reply = scene.b.only_reply();
            scene.assert_kept(&reply);
        }
    }
}

#[test]
fn a_grant_that_is_deleted_and_lost_in_one_turn_is_not_taken_from_the_next() {
    // What is taken back is what was granted, not what lies there now.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "DEL $k", "CLIENT KILL ID $b"]);
        scene.b.assert_closed_in_silence();
        scene.assert_passed_by();
    }
}

#[test]
fn a_grant_that_meets_a_demotion_is_answered_once_and_everybody_is_sent_away() {
    // A replica takes nothing back; who was not told of the grant gets an error and may ask again, with RETRY.
    for way in WAYS {
        let server = server();
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "REPLICAOF 127.0.0.1 1"]);
        let (b, c) = (scene.b.only_reply(), scene.c.only_reply());
        let sent_away = |line: &Line| matches!(line, Line::Error(text) if text.starts_with("UNBLOCKED "));
        assert!(sent_away(&c), "{way:?}: {c:?}");
        assert!(sent_away(&b) || b.fence() > scene.fence_a, "{way:?}: {b:?}");
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
    let mut link = Link::new(&server);
    link.send("REPLICAOF 127.0.0.1 1\r\nLOCK.RELEASE k a");
    assert_eq!(link.read(), Line::Simple("OK".to_owned()));
    assert!(matches!(link.read(), Line::Error(text) if text.starts_with("READONLY ")));
    for waiter in [&mut scene.b, &mut scene.c] {
        let reply = waiter.only_reply();
        assert!(matches!(&reply, Line::Error(text) if text.starts_with("UNBLOCKED ")), "{reply:?}");
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
        scene.c.assert_closed_in_silence();
        let start = Instant::now();
        wait_for("the lock to be free", || scene.conn.lock_info("k").is_none());
        assert!(start.elapsed() < PROMPT);
        assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before + 1);
        scene.end();
    }
}

#[test]
fn who_stood_behind_one_that_is_gone_is_let_in_at_once() {
    // A writer keeps readers waiting who would fit: when it goes, nothing happens to the key that would serve them.
    let server = server();
    let mut conn = server.connect();
    for end in ["CLIENT KILL ID", "CLIENT UNBLOCK", "close"] {
        let fence = conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).expect("free");
        let mut writer = parked(&server, &mut conn, "LOCK.RW k b WRITE PX 600000 BLOCK 0");
        let mut reader = parked(&server, &mut conn, "LOCK.RW k c READ PX 600000 BLOCK 0");
        let start = Instant::now();
        match end {
            "close" => writer.close(),
            _ => turn(&server, Way::Pipelined, &[format!("{end} {}", writer.id)]),
        }
        assert!(reader.only_reply().fence() > fence);
        assert!(start.elapsed() < PROMPT, "{end}: after {:?}", start.elapsed());
        conn.int(&["DEL", "k"]);
    }
}

#[test]
fn grants_that_are_lost_one_after_the_other_reach_the_last() {
    // A grant that is handed on and lost again must be taken back again.
    let server = server();
    for way in WAYS {
        let scene = Scene::new(&server, "k");
        let mut conn = server.connect();
        let mut last = parked(&server, &mut conn, "LOCK.ACQUIRE k d PX 600000 BLOCK 0");
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT UNBLOCK $b ERROR", "CLIENT KILL ID $c"]);
        assert!(last.only_reply().fence() > scene.fence_a);
        assert_eq!(conn.info("lock", "lock_waiters"), "0");
        scene.end();
    }
}

#[test]
fn only_what_a_lost_upgrade_added_is_taken_back() {
    // The reads that its owner knows of would go with the write that it does not.
    let server = server();
    for way in WAYS {
        let mut conn = server.connect();
        let before = taken_back(&mut conn);
        for owner in ["a", "b", "b"] {
            conn.int(&["LOCK.RW", "k", owner, "READ", "PX", "600000"]).expect("shared");
        }
        let mut upgrade = parked(&server, &mut conn, "LOCK.RW k b WRITE PX 600000 BLOCK 0");
        let mut reader = parked(&server, &mut conn, "LOCK.RW k c READ PX 600000 BLOCK 0");
        turn(&server, way, &["LOCK.RELEASE k a".to_owned(), format!("CLIENT KILL ID {}", upgrade.id)]);
        upgrade.assert_closed_in_silence();
        // Once the write is gone, a reader fits in.
        assert!(reader.only_reply().fence() > 0);
        let info = conn.lock_info("k").expect("held");
        let held: Vec<_> = info.holders.iter().map(|holder| (&holder.owner[..], holder.reads, holder.writes)).collect();
        assert!(held.len() == 2 && held.contains(&(b"b", 2, 0)) && held.contains(&(b"c", 1, 0)), "{held:?}");
        assert_eq!(taken_back(&mut conn), before + 1);
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "b", "ALL"]), Some(0));
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "c"]), Some(0));
    }
}

#[test]
fn what_a_lost_upgrade_leaves_has_the_fence_that_its_owner_knows() {
    // By the fence of its reads the owner would be told that it holds nothing, while it does until its lease ends.
    let server = server();
    for way in WAYS {
        let mut conn = server.connect();
        let fence_a = conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).expect("free");
        let fence = conn.int(&["LOCK.RW", "k", "b", "READ", "PX", "600000"]).expect("shared").to_string();
        let mut upgrade = parked(&server, &mut conn, "LOCK.RW k b WRITE PX 600000 BLOCK 0");
        turn(&server, way, &["LOCK.RELEASE k a".to_owned(), format!("CLIENT UNBLOCK {} ERROR", upgrade.id)]);
        assert_eq!(upgrade.only_reply(), Line::Error(UNBLOCKED.to_owned()));
        assert_eq!(
            conn.int(&["LOCK.EXTEND", "k", "b", "PX", "600000", "FENCE", &fence]),
            fence.parse().ok(),
            "{way:?}"
        );
        // A grant that comes after still has a fence above all that were given.
        let later = conn.int(&["LOCK.RW", "k", "b", "WRITE", "PX", "600000"]).expect("alone");
        assert!(later > fence_a && later > fence.parse().unwrap());
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
                    pass_ticks();
                    scene.c.assert_waits();
                    let info = scene.conn.lock_info("k").expect("held");
                    let what = format!("{way:?} {then:?}");
                    assert_eq!((&info.holders[0].owner[..], info.holders[0].writes), (&b"b"[..], count), "{what}");
                    assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before, "{what}");
                    assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b", "ALL"]), Some(0));
                    assert!(scene.c.only_reply().fence() > info.fence);
                    scene.end();
                }
            }
        }
    }
}

#[test]
fn an_extend_that_was_refused_confirms_nothing() {
    // Null says that the owner holds nothing by that fence. Were it taken for a sign that it knows of its grant, the
    // lock would be nobody's until the lease ends.
    let server = server();
    for way in [Way::Pipelined, Way::Connections] {
        let mut scene = Scene::new(&server, "k");
        let mut links = [Link::new(&server), Link::new(&server), Link::new(&server)];
        let commands = [
            "LOCK.RELEASE k a".to_owned(),
            "LOCK.EXTEND k b PX 600000 FENCE 1".to_owned(),
            scene.words("CLIENT KILL ID $b"),
        ];
        if way == Way::Pipelined {
            links[0].send(&commands.join("\r\n"));
            assert_eq!(
                [links[0].read(), links[0].read(), links[0].read()],
                [Line::Fence(0), Line::Null, Line::Fence(1)]
            );
        } else {
            while_stopped(&server, || links.iter_mut().zip(&commands).for_each(|(link, command)| link.send(command)));
            assert_eq!(links.map(|mut link| link.read()), [Line::Fence(0), Line::Null, Line::Fence(1)]);
        }
        scene.b.assert_closed_in_silence();
        scene.assert_handed_on();
    }
}

#[test]
fn a_lost_grant_that_its_owner_has_released_is_not_taken_back() {
    // The next one's hold would go.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        scene.turn(way, &["LOCK.RELEASE $k a", "LOCK.RELEASE $k b", "CLIENT KILL ID $b"]);
        scene.b.assert_closed_in_silence();
        scene.assert_passed_by();
    }
}

#[test]
fn replicas_learn_of_a_lost_grant_of_its_end_and_of_the_next_in_order() {
    // A replica that is promoted in between would let two hold it, or nobody, for a lease.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        let mut stream = Stream::of(&server);
        scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT KILL ID $b"]);
        let fence_c = scene.c.only_reply().fence();
        let commands = stream.commands(&server);
        let facts: Vec<Vec<&str>> = commands
            .iter()
            .filter(|command| command[0] == "LOCK.HOLD")
            .map(|command| command[2..6].iter().map(String::as_str).collect())
            .collect();
        let (fence_a, fence_b, fence_c) = (scene.fence_a.to_string(), facts[1][3], fence_c.to_string());
        assert_eq!(
            facts,
            [["a", "0", "0", &fence_a], ["b", "0", "1", fence_b], ["b", "0", "0", fence_b], ["c", "0", "1", &fence_c]]
        );
        // The release and the grant in one transaction, the end of the grant and the next one in another.
        let of = |at: usize| {
            commands.iter().position(|command| command.get(2..6).is_some_and(|fact| fact == facts[at])).unwrap()
        };
        for (first, second) in [(0, 1), (2, 3)] {
            assert_eq!(of(second), of(first) + 1, "{commands:#?}");
            assert_eq!(commands[of(first) - 1][0].to_ascii_uppercase(), "MULTI", "{commands:#?}");
            assert_eq!(commands[of(second) + 1][0].to_ascii_uppercase(), "EXEC", "{commands:#?}");
        }
        assert_eq!(server.aof_tail().iter().filter(|command| command[0] == "LOCK.HOLD").count() % 5, 0);
        drop(stream);
        // The same as for every other scene.
        scene.end();
    }
}

#[test]
fn what_was_lost_before_a_pause_is_taken_back_after_it() {
    // To write during a pause ends the server.
    let server = server();
    for way in WAYS {
        for mode in ["WRITE", "ALL"] {
            let mut scene = Scene::new(&server, "k");
            // Replies to what this connection asks meanwhile would wait for the end of a pause of all.
            let start = Instant::now();
            scene.turn(way, &["LOCK.RELEASE $k a", "CLIENT KILL ID $b", &format!("CLIENT PAUSE 700 {mode}")]);
            scene.b.assert_closed_in_silence();
            std::thread::sleep(Duration::from_millis(400).saturating_sub(start.elapsed()));
            let waits = scene.c.waits();
            // Looked at before the clock: what was seen, was seen during the pause.
            if start.elapsed() < Duration::from_millis(690) {
                assert!(waits, "{way:?} {mode}: let in during the pause");
            }
            scene.c.read().fence();
            assert!(start.elapsed() >= Duration::from_millis(690), "{way:?} {mode}: after {:?}", start.elapsed());
            assert!(start.elapsed() < PROMPT);
            assert_eq!(taken_back(&mut scene.conn), scene.taken_back_before + 1);
            scene.end();
        }
    }
}

#[test]
fn retry_confirms_a_grant_whose_connection_dies() {
    // The client that comes back would be told that others hold it, or hold it twice.
    let server = server();
    for way in WAYS {
        let mut scene = Scene::new(&server, "k");
        let mut again = Link::new(&server);
        let retry = "LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1";
        match way {
            Way::Connections => while_stopped(&server, || {
                scene
                    .conn
                    .0
                    .send_packed_command(&redis::cmd("LOCK.RELEASE").arg("k").arg("a").get_packed_command())
                    .unwrap();
                again.send(retry);
                scene.b.close();
            }),
            // In an instant, but not in a turn.
            _ => scene.turn(way, &["LOCK.RELEASE $k a", retry, "CLIENT KILL ID $b"]),
        }
        let fence = if way == Way::Connections {
            assert_eq!(scene.conn.0.recv_response().unwrap(), redis::Value::Int(0));
            again.only_reply().fence()
        } else {
            scene.conn.lock_info("k").expect("held").fence
        };
        pass_ticks();
        scene.c.assert_waits();
        scene.assert_held_by("b", fence);
        assert_eq!(scene.conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0), "{way:?}: held once");
        assert!(scene.c.only_reply().fence() > fence);
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
            let mut successor = Link::new(&server);
            successor.send("LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1");
            assert_eq!(scene.b.only_reply(), Line::Null);
            let second = Link::new(&server);
            let mut second = second;
            let (kill, kill_second) =
                (format!("CLIENT KILL ID {}", successor.id), format!("CLIENT KILL ID {}", second.id));
            // The successor's successor comes in the very turn that ends both.
            while_stopped(&server, || second.send("LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1"));
            assert_eq!(successor.read(), Line::Null);
            if granted {
                scene.turn(way, &["LOCK.RELEASE $k a", &kill, &kill_second]);
                successor.assert_closed_in_silence();
                second.assert_closed_in_silence();
                scene.assert_handed_on();
            } else {
                scene.turn(way, &[&kill, &kill_second, "LOCK.RELEASE $k a"]);
                successor.assert_closed_in_silence();
                second.assert_closed_in_silence();
                scene.assert_passed_by();
            }
        }
    }
}

#[test]
fn a_place_that_is_taken_over_and_lost_in_one_turn_is_lost_for_both() {
    // The answer to the first and the wait of the second end at the same time.
    let server = server();
    let mut scene = Scene::new(&server, "k");
    let mut successor = Link::new(&server);
    let kills = [scene.words("CLIENT KILL ID $b"), format!("CLIENT KILL ID {}", successor.id)];
    let mut killer = Link::new(&server);
    while_stopped(&server, || {
        successor.send("LOCK.ACQUIRE k b PX 600000 BLOCK 0 RETRY 1");
        killer.send(&format!("{}\r\n{}\r\nLOCK.RELEASE k a", kills[0], kills[1]));
    });
    assert_eq!([killer.read(), killer.read(), killer.read()], [Line::Fence(1), Line::Fence(1), Line::Fence(0)]);
    scene.b.assert_closed_in_silence();
    successor.assert_closed_in_silence();
    scene.assert_passed_by();
}

#[test]
fn a_thousand_waiters_that_are_killed_at_once_leave_nothing() {
    // Each of them is looked for, taken out of line and freed by itself.
    const WAITERS: u64 = 1_000;
    let _alone = alone();
    let server = server();
    let mut conn = server.connect();
    let kill_all = |conn: &mut Client| {
        let mut links: Vec<Link> = (0..WAITERS).map(|_| Link::new(&server)).collect();
        for (n, link) in links.iter_mut().enumerate() {
            link.send(&format!("LOCK.ACQUIRE k w{n} PX 600000 BLOCK 0"));
        }
        wait_for("all to wait", || conn.info_number("lock", "lock_waiters") == WAITERS);
        let start = Instant::now();
        assert_eq!(conn.int(&["CLIENT", "KILL", "TYPE", "normal"]), Some(WAITERS as i64));
        links.iter_mut().for_each(Link::assert_closed_in_silence);
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
        // The server keeps some of what a parked client needs for the next ones, and gives it back tick by tick.
        conn.get::<String>(&["MEMORY", "PURGE"]);
        let mut last = u64::MAX;
        wait_for("memory to come back", || {
            std::thread::sleep(Duration::from_millis(300));
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
    let mut next = parked(&server, &mut conn, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    assert!(next.only_reply().fence() > 0);
}

#[test]
fn an_error_reaches_who_waited_though_others_begin_to_wait_meanwhile() {
    // Some servers ask for an answer a turn later. Another waiter may have its place by then, and it was answered null.
    let server = Server::new();
    let mut conn = server.connect();
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
