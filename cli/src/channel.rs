//! Sends requests over one connection, which it opens where they belong, each within its time. Closes it after a
//! failure, since a late reply would be taken for that of the next request. Sends nothing twice by itself.

use crate::clock::Moment;
use crate::connection::{connect, converse};
use crate::error::Error;
use crate::servers::{Redirection, Servers, address_of};
use crate::sync::lock;
use redis::{Cmd, Connection, ConnectionInfo, RedisError, Value};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often one request is sent on, before a cluster counts as confused.
const REDIRECTIONS_MAX: usize = 5;

/// How long it may take to connect. A wait that lost its connection has to ask again in a third of its `QUEUE`.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// How many connections wait in a pool for the next request.
const IDLE_MAX: usize = 8;

/// After so long without use a connection may be gone, and is asked before it is trusted.
const TRUST: Duration = Duration::from_secs(1);

/// What went wrong with a request.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the server may have got the request.
    pub(crate) sent: bool,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

pub(crate) struct Channel {
    servers: Arc<Servers>,
    open: Option<Open>,
}

struct Open {
    server: ConnectionInfo,
    connection: Connection,
    last_used: Moment,
    /// A process that was forked must not speak on its parent's connections.
    pid: u32,
}

impl Channel {
    pub(crate) fn new(servers: &Arc<Servers>) -> Channel {
        Channel { servers: servers.clone(), open: None }
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
                self.servers.failed(server);
                Err(Failure { error: Error::Connection(error), sent: true })
            }
        }
    }

    fn connect(&self, server: &ConnectionInfo, deadline: Moment) -> Result<Open, RedisError> {
        match connect(server, deadline.min(Moment::now() + CONNECT_LIMIT)) {
            Ok(connection) => {
                let (last_used, pid) = (Moment::now(), std::process::id());
                Ok(Open { server: server.clone(), connection, last_used, pid })
            }
            Err(error) => {
                self.servers.failed(server);
                Err(error)
            }
        }
    }

    /// An error reply. A server that is no primary any more is not asked again.
    fn refused(&mut self, error: RedisError) -> Failure {
        if error.code() == Some("READONLY")
            && let Some(open) = self.open.take()
        {
            self.servers.failed(&open.server);
        }
        Failure { error: error.into(), sent: true }
    }

    /// Whether requests of this slot would go over the connection that is open.
    fn leads_to(&self, slot: u16) -> bool {
        let address = self.open.as_ref().filter(|open| open.is_ours()).map(|open| address_of(&open.server));
        // A pool of Sentinel's primary is emptied by READONLY and by failures.
        address.is_some_and(|address| ["", &address].contains(&self.servers.lane(slot).as_str()))
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

/// Connections that requests take in turn and give back. A request in flight has one of its own.
pub(crate) struct Pool {
    servers: Arc<Servers>,
    idle: Mutex<Vec<Channel>>,
}

/// Whether a request that got no reply may be sent once more, over a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Never: it may be done twice.
    Never,
    /// If the connection was an old one, which the server may have closed long ago.
    AfterIdle,
    /// In any case.
    Once,
}

impl Pool {
    pub(crate) fn new(servers: Arc<Servers>) -> Pool {
        Pool { servers, idle: Mutex::default() }
    }

    pub(crate) fn servers(&self) -> &Arc<Servers> {
        &self.servers
    }

    /// The reply, and whether the server may have got the request twice.
    pub(crate) fn ask(
        &self,
        slot: u16,
        request: &Cmd,
        limit: Duration,
        repeat: Repeat,
    ) -> Result<(Value, bool), Failure> {
        let deadline = Moment::now() + limit;
        let mut old = self.take(slot);
        if repeat == Repeat::Never {
            old = old.and_then(|channel| channel.if_alive(slot, deadline));
        }
        let was_idle = old.is_some();
        let mut channel = old.unwrap_or_else(|| Channel::new(&self.servers));
        let failure = match channel.ask(slot, request, deadline) {
            Err(failure) if matches!(failure.error, Error::Connection(_)) => failure,
            replied => {
                self.give_back(channel);
                return replied.map(|reply| (reply, false));
            }
        };
        let again = match repeat {
            Repeat::Never => false,
            Repeat::AfterIdle => was_idle && !is_timeout(&failure.error),
            Repeat::Once => true,
        };
        if !again {
            return Err(failure);
        }
        let mut channel = Channel::new(&self.servers);
        let replied = channel.ask(slot, request, Moment::now() + limit);
        self.give_back(channel);
        match replied {
            Ok(reply) => Ok((reply, failure.sent)),
            Err(second) => Err(Failure { sent: second.sent || failure.sent, ..second }),
        }
    }

    /// The same for a request that is answered null when the lock is not held. WRONGTYPE says so, too: something else
    /// lies at the key.
    pub(crate) fn ask_held(
        &self,
        slot: u16,
        request: &Cmd,
        limit: Duration,
        repeat: Repeat,
    ) -> Result<(Value, bool), Failure> {
        self.ask(slot, request, limit, repeat).or_else(|failure| match &failure.error {
            Error::Server(error) if error.code() == Some("WRONGTYPE") => Ok((Value::Nil, false)),
            _ => Err(failure),
        })
    }

    fn take(&self, slot: u16) -> Option<Channel> {
        let mut idle = lock(&self.idle);
        let at = idle.iter().rposition(|channel| channel.leads_to(slot))?;
        Some(idle.swap_remove(at))
    }

    fn give_back(&self, channel: Channel) {
        let mut idle = lock(&self.idle);
        if channel.open.is_some() {
            if idle.len() == IDLE_MAX {
                idle.remove(0);
            }
            idle.push(channel);
        }
    }
}

impl Channel {
    /// This one, if its connection was used just now or answers.
    fn if_alive(mut self, slot: u16, deadline: Moment) -> Option<Channel> {
        let fresh = self.open.as_ref().is_some_and(|open| open.last_used.elapsed() < TRUST);
        (fresh || self.exchange(slot, &[redis::cmd("PING")], deadline).is_ok()).then_some(self)
    }
}

/// Where a reply sends the request, if it does.
fn redirection(reply: &Value) -> Option<Redirection> {
    let Value::ServerError(error) = reply else { return None };
    let for_good = match error.code() {
        "MOVED" => true,
        "ASK" => false,
        _ => return None,
    };
    let (slot, to) = error.details()?.split_once(' ')?;
    Some(Redirection { slot: slot.parse().ok()?, to: to.to_owned(), for_good })
}

fn not_sent(error: RedisError) -> Failure {
    Failure { error: error.into(), sent: false }
}

fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Connection(error) if error.is_timeout())
}

fn too_many_redirections() -> RedisError {
    std::io::Error::other("the cluster redirects in a circle, or to nowhere").into()
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
