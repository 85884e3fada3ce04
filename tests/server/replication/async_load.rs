//! `repl-diskless-load swapdb`: a replica that loads its primary's data set beside the one that it serves. The server
//! swaps the two without notice of any key, or goes on with the old one when the load breaks off.

use crate::harness::payload::dump;
use crate::harness::picture::{assert_running_on, fill, picture};
use crate::harness::state::let_it_tick;
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

/// Where the loaded data set comes from: this decides what the server serves meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    /// From the primary that the replica has followed all the time. It serves reads of the old data.
    Same,
    /// From a primary that it has never followed. It refuses nearly all commands, but keeps the old data.
    Other,
}

const HISTORIES: [History; 2] = [History::Same, History::Other];

/// So many keys lie in database 1, between the locks of 0 and those of 3: they make loads long.
const PADDING: usize = 300;
/// How long the slow one spends on each key.
const DELAY_US: &str = "20000";

struct Pair {
    primary: Server,
    replica: Server,
    history: History,
}

fn run(conn: &mut Client, commands: &[&str]) {
    for command in commands {
        conn.call(&command.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

impl Pair {
    /// Two servers that do not know each other yet.
    fn new(history: History) -> Pair {
        let primary = Server::setup()
            .option("repl-diskless-sync", "yes")
            .option("repl-backlog-size", "16kb")
            .option("rdbcompression", "no")
            .start();
        let replica = Server::setup()
            .option("repl-diskless-load", "swapdb")
            .option("loading-process-events-interval-bytes", "1024")
            .start();
        let mut conn = primary.connect();
        run(&mut conn, &["SELECT 1", &format!("DEBUG POPULATE {PADDING} padding 2000")]);
        Pair { primary, replica, history }
    }

    /// The server whose locks are the replica's old data.
    fn origin(&self) -> &Server {
        if self.history == History::Same { &self.primary } else { &self.replica }
    }

    /// The replica has its old data from now on.
    fn settle(&self) {
        if self.history == History::Same {
            self.replica.follow(&self.primary);
        }
    }

    /// Changes the primary's data, and lets the replica begin to load them in full. Returns while it loads.
    fn begin_load(&self, changes: &[&str]) {
        let (mut there, mut here) = (self.primary.connect(), self.replica.connect());
        match self.history {
            History::Same => {
                // The replica misses more than the backlog has.
                there.ok(&["MULTI"]);
                run(&mut there, &["CLIENT KILL TYPE replica"]);
                run(&mut there, changes);
                run(&mut there, &["SELECT 1"]);
                let long = "x".repeat(100_000);
                (0..4).for_each(|_| run(&mut there, &[&format!("SET long {long}")]));
                there.call(&["EXEC"]).unwrap();
            }
            History::Other => {
                run(&mut there, changes);
                here.ok(&["REPLICAOF", "127.0.0.1", &self.primary.port().to_string()]);
            }
        }
        wait_for("the load to begin", || {
            here.info("persistence", "loading") != here.info("persistence", "async_loading")
        });
        assert_eq!(here.info("persistence", "async_loading") == "1", self.history == History::Same);
    }

    /// Loads slowly until [`Pair::end_load`].
    fn load_slowly(&self, changes: &[&str]) {
        self.replica.connect().ok(&["CONFIG", "SET", "key-load-delay", DELAY_US]);
        self.begin_load(changes);
    }

    /// Lets the load go on to its end.
    fn end_load(&self) {
        let mut conn = self.replica.connect();
        conn.ok(&["CONFIG", "SET", "key-load-delay", "0"]);
        wait_for("the replica to be in sync", || conn.info("replication", "master_link_status") == "up");
        self.replica.catch_up(&self.primary);
        assert_loaded_beside(&self.replica);
    }

    /// Begins to load and has the primary die in the midst of it.
    fn break_off(&mut self, changes: &[&str]) {
        self.primary.connect().ok(&["CONFIG", "SET", "rdb-key-save-delay", DELAY_US]);
        // Where it is known: by a connection of its own the primary's child would go on though the primary has died.
        drop(self.replica.connect().call(&["CONFIG", "SET", "repl-rdb-channel", "no"]));
        self.begin_load(changes);
        let mut conn = self.replica.connect();
        wait_for("some of it to be loaded", || {
            conn.info_number("persistence", "loading_loaded_bytes") > (PADDING * 2_000 / 10) as u64
        });
        self.primary.stop(true);
        wait_for("the load to break off", || !is_loading(&mut conn));
        assert_loaded_beside(&self.replica);
        assert_eq!(conn.info("replication", "master_link_status"), "down");
    }
}

fn is_loading(conn: &mut Client) -> bool {
    conn.info("persistence", "loading") == "1" || conn.info("persistence", "async_loading") == "1"
}

/// Without this, none of these tests would say anything.
fn assert_loaded_beside(replica: &Server) {
    let log = replica.log();
    assert!(!log.contains("Skipping diskless-load"), "through the disk:\n{log}");
    assert!(log.contains("Discarding old DB in background") || log.contains("Discarding temporary DB in background"));
}

fn leases(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_leases")
}

fn promote(conn: &mut Client) {
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
}

#[test]
fn a_replica_that_loads_beside_its_data_shows_the_old_locks_until_the_new_ones_take_their_place() {
    // Through the disk, as for modules that know nothing of this, it would serve nothing meanwhile.
    for history in HISTORIES {
        let pair = Pair::new(history);
        fill(pair.origin());
        pair.settle();
        let (began, old) = (Instant::now(), picture(&pair.replica));
        pair.load_slowly(&[
            "LOCK.ACQUIRE again a PX 700000 NOTE later",
            "LOCK.RELEASE plain a",
            "LOCK.ACQUIRE new a PX 600000",
            "SELECT 3",
            "LOCK.ACQUIRE plain a PX 600000",
            "LOCK.ACQUIRE new a PX 600000",
        ]);
        let mut conn = pair.replica.connect();
        if history == History::Same {
            let during = picture(&pair.replica);
            assert_eq!(during.0, old.0);
            assert_running_on(&old.1, &during.1, began, "during the load");
            assert_eq!(conn.lock_info("new").map(|info| info.fence), None);
            let refused = conn.error(&["LOCK.ACQUIRE", "new", "x", "PX", "1000"]);
            assert!(refused.starts_with("READONLY"), "{refused}");
        } else {
            assert!(conn.error(&["LOCK.INFO", "plain"]).starts_with("LOADING"));
        }
        assert!(is_loading(&mut conn), "all this was said during the load");
        assert_eq!(leases(&mut conn), old.0.locks.len() as u64, "{history:?}");
        pair.end_load();

        let new = picture(&pair.primary);
        assert_ne!(old.0, new.0);
        assert_eq!(picture(&pair.replica).0, new.0, "{history:?}");
        assert_eq!(leases(&mut conn), new.0.locks.len() as u64, "{history:?}");
        let clock = pair.primary.connect().info_number("lock", "lock_fence_clock");
        assert!(conn.info_number("lock", "lock_fence_clock") >= clock);
    }
}

#[test]
fn a_replica_that_is_promoted_after_a_load_ends_the_new_leases_and_not_the_old_ones() {
    // The index of the old data would end nothing of the new, or visit keys that are held for longer now. Redis 7.0
    // says of each key that it is in database 0.
    for history in HISTORIES {
        let pair = Pair::new(history);
        let old = [
            "LOCK.ACQUIRE stays a PX 4000",
            "LOCK.ACQUIRE goes a PX 4000",
            "SELECT 3",
            "LOCK.ACQUIRE stays a PX 4000",
            "LOCK.ACQUIRE goes a PX 4000",
        ];
        run(&mut pair.origin().connect(), &old);
        pair.settle();
        let mut conn = pair.replica.connect();
        conn.ok(&["CONFIG", "SET", "key-load-delay", "100"]);
        pair.begin_load(&[
            "LOCK.ACQUIRE stays a PX 600000",
            "LOCK.ACQUIRE ends a PX 600000",
            "SELECT 3",
            "LOCK.ACQUIRE stays a PX 600000",
            "LOCK.RELEASE goes a",
            "LOCK.ACQUIRE ends b PX 5000",
            "LOCK.RW crowd a READ PX 600000",
            "LOCK.RW crowd b READ PX 5000",
            "SELECT 9",
            "LOCK.ACQUIRE ends c PX 5000",
            "LOCK.ACQUIRE lives c PX 5000",
            "PEXPIRE lives 500000",
        ]);
        let taken = Instant::now();
        pair.end_load();
        assert_eq!(leases(&mut conn), if history == History::Same { 8 } else { 7 });
        let clock = pair.primary.connect().info_number("lock", "lock_fence_clock");
        drop(pair.primary);
        promote(&mut conn);

        conn.ok(&["SELECT", "9"]);
        wait_for("the leases of database 9 to end", || conn.int(&["DBSIZE"]) == Some(0));
        assert!(taken.elapsed() >= Duration::from_millis(4_500), "after {:?}", taken.elapsed());
        conn.ok(&["SELECT", "3"]);
        wait_for("that of database 3 to end", || conn.int(&["EXISTS", "ends"]) == Some(0));
        assert_eq!(conn.int(&["EXISTS", "stays", "crowd"]), Some(2));
        assert_eq!(conn.lock_info("crowd").unwrap().holding, 1);
        conn.ok(&["SELECT", "0"]);
        // By the same history, it was held there before, and no client gave it back.
        wait_for("what was not given back to end", || conn.int(&["EXISTS", "goes"]) == Some(0));
        assert_eq!(conn.int(&["EXISTS", "stays", "ends"]), Some(2));
        let_it_tick(&mut conn);
        let lapsed = if history == History::Same { 5 } else { 4 };
        assert_eq!(conn.info_number("lock", "lock_lapsed"), lapsed, "{history:?}");
        assert_eq!(leases(&mut conn), 4);
        let next = conn.int(&["LOCK.ACQUIRE", "goes", "b", "PX", "60000"]).unwrap();
        assert!(next as u64 > clock, "{next} is not above {clock}");
    }
}

#[test]
fn a_load_that_breaks_off_leaves_the_old_locks_and_their_leases_as_they_were() {
    // The new entries would point to locks that are not there, and the old ones be dropped for these.
    for history in HISTORIES {
        let mut pair = Pair::new(history);
        fill(pair.origin());
        let short = ["LOCK.ACQUIRE short a PX 6000", "SELECT 3", "LOCK.ACQUIRE short a PX 6000"];
        run(&mut pair.origin().connect(), &short);
        let taken = Instant::now();
        pair.settle();
        let (began, old) = (Instant::now(), picture(&pair.replica));
        let many: Vec<String> = (0..50).map(|n| format!("LOCK.ACQUIRE new:{n} a PX 100")).collect();
        let mut changes: Vec<&str> = many.iter().map(String::as_str).collect();
        changes.extend(["LOCK.ACQUIRE short a PX 600000", "LOCK.RELEASE plain a"]);
        pair.break_off(&changes);
        let mut conn = pair.replica.connect();
        let seen = conn.info_number("lock", "lock_fence_clock");
        assert_eq!(leases(&mut conn), old.0.locks.len() as u64, "{history:?}");
        promote(&mut conn);

        for db in ["0", "3"] {
            conn.ok(&["SELECT", db]);
            wait_for("the short lease to end", || conn.int(&["EXISTS", "short"]) == Some(0));
            assert!(taken.elapsed() >= Duration::from_millis(5_500), "after {:?}", taken.elapsed());
        }
        let_it_tick(&mut conn);
        assert_eq!(conn.info_number("lock", "lock_lapsed"), 2, "{history:?}");
        let (mut now, mut old) = (picture(&pair.replica), old);
        old.0.locks.retain(|(_, key), _| key != "short");
        old.1.retain(|(_, key, _), _| key != "short");
        assert_eq!(std::mem::take(&mut now.0.locks), old.0.locks, "{history:?}");
        assert_running_on(&old.1, &now.1, began, "the old leases");
        assert_eq!(leases(&mut conn), old.0.locks.len() as u64, "{history:?}");
        let next = conn.int(&["LOCK.ACQUIRE", "next", "b", "PX", "60000"]).unwrap();
        assert!(next as u64 > seen);
    }
}

#[test]
fn databases_that_are_emptied_and_swapped_after_a_load_take_their_leases_along() {
    // Redis 7.0 has not reported by then which database each lock is in.
    let pair = Pair::new(History::Same);
    pair.settle();
    let mut conn = pair.replica.connect();
    conn.ok(&["CONFIG", "SET", "key-load-delay", "100"]);
    let locks: Vec<String> = [0, 3, 5, 7]
        .into_iter()
        .flat_map(|db| {
            let lock = move |n| format!("LOCK.ACQUIRE k:{n} a PX {}", if db == 5 { 3_000 } else { 600_000 });
            [format!("SELECT {db}")].into_iter().chain((0..40).map(lock))
        })
        .collect();
    pair.begin_load(&locks.iter().map(String::as_str).collect::<Vec<_>>());
    conn.ok(&["CONFIG", "SET", "key-load-delay", "0"]);
    let mut there = pair.primary.connect();
    // While it may load still: the stream follows.
    run(&mut there, &["SELECT 3", "FLUSHDB", "SWAPDB 0 5", "SELECT 7", "DEL k:0", "LOCK.EXTEND k:1 a PX 500000"]);
    run(&mut there, &["RENAME k:2 l:2", "MOVE k:3 8"]);
    pair.end_load();
    wait_for("no stale entry", || leases(&mut conn) == 40 + 40 + 39);
    drop(pair.primary);
    promote(&mut conn);
    wait_for("the short leases to end", || conn.int(&["DBSIZE"]) == Some(0));
    assert_eq!((conn.info_number("lock", "lock_lapsed"), leases(&mut conn)), (40, 79));
}

#[test]
fn a_lock_that_is_restored_on_a_writable_replica_while_it_loads_is_one_of_the_old() {
    // It is read as those of the new data set are, and lies among the old ones.
    let pair = Pair::new(History::Same);
    run(&mut pair.primary.connect(), &["LOCK.ACQUIRE k a PX 600000"]);
    pair.settle();
    let mut conn = pair.replica.connect();
    conn.ok(&["CONFIG", "SET", "replica-read-only", "no"]);
    let payload = dump(&mut conn, "k");
    pair.load_slowly(&[]);
    let restored = conn.call(&[b"RESTORE", &b"copy"[..], b"0", &payload]);
    assert!(is_loading(&mut conn));
    // Some servers refuse it.
    let there = u64::from(restored.is_ok());
    assert_eq!(leases(&mut conn), 1 + there);
    pair.end_load();
    assert_eq!(conn.int(&["EXISTS", "copy"]), Some(0));
    promote(&mut conn);
    conn.int(&["LOCK.BREAK", "k"]);
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "other", "a", "PX", "1"]).map(|fence| fence > 0), Some(true));
    wait_for("that lease to end", || conn.int(&["EXISTS", "other"]) == Some(0));
}

#[test]
fn a_replica_of_a_replica_gets_what_was_loaded_beside_and_saves_it() {
    // A sub-replica is disconnected when the data set is swapped, and gets all of the new one; so does the file of its
    // own.
    let pair = Pair::new(History::Same);
    fill(&pair.primary);
    pair.settle();
    let below = Server::setup()
        .option("repl-diskless-load", "swapdb")
        .option("appendonly", "yes")
        .option("appendfsync", "always")
        .start();
    below.follow(&pair.replica);
    let mut conn = pair.replica.connect();
    conn.ok(&["CONFIG", "SET", "appendonly", "yes"]);
    conn.ok(&["CONFIG", "SET", "key-load-delay", "100"]);
    pair.begin_load(&[
        "LOCK.RELEASE plain a",
        "LOCK.ACQUIRE new a PX 600000",
        "SELECT 3",
        "LOCK.ACQUIRE new b PX 600000",
    ]);
    pair.end_load();
    let expected = picture(&pair.primary);
    for server in [&pair.replica, &below] {
        let mut conn = server.connect();
        wait_for("all to be there", || {
            conn.info("replication", "master_link_status") == "up" && leases(&mut conn) == expected.0.locks.len() as u64
        });
        wait_for("the file to be written", || {
            // In one answer: a rewrite that is scheduled may begin between two.
            let info: String = conn.get(&["INFO", "persistence"]);
            let has = |line| info.lines().any(|other| other == line);
            has("aof_rewrite_in_progress:0")
                && has("aof_rewrite_scheduled:0")
                // That of the server's start is not yet what was loaded, but one that turned its AOF on later has none.
                && info.contains("aof_base_size:")
                && !has("aof_base_size:0")
        });
        assert_eq!(picture(server).0, expected.0);
    }
    for server in [&pair.replica, &below] {
        server.connect().ok(&["DEBUG", "LOADAOF"]);
        assert_eq!(picture(server).0, expected.0);
    }
}
