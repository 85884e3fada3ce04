//! Servers that behave as real ones seldom do, played by the test: replies that come early, late, or for the wrong
//! request.

use redis_lock_client::{Cancel, Client, Error, HoldToken};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;
use testbed::{PATIENCE, Request, play};

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
