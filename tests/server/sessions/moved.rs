//! Bindings of holds that leave their key, their database or their server.

use crate::harness::connection::Connection;
use crate::harness::payload::{dump, restore_over};
use crate::harness::state::{holders, let_it_tick};
use crate::harness::transcript::Stage;
use crate::sessions::binding::only_hold;
use testbed::{Server, wait_for};

#[test]
fn the_binding_goes_where_the_hold_goes() {
    // Left behind, it would end what another client put under the old name, and nothing under the new one.
    for (go, db, key) in [
        ("RENAME k l", "0", "l"),
        ("RENAMENX k l", "0", "l"),
        ("RENAME k target", "0", "target"),
        ("MOVE k 3", "3", "k"),
        ("SWAPDB 0 3", "3", "k"),
        ("SWAPDB 3 0", "3", "k"),
    ] {
        let (server, mut conn) = Server::connected();
        let mut stage = Stage::new(&server);
        stage.play(&[
            ("t: LOCK.ACQUIRE target y PX 600000 SESSION 0", "#1"),
            ("s: LOCK.ACQUIRE k a PX 600000 SESSION 0", "#2"),
        ]);
        conn.call(&go.split(' ').collect::<Vec<_>>()).unwrap();
        // Another client under the old name.
        stage.play(&[("LOCK.ACQUIRE k b PX 600000", "#3")]);
        conn.ok(&["SELECT", db]);
        let hold = only_hold(&mut conn, key);
        assert_eq!((hold.session, hold.client), (Some(0), Some(stage.waiter("s").id())), "{go}");
        if key == "target" {
            stage.leave("t");
            let_it_tick(&mut conn);
        }
        assert_eq!(holders(&mut conn, key), ["a"], "{go}");
        stage.leave("s");
        wait_for("it to be ended", || conn.int(&["EXISTS", key]) == Some(0));
        conn.ok(&["SELECT", "0"]);
        assert_eq!(holders(&mut conn, "k"), ["b"], "{go}");
    }
}

#[test]
fn the_binding_goes_with_the_hold_that_is_gone() {
    // What lies there afterwards is another owner's, be it under the same name.
    for away in [
        &["DEL k"][..],
        &["UNLINK k"],
        &["FLUSHALL"],
        &["FLUSHDB ASYNC"],
        &["SET k text", "DEL k"],
        &["PEXPIRE k 1", "DEBUG SLEEP 0.01"],
        &["LOCK.BREAK k"],
        &["LOCK.RELEASE k a"],
        &["DEBUG RELOAD"],
    ] {
        let (server, mut conn) = Server::connected();
        let mut stage = Stage::new(&server);
        stage.play(&[("s: LOCK.ACQUIRE k a PX 600000 SESSION 0", "#1")]);
        for command in away {
            conn.call(&command.split(' ').collect::<Vec<_>>()).unwrap();
        }
        stage.ask(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]);
        assert_eq!(conn.info("lock", "lock_session_holds"), "0", "{away:?}");
        let hold = only_hold(&mut conn, "k");
        assert_eq!((hold.session, hold.client), (None, None), "{away:?}");
        stage.leave("s");
        let_it_tick(&mut conn);
        assert_eq!(holders(&mut conn, "k"), ["a"], "{away:?}");
        assert_eq!(conn.info("lock", "lock_sessions_closed"), "0", "{away:?}");
    }
}

#[test]
fn a_restored_hold_is_bound_to_no_connection() {
    // A payload may come from another server, where that number is another client.
    let (server, mut conn) = Server::connected();
    let mut stage = Stage::new(&server);
    stage.play(&[("s: LOCK.ACQUIRE k a PX 600000 SESSION 0", "#1")]);
    let payload = dump(&mut conn, "k");
    for key in ["k", "l"] {
        restore_over(&mut conn, key, &payload).unwrap();
        let hold = only_hold(&mut conn, key);
        assert_eq!((hold.session, hold.client), (None, None), "{key}");
    }
    stage.leave("s");
    let_it_tick(&mut conn);
    assert_eq!(holders(&mut conn, "k"), ["a"]);
    assert_eq!(holders(&mut conn, "l"), ["a"]);
}

#[test]
fn a_restart_leaves_holds_by_lease() {
    // The number of a connection means another client, or none, after a restart.
    for (how, options) in [
        ("rdb", &[("save", "3600 1000000")][..]),
        ("aof", &[("appendonly", "yes")]),
        ("tail", &[("appendonly", "yes"), ("aof-use-rdb-preamble", "no")]),
    ] {
        let mut server = Server::setup().options(options).start();
        let mut holder = Connection::resp2(&server);
        holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
        holder.say("LOCK.ACQUIRE l a PX 600000 SESSION 1000");
        // Closed by the server when it ends: too late to end anything.
        server.restart();
        let mut conn = server.connect();
        for key in ["k", "l"] {
            let hold = only_hold(&mut conn, key);
            assert_eq!((hold.session, hold.client), (None, None), "{how}");
            assert!(hold.ttl_ms > 400_000, "{how}: {hold:?}");
        }
        assert_eq!(conn.info("lock", "lock_session_holds"), "0");
        // All numbers that the old connection may have had.
        (0..20).for_each(|_| drop(server.connect()));
        let_it_tick(&mut conn);
        assert_eq!(holders(&mut conn, "k"), ["a"], "{how}");
        assert_eq!(holders(&mut conn, "l"), ["a"], "{how}");
    }
}
