//! Where the server is that answers for a key: the one server, the primary that Sentinels name, or the node of a
//! cluster, as its redirections tell. Remembers what it learned, and forgets what failed. Asks only Sentinels.

use crate::clock::Moment;
use crate::connection::{connect, converse};
use crate::sync::lock;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, Value};
use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

/// How long a Sentinel has to answer before the next one is asked, and the share of the time that is left.
const SENTINEL_LIMIT: Duration = Duration::from_millis(500);
const SENTINEL_SHARE: u32 = 4;

/// How long a Sentinel's word counts. An old primary that was not told of its end would go on to extend leases that
/// nobody else knows of.
const SENTINEL_TRUST: Duration = Duration::from_secs(1);

pub(crate) struct Servers {
    source: Source,
    known: Mutex<Known>,
}

/// What a node says about a slot that it does not serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(crate) slot: u16,
    /// `host:port`, or `:port` for the host of that node.
    pub(crate) to: String,
    /// MOVED; ASK is for one request.
    pub(crate) for_good: bool,
}

enum Source {
    /// One server, or nodes of one cluster.
    Nodes,
    Sentinels {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        settings: RedisConnectionInfo,
    },
}

#[derive(Default)]
struct Known {
    /// Those that were named, and those that redirections named since.
    nodes: Vec<ConnectionInfo>,
    /// Which of them is asked where nothing better is known.
    current: usize,
    /// Which Sentinel answered last, and when they were asked.
    current_sentinel: usize,
    asked: Option<Moment>,
    /// The nodes that redirections named, by slot. Empty outside of a cluster.
    slots: HashMap<u16, ConnectionInfo>,
}

impl Servers {
    /// One server, or nodes of one cluster: at least one.
    pub(crate) fn nodes(nodes: Vec<ConnectionInfo>) -> Servers {
        Servers { source: Source::Nodes, known: Mutex::new(Known { nodes, ..Known::default() }) }
    }

    /// The primary that Sentinels know by this name.
    pub(crate) fn sentinels(sentinels: Vec<ConnectionInfo>, name: &str, settings: RedisConnectionInfo) -> Servers {
        Servers { source: Source::Sentinels { sentinels, name: name.to_owned(), settings }, known: Mutex::default() }
    }

    /// The server to ask about keys of this slot.
    pub(crate) fn locate(&self, slot: u16, deadline: Moment) -> Result<ConnectionInfo, RedisError> {
        let found = {
            let known = lock(&self.known);
            let (found, asked) = (known.server_of(slot).cloned(), known.asked);
            match (&self.source, found) {
                (Source::Nodes, Some(found)) => return Ok(found),
                (_, Some(found)) if asked.is_some_and(|asked| asked.elapsed() < SENTINEL_TRUST) => return Ok(found),
                (_, found) => found,
            }
        };
        let answer = self.ask_sentinels(deadline);
        let mut known = lock(&self.known);
        known.asked = Some(Moment::now());
        match (answer, found) {
            (Ok(primary), _) => {
                known.nodes = vec![primary.clone()];
                Ok(primary)
            }
            // Without Sentinels there is no failover either.
            (Err(_), Some(found)) => Ok(found),
            (Err(error), None) => Err(error),
        }
    }

    /// The address that requests about this slot go to, as far as it is known: those with one address can share a
    /// connection.
    pub(crate) fn lane(&self, slot: u16) -> String {
        match &self.source {
            Source::Nodes => lock(&self.known).server_of(slot).map(address_of).unwrap_or_default(),
            Source::Sentinels { .. } => String::new(),
        }
    }

    /// The server that a node names. Remembered if it is for good.
    pub(crate) fn redirected(&self, by: &ConnectionInfo, redirection: &Redirection) -> Option<ConnectionInfo> {
        let target = at_address(by, &redirection.to)?;
        if redirection.for_good {
            let mut known = lock(&self.known);
            if !known.nodes.iter().any(|node| node.addr() == target.addr()) {
                known.nodes.push(target.clone());
            }
            known.slots.insert(redirection.slot, target.clone());
        }
        Some(target)
    }

    /// This server did not answer, or is no primary: another one is asked next, if there is one.
    pub(crate) fn failed(&self, at: &ConnectionInfo) {
        let mut known = lock(&self.known);
        known.slots.retain(|_, server| server.addr() != at.addr());
        match self.source {
            Source::Sentinels { .. } => known.nodes.clear(),
            Source::Nodes if known.nodes.get(known.current).is_some_and(|node| node.addr() == at.addr()) => {
                known.current = (known.current + 1) % known.nodes.len();
            }
            Source::Nodes => {}
        }
    }

    fn ask_sentinels(&self, deadline: Moment) -> Result<ConnectionInfo, RedisError> {
        let Source::Sentinels { sentinels, name, settings } = &self.source else {
            return Err(RedisError::from((ErrorKind::InvalidClientConfig, "no address of a server is given")));
        };
        let first = lock(&self.known).current_sentinel;
        let mut failure = None;
        for number in (0..sentinels.len()).map(|number| (first + number) % sentinels.len()) {
            let sentinel = &sentinels[number];
            match ask_sentinel(sentinel, name, deadline) {
                Ok((host, port)) => {
                    lock(&self.known).current_sentinel = number;
                    let server = at_address(sentinel, &format!("{host}:{port}"));
                    return server.map(|server| server.set_redis_settings(settings.clone())).ok_or_else(|| {
                        (ErrorKind::InvalidClientConfig, "a Sentinel is not asked over a Unix socket").into()
                    });
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| (ErrorKind::EmptySentinelList, "no address of a Sentinel is given").into()))
    }
}

impl Known {
    fn server_of(&self, slot: u16) -> Option<&ConnectionInfo> {
        self.slots.get(&slot).or_else(|| self.nodes.get(self.current))
    }
}

/// The server's name for whoever counts connections.
pub(crate) fn address_of(server: &ConnectionInfo) -> String {
    server.addr().to_string()
}

fn ask_sentinel(sentinel: &ConnectionInfo, name: &str, deadline: Moment) -> Result<(String, u16), RedisError> {
    let deadline = deadline.min(Moment::now() + SENTINEL_LIMIT.min(deadline.left() / SENTINEL_SHARE));
    let mut connection = connect(sentinel, deadline)?;
    let request = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).take();
    let mut replies = converse(&mut connection, sentinel, &[request], deadline)?;
    let reply = replies.pop().unwrap_or(Value::Nil).extract_error().map_err(|error| {
        let is_unknown = error.detail().is_some_and(|text| text.starts_with("unknown command"));
        // It will not become one.
        let no_sentinel = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is no Sentinel", sentinel.addr()));
        if is_unknown { no_sentinel().into() } else { error }
    })?;
    let address = redis::from_redis_value::<Option<(String, u16)>>(reply)?;
    address.ok_or_else(|| io::Error::other(format!("{} knows no primary {name}", sentinel.addr())).into())
}

/// The same settings at another address; None where there are no addresses.
fn at_address(server: &ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (named, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    // A cluster that does not know a node's host names none: it is the host that was asked.
    let host = |own: &str| if matches!(named, "" | "?") { own.to_owned() } else { named.to_owned() };
    let addr = match server.addr() {
        ConnectionAddr::Tcp(own, _) => ConnectionAddr::Tcp(host(own), port),
        ConnectionAddr::TcpTls { host: own, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: host(own), port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => return None,
    };
    Some(server.clone().set_addr(addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> ConnectionInfo {
        url.parse().expect("a URL")
    }

    fn located(servers: &Servers, slot: u16) -> String {
        address_of(&servers.locate(slot, Moment::now()).expect("known"))
    }

    #[test]
    fn a_redirection_is_remembered_for_its_slot_until_that_node_fails() {
        let servers = Servers::nodes(vec![server("redis://:secret@one:1/0")]);
        assert_eq!(located(&servers, 7), "one:1");
        let one = servers.locate(7, Moment::now()).expect("known");
        let to = |slot, to: &str, for_good| Redirection { slot, to: to.to_owned(), for_good };
        let two = servers.redirected(&one, &to(7, "two:2", true)).expect("an address");
        assert_eq!(two.redis_settings().password(), Some("secret"));
        assert_eq!([located(&servers, 7), located(&servers, 8)], ["two:2", "one:1"]);
        assert_eq!([servers.lane(7), servers.lane(8)], ["two:2", "one:1"]);
        // ASK is for one request.
        assert!(servers.redirected(&one, &to(8, "three:3", false)).is_some());
        assert_eq!(located(&servers, 8), "one:1");
        servers.failed(&two);
        assert_eq!(located(&servers, 7), "one:1");
        // The first is gone: what redirections named is asked instead.
        servers.failed(&one);
        assert_eq!(located(&servers, 7), "two:2");
        servers.failed(&two);
        assert_eq!(located(&servers, 7), "one:1");
    }

    #[test]
    fn a_redirection_keeps_all_settings_but_the_address() {
        let plain = server("redis://user:secret@one:1/?protocol=resp3");
        let target = at_address(&plain, "10.0.0.1:2").expect("an address");
        assert_eq!(address_of(&target), "10.0.0.1:2");
        assert_eq!(target.redis_settings().username(), Some("user"));
        assert_eq!(target.redis_settings().protocol(), plain.redis_settings().protocol());
        assert_eq!(address_of(&at_address(&plain, ":2").expect("its own host")), "one:2");
        assert_eq!(address_of(&at_address(&plain, "?:2").expect("its own host")), "one:2");
        assert_eq!(at_address(&plain, "::1:2").map(|server| server.addr().to_string()).as_deref(), Some("::1:2"));
        assert!(at_address(&plain, "nonsense").is_none() && at_address(&plain, "host:port").is_none());
        assert!(at_address(&server("unix:///run/redis.sock"), "host:1").is_none());
        #[cfg(feature = "tls")]
        assert!(matches!(
            at_address(&server("rediss://one:1"), "two:2").expect("an address").addr(),
            ConnectionAddr::TcpTls { insecure: false, .. }
        ));
    }
}
