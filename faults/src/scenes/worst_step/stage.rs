//! A server with a scene on it, and the measure of its longest uninterrupted step.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testbed::{Client, Server, Setup, Value, wait_for};

/// So many turns belong to what came before them.
const AFTERWARDS: usize = 128;

/// A server, a client without duties, and the connections that belong to the scene.
pub struct Stage {
    pub server: Server,
    pub conn: Client,
    pub connections: Vec<Client>,
    /// False for the same request beside an empty server, or beside plain values of the same size.
    pub full: bool,
    /// When what the scene waits for begins to end.
    pub due: Instant,
    /// How many times the usual time the scene has until then.
    pub patience: u32,
    /// True if that was too short: the scene must be built anew.
    pub is_late: bool,
    pub saved: Option<Value>,
}

impl Stage {
    pub fn new(setup: Setup, full: bool, patience: u32) -> Stage {
        let server = setup.turns().start();
        let conn = server.connect();
        Stage {
            server,
            conn,
            connections: Vec::new(),
            full,
            due: Instant::now(),
            patience,
            is_late: false,
            saved: None,
        }
    }

    /// Sends a request of words without blanks; its reply, which is no error.
    pub fn ask(&mut self, request: &str) -> Value {
        self.conn.get(&request.split(' ').collect::<Vec<_>>())
    }

    pub fn connect(&mut self, count: usize) {
        let server = &self.server;
        self.connections.extend((0..count).map(|_| server.connect()));
    }

    /// Parks a client for a request on each of the scene's connections, which get their requests by number.
    pub fn park(&mut self, request: impl Fn(usize) -> String) {
        let number = self.connections.len() as u64;
        for (at, client) in self.connections.iter_mut().enumerate() {
            client.send(&request(at).split(' ').collect::<Vec<_>>());
        }
        wait_for("the clients to be parked", || self.conn.info_number("clients", "blocked_clients") == number);
    }

    /// Sends requests on a connection of their own, in one piece and without replies. The connection stays open.
    pub fn fill(&mut self, requests: impl Iterator<Item = String>) {
        const PIECE: usize = 1 << 20;
        let mut client = self.server.connect();
        let mut bytes = b"CLIENT REPLY OFF\r\n".to_vec();
        for request in requests.chain(["CLIENT REPLY ON".to_owned()]) {
            bytes.extend(request.as_bytes());
            bytes.extend(b"\r\n");
            if bytes.len() > PIECE {
                client.0.send_packed_command(&bytes).expect("the server reads");
                bytes.clear();
            }
        }
        client.0.send_packed_command(&bytes).expect("the server reads");
        client.0.recv_response().expect("OK");
        self.connections.push(client);
    }

    /// Sends a request for each number below a count, from scripts. In it `i` is the number, and `ms` what is left of a
    /// time that ends for all of them at one moment.
    pub fn together(&mut self, request: &str, count: usize, from_now: Duration) {
        // Time stands still within a script.
        const PER_SCRIPT: usize = 100;
        let from_now = self.patience * if self.full { from_now } else { Duration::from_millis(100) };
        self.due = Instant::now() + from_now;
        let end_ms = (SystemTime::now() + from_now).duration_since(UNIX_EPOCH).expect("later than 1970").as_millis();
        self.fill((0..count).step_by(PER_SCRIPT).map(|from| {
            let to = count.min(from + PER_SCRIPT) - 1;
            format!(
                "EVAL \"local t=redis.call('TIME') local ms=math.max(1,{end_ms}-t[1]*1000-math.floor(t[2]/1000)) \
                 for i={from},{to} do redis.call({request}) end\" 0"
            )
        }));
        self.is_late |= Instant::now() >= self.due;
    }

    /// Fails unless a field of INFO lock says that the scene is as it is meant to be.
    pub fn has(&mut self, field: &str, count: u64) {
        if self.full && !self.is_late {
            assert_eq!(self.conn.info_number("lock", &format!("lock_{field}")), count, "{field}");
        }
    }

    /// Waits until the server has so many keys.
    pub fn until_keys(&mut self, count: i64) {
        wait_for("keys to end", || self.conn.int(&["DBSIZE"]) == Some(count));
    }

    /// The longest turn of the server's event loop during something and right after it, in microseconds of CPU.
    pub fn longest_us(&mut self, act: impl FnOnce(&mut Stage)) -> u64 {
        self.longest_turn_us();
        act(self);
        // What the request leaves for later turns begins in these.
        for _ in 0..AFTERWARDS {
            self.ask("PING");
        }
        self.longest_turn_us()
    }

    /// The longest turn since this was asked last, by tests/support/turns.
    fn longest_turn_us(&mut self) -> u64 {
        self.conn.int(&["TURNS.LONGEST"]).expect("microseconds") as u64
    }
}

/// The CPU of 10,000 pairs of ACQUIRE and RELEASE that nobody contends, in microseconds.
pub fn pairs_us(stage: &mut Stage) -> u64 {
    let spent = |stage: &mut Stage| stage.conn.cpu_us("_main_thread") as u64;
    let before = spent(stage);
    stage.fill((0..10_000).flat_map(|_| ["LOCK.ACQUIRE pair owner".to_owned(), "LOCK.RELEASE pair owner".to_owned()]));
    spent(stage) - before
}
