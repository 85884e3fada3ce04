//! A raw connection: it keeps count of replies, which a client library would hide.

use redis::{Cmd, Parser, RedisResult, Value};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub struct Wire {
    stream: BufReader<TcpStream>,
    parser: Parser,
}

impl Wire {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// When that fails.
    pub fn new(port: u16, patience: Duration) -> io::Result<Wire> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream: BufReader::new(stream), parser: Parser::new() })
    }

    /// Sends commands in one write.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()> {
        let packed = |words: &Vec<String>| Cmd::new().arg(words).get_packed_command();
        self.stream.get_mut().write_all(&commands.iter().flat_map(packed).collect::<Vec<u8>>())
    }

    /// Asks to be served as a replica, and throws away the data with which that begins.
    ///
    /// # Errors
    /// When the connection is lost, or the server answers otherwise.
    pub fn follow(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(b"PSYNC ? -1\r\n")?;
        let begins = self.line()?;
        let head = self.line()?;
        let len = head.strip_prefix('$').and_then(|len| len.parse::<usize>().ok());
        let len = len.filter(|_| begins.starts_with("+FULLRESYNC"));
        let len = len.ok_or_else(|| io::Error::other(format!("no full synchronisation: {begins}, {head}")))?;
        self.stream.read_exact(&mut vec![0; len])
    }

    /// A line that is not empty: a server that prepares its data sends empty ones.
    fn line(&mut self) -> io::Result<String> {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !line.trim_end().is_empty() {
                return Ok(line.trim_end().to_owned());
            }
        }
    }

    /// The next reply, or the next command in the stream of a replica. An error of the server is one of the replies.
    ///
    /// # Errors
    /// When the connection is lost, or there is none in time.
    pub fn read(&mut self) -> RedisResult<Value> {
        self.parser.parse_value(&mut self.stream)
    }
}
