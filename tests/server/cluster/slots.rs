//! What a node of a cluster says of keys while their slot moves key by key, and after a script with keys of two slots.
//! After such a script Valkey 9.1 refuses the calls of modules and scripts.

use crate::cluster::many::tag_of;
use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{holders, nobody_waits, waiters};
use redis::Value;
use testbed::{Client, Cluster, Server, text_of, wait_for};

/// A script with keys of two slots, which all servers refuse.
fn spoil(server: &Server, tag: &str) {
    let mut conn = server.connect();
    let mut slot = |key: &str| conn.int(&["CLUSTER", "KEYSLOT", key]);
    let here = slot(tag);
    let other = (0..).map(|number| format!("{{o{number}}}")).find(|other| slot(other) != here).unwrap();
    conn.error(&["EVAL", "return redis.call('MSET', KEYS[1], '1', ARGV[1], '1')", "1", &format!("{tag}x"), &other]);
}

/// The same several times. In between a client waits, for which the server takes clients from its pool. It does not
/// take the same one for each of the scripts.
fn spoil_several(server: &Server, tag: &str) {
    let mut conn = server.connect();
    let key = format!("{tag}busy");
    conn.int(&["LOCK.ACQUIRE", &key, "busy", "PX", "600000"]).expect("free");
    for _ in 0..3 {
        let mut waiter = Connection::waiting(server, &format!("LOCK.ACQUIRE {key} waiter BLOCK 0"));
        spoil(server, tag);
        assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &waiter.id().to_string()]), Some(1));
        waiter.read();
        spoil(server, tag);
    }
    assert_eq!(conn.int(&["LOCK.RELEASE", &key, "busy"]), Some(0));
}

type Spoil = fn(&Server, &str);
const SPOILS: [Spoil; 3] = [|_, _| {}, spoil, spoil_several];

/// What a node replies to the three commands, about keys that the requester holds once and holds once afterwards.
fn said(conn: &mut Client, asking: bool, keys: [&str; 2]) -> [String; 3] {
    let commands = [("LOCK.MACQUIRE", &[][..]), ("LOCK.MEXTEND", &["PX", "600000"]), ("LOCK.MRELEASE", &[])];
    commands.map(|(command, options)| {
        if asking {
            conn.ok(&["ASKING"]);
        }
        match conn.call(&[&[command, "2", keys[0], keys[1], "a"], options].concat()) {
            Ok(Value::Array(replies)) if !replies.contains(&Value::Nil) => "served".to_owned(),
            Ok(other) => format!("{other:?}"),
            Err(error) => text_of(&error).split(' ').next().unwrap().to_owned(),
        }
    })
}

fn all(word: &str) -> [String; 3] {
    [word; 3].map(str::to_owned)
}

#[test]
fn many_key_commands_live_on_after_a_script_with_keys_of_two_slots() {
    // What could go wrong: what the server keeps of that script is taken for an answer about our keys.
    for spoil in SPOILS {
        let cluster = Cluster::start(1, 0);
        let mut conn = cluster.conn(0);
        for round in 0..3 {
            spoil(&cluster.nodes[0], "{t}");
            let (j, k) = (format!("{{t}}j{round}"), format!("{{t}}k{round}"));
            let fences: Vec<i64> = conn.get(&["LOCK.MACQUIRE", "2", &j, &k, "a"]);
            assert_eq!(fences.len(), 2);
            assert_eq!(said(&mut conn, false, [&j, &k]), all("served"));
            conn.ok(&["MULTI"]);
            conn.call(&["LOCK.MACQUIRE", "2", &format!("{j}-"), &k, "a"]).unwrap();
            conn.call(&["LOCK.MRELEASE", "2", &format!("{j}-"), &k, "a"]).unwrap();
            let replies: Vec<Vec<i64>> = conn.get(&["EXEC"]);
            assert_eq!((replies[0][1], &replies[1][..]), (fences[1], &[0, 1][..]));
            assert_eq!(conn.get::<Vec<i64>>(&["LOCK.MRELEASE", "2", &j, &k, "a"]), [0, 0]);
            assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0, "something was left behind");
        }
        // What is wrong is still refused.
        assert!(conn.error(&["LOCK.MACQUIRE", "2", "{t}j", "{u}k", "a"]).starts_with("CROSSSLOT "));
        assert!(cluster.nodes[0].aof_tail().iter().all(|command| !command.join(" ").contains("asks")));
    }
}

#[test]
fn a_waiter_is_served_after_a_script_with_keys_of_two_slots() {
    // What could go wrong: the module believes that another node serves the free key beside the released one, and
    // redirects the waiter for both. Or it believes so in the background, and no waiter is served.
    for spoil in SPOILS {
        let cluster = Cluster::start(1, 0);
        let mut conn = cluster.conn(0);
        for how in ["released", "lapsed", "closed"] {
            let [j, k, l] = ["{t}j", "{t}k", "{t}l"];
            let mut holder = Connection::resp2(&cluster.nodes[0]);
            for key in [j, k, l] {
                assert!(holder.say(&format!("LOCK.ACQUIRE {key} a PX 600000 SESSION 0")).int() > 0);
            }
            let mut both =
                Connection::waiting(&cluster.nodes[0], &format!("LOCK.MACQUIRE 2 {j} {k} m PX 600000 BLOCK 0"));
            let mut one = Connection::waiting(&cluster.nodes[0], &format!("LOCK.ACQUIRE {l} w PX 600000 BLOCK 0"));
            spoil(&cluster.nodes[0], "{t}");
            match how {
                "released" => {
                    for key in [j, k, l] {
                        assert_eq!(conn.int(&["LOCK.RELEASE", key, "a"]), Some(0));
                    }
                }
                "lapsed" => {
                    for key in [j, k, l] {
                        conn.int(&["LOCK.EXTEND", key, "a", "PX", "1"]).expect("held");
                    }
                }
                _ => drop(holder),
            }
            let replies = [both.read(), one.read()];
            for (key, owner) in [(j, "m"), (k, "m"), (l, "w")] {
                assert_eq!(holders(&mut conn, key), [owner], "{how}: {replies:?}");
                assert_eq!(conn.int(&["LOCK.RELEASE", key, owner]), Some(0));
            }
            nobody_waits(&mut conn);
        }
    }
}

#[test]
fn keys_of_a_slot_that_moves_are_served_where_all_of_them_are() {
    // What could go wrong: two nodes grant a lock, of which each has one of the keys. Or no node grants it, though one
    // has all.
    for spoil in SPOILS {
        let cluster = Cluster::start(2, 0);
        let (tag, slot) = tag_of(&cluster, 0);
        let [j, k] = ["j", "k"].map(|name| format!("{tag}{name}"));
        let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
        old.call(&["LOCK.MACQUIRE", "2", &j, &k, "a", "PX", "600000"]).unwrap();
        for number in 0..2 {
            spoil(&cluster.nodes[number], &tag_of(&cluster, number).0);
        }
        cluster.begin_move(&slot, 0, 1);
        let orders = [[&j[..], &k[..]], [&k[..], &j[..]]];

        for keys in orders {
            assert_eq!(said(&mut old, false, keys), all("served"), "both are here");
            assert_eq!(said(&mut new, true, keys), all("TRYAGAIN"), "none has come");
            assert_eq!(said(&mut new, false, keys), all("MOVED"), "did not ask by ASKING");
        }
        cluster.migrate(&j, 0, 1);
        for keys in orders {
            // Some servers check the first key alone, and leave the others to us.
            let said_there = said(&mut old, false, keys);
            assert!(said_there == all("TRYAGAIN") || keys[0] == j && said_there == all("ASK"), "{said_there:?}");
            assert_eq!(said(&mut new, true, keys), all("TRYAGAIN"), "one has come");
        }
        cluster.migrate(&k, 0, 1);
        for keys in orders {
            assert_eq!(said(&mut old, false, keys), all("ASK"), "both have gone");
            assert_eq!(said(&mut new, true, keys), all("served"), "both have come");
            assert_eq!(said(&mut new, false, keys), all("MOVED"), "did not ask by ASKING");
        }
        // One key is served where the request follows ASKING, be it there or not.
        let free = format!("{tag}free");
        assert!(old.error(&["LOCK.ACQUIRE", &free, "b"]).starts_with("ASK "));
        assert!(new.error(&["LOCK.ACQUIRE", &free, "b"]).starts_with("MOVED "));
        new.ok(&["ASKING"]);
        new.int(&["LOCK.ACQUIRE", &free, "b"]).expect("free");
        cluster.end_move(&slot, 0, 1);
        assert_eq!(said(&mut new, false, [&j, &k]), all("served"));
        assert_eq!(said(&mut old, false, [&j, &k]), all("MOVED"));
    }
}

#[test]
fn a_waiter_in_a_slot_that_arrives_is_served_there() {
    // What could go wrong: the key has come already, and the node that has it says in the background that it is
    // elsewhere.
    for spoil in SPOILS {
        let cluster = Cluster::start(2, 0);
        let (tag, slot) = tag_of(&cluster, 0);
        let key = format!("{tag}k");
        let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
        old.int(&["LOCK.ACQUIRE", &key, "a", "PX", "600000"]).expect("free");
        cluster.begin_move(&slot, 0, 1);
        cluster.migrate(&key, 0, 1);
        spoil(&cluster.nodes[1], &tag_of(&cluster, 1).0);
        let mut waiter = Connection::resp2(&cluster.nodes[1]);
        waiter.send_line("ASKING");
        assert_eq!(waiter.read(), Reply::simple("OK"));
        waiter.send_line(&format!("LOCK.ACQUIRE {key} w PX 600000 BLOCK 0"));
        wait_for("the client to be in line", || waiters(&mut new) == 1);
        new.ok(&["ASKING"]);
        new.int(&["LOCK.EXTEND", &key, "a", "PX", "1"]).expect("held");
        waiter.only_reply().int();
        new.ok(&["ASKING"]);
        assert_eq!(new.int(&["LOCK.RELEASE", &key, "w"]), Some(0));
    }
}
