//! A node that does what real ones seldom do, played by the test: it keeps its replies to itself.

use crate::harness::{LONG, Servers, quorum_of};
use redis_lock_client::redis::{Parser, Value, from_redis_value};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use testbed::{PATIENCE, Server};

/// A node that answers nothing but who it is, and what it is asked: the number of the connection, and the words.
fn silent_node() -> (u16, Receiver<(usize, Vec<String>)>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, requests) = channel();
    thread::spawn(move || {
        for (number, connection) in listener.incoming().map_while(Result::ok).enumerate() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut parser = Parser::new();
                while let Ok(request @ Value::Array(_)) = parser.parse_value(&connection) {
                    let words: Vec<String> = from_redis_value(request).unwrap();
                    if words[0] == "INFO" {
                        reply(&connection, "$0\r\n\r\n");
                    } else if sender.send((number, words)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, requests)
}

fn reply(mut connection: &TcpStream, text: &str) {
    // The client may have gone.
    drop(connection.write_all(text.as_bytes()));
}

#[test]
fn a_release_goes_over_the_connection_of_the_request_that_it_undoes() {
    // Over another one it could be read first, and the request then: the node would hold for nobody.
    let servers = Servers::start(2);
    let (port, requests) = silent_node();
    let quorum = quorum_of(servers.0.iter().map(Server::port).chain([port]));
    let guard = quorum.key("k").lease(LONG).lock().unwrap();
    let owner = guard.owner().to_string();
    let next = || requests.recv_timeout(PATIENCE).expect("a request");
    let (connection, words) = next();
    assert!(words[0] == "LOCK.ACQUIRE" && words[2] == owner, "{words:?}");
    let released = thread::spawn(move || guard.release());
    loop {
        let (number, words) = next();
        assert_eq!(number, connection, "{words:?} went over another connection");
        if words[0] == "LOCK.RELEASE" {
            assert_eq!(words[2], owner);
            assert!(!words.iter().any(|word| word == "FENCE"), "nobody knows the fence: {words:?}");
            break;
        }
    }
    released.join().unwrap().unwrap();
}
