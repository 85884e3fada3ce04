//! The servers one by one, for operators: those that the user named, or the primaries of a cluster.

use crate::args::Servers;
use crate::backend::{addresses, sentinels};
use crate::exit::{self, say};
use crate::reply::json;
use redis_lock_client::redis::{Cmd, ConnectionAddr, ConnectionInfo, ProtocolVersion, Value, cmd};
use redis_lock_client::{Client, Error};
use serde_json::Value as Json;
use std::panic::resume_unwind;
use std::thread;

/// The most holders and waiters that a server shows.
pub(crate) const MOST: u32 = 4096;

/// One server, or several that act as one.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// The database that it is asked about.
    pub(crate) db: i64,
    /// None for the primary that Sentinels know.
    address: Option<ConnectionInfo>,
    /// For requests about keys, which may be sent on to other nodes of a cluster.
    client: Client,
    /// For requests to this server and no other.
    own: Client,
}

impl Node {
    fn at(address: ConnectionInfo) -> Result<Node, Error> {
        let (client, own) = (Client::open(address.clone())?, Client::open(address.clone())?);
        Ok(Node {
            name: address.addr().to_string(),
            db: address.redis_settings().db(),
            address: Some(address),
            client,
            own,
        })
    }

    /// The reply about a key, from the server that has it.
    pub(crate) fn ask_about(&self, key: &[u8], command: &Cmd) -> Result<Value, Error> {
        self.client.ask(key, command)
    }

    /// The reply of this server.
    pub(crate) fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        self.own.ask("", command)
    }

    /// The replies of this server, which gets the requests in one go.
    pub(crate) fn ask_all(&self, commands: Vec<Cmd>) -> Result<Vec<Result<Value, Error>>, Error> {
        let replies = self.own.ask_all("", commands)?;
        Ok(replies.into_iter().map(|reply| reply.extract_error().map_err(Error::from)).collect())
    }

    /// The replies about a key, from the server that has it.
    pub(crate) fn ask_all_about(&self, key: &[u8], commands: Vec<Cmd>) -> Result<Vec<Value>, Error> {
        let replies = self.client.ask_all(key, commands)?;
        replies.into_iter().map(|reply| reply.extract_error().map_err(Error::from)).collect()
    }
}

/// The servers that the user named; of a cluster and of Sentinels one that stands for all.
pub(crate) fn named(servers: &Servers) -> Result<Vec<Node>, Error> {
    let addresses = addresses(servers)?;
    let Some(name) = &servers.sentinel else { return addresses.into_iter().map(in_resp3).map(Node::at).collect() };
    let settings = in_resp3(addresses[0].clone()).redis_settings().clone();
    let client = Client::sentinel(addresses.iter().flat_map(sentinels), name, settings)?;
    Ok(vec![Node {
        name: name.clone(),
        db: addresses[0].redis_settings().db(),
        address: None,
        own: client.clone(),
        client,
    }])
}

/// The same, but of a cluster all of its primaries.
pub(crate) fn all(servers: &Servers) -> Result<Vec<Node>, Error> {
    let nodes = named(servers)?;
    let [Node { address: Some(address), own, .. }] = &nodes[..] else { return Ok(nodes) };
    // Every user may ask this.
    let hello = json(own.ask("", &cmd("HELLO"))?);
    if hello["mode"] != "cluster" {
        return Ok(nodes);
    }
    let slots = json(own.ask("", cmd("CLUSTER").arg("SLOTS"))?);
    let mut primaries: Vec<Node> = Vec::new();
    for range in slots.as_array().into_iter().flatten() {
        let (host, port) = (range[2][0].as_str().unwrap_or_default(), range[2][1].as_u64().unwrap_or_default());
        let primary = Node::at(beside(address, host, u16::try_from(port).unwrap_or_default()))?;
        if primaries.iter().all(|known| known.name != primary.name) {
            primaries.push(primary);
        }
    }
    Ok(primaries)
}

/// A node that another one names, with the settings for that one.
fn beside(asked: &ConnectionInfo, named: &str, port: u16) -> ConnectionInfo {
    // A cluster that does not know the host of a node names none: it is the host that was asked.
    let host = |own: &str| if matches!(named, "" | "?") { own.to_owned() } else { named.to_owned() };
    let address = match asked.addr() {
        ConnectionAddr::TcpTls { host: own, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: host(own), port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        ConnectionAddr::Tcp(own, _) => ConnectionAddr::Tcp(host(own), port),
        _ => ConnectionAddr::Tcp(host("127.0.0.1"), port),
    };
    asked.clone().set_addr(address)
}

/// In this protocol a map is no list.
fn in_resp3(address: ConnectionInfo) -> ConnectionInfo {
    let settings = address.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    address.set_redis_settings(settings)
}

/// What all of these servers say, which are asked at once.
pub(crate) fn at_once<T: Send>(nodes: &[Node], ask: impl Fn(&Node) -> T + Sync) -> Vec<T> {
    let ask = &ask;
    thread::scope(|scope| {
        let asked: Vec<_> = nodes.iter().map(|node| scope.spawn(move || ask(node))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Asks each server, and says which do not answer. The exit code.
pub(crate) fn each(nodes: &[Node], mut ask: impl FnMut(&Node) -> Result<(), Error>) -> u8 {
    let mut code = 0;
    for node in nodes {
        if let Err(error) = ask(node) {
            code = fail(if nodes.len() > 1 { &node.name } else { "" }, &error);
        }
    }
    code
}

/// Says what is wrong with a server, and gives the exit code.
pub(crate) fn fail(server: &str, error: &Error) -> u8 {
    let (code, why) = why(server, error);
    say(why);
    code
}

/// The exit code for what is wrong with a server, and a text for it.
pub(crate) fn why(server: &str, error: &Error) -> (u8, String) {
    let (code, why) = exit::of_error(error);
    // What went wrong with a connection names its server.
    if server.is_empty() || why.contains(server) { (code, why) } else { (code, format!("{server}: {why}")) }
}

/// Which holders and waiters a server is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Whose<'a> {
    /// So many of each at most.
    First(u32),
    /// This holder alone.
    Owner(&'a str),
}

/// What a server knows of a lock; None of a free one.
pub(crate) fn look(node: &Node, key: &[u8], whose: Whose<'_>) -> Result<Option<Json>, Error> {
    let lock = json(node.ask_about(key, &info(key, whose))?);
    Ok((!lock.is_null()).then(|| with_place(lock, node, key)))
}

/// The same of locks that this server has, with the first holder and waiter. It gets all requests in one go. A lock
/// that may not be seen is None, and the first such refusal comes with it.
pub(crate) fn look_all(node: &Node, keys: &[Vec<u8>]) -> Result<(Vec<Option<Json>>, Option<Error>), Error> {
    let replies = node.ask_all(keys.iter().map(|key| info(key, Whose::First(1))).collect())?;
    let mut refusal = None;
    let found = keys.iter().zip(replies).map(|(key, reply)| {
        let lock = json(reply.map_err(|error| refusal.get_or_insert(error)).ok()?);
        (!lock.is_null()).then(|| with_place(lock, node, key))
    });
    Ok((found.collect(), refusal))
}

fn info(key: &[u8], whose: Whose<'_>) -> Cmd {
    let mut request = cmd("LOCK.INFO").arg(key).take();
    match whose {
        Whose::First(count) => request.arg("COUNT").arg(count),
        Whose::Owner(owner) => request.arg("OWNER").arg(owner),
    };
    request
}

/// The same, with where that is.
pub(crate) fn with_place(mut lock: Json, node: &Node, key: &[u8]) -> Json {
    lock["server"] = node.name.clone().into();
    lock["key"] = String::from_utf8_lossy(key).into();
    lock
}
