//! LOCK.GUARD and the rights of its client: the guarded command needs all that it needs by itself.

use crate::harness::connection::{Connection, Reply};
use testbed::Server;

/// A connection of a user with these rights and no others.
fn user(server: &Server, rights: &str) -> Connection {
    let made = Connection::resp2(server).say(&format!("ACL SETUSER user reset on nopass {rights}"));
    assert_eq!(made, Reply::simple("OK"), "{rights}");
    let mut wire = Connection::resp2(server);
    assert_eq!(wire.say("AUTH user any"), Reply::simple("OK"));
    wire
}

/// Rights, a command, and whether a user with these rights may run it.
const CASES: &[(&str, &str, bool)] = &[
    ("~k ~d +lock.guard +set", "SET d x", true),
    // Neither by the rights to guard, nor by those to the lock.
    ("~k ~d +lock.guard", "SET d x", false),
    ("~k +lock.guard +set", "SET d x", false),
    ("~k +lock.guard +set", "SET k x", true),
    ("~k ~d +lock.guard +set", "DEL d", false),
    ("~k ~d +lock.guard +mset", "MSET d x e x", false),
    ("~k ~d ~e +lock.guard +mset", "MSET d x e x", true),
    // To read and to write.
    ("~k %R~d +lock.guard +get +set", "GET d", true),
    ("~k %R~d +lock.guard +get +set", "SET d x", false),
    ("~k %W~d +lock.guard +get +set", "SET d x", true),
    ("~k %W~d +lock.guard +get +set", "GET d", false),
    ("~k %R~d %W~e +lock.guard +copy", "COPY d e", true),
    ("~k %R~d %R~e +lock.guard +copy", "COPY d e", false),
    ("~k %W~d %W~e +lock.guard +copy", "COPY d e", false),
    // Of flags that the server does not know beforehand.
    ("~k %R~l +lock.guard +lpush", "LPUSH l x", false),
    ("~k %R~n +lock.guard +incr", "INCR n", false),
    ("~k %R~z %R~u +lock.guard +zunionstore", "ZUNIONSTORE u 1 z", false),
    // Subcommands, channels.
    ("~k ~d +lock.guard +object|encoding", "OBJECT ENCODING d", true),
    ("~k ~d +lock.guard +object|encoding", "OBJECT FREQ d", false),
    ("~k &c +lock.guard +publish", "PUBLISH c x", true),
    ("~k resetchannels &c +lock.guard +publish", "PUBLISH other x", false),
    // Selectors: one of them must allow all of a command.
    ("~k +lock.guard (~d +get) (~e +set)", "GET d", true),
    ("~k +lock.guard (~d +get) (~e +set)", "SET e x", true),
    ("~k +lock.guard (~d +get) (~e +set)", "SET d x", false),
    ("(~k +lock.guard) (~d +set)", "SET d x", true),
    // A command of this module.
    ("~k ~j +lock.guard", "LOCK.ACQUIRE j a", false),
    ("~k ~j +lock.guard +lock.acquire", "LOCK.ACQUIRE j a", true),
    ("~k +lock.guard +lock.acquire", "LOCK.ACQUIRE j a", false),
];

#[test]
fn a_guarded_command_needs_the_rights_that_it_needs_by_itself() {
    // What could go wrong: by one command, a user runs all commands on all keys.
    let server = Server::new();
    let mut admin = Connection::resp2(&server);
    for (rights, command, may) in CASES {
        assert_eq!(admin.say("FLUSHALL"), Reply::simple("OK"));
        admin.say("SET d 1");
        let fence = admin.say("LOCK.ACQUIRE k a").int();
        let mut wire = user(&server, rights);
        for in_transaction in [false, true] {
            let guarded = format!("LOCK.GUARD k a {fence} {command}");
            let reply = if in_transaction && rights.contains("+lock.guard") && !rights.starts_with('(') {
                admin.say("ACL SETUSER user +multi +exec");
                wire.say("MULTI");
                assert_eq!(wire.say(&guarded), Reply::simple("QUEUED"));
                wire.say("EXEC").items().remove(0)
            } else {
                wire.say(&guarded)
            };
            match &reply {
                Reply::Error(text) => assert!(text.starts_with("NOPERM ") && !may, "{rights}: {command}: {text}"),
                reply => assert!(*may, "{rights}: {command}: {reply:?}"),
            }
            if command.contains("SET k") {
                admin.say("DEL k");
                break;
            }
        }
        let by_itself = wire.say(command);
        assert_eq!(by_itself.code() != "NOPERM", *may, "{rights}: {command} by itself: {by_itself:?}");
    }
}

#[test]
fn the_lock_itself_must_be_the_users_to_change() {
    let server = Server::new();
    let fence = Connection::resp2(&server).say("LOCK.ACQUIRE k a").int();
    for rights in ["~d +@all", "~d %R~k +@all", "~d %W~k +@all", "~* +@all -lock.guard"] {
        let reply = user(&server, rights).say(&format!("LOCK.GUARD k a {fence} SET d x"));
        assert_eq!(reply.code(), "NOPERM", "{rights}: {reply:?}");
    }
}

#[test]
fn a_script_of_a_user_has_no_more_rights_than_the_user() {
    let server = Server::new();
    let fence = Connection::resp2(&server).say("LOCK.ACQUIRE k a").int().to_string();
    let mut wire = user(&server, "~k ~d +lock.guard +set +eval");
    let mut run = |key: &str| {
        let script = "return redis.pcall('LOCK.GUARD', KEYS[1], 'a', ARGV[1], 'SET', ARGV[2], 'x')";
        wire.ask(&["EVAL", script, "1", "k", &fence, key])
    };
    assert_eq!(run("d").items()[1], Reply::simple("OK"));
    assert!(run("e").text().contains("NOPERM"), "a key of others");
}
