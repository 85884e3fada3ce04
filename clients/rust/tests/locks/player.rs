//! Servers that behave as real ones seldom do, played by the test: replies that come early, late, or for the wrong
//! request.

use redis_lock_client::{Cancel, Client, Error, Guard, HoldToken, Owner};
use std::cell::Cell;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;
use testbed::{PATIENCE, Request, Server, play, wait_for};

const NULL: &str = "$-1\r\n";
const AHEAD: &str = "-ERR MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock\r\n";
const LOADING: &str = "-LOADING a data set\r\n";
const LONG: Duration = Duration::from_secs(600);

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
    next().reply(AHEAD);
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

/// A real server whose clock of fences is not ahead after the start, so that each fence can be raised.
fn real() -> Server {
    Server::setup().lock_option("promotion-skew-ms", "0").start()
}

/// What a real server replies.
fn reply_of(real: &Server, request: &Request) -> String {
    let words: Vec<&str> = request.words.iter().map(String::as_str).collect();
    real.connect().int(&words).map_or(NULL.to_owned(), |fence| format!(":{fence}\r\n"))
}

/// Does some work, and replies to its requests. Those without a reply are late, and their connections end; `reply` is
/// told how many there are.
fn beside<T: Send>(
    requests: &Receiver<Request>,
    reply: impl Fn(&Request, usize) -> Option<String>,
    work: impl FnOnce() -> T + Send,
) -> (T, Vec<Request>) {
    let mut late = Vec::new();
    thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            let Ok(request) = requests.recv_timeout(Duration::from_millis(10)) else { continue };
            match reply(&request, late.len()) {
                Some(reply) => request.reply(&reply),
                None => {
                    request.hang_up();
                    late.push(request);
                }
            }
        }
        (work.join().unwrap(), late)
    })
}

/// Replies as a real server does, to all but the first ones.
fn but(first: usize, real: &Server) -> impl Fn(&Request, usize) -> Option<String> {
    move |request, late| (late >= first).then(|| reply_of(real, request))
}

/// The server reads them after all, and the lock ends when it did.
fn assert_void(real: &Server, late: &[Request], ends_in: Duration) {
    assert!(!late.is_empty());
    for request in late {
        assert_eq!(reply_of(real, request), NULL, "{:?}", request.words);
    }
    let left = real.connect().lock_info("k").unwrap().holders[0].ttl_ms;
    let left = Duration::from_millis(left.try_into().unwrap());
    assert!(left <= ends_in && left > ends_in - LONG / 4, "{left:?}");
}

#[test]
fn a_renewal_that_is_read_late_does_not_change_when_a_lock_ends() {
    let (real, (client, requests)) = (real(), server());
    let lock = client.key("k").lease(Duration::from_secs(9));
    let (guard, _) = beside(&requests, but(0, &real), || lock.lock().unwrap());
    let is_renewed = || real.connect().calls("lock.extend") > 0;
    let ((), late) = beside(&requests, but(1, &real), || wait_for("a renewal", is_renewed));
    beside(&requests, but(0, &real), || guard.release_after(LONG)).0.unwrap();
    assert_void(&real, &late, LONG);
}

#[test]
fn what_a_program_asked_for_and_is_read_late_does_not_change_when_a_lock_ends() {
    let (real, (client, requests)) = (real(), server());
    let asks: [fn(&Guard) -> bool; 3] =
        [|it| it.renew().unwrap(), |it| it.set_note("half").is_ok(), |it| it.try_lease(LONG / 9).unwrap()];
    for ask in asks {
        let (guard, _) = beside(&requests, but(0, &real), || client.key("k").lease(LONG).lock().unwrap());
        let (is_held, late) = beside(&requests, but(1, &real), || ask(&guard));
        assert!(is_held);
        // The time of a lease says nothing of a hand-over.
        beside(&requests, but(0, &real), || guard.release_after(LONG)).0.unwrap();
        assert_void(&real, &late, LONG);
        real.connect().int(&["LOCK.BREAK", "k"]);
    }
}

/// Gives a renewal up, which goes on in the background, and lets the lock end.
fn give_up_a_renewal_and_end(client: &Client) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let lock = client.key("k").lease(LONG);
    runtime.block_on(async {
        let guard = lock.try_lock_async().await.unwrap().unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(50), guard.renew()).await.is_err());
        guard.release_after(LONG / 2).await
    })
}

fn is_renewal(request: &Request) -> bool {
    request.has("LOCK.EXTEND") && request.has("600000")
}

#[test]
fn a_renewal_that_a_task_gave_up_does_not_change_when_a_lock_ends() {
    let (real, (client, requests)) = (real(), server());
    let reply = |request: &Request, _| (!is_renewal(request)).then(|| reply_of(&real, request));
    let (ended, late) = beside(&requests, reply, || give_up_a_renewal_and_end(&client));
    ended.unwrap();
    assert_void(&real, &late, LONG / 2);
}

#[test]
fn an_end_that_is_read_late_changes_no_later_hold_of_its_owner() {
    let (real, (client, requests)) = (real(), server());
    let owner = Owner::new();
    let lock = client.key("k").owner(&owner).lease(LONG);
    let (guard, _) = beside(&requests, but(0, &real), || lock.lock().unwrap());
    // The first one, and one that raises the fence.
    let (ended, late) = beside(&requests, but(2, &real), || guard.release_after(LONG / 2));
    ended.unwrap();
    let (later, _) = beside(&requests, but(0, &real), || lock.lock().unwrap());
    assert_void(&real, &late, LONG);
    beside(&requests, but(0, &real), || later.release()).0.unwrap();
}

#[test]
fn an_end_whose_answer_is_lost_after_it_raised_the_fence_is_no_loss() {
    let (real, (client, requests)) = (real(), server());
    let (guard, _) = beside(&requests, but(0, &real), || client.key("k").lease(LONG).lock().unwrap());
    let (_, late) = beside(&requests, but(1, &real), || guard.renew().unwrap());
    let lose = |request: &Request, late| Some(reply_of(&real, request)).filter(|_| late > 0);
    let (ended, read) = beside(&requests, lose, || guard.release_after(LONG / 2));
    ended.unwrap();
    assert!(read[0].has("MINFENCE"));
    assert_void(&real, &late, LONG / 2);
}

#[test]
fn an_end_whose_answer_is_lost_is_no_loss_though_the_renewal_before_it_was_answered_since() {
    let (real, (client, requests)) = (real(), server());
    let reply = |request: &Request, late| {
        if late == 0 && is_renewal(request) {
            return Some(LOADING.to_owned());
        }
        let reply = reply_of(&real, request);
        if late == 0 && request.has("MINFENCE") {
            // The renewal is due meanwhile, and goes out with the second request for the end.
            thread::sleep(Duration::from_millis(500));
            return None;
        }
        Some(reply)
    };
    let (ended, lost) = beside(&requests, reply, || give_up_a_renewal_and_end(&client));
    ended.unwrap();
    assert_eq!(lost.len(), 1);
}

#[test]
fn a_lock_that_is_handed_over_keeps_its_fence_though_a_renewal_is_late() {
    let (real, (client, requests)) = (real(), server());
    let (guard, _) = beside(&requests, but(0, &real), || client.key("k").lease(LONG).lock().unwrap());
    let fence = guard.fence();
    beside(&requests, but(1, &real), || assert!(guard.renew().unwrap()));
    let (token, _) = beside(&requests, but(1, &real), || guard.detach().unwrap());
    assert_eq!(token.fence, fence);
    assert_eq!(u64::try_from(real.connect().lock_info("k").unwrap().holders[0].fence).unwrap(), fence);
}

#[test]
fn the_fence_stays_where_each_request_was_answered() {
    let (client, requests) = server();
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let wait = thread::spawn(move || client.key("k").lease(LONG).lock().unwrap());
    next().reply(":7\r\n");
    let guard = wait.join().unwrap();
    let renewal = thread::spawn(move || {
        assert!(guard.renew().unwrap());
        guard
    });
    next().reply(LOADING);
    next().reply(":7\r\n");
    let guard = renewal.join().unwrap();
    let end = thread::spawn(move || guard.release_after(LONG));
    let request = next();
    assert_eq!(request.words[5..], ["FENCE", "7"]);
    request.reply(":7\r\n");
    end.join().unwrap().unwrap();
}

/// A guard of two keys under the fences 7 and 9, and what takes all later requests.
fn of_two_keys() -> (Guard, Receiver<Request>) {
    let (client, requests) = server();
    let wait = thread::spawn(move || client.keys(["a", "b"]).lease(LONG).lock().unwrap());
    requests.recv_timeout(PATIENCE).expect("a request").reply("*2\r\n:7\r\n:9\r\n");
    (wait.join().unwrap(), requests)
}

#[test]
fn an_end_is_set_though_the_fence_cannot_be_raised_yet() {
    let (guard, requests) = of_two_keys();
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let end = thread::spawn(move || guard.release_after(LONG));
    let first = next();
    first.hang_up();
    // The other key's may have come as well.
    let next = || std::iter::repeat_with(next).find(|request| request.number != first.number).expect("a request");
    let raises = [next(), next()];
    assert_eq!(raises[0].words[5..], ["FENCE", "7", "MINFENCE", "8"]);
    assert_eq!(raises[1].words[5..], ["FENCE", "9", "MINFENCE", "10"]);
    raises[0].reply(":8\r\n");
    raises[1].reply(AHEAD);
    let again = [next(), next()];
    assert_eq!(again[0].words[5..], ["FENCE", "7"]);
    assert_eq!(again[1].words[5..], ["FENCE", "9"]);
    // This one's fence was raised.
    again[0].reply(NULL);
    again[1].reply(":9\r\n");
    let looks = [next(), next()];
    assert_eq!(looks[0].words, ["LOCK.CHECK", "a", &again[0].words[2], "WRITE"]);
    looks[0].reply(":8\r\n");
    looks[1].reply(":9\r\n");
    end.join().unwrap().unwrap();
}

#[test]
fn a_key_that_was_lost_is_a_loss_though_the_fence_of_another_cannot_be_raised_yet() {
    let (guard, requests) = of_two_keys();
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let renewal = thread::spawn(move || {
        assert!(guard.renew().unwrap());
        guard
    });
    let first = next();
    first.hang_up();
    let next = || std::iter::repeat_with(next).find(|request| request.number != first.number).expect("a request");
    next().reply(":7\r\n");
    next().reply(":9\r\n");
    let guard = renewal.join().unwrap();
    let end = thread::spawn(move || guard.release_after(LONG / 2));
    let (a, b) = (next(), next());
    assert!(a.has("MINFENCE"), "{:?}", a.words);
    // a was broken by an operator: nothing has raised its fence.
    a.reply(NULL);
    b.reply(AHEAD);
    let (a, b) = (next(), next());
    a.reply(NULL);
    b.reply(":9\r\n");
    let ended = end.join().unwrap();
    assert!(matches!(ended, Err(Error::Lost)), "{ended:?}");
}

#[test]
fn a_key_that_was_lost_is_a_loss_though_another_is_released_later() {
    let (guard, requests) = of_two_keys();
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let end = thread::spawn(move || guard.release());
    let (a, b) = (next(), next());
    a.reply(NULL);
    b.reply("-READONLY no primary\r\n");
    let (a, b) = (next(), next());
    a.reply(NULL);
    b.reply(":0\r\n");
    let ended = end.join().unwrap();
    assert!(matches!(ended, Err(Error::Lost)), "{ended:?}");
}

#[test]
fn requests_whose_fence_is_ahead_are_answered_and_not_repeated() {
    let (client, requests) = server();
    let command = redis::cmd("LOCK.ACQUIRE").arg("k").arg("me").arg("MINFENCE").arg(9).take();
    let count = Cell::new(0);
    let reply = |_: &Request, _| {
        count.set(count.get() + 1);
        Some(AHEAD.to_owned())
    };
    beside(&requests, reply, || client.ask_all("k", vec![command])).0.unwrap();
    assert_eq!(count.get(), 1);
}

#[test]
fn a_confirmation_of_a_grant_that_is_read_late_does_not_change_when_a_lock_ends() {
    let (real, (client, requests)) = (real(), server());
    let lock = client.key("k").lease(Duration::from_secs(3));
    let reply = |request: &Request, late: usize| {
        if request.has("LOCK.ACQUIRE") {
            let reply = reply_of(&real, request);
            thread::sleep(Duration::from_millis(1100));
            return Some(reply);
        }
        (late >= 1).then(|| reply_of(&real, request))
    };
    let (guard, late) = beside(&requests, reply, || lock.lock().unwrap());
    beside(&requests, but(0, &real), || guard.release_after(LONG)).0.unwrap();
    assert_void(&real, &late, LONG);
}

#[test]
fn a_lock_that_was_lost_before_its_fence_was_to_be_raised_is_a_loss() {
    let (real, (client, requests)) = (real(), server());
    let (guard, _) = beside(&requests, but(0, &real), || client.key("k").lease(LONG).lock().unwrap());
    beside(&requests, but(1, &real), || assert!(guard.renew().unwrap()));
    real.connect().int(&["LOCK.BREAK", "k"]);
    // The first request never arrives.
    let (ended, _) = beside(&requests, but(1, &real), || guard.release_after(LONG / 2));
    assert!(matches!(ended, Err(Error::Lost)), "{ended:?}");
}

#[test]
fn a_check_without_an_answer_leaves_the_fence() {
    let (real, (client, requests)) = (real(), server());
    let (guard, _) = beside(&requests, but(0, &real), || client.key("k").lease(LONG).lock().unwrap());
    beside(&requests, but(1, &real), || assert!(guard.check().unwrap()));
    let sees = |request: &Request, _| {
        assert!(!request.has("MINFENCE"), "{:?}", request.words);
        Some(reply_of(&real, request))
    };
    beside(&requests, sees, || guard.release_after(LONG / 2)).0.unwrap();
}
