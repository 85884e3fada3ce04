//! NOTIFY over TLS: requests, messages, and the end of a connection.

use super::CHANNEL;
use crate::harness::scene::Scene;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use testbed::{Certificates, PATIENCE, Server, say_not_run};

/// A client over TLS, and the lines that the server sends it.
struct Client {
    process: Child,
    lines: Receiver<String>,
}

impl Client {
    fn new(certificates: &Certificates) -> Client {
        let mut command = Command::new("openssl");
        let address = format!("127.0.0.1:{}", certificates.port());
        command.args(["s_client", "-quiet", "-verify_return_error", "-CAfile", &certificates.authority()]);
        command.args(["-connect", &address]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = testbed::spawn(command).unwrap();
        let (sender, lines) = channel();
        let replies = BufReader::new(process.stdout.take().unwrap());
        thread::spawn(move || replies.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Client { process, lines }
    }

    /// Sends a request; so many lines of what comes.
    fn ask(&mut self, request: &str, count: usize) -> String {
        write!(self.process.stdin.as_ref().unwrap(), "{request}\r\n").unwrap();
        self.read(count)
    }

    /// The next lines, in one.
    fn read(&mut self, count: usize) -> String {
        let lines: Vec<String> = (0..count).map(|_| self.lines.recv_timeout(PATIENCE).expect("a line")).collect();
        lines.join(" ")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn over_tls_an_owner_is_told_and_a_place_ends_with_its_connection() {
    let test = "notify::tls::over_tls_an_owner_is_told_and_a_place_ends_with_its_connection";
    let Some(certificates) = Certificates::make() else { return say_not_run(test, "openssl is not installed") };
    let server = Server::setup().lock_option("away-ms", "100").start();
    let mut scene = Scene::new(&server);
    if scene.conn.get::<Vec<String>>(&["CONFIG", "GET", "tls-port"]).is_empty() {
        return say_not_run(test, "the server was built without TLS");
    }
    for (name, value) in certificates.options() {
        assert_eq!(scene.conn.get::<String>(&["CONFIG", "SET", name, &value]), "OK");
    }
    let [mut hears, mut waits, mut goes] = [(); 3].map(|()| Client::new(&certificates));
    assert_eq!(hears.ask(&format!("SUBSCRIBE {CHANNEL}"), 6), "*3 $9 subscribe $2 ch :1");
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    assert_eq!(waits.ask("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", 1), "$-1");
    assert_eq!(goes.ask("LOCK.ACQUIRE k c QUEUE 60000 NOTIFY ch", 1), "$-1");
    drop(goes);
    scene.stage.until("lock_places", 1);
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    assert_eq!(hears.read(7), "*3 $7 message $2 ch $1 b");
    assert!(waits.ask("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", 1).starts_with(':'));
    assert_eq!(waits.ask("LOCK.RELEASE k b", 1), ":0");
    scene.conn.get::<i64>(&["PUBLISH", CHANNEL, "d"]);
    assert_eq!(hears.read(7), "*3 $7 message $2 ch $1 d", "nobody else was told");
}
