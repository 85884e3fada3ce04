//! What a primary sends to its replicas, word by word: a connection that asks for it as a replica does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use testbed::{PATIENCE, Server, parse_commands};

/// A replication link that only listens.
pub(crate) struct Stream {
    reader: BufReader<TcpStream>,
    read: Vec<u8>,
    marks: u32,
}

impl Stream {
    /// Begins after a full sync, whose data are thrown away.
    pub(crate) fn of(server: &Server) -> Stream {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"PSYNC ? -1\r\n").unwrap();
        let mut stream = Stream { reader: BufReader::new(socket), read: Vec::new(), marks: 0 };
        let answer = stream.line();
        assert!(answer.starts_with("+FULLRESYNC"), "{answer}");
        let head = stream.line();
        let len = head.strip_prefix('$').and_then(|len| len.parse().ok());
        let len: usize = len.unwrap_or_else(|| panic!("not the length of an RDB: {head}"));
        stream.reader.read_exact(&mut vec![0; len]).unwrap();
        stream
    }

    /// A line that is not empty: while it prepares the data the server sends empty ones.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let line = line.trim_end();
            if !line.is_empty() {
                return line.to_owned();
            }
        }
    }

    /// Everything sent since the last call, each command as its arguments, but for what keeps the link alive.
    pub(crate) fn commands(&mut self, server: &Server) -> Vec<Vec<String>> {
        self.marks += 1;
        // Goes to replicas behind all that was sent before, and changes nothing.
        let mark = format!("mark-{}", self.marks);
        server.connect().get::<i64>(&["PUBLISH", "stream", &mark]);
        let last = format!("\r\n{mark}\r\n");
        let end = loop {
            if let Some(at) = self.read.windows(last.len()).position(|bytes| bytes == last.as_bytes()) {
                break at + last.len();
            }
            let more = self.reader.fill_buf().unwrap();
            assert!(!more.is_empty(), "the server closed the link");
            self.read.extend_from_slice(more);
            let len = more.len();
            self.reader.consume(len);
        };
        let bytes: Vec<u8> = self.read.drain(..end).collect();
        // In capitals or not, as the server has it.
        let ours = |command: &Vec<String>| {
            !["SELECT", "PING", "REPLCONF", "PUBLISH"].iter().any(|other| command[0].eq_ignore_ascii_case(other))
        };
        parse_commands(&bytes).into_iter().filter(ours).collect()
    }
}
