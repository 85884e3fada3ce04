//! What channels cost: they count with the places, and nothing is kept of them.

use crate::harness::connection::Reply;
use crate::harness::scene::Scene;
use testbed::Server;

const FULL: &str = "LIMIT keys, owners and channels of places would take more than lock.max-place-bytes";

#[test]
fn a_channel_counts_once_for_all_its_places_and_by_its_length() {
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k x QUEUE 60000", "nil")]);
    let bytes = |scene: &mut Scene<'_>| scene.conn.info_number("lock", "lock_place_bytes");
    let first = bytes(&mut scene);
    scene.play(&[("LOCK.ACQUIRE k y QUEUE 60000", "nil")]);
    let place = bytes(&mut scene) - first;
    scene.play(&[("LOCK.ACQUIRE k z QUEUE 60000 NOTIFY @200", "nil")]);
    assert_eq!(bytes(&mut scene), first + 2 * place + 264);
    scene.play(&[("LOCK.ACQUIRE k y QUEUE 60000 NOTIFY @200", "nil")]);
    assert_eq!(bytes(&mut scene), first + 2 * place + 264);
    assert_eq!(scene.conn.info_number("lock", "lock_notify_channels"), 1);
    scene.play(&[("LOCK.ACQUIRE k y QUEUE 60000", "nil"), ("LOCK.RELEASE k z", "nil")]);
    assert_eq!(bytes(&mut scene), first + place);
    assert_eq!(scene.conn.info_number("lock", "lock_notify_channels"), 0);
}

#[test]
fn a_channel_that_does_not_fit_is_refused_and_the_place_stays() {
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil")]);
    let full = scene.conn.info_number("lock", "lock_place_bytes") + 300;
    scene.conn.ok(&["CONFIG", "SET", "lock.max-place-bytes", &full.to_string()]);
    scene.play(&[
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY @256", FULL),
        ("LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000 NOTIFY @256", FULL),
        ("LOCK.ACQUIRE k c QUEUE 60000 NOTIFY ch", FULL),
        // It has it already.
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY @200", "nil"),
    ]);
    assert_eq!(scene.conn.info_number("lock", "lock_notify_channels"), 1);
}

#[test]
fn nothing_is_left_of_channels_when_their_places_are_gone() {
    let server = Server::new();
    for end in ["QUEUE is over", "FLUSHALL", "BREAK"] {
        let mut scene = Scene::new(&server);
        let queue = if end == "QUEUE is over" { "300" } else { "60000" };
        scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
        for n in 0..200 {
            let (owner, channel) = (format!("o{n}"), format!("channel {}", n / 2));
            let ask = ["LOCK.RW", "k", &owner, "READ", "QUEUE", queue, "NOTIFY", &channel];
            assert_eq!(scene.stage.ask(&ask), Reply::Null);
        }
        match end {
            "FLUSHALL" => drop(scene.stage.ask(&["FLUSHALL"])),
            "BREAK" => (0..200).for_each(|n| drop(scene.stage.ask(&["LOCK.BREAK", "k", &format!("o{n}")]))),
            _ => {}
        }
        for field in ["lock_places", "lock_notify_channels", "lock_place_bytes"] {
            scene.stage.until(field, 0);
        }
        scene.stage.ask(&["FLUSHALL"]);
        scene.stage.until("lock_offered", 0);
    }
}
