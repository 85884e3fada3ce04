//! A connection that may fail at any moment, and says so instead of ending the program.

use crate::history::Moment;
use redis::{Cmd, Connection, Value};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Any reply but an error and null.
    Value(Value),
    /// Null: you do not hold it.
    Null,
    /// An error of the server: code, blank, text.
    Error(String),
    /// The connection was lost, or could not be made: whether the request was served is not known here.
    Lost,
    /// No answer within the time that there was for it. The connection is given up.
    Silence,
}

impl Answer {
    /// The number in it, if it is one.
    pub fn int(&self) -> Option<i64> {
        if let Answer::Value(Value::Int(number)) = self { Some(*number) } else { None }
    }
}

/// A request that is under way on a connection of its own: when it was sent, its answer, and when that was read.
pub type Asking = JoinHandle<(Moment, Answer, Moment)>;

/// Sends a request that may wait this long on a connection of its own, and does not wait for the answer.
pub fn ask_apart(port: u16, request: String, wait: Duration, patience: Duration) -> Asking {
    thread::spawn(move || Caller::new(port, patience).ask_long(&request, wait))
}

/// A caller whose connection has the number that the server gave it, so that another can make sure that it is closed.
pub struct Numbered {
    pub caller: Caller,
    pub number: i64,
}

impl Numbered {
    /// Connects, and asks for the number. The connection may be cut before: then there is a next one.
    pub fn new(port: u16, patience: Duration) -> Numbered {
        let mut numbered = Numbered { caller: Caller::new(port, patience), number: 0 };
        numbered.connect();
        numbered
    }

    /// Gives the connection up, for a new one.
    pub fn connect(&mut self) {
        self.caller.hang_up();
        loop {
            if let (_, Answer::Value(Value::Int(number)), _) = self.caller.ask("CLIENT ID") {
                self.number = number;
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks what may be asked more than once, on one connection after the other, until there is an answer. When it was
    /// first sent, the answer, and when that was read.
    pub fn until_answered(&mut self, request: &str) -> (Moment, Answer, Moment) {
        let (first, mut answer, mut told) = self.caller.ask(request);
        while matches!(answer, Answer::Lost | Answer::Silence) {
            self.connect();
            (_, answer, told) = self.caller.ask(request);
        }
        (first, answer, told)
    }
}

/// A client of servers on this machine.
pub struct Caller {
    port: u16,
    connection: Option<Connection>,
    patience: Duration,
}

impl Caller {
    /// Two nodes that do not agree may send a client to and fro for a while.
    const HOPS_MAX: usize = 5;

    /// Of the server on a port; waits so long for an answer, beyond what the request itself may wait.
    pub fn new(port: u16, patience: Duration) -> Caller {
        Caller { port, connection: None, patience }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn turn_to(&mut self, port: u16) {
        if port != self.port {
            *self = Caller::new(port, self.patience);
        }
    }

    /// Closes the connection; the next request makes a new one.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Asks, and tells when the request was sent and its answer read.
    pub fn ask(&mut self, request: &str) -> (Moment, Answer, Moment) {
        self.ask_long(request, Duration::ZERO)
    }

    /// Sends a request that may wait this long. It follows a redirection of a cluster node, as clients of clusters do.
    /// The moment is that of the last attempt, because an error leaves no trace.
    pub fn ask_long(&mut self, request: &str, wait: Duration) -> (Moment, Answer, Moment) {
        for _ in 0..Caller::HOPS_MAX {
            let connected = self.connect();
            let asked = Moment::now();
            let answer = if connected { self.served(request, wait) } else { Answer::Lost };
            let told = Moment::now();
            let Some((port, only_once)) = sent_to(&answer) else { return (asked, answer, told) };
            self.turn_to(port);
            if only_once && self.connect() {
                // Without it the other would send us back. Whatever it says, the request's own answer tells.
                self.served("ASKING", Duration::ZERO);
            }
        }
        let asked = Moment::now();
        (asked, Answer::Error("MOVED too often".to_owned()), asked)
    }

    /// Sends a request, and gives the connection up if there is no answer within this time.
    pub fn ask_within(&mut self, request: &str, patience: Duration) -> (Moment, Answer, Moment) {
        let before = std::mem::replace(&mut self.patience, patience);
        let asked = self.ask(request);
        self.patience = before;
        asked
    }

    /// Whether the server answers now, so that a connection that has died meanwhile is not taken for a lost request.
    pub fn is_heard(&mut self) -> bool {
        matches!(self.ask("PING").1, Answer::Value(_))
    }

    fn connect(&mut self) -> bool {
        if self.connection.is_none() {
            let client = redis::Client::open(("127.0.0.1", self.port)).expect("a plain address");
            self.connection = client.get_connection_with_timeout(self.patience).ok();
        }
        self.connection.is_some()
    }

    fn served(&mut self, request: &str, wait: Duration) -> Answer {
        let connection = self.connection.as_mut().expect("connected");
        let command = command(request);
        let served = connection
            .set_read_timeout(Some(wait + self.patience))
            .and_then(|()| connection.set_write_timeout(Some(self.patience)))
            .and_then(|()| command.query::<Value>(connection));
        match served {
            Ok(Value::Nil) => Answer::Null,
            Ok(value) => Answer::Value(value),
            Err(error) if error.code().is_some() => Answer::Error(testbed::text_of(&error)),
            Err(error) => {
                self.connection = None;
                if error.is_timeout() { Answer::Silence } else { Answer::Lost }
            }
        }
    }
}

fn command(request: &str) -> Cmd {
    let mut command = Cmd::new();
    request.split(' ').for_each(|word| {
        command.arg(word);
    });
    command
}

/// Where a node of a cluster sends a client, and whether for this one request only.
fn sent_to(answer: &Answer) -> Option<(u16, bool)> {
    let Answer::Error(text) = answer else { return None };
    let mut words = text.split(' ');
    let only_once = match words.next() {
        Some("ASK") => true,
        Some("MOVED") => false,
        _ => return None,
    };
    Some((words.nth(1)?.rsplit(':').next()?.parse().ok()?, only_once))
}
