//! Clients that wait: each on a connection of its own, whose answer is read when the test wants it.

use redis::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use testbed::{Client, Fields, PATIENCE, Server, wait_for};

/// A client that has sent something that may wait.
pub(crate) struct Parked {
    reader: BufReader<TcpStream>,
    /// Its number at the server.
    pub(crate) id: String,
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Granted, with this fence; or whatever else a number says.
    Int(i64),
    /// Not granted.
    Null,
    /// An error, code first.
    Error(String),
    /// The server closed the connection.
    Closed,
}

impl End {
    /// The fence of a grant.
    pub(crate) fn fence(self) -> i64 {
        match self {
            End::Int(fence) => fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The code of an error; empty for anything else.
    pub(crate) fn code(&self) -> &str {
        match self {
            End::Error(text) => text.split(' ').next().unwrap_or_default(),
            _ => "",
        }
    }
}

impl Parked {
    /// A connection that has sent nothing of the test's yet, in a database.
    pub(crate) fn connect(server: &Server, db: u32) -> Parked {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut parked = Parked { reader: BufReader::new(socket), id: String::new() };
        if db > 0 {
            parked.send(&format!("SELECT {db}"));
            assert_eq!(parked.line().as_deref(), Some("+OK"));
        }
        parked.send("CLIENT ID");
        parked.id = parked.end().fence().to_string();
        parked
    }

    /// Sends a command, words parted by blanks, and waits until it is in line.
    pub(crate) fn wait_in(server: &Server, db: u32, command: &str) -> Parked {
        let mut conn = server.connect();
        let mut parked = Parked::connect(server, db);
        let before = waiters(&mut conn);
        parked.send(command);
        wait_for("the client to be in line", || {
            if let Some(line) = parked.peek() {
                panic!("{command}: answered at once: {line:?}");
            }
            waiters(&mut conn) > before
        });
        parked
    }

    /// As [`Parked::wait_in`], in database 0.
    pub(crate) fn wait(server: &Server, command: &str) -> Parked {
        Parked::wait_in(server, 0, command)
    }

    /// Sends a command, words parted by blanks.
    pub(crate) fn send(&mut self, command: &str) {
        self.send_bytes(format!("{command}\r\n").as_bytes());
    }

    /// Sends bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    /// Sends bytes, unless the server closes the connection.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// The answer, when it comes.
    pub(crate) fn end(&mut self) -> End {
        let Some(line) = self.line() else { return End::Closed };
        match line.split_at(1) {
            (":", number) => End::Int(number.parse().unwrap()),
            ("$", "-1") => End::Null,
            ("-", text) => End::Error(text.to_owned()),
            _ => panic!("not an answer to a wait: {line}"),
        }
    }

    /// The answer, after which there is no second one.
    pub(crate) fn only_end(&mut self) -> End {
        let end = self.end();
        if end != End::Closed {
            // Answered whatever the server is not allowed to do just now.
            self.send("CLIENT ID");
            assert_eq!(self.line(), Some(format!(":{}", self.id)), "a second answer after {end:?}");
        }
        end
    }

    /// A line that is no answer to a wait.
    pub(crate) fn status(&mut self) -> Option<String> {
        self.line()
    }

    /// Whether it was not answered yet.
    pub(crate) fn is_waiting(&mut self) -> bool {
        self.peek().is_none()
    }

    /// What has come, if anything has.
    fn peek(&mut self) -> Option<String> {
        self.reader.get_ref().set_nonblocking(true).unwrap();
        let seen = match self.reader.fill_buf() {
            Ok(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(error.to_string()),
        };
        self.reader.get_ref().set_nonblocking(false).unwrap();
        seen
    }

    /// A line without its end; None when there is none and never will be.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Waits until the server has closed the connection, whatever it has said before.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// How many wait on the server.
pub(crate) fn waiters(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_waiters")
}

/// Who holds a key.
pub(crate) fn holders(conn: &mut Client, key: &str) -> Vec<String> {
    let Value::Array(holders) = (match conn.call(&["LOCK.INFO", key, "COUNT", "1000"]).unwrap() {
        Value::Nil => return Vec::new(),
        shown => Fields::from(shown).value("holders"),
    }) else {
        panic!("holders is an array")
    };
    holders.into_iter().map(|holder| Fields::from(holder).get("owner")).collect()
}

/// Waits until nobody waits any more.
pub(crate) fn nobody_waits(conn: &mut Client) {
    wait_for("everybody to be answered", || waiters(conn) == 0 && conn.info("lock", "lock_contended_keys") == "0");
}

/// Lets the server tick for a while, by its own count of time: what it ought not to do it has had many occasions for.
pub(crate) fn let_it_tick(conn: &mut Client) {
    let start = conn.info_number("server", "server_time_usec");
    wait_for("some ticks", || conn.info_number("server", "server_time_usec") > start + 400_000);
}
