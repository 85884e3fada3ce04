//! The index of leases follows what the server does to keys. After each of its commands every lease still ends once, at
//! its own time, on the right key of the right database. `lock_leases` counts the keys that have a lease.
//!
//! Leases in one test are far enough apart that one ending at another's time is seen by the order. They are long enough
//! that a busy machine gets to what comes before their ends. How many leases are left is asked when it cannot depend on
//! the clock.

use crate::harness::lapses::{Lapses, Lease, lease, sleep_until};
use crate::harness::transcript::split;
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Client, Server};

fn leases(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_leases")
}

fn exists(conn: &mut Client, key: &str) -> bool {
    conn.get::<i64>(&["EXISTS", key]) == 1
}

/// A server, and the leases that are to end on it: each in a database, on a key.
struct Play {
    server: Server,
    lapses: Lapses,
    running: Vec<(u32, Lease)>,
    /// What was dumped last, when, and the lease that it has.
    dumped: (Vec<u8>, Instant, Lease),
}

impl Play {
    /// A command, in database 0 or in another: `1: FLUSHDB`. The lease of one that ends so is to end there:
    /// `=> 1/key`. What it answers may be told: `-> 0`. `RESTORE key` is of what was dumped last. `leases 2`: so many
    /// keys have one. `wait` is for the lease that ends next.
    fn step(&mut self, step: &str) {
        let (db, step) = step.split_once(": ").unwrap_or(("0", step));
        let mut conn = self.server.connect_in(db);
        let (step, at) = step.split_once(" => ").unwrap_or((step, ""));
        let (step, told) = step.split_once(" -> ").unwrap_or((step, ""));
        let words: Vec<Vec<u8>> = split(step).into_iter().map(|(word, _)| word).collect();
        match step.split(' ').collect::<Vec<_>>()[..] {
            ["leases", count] => assert_eq!(leases(&mut conn).to_string(), count),
            ["wait"] => self.wait(),
            ["LOCK.ACQUIRE" | "LOCK.RW" | "LOCK.EXTEND", ..] => self.runs(at, lease(&mut conn, step)),
            ["DUMP", key] => {
                let (_, lease) = self.running.pop().expect("of the lease before");
                self.dumped = (conn.get(&["DUMP", key]), Instant::now(), lease);
            }
            ["RESTORE", key, ref options @ ..] => {
                let options = options.iter().map(|option| option.as_bytes());
                let (payload, dumped_at, lease) = &self.dumped;
                let ttl: &[u8] = if options.clone().any(|option| option == b"ABSTTL") { b"1" } else { b"0" };
                let words: Vec<&[u8]> = [b"RESTORE", key.as_bytes(), ttl, payload].into_iter().chain(options).collect();
                let reply = conn.call(&words).map_or_else(|error| testbed::text_of(&error), |_| String::new());
                assert!(reply.starts_with(told) && told.is_empty() == reply.is_empty(), "{reply}");
                // From its arrival on it has what was left.
                let latest = lease.latest + dumped_at.elapsed() + Duration::from_millis(1);
                self.runs(at, Lease { latest, ..lease.clone() });
            }
            _ => {
                let reply = conn.call(&words).unwrap_or_else(|error| panic!("{step}: {error}"));
                let shown = redis::from_redis_value::<String>(reply).unwrap_or_default();
                assert!(told.is_empty() || shown == told, "{step}: {shown}");
            }
        }
        if step == "DEBUG RELOAD" {
            self.running.iter_mut().for_each(|(_, lease)| *lease = lease.over_the_wall_clock());
        }
    }

    fn runs(&mut self, at: &str, lease: Lease) {
        if let Some((db, key)) = at.split_once('/') {
            self.running.push((db.parse().unwrap(), lease.on(key)));
        }
    }

    fn wait(&mut self) {
        self.running.sort_by_key(|(_, lease)| lease.earliest);
        let (db, lease) = self.running.remove(0);
        self.lapses.expect(db, &lease);
    }
}

/// Plays these steps on a server of their own. The leases end in their order, each where it is to end, and no other
/// does.
fn follow(steps: &[String]) {
    println!("{steps:?}");
    let server = Server::new();
    let now = Instant::now();
    let dumped = (Vec::new(), now, Lease { key: String::new(), fence: 0, earliest: now, latest: now });
    let mut play = Play { lapses: Lapses::of(&server), server, running: Vec::new(), dumped };
    steps.iter().for_each(|step| play.step(step));
    while !play.running.is_empty() {
        play.wait();
    }
    let mut conn = play.server.connect();
    play.lapses.expect_no_more(&mut conn);
    assert_eq!(leases(&mut conn), 0);
    assert!(!play.server.log().contains("panic"), "{}", play.server.log());
}

/// Plays these steps once for each of these words, beside each other: they wait more than they work. `$1` and so on
/// stand for parts of a word.
fn follow_each(words: &[&str], steps: &[&str]) {
    thread::scope(|threads| {
        for word in words {
            let parts: Vec<&str> = word.split(',').collect();
            let of = |step: &&str| {
                parts
                    .iter()
                    .enumerate()
                    .fold((*step).to_owned(), |step, (at, part)| step.replace(&format!("${}", at + 1), part))
            };
            let steps: Vec<String> = steps.iter().map(of).collect();
            threads.spawn(move || follow(&steps));
        }
    });
}

/// Steps that are one test each, for each of some words.
macro_rules! follow {
    ($($name:ident: $words:expr, $steps:expr;)+) => {$(
        #[test]
        fn $name() {
            follow_each(&$words, &$steps);
        }
    )+};
}

follow! {
    // The entry could stay with the old name, where no scan would find the lock, or end a stranger there: one takes the
    // name that the first one left, with an end of its own on each side.
    a_renamed_lock_lapses_under_its_new_name: ["RENAME", "RENAMENX"], [
        "LOCK.ACQUIRE old a PX 4000 => 0/new", "$1 old new", "leases 1", "LOCK.ACQUIRE old b PX 500 => 0/old", "wait",
        "LOCK.ACQUIRE old c PX 4500 => 0/old",
    ];

    // The overwritten lock's entry could end the lock that lies there now.
    a_lock_that_a_rename_overwrites_takes_its_lease_along: [""], [
        "LOCK.ACQUIRE target a PX 3000", "LOCK.ACQUIRE source b PX 5000 => 0/target", "RENAME source target", "leases 1",
    ];

    // Each database has an index of its own. The entry must change from one to the other, and an entry's name from one
    // must not be taken for an entry of the other.
    a_moved_lock_lapses_in_its_new_database: [""], [
        "1: LOCK.ACQUIRE there a PX 3000 => 1/there", "LOCK.ACQUIRE moved b PX 5000 => 1/moved", "MOVE moved 1",
        "leases 2",
    ];

    // Valkey 9.1 reports it with the number of the database that it left.
    a_lock_that_is_moved_in_a_transaction_lapses_in_its_new_database: [""], [
        "LOCK.ACQUIRE k a PX 5000 => 1/k", r#"EVAL "return redis.call('MOVE','k',1)" 0 -> 1"#, "1: EXISTS k -> 1",
    ];

    // With the wrong entry it would take another lock's lease away: that lock would stay for ever.
    a_moved_lock_that_is_released_leaves_the_others_their_leases: [""], [
        "1: LOCK.ACQUIRE there a PX 3000 => 1/there", "LOCK.ACQUIRE moved b PX 600000", "MOVE moved 1",
        "1: LOCK.RELEASE moved b", "leases 1",
    ];

    // The index could stay behind, search for the keys in the wrong database and drop their entries as strays. A lock
    // of the other databases stays, and one comes after.
    leases_of_swapped_databases_end_in_the_other_one: ["1,3000,5000", "1,5000,3000", "15,3000,5000", "15,5000,3000"], [
        "LOCK.ACQUIRE k a PX $2 => $1/k", "$1: LOCK.ACQUIRE k b PX $3 => 0/k", "2: LOCK.ACQUIRE k c PX 6000 => 2/k",
        "SWAPDB 0 $1", "leases 3", "LOCK.ACQUIRE late d PX 7000 => 0/late",
    ];

    // One of the databases has no index yet.
    leases_go_along_to_a_database_that_had_none: ["1", "15"], [
        "LOCK.ACQUIRE k a PX 3000 => $1/k", "SWAPDB 0 $1", "leases 1", "LOCK.ACQUIRE late d PX 4000 => 0/late",
    ];

    // The other database's leases could go along, and its locks would stay for ever. The number of one without locks
    // was once taken for that of an index.
    flushdb_takes_the_leases_of_that_database_alone: [""], [
        "LOCK.ACQUIRE k a PX 3000", "1: LOCK.ACQUIRE k b PX 4000 => 1/k", "9: FLUSHDB", "leases 2", "FLUSHDB", "leases 1",
        "LOCK.ACQUIRE k c PX 5500 => 0/k",
    ];

    // An old entry could end the new lock on the same key early, or the new lock's could be lost.
    flushall_takes_all_leases_and_locks_after_it_have_their_own: ["SYNC", "ASYNC"], [
        r#"EVAL "for i=1,1000 do redis.call('LOCK.ACQUIRE','many'..i,'a','PX',4000) end" 0"#,
        "LOCK.ACQUIRE k a PX 4000", "15: LOCK.ACQUIRE k a PX 600000", "FLUSHALL $1", "leases 0",
        "LOCK.ACQUIRE k b PX 6000 => 0/k", "15: LOCK.ACQUIRE k b PX 5000 => 15/k", "leases 2",
    ];

    // The old lease's end could be taken for the new one's.
    a_deleted_lock_leaves_no_lease_that_ends_its_successor: ["DEL k", "UNLINK k", "LOCK.RELEASE k a"], [
        "LOCK.ACQUIRE k a PX 3000", "$1", "leases 0", "LOCK.ACQUIRE k b PX 4000 => 0/k", "leases 1",
    ];

    // Such a lock is freed on a background thread, which must not touch the index.
    a_lock_that_was_unlinked_with_many_readers_leaves_no_lease: [""], [
        r#"EVAL "for i=1,500 do redis.call('LOCK.RW','k','r'..i,'READ','PX',3000) end" 0"#, "UNLINK k", "leases 0",
        "LOCK.ACQUIRE k b PX 4000 => 0/k",
    ];

    // The lapse of what lay there could delete another client's value.
    a_value_set_over_a_lock_outlives_its_lease: [""], [
        "LOCK.ACQUIRE k a PX 2000", "SET k mine", "leases 0", "LOCK.ACQUIRE later b PX 2300 => 0/later", "wait",
        "GET k -> mine", "DEL k", "LOCK.ACQUIRE k b PX 300 => 0/k",
    ];

    // The old value is unlinked after the new one was loaded under the same name: the wrong entry could go.
    a_lock_restored_over_another_lapses_at_its_own_time: ["3000,6000", "600000,3000"], [
        "LOCK.ACQUIRE source a PX $2 => 0/source", "DUMP source", "DEL source", "LOCK.ACQUIRE k b PX $1",
        "RESTORE k REPLACE => 0/k", "leases 1",
    ];

    // The payload is read before the server refuses it, or drops it because its time to live is over: its lease could
    // stay in the index or end what lies there.
    a_restore_that_is_refused_leaves_no_lease: [""], [
        "LOCK.ACQUIRE source a PX 3000 => 0/source", "DUMP source", "DEL source", "LOCK.ACQUIRE k b PX 4000 => 0/k",
        "RESTORE k -> BUSYKEY", "leases 1", "RESTORE gone ABSTTL", "EXISTS gone -> 0",
    ];

    // One key has one entry in the index: after each reader's end it must stand at the next one's.
    readers_of_one_key_end_one_by_one: [""], [
        "LOCK.RW k a READ PX 3500 => 0/k", "LOCK.RW k b READ PX 2000 => 0/k", "LOCK.RW k c READ PX 600000",
        "LOCK.RW k d READ PX 600000", "LOCK.EXTEND k d PX 3000 => 0/k", "LOCK.RELEASE k c", "leases 1", "wait", "leases 1",
    ];

    // All values are made anew: each must be armed once, none twice, and none of the old entries may be left.
    leases_go_on_through_a_reload: [""], [
        "LOCK.ACQUIRE short a PX 4000 => 0/short", "LOCK.ACQUIRE long a PX 8000 => 0/long",
        "15: LOCK.ACQUIRE other a PX 6000 => 15/other", "DEBUG RELOAD", "leases 3",
    ];

    // The server removes the key by itself: the entry could stay behind and end the next lock on it.
    a_time_to_live_that_a_user_sets_ends_the_lock_with_its_lease: [""], [
        "LOCK.ACQUIRE cut a PX 6000", "PEXPIRE cut 100", "DEBUG SLEEP 0.102", "EXISTS cut -> 0", "leases 0",
        "LOCK.ACQUIRE cut b PX 8000 => 0/cut", "PTTL cut -> -1",
    ];

    // Only the lease counts; and a new grant clears what a user has set.
    a_time_to_live_beyond_the_lease_keeps_no_lock: [""], [
        "LOCK.ACQUIRE kept a PX 2000 => 0/kept", "EXPIRE kept 1000", "wait", "LOCK.ACQUIRE cleared a PX 600000",
        "PEXPIRE cleared 3000", "LOCK.EXTEND cleared a PX 4000 => 0/cleared", "PTTL cleared -> -1",
    ];
}

#[test]
fn a_promoted_replica_ends_the_leases_it_got_by_full_sync() {
    // A replica must end no lease in the background. After its promotion it must end each, at its time, not earlier
    // than the primary.
    let (primary, replica) = (Server::new(), Server::new());
    let mut lapses = Lapses::of(&replica);
    let (mut there, mut here) = (primary.connect(), replica.connect());
    let short = lease(&mut there, "LOCK.ACQUIRE short a PX 15000");
    let other = lease(&mut primary.connect_in("15"), "LOCK.RW other a READ PX 18000");
    replica.follow(&primary);
    let synced = Instant::now();
    // And one by the stream, on top of the index that the sync has filled.
    let streamed = lease(&mut there, "LOCK.ACQUIRE streamed a PX 2000");
    replica.catch_up(&primary);
    // The stream after a sync may flow a second late, and what is left of a lease counts from its arrival.
    let arrived = Instant::now();
    assert_eq!(leases(&mut here), 3);
    drop(primary);
    sleep_until(arrived + Duration::from_millis(2001));
    assert!(exists(&mut here, "streamed"), "a replica ended a lease");
    assert!(here.lock_info("streamed").is_none(), "a lease that is over is shown");
    assert_eq!(leases(&mut here), 3);

    let promoted = Instant::now();
    here.ok(&["REPLICAOF", "NO", "ONE"]);
    // Over already, so that it ends at once, and not before.
    lapses.expect(0, &Lease { earliest: promoted, latest: promoted, ..streamed });
    // From its arrival here each has what was left when it was sent: up to the sync's duration longer.
    let sync = synced - (other.latest - Duration::from_millis(18_000));
    lapses.expect(0, &Lease { latest: short.latest + sync, ..short });
    lapses.expect(15, &Lease { latest: other.latest + sync, ..other });
    lapses.expect_no_more(&mut here);
    assert_eq!(leases(&mut here), 0);
}
