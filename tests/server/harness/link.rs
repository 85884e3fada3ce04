//! A connection of whose replies each is one line, and that can be closed and killed without a panic.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use testbed::{PATIENCE, Server};

/// A line that a server sent as a reply: what the commands of these tests answer has no more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Fence(i64),
    Null,
    Error(String),
    Simple(String),
    /// An array of so many elements begins.
    Head(usize),
    /// The connection ended.
    Closed,
}

impl Line {
    pub(crate) fn fence(&self) -> i64 {
        match self {
            Line::Fence(fence) => *fence,
            other => panic!("not a fence: {other:?}"),
        }
    }
}

/// A connection whose replies are lines.
pub(crate) struct Link {
    stream: BufReader<TcpStream>,
    pub(crate) id: i64,
}

impl Link {
    pub(crate) fn new(server: &Server) -> Link {
        Link::try_new(server).expect("nobody kills it that early")
    }

    /// None if it is killed before it has learnt its number.
    pub(crate) fn try_new(server: &Server) -> Option<Link> {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut link = Link { stream: BufReader::new(stream), id: 0 };
        link.send("CLIENT ID");
        match link.read() {
            Line::Closed => None,
            id => {
                link.id = id.fence();
                Some(link)
            }
        }
    }

    pub(crate) fn send(&mut self, command: &str) {
        // A connection that the server has closed says so when it is read.
        let _: std::io::Result<()> = self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes());
    }

    pub(crate) fn read(&mut self) -> Line {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return Line::Closed,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Line::Closed,
            Err(error) => panic!("no reply: {error}"),
            Ok(_) => {}
        }
        let line = line.trim_end();
        let rest = line[1..].to_owned();
        match line.as_bytes()[0] {
            b':' => Line::Fence(rest.parse().unwrap()),
            b'-' => Line::Error(rest),
            b'+' => Line::Simple(rest),
            b'*' => Line::Head(rest.parse().unwrap()),
            b'$' if rest == "-1" => Line::Null,
            _ => panic!("not expected here: {line}"),
        }
    }

    /// The one reply to the command that was sent. Fails when there is none, or another one behind it.
    pub(crate) fn only_reply(&mut self) -> Line {
        self.send("PING");
        let reply = self.read();
        if reply != Line::Closed {
            let next = self.read();
            assert!(
                matches!(&next, Line::Closed) || next == Line::Simple("PONG".to_owned()),
                "{reply:?}, then {next:?}"
            );
        }
        reply
    }

    /// Whether the server has ended the connection without a word.
    pub(crate) fn assert_closed_in_silence(&mut self) {
        assert_eq!(self.read(), Line::Closed);
    }

    /// Whether there is nothing to read yet.
    pub(crate) fn waits(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let seen = self.stream.fill_buf().map(<[u8]>::len);
        self.stream.get_ref().set_nonblocking(false).unwrap();
        matches!(seen, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    pub(crate) fn assert_waits(&mut self) {
        assert!(self.waits(), "it should wait, but {:?}", self.read());
    }

    pub(crate) fn close(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Both).unwrap();
    }
}
