//! Many clients from one thread: real sockets, one poll over all of them, no thread per client and no allocation per
//! reply. So the figures measure the server. Knows nothing of locks: a `Workload` says what a client sends next.

use crate::tally::Tally;
use bench::driver::connect;
use bench::reply::{self, Reply};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How many sockets are read before anything else is polled.
const EVENTS: usize = 32;
const BUFFER_BYTES: usize = 64 * 1024;
/// Nothing that is waited for here takes as long on a server that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the clients do. Connections are counted from 0.
pub(crate) trait Workload {
    fn start(&mut self, lines: &mut Lines);
    fn reply(&mut self, conn: usize, reply: &Reply<'_>, now: Instant, lines: &mut Lines);
    /// The pause of a connection is over.
    fn resume(&mut self, conn: usize, lines: &mut Lines);
    fn tally(&mut self) -> &mut Tally;
}

/// The connections, to send on.
pub(crate) struct Lines {
    streams: Vec<TcpStream>,
    /// The beginning of a reply that has not come whole.
    rests: Vec<Vec<u8>>,
    /// In the order in which they end: all pauses of a workload are equally long.
    pauses: VecDeque<(Instant, usize)>,
    pub(crate) sent: u64,
}

impl Lines {
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// A client has at most a request or two under way: they always fit into the socket's buffer.
    pub(crate) fn send(&mut self, conn: usize, request: &[u8]) {
        self.streams[conn].write_all(request).expect("a request fits into the socket's buffer");
        self.sent += 1;
    }

    pub(crate) fn pause(&mut self, conn: usize, until: Instant) {
        self.pauses.push_back((until, conn));
    }
}

pub(crate) struct Driver {
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    pub(crate) lines: Lines,
}

impl Driver {
    pub(crate) fn connect(address: SocketAddr, count: usize) -> Driver {
        let poll = Poll::new().unwrap();
        let streams = (0..count).map(|conn| connect(address, &poll, conn, Interest::READABLE).unwrap()).collect();
        let lines = Lines { streams, rests: vec![Vec::new(); count], pauses: VecDeque::new(), sent: 0 };
        Driver { poll, events: Events::with_capacity(EVENTS), buffer: vec![0; BUFFER_BYTES], lines }
    }

    /// Serves what has come; waits for it no longer than `wait`.
    pub(crate) fn turn(&mut self, workload: &mut impl Workload, wait: Duration) {
        let pause = self.lines.pauses.front().map_or(wait, |(due, _)| due.saturating_duration_since(Instant::now()));
        match self.poll.poll(&mut self.events, Some(wait.min(pause))) {
            Err(error) if error.kind() != ErrorKind::Interrupted => panic!("poll: {error}"),
            _ => {}
        }
        for event in &self.events {
            let conn = event.token().0;
            // Events come on edges: a read that did not fill the buffer has emptied the socket.
            loop {
                match self.lines.streams[conn].read(&mut self.buffer) {
                    Ok(0) => panic!("the server closed a connection"),
                    Ok(len) => {
                        take_in(workload, conn, &self.buffer[..len], &mut self.lines);
                        if len < self.buffer.len() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("read: {error}"),
                }
            }
        }
        while let Some(&(due, conn)) = self.lines.pauses.front()
            && due <= Instant::now()
        {
            self.lines.pauses.pop_front();
            workload.resume(conn, &mut self.lines);
        }
    }

    pub(crate) fn run(&mut self, workload: &mut impl Workload, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.turn(workload, left);
        }
    }

    pub(crate) fn run_until<W: Workload>(&mut self, workload: &mut W, done: impl Fn(&W) -> bool) {
        let start = Instant::now();
        while !done(workload) {
            assert!(start.elapsed() < PATIENCE, "a client was not answered");
            self.turn(workload, PATIENCE);
        }
    }
}

fn take_in(workload: &mut impl Workload, conn: usize, fresh: &[u8], lines: &mut Lines) {
    let now = Instant::now();
    let mut rest = std::mem::take(&mut lines.rests[conn]);
    let taken: Result<(), String> = reply::take_in(&mut rest, fresh, |reply| match reply {
        Reply::Error(text) => Err(String::from_utf8_lossy(text).into_owned()),
        reply => {
            workload.reply(conn, &reply, now, lines);
            Ok(())
        }
    });
    taken.unwrap_or_else(|error| panic!("the server answers {error}"));
    lines.rests[conn] = rest;
}
