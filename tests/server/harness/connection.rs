//! The one raw connection of the tests. It shows what the server sends, where a client library would already have
//! chosen a type. It may wait, be killed and be closed without a panic.
//!
//! Where none of that matters, a test uses [`testbed::Client`], the `redis` crate's connection.

use crate::harness::state::gone;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use testbed::{Client, PATIENCE, Server, wait_for};

/// What the server sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    /// `$-1` in RESP2, `_` in RESP3.
    Null,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Push(Vec<Reply>),
    /// What no command of ours may answer, as its first line.
    Other(String),
    /// Nothing more: the connection has ended, be it in the middle of a reply.
    Closed,
}

impl Reply {
    pub(crate) fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    pub(crate) fn simple(text: &str) -> Reply {
        Reply::Simple(text.to_owned())
    }

    pub(crate) fn error(text: &str) -> Reply {
        Reply::Error(text.to_owned())
    }

    /// The elements of an array.
    pub(crate) fn items(self) -> Vec<Reply> {
        match self {
            Reply::Array(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// A text, be it simple or bulk.
    pub(crate) fn text(&self) -> String {
        match self {
            Reply::Simple(text) | Reply::Error(text) => text.clone(),
            Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not a text: {other:?}"),
        }
    }

    /// A fence, or another number.
    pub(crate) fn int(&self) -> i64 {
        match self {
            Reply::Int(number) => *number,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// The code of an error; empty for anything else.
    pub(crate) fn code(&self) -> &str {
        match self {
            Reply::Error(text) => text.split(' ').next().unwrap_or_default(),
            _ => "",
        }
    }

    /// The value of a field of a map, flat or not.
    pub(crate) fn field(&self, name: &str) -> Reply {
        self.find(name).unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    fn find(&self, name: &str) -> Option<Reply> {
        match self {
            Reply::Map(pairs) => pairs.iter().find(|(key, _)| key.text() == name).map(|(_, value)| value.clone()),
            Reply::Array(flat) => flat.chunks(2).find(|pair| pair[0].text() == name).map(|pair| pair[1].clone()),
            _ => None,
        }
    }
}

/// How a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By itself.
    Plain,
    /// Between MULTI and EXEC.
    Exec,
    /// From a script.
    Script,
    /// From a function; [`Connection::load_function`] comes first.
    Function,
}

/// A raw connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    resp3: bool,
    /// Its number at the server, where the server reports it.
    id: Option<i64>,
    seen: Vec<u8>,
}

impl Connection {
    /// A server, and a connection to it in RESP2.
    pub(crate) fn alone() -> (Server, Connection) {
        let server = Server::new();
        let connection = Connection::resp2(&server);
        (server, connection)
    }

    /// A connection in RESP2.
    pub(crate) fn resp2(server: &Server) -> Connection {
        Connection::try_resp2(server).expect("nobody closes it that early")
    }

    /// The same; None if it is closed before it has learnt its number.
    pub(crate) fn try_resp2(server: &Server) -> Option<Connection> {
        let mut connection = Connection::silent(server);
        match connection.say("CLIENT ID") {
            Reply::Closed => None,
            reply => {
                connection.id = if let Reply::Int(id) = reply { Some(id) } else { None };
                Some(connection)
            }
        }
    }

    /// A connection that has sent nothing.
    pub(crate) fn silent(server: &Server) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream: BufReader::new(stream), resp3: false, id: None, seen: Vec::new() }
    }

    /// A connection in RESP3.
    pub(crate) fn resp3(server: &Server) -> Connection {
        let mut connection = Connection::resp2(server);
        // The reply uses the new protocol already.
        connection.resp3 = true;
        assert!(matches!(connection.ask(&["HELLO", "3"]), Reply::Map(_)));
        connection
    }

    /// A new connection that has sent this command. Whether it waits remains to be seen.
    pub(crate) fn sent<A: AsRef<[u8]>>(server: &Server, args: &[A]) -> Connection {
        let mut connection = Connection::resp2(server);
        connection.send(args);
        connection
    }

    /// A new connection that waits for the reply to this command, of words that need no quotes.
    pub(crate) fn waiting(server: &Server, command: &str) -> Connection {
        Connection::waiting_in(server, 0, command)
    }

    /// The same in a database.
    pub(crate) fn waiting_in(server: &Server, db: u32, command: &str) -> Connection {
        let mut eye = server.connect();
        let mut connection = Connection::resp2(server);
        if db > 0 {
            assert_eq!(connection.say(&format!("SELECT {db}")), Reply::simple("OK"));
        }
        connection.send_line(command);
        connection.expect_blocked(&mut eye, command);
        connection
    }

    /// Its number at the server.
    pub(crate) fn id(&self) -> i64 {
        self.id.expect("the server has told it")
    }

    /// The command that kills it.
    pub(crate) fn kill(&self) -> String {
        format!("CLIENT KILL ID {}", self.id())
    }

    /// Sends a command without waiting for what it answers. Like all that sends, it does not fail: that the server has
    /// closed the connection shows when it is read.
    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.as_ref().len()).into_bytes());
            bytes.extend(arg.as_ref());
            bytes.extend(b"\r\n");
        }
        self.send_bytes(&bytes);
    }

    /// Sends a command as one types it, or several, with an end of line between them.
    pub(crate) fn send_line(&mut self, command: &str) {
        self.send_bytes(format!("{command}\r\n").as_bytes());
    }

    /// Sends bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let _: std::io::Result<()> = self.stream.get_mut().write_all(bytes);
    }

    /// Sends a command and reads its reply.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.read()
    }

    /// Sends words that need no quotes.
    pub(crate) fn say(&mut self, command: &str) -> Reply {
        self.ask(&command.split(' ').collect::<Vec<_>>())
    }

    /// The very bytes of the reply.
    pub(crate) fn bytes(&mut self, command: &str) -> String {
        self.send(&command.split(' ').collect::<Vec<_>>());
        self.seen.clear();
        self.read();
        self.seen.escape_ascii().to_string()
    }

    /// Sends a command this way. A refusal within MULTI comes as the same error, and nothing stays queued.
    pub(crate) fn ask_by<A: AsRef<[u8]>>(&mut self, way: Way, args: &[A]) -> Reply {
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        let with = |head: [&'static str; 3]| -> Vec<Vec<u8>> {
            head.iter().map(|word| word.as_bytes()).chain(args.clone()).map(<[u8]>::to_vec).collect()
        };
        match way {
            Way::Plain => self.ask(&args),
            Way::Exec => {
                assert_eq!(self.say("MULTI"), Reply::simple("OK"));
                match self.ask(&args) {
                    Reply::Simple(queued) if queued == "QUEUED" => {
                        let mut replies = self.say("EXEC").items();
                        assert_eq!(replies.len(), 1, "{replies:?}");
                        replies.remove(0)
                    }
                    refused => {
                        assert_eq!(self.say("DISCARD"), Reply::simple("OK"));
                        refused
                    }
                }
            }
            Way::Script => self.ask(&with(["EVAL", "return redis.pcall(unpack(ARGV))", "0"])),
            Way::Function => self.ask(&with(["FCALL", "pass_on", "0"])),
        }
    }

    /// Loads the function that [`Way::Function`] calls.
    pub(crate) fn load_function(&mut self) {
        let code = "#!lua name=passing\nredis.register_function('pass_on', function(keys, args) return \
                    redis.pcall(unpack(args)) end)";
        assert_eq!(self.ask(&["FUNCTION", "LOAD", "REPLACE", code]).text(), "passing");
    }

    /// The reply, after which there is no second one. Behind an error the server may close the connection.
    #[track_caller]
    pub(crate) fn only_reply(&mut self) -> Reply {
        let reply = self.read();
        if reply != Reply::Closed {
            // Answered whatever the server is not allowed to do just now.
            self.send_line("CLIENT ID");
            let next = self.read();
            let closes = matches!(reply, Reply::Error(_)) && next == Reply::Closed;
            assert!(closes || next == Reply::Int(self.id()), "{reply:?}, then {next:?}");
        }
        reply
    }

    /// Reads one reply, or one unrequested message, which must come within [`PATIENCE`].
    pub(crate) fn read(&mut self) -> Reply {
        let Some(line) = self.line() else { return Reply::Closed };
        let rest = line[1..].to_owned();
        let len = rest.parse::<usize>();
        match (line.as_bytes()[0], len) {
            (b'+', _) => Reply::Simple(rest),
            (b'-', _) => Reply::Error(rest),
            (b':', _) => Reply::Int(rest.parse().unwrap()),
            (b'$', Ok(len)) => self.body(len).map_or(Reply::Closed, Reply::Bulk),
            (b'=', Ok(len)) => self.body(len).map_or(Reply::Closed, |mut body| Reply::Bulk(body.split_off(4))),
            (b'$', _) if rest == "-1" && !self.resp3 => Reply::Null,
            (b'_', _) if self.resp3 => Reply::Null,
            (b'*' | b'~', Ok(len)) => self.elements(len).map_or(Reply::Closed, Reply::Array),
            (b'>', Ok(len)) => self.elements(len).map_or(Reply::Closed, Reply::Push),
            (b'%', Ok(len)) => self.elements(2 * len).map_or(Reply::Closed, |flat| {
                Reply::Map(flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
            }),
            _ => Reply::Other(line),
        }
    }

    /// So many replies; None if the connection ends before the last.
    fn elements(&mut self, len: usize) -> Option<Vec<Reply>> {
        (0..len).map(|_| Some(self.read()).filter(|reply| *reply != Reply::Closed)).collect()
    }

    /// A line without its end; None when there is none and never will be.
    pub(super) fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        match self.stream.read_until(b'\n', &mut line) {
            Ok(_) if line.is_empty() => return None,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("no reply: {error}"),
            Ok(_) => {}
        }
        self.seen.extend(&line);
        Some(String::from_utf8(line).unwrap().trim_end_matches(['\r', '\n']).to_owned())
    }

    /// So many bytes and the end of their line.
    fn body(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut body = self.exactly(len + 2)?;
        self.seen.extend(&body);
        body.truncate(len);
        Some(body)
    }

    /// So many bytes; None if the connection ends before.
    pub(super) fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self.stream.read_exact(&mut bytes) {
            Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind()) => None,
            read => read.map(|()| bytes).map_err(|error| panic!("no reply: {error}")).ok(),
        }
    }

    /// Whether something has come that was not read yet, be it the end of the connection.
    pub(crate) fn has_reply(&mut self) -> bool {
        self.without_waiting(|stream| stream.fill_buf().map(<[u8]>::len))
    }

    /// Whether nothing has come yet that was not read.
    pub(crate) fn is_waiting(&mut self) -> bool {
        !self.has_reply()
    }

    #[track_caller]
    pub(crate) fn assert_waiting(&mut self) {
        assert!(self.is_waiting(), "it should wait, but {:?}", self.read());
    }

    /// Whether it is a waiter, by the server's own word; asked over another connection.
    pub(crate) fn is_blocked(&mut self, eye: &mut Client) -> bool {
        let listed: String = eye.get(&["CLIENT", "LIST", "ID", &self.id().to_string()]);
        let flags = listed.split(' ').find_map(|field| field.strip_prefix("flags="));
        self.is_waiting() && flags.is_some_and(|flags| flags.contains('b'))
    }

    /// Waits until it is a waiter at the server; fails when there is a reply instead.
    #[track_caller]
    pub(crate) fn expect_blocked(&mut self, eye: &mut Client, command: &str) {
        wait_for(&format!("{command} to wait"), || self.is_blocked(eye) || self.has_reply());
        if self.has_reply() {
            panic!("{command} does not wait: {:?}", self.read());
        }
    }

    /// Waits for what comes next, which is the end of the connection or not.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Waits for the end of the connection, before which nothing comes.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        assert_eq!(self.read(), Reply::Closed);
    }

    /// Whether the connection has ended, when all that came before was read and thrown away.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.without_waiting(|stream| {
            loop {
                match stream.fill_buf()?.len() {
                    0 => return Ok(0),
                    len => stream.consume(len),
                }
            }
        })
    }

    /// Whether this reads something, or the end of the connection, without having to wait.
    fn without_waiting(&mut self, read: impl FnOnce(&mut BufReader<TcpStream>) -> std::io::Result<usize>) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let read = read(&mut self.stream);
        self.stream.get_ref().set_nonblocking(false).unwrap();
        !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Closes the half of the connection that commands go over.
    pub(crate) fn shut_writing(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    /// Closes it.
    pub(crate) fn close(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Both).unwrap();
    }

    /// Closes it, and waits until the server has seen that.
    pub(crate) fn leave(self, eye: &mut Client) {
        let id = self.id();
        drop(self);
        gone(eye, id);
    }

    /// Waits for the end of a wait that this node cannot serve any more. The server sends the client away, or we do.
    #[track_caller]
    pub(crate) fn assert_sent_away(&mut self, how: &str) {
        let end = self.read();
        assert!(end == Reply::Closed || ["MOVED", "UNBLOCKED"].contains(&end.code()), "{how}: {end:?}");
    }
}
