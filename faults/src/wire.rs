//! A raw connection: it keeps count of replies, which a client library would hide.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply of the server, or a command in the stream of a replica.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    /// Null, in either form.
    Null,
    Bulk(String),
    Array(Vec<Reply>),
}

pub struct Wire {
    stream: BufReader<TcpStream>,
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
        Ok(Wire { stream: BufReader::new(stream) })
    }

    /// Sends commands in one write.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn send(&mut self, commands: &[Vec<String>]) -> io::Result<()> {
        let mut bytes = String::new();
        for words in commands {
            bytes += &format!("*{}\r\n", words.len());
            words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(bytes.as_bytes())
    }

    /// Asks to be served as a replica, and throws away the data with which that begins.
    ///
    /// # Errors
    /// When the connection is lost, or the server answers otherwise.
    pub fn follow(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(b"PSYNC ? -1\r\n")?;
        let begins = self.line_of_some()?;
        let head = self.line_of_some()?;
        let len = head.strip_prefix('$').and_then(|len| len.parse::<usize>().ok());
        let len = len.filter(|_| begins.starts_with("+FULLRESYNC"));
        let len = len.ok_or_else(|| io::Error::other(format!("no full synchronisation: {begins}, {head}")))?;
        self.stream.read_exact(&mut vec![0; len])
    }

    /// A line that is not empty: a server that prepares its data sends empty ones.
    fn line_of_some(&mut self) -> io::Result<String> {
        loop {
            let line = self.line()?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }

    /// The next reply.
    ///
    /// # Errors
    /// When the connection is lost, or there is none in time.
    pub fn read(&mut self) -> io::Result<Reply> {
        let line = self.line_of_some()?;
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().map_err(|_| io::Error::other(format!("not a reply: {line:?}")));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" | "*" if number()? < 0 => Reply::Null,
            "$" => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes.into_iter().map(char::from).collect())
            }
            "*" => Reply::Array((0..number()?).map(|_| self.read()).collect::<io::Result<_>>()?),
            _ => return Err(io::Error::other(format!("not a reply: {line:?}"))),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.pop() {
            Some(b'\n') => Ok(line.into_iter().filter(|byte| *byte != b'\r').map(char::from).collect()),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }
}
