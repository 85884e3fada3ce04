//! Observers of what happens to locks: WATCH, client-side caches, subscribers to keyspace events; and ACLs, which say
//! which user may do it.

use crate::harness::connection::{Connection, Reply};
use testbed::{Server, wait_for};

fn ok() -> Reply {
    Reply::simple("OK")
}

#[test]
fn a_refused_request_does_not_break_a_watch_and_a_granted_one_does() {
    // Asking for a lock in vain would abort the transactions of its holder.
    let server = Server::new();
    let (mut watcher, mut other) = (Connection::resp2(&server), Connection::resp2(&server));
    other.say("LOCK.RW k a READ");
    other.say("LOCK.RW k b READ");
    let mut survives = |command: &str| {
        assert_eq!(watcher.say("WATCH k"), ok());
        other.say(command);
        assert_eq!(watcher.say("MULTI"), ok());
        watcher.say("PING");
        let replies = watcher.say("EXEC");
        match replies {
            Reply::Array(_) => true,
            Reply::Other(null) if null == "*-1" => false,
            other => panic!("{other:?}"),
        }
    };
    for quiet in [
        "LOCK.ACQUIRE k c",
        "LOCK.RW k a WRITE",
        "LOCK.RELEASE k c",
        "LOCK.RELEASE k a WRITE",
        "LOCK.RELEASE k a TO 5",
        "LOCK.RELEASE k a FENCE 5",
        "LOCK.EXTEND k c PX 5000",
        "LOCK.ACQUIRE k a PX 0",
        "LOCK.HOLD k a 0 0",
        "LOCK.INFO k",
        "LOCK.ACQUIRE another c",
    ] {
        assert!(survives(quiet), "{quiet}");
    }
    for change in
        ["LOCK.RW k c READ", "LOCK.RW k a READ", "LOCK.EXTEND k a PX 5000", "LOCK.RELEASE k a", "LOCK.RELEASE k c"]
    {
        assert!(!survives(change), "{change}");
    }
}

#[test]
fn a_lease_that_ends_breaks_a_watch() {
    // A client watches a lock to act only while it is held.
    let server = Server::new();
    let (mut watcher, mut other) = (Connection::resp2(&server), server.connect());
    // On a machine that is slow enough the lease is over before WATCH: then with a longer one.
    for lease_ms in [100, 1_000, 10_000] {
        watcher.say(&format!("LOCK.ACQUIRE k a PX {lease_ms}"));
        assert_eq!(watcher.say("WATCH k"), ok());
        if watcher.say("LOCK.INFO k") != Reply::Null {
            break;
        }
    }
    wait_for("the lease to end", || other.get::<i64>(&["EXISTS", "k"]) == 0);
    assert_eq!(watcher.say("MULTI"), ok());
    watcher.say("PING");
    assert_eq!(watcher.say("EXEC"), Reply::Other("*-1".to_owned()));
}

#[test]
fn client_side_caches_hear_of_changes_alone() {
    // If refusals invalidated a cache, any requester could empty it; without invalidation at grants, it shows a free
    // lock.
    let server = Server::new();
    let (mut cache, mut other) = (Connection::resp3(&server), Connection::resp2(&server));
    assert_eq!(cache.say("CLIENT TRACKING ON"), ok());
    let invalidation = Reply::Push(vec![Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk("k")])]);
    other.say("LOCK.ACQUIRE k a");
    for change in ["LOCK.EXTEND k a PX 60000", "LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "LOCK.RELEASE k a"] {
        // It has read the lock, and must learn of the next change to it.
        cache.say("LOCK.INFO k");
        for quiet in [
            "LOCK.ACQUIRE k b",
            "LOCK.RW k b READ",
            "LOCK.RELEASE k b",
            "LOCK.EXTEND k b PX 5",
            "LOCK.RELEASE k a READ",
        ] {
            other.say(quiet);
            assert_eq!(cache.say("PING"), Reply::Simple("PONG".to_owned()), "{quiet}");
        }
        other.say(change);
        assert_eq!(cache.read(), invalidation, "{change}");
    }
    // A free lock is worth knowing of, too.
    assert_eq!(cache.say("LOCK.INFO k"), Reply::Null);
    other.say("LOCK.ACQUIRE k b");
    assert_eq!(cache.read(), invalidation);
}

#[test]
fn every_change_is_a_keyspace_event_of_the_module_class() {
    // Without events a program would have to ask again and again whether a lock is free.
    let server = Server::setup().option("notify-keyspace-events", "KEd").start();
    let (mut subscriber, mut actor) = (Connection::resp3(&server), Connection::resp2(&server));
    subscriber.say("PSUBSCRIBE __key*@0__:*");
    let script: &[(&str, &str)] = &[
        ("LOCK.ACQUIRE k a", "lock.acquire"),
        ("LOCK.ACQUIRE k a", "lock.acquire"),
        ("LOCK.ACQUIRE k b", ""),
        ("LOCK.EXTEND k a PX 60000", "lock.extend"),
        ("LOCK.EXTEND k b PX 60000", ""),
        ("LOCK.RELEASE k a", "lock.release"),
        ("LOCK.RELEASE k a READ", ""),
        ("LOCK.RELEASE k a", "lock.release"),
        ("LOCK.RW k a READ PX 1", "lock.acquire"),
        // Its lease ends.
        ("", "lock.lapse"),
        // The end of the script.
        ("LOCK.ACQUIRE end a", "lock.acquire"),
    ];
    for (command, event) in script {
        if !command.is_empty() {
            actor.say(command);
        }
        if event.is_empty() {
            continue;
        }
        let key = command.split(' ').nth(1).unwrap_or("k");
        let channels = [format!("__keyspace@0__:{key}"), format!("__keyevent@0__:{event}")];
        for (channel, message) in channels.iter().zip([*event, key]) {
            let expected = ["pmessage", "__key*@0__:*", channel, message].map(Reply::bulk);
            assert_eq!(subscriber.read(), Reply::Push(expected.to_vec()), "{command}");
        }
    }
}

#[test]
fn events_come_from_the_database_of_the_lock() {
    // The timer works in all databases: an event of a lapse in the wrong one names a lock that is still held.
    let server = Server::setup().option("notify-keyspace-events", "Ed").start();
    let (mut subscriber, mut actor) = (Connection::resp3(&server), Connection::resp2(&server));
    subscriber.say("PSUBSCRIBE __keyevent@*__:*");
    assert_eq!(actor.say("SELECT 3"), ok());
    actor.say("LOCK.ACQUIRE k a PX 1");
    for event in ["lock.acquire", "lock.lapse"] {
        let channel = format!("__keyevent@3__:{event}");
        let expected = ["pmessage", "__keyevent@*__:*", &channel, "k"].map(Reply::bulk);
        assert_eq!(subscriber.read(), Reply::Push(expected.to_vec()));
    }
}

/// Whether a module can have an ACL category of its own here: Redis from 7.4 on, and Valkey.
pub(crate) fn has_own_categories(wire: &mut Connection) -> bool {
    let info = wire.say("INFO server").text();
    let version = |field: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(field))?;
        let mut numbers = line.split('.').map(|number| number.parse::<u32>().unwrap());
        Some((numbers.next()?, numbers.next()?))
    };
    version("valkey_version:").is_some() || version("redis_version:").is_some_and(|version| version >= (7, 4))
}

/// All commands, and the categories of each beside @lock.
const CATEGORIES: &[(&str, &str)] = &[
    ("lock.acquire", "write blocking fast"),
    ("lock.break", "write slow admin dangerous"),
    ("lock.check", "read fast"),
    ("lock.extend", "write fast"),
    ("lock.guard", "write slow"),
    ("lock.hold", "write fast admin dangerous"),
    ("lock.info", "read slow"),
    ("lock.log", "slow admin dangerous"),
    ("lock.macquire", "write blocking slow"),
    ("lock.mextend", "write slow"),
    ("lock.mrelease", "write slow"),
    ("lock.release", "write fast"),
    ("lock.rw", "write blocking fast"),
    ("lock.share", "write blocking fast"),
    ("lock.top", "read slow admin dangerous"),
];

#[test]
fn every_command_is_in_its_acl_categories() {
    // A user with -@dangerous could forge holds; one with +@read could take locks.
    let (_server, mut wire) = Connection::alone();
    let names = |wire: &mut Connection, category: &str| match wire.say(&format!("ACL CAT {category}")) {
        Reply::Array(all) => {
            let mut ours: Vec<_> = all.iter().map(Reply::text).filter(|name| name.starts_with("lock.")).collect();
            ours.sort();
            ours
        }
        refused => vec![refused.text()],
    };
    if !has_own_categories(&mut wire) {
        // Redis 7.0 has none for modules.
        assert_eq!(names(&mut wire, "lock"), ["ERR Unknown category 'lock'"]);
        return;
    }
    let all: Vec<_> = CATEGORIES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names(&mut wire, "lock"), all);
    for category in wire.say("ACL CAT").items().iter().map(Reply::text).filter(|category| category != "lock") {
        let there = CATEGORIES.iter().filter(|(_, all)| all.split(' ').any(|one| one == category));
        let there: Vec<_> = there.map(|(name, _)| *name).collect();
        assert_eq!(names(&mut wire, &category), there, "{category}");
    }
}

/// The flags of a command, sorted.
fn flags_of(wire: &mut Connection, command: &str) -> Vec<String> {
    let Reply::Array(info) = wire.say(&format!("COMMAND INFO {command}")).items().remove(0) else {
        panic!("{command}")
    };
    let mut flags: Vec<String> = info[2].clone().items().iter().map(Reply::text).collect();
    flags.sort();
    flags
}

#[test]
fn lock_log_is_flagged_as_slowlog_is() {
    // What could go wrong: RESET changes what the server remembers, and passes for a read.
    let (server, mut wire) = Connection::alone();
    for like in ["slowlog|get", "slowlog|reset"] {
        let mut expected = flags_of(&mut wire, like);
        expected.push("module".to_owned());
        expected.sort();
        assert_eq!(flags_of(&mut wire, "lock.log"), expected, "{like}");
    }
    // The others say of keys what they do with them.
    assert_eq!(flags_of(&mut wire, "lock.top"), ["module", "readonly"]);
    assert_eq!(flags_of(&mut wire, "lock.info"), ["module", "readonly"]);
    // A user that may read may be kept from forgetting, on every server.
    assert_eq!(wire.say("ACL SETUSER looker on nopass ~* +lock.log|count"), ok());
    let mut looker = Connection::resp2(&server);
    assert_eq!(looker.say("AUTH looker any"), ok());
    assert_eq!(looker.say("LOCK.LOG COUNT 5"), Reply::Array(vec![]));
    for refused in ["LOCK.LOG RESET", "LOCK.LOG"] {
        assert!(matches!(looker.say(refused), Reply::Error(text) if text.starts_with("NOPERM ")), "{refused}");
    }
}
