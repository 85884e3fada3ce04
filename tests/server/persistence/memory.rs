//! Memory: that MEMORY USAGE is correct, and that nothing is kept of locks that are gone.

use crate::harness::lapses::alone;
use crate::harness::servers::memory_usage_leaves_out_names;
use crate::harness::state::let_it_tick;
use std::ops::Range;
use testbed::{Client, Server, wait_for};

/// Sends many commands in batches.
fn send_all(conn: &mut Client, commands: impl Iterator<Item = Vec<String>>) {
    let mut commands = commands.peekable();
    while commands.peek().is_some() {
        let mut pipe = redis::pipe();
        for command in commands.by_ref().take(1000) {
            let mut cmd = redis::cmd(&command[0]);
            pipe.add_command(cmd.arg(&command[1..]).clone()).ignore();
        }
        pipe.query::<()>(&mut conn.0).unwrap();
    }
}

/// The server's memory when it is doing nothing: its tables of keys have their size, and the buffers of other clients
/// are gone.
fn settled_memory(conn: &mut Client) -> u64 {
    wait_for("other clients to be gone", || conn.info("clients", "connected_clients") == "1");
    wait_for("the table of keys to have its size", || {
        !conn.get::<String>(&["DEBUG", "HTSTATS", "0"]).contains("rehashing target")
    });
    wait_for("values to be freed in the background", || conn.info("memory", "lazyfree_pending_objects") == "0");
    conn.get::<String>(&["MEMORY", "PURGE"]);
    conn.info_number("memory", "used_memory")
}

/// How many bytes a server grows by per key that a command makes, and what MEMORY USAGE says of one of them.
struct PerKey {
    grown: f64,
    usage: f64,
}

const KEYS: usize = 20_000;

/// Key names of this length.
fn names(len: usize) -> impl Iterator<Item = String> {
    (0..KEYS).map(move |n| format!("{n:0>len$}"))
}

fn per_key(key_len: usize, command: impl Fn(String, usize) -> Vec<String>) -> PerKey {
    let (server, mut conn) = Server::connected();
    // What the module allocates once.
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    let before = settled_memory(&mut conn);
    let mut filling = server.connect();
    send_all(&mut filling, names(key_len).enumerate().map(|(n, name)| command(name, n)));
    drop(filling);
    assert_eq!(conn.get::<usize>(&["DBSIZE"]), KEYS);
    let after = settled_memory(&mut conn);
    let sampled: Vec<u64> =
        names(key_len).step_by(97).map(|name| conn.get::<u64>(&["MEMORY", "USAGE", &name])).collect();
    PerKey {
        grown: (after - before) as f64 / KEYS as f64,
        usage: sampled.iter().sum::<u64>() as f64 / sampled.len() as f64,
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

#[test]
fn memory_usage_of_a_lock_is_right_within_a_tenth() {
    // MEMORY USAGE would mislead an operator about what the module allocates and does not count. That is the entry in
    // the index of leases, names that do not fit in place, sizes that the allocator rounds up.
    let _alone = alone();
    let mut wrong = Vec::new();
    for key_len in [12_usize, 24, 25, 60] {
        let unseen = if memory_usage_leaves_out_names() { (20 + key_len).next_multiple_of(16) } else { 0 };
        // What a key costs beyond its MEMORY USAGE, in the server's table of keys: the same for every type of value.
        let string = per_key(key_len, |name, _| words(&format!("SET {name} value")));
        // A string's name is seen even there, if it is short enough to lie beside the value.
        let unseen_of_string = if key_len > 40 { unseen } else { 0 };
        let table = string.grown - string.usage - unseen_of_string as f64;
        assert!((0.0..40.0).contains(&table), "{table} bytes per key in the server's table");
        for (what, command) in [
            ("UUID", "LOCK.ACQUIRE {key} {uuid} PX 3600000"),
            ("long owner", "LOCK.ACQUIRE {key} {long} PX 3600000"),
            ("note", "LOCK.ACQUIRE {key} {uuid} PX 3600000 NOTE host-17.example/12345/nightly-report"),
            ("reader", "LOCK.RW {key} {uuid} READ PX 3600000"),
        ] {
            let of = |name: String, n: usize| {
                let uuid = format!("{n:08x}-0000-4000-8000-000000000000");
                words(&command.replace("{key}", &name).replace("{uuid}", &uuid).replace("{long}", &format!("{n:0200}")))
            };
            let mut lock = per_key(key_len, of);
            lock.usage += unseen as f64;
            let real = lock.grown - table;
            println!(
                "{what}, key of {key_len}: {real:.0} bytes, MEMORY USAGE {:.0} ({:+.1} %); string: {:.0}",
                lock.usage,
                (lock.usage / real - 1.0) * 100.0,
                string.usage
            );
            if (lock.usage / real - 1.0).abs() > 0.1 {
                wrong.push(format!("{what}, key of {key_len}: {real:.1} bytes, not {}", lock.usage));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn memory_usage_of_many_readers_is_right_within_a_tenth() {
    // The holds of a crowded lock are in trees, whose nodes are never full.
    let _alone = alone();
    const READERS: u64 = 10_000;
    let (server, mut conn) = Server::connected();
    // In the order in which they come, owners are sorted (as numbered workers are), reversed, or in none (as random
    // ones are). The trees grow otherwise each time.
    type Number = fn(u64) -> u64;
    let orders: [(&str, Number); 3] = [
        ("rising", |n| n),
        ("falling", |n| READERS - n),
        ("scattered", |n| n.wrapping_mul(6_364_136_223_846_793_005) >> 8),
    ];
    let mut wrong = Vec::new();
    for (order, number) in orders {
        // One length fits in place, the other does not.
        for owner_len in [36, 100] {
            conn.ok(&["FLUSHALL", "SYNC"]);
            let before = settled_memory(&mut conn);
            let mut filling = server.connect();
            let owners = (0..READERS).map(|n| format!("{:0owner_len$}", number(n)));
            send_all(&mut filling, owners.map(|owner| words(&format!("LOCK.RW k {owner} READ PX 3600000"))));
            drop(filling);
            let grown = (settled_memory(&mut conn) - before) as f64;
            assert_eq!(conn.lock_info("k").unwrap().holding as u64, READERS);
            let usage = conn.get::<u64>(&["MEMORY", "USAGE", "k"]) as f64;
            let off = usage / grown - 1.0;
            println!(
                "{order} readers of {owner_len} bytes: {:.1} bytes each, MEMORY USAGE {:.1} ({:+.1} %)",
                grown / READERS as f64,
                usage / READERS as f64,
                off * 100.0
            );
            if off.abs() > 0.1 {
                wrong.push(format!("{order}, {owner_len}: {off:+.3}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

const MANY: usize = 100_000;
/// What may be left of a hundred thousand locks: less than a byte of each. What is allocated once (an index for a
/// database, its spare chunk, tables of the server's) comes back before the first measurement.
const LEFT_MAX: u64 = 64 << 10;

fn take_many(conn: &mut Client, numbers: Range<usize>, lease_ms: u64) {
    // Names of 32 bytes: their copies in the index are allocations of their own.
    let owner = "6f1c2a34-0000-4000-8000-0000deadbeef";
    send_all(conn, numbers.map(|n| words(&format!("LOCK.ACQUIRE {n:0>32} {owner} PX {lease_ms} NOTE n{n:0>40}"))));
}

/// Takes many locks and ends them all in a way, twice; after the second time the memory is where it was after the
/// first.
fn nothing_is_left(end: impl Fn(&mut Client)) {
    let _alone = alone();
    let (server, mut conn) = Server::connected();
    let round = |conn: &mut Client| {
        let mut work = server.connect();
        take_many(&mut work, 0..MANY, 3_600_000);
        end(&mut work);
        drop(work);
        wait_for("all locks to be gone", || conn.get::<i64>(&["DBSIZE"]) == 0);
        assert_eq!(conn.info("lock", "lock_leases"), "0");
    };
    round(&mut conn);
    let before = lowest_memory(&mut conn);
    round(&mut conn);
    wait_for(&format!("memory to be as low as {before} bytes again"), || {
        settled_memory(&mut conn) <= before + LEFT_MAX
    });
}

/// The least memory in use, once some ticks in a row have given nothing back. The server shrinks its table of keys tick
/// by tick, and so does the module give back the index of a flushed database.
fn lowest_memory(conn: &mut Client) -> u64 {
    let (mut lowest, mut in_vain) = (u64::MAX, 0);
    while in_vain < 5 {
        let now = settled_memory(conn);
        in_vain = if now < lowest { 0 } else { in_vain + 1 };
        lowest = lowest.min(now);
        let_it_tick(conn);
    }
    lowest
}

#[test]
fn nothing_is_left_of_locks_that_lapsed_or_were_released() {
    // An entry of the index, a name or a note could be kept for each: the server would fill up in weeks.
    let owner = "6f1c2a34-0000-4000-8000-0000deadbeef";
    nothing_is_left(|conn| send_all(conn, (0..MANY).map(|n| words(&format!("LOCK.EXTEND {n:0>32} {owner} PX 1")))));
    nothing_is_left(|conn| send_all(conn, (0..MANY).map(|n| words(&format!("LOCK.RELEASE {n:0>32} {owner}")))));
}

#[test]
fn nothing_is_left_of_locks_that_were_deleted_or_flushed() {
    // The server frees the value, and reports that the lock leaves its key: the entry in the index goes only then. Of a
    // flush it reports no key, and frees the values on another thread: the index goes as a whole, in small bites.
    nothing_is_left(|conn| send_all(conn, (0..MANY).map(|n| words(&format!("DEL {n:0>32}")))));
    nothing_is_left(|conn| conn.ok(&["FLUSHALL", "SYNC"]));
    nothing_is_left(|conn| conn.ok(&["FLUSHDB", "ASYNC"]));
}

#[test]
fn databases_that_are_flushed_again_and_again_leave_nothing() {
    // Each flush once kept an index of 20 KB, to be given back later than the next one came: 40 MB after all of them.
    const MOST: u64 = 2_000_000;
    let _alone = alone();
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    conn.ok(&["FLUSHDB"]);
    let before = settled_memory(&mut conn);
    let rounds = (0..2_000).flat_map(|_| [words("LOCK.ACQUIRE k a"), words("FLUSHDB")]);
    send_all(&mut server.connect(), rounds);
    // The server may not have freed the buffers of that connection yet.
    let after = conn.info_number("memory", "used_memory");
    assert!(after <= before + MOST, "{} bytes are kept", after - before);
    wait_for(&format!("memory to be as low as {before} bytes again"), || {
        settled_memory(&mut conn) <= before + LEFT_MAX
    });
}

#[test]
fn readers_that_come_and_go_leave_nothing_on_their_key() {
    // The key never goes while one of them stays: what each leaves behind in its value would add up.
    let _alone = alone();
    let (server, mut conn) = Server::connected();
    let mut passing = |rounds: Range<u64>| {
        let mut work = server.connect();
        work.int(&["LOCK.RW", "k", "stays", "READ", "PX", "3600000"]).expect("granted");
        for round in rounds {
            // A hundred at a time, half of which release and half of which are over.
            send_all(&mut work, (0..100).map(|n| words(&format!("LOCK.RW k {round}-{n:0100} READ PX 3600000"))));
            send_all(
                &mut work,
                (0..100).map(|n| match n % 2 {
                    0 => words(&format!("LOCK.RELEASE k {round}-{n:0100}")),
                    _ => words(&format!("LOCK.EXTEND k {round}-{n:0100} PX 1")),
                }),
            );
        }
        drop(work);
        wait_for("the others to be gone", || conn.lock_info("k").unwrap().holding == 1);
        let settle = conn.int(&["LOCK.EXTEND", "k", "stays", "PX", "3600000"]);
        assert!(settle.is_some());
        settled_memory(&mut conn)
    };
    let before = passing(0..10);
    let after = passing(10..1010);
    println!("{before} bytes before, {after} after");
    assert!(after <= before + LEFT_MAX, "{} bytes are left", after - before);
}

#[test]
fn an_owner_that_waits_much_and_gets_much_costs_no_memory_for_that() {
    // What could go wrong: each grant puts each of the owner's waits on a list once more. That memory is never freed.
    const WAITS: usize = 50;
    const GETS: usize = 5_000;
    let (server, mut conn) = Server::connected();
    let mut waiters = Vec::new();
    for n in 0..WAITS {
        conn.int(&["LOCK.ACQUIRE", &format!("held{n}"), "other", "PX", "3600000"]);
        let mut waiter = server.connect();
        waiter.send(&["LOCK.ACQUIRE", &format!("held{n}"), "o", "BLOCK", "0"]);
        waiters.push(waiter);
    }
    wait_for("all to wait", || conn.info_number("lock", "lock_waiters") == WAITS as u64);
    let before = conn.info_number("memory", "used_memory");
    // In one step of the server: nothing is done in the background in between. The last request is still in it.
    let mut pipe = redis::pipe();
    pipe.atomic();
    for _ in 0..GETS {
        pipe.cmd("LOCK.ACQUIRE").arg(&["free", "o"]).ignore();
        pipe.cmd("LOCK.RELEASE").arg(&["free", "o"]).ignore();
    }
    pipe.query::<()>(&mut conn.0).unwrap();
    let peak = conn.info_number("memory", "used_memory_peak");
    let after = conn.info_number("memory", "used_memory");
    // A list of all would be 4 MB long.
    assert!(after < before + 1_500_000, "{before} bytes before, {after} after, {peak} at the most");
}

#[test]
fn what_places_take_counts_as_they_take_it() {
    // What could go wrong: what is counted is half of what a client takes.
    let place = |keys: &[String], owner: String| {
        let mut command = vec!["LOCK.MACQUIRE".to_owned(), keys.len().to_string()];
        command.extend(keys.iter().cloned());
        command.extend([owner, "QUEUE".to_owned(), "600000".to_owned()]);
        command
    };
    let owner = |n: usize| format!("owner-{n:030}");
    // Each waits for a key that is held, and for so many others with names of this length.
    let shape = |places: usize, held: usize, others: usize, len: usize| {
        let (server, mut conn) = Server::setup().lock_option("max-queue-ms", "600000").connected();
        for n in 0..held {
            conn.int(&["LOCK.ACQUIRE", &format!("held{n}"), "h", "PX", "600000"]).expect("free");
        }
        // What the module allocates once.
        conn.get::<redis::Value>(&["LOCK.ACQUIRE", "held0", "o", "QUEUE", "600000"]);
        let before = (settled_memory(&mut conn), conn.info_number("lock", "lock_place_bytes"));
        let mut filling = server.connect();
        let commands = (0..places).map(|n| {
            let other = |at: usize| format!("{}{:012}", "n".repeat(len), n * others + at);
            let keys: Vec<String> = [format!("held{}", n % held)].into_iter().chain((0..others).map(other)).collect();
            place(&keys, owner(n))
        });
        for command in commands {
            filling.get::<redis::Value>(&command.iter().map(String::as_str).collect::<Vec<&str>>());
        }
        drop(filling);
        assert_eq!(conn.info_number("lock", "lock_places"), places as u64 + 1);
        let grown = settled_memory(&mut conn) - before.0;
        let counted = conn.info_number("lock", "lock_place_bytes") - before.1;
        let share = counted as f64 / grown as f64;
        assert!((0.8..1.2).contains(&share), "{places} {held} {others} {len}: {counted} of {grown}");
    };
    shape(10, 1, 63, 100_000);
    shape(9_000, 1, 0, 0);
    shape(10_000, 10_000, 0, 0);
    shape(500, 1, 63, 0);
    shape(500, 1, 63, 50);
}
