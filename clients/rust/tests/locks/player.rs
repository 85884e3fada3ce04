//! Servers that behave as real ones seldom do, played by the test: replies that come early, late, or for the wrong
//! request.

use redis_lock_client::{Cancel, Client, Error, Guard, HoldToken};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;
use testbed::{PATIENCE, Request, Server, play};

const NULL: &str = "$-1\r\n";

/// A client, and all requests that it sends.
fn server() -> (Client, Receiver<Request>) {
    let (port, requests) = play();
    (Client::open(("127.0.0.1", port)).unwrap(), requests)
}

#[test]
fn a_grant_that_comes_after_all_is_given_back() {
    // The server read the request that waits later than those to leave, as after a hang. The owner is gone by then.
    let (client, requests) = server();
    let cancel = Cancel::new();
    let lock = client.key("k").cancelled_by(&cancel);
    let wait = thread::spawn(move || lock.lock());
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let waiting = next();
    assert!(waiting.has("BLOCK") && waiting.has("QUEUE"), "{:?}", waiting.words);
    cancel.cancel();
    while !wait.is_finished() {
        if let Ok(request) = requests.recv_timeout(Duration::from_millis(10)) {
            assert!(request.words[0] == "LOCK.RELEASE" && request.has("ALL"), "{:?}", request.words);
            request.reply(NULL);
        }
    }
    assert!(matches!(wait.join().unwrap(), Err(Error::Cancelled)));
    waiting.reply(":7\r\n");
    let release = next();
    assert_eq!(release.words[..2], ["LOCK.RELEASE", "k"]);
    assert_eq!(release.words[2], waiting.words[2], "of the same owner");
    release.reply(":0\r\n");
}

#[test]
fn an_adoption_is_asked_for_again_while_the_fence_is_ahead_and_not_if_it_may_be_done() {
    let (client, requests) = server();
    let lease = Duration::from_secs(30);
    let token = HoldToken { key: b"k".to_vec(), owner: "giver".to_owned(), fence: 7, lease, shared: false };
    let adopt = || {
        let (client, token) = (client.clone(), token.clone());
        thread::spawn(move || client.adopt(&token).map(|guard| guard.fence()))
    };
    let next = || {
        let request = requests.recv_timeout(PATIENCE).expect("a request");
        let words = ["LOCK.EXTEND", "k", "giver", "PX", "30000", "FENCE", "7", "MINFENCE", "8"];
        assert_eq!(request.words, words);
        request
    };
    let adoption = adopt();
    next().reply("-ERR MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock\r\n");
    next().reply(":9\r\n");
    requests.recv_timeout(PATIENCE).expect("the release").reply(":0\r\n");
    assert_eq!(adoption.join().unwrap().unwrap(), 9);
    // Its reply is lost. Null to a second one would say that another has the lock.
    let adoption = adopt();
    next().hang_up();
    let outcome = adoption.join().unwrap();
    assert!(matches!(outcome, Err(Error::Connection(_))), "{outcome:?}");
    assert!(requests.try_recv().is_err(), "it was asked for once");
}

#[test]
fn a_grant_that_took_long_is_renewed_before_it_counts() {
    // Nobody knows when it was granted: the process, or the reply, may have been on its way for long.
    let (client, requests) = server();
    let wait = thread::spawn(move || client.key("k").lease(Duration::from_secs(1)).lock());
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let asked = next();
    thread::sleep(Duration::from_millis(400));
    asked.reply(":7\r\n");
    let renewal = next();
    assert!(renewal.words[0] == "LOCK.EXTEND" && renewal.has("FENCE") && renewal.has("7"), "{:?}", renewal.words);
    // It was lost meanwhile: back to the line.
    renewal.reply(NULL);
    let waiting = next();
    assert!(waiting.has("BLOCK"), "{:?}", waiting.words);
    waiting.reply(":9\r\n");
    let guard = wait.join().unwrap().unwrap();
    assert_eq!(guard.fence(), 9);
    let release = thread::spawn(move || guard.release());
    let mut request = next();
    // It may be renewed meanwhile.
    while request.words[0] == "LOCK.EXTEND" {
        request.reply(":9\r\n");
        request = next();
    }
    assert!(request.words[0] == "LOCK.RELEASE" && request.has("9"), "{:?}", request.words);
    request.reply(":0\r\n");
    release.join().unwrap().unwrap();
}

/// A guard of which a renewal had no answer, that renewal, and what takes all later requests.
fn with_a_late_renewal(answer: impl Fn(&Request)) -> (Guard, Request, Receiver<Request>) {
    let (client, requests) = server();
    let wait = thread::spawn(move || client.key("k").lease(Duration::from_secs(9)).lock());
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    answer(&next());
    let guard = wait.join().unwrap().unwrap();
    let late = next();
    assert_eq!(late.words[0], "LOCK.EXTEND");
    let again = next();
    assert_eq!(again.words, late.words);
    assert_ne!(again.number, late.number);
    answer(&again);
    (guard, late, requests)
}

#[test]
fn a_renewal_that_is_read_late_does_not_change_when_a_lock_ends() {
    let real = Server::new();
    let ask = |words: &[String]| real.connect().int(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let answer = |request: &Request| request.reply(&ask(&request.words).map_or(NULL.into(), |it| format!(":{it}\r\n")));
    let (guard, late, requests) = with_a_late_renewal(answer);
    let end = thread::spawn(move || guard.release_after(Duration::from_secs(600)));
    while !end.is_finished() {
        if let Ok(request) = requests.recv_timeout(Duration::from_millis(10)) {
            answer(&request);
        }
    }
    end.join().unwrap().unwrap();
    assert_eq!(ask(&late.words), None, "it is void");
    assert!(real.connect().lock_info("k").unwrap().holders[0].ttl_ms > 300_000);
}

#[test]
fn an_end_without_an_answer_is_asked_for_whatever_the_fence_is_by_now() {
    let (guard, _late, requests) = with_a_late_renewal(|request| request.reply(":7\r\n"));
    let end = thread::spawn(move || guard.release_after(Duration::from_secs(600)));
    let next = || {
        let mut request = requests.recv_timeout(PATIENCE).expect("a request");
        // A renewal may have been on its way.
        while request.has("9000") {
            request.reply(":7\r\n");
            request = requests.recv_timeout(PATIENCE).expect("a request");
        }
        request
    };
    let first = next();
    assert_eq!(first.words[5..], ["FENCE", "7", "MINFENCE", "8"]);
    first.hang_up();
    let second = next();
    assert_eq!(second.words[5..], ["MINFENCE", "8"]);
    second.reply("-ERR MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock\r\n");
    let third = next();
    assert_eq!(third.words[3], "PX");
    assert_eq!(third.words.len(), 5);
    third.reply(":8\r\n");
    end.join().unwrap().unwrap();
}
