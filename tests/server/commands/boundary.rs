//! What the server says of the module's commands and type, and what its own commands do to locks.

use crate::harness::connection::{Connection, Reply};
use crate::harness::transcript::each;
use testbed::{Client, Server, wait_for};

/// The commands as COMMAND INFO and COMMAND DOCS must show them: the name, the arity, the flags; where its keys are and
/// what is done with them; the arguments. The key is the first argument, or as many are as that one says, behind it. In
/// arguments `?` is optional, `...` as many as one likes, `(a|b)` one of, `WORD:value` behind a word.
const COMMANDS: &str = "\
lock.acquire -3 blocking,fast,module,write | first RW,access,update | key owner (PX:milliseconds|EX:seconds)? BLOCK:milliseconds? QUEUE:milliseconds? NOTIFY:channel? SESSION:milliseconds? RETRY:count? NOTE:note? MINFENCE:fence?
lock.rw -4 blocking,fast,module,write | first RW,access,update | key owner (READ|WRITE) (PX:milliseconds|EX:seconds)? BLOCK:milliseconds? QUEUE:milliseconds? NOTIFY:channel? SESSION:milliseconds? RETRY:count? NOTE:note? MINFENCE:fence?
lock.share -4 blocking,fast,module,write | first RW,access,update | key owner limit TAKE:count? (PX:milliseconds|EX:seconds)? BLOCK:milliseconds? QUEUE:milliseconds? NOTIFY:channel? SESSION:milliseconds? RETRY:count? NOTE:note?
lock.release -3 fast,module,write | first RW,access,delete | key owner (READ|WRITE)? (ALL|TO:count)? FENCE:fence?
lock.extend -5 fast,module,write | first RW,access,delete | key owner (PX:milliseconds|EX:seconds) SESSION:milliseconds? FENCE:fence? NOTE:note? MINFENCE:fence?
lock.check -3 fast,module,readonly | first RO,access | key owner (READ|WRITE)? FENCE:fence?
lock.guard -5 module,write | first RW,access,delete | key owner fence command arg...?
lock.info -2 module,readonly | first RO,access | key OWNER:owner? COUNT:count?
lock.macquire -4 blocking,module,movablekeys,write | counted RW,access,update | numkeys key... owner (READ|WRITE)? (PX:milliseconds|EX:seconds)? BLOCK:milliseconds? QUEUE:milliseconds? NOTIFY:channel? SESSION:milliseconds? RETRY:count? NOTE:note?
lock.mrelease -4 module,movablekeys,write | counted RW,access,delete | numkeys key... owner (READ|WRITE)? (ALL|TO:count)?
lock.mextend -6 module,movablekeys,write | counted RW,access,delete | numkeys key... owner (PX:milliseconds|EX:seconds) SESSION:milliseconds?
lock.break -2 module,write | first RW,access,delete | key owner?
lock.top -1 module,readonly | none | COUNT:count?
lock.log -1 admin,loading,module,stale | none | (COUNT:count|RESET)?
lock.hold -3 fast,module,write | first RW,access,update | key owner? state note?";

fn texts(reply: Reply) -> Vec<String> {
    let mut texts: Vec<String> = reply.items().iter().map(Reply::text).collect();
    texts.sort();
    texts
}

/// An argument as the table above writes it.
fn shape(arg: &Reply) -> String {
    let find = |name: &str| match arg {
        Reply::Array(flat) => flat.chunks(2).find(|pair| pair[0].text() == name).map(|pair| pair[1].clone()),
        other => panic!("not a flat map: {other:?}"),
    };
    let token = find("token").map(|token| token.text());
    let name = match (find("type").unwrap().text().as_str(), token) {
        ("oneof", _) => {
            let choices: Vec<_> = find("arguments").unwrap().items().iter().map(shape).collect();
            format!("({})", choices.join("|"))
        }
        ("pure-token", Some(token)) => token,
        (_, Some(token)) => format!("{token}:{}", find("name").unwrap().text()),
        (_, None) => find("name").unwrap().text(),
    };
    let flags = find("flags").map(texts).unwrap_or_default();
    let has = |flag: &str| flags.iter().any(|there| there == flag);
    format!("{name}{}{}", if has("multiple") { "..." } else { "" }, if has("optional") { "?" } else { "" })
}

#[test]
fn command_info_and_docs_tell_clients_all_they_need() {
    // A cluster client finds the node by the key specs; a wrong one sends the command to the wrong node.
    let (_server, mut wire) = Connection::alone();
    let mut names = Vec::new();
    for row in COMMANDS.lines() {
        let [head, keys, args] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        let [name, arity, flags] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let (keys, key) = keys.split_once(' ').unwrap_or((keys, ""));
        let listed = |words: &str| words.split(',').map(str::to_owned).collect::<Vec<_>>();
        names.push(name.to_owned());
        let info = wire.say(&format!("COMMAND INFO {name}")).items().remove(0).items();
        assert_eq!(info[0].text(), name);
        assert_eq!(info[1].int().to_string(), arity, "{name}");
        assert_eq!(texts(info[2].clone()), listed(flags), "{name}");
        let (kind, spec, place) = match keys {
            "none" => ("", vec![], [0, 0, 0]),
            "first" => ("range", vec![("lastkey", 0), ("keystep", 1), ("limit", 0)], [1, 1, 1]),
            // The first of them, for servers that find the node by that. A client that wants all must ask COMMAND
            // GETKEYS.
            "counted" => ("keynum", vec![("keynumidx", 0), ("firstkey", 1), ("keystep", 1)], [2, 2, 1]),
            other => panic!("no keys: {other}"),
        };
        assert_eq!([info[3].int(), info[4].int(), info[5].int()], place, "{name}");
        let mut specs = info[8].clone().items();
        if keys == "counted" {
            let signpost = specs.pop().expect("one more, by which the node is found");
            assert!(texts(signpost.field("flags")).contains(&"not_key".to_owned()), "{name}");
            assert_eq!(signpost.field("begin_search").field("spec").field("index").int(), 2, "{name}");
        }
        assert_eq!(specs.len(), usize::from(!spec.is_empty()), "{name}");
        for shown in specs {
            assert_eq!(texts(shown.field("flags")), listed(key), "{name}");
            let begin = shown.field("begin_search");
            assert_eq!(begin.field("type").text(), "index", "{name}");
            assert_eq!(begin.field("spec").field("index").int(), 1, "{name}");
            let find = shown.field("find_keys");
            assert_eq!(find.field("type").text(), kind, "{name}");
            for (field, value) in &spec {
                assert_eq!(find.field("spec").field(field).int(), *value, "{name} {field}");
            }
        }

        let docs = wire.say(&format!("COMMAND DOCS {name}")).field(name);
        assert!(docs.field("summary").text().ends_with('.'), "{name}");
        assert_eq!(docs.field("since").text(), "1.0.0", "{name}");
        assert!(docs.field("complexity").text().starts_with("O("), "{name}");
        assert_eq!(docs.field("module").text(), "lock", "{name}");
        let shapes: Vec<_> = docs.field("arguments").items().iter().map(shape).collect();
        assert_eq!(shapes.join(" "), args, "{name}");
    }
    // And there is no other.
    let all = wire.say("COMMAND LIST FILTERBY MODULE lock");
    names.sort();
    assert_eq!(texts(all), names);
}

#[test]
fn command_getkeys_finds_the_keys_of_a_command() {
    // Proxies and cluster clients ask the server for the keys of commands that they do not know: one that takes the
    // number for a key, or the owner, sends the command to a wrong node.
    let (_server, mut wire) = Connection::alone();
    // The keys of the command that is guarded are checked when it is called.
    for (command, keys) in each(&[
        ("LOCK.ACQUIRE key owner PX 5 NOTE n", "key"),
        ("LOCK.{RW key owner READ|SHARE key owner 5 TAKE 2|RELEASE key owner ALL|EXTEND key owner PX 5}", "key"),
        ("LOCK.{CHECK key owner FENCE 5|GUARD key owner 5 SET data x|INFO key|BREAK key owner}", "key"),
        ("LOCK.HOLD key {owner 0 0|owner V1|V1F5}", "key"),
        ("LOCK.MACQUIRE 2 j k a PX 5", "j k"),
        ("LOCK.MACQUIRE 1 j k", "j"),
        ("LOCK.MACQUIRE 3 READ PX 5 WRITE READ", "READ PX 5"),
        ("LOCK.MRELEASE 3 i j k a ALL", "i j k"),
        ("LOCK.MEXTEND 1 i a PX 5", "i"),
        ("LOCK.{TOP COUNT 5|LOG RESET}", "ERR The command has no key arguments"),
        ("LOCK.{MACQUIRE 0|MACQUIRE 3|MRELEASE -1|MACQUIRE x} j a", "ERR "),
    ]) {
        match wire.say(&format!("COMMAND GETKEYS {command}")) {
            Reply::Error(text) => assert!(text.starts_with(keys), "{command}: {text}"),
            found => assert_eq!(found.items().iter().map(Reply::text).collect::<Vec<_>>().join(" "), keys, "{command}"),
        }
    }
}

#[test]
fn the_module_is_listed_under_its_name_and_cannot_be_unloaded() {
    // To unload it would leave values that nothing can free.
    let (_server, mut wire) = Connection::alone();
    let modules = wire.say("MODULE LIST").items();
    let lock = modules.iter().find(|module| module.field("name").text() == "lock").expect("listed");
    // Two digits a part: 1.2.3 is 10203. A release candidate has the number of its release.
    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let number = parts.map(|part| format!("{part:0>2}")).concat();
    assert_eq!(lock.field("ver").int(), number.parse::<i64>().unwrap());
    assert!(matches!(wire.say("MODULE UNLOAD lock"), Reply::Error(_)));
    assert!(wire.say("LOCK.ACQUIRE k a").int() > 0);
}

#[test]
fn a_lock_is_a_value_of_its_own_type() {
    // If a lock passed for a string, APPEND could overwrite it unnoticed.
    let (_server, mut conn) = Server::connected();
    for n in 0..20 {
        conn.int(&["LOCK.ACQUIRE", &format!("lock{n}"), "a"]);
        conn.ok(&["SET", &format!("string{n}"), "x"]);
    }
    assert_eq!(conn.get::<String>(&["TYPE", "lock0"]), "redislock");
    assert_eq!(conn.get::<String>(&["OBJECT", "ENCODING", "lock0"]), "raw");
    assert_eq!(conn.get::<i64>(&["OBJECT", "REFCOUNT", "lock0"]), 1);
    let (_, mut keys): (String, Vec<String>) = conn.get(&["SCAN", "0", "COUNT", "1000", "TYPE", "redislock"]);
    keys.sort();
    let mut locks: Vec<_> = (0..20).map(|n| format!("lock{n}")).collect();
    locks.sort();
    assert_eq!(keys, locks);
    for command in [&["GET", "lock0"][..], &["APPEND", "lock0", "x"], &["INCR", "lock0"], &["LPUSH", "lock0", "x"]] {
        assert!(conn.error(command).starts_with("WRONGTYPE"), "{command:?}");
    }
}

#[test]
fn a_lock_has_no_copy() {
    // A copy would be held twice, with one fence.
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    assert!(conn.error(&["COPY", "k", "copy"]).starts_with("ERR"));
    assert!(conn.error(&["COPY", "k", "k", "DB", "1"]).starts_with("ERR"));
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 1);
    assert_eq!(conn.info_number("lock", "lock_leases"), 1);
}

fn ttl(conn: &mut Client, key: &str) -> i64 {
    conn.get(&["PTTL", key])
}

#[test]
fn a_lock_has_no_time_to_live_and_a_grant_clears_one_that_somebody_set() {
    // The server would expire the key by the wall clock, without an effect, while the lease still runs.
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.RW", "k", "a", "READ"]);
    assert_eq!(ttl(&mut conn, "k"), -1);
    for grant in [
        &["LOCK.RW", "k", "a", "READ"][..],
        &["LOCK.RW", "k", "b", "READ"],
        &["LOCK.EXTEND", "k", "a", "PX", "60000"],
        &["LOCK.RELEASE", "k", "a"],
    ] {
        assert_eq!(conn.get::<i64>(&["EXPIRE", "k", "100"]), 1);
        assert!(ttl(&mut conn, "k") > 0);
        conn.int(grant).expect("granted");
        assert_eq!(ttl(&mut conn, "k"), -1, "{grant:?}");
    }
    // A refusal does not touch it.
    conn.get::<i64>(&["EXPIRE", "k", "100"]);
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "k", "c"]), None);
    assert!(ttl(&mut conn, "k") > 0);
    // What EXPIRE ends is gone like any other key.
    conn.get::<i64>(&["PEXPIRE", "k", "1"]);
    wait_for("the key to expire", || conn.get::<i64>(&["EXISTS", "k"]) == 0);
    assert_eq!(conn.info_number("lock", "lock_leases"), 0);
    conn.int(&["LOCK.ACQUIRE", "k", "c"]).expect("granted");
}

#[test]
fn a_released_lock_is_freed_at_once_and_a_crowded_one_in_the_background() {
    // A lock without a holder has an effort of 0 to free, which servers take for "always in the background". Each
    // release then woke another thread. Valkey frees so by default.
    let (_server, mut conn) = Server::setup().option("lazyfree-lazy-server-del", "yes").connected();
    for _ in 0..100 {
        conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
        conn.int(&["LOCK.RELEASE", "k", "a"]).unwrap();
    }
    assert_eq!(conn.info("memory", "lazyfreed_objects"), "0");
    for reader in 0..100 {
        conn.int(&["LOCK.RW", "k", &reader.to_string(), "READ"]).unwrap();
    }
    conn.int(&["UNLINK", "k"]).unwrap();
    wait_for("the readers to be freed", || conn.info("memory", "lazyfreed_objects") == "1");
}
