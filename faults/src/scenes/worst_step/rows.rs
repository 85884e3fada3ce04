//! The worst that an ordinary client builds with default limits, for each limit and loop of the module.

use super::stage::Stage;
use std::thread::sleep;
use std::time::{Duration, Instant};
use testbed::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Names have up to 16 bytes.
    Short,
    /// Names are as long as the server takes them.
    Long,
    /// Names are short, and the server itself takes long: what plain keys cost is taken away.
    Beyond,
    /// The same for a thousand requests that come together.
    Thousand,
    /// The same for a command of administrators on a whole data set, or on a whole lock in its saved form.
    Administrators,
}

impl Bound {
    /// The most CPU of one uninterrupted step, in microseconds.
    pub fn us(self) -> u64 {
        match self {
            Bound::Short | Bound::Beyond => 10_000,
            Bound::Long | Bound::Thousand => 20_000,
            Bound::Administrators => 60_000,
        }
    }

    /// Whether only what goes beyond the plain server counts.
    pub fn is_beyond(self) -> bool {
        matches!(self, Bound::Beyond | Bound::Thousand | Bound::Administrators)
    }
}

pub struct Case {
    pub name: &'static str,
    pub bound: Bound,
    /// Whether the request uses the scene up.
    pub once: bool,
    pub options: &'static [(&'static str, &'static str)],
    /// How long nothing is granted after the start, in milliseconds; on a busy machine a multiple of it.
    pub grace_ms: u32,
    pub build: fn(&mut Stage),
    pub act: fn(&mut Stage),
}

/// Longer than any run.
const HELD: &str = "PX 80000000";
/// The default of `lock.max-holders-per-key`.
const HOLDERS: usize = 65_536;
/// The default of `lock.max-places`.
const PLACES: usize = 100_000;
const GRACE_MS: u32 = 3_000;
/// The default of `lock.max-waiters-per-key`.
const QUEUE: usize = 10_000;
const AOF: &[(&str, &str)] = &[("appendonly", "yes"), ("auto-aof-rewrite-percentage", "0"), ("appendfsync", "no")];

const fn scene(name: &'static str, bound: Bound, build: fn(&mut Stage), act: fn(&mut Stage)) -> Case {
    Case { name, bound, once: false, options: &[], grace_ms: 0, build, act }
}

const fn once(name: &'static str, bound: Bound, build: fn(&mut Stage), act: fn(&mut Stage)) -> Case {
    Case { name, bound, once: true, options: &[], grace_ms: 0, build, act }
}

pub const CASES: &[Case] = &[
    scene(
        "10,000 pairs of ACQUIRE and RELEASE, one by one",
        Bound::Short,
        |_| (),
        |stage| _ = super::stage::pairs_us(stage),
    ),
    // Searches for deadlocks.
    scene("a request behind 70 places of 64 keys", Bound::Short, |stage| places_behind(stage, 70), waits),
    scene("a request behind 250 places of 64 keys", Bound::Short, |stage| places_behind(stage, 250), waits),
    scene(
        "the same by an owner that a place waits for",
        Bound::Short,
        |stage| {
            places_behind(stage, 249);
            stage.ask(&format!("LOCK.ACQUIRE of-v v {HELD}"));
            stage.ask("LOCK.ACQUIRE of-v p0 QUEUE 60000");
        },
        waits,
    ),
    scene(
        "a request for 64 keys behind 500 places of the same",
        Bound::Short,
        |stage| {
            stage.ask(&format!("LOCK.MACQUIRE 64 {} H {HELD}", keys("s", 64)));
            places(stage, 500, |_| format!("64 {}", keys("s", 64)));
        },
        |stage| drop(stage.ask(&format!("LOCK.MACQUIRE 64 {} v BLOCK 1", keys("s", 64)))),
    ),
    scene(
        "a request behind 64 places of 64 keys with names of 15 KB",
        Bound::Long,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE k1 A {HELD}"));
            for place in 0..if stage.full { 64 } else { 0 } {
                stage.ask(&format!("LOCK.MACQUIRE 64 k1 {} p{place} QUEUE 60000", long(15_000, 64 * place, 63)));
            }
        },
        waits,
    ),
    scene(
        "a request behind 10 parked clients with 64 names of 50 KB",
        Bound::Long,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE k1 A {HELD}"));
            if stage.full {
                stage.connect(10);
                stage.park(|client| format!("LOCK.MACQUIRE 64 k1 {} p{client} BLOCK 0", long(50_000, 64 * client, 63)));
            }
        },
        waits,
    ),
    scene(
        "a request for 2 keys of 65,536 readers, of which many wait, by an owner that is waited for",
        Bound::Short,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE of-v v {HELD}"));
            readers(stage, 2, HOLDERS, "");
            held(stage, 300);
            let count = if stage.full { 300 } else { 0 };
            stage.fill((0..count).map(|at| format!("LOCK.ACQUIRE h{at} o{at} QUEUE 60000")));
            stage.fill((0..10 * count).map(|at| format!("LOCK.MACQUIRE 2 of-v x{at} p{at} QUEUE 60000")));
            stage.has("places", 11 * 300);
        },
        |stage| drop(stage.ask("LOCK.MACQUIRE 2 k0 k1 v BLOCK 1")),
    ),
    // Owners and names.
    once(
        "a place and a RELEASE of an owner, 5,000 others made to collide with it",
        Bound::Long,
        |stage| {
            held(stage, 5_000);
            queued(stage, 5_000, |at| format!("LOCK.ACQUIRE h{at} \"{}\"", colliding(at as u64)));
        },
        |stage| {
            let owner = colliding(1 << 40);
            stage.fill(["LOCK.ACQUIRE h0", "LOCK.RELEASE h0", "LOCK.ACQUIRE new"].into_iter().map(|what| {
                format!("{what} \"{owner}\"{}", if what.ends_with("QUIRE h0") { " QUEUE 60000" } else { "" })
            }));
        },
    ),
    scene(
        "one more place and other requests of an owner with 250 places of 64 keys",
        Bound::Short,
        |stage| {
            held(stage, 251);
            queued(stage, 250, |at| format!("LOCK.MACQUIRE 64 h{at} {} O", keys(&format!("n{at}."), 63)));
        },
        |stage| of_owner(stage, &keys("free", 64)),
    ),
    scene(
        "the same with names of 2,700 bytes",
        Bound::Long,
        |stage| {
            held(stage, 251);
            for at in 0..if stage.full { 250 } else { 0 } {
                stage.ask(&format!("LOCK.MACQUIRE 64 h{at} {} O QUEUE 60000", long(2_700, 64 * at, 63)));
            }
        },
        |stage| of_owner(stage, &long(2_700, 900_000, 64)),
    ),
    scene(
        "an owner with 1,000 parked requests for 64 keys gets and gives back a key",
        Bound::Short,
        |stage| {
            held(stage, 1_000);
            if stage.full {
                stage.connections.clear();
                stage.connect(1_000);
                stage.park(|at| format!("LOCK.MACQUIRE 64 h{at} {} O BLOCK 0", keys(&format!("n{at}."), 63)));
            }
        },
        |stage| {
            stage.ask("LOCK.ACQUIRE new O");
            stage.ask("LOCK.RELEASE new O");
        },
    ),
    // Settling.
    once(
        "4 keys of 65,536 readers, whose connection closes: MRELEASE",
        Bound::Short,
        |stage| readers(stage, 4, HOLDERS, " SESSION 0"),
        |stage| {
            close(stage);
            stage.ask(&format!("LOCK.MRELEASE 4 {} v", keys("k", 4)));
            stage.until_keys(0);
        },
    ),
    once(
        "the same: LOCK.INFO, CHECK, EXTEND, ACQUIRE",
        Bound::Short,
        |stage| readers(stage, 2, HOLDERS, " SESSION 0"),
        |stage| {
            close(stage);
            for request in [
                "LOCK.INFO k1",
                "LOCK.CHECK k1 v",
                "LOCK.INFO k1 OWNER v",
                "LOCK.ACQUIRE k1 v PX 1",
                "LOCK.EXTEND k0 v PX 1",
            ] {
                stage.ask(request);
            }
            stage.until_keys(0);
        },
    ),
    Case {
        options: AOF,
        ..once(
            "16 keys of 20,000 readers, whose connection closes: MRELEASE with an AOF",
            Bound::Short,
            |stage| readers(stage, 16, 20_000, " SESSION 0"),
            |stage| {
                close(stage);
                stage.ask(&format!("LOCK.MRELEASE 16 {} v", keys("k", 16)));
                stage.until_keys(0);
            },
        )
    },
    once(
        "a client parked for 8 keys of 20,000 readers, whose connection closes",
        Bound::Short,
        |stage| {
            readers(stage, 8, 20_000, " SESSION 0");
        },
        |stage| {
            let mut waiter = stage.server.connect();
            waiter.send(&format!("LOCK.MACQUIRE 8 {} v BLOCK 0", keys("k", 8)).split(' ').collect::<Vec<_>>());
            let is_held = stage.full;
            testbed::wait_for("the client to be parked", || {
                !is_held || stage.conn.info("clients", "blocked_clients") == "1"
            });
            close(stage);
            waiter.0.recv_response().expect("fences");
        },
    ),
    once(
        "4 keys of 65,536 readers whose leases end together: MRELEASE",
        Bound::Short,
        |stage| {
            let count = if stage.full { 4 * HOLDERS } else { 4 };
            stage.together("'LOCK.RW','k'..(i%4),'o'..i,'READ','PX',ms", count, Duration::from_secs(4));
        },
        |stage| {
            await_due(stage);
            for _ in 0..10 {
                stage.ask(&format!("LOCK.MRELEASE 4 {} v", keys("k", 4)));
            }
            stage.until_keys(0);
        },
    ),
    // Grants.
    once(
        "1,000 places of 64 keys are judged, none can be granted",
        Bound::Short,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE z H {HELD}"));
            let count = if stage.full { 1_000 } else { 0 };
            let of_session = (0..count).map(|at| format!("LOCK.ACQUIRE s{at} A{at} SESSION 0 {HELD}"));
            stage.fill(std::iter::once(format!("LOCK.ACQUIRE 0k A SESSION 0 {HELD}")).chain(of_session));
            places(stage, 1_000, |at| format!("64 0k s{at} {} z", keys(&format!("y{at}-"), 61)));
            stage.connections.truncate(1);
        },
        |stage| closes(stage, 1),
    ),
    once(
        "a release before 10,000 places of readers",
        Bound::Short,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE k1 H {HELD}"));
            queued(stage, QUEUE, |at| format!("LOCK.RW k1 p{at} READ"));
        },
        release,
    ),
    once(
        "a release before 2,000 parked readers",
        Bound::Short,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE k1 H {HELD}"));
            if stage.full {
                stage.connect(2_000);
                stage.park(|at| format!("LOCK.RW k1 p{at} READ BLOCK 0"));
            }
        },
        release,
    ),
    once(
        "MRELEASE of 64 keys before 256 places of the same",
        Bound::Short,
        |stage| {
            stage.ask(&format!("LOCK.MACQUIRE 64 {} H {HELD}", keys("s", 64)));
            places(stage, 256, |_| format!("64 {}", keys("s", 64)));
        },
        |stage| drop(stage.ask(&format!("LOCK.MRELEASE 64 {} H", keys("s", 64)))),
    ),
    once(
        "a release before 10,000 places for shares that do not fit",
        Bound::Short,
        |stage| {
            stage.fill((0..200).map(|at| format!("LOCK.SHARE k1 h{at} 1000 TAKE 5 {HELD}")));
            stage.ask(&format!("LOCK.SHARE k1 H 1000 {HELD}"));
            queued(stage, QUEUE - 1, |at| format!("LOCK.SHARE k1 p{at} {}", 1 + at % 900));
        },
        |stage| {
            stage.ask("LOCK.RELEASE k1 H");
            stage.ask("LOCK.SHARE k1 v 700 BLOCK 1");
        },
    ),
    // Ends of connections.
    once(
        "a connection with 100,000 holds closes",
        Bound::Short,
        |stage| {
            let count = if stage.full { PLACES } else { 1 };
            stage.fill((0..count).map(|at| format!("LOCK.ACQUIRE h{at} H SESSION 0 {HELD}")));
        },
        |stage| closes(stage, 0),
    ),
    once(
        "1,000 connections with a hold and a parked request for 64 keys close together, beyond BLPOP",
        Bound::Thousand,
        |stage| {
            stage.ask(&format!("LOCK.ACQUIRE k1 A {HELD}"));
            stage.connect(1_000);
            for at in 0..if stage.full { 1_000 } else { 0 } {
                stage.connections[at].int(&["LOCK.ACQUIRE", &format!("s{at}"), &format!("p{at}"), "SESSION", "0"]);
            }
            let (full, more) = (stage.full, keys("m", 63));
            stage.park(|at| match full {
                true => format!("LOCK.MACQUIRE 64 k1 {more} p{at} BLOCK 0"),
                false => format!("BLPOP list {more} 0"),
            });
        },
        |stage| closes(stage, 1),
    ),
    // What is seen.
    scene("LOCK.INFO of 65,536 readers and 10,000 places", Bound::Short, crowded, |stage| {
        drop(stage.ask("LOCK.INFO k0"))
    }),
    scene(
        "LOCK.INFO of all of the same, beyond HGETALL",
        Bound::Beyond,
        |stage| {
            if stage.full { crowded(stage) } else { bound_readers(stage) }
        },
        |stage| drop(stage.ask(if stage.full { "LOCK.INFO k0 COUNT 65536" } else { "HGETALL k0" })),
    ),
    scene("MEMORY USAGE of 65,536 readers and 10,000 places", Bound::Short, crowded, |stage| {
        drop(stage.ask("MEMORY USAGE k0"))
    }),
    scene("INFO lock beside 100,000 places, each of another key", Bound::Short, places_everywhere, |stage| {
        drop(stage.ask("INFO lock"))
    }),
    scene("LOCK.TOP beside the same (for operators)", Bound::Short, places_everywhere, |stage| {
        drop(stage.ask("LOCK.TOP"))
    }),
    // What the server does to keys.
    once(
        "a demotion with 100,000 places on 10 keys, each with a channel of its own that is heard (for administrators)",
        Bound::Administrators,
        |stage| {
            held(stage, 10);
            let count = if stage.full { PLACES } else { 0 };
            stage.fill((0..count).map(|at| format!("LOCK.ACQUIRE h{} p{at} QUEUE 60000 NOTIFY c{at}", at % 10)));
            stage.has("places", PLACES as u64);
            let mut heard = stage.server.connect();
            for from in (0..count).step_by(1_000) {
                let channels: Vec<String> = (from..from + 1_000).map(|at| format!("c{at}")).collect();
                let words: Vec<&str> = std::iter::once("SUBSCRIBE").chain(channels.iter().map(|c| &**c)).collect();
                heard.send(&words);
                for _ in &channels {
                    heard.0.recv_response().expect("a confirmation");
                }
            }
            stage.connections.push(heard);
        },
        |stage| {
            stage.ask("REPLICAOF 127.0.0.1 1");
            sleep(Duration::from_millis(500));
        },
    ),
    once(
        "FLUSHALL of 100,000 locks bound to a connection, each with a place, beyond hashes (for administrators)",
        Bound::Administrators,
        locks_everywhere,
        |stage| {
            stage.ask("FLUSHALL");
            sleep(Duration::from_millis(500));
        },
    ),
    once("SWAPDB of the same", Bound::Beyond, locks_everywhere, |stage| {
        stage.ask("SWAPDB 0 1");
        sleep(Duration::from_millis(500));
    }),
    once("DEL of 65,536 readers bound to a connection, beyond a hash", Bound::Beyond, bound_readers, |stage| {
        drop(stage.ask("DEL k0"))
    }),
    once("UNLINK of the same", Bound::Beyond, bound_readers, |stage| drop(stage.ask("UNLINK k0"))),
    once(
        "RENAME of the same to a key with 10,000 places",
        Bound::Beyond,
        |stage| {
            bound_readers(stage);
            stage.ask(&format!("LOCK.ACQUIRE k9 A {HELD}"));
            queued(stage, QUEUE, |at| format!("LOCK.ACQUIRE k9 p{at}"));
        },
        |stage| drop(stage.ask("RENAME k0 k9")),
    ),
    once("MOVE of the same", Bound::Beyond, bound_readers, |stage| drop(stage.ask("MOVE k0 1"))),
    scene("DUMP of the same", Bound::Beyond, bound_readers, |stage| drop(stage.ask("DUMP k0"))),
    once(
        "RESTORE of the same, beyond a hash (for administrators)",
        Bound::Administrators,
        |stage| {
            bound_readers(stage);
            stage.saved = stage.conn.call(&["DUMP", "k0"]).ok();
        },
        |stage| {
            let Some(Value::BulkString(saved)) = stage.saved.take() else { panic!("nothing was saved") };
            stage.conn.call(&[&b"RESTORE"[..], b"k1", b"0", &saved]).expect("a payload of this server");
        },
    ),
    // What ends together.
    once(
        "100,000 leases end together",
        Bound::Short,
        |stage| {
            let count = if stage.full { PLACES } else { 1 };
            stage.together("'LOCK.ACQUIRE','l'..i,'H','PX',ms", count, Duration::from_secs(3));
        },
        |stage| {
            await_due(stage);
            stage.until_keys(0);
        },
    ),
    once(
        "the time of 100,000 places is over together",
        Bound::Short,
        |stage| {
            held(stage, PLACES);
            let count = if stage.full { PLACES } else { 0 };
            stage.together("'LOCK.ACQUIRE','h'..i,'p'..i,'QUEUE',ms", count, Duration::from_secs(4));
            stage.has("places", PLACES as u64);
        },
        |stage| {
            await_due(stage);
            sleep(Duration::from_millis(if stage.full { 1_000 } else { 10 }));
            testbed::wait_for("the places to end", || {
                sleep(Duration::from_millis(100));
                stage.conn.info_number("lock", "lock_places") == 0
            });
        },
    ),
    Case {
        grace_ms: GRACE_MS,
        ..once(
            "a grace ends before 100,000 places",
            Bound::Short,
            |stage| {
                stage.due = Instant::now() + stage.patience * Duration::from_millis(GRACE_MS.into());
                let count = if stage.full { PLACES } else { 0 };
                stage.fill((0..count).map(|at| format!("LOCK.ACQUIRE l{at} p{at} QUEUE 60000")));
                // The grace began before the client connected.
                stage.is_late |= stage.conn.info_number("lock", "lock_places") < count as u64;
                stage.has("places", PLACES as u64);
            },
            |stage| {
                await_due(stage);
                sleep(Duration::from_millis(200));
                let count = if stage.full { PLACES as i64 } else { 0 };
                stage.until_keys(count);
            },
        )
    },
];

/// So many keys, with a blank between two.
fn keys(prefix: &str, count: usize) -> String {
    (0..count).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>().join(" ")
}

/// The same with names of so many bytes, which differ in their last ones alone.
fn long(bytes: usize, from: usize, count: usize) -> String {
    (from..from + count).map(|at| format!("{at:n>bytes$}")).collect::<Vec<_>>().join(" ")
}

/// Places for several keys, each of another owner.
fn places(stage: &mut Stage, count: usize, of: impl Fn(usize) -> String) {
    queued(stage, count, |at| format!("LOCK.MACQUIRE {} p{at}", of(at)));
}

/// So many places, by these requests up to QUEUE.
fn queued(stage: &mut Stage, count: usize, request: impl Fn(usize) -> String) {
    let full = if stage.full { count } else { 0 };
    stage.fill((0..full).map(|at| format!("{} QUEUE 60000", request(at))));
    stage.has("places", count as u64);
}

fn places_behind(stage: &mut Stage, count: usize) {
    stage.ask(&format!("LOCK.ACQUIRE k1 A {HELD}"));
    places(stage, count, |at| format!("64 k1 {}", keys(&format!("n{at}."), 63)));
}

/// A stranger waits for a moment.
fn waits(stage: &mut Stage) {
    stage.ask("LOCK.ACQUIRE k1 v BLOCK 1");
}

fn held(stage: &mut Stage, count: usize) {
    stage.fill((0..count).map(|at| format!("LOCK.ACQUIRE h{at} H {HELD}")));
}

/// Keys with so many readers each.
fn readers(stage: &mut Stage, keys: usize, count: usize, session: &str) {
    let count = if stage.full { count } else { 1 };
    stage.fill((0..keys * count).map(|at| format!("LOCK.RW k{} o{at} READ {HELD}{session}", at % keys)));
    if !session.is_empty() {
        stage.has("session_holds", (keys * count) as u64);
    }
}

/// As many readers of one key, or fields of a hash, as there may be.
fn bound_readers(stage: &mut Stage) {
    if stage.full {
        readers(stage, 1, HOLDERS, " SESSION 0");
    } else {
        stage.fill((0..HOLDERS).map(|at| format!("HSET k0 field{at} {at}")));
    }
}

fn crowded(stage: &mut Stage) {
    readers(stage, 1, HOLDERS, "");
    queued(stage, QUEUE, |at| format!("LOCK.ACQUIRE k0 p{at}"));
}

fn places_everywhere(stage: &mut Stage) {
    held(stage, PLACES);
    queued(stage, PLACES, |at| format!("LOCK.ACQUIRE h{at} p{at}"));
}

/// Locks, or hashes of one field.
fn locks_everywhere(stage: &mut Stage) {
    if stage.full {
        stage.fill((0..PLACES).map(|at| format!("LOCK.ACQUIRE h{at} H{at} SESSION 0 {HELD}")));
        queued(stage, PLACES, |at| format!("LOCK.ACQUIRE h{at} p{at}"));
    } else {
        stage.fill((0..PLACES).map(|at| format!("HSET h{at} field {at}")));
    }
}

/// An owner gets 64 keys, prolongs and gives them back, and takes a place.
fn of_owner(stage: &mut Stage, keys: &str) {
    stage.ask(&format!("LOCK.MACQUIRE 64 {keys} O"));
    stage.ask(&format!("LOCK.MEXTEND 64 {keys} O PX 1000"));
    stage.ask(&format!("LOCK.MRELEASE 64 {keys} O"));
    let but_first = keys.split_once(' ').expect("64 keys").1;
    stage.ask(&format!("LOCK.MACQUIRE 64 h250 {but_first} O QUEUE 60000"));
    stage.ask("LOCK.RELEASE h250 O");
}

fn release(stage: &mut Stage) {
    stage.ask("LOCK.RELEASE k1 H");
    sleep(Duration::from_millis(if stage.full { 500 } else { 10 }));
}

fn close(stage: &mut Stage) {
    stage.connections.clear();
}

/// They close, and with them end all keys but so many.
fn closes(stage: &mut Stage, left: i64) {
    close(stage);
    stage.until_keys(left);
}

fn await_due(stage: &Stage) {
    sleep(stage.due.saturating_duration_since(Instant::now()));
}

/// An owner of 24 bytes, of which each had the same digest while that was without a key: quoted for a line of words.
fn colliding(number: u64) -> String {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| {
        let product = u128::from(sum ^ word) * u128::from(SPREAD);
        product as u64 ^ (product >> 64) as u64
    };
    let first = number + 1;
    let second = mix(24, first) ^ 0x1234_5678_90ab_cdef;
    let bytes = first.to_le_bytes().into_iter().chain(second.to_le_bytes()).chain(*b"attacker");
    bytes.map(|byte| format!("\\x{byte:02x}")).collect()
}
