//! What is measured beside what, and under which circumstances. What it is to be says [`crate::goals`].

use crate::server::options_of;
use std::path::PathBuf;

/// Whether the server writes an append-only file, and how often it waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aof {
    Off,
    /// It waits each second, and not on the thread that serves clients.
    Everysec,
    /// It waits before it replies.
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Environment {
    pub aof: Aof,
    pub replica: bool,
    pub pipeline: usize,
}

/// A sequence that is measured.
#[derive(Clone, Debug)]
pub struct Contestant {
    pub name: String,
    /// Its commands, as in [`crate::template`].
    pub run: String,
    /// A command that not every server has: where it lacks, this is not measured.
    pub needs: Option<&'static str>,
}

/// What is compared: contestants, by their place in the list.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    pub what: usize,
    pub with: usize,
}

/// Locks that are there before, one for each number: so many, taken by this sequence.
#[derive(Clone, Debug)]
pub struct Fill {
    pub count: usize,
    pub run: String,
}

/// Contestants that are measured in turn, on one server process.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: &'static str,
    pub environment: Environment,
    pub fills: Vec<Fill>,
    pub contestants: Vec<Contestant>,
    pub comparisons: Vec<Comparison>,
    /// How many of the first are to cost the same: the dearest is compared with the cheapest.
    pub flat: Option<usize>,
}

/// How many keys the locks that are taken and given back have.
pub const KEYS: usize = 100_000;

/// The pair that is compared with all others.
pub const LOCK: &str = "LOCK.ACQUIRE {key} {owner} PX 600000; LOCK.RELEASE {key} {owner} -> 0";
/// The cheapest pair there is. No safe lock: it deletes the key, no matter which owner holds the lock.
pub const SET_DEL: &str = "SET {key} {owner} NX PX 600000 -> OK; DEL {key} -> 1";
pub const LOCK_NAME: &str = "LOCK.ACQUIRE + LOCK.RELEASE";
pub const SET_DEL_NAME: &str = "SET NX PX + DEL";

/// One lock that is held, in three ways: by the module, as a string, and as a hash in the shape of Redisson's.
pub const HELD: [&str; 3] = [
    "LOCK.ACQUIRE {key} {id} PX 600000",
    "SET str:{n} {id} NX PX 600000 -> OK",
    "EVALSHA {take} 1 hash:{n} {id} 600000 -> null",
];

/// Nothing is saved, and the server is kept busy: where not said otherwise.
pub const BUSY: Environment = Environment { aof: Aof::Off, replica: false, pipeline: 16 };
const LOGGED: Environment = Environment { aof: Aof::Everysec, ..BUSY };
const REPLICATED: Environment = Environment { replica: true, ..LOGGED };
const READERS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Redisson's shape costs more the more readers there are: among 10,000 a slice would take minutes.
const READERS_BY_SCRIPT: usize = 3;

impl Environment {
    /// So many that the server always has something to do, whichever way commands come.
    pub fn connections(&self) -> usize {
        match (self.aof, self.pipeline) {
            (Aof::Always, _) => 64,
            (_, 1) => 48,
            _ => 16,
        }
    }

    pub fn options(&self) -> Vec<(String, String)> {
        let (file, fsync) = match self.aof {
            Aof::Off => ("no", "everysec"),
            Aof::Everysec => ("yes", "everysec"),
            Aof::Always => ("yes", "always"),
        };
        // A rewrite in the middle would count against the rival that runs by then.
        options_of([("appendonly", file), ("appendfsync", fsync), ("auto-aof-rewrite-percentage", "0")])
    }
}

impl std::fmt::Display for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let aof = match self.aof {
            Aof::Off => "no AOF",
            Aof::Everysec => "AOF everysec",
            Aof::Always => "AOF always",
        };
        let replica = if self.replica { "a replica" } else { "no replica" };
        write!(f, "pipeline {}, {} connections, {aof}, {replica}", self.pipeline, self.connections())
    }
}

/// The module with the empty command.
pub fn noop() -> PathBuf {
    testbed::file_from("REDIS_LOCK_NOOP", "target/release/libnoop.so")
}

fn contestant(name: &str, run: &str) -> Contestant {
    Contestant { name: name.to_owned(), run: run.to_owned(), needs: None }
}

/// The first beside each other one.
fn first_to_others(contestants: &[Contestant]) -> Vec<Comparison> {
    (1..contestants.len()).map(|with| Comparison { what: 0, with }).collect()
}

/// Everything but memory and what depends on how many locks are held.
pub fn groups() -> Vec<Group> {
    let named = [("pair", BUSY), ("aof", LOGGED), ("replicated", REPLICATED)];
    let mut groups: Vec<Group> = named.map(|(name, environment)| pairs(name, environment)).into();
    groups.extend([refused(), again(), extend()].into_iter().flatten());
    groups.extend([guard(), floor(), readers(), shares()]);
    for pipeline in [16, 1] {
        for aof in [Aof::Off, Aof::Everysec, Aof::Always] {
            for replica in [false, true] {
                let environment = Environment { aof, replica, pipeline };
                if ![BUSY, LOGGED, REPLICATED].contains(&environment) {
                    groups.push(pairs("matrix", environment));
                }
            }
        }
    }
    groups
}

/// A lock taken and released, beside all ways to do so without the module. The floor is the same number of commands
/// that do nothing.
fn pairs(name: &'static str, environment: Environment) -> Group {
    let set = |release: &str| format!("SET {{key}} {{owner}} NX PX 600000 -> OK; {release} -> 1");
    let needing = |command: &'static str, contestant: Contestant| Contestant { needs: Some(command), ..contestant };
    let redisson = "EVALSHA {take} 1 {key} {owner} 600000 -> null; \
                    EVALSHA {give} 3 {key} channel:{n} latch:{n}:{id} {owner} 600000 20000 -> 1; DEL latch:{n}:{id} -> 1";
    let contestants = vec![
        contestant(LOCK_NAME, LOCK),
        needing("DELEX", contestant("SET NX PX + DELEX IFEQ", &set("DELEX {key} IFEQ {owner}"))),
        needing("DELIFEQ", contestant("SET NX PX + DELIFEQ", &set("DELIFEQ {key} {owner}"))),
        contestant("SET NX PX + EVALSHA", &set("EVALSHA {compare_and_delete} 1 {key} {owner}")),
        contestant("SET NX PX + FCALL", &set("FCALL compare_and_delete 1 {key} {owner}")),
        contestant("Redisson's shape, with its latch", redisson),
        contestant(SET_DEL_NAME, SET_DEL),
        contestant("two empty module commands", "NOOP {key} {owner} PX 600000; NOOP {key} {owner}"),
        contestant("two PINGs", "PING; PING"),
    ];
    let comparisons = first_to_others(&contestants);
    Group { name, environment, fills: Vec::new(), contestants, comparisons, flat: None }
}

/// Locks that are held, and strings as many.
fn held() -> Vec<Fill> {
    HELD[..2].iter().map(|run| Fill { count: KEYS, run: (*run).to_owned() }).collect()
}

/// Two contestants on locks that are held, and on strings as many: with and without a pipeline.
fn on_held(name: &'static str, contestants: [Contestant; 2]) -> [Group; 2] {
    [16, 1].map(|pipeline| Group {
        name,
        environment: Environment { pipeline, ..BUSY },
        fills: held(),
        contestants: contestants.to_vec(),
        comparisons: first_to_others(&contestants),
        flat: None,
    })
}

fn refused() -> [Group; 2] {
    let ours = contestant("refused LOCK.ACQUIRE", "LOCK.ACQUIRE {key} {owner} PX 600000 -> null");
    let theirs = contestant("SET NX PX on a held key", "SET str:{n} {owner} NX PX 600000 -> null");
    on_held("refused", [ours, theirs])
}

fn again() -> [Group; 2] {
    let ours = "LOCK.ACQUIRE {key} {id} PX 600000; LOCK.RELEASE {key} {id} -> 1";
    let ours = contestant("LOCK.ACQUIRE again + LOCK.RELEASE", ours);
    on_held("again", [ours, contestant("two GETs", "GET str:{n}; GET str:{n}")])
}

fn extend() -> [Group; 2] {
    let ours = contestant("LOCK.EXTEND", "LOCK.EXTEND {key} {id} PX 600000");
    let theirs = contestant("PEXPIRE", "PEXPIRE str:{n} 600000 -> 1");
    on_held("extend", [ours, theirs])
}

/// A command that runs only for the holder, beside the two commands that a script or a transaction would need.
fn guard() -> Group {
    // No client chooses a fence, so these holds are set as a file would set them.
    let held = Fill { count: KEYS, run: "LOCK.HOLD {key} {id} V1W1F1{n}D0L600000000 -> 1".to_owned() };
    let data = Fill { count: KEYS, run: "SET data:{n} {id} -> OK".to_owned() };
    let check = "LOCK.CHECK {key} {id} WRITE FENCE 1{n}";
    Group {
        name: "guard",
        environment: BUSY,
        fills: vec![held, data],
        contestants: vec![
            contestant("LOCK.GUARD of a SET", "LOCK.GUARD {key} {id} 1{n} SET data:{n} {id}"),
            contestant("LOCK.CHECK, and the SET", &format!("{check}; SET data:{{n}} {{id}} -> OK")),
            contestant("LOCK.CHECK", check),
            contestant("GET", "GET data:{n}"),
        ],
        comparisons: [(0, 1), (2, 3)].map(|(what, with)| Comparison { what, with }).into(),
        flat: None,
    }
}

/// What a module's command costs at least beside commands of the server: one that only opens its key and replies.
fn floor() -> Group {
    let open = |reply: &str| format!("NOOP.OPEN {{key}} {reply} {{id}} PX 600000");
    let contestants = vec![
        contestant("open a key, reply null", &format!("{} -> null", open("null"))),
        contestant("SET NX PX on a held key", "SET str:{n} {owner} NX PX 600000 -> null"),
        contestant("twice: open a key, reply a fence", &format!("{}; NOOP.OPEN {{key}} fence", open("fence"))),
        contestant("two GETs", "GET str:{n}; GET str:{n}"),
        contestant("open a key, reply a fence", &open("fence")),
        contestant("PEXPIRE", "PEXPIRE str:{n} 600000 -> 1"),
    ];
    let comparisons = [(0, 1), (2, 3), (4, 5)].map(|(what, with)| Comparison { what, with });
    Group { name: "floor", environment: BUSY, fills: held(), contestants, comparisons: comparisons.into(), flat: None }
}

/// A contestant among few and among many others: its name, its run, and how each of the others came.
type Among = fn(usize) -> [String; 3];

/// The module's among so many others, and a script's among the first of these numbers.
fn among(name: &'static str, (ours, theirs): (Among, Among), scripts: usize, pairs: Vec<(usize, usize)>) -> Group {
    let by_script = READERS[..scripts].iter().map(|&count| (count, theirs(count)));
    let all: Vec<_> = READERS.iter().map(|&count| (count, ours(count))).chain(by_script).collect();
    let beside_script = (0..scripts).map(|place| (place, READERS.len() + place));
    Group {
        name,
        environment: BUSY,
        fills: all.iter().map(|(count, [.., run])| Fill { count: *count, run: run.clone() }).collect(),
        contestants: all.iter().map(|(_, [name, run, _])| contestant(name, run)).collect(),
        comparisons: pairs.into_iter().chain(beside_script).map(|(what, with)| Comparison { what, with }).collect(),
        flat: Some(READERS.len()),
    }
}

/// A read lock taken and given back among few and among many other readers.
fn readers() -> Group {
    let ours: Among = |readers| {
        let take = |owner: &str| format!("LOCK.RW shared:{readers} {{{owner}}} READ PX 600000");
        let run = format!("{}; LOCK.RELEASE shared:{readers} {{owner}} -> 0", take("owner"));
        [format!("LOCK.RW + RELEASE among {readers}"), run, take("id")]
    };
    let theirs: Among = |readers| {
        let take = |owner: &str| {
            let until = format!("until:{readers}:{{{owner}}}");
            format!("EVALSHA {{take_read}} 2 hash:{readers} {until} {{{owner}}} 600000 -> null")
        };
        let give = format!(
            "EVALSHA {{give_read}} 5 hash:{readers} channel until:{readers}:{{owner}} until:{readers} latch:{{n}}:{{owner}} \
             {{owner}} 20000 -> 0"
        );
        let run = format!("{}; {give}; DEL latch:{{n}}:{{owner}} -> 1", take("owner"));
        [format!("Redisson's shape among {readers}"), run, take("id")]
    };
    among("readers", (ours, theirs), READERS_BY_SCRIPT, (1..READERS.len()).map(|place| (place, 0)).collect())
}

/// A share taken and given back among few and among many other holders, beside a semaphore in a sorted set.
fn shares() -> Group {
    let ours: Among = |holders| {
        let take = |owner: &str| format!("LOCK.SHARE permits:{holders} {{{owner}}} 20000 PX 600000");
        let run = format!("{}; LOCK.RELEASE permits:{holders} {{owner}} -> 0", take("owner"));
        [format!("LOCK.SHARE + RELEASE among {holders}"), run, take("id")]
    };
    let theirs: Among = |holders| {
        // Any moment will do: no lease ends here.
        let take = |owner: &str| {
            format!("EVALSHA {{take_permit}} 1 zset:{holders} {{{owner}}} 20000 1800000000000 600000 -> 1")
        };
        let run = format!("{}; ZREM zset:{holders} {{owner}} -> 1", take("owner"));
        [format!("redis-semaphore's shape among {holders}"), run, take("id")]
    };
    among("shares", (ours, theirs), READERS.len(), Vec::new())
}

/// What clients without a lock run: what it costs them that the module is loaded.
pub const OTHERS: [(&str, &str); 2] = [("PING", "PING"), (SET_DEL_NAME, SET_DEL)];

/// Locks that are held where the same is measured among very many.
pub const HELD_FEW: usize = 1_000;
