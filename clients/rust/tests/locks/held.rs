//! Locks that are held: the guard, its signal, what is done under it.

use crate::{SHORT, client_of, holds};
use redis_lock_client::redis::cmd;
use redis_lock_client::{Client, Error, Moment, redis};
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Proxy, Server, Signal, wait_for};

#[test]
fn a_guard_that_is_dropped_releases_and_so_does_a_panic() {
    // The lock of a function that returns early must not stay until its lease ends.
    let server = Server::new();
    let client = client_of(&server);
    let is_free = || wait_for("the release", || server.connect().lock_info("k").is_none());
    drop(client.lock("k").unwrap());
    is_free();
    let panicked = std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let guard = client.lock("k").unwrap();
            assert!(!holds(&server, "k", &guard), "the work fails");
        });
        work.join().is_err()
    });
    assert!(panicked);
    is_free();
}

#[test]
fn a_release_says_what_came_of_it() {
    let server = Server::new();
    let client = client_of(&server);
    assert!(matches!(client.lock("k").unwrap().release(), Ok(())));

    let guard = client.lock("k").unwrap();
    let loss = guard.loss();
    server.connect().ok(&["FLUSHALL"]);
    assert!(matches!(guard.release(), Err(Error::Lost)));
    assert!(loss.is_set() && loss.wait(Duration::MAX));

    // Not lost as far as is known, and not released either.
    let mut server = server;
    let guard = client.clone().timeout(SHORT).lock("k").unwrap();
    let loss = guard.loss();
    server.stop(true);
    assert!(matches!(guard.release(), Err(Error::Connection(_))));
    assert!(!loss.is_set() && !loss.wait(Duration::MAX), "a release ends the wait for a loss");
}

#[test]
fn a_check_that_says_no_is_a_loss() {
    // The program that asked knows it then: no renewal may hide it.
    let server = Server::new();
    let client = client_of(&server);
    let guard = client.key("k").lock().unwrap();
    assert!(guard.check().unwrap());
    assert!(client.check("k", guard.owner().as_str(), guard.fence()).unwrap());
    server.connect().int(&["LOCK.BREAK", "k"]);
    assert!(!client.check("k", guard.owner().as_str(), guard.fence()).unwrap());
    assert!(!guard.is_lost() && !guard.check().unwrap() && guard.is_lost());
}

#[test]
fn a_guarded_command_has_its_own_reply_or_error() {
    let server = Server::new();
    let client = client_of(&server);
    let guard = client.lock("k").unwrap();
    guard.guard::<()>(redis::cmd("SET").arg("d").arg(41)).unwrap();
    assert_eq!(guard.guard::<u32>(redis::cmd("INCR").arg("d")).unwrap(), 42);
    assert_eq!(guard.guard::<Option<String>>(redis::cmd("GET").arg("nothing")).unwrap(), None);
    let list: Vec<String> = guard.guard(redis::cmd("MGET").arg("d").arg("d")).unwrap();
    assert_eq!(list, ["42", "42"]);
    let scanned: (u64, Vec<String>) = guard.guard(redis::cmd("SSCAN").arg("s").cursor_arg(0)).unwrap();
    assert_eq!(scanned, (0, vec![]));
    let error = guard.guard::<()>(redis::cmd("LPUSH").arg("d").arg(1)).unwrap_err();
    assert!(error.to_string().starts_with("WRONGTYPE"), "{error}");
    assert!(!guard.is_lost());

    server.connect().int(&["LOCK.BREAK", "k"]);
    assert!(matches!(guard.guard::<u32>(redis::cmd("INCR").arg("d")), Err(Error::Lost)));
    assert_eq!(server.connect().get::<u32>(&["GET", "d"]), 42);
}

#[test]
fn a_guarded_command_without_a_reply_is_not_sent_twice() {
    // INCR may have been run: a second one would count twice.
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap();
    let guard = client.lock("k").unwrap();
    let mut count = 0;
    let mut runs_without_reply = 0;
    for bytes in (1..300).step_by(7) {
        proxy.cut_after(bytes);
        let reply = guard.guard::<u32>(redis::cmd("INCR").arg("d"));
        let after = server.connect().get::<Option<u32>>(&["GET", "d"]).unwrap_or_default();
        assert!(after - count <= 1, "it ran twice: cut after {bytes} bytes");
        runs_without_reply += u32::from(reply.is_err() && after > count);
        count = after;
    }
    assert!(runs_without_reply > 0, "no reply was cut off");
}

#[test]
fn an_old_connection_that_the_server_closed_is_no_error() {
    let server = Server::setup().option("timeout", "1").start();
    let guard = client_of(&server).lock("k").unwrap();
    let mut conn = server.connect();
    wait_for("the server to close idle connections", || {
        // Asked again and again, so that it is not idle itself.
        conn.get::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() == 1
    });
    assert_eq!(guard.guard::<u32>(redis::cmd("INCR").arg("d")).unwrap(), 1);
    wait_for("the server to close them again", || {
        conn.get::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() == 1
    });
    assert!(guard.check().unwrap());
    guard.release().unwrap();
}

#[test]
fn a_new_note_is_what_people_see_and_a_lost_lock_has_none() {
    let server = Server::new();
    let guard = client_of(&server).key("k").note("begun").lock().unwrap();
    let note = || server.connect().lock_info("k").unwrap().holders.remove(0).note;
    guard.set_note("half done").unwrap();
    assert_eq!(note().as_deref(), Some("half done"));
    guard.renew().unwrap();
    assert_eq!(note().as_deref(), Some("half done"), "a renewal leaves it");
    guard.set_note("").unwrap();
    assert_eq!(note().unwrap_or_default(), "");
    server.connect().int(&["LOCK.BREAK", "k"]);
    assert!(!guard.is_lost());
    assert!(matches!(guard.set_note("all done"), Err(Error::Lost)) && guard.is_lost());
}

#[test]
fn a_lock_that_is_released_after_a_time_stays_that_long_and_no_longer() {
    let server = Server::new();
    let guard = client_of(&server).key("k").lock().unwrap();
    let (owner, loss) = (guard.owner().clone(), guard.loss());
    guard.release_after(Duration::from_millis(1500)).unwrap();
    let holder = server.connect().lock_info("k").unwrap().holders.remove(0);
    assert_eq!(holder.owner, owner.as_str().as_bytes());
    assert!((1..=1500).contains(&holder.ttl_ms), "{}", holder.ttl_ms);
    wait_for("its end", || server.connect().lock_info("k").is_none());
    assert!(!loss.is_set());
}

#[test]
fn a_lock_with_a_maximum_is_lost_then_and_others_get_it_while_the_work_goes_on() {
    let server = Server::new();
    let (client, mut conn) = (client_of(&server), server.connect());
    let (told, errors) = std::sync::mpsc::channel();
    let lock = client.key("k").lease(SHORT).max(SHORT * 2).on_trouble(move |error| drop(told.send(error.to_string())));
    let guard = lock.lock().unwrap();
    let first = guard.valid_until();
    let next = client.try_lock_for("k", PATIENCE).unwrap().unwrap();
    // The work goes on: it was renewed before, and is not any more.
    assert!(guard.is_lost() && guard.valid_until() > first && guard.valid_until() <= Moment::now());
    assert!(conn.info_number("lock", "lock_extended") > 0);
    assert_eq!(errors.recv_timeout(PATIENCE).unwrap(), Error::Lost.to_string());
    assert!(matches!(guard.guard::<()>(cmd("SET").arg("k2").arg("late")), Err(Error::Lost)));
    assert!(matches!(guard.release(), Err(Error::Lost)));
    assert!(next.check().unwrap(), "a late release is none of the next holder's");
}

#[test]
fn a_lost_lock_is_kept_for_nobody() {
    let server = Server::new();
    let guard = client_of(&server).key("k").lease(SHORT).max(SHORT).lock().unwrap();
    assert!(guard.wait_lost(PATIENCE));
    // The server may have it for a moment yet.
    assert!(matches!(guard.release_after(PATIENCE * 100), Err(Error::Lost)));
    wait_for("its end", || server.connect().lock_info("k").is_none());
}

#[test]
fn what_a_giver_still_writes_is_refused_once_another_has_adopted_the_lock() {
    let server = Server::new();
    let (giver, mut conn) = (client_of(&server), server.connect());
    let guard = giver.key("k").lease(SHORT * 2).lock().unwrap();
    let token = guard.detach().unwrap();
    assert!(giver.try_lock("k").unwrap().is_none(), "it is held on the way");
    let taker = client_of(&server);
    let adopted = taker.adopt(&token).unwrap();
    assert!(adopted.fence() > token.fence && adopted.owner().as_str() == token.owner);
    let late = format!("LOCK.GUARD k {} {} SET k2 late", token.owner, token.fence);
    assert_eq!(conn.get::<Option<Vec<String>>>(&late.split(' ').collect::<Vec<_>>()), None);
    adopted.guard::<()>(cmd("SET").arg("k2").arg("mine")).unwrap();
    assert_eq!(conn.get::<String>(&["GET", "k2"]), "mine");
    assert!(matches!(taker.adopt(&token), Err(Error::Lost)), "a token is good once");
    let before = conn.info_number("lock", "lock_extended");
    wait_for("renewals", || conn.info_number("lock", "lock_extended") >= before + 2 || adopted.is_lost());
    adopted.release().unwrap();
    assert!(conn.lock_info("k").is_none());

    // Several keys stay with their owner, who asked for what is not to be had: they are released.
    let both = giver.keys(["a", "b"]).lock().unwrap();
    assert!(matches!(both.detach(), Err(Error::Refused(_))));
    assert!(conn.lock_info("a").is_none() && conn.lock_info("b").is_none());
}

#[test]
fn a_lock_with_a_session_ends_soon_after_its_connection() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let client = Client::open(("127.0.0.1", proxy.port())).unwrap();
    let guard = client.key("k").session(SHORT).lock().unwrap();
    assert!(!guard.wait_lost(SHORT * 2), "renewed each third of the session, also over another connection");
    let holder = server.connect().lock_info("k").unwrap().holders.remove(0);
    assert!(holder.session.is_some() && holder.ttl_ms > 20_000, "{holder:?}");
    // Nobody listens any more where the client asks.
    drop(proxy);
    let since = Instant::now();
    assert!(guard.wait_lost(PATIENCE));
    assert!(since.elapsed() < SHORT + SHORT / 2, "{:?}", since.elapsed());
    wait_for("the server to end it", || server.connect().lock_info("k").is_none());
}

#[test]
fn a_server_that_hangs_does_not_delay_the_renewal_on_others() {
    let (sound, hung) = (Server::new(), Server::new());
    let (of_sound, of_hung) = (client_of(&sound), client_of(&hung));
    let lost = of_hung.key("k").lease(SHORT + SHORT / 2).lock().unwrap();
    let kept = of_sound.key("k").lease(SHORT).lock().unwrap();
    hung.signal(Signal::STOP);
    assert!(lost.wait_lost(PATIENCE) && lost.valid_until().is_past());
    assert!(!kept.wait_lost(SHORT * 2));
    assert!(holds(&sound, "k", &kept));
    hung.signal(Signal::CONT);
    kept.release().unwrap();
    assert!(matches!(lost.release(), Err(Error::Lost)));
}

#[test]
fn a_lease_is_renewed_by_its_fence() {
    // A lock that was lost and taken again under the same owner is another hold.
    let server = Server::new();
    let guard = client_of(&server).key("k").lease(SHORT).lock().unwrap();
    let mut conn = server.connect();
    conn.int(&["LOCK.BREAK", "k"]);
    let again = conn.int(&["LOCK.ACQUIRE", "k", guard.owner().as_str(), "PX", "60000"]);
    assert!(guard.wait_lost(PATIENCE));
    assert!(matches!(guard.release(), Err(Error::Lost)));
    assert_eq!(conn.lock_info("k").map(|info| info.fence), again, "untouched");
}
