//! The client of the servers that the user named. Connects to nothing.

use crate::args::Servers;
use redis_lock_client::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, parse_redis_url};
use redis_lock_client::{Client, Error, Lock, Quorum};
use std::collections::BTreeSet;
use std::time::Duration;

const DEFAULT: &str = "redis://127.0.0.1:6379";

/// The client for these servers: `$REDIS_LOCK_URL` where none is named, `$REDISCLI_AUTH` where no password is.
pub(crate) fn client(servers: &Servers) -> Result<Backend, Error> {
    let addresses = addresses(servers)?;
    match (&servers.sentinel, &addresses[..]) {
        (Some(name), [first, ..]) => {
            let settings = first.redis_settings().clone();
            Client::sentinel(addresses.iter().flat_map(sentinels), name, settings).map(Backend::One)
        }
        (None, [one]) => Client::open(one.clone()).map(Backend::One),
        _ => Quorum::open(addresses).map(Backend::Quorum),
    }
}

/// The URLs that the user named: none, if that is left to this program.
fn named(servers: &Servers) -> Result<Vec<String>, Error> {
    match variable("REDIS_LOCK_URL")?.filter(|_| servers.urls.is_empty()) {
        None => Ok(servers.urls.clone()),
        Some(urls) => match urls.split([',', ' ']).filter(|url| !url.is_empty()).map(str::to_owned).collect() {
            urls if Vec::is_empty(&urls) => Err(Error::Refused("$REDIS_LOCK_URL names no server".to_owned())),
            urls => Ok(urls),
        },
    }
}

fn urls(servers: &Servers) -> Result<Vec<String>, Error> {
    let named = named(servers)?;
    Ok(if named.is_empty() { vec![DEFAULT.to_owned()] } else { named })
}

/// The servers that were named, for others: without passwords.
pub(crate) fn told(servers: &Servers) -> Result<Servers, Error> {
    let urls = urls(servers)?;
    let told = |url: &String| {
        let mut told = parse_redis_url(url)?;
        // The path of a socket has none.
        let _: Result<(), ()> = told.set_password(None);
        if told.query().is_some() {
            let kept: Vec<_> = told.query_pairs().into_owned().filter(|(name, _)| name != "pass").collect();
            told.query_pairs_mut().clear().extend_pairs(kept);
        }
        Some(told.to_string())
    };
    Ok(Servers { urls: urls.iter().filter_map(told).collect(), sentinel: servers.sentinel.clone() })
}

/// Those of a token where the user named none. Refuses others.
pub(crate) fn of_token(asked: &Servers, token: &Servers) -> Result<Servers, Error> {
    let mut servers = asked.clone();
    if named(asked)?.is_empty() {
        servers = Servers { sentinel: asked.sentinel.clone().or_else(|| token.sentinel.clone()), ..token.clone() };
    }
    let places = |servers: &Servers| {
        let place = |address: ConnectionInfo| (address.addr().to_string(), address.redis_settings().db());
        Ok::<BTreeSet<_>, Error>(addresses(servers)?.into_iter().map(place).collect())
    };
    if places(&servers)? == places(token)? && servers.sentinel == token.sentinel {
        return Ok(servers);
    }
    let of = token.sentinel.iter().chain(&token.urls).map(String::as_str).collect::<Vec<_>>().join(" ");
    Err(Error::Refused(format!("the token is of {of}: name these servers, or none")))
}

/// The addresses that the user named, one at least.
pub(crate) fn addresses(servers: &Servers) -> Result<Vec<ConnectionInfo>, Error> {
    let source = if servers.urls.is_empty() { "$REDIS_LOCK_URL" } else { "--url" };
    let urls = urls(servers)?;
    let addresses = urls.iter().map(|url| address(url, source)).collect::<Result<Vec<_>, _>>()?;
    // A Sentinel names the server by host and port, so it has to be reached by these, too.
    let is_socket = |address: &ConnectionInfo| matches!(address.addr(), ConnectionAddr::Unix(_));
    if servers.sentinel.is_some() && addresses.iter().any(is_socket) {
        return Err(Error::Refused("a Sentinel is not asked over a Unix socket".to_owned()));
    }
    Ok(addresses)
}

/// What keeps the locks.
pub(crate) enum Backend {
    /// One server, or several that act as one.
    One(Client),
    /// Several servers, of which most must agree.
    Quorum(Quorum),
}

impl Backend {
    pub(crate) fn timeout(self, timeout: Duration) -> Backend {
        match self {
            Backend::One(client) => Backend::One(client.timeout(timeout)),
            Backend::Quorum(quorum) => Backend::Quorum(quorum.timeout(timeout)),
        }
    }

    pub(crate) fn key(&self, key: &[u8]) -> Lock {
        match self {
            Backend::One(client) => client.key(key),
            Backend::Quorum(quorum) => quorum.key(key),
        }
    }

    pub(crate) fn check(&self, key: &[u8], owner: &str, fence: u64) -> Result<bool, Error> {
        match self {
            Backend::One(client) => client.check(key, owner, fence),
            Backend::Quorum(quorum) => quorum.check(key, owner, fence),
        }
    }

    /// Waits until all is given back, so long at most.
    pub(crate) fn wait_released(&self, timeout: Duration) -> bool {
        match self {
            Backend::One(client) => client.wait_released(timeout),
            Backend::Quorum(quorum) => quorum.wait_released(timeout),
        }
    }

    /// Those that hold the lock, by owner, and their notes.
    pub(crate) fn holders(&self, key: &[u8]) -> Result<Vec<(String, Option<String>)>, Error> {
        match self {
            Backend::One(client) => client.holders(key),
            Backend::Quorum(quorum) => quorum.holders(key),
        }
    }
}

/// A variable of the environment; None if it is empty or not there.
fn variable(name: &str) -> Result<Option<String>, Error> {
    let text = std::env::var_os(name).filter(|text| !text.is_empty());
    text.map(|text| text.into_string().map_err(|_| Error::Refused(format!("${name} is not UTF-8")))).transpose()
}

fn address(url: &str, source: &str) -> Result<ConnectionInfo, Error> {
    // Without the URL in the text: it may have a password.
    let refused = || Error::Refused(format!("{source} must be redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH"));
    let address = url.into_connection_info().map_err(|_| refused())?;
    let settings = address.redis_settings();
    if settings.password().is_some() {
        return Ok(address);
    }
    // A user that is named and has no password is let in as that user, or not at all: never as the default one.
    let password = variable("REDISCLI_AUTH")?.or_else(|| settings.username().map(|_| String::new()));
    let Some(password) = password else { return Ok(address) };
    let settings = settings.clone().set_password(password);
    Ok(address.set_redis_settings(settings))
}

/// How a Sentinel is asked: it may have the password of the server, or none. It has no databases.
pub(crate) fn sentinels(address: &ConnectionInfo) -> Vec<ConnectionInfo> {
    let named = address.redis_settings().clone().set_db(0);
    let nameless = redis_lock_client::redis::RedisConnectionInfo::default();
    let mut ways = vec![address.clone().set_redis_settings(nameless)];
    if named.password().is_some() {
        ways.insert(0, address.clone().set_redis_settings(named));
    }
    ways
}
