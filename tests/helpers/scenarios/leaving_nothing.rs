//! What a process has after many locks is what it had before the first.

use crate::agent::Agent;
use crate::stage::{Play, Stage};
use serde_json::json;
use testbed::{Client, wait_for};

/// Neither connections nor threads, tasks or handles.
pub(crate) fn a_thousand_locks_leave_no_connection_and_no_task(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"]}));
    // The client may connect only now.
    agent.ask(json!({"do": "ping"}));
    let before = (connections(conn), agent.tasks());
    taken_and_given_back(agent, 1_000);
    assert_nothing_is_left(agent, conn, before);
}

/// The connections that waits need are closed when nothing is held or waited for.
pub(crate) fn waits_leave_no_connection_and_no_task(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"]}));
    agent.open("b", json!({"keys": ["k"], "wait": 0.2}));
    agent.ask(json!({"do": "ping"}));
    let before = (connections(conn), agent.tasks());
    waited_for(agent, conn, 30);
    assert_nothing_is_left(agent, conn, before);
}

fn taken_and_given_back(agent: &mut Agent, times: u32) {
    for _ in 0..times {
        agent.acquired("a");
        agent.released("a");
    }
}

/// Waits that are served, and waits that are over first.
fn waited_for(agent: &mut Agent, conn: &mut Client, times: u32) {
    for round in 0..times {
        conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
        let lock = if round % 5 == 4 { "b" } else { "a" };
        let asked = agent.acquire(lock);
        if lock == "a" {
            conn.await_waiters("k", 1);
        } else {
            assert!(asked.value()["fences"].is_null());
        }
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        if lock == "a" {
            asked.fence();
            agent.released("a");
        }
    }
}

fn assert_nothing_is_left(agent: &mut Agent, conn: &mut Client, (clients, tasks): (usize, u64)) {
    // A client may keep one for its next lock.
    wait_for("the connections to be closed", || connections(conn) <= clients + 1);
    wait_for("the tasks to end", || agent.tasks() <= tasks);
    assert!(conn.lock_info("k").is_none());
}

/// How many clients the server has.
fn connections(conn: &mut Client) -> usize {
    conn.get::<String>(&["CLIENT", "LIST", "TYPE", "NORMAL"]).lines().count()
}
