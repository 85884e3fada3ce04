//! A node that does what real ones seldom do, played by the test: it keeps its replies to itself.

use crate::harness::{LONG, Servers, quorum_of};
use std::thread;
use testbed::{PATIENCE, Server, play};

#[test]
fn a_release_goes_over_the_connection_of_the_request_that_it_undoes() {
    // Over another one it could be read first, and the request then: the node would hold for nobody.
    let servers = Servers::start(2);
    let (port, requests) = play();
    let quorum = quorum_of(servers.0.iter().map(Server::port).chain([port]));
    let guard = quorum.key("k").lease(LONG).lock().unwrap();
    let owner = guard.owner().to_string();
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let asked = next();
    assert!(asked.words[0] == "LOCK.ACQUIRE" && asked.words[2] == owner, "{:?}", asked.words);
    let released = thread::spawn(move || guard.release());
    loop {
        let request = next();
        assert_eq!(request.number, asked.number, "{:?} went over another connection", request.words);
        if request.words[0] == "LOCK.RELEASE" {
            assert_eq!(request.words[2], owner);
            assert!(!request.has("FENCE"), "nobody knows the fence: {:?}", request.words);
            break;
        }
    }
    released.join().unwrap().unwrap();
}
