//! The scene of the races: a lock that one client holds and for which two wait. It shows what happens to the lock in
//! one turn of the server's loop, and the ends that it may come to.

use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{let_it_tick, taken_back};
use crate::harness::turn::{Way, turn_of};
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

/// How long a lock may take to be handed on after it could not be delivered. The leases here are far longer.
pub(crate) const PROMPT: Duration = Duration::from_secs(60);

/// A lock that `a` holds and for which `b` and then `c` wait.
pub(crate) struct Scene<'s> {
    pub(crate) server: &'s Server,
    pub(crate) conn: Client,
    pub(crate) key: String,
    pub(crate) fence_a: i64,
    pub(crate) b: Connection,
    pub(crate) c: Connection,
    pub(crate) taken_back_before: u64,
}

impl<'s> Scene<'s> {
    pub(crate) fn new(server: &'s Server, key: &str) -> Scene<'s> {
        Scene::with(server, key, "BLOCK 0")
    }

    /// The limit is that of `b`.
    pub(crate) fn with(server: &'s Server, key: &str, limit: &str) -> Scene<'s> {
        let mut conn = server.connect();
        let taken_back_before = taken_back(&mut conn);
        let fence_a = conn.int(&["LOCK.ACQUIRE", key, "a", "PX", "600000"]).expect("free");
        let b = Connection::waiting(server, &format!("LOCK.ACQUIRE {key} b PX 600000 {limit}"));
        let c = Connection::waiting(server, &format!("LOCK.ACQUIRE {key} c PX 600000 BLOCK 0"));
        Scene { server, conn, key: key.to_owned(), fence_a, b, c, taken_back_before }
    }

    /// Lets the server do these things in one turn, in this order. In them, `$k` is the key, `$b` and `$c` are the
    /// clients.
    pub(crate) fn turn(&mut self, way: Way, commands: &[&str]) {
        let commands: Vec<String> = commands.iter().map(|command| self.words(command)).collect();
        turn_of(self.server, way, &commands, Some(&mut self.b));
    }

    pub(crate) fn words(&self, command: &str) -> String {
        let id = |link: &Connection| link.id().to_string();
        command.replace("$k", &self.key).replace("$b", &id(&self.b)).replace("$c", &id(&self.c))
    }

    /// What `b` never learnt of was rolled back: `c` has the lock, soon, and with a higher fence.
    pub(crate) fn assert_handed_on(mut self) {
        let start = Instant::now();
        let fence = self.c.only_reply().int();
        assert!(start.elapsed() < PROMPT, "handed on after {:?}", start.elapsed());
        assert!(fence > self.fence_a);
        self.assert_held_by("c", fence);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before + 1);
        self.end();
    }

    /// `c` has the lock, which `b` was never granted.
    pub(crate) fn assert_passed_by(mut self) {
        let fence = self.c.only_reply().int();
        assert!(fence > self.fence_a);
        self.assert_held_by("c", fence);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before);
        self.end();
    }

    /// `b` knows that it has the lock, so it keeps it.
    pub(crate) fn assert_kept(mut self, reply: &Reply) {
        let fence = reply.int();
        assert!(fence > self.fence_a);
        // Whatever the server would roll back by itself, it would do in the turns and the tick that come.
        let_it_tick(&mut self.conn);
        self.c.assert_waiting();
        self.assert_held_by("b", fence);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before);
        // And it is a hold like any other.
        assert_eq!(self.conn.int(&["LOCK.RELEASE", &self.key, "b"]), Some(0));
        assert!(self.c.only_reply().int() > fence);
        self.end();
    }

    /// `b` has had the lock and lost it as any holder would; `c` has it now.
    pub(crate) fn assert_held_by_both(mut self, reply: &Reply) {
        let next = self.c.only_reply().int();
        assert!(next > reply.int() && reply.int() > self.fence_a);
        self.assert_held_by("c", next);
        assert_eq!(taken_back(&mut self.conn), self.taken_back_before);
        self.end();
    }

    pub(crate) fn assert_held_by(&mut self, owner: &str, fence: i64) {
        let info = self.conn.lock_info(&self.key).expect("held");
        let holders: Vec<_> = info.holders.iter().map(|holder| (&holder.owner[..], holder.fence)).collect();
        assert_eq!(holders, [(owner.as_bytes(), fence)]);
    }

    /// Leaves nothing behind; what the append-only file has is whole.
    pub(crate) fn end(mut self) {
        self.conn.int(&["DEL", &self.key]);
        wait_for("nobody to be left", || self.conn.info_number("lock", "lock_waiters") == 0);
        assert_eq!(self.conn.info("clients", "blocked_clients"), "0");
        assert_exclusive(&self.server.aof_tail(), &self.key);
    }
}

/// A server whose append-only file can be read by the test.
pub(crate) fn server() -> Server {
    Server::setup().option("appendonly", "yes").option("appendfsync", "no").start()
}

/// Whether the facts that replicas and the append-only file learn name no two owners that hold a key for writing at
/// once. Whether fences rise from grant to grant.
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
