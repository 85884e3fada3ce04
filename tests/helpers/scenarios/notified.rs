//! Waits by NOTIFY: in an agent in which no wait blocks, so that all of them share a subscription.

use crate::agent::{Agent, Pending};
use crate::stage::{NO_BLOCKING, Play, Stage, count, holders, waits_for_held};
use serde_json::json;
use std::time::{Duration, Instant};
use testbed::{Client, Cluster, wait_for, wait_so_long};

/// Sooner than what is left ends by itself: a place after 30 s, a lock after its lease.
const BEFORE_ITS_END: Duration = Duration::from_secs(20);

/// A wait asks by itself after 7.5 s at the earliest. What happens sooner, a message or a new subscription has caused.
const SOON: Duration = Duration::from_secs(6);

/// What was refused is tried again on the next connection. In Java that happens by itself only after a minute.
const BEFORE_TRYING: Duration = Duration::from_secs(50);

/// Three requests, of which two acquire: the first one is answered null, and the second one follows a message.
pub(crate) fn a_wait_by_notify_is_told_when_it_is_its_turn(play: Play) {
    let mut stage = subscribed(play);
    let Stage { agent, conn, .. } = &mut stage;
    let before = (calls(conn), notified(conn));
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    let waiter = &conn.lock_info("k").unwrap().waiters[0];
    assert!(waiter.client.is_none(), "it waits on a connection");
    assert_eq!(conn.info_number("lock", "lock_notify_channels"), 1);
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    assert_eq!(granted_soon(&asked), conn.lock_info("k").unwrap().fence);
    // One acquired is of this test.
    assert_eq!((calls(conn) - before.0, notified(conn) - before.1), (1 + 2, 1));
    assert_eq!(conn.lock_info("k").unwrap().holders[0].writes, 1);
    agent.released("a");
    assert!(conn.lock_info("k").is_none());
}

/// The place ends, and what was offered in the same moment goes on to the next.
pub(crate) fn a_wait_by_notify_that_is_over_or_cancelled_leaves_no_place(play: Play) {
    let mut stage = subscribed(play);
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("short", json!({"keys": ["k"], "wait": 0.5}));
    let began = Instant::now();
    let asked = waits_for_held(agent, conn, "short", "k");
    let answer = asked.answer();
    // The last request has a second for its answer, which a busy machine may exceed.
    let error = answer.value["error"].as_str();
    assert!(answer.value["fences"].is_null() && matches!(error, None | Some("connection")), "{}", answer.value);
    assert!(answer.at - began < BEFORE_ITS_END, "{:?}", answer.at - began);
    wait_so_long(BEFORE_ITS_END, "the place to end", || conn.lock_info("k").unwrap().waiting == 0);
    conn.int(&["LOCK.RELEASE", "k", "first"]);

    agent.open("a", json!({"keys": ["k"], "lease": 60.0}));
    let mut cancelled = 0;
    for round in 0..40_u64 {
        conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
        let asked = agent.acquire_cancellable("a");
        conn.await_waiters("k", 1);
        if round % 2 == 0 {
            conn.int(&["LOCK.RELEASE", "k", "first"]);
            std::thread::sleep(Duration::from_micros(round * 37 % 40 * 100));
        }
        agent.cancel(&asked);
        if round % 2 == 1 {
            conn.int(&["LOCK.RELEASE", "k", "first"]);
        }
        let answer = asked.value();
        if answer["fences"][0].is_i64() {
            agent.released("a");
        } else {
            assert_eq!(answer["error"], "cancelled", "{answer}");
            cancelled += 1;
        }
        wait_so_long(BEFORE_ITS_END, "nothing to be left", || conn.lock_info("k").is_none());
    }
    assert!(cancelled > 0);
}

/// Its waits hear from the server again. What they missed meanwhile they learn by asking.
pub(crate) fn a_subscription_that_is_killed_is_there_again(play: Play) {
    let mut stage = subscribed(play);
    let Stage { agent, conn, .. } = &mut stage;
    let told = notified(conn);
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    for _ in 0..3 {
        let (killed, before) = (subscribers(conn), calls(conn));
        conn.int(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        await_another_subscriber(conn, &killed);
        wait_so_long(SOON, "the wait to ask again", || calls(conn) > before);
    }
    assert_eq!((conn.lock_info("k").unwrap().waiting, notified(conn)), (1, told));
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    granted_soon(&asked);
    assert_eq!(conn.info_number("lock", "lock_notified_unheard"), 0);
    agent.released("a");
}

/// The subscription is closed in the step of the release, so nobody hears of it.
pub(crate) fn a_message_that_is_lost_costs_no_wake_up(play: Play) {
    let mut stage = subscribed(play);
    let Stage { agent, conn, .. } = &mut stage;
    let told = notified(conn);
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    conn.ok(&["MULTI"]);
    conn.get::<String>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    conn.get::<String>(&["LOCK.RELEASE", "k", "first"]);
    conn.get::<Vec<i64>>(&["EXEC"]);
    granted_soon(&asked);
    assert_eq!((notified(conn) - told, conn.info_number("lock", "lock_notified_unheard")), (1, 1));
    agent.released("a");
}

/// Whoever may publish can lie. That costs a few requests: no lock, and not the place.
pub(crate) fn messages_that_are_forged_or_doubled_take_no_lock(play: Play) {
    let mut stage = subscribed(play);
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    let [channel] = &channels(conn)[..] else { panic!("{:?}", channels(conn)) };
    let owner = String::from_utf8(conn.lock_info("k").unwrap().waiters[0].owner.clone()).unwrap();
    let before = calls(conn);
    conn.int(&["PUBLISH", channel, &owner]);
    wait_for("it to ask", || calls(conn) > before);
    // Nobody of that name waits there; and all of them are meant.
    for message in ["", "stranger", "*"] {
        assert_eq!(conn.int(&["PUBLISH", channel, message]), Some(1));
    }
    wait_for("it to ask", || calls(conn) >= before + 2);
    let (flood, began) = (calls(conn), Instant::now());
    while began.elapsed() < Duration::from_secs(1) {
        conn.int(&["PUBLISH", channel, &owner]);
        conn.int(&["PUBLISH", channel, "*"]);
    }
    let asked_in_flood = calls(conn) - flood;
    // With pauses that grow, and once a second for all.
    let most = 10 + 3 * began.elapsed().as_secs();
    assert!(asked_in_flood <= most, "{asked_in_flood} requests for a flood of messages, and {most} are allowed");
    assert!(asked.within(Duration::ZERO).is_none());
    assert_eq!(conn.lock_info("k").unwrap().waiting, 1);
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    asked.fence();
    conn.int(&["PUBLISH", channel, &owner]);
    agent.released("a");
    assert!(conn.lock_info("k").is_none());
}

/// The application is told once. When the right is there, a new connection finds it.
pub(crate) fn without_the_right_to_publish_or_subscribe_a_wait_asks_by_itself(play: Play) {
    let mut stage = play.stage_by_notify();
    let Stage { agent, conn, proxy, .. } = &mut stage;
    for (round, command) in ["publish", "subscribe"].into_iter().enumerate() {
        conn.ok(&["ACL", "SETUSER", "default", &format!("-{command}")]);
        if round > 0 {
            proxy.cut_all();
        }
        agent.open("a", json!({"keys": ["k"]}));
        let asked = waits_for_held(agent, conn, "a", "k");
        let before = calls(conn);
        wait_for("it to ask by itself", || calls(conn) >= before + 2);
        wait_for("trouble", || agent.told_of_notify() > round);
        assert_eq!((conn.info_number("lock", "lock_notify_channels"), agent.told_of_notify()), (0, round + 1));
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        asked.fence();
        agent.released("a");

        conn.ok(&["ACL", "SETUSER", "default", &format!("+{command}")]);
        proxy.cut_all();
        let asked = waits_for_held(agent, conn, "a", "k");
        wait_so_long(BEFORE_TRYING, "NOTIFY", || conn.info_number("lock", "lock_notify_channels") == 1);
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        asked.fence();
        agent.released("a");
        assert_eq!(agent.told_of_notify(), round + 1);
    }
}

/// Their places belong to a connection, and end soon after it. They are asked for again before that.
pub(crate) fn waits_by_notify_outlive_their_connections(play: Play) {
    let mut stage = play.stage_by_notify();
    let Stage { agent, conn, proxy, .. } = &mut stage;
    let names = ["a", "b", "c"];
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    let mut asked = Vec::new();
    for (ahead, name) in names.iter().enumerate() {
        agent.open(name, json!({"keys": ["k"]}));
        asked.push(agent.acquire(name));
        conn.await_waiters("k", ahead + 1);
    }
    for _ in 0..2 {
        let (killed, before) = (subscribers(conn), calls(conn));
        proxy.cut_all();
        await_another_subscriber(conn, &killed);
        wait_so_long(SOON, "all to ask again", || {
            calls(conn) >= before + 3 && conn.lock_info("k").unwrap().waiting == 3
        });
    }
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    for (name, pending) in names.iter().zip(&asked) {
        pending.fence();
        agent.released(name);
    }
    assert!(conn.lock_info("k").is_none());
}

/// It stands still when its turn comes, and then it is killed: what it was offered ends soon after its connection.
pub(crate) fn a_process_that_is_told_and_killed_costs_others_a_short_time(play: Play) {
    let Stage { mut agent, mut conn, server, proxy: _proxy } = subscribed(play);
    let conn = &mut conn;
    agent.open("a", json!({"keys": ["k"]}));
    let _asked = waits_for_held(&mut agent, conn, "a", "k");
    let mut next = server.connect();
    next.send(&["LOCK.ACQUIRE", "k", "next", "PX", "60000", "BLOCK", "0"]);
    conn.await_waiters("k", 2);
    let before = notified(conn);
    agent.stop();
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    assert_eq!((notified(conn) - before, holders(conn, "k").contains(&"next".to_owned())), (1, false));
    drop(agent);
    wait_so_long(BEFORE_ITS_END, "the next owner", || holders(conn, "k") == ["next"]);
}

/// One subscription, one connection for requests, and the client's own.
pub(crate) fn five_hundred_waits_have_two_connections(play: Play) {
    const WAITS: usize = 500;
    let most = play.language.shared_connections();
    let mut stage = play.stage_by_notify();
    let Stage { agent, conn, .. } = &mut stage;
    agent.ask(json!({"do": "ping"}));
    let own = connections(conn);
    subscribe(agent, conn);
    let (before, told) = (connections(conn), notified(conn));
    assert!(before <= own + most, "{before} connections, and {own} before");
    let (began, mut asked) = (Instant::now(), Vec::new());
    for number in 0..WAITS {
        let (name, key) = (format!("lock {number}"), format!("k{}", number % 50));
        if number < 50 {
            conn.int(&["LOCK.ACQUIRE", &key, "first", "PX", "600000"]).unwrap();
        }
        agent.open(&name, json!({"keys": [key]}));
        asked.push(agent.acquire(&name));
    }
    wait_for("all to wait", || conn.info_number("lock", "lock_places") == u64::try_from(WAITS).unwrap());
    assert!(connections(conn) <= before, "{} connections, and {before} before", connections(conn));
    for key in 0..50 {
        conn.int(&["LOCK.RELEASE", &format!("k{key}"), "first"]);
    }
    // Who asked first of those that want the same key is not known.
    let mut releases = Vec::new();
    let mut waits: Vec<(usize, Pending)> = asked.into_iter().enumerate().collect();
    wait_for("all to be granted", || {
        let (granted, waiting): (Vec<_>, Vec<_>) = waits.drain(..).partition(|(_, pending)| pending.is_granted());
        releases.extend(granted.iter().map(|(number, _)| agent.release(&format!("lock {number}"))));
        waits = waiting;
        waits.is_empty()
    });
    for release in releases {
        assert_eq!(release.value()["released"], true);
    }
    assert!(connections(conn) <= before);
    assert_eq!(conn.info_number("lock", "lock_places"), 0);
    // One for each offer. A wait that has lasted for longer may have asked by itself just then.
    let (told, waits) = (notified(conn) - told, u64::try_from(WAITS).unwrap());
    let least = if began.elapsed() < SOON { waits } else { 1 };
    assert!((least..=waits).contains(&told), "{told} messages");
}

/// By a shard channel of the node. The owner is told that its slot is gone, and waits at the new node in the same way.
pub(crate) fn a_wait_by_notify_goes_with_a_slot_that_moves(play: Play) {
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    let mut agent = play.agent_with(cluster.nodes[1].port(), &["--cluster", NO_BLOCKING]);
    agent.open("a", json!({"keys": [key]}));
    let asked = waits_for_held(&mut agent, &mut old, "a", &key);
    wait_for("NOTIFY", || old.info_number("lock", "lock_notify_channels") == 1);

    cluster.begin_move(&slot, 0, 1);
    let port = cluster.nodes[1].port().to_string();
    old.ok(&["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS", &key]);
    cluster.end_move(&slot, 0, 1);
    new.await_waiters(&key, 1);
    wait_for("NOTIFY at the new node", || new.info_number("lock", "lock_notify_channels") == 1);
    let before = notified(&mut new);
    new.int(&["LOCK.RELEASE", &key, "first"]);
    assert_eq!(granted_soon(&asked), new.lock_info(&key).unwrap().fence);
    assert_eq!(notified(&mut new) - before, 1);
    assert_eq!(new.info_number("lock", "lock_notified_unheard"), 0);
    agent.released("a");
}

/// A stage where the agent has its subscription. A first wait may ask before it has one, and once more after that.
fn subscribed(play: Play) -> Stage {
    let mut stage = play.stage_by_notify();
    subscribe(&mut stage.agent, &mut stage.conn);
    stage
}

/// Waits once, and is told.
fn subscribe(agent: &mut Agent, conn: &mut Client) {
    agent.open("subscriber", json!({"keys": ["subscribed"]}));
    let asked = waits_for_held(agent, conn, "subscriber", "subscribed");
    wait_for("NOTIFY", || conn.info_number("lock", "lock_notify_channels") == 1);
    conn.int(&["LOCK.RELEASE", "subscribed", "first"]);
    granted_soon(&asked);
    agent.released("subscriber");
}

/// The fence of a wait that did not have to ask by itself.
fn granted_soon(asked: &Pending) -> i64 {
    assert!(asked.within(SOON).is_some(), "it heard nothing");
    asked.fence()
}

/// The channels that are subscribed to.
fn channels(conn: &mut Client) -> Vec<String> {
    conn.get(&["PUBSUB", "CHANNELS", "lock:notify:*"])
}

/// The clients that have a subscription.
fn subscribers(conn: &mut Client) -> Vec<String> {
    let list: String = conn.get(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    list.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn await_another_subscriber(conn: &mut Client, former: &[String]) {
    wait_for("another subscription", || subscribers(conn).iter().any(|one| !former.contains(one)));
}

/// How many clients the server has, with those that have a subscription.
fn connections(conn: &mut Client) -> usize {
    conn.get::<String>(&["CLIENT", "LIST"]).lines().count()
}

fn notified(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_notified")
}

fn calls(conn: &mut Client) -> u64 {
    count(conn, "lock.acquire", "calls")
}
