//! Locks that are taken, used and given back.

use crate::stage::{Pair, Play, holders};
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

/// A lock is the owner's while it is held, and nobody's after that.
pub(crate) fn a_lock_is_taken_and_given_back(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"]}));
    let fence = agent.acquired("a");
    let owner = agent.owner("a");
    let info = conn.lock_info("k").unwrap();
    assert_eq!((info.mode.as_str(), info.fence, holders(conn, "k")), ("write", fence, vec![owner.clone()]));

    assert_eq!(agent.ask(json!({"do": "check", "lock": "a"}))["held"], true);
    let set = json!({"do": "guard", "lock": "a", "command": ["SET", "{k}data", "v"]});
    assert_eq!(agent.ask(set)["reply"], "OK");
    assert_eq!(conn.get::<String>(&["GET", "{k}data"]), "v");
    assert!(!agent.is_lost("a"));

    agent.released("a");
    assert!(conn.lock_info("k").is_none());

    // The next acquisition is another one: a new owner, a higher fence.
    assert!(agent.acquired("a") > fence);
    assert_ne!(agent.owner("a"), owner);
    agent.released("a");
}

/// No option is lost on the way to the server.
pub(crate) fn what_was_asked_for_is_what_the_server_has(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("shared", json!({"keys": ["k"], "shared": true, "lease": 20.5, "note": "a note, with blanks"}));
    agent.acquired("shared");
    let holder = conn.lock_info("k").unwrap().holders.remove(0);
    assert_eq!((holder.mode.as_str(), holder.reads, holder.writes), ("read", 1, 0));
    assert_eq!(holder.note.as_deref(), Some("a note, with blanks"));
    assert!((15_000..=20_500).contains(&holder.ttl_ms), "{}", holder.ttl_ms);

    agent.open("three", json!({"keys": ["s"], "limit": 5, "take": 3, "lease": 1.0}));
    agent.acquired("three");
    let info = conn.lock_info("s").unwrap();
    assert_eq!((info.mode.as_str(), info.shares), ("read", 3));
    // The mode is that of the lock, in checks too.
    assert_eq!(agent.ask(json!({"do": "check", "lock": "three"}))["held"], true);
    agent.open("other three", json!({"keys": ["s"], "limit": 5, "take": 3, "wait": 0}));
    assert!(agent.acquire("other three").value()["fences"].is_null());
    agent.released("three");
    assert!(conn.lock_info("s").is_none());

    // Refused before anything is sent.
    for (name, options) in [
        ("a lease too short", json!({"keys": ["x"], "lease": 0.5})),
        ("no limit", json!({"keys": ["x"], "limit": 0})),
        ("no key", json!({"keys": []})),
    ] {
        let mut open = options;
        open["do"] = json!("open");
        open["lock"] = json!(name);
        let answer = agent.ask(open);
        // A language may say so when the lock is acquired.
        let answer = if answer["error"].is_null() { agent.acquire(name).value() } else { answer };
        assert_eq!(answer["error"], "refused", "{name}: {answer}");
    }
}

/// The server guards the writes of writers alone. A refusal is no loss.
pub(crate) fn a_guard_of_a_shared_lock_is_refused_and_the_lock_stays(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    for (name, options) in
        [("shared", json!({"keys": ["k"], "shared": true})), ("one of three", json!({"keys": ["s"], "limit": 3}))]
    {
        agent.open(name, options);
        agent.acquired(name);
        let guard = agent.ask(json!({"do": "guard", "lock": name, "command": ["SET", "data", "v"]}));
        assert_eq!(guard["error"], "refused", "{guard}");
        assert!(!agent.is_lost(name));
        assert_eq!(agent.ask(json!({"do": "check", "lock": name}))["held"], true);
        agent.released(name);
    }
    assert_eq!(conn.int(&["EXISTS", "data"]), Some(0));
}

/// All or none, under one owner, and each key has a fence.
pub(crate) fn several_keys_are_one_lock(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("both", json!({"keys": ["k1", "k2"], "wait": null, "lease": 1.0}));
    let fence = conn.int(&["LOCK.ACQUIRE", "k2", "other"]).unwrap();
    let asked = agent.acquire("both");
    conn.await_waiters("k2", 1);
    assert!(holders(conn, "k1").is_empty(), "all or none");
    conn.int(&["LOCK.RELEASE", "k2", "other", "FENCE", &fence.to_string()]);
    let answer = asked.value();
    assert_eq!(answer["fences"].as_array().map(Vec::len), Some(2), "{answer}");
    let owner = agent.owner("both");
    for (key, fence) in [("k1", &answer["fences"][0]), ("k2", &answer["fences"][1])] {
        let info = conn.lock_info(key).unwrap();
        assert_eq!((Some(info.fence), holders(conn, key)), (fence.as_i64(), vec![owner.clone()]));
    }
    // Both are renewed.
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(!agent.is_lost("both"));
    assert_eq!((holders(conn, "k1").len(), holders(conn, "k2").len()), (1, 1));
    agent.released("both");
    assert!(conn.lock_info("k1").is_none() && conn.lock_info("k2").is_none());
}

/// Otherwise the inner one would release the outer one's lock.
pub(crate) fn a_key_twice_under_one_owner_is_refused(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("outer", json!({"keys": ["k"]}));
    let fence = agent.acquired("outer");
    agent.open("inner", json!({"keys": ["k"], "within": "outer"}));
    assert_eq!(agent.acquire("inner").error(), "refused");
    agent.open("inner several", json!({"keys": ["j", "k"], "within": "outer"}));
    assert_eq!(agent.acquire("inner several").error(), "refused");
    let twice = agent.ask(json!({"do": "open", "lock": "twice", "keys": ["x", "x"]}));
    let twice = if twice["error"].is_null() { agent.acquire("twice").value() } else { twice };
    assert_eq!(twice["error"], "refused", "{twice}");

    assert_eq!(conn.lock_info("k").unwrap().fence, fence, "untouched");
    assert_eq!(conn.lock_info("k").unwrap().holders[0].writes, 1);
    agent.released("outer");
    assert!(conn.lock_info("k").is_none());
}

/// An owner is an acquisition, and not a process.
pub(crate) fn two_tasks_of_one_process_do_not_share(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"]}));
    agent.open("b", json!({"keys": ["k"], "wait": 0}));
    agent.open("c", json!({"keys": ["k"]}));
    let first = agent.acquired("a");
    assert!(agent.acquire("b").value()["fences"].is_null());
    let asked = agent.acquire("c");
    conn.await_waiters("k", 1);
    agent.released("a");
    assert!(asked.fence() > first);
    assert_ne!(agent.owner("a"), agent.owner("c"));
    agent.released("c");
}

/// Each of ten tasks gets its turn several times, and no more than three have one at a time.
pub(crate) fn a_semaphore_of_3_with_10_tasks_is_never_above_3(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    let names: Vec<String> = (0..10).map(|number| format!("task {number}")).collect();
    let mut asked = HashMap::new();
    for name in &names {
        agent.open(name, json!({"keys": ["s"], "limit": 3}));
        asked.insert(name, agent.acquire(name));
    }
    let mut turns: HashMap<&String, u32> = HashMap::new();
    let mut within: Vec<&String> = Vec::new();
    let mut most = 0;
    while turns.values().sum::<u32>() < 50 {
        let granted: Vec<_> =
            names.iter().filter(|name| asked.get(name).is_some_and(|pending| pending.is_granted())).collect();
        within.extend(&granted);
        for name in granted {
            asked.remove(name);
            *turns.entry(name).or_default() += 1;
        }
        // What the test has seen granted and has not told to release is held for certain.
        assert!(within.len() <= 3, "{within:?}");
        let shares = conn.lock_info("s").map_or(0, |info| info.shares);
        assert!(shares <= 3, "{shares}");
        most = most.max(within.len());
        if within.len() == 3 || (most == 3 && !within.is_empty()) {
            let name = within.remove(0);
            agent.released(name);
            asked.insert(name, agent.acquire(name));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((most, turns.len()), (3, 10), "{turns:?}");
}

/// Two tasks that nest two locks in opposite orders are told at once, and not when a lease ends.
pub(crate) fn a_cycle_of_nested_locks_is_a_deadlock(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    for (lock, key) in [("a", "k1"), ("b", "k2")] {
        agent.open(lock, json!({"keys": [key]}));
        agent.acquired(lock);
    }
    agent.open("a within", json!({"keys": ["k2"], "within": "a"}));
    agent.open("b within", json!({"keys": ["k1"], "within": "b"}));
    let waits = agent.acquire("a within");
    conn.await_waiters("k2", 1);
    assert_eq!(agent.acquire("b within").error(), "deadlock");
    agent.released("b");
    waits.fence();
    agent.released("a within");
    agent.released("a");
    assert!(conn.lock_info("k1").is_none() && conn.lock_info("k2").is_none());
}

/// So the server sees cycles.
pub(crate) fn a_lock_within_another_has_its_owner(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("outer", json!({"keys": ["k1"]}));
    agent.open("inner", json!({"keys": ["k2"], "within": "outer"}));
    agent.acquired("outer");
    agent.acquired("inner");
    let owner = agent.owner("outer");
    assert_eq!((holders(conn, "k1"), holders(conn, "k2")), (vec![owner.clone()], vec![owner]));
    agent.released("inner");
    assert_eq!(holders(conn, "k1").len(), 1);
    agent.released("outer");
}
