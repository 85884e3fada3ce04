//! Sends requests over one connection, which it opens where they belong, each within its time. Closes it after a
//! failure, since a late reply would be taken for that of the next request. Sends nothing twice by itself.

use crate::clock::Moment;
use crate::connection::{connect, converse, listen, no_answer};
use crate::error::Error;
use crate::servers::{Redirection, Servers};
use redis::{Cmd, Connection, ConnectionInfo, RedisError, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often one request is sent on, before a cluster counts as confused.
const REDIRECTIONS_MAX: usize = 5;

/// How long it may take to connect. A wait that lost its connection has to ask again in a third of its `QUEUE`.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// After so long without use a connection may be gone, and is asked before it is trusted.
const TRUST: Duration = Duration::from_secs(1);

/// How long it takes to see whether the server has closed a connection.
const GLANCE: Duration = Duration::from_millis(1);

/// How many connections there have been.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// What went wrong with a request.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the server may have got the request.
    pub(crate) sent: bool,
}

impl Failure {
    /// That no answer came in time, so that the request may still be done.
    pub(crate) fn silent(from: &str, limit: Duration) -> Failure {
        // What Sentinels lead to has no name here.
        let from = if from.is_empty() { "the primary" } else { from };
        Failure { error: Error::Connection(no_answer(from, limit)), sent: true }
    }

    /// True if the server may read the request yet, or has read it and did not say so.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.sent && matches!(self.error, Error::Connection(_))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

pub(crate) struct Channel {
    servers: Arc<Servers>,
    open: Option<Open>,
    partings: Vec<Parting>,
}

/// What is written behind a request that got no answer in time and was given up, before the connection is closed: so a
/// server that goes on later reads it after that request. Where the request is asked again it must not be written: it
/// would end what the second one gets.
#[derive(Clone)]
pub(crate) struct Parting {
    pub(crate) command: Cmd,
    pub(crate) is_given_up: Arc<AtomicBool>,
}

/// The request that tells whether a server takes the connection. Every user may send it: no ACL refuses HELLO.
pub(crate) const PROBE: &str = "HELLO";

struct Open {
    number: u64,
    server: ConnectionInfo,
    connection: Connection,
    last_used: Moment,
    /// A process that was forked must not speak on its parent's connections.
    pid: u32,
}

impl Channel {
    pub(crate) fn new(servers: &Arc<Servers>) -> Channel {
        Channel { servers: servers.clone(), open: None, partings: Vec::new() }
    }

    /// The reply to a request about keys of this slot. Follows redirections. An error reply is an error.
    pub(crate) fn ask(&mut self, slot: u16, request: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        let mut server = self.servers.locate(slot, deadline).map_err(not_sent)?;
        let mut asking = false;
        for _ in 0..REDIRECTIONS_MAX {
            let requests = if asking { vec![redis::cmd("ASKING"), request.clone()] } else { vec![request.clone()] };
            let mut replies = self.exchange_with(&server, &requests, deadline)?;
            let reply = replies.pop().unwrap_or(Value::Nil);
            let Some(redirection) = redirection(&reply) else {
                return reply.extract_error().map_err(|error| self.refused(error));
            };
            let Some(target) = self.servers.redirected(&server, &redirection) else { break };
            (server, asking) = (target, !redirection.for_good);
        }
        Err(Failure { error: Error::Connection(too_many_redirections()), sent: false })
    }

    /// The replies to requests that all belong to one server, in their order. An error reply is one of them.
    pub(crate) fn exchange(&mut self, slot: u16, requests: &[Cmd], deadline: Moment) -> Result<Vec<Value>, Failure> {
        let server = self.servers.locate(slot, deadline).map_err(not_sent)?;
        let replies = self.exchange_with(&server, requests, deadline)?;
        for reply in &replies {
            if let Some(redirection) = redirection(reply) {
                self.servers.redirected(&server, &redirection);
            }
            if let Err(error) = reply.clone().extract_error() {
                self.refused(error);
            }
        }
        Ok(replies)
    }

    fn exchange_with(&mut self, server: &ConnectionInfo, requests: &[Cmd], by: Moment) -> Result<Vec<Value>, Failure> {
        let mut open = match self.open.take() {
            Some(open) if open.is_to(server) => open,
            _ => self.connect(server, by).map_err(not_sent)?,
        };
        match converse(&mut open.connection, server, requests, by) {
            Ok(replies) => {
                open.last_used = Moment::now();
                self.open = Some(open);
                Ok(replies)
            }
            Err(error) => {
                for parting in self.partings.iter().filter(|parting| parting.is_given_up.load(Ordering::Relaxed)) {
                    // It is sent over another connection as well.
                    drop(open.connection.send_packed_command(&parting.command.get_packed_command()));
                }
                self.servers.failed(server);
                Err(Failure { error: Error::Connection(error), sent: true })
            }
        }
    }

    fn connect(&self, server: &ConnectionInfo, deadline: Moment) -> Result<Open, RedisError> {
        match connect(server, deadline.min(Moment::now() + CONNECT_LIMIT)) {
            Ok(connection) => {
                let number = OPENED.fetch_add(1, Ordering::Relaxed);
                let (last_used, pid) = (Moment::now(), std::process::id());
                Ok(Open { number, server: server.clone(), connection, last_used, pid })
            }
            Err(error) => {
                self.servers.failed(server);
                Err(error)
            }
        }
    }

    /// An error reply. A server that is no primary any more is not asked again, and one that is full has closed the
    /// connection.
    fn refused(&mut self, error: RedisError) -> Failure {
        if error.code() == Some("READONLY")
            && let Some(open) = self.open.take()
        {
            self.servers.failed(&open.server);
        } else if is_full(&error) {
            self.open = None;
        }
        Failure { error: error.into(), sent: true }
    }

    /// What is written behind the next requests if they get no answer in time.
    pub(crate) fn part_with(&mut self, partings: Vec<Parting>) {
        self.partings = partings;
    }

    /// Opens the connection for this slot, unless it is open. Sees that the server takes it: one that is full, or wants
    /// a password, says so to the first request only.
    pub(crate) fn open(&mut self, slot: u16, deadline: Moment) -> Result<(), Failure> {
        if self.is_open() {
            return Ok(());
        }
        let replies = self.exchange(slot, &[redis::cmd(PROBE)], deadline)?;
        match replies.into_iter().next().map(Value::extract_error) {
            Some(Err(error)) if is_full(&error) || error.code() == Some("NOAUTH") => {
                self.open = None;
                Err(not_sent(error))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is a connection, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.number().is_some()
    }

    /// The number of the connection, which no other one has; None if there is none, as far as is known.
    pub(crate) fn number(&self) -> Option<u64> {
        self.open.as_ref().filter(|open| open.is_ours()).map(|open| open.number)
    }

    /// Closes the connection if the server has closed it.
    pub(crate) fn look(&mut self) {
        if self.open.as_mut().is_some_and(|open| listen(&mut open.connection, GLANCE).is_err()) {
            self.open = None;
        }
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Closes the connection if it was not used just now and does not answer.
    pub(crate) fn test(&mut self, slot: u16, deadline: Moment) {
        let is_old = self.open.as_ref().is_some_and(|open| open.last_used.elapsed() >= TRUST);
        if is_old && self.exchange(slot, &[redis::cmd(PROBE)], deadline).is_err() {
            self.open = None;
        }
    }
}

impl Open {
    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    fn is_to(&self, server: &ConnectionInfo) -> bool {
        self.is_ours() && self.server.addr() == server.addr()
    }
}

/// Where a reply sends the request, if it does.
fn redirection(reply: &Value) -> Option<Redirection> {
    let Value::ServerError(error) = reply else { return None };
    redirection_to(error.code(), error.details()?)
}

/// Where an error of this code and text sends the request, if it does.
pub(crate) fn redirection_to(code: &str, text: &str) -> Option<Redirection> {
    let for_good = match code {
        "MOVED" => true,
        "ASK" => false,
        _ => return None,
    };
    let (slot, to) = text.split_once(' ')?;
    Some(Redirection { slot: slot.parse().ok()?, to: to.to_owned(), for_good })
}

fn not_sent(error: RedisError) -> Failure {
    Failure { error: error.into(), sent: false }
}

/// Whether the server has no connection left to give.
fn is_full(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.starts_with("max number of clients"))
}

fn too_many_redirections() -> RedisError {
    std::io::Error::other("the cluster redirects in a cycle, or to nowhere").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_told_from_other_replies() {
        let reply = |text: &str| redis::parse_redis_value(text.as_bytes()).expect("a reply");
        let to = |to: &str, for_good| Some(Redirection { slot: 3999, to: to.to_owned(), for_good });
        assert_eq!(redirection(&reply("-MOVED 3999 127.0.0.1:6381\r\n")), to("127.0.0.1:6381", true));
        assert_eq!(redirection(&reply("-ASK 3999 :6381\r\n")), to(":6381", false));
        assert_eq!(redirection(&reply("-ERR no such key\r\n")), None);
        assert_eq!(redirection(&reply(":5\r\n")), None);
    }
}
