//! Who may be told on a channel: whoever may publish there. A script, a function and another module have no user.

use super::CHANNEL;
use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::scene::Scene;
use testbed::Server;

const DENIED: &str = "NOPERM this user has no permissions to publish on the channel of NOTIFY";
const NO_USER: &str = "ERR NOTIFY needs a user: a script, a function or another module has none";
const ASK: &str = "LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch";

/// A connection of a user with these rights, beside that to take locks.
fn user(server: &Server, rights: &str) -> Connection {
    let mut conn = server.connect();
    let rule = format!("SETUSER u reset on nopass ~* +lock.acquire +multi +exec +client|id {rights}");
    let words: Vec<&str> = rule.split(' ').filter(|word| !word.is_empty()).collect();
    conn.ok(&[&["ACL"], &words[..]].concat());
    let mut wire = Connection::resp2(server);
    assert_eq!(wire.say("AUTH u any"), Reply::simple("OK"));
    wire
}

#[test]
fn only_an_owner_that_may_publish_is_told_on_the_channel() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    for (rights, allowed) in [
        ("+publish &*", true),
        ("+publish resetchannels &ch", true),
        ("+publish resetchannels &c*", true),
        ("+@all allchannels", true),
        ("resetchannels (+publish &ch)", true),
        ("+publish resetchannels", false),
        ("+publish resetchannels &other", false),
        ("+subscribe &*", false),
        ("resetchannels (+publish &other) (+subscribe &ch)", false),
        ("+publish resetchannels (+subscribe &ch)", false),
    ] {
        let expected = if allowed { Reply::Null } else { Reply::error(DENIED) };
        let mut wire = user(&server, rights);
        for way in [Way::Plain, Way::Exec] {
            assert_eq!(wire.ask_by(way, &ASK.split(' ').collect::<Vec<_>>()), expected, "{rights} {way:?}");
            let places = scene.conn.info_number("lock", "lock_places");
            assert_eq!(places, u64::from(allowed), "{rights} {way:?}: refused before anything is changed");
            scene.stage.ask(&["LOCK.RELEASE", "k", "b"]);
        }
    }
}

#[test]
fn a_refusal_is_a_row_in_the_log_of_access() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("ACL LOG RESET", "OK")]);
    let mut wire = user(&server, "+publish resetchannels");
    assert_eq!(wire.say(ASK), Reply::error(DENIED));
    let log = scene.stage.ask(&["ACL", "LOG"]).items();
    assert_eq!(log.len(), 1);
    let row = ["reason", "context", "object", "username"].map(|field| log[0].field(field).text());
    assert_eq!(row, ["channel", "module", CHANNEL, "u"]);
}

#[test]
fn a_right_that_is_withdrawn_lasts_until_the_owner_asks_again() {
    let server = Server::new();
    let mut subscriber = super::Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let mut wire = user(&server, "+publish &ch");
    assert_eq!(wire.say(ASK), Reply::Null);
    scene.play(&[("ACL SETUSER u -publish", "OK")]);
    assert_eq!(wire.say(ASK), Reply::error(DENIED));
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    assert_eq!(subscriber.heard(), ["b"], "the place is as it was");
}

#[test]
fn a_script_a_function_and_a_guarded_command_cannot_name_a_channel() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE g g", "#2")]);
    let fence = scene.stage.ask(&["LOCK.CHECK", "g", "g"]).int().to_string();
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    let words: Vec<&str> = ASK.split(' ').collect();
    for way in [Way::Script, Way::Function] {
        assert_eq!(wire.ask_by(way, &words), Reply::error(NO_USER), "{way:?}");
    }
    let guarded = [&["LOCK.GUARD", "g", "g", &fence][..], &words].concat();
    let reply = wire.ask(&guarded);
    assert!(matches!(&reply, Reply::Error(text) if text == NO_USER), "{reply:?}");
    assert_eq!(scene.conn.info_number("lock", "lock_places"), 0);
}

#[test]
fn another_module_cannot_name_a_channel_for_a_client() {
    let server = Server::setup().probe_module().start();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let mut wire = Connection::resp2(&server);
    // The type of an error reply.
    assert_eq!(wire.say("PANIC.CALL LOCK.ACQUIRE NOTIFY"), Reply::Int(1));
    assert_eq!(scene.conn.info_number("lock", "lock_places"), 0);
}
