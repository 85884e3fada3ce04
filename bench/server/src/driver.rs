//! Many clients from one thread: real sockets, one poll over all of them, requests written while others are answered,
//! and no allocation for each. So the figures measure the server. Every reply is read and compared with what it must
//! be.

use crate::reply::take_in;
use crate::template::{Run, Sequence};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::fmt::{Display, Formatter};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

const EVENTS: usize = 256;
const BUFFER_BYTES: usize = 64 * 1024;
/// Nothing that is waited for here takes as long on a server that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command was not answered as it must be. What is measured then is not what was meant.
#[derive(Debug)]
pub enum Failure {
    /// Another reply.
    Unexpected {
        /// The command, as it was written, with what was expected.
        command: String,
        /// What came.
        reply: String,
    },
    /// None at all.
    Silence,
    /// The connection is closed.
    Closed,
}

impl std::error::Error for Failure {}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unexpected { command, reply } => write!(f, "{command}: answered {reply}"),
            Failure::Silence => write!(f, "a command was not answered within {PATIENCE:?}"),
            Failure::Closed => write!(f, "the server closed a connection"),
        }
    }
}

/// What all connections together do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many commands each connection has under way at most.
    pub pipeline: usize,
    /// How many keys there are. Each connection has its share of them, or all share them when there are too few.
    pub keys: usize,
    pub count: usize,
}

/// The connections.
#[derive(Debug)]
pub struct Driver {
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    number: usize,
    stream: TcpStream,
    /// Written and not yet sent.
    out: Vec<u8>,
    /// The beginning of a reply that has not come whole.
    rest: Vec<u8>,
    /// The keys that it uses, and how many commands it is to send, has sent, has seen answered.
    numbers: Range<usize>,
    due: usize,
    sent: usize,
    answered: usize,
}

/// Connects one, and lets it be polled by its number. A full backlog costs a second: each waits until the server has
/// taken it.
pub fn connect(address: SocketAddr, poll: &Poll, number: usize, interest: Interest) -> std::io::Result<TcpStream> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(b"PING\r\n")?;
    stream.read_exact(&mut [0; 7])?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(number), interest)?;
    Ok(stream)
}

impl Driver {
    pub fn connect(address: SocketAddr, clients: usize) -> std::io::Result<Driver> {
        let poll = Poll::new()?;
        let client = |number| {
            let stream = connect(address, &poll, number, Interest::READABLE | Interest::WRITABLE)?;
            let (out, rest) = (Vec::new(), Vec::new());
            Ok(Client { number, stream, out, rest, numbers: 0..1, due: 0, sent: 0, answered: 0 })
        };
        let clients = (0..clients).map(client).collect::<std::io::Result<_>>()?;
        Ok(Driver { poll, events: Events::with_capacity(EVENTS), buffer: vec![0; BUFFER_BYTES], clients })
    }

    /// Runs a sequence on all connections, shared out evenly; says how long it took.
    pub fn run(&mut self, sequence: &Sequence, load: Load) -> Result<Duration, Failure> {
        let start = Instant::now();
        let clients = self.clients.len();
        let share = |number: usize, of: usize| number * of / clients..(number + 1) * of / clients;
        let mut busy = 0;
        for client in &mut self.clients {
            let number = client.number;
            client.numbers =
                if load.keys < clients { number % load.keys..number % load.keys + 1 } else { share(number, load.keys) };
            client.due = share(number, load.count).len() * sequence.commands().len();
            (client.sent, client.answered) = (0, 0);
            busy += usize::from(client.due > 0);
            client.send(sequence, load.pipeline)?;
        }
        while busy > 0 {
            match self.poll.poll(&mut self.events, Some(PATIENCE)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => panic!("poll: {error}"),
                _ => {}
            }
            if self.events.is_empty() {
                return Err(Failure::Silence);
            }
            for event in &self.events {
                let client = &mut self.clients[event.token().0];
                let was_busy = client.is_busy();
                client.serve(sequence, load.pipeline, &mut self.buffer)?;
                busy -= usize::from(was_busy && !client.is_busy());
            }
        }
        Ok(start.elapsed())
    }
}

impl Client {
    fn is_busy(&self) -> bool {
        self.answered < self.due
    }

    /// Sends the next commands, once all before them are answered.
    fn send(&mut self, sequence: &Sequence, pipeline: usize) -> Result<(), Failure> {
        if self.sent == self.answered {
            let commands = sequence.commands();
            let until = self.due.min(self.sent + pipeline);
            for nth in self.sent..until {
                let (round, place) = (nth / commands.len(), nth % commands.len());
                let number = self.numbers.start + round % self.numbers.len();
                commands[place].render(Run { number, client: self.number }, &mut self.out);
            }
            self.sent = until;
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Err(Failure::Closed),
            }
        }
        self.out.drain(..sent);
        Ok(())
    }

    fn serve(&mut self, sequence: &Sequence, pipeline: usize, buffer: &mut [u8]) -> Result<(), Failure> {
        // Events come on edges: a read that did not fill the buffer has emptied the socket.
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(Failure::Closed),
                Ok(len) => {
                    self.take_in(sequence, &buffer[..len])?;
                    if len < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Err(Failure::Closed),
            }
        }
        self.send(sequence, pipeline)
    }

    fn take_in(&mut self, sequence: &Sequence, fresh: &[u8]) -> Result<(), Failure> {
        take_in(&mut self.rest, fresh, |reply| {
            let command = &sequence.commands()[self.answered % sequence.commands().len()];
            if !command.accepts(&reply) {
                return Err(Failure::Unexpected { command: command.to_string(), reply: reply.to_string() });
            }
            self.answered += 1;
            Ok(())
        })
    }
}
