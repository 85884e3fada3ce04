//! examples/job-queue: its page beside a real server, with workers that are killed and frozen by its buttons.

use crate::browser::{NO_BROWSER, is_here, python, root, see};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use testbed::{Client, Server, Signal, WaiterInfo, signal, spawn, wait_for};

/// The running example, and its server.
struct Example {
    server: Server,
    process: Child,
    url: String,
    /// Kept open, since the workers print what befalls them.
    _output: BufReader<ChildStdout>,
}

impl Example {
    fn start(args: &[&str]) -> Example {
        let server = Server::new();
        let mut command = Command::new(python());
        command.stdout(Stdio::piped()).arg(root().join("examples/job-queue/app.py")).args(["--port", "0", "--redis"]);
        command.arg(format!("redis://127.0.0.1:{}", server.port())).args(args);
        let mut process = spawn(command).unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("the example did not start: {line}")).to_owned();
        Example { server, process, url, _output: output }
    }

    /// The first connection of a client that sends these bytes, to its end.
    fn send(&self, bytes: &[u8]) -> String {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        let mut said = Vec::new();
        // An end by a reset is one, too: the example has not read all that was sent.
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// What the page is shown.
    fn state(&self) -> String {
        self.send(b"GET /state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    }
}

impl Drop for Example {
    /// It ends its workers, also those that are frozen.
    fn drop(&mut self) {
        signal(&self.process, Signal::TERM);
        self.process.wait().unwrap();
    }
}

const APPLES: &str = "example:{apples}:lock";

/// A client that waits for the lock of the apples.
fn waits(server: &Server, owner: &str) -> Client {
    let mut client = server.connect();
    client.send(&["LOCK.ACQUIRE", APPLES, owner, "PX", "600000", "BLOCK", "0"]);
    let mut conn = server.connect();
    let is_owner = |waiter: &WaiterInfo| waiter.owner == owner.as_bytes();
    wait_for("the wait to begin", || conn.lock_info(APPLES).unwrap().waiters.iter().any(is_owner));
    client
}

#[test]
fn the_page_shows_the_holder_the_waiters_in_their_order_and_the_hand_off() {
    let test = "job_queue::the_page_shows_the_holder_the_waiters_in_their_order_and_the_hand_off";
    if !is_here(test, NO_BROWSER) {
        return;
    }
    // Without workers, so that the test alone decides what there is to be seen.
    let example = Example::start(&["--workers", "0"]);
    let mut conn = example.server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", APPLES, "alice", "PX", "600000"]).is_some());
    let _bob = waits(&example.server, "bob");
    let _carol = waits(&example.server, "carol");
    see("job_queue.mjs", &[&example.url, "shows", "apples", "alice", "bob,carol"]);
    assert_eq!(conn.int(&["LOCK.RELEASE", APPLES, "alice"]), Some(0));
    see("job_queue.mjs", &[&example.url, "shows", "apples", "bob", "carol"]);
    assert_eq!(conn.get::<i64>(&["LOCK.BREAK", APPLES]), 1);
    see("job_queue.mjs", &[&example.url, "lost", "apples", "bob", "break"]);
}

#[test]
fn after_a_kill_the_lease_ends_and_the_next_worker_holds_the_lock() {
    if is_here("job_queue::after_a_kill_the_lease_ends_and_the_next_worker_holds_the_lock", NO_BROWSER) {
        let example = Example::start(&["--lease", "3", "--work", "8"]);
        see("job_queue.mjs", &[&example.url, "kill"]);
    }
}

#[test]
fn the_late_write_of_a_frozen_worker_is_refused_and_no_update_is_lost() {
    if is_here("job_queue::the_late_write_of_a_frozen_worker_is_refused_and_no_update_is_lost", NO_BROWSER) {
        let example = Example::start(&["--lease", "3", "--work", "6"]);
        see("job_queue.mjs", &[&example.url, "freeze"]);
    }
}

#[test]
fn the_page_fits_a_phone_and_is_accessible_in_light_and_dark() {
    if is_here("job_queue::the_page_fits_a_phone_and_is_accessible_in_light_and_dark", NO_BROWSER) {
        let example = Example::start(&["--work", "1"]);
        see("job_queue.mjs", &[&example.url, "fits"]);
        // Owners as long as the module allows, without a space.
        let mut conn = example.server.connect();
        let (one, two) = ("x".repeat(256), "y".repeat(256));
        assert!(conn.int(&["LOCK.ACQUIRE", APPLES, &one, "PX", "600000", "BLOCK", "0"]).is_some());
        let _two = waits(&example.server, &two);
        see("job_queue.mjs", &[&example.url, "wide", &one, &two]);
    }
}

#[test]
fn another_site_cannot_press_a_button_by_the_body_of_a_request() {
    let example = Example::start(&["--workers", "0"]);
    let hidden = "POST /workers HTTP/1.1\r\nHost: localhost:80\r\nX-Example: page\r\n\r\n";
    for first in ["POST / HTTP/1.1", "GET / HTTP/1.1"] {
        let outer = format!("{first}\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{hidden}", hidden.len());
        let said = example.send(format!("{outer}GET / HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(!said.contains(" 204 "), "{first}: {said}");
    }
    // The same request by itself adds a worker.
    let said = example.send(hidden.replace("X-Example", "Connection: close\r\nX-Example").as_bytes());
    assert!(said.contains(" 204 "), "{said}");
}

#[test]
fn requests_with_strange_numbers_and_hosts_are_refused() {
    let example = Example::start(&["--workers", "0"]);
    let headers = "\r\nHost: localhost\r\nX-Example: page\r\nConnection: close\r\n\r\n";
    for path in ["/workers/\u{b2}/kill", &format!("/workers/{}/kill", "9".repeat(5000)), "/../app.py", "/workers/1/x"] {
        // One byte for each character, as HTTP has it.
        let bytes: Vec<u8> = format!("POST {path} HTTP/1.1{headers}").chars().map(|one| one as u8).collect();
        let said = example.send(&bytes);
        assert!(said.contains(" 404 "), "{path}: {said}");
    }
    let said = example.send(b"GET /state HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n");
    assert!(said.contains(" 403 "), "{said}");
}

#[test]
fn an_owner_of_any_bytes_is_shown_and_the_page_goes_on() {
    let example = Example::start(&["--workers", "0"]);
    let mut conn = example.server.connect();
    let owners: [(&[u8], &str); 3] =
        [(b"\xff\xfe", r"\\xff\\xfe"), ("x:\u{b2}:y".as_bytes(), r"x:\u00b2:y"), (b"alice", "alice")];
    for (owner, shown) in owners {
        let took = conn.call(&[b"LOCK.ACQUIRE".as_slice(), APPLES.as_bytes(), owner, b"PX", b"600000"]);
        assert!(took.is_ok(), "{took:?}");
        wait_for("the page to show the owner", || example.state().contains(&format!("\"worker\": \"{shown}\"")));
        assert_eq!(conn.get::<i64>(&["LOCK.BREAK", APPLES]), 1);
    }
}
