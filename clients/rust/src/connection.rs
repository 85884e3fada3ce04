//! One connection: opened, logged in, spoken over, each step within its time. What goes wrong names the server.

use crate::clock::Moment;
use crate::error::io_kind;
use redis::{
    Cmd, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError, Value,
};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

/// Connects and logs in, within the time that is left.
pub(crate) fn connect(server: &ConnectionInfo, deadline: Moment) -> Result<Connection, RedisError> {
    choose_cryptography(server);
    let limit = time_left(deadline)?;
    // The library would take its time limit for each of the requests with which it begins. One of those says what it
    // is, which takes a right that a user of the server may lack.
    let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
    let opened = open(&server.clone().set_redis_settings(nobody), deadline);
    let mut connection = opened.map_err(|error| named(server, error, limit))?;
    let login = login(server.redis_settings());
    if !login.is_empty() {
        for reply in converse(&mut connection, server, &login, deadline)? {
            reply.extract_error()?;
        }
    }
    Ok(connection)
}

/// Tries one address of the server's name after the other, each in its share of the time: the first may lead nowhere.
fn open(server: &ConnectionInfo, deadline: Moment) -> Result<Connection, RedisError> {
    let mut ways = ways_to(server)?;
    loop {
        let share = time_left(deadline)? / u32::try_from(ways.len()).unwrap_or(u32::MAX).max(1);
        let way = if ways.is_empty() { server.clone() } else { ways.remove(0) };
        match redis::Client::open(way)?.get_connection_with_timeout(share) {
            Err(_) if !ways.is_empty() => {}
            opened => return opened,
        }
    }
}

/// The server by each of its addresses, if its name has several. With TLS the name is needed for the certificate.
fn ways_to(server: &ConnectionInfo) -> Result<Vec<ConnectionInfo>, RedisError> {
    let ConnectionAddr::Tcp(host, port) = server.addr() else { return Ok(Vec::new()) };
    let addresses: Vec<IpAddr> = (host.as_str(), *port).to_socket_addrs()?.map(|address| address.ip()).collect();
    let way = |address: &IpAddr| server.clone().set_addr(ConnectionAddr::Tcp(address.to_string(), *port));
    Ok(if addresses.len() > 1 { addresses.iter().map(way).collect() } else { Vec::new() })
}

/// The requests with which a connection begins.
fn login(settings: &RedisConnectionInfo) -> Vec<Cmd> {
    let mut requests = Vec::new();
    let user = settings.username().filter(|user| !user.is_empty());
    if settings.protocol() != ProtocolVersion::RESP2 {
        let mut hello = redis::cmd("HELLO").arg(3).take();
        if let Some(password) = settings.password() {
            hello.arg("AUTH").arg(user.unwrap_or("default")).arg(password);
        }
        requests.push(hello);
    } else if let Some(password) = settings.password() {
        requests.push(redis::cmd("AUTH").arg(user).arg(password).take());
    }
    if settings.db() != 0 {
        requests.push(redis::cmd("SELECT").arg(settings.db()).take());
    }
    requests
}

/// The replies to requests, in their order. An error reply is one of them.
pub(crate) fn converse(
    connection: &mut Connection,
    server: &ConnectionInfo,
    requests: &[Cmd],
    deadline: Moment,
) -> Result<Vec<Value>, RedisError> {
    let limit = time_left(deadline)?;
    let packed: Vec<u8> = requests.iter().flat_map(Cmd::get_packed_command).collect();
    // With TLS the first request begins with a handshake, which reads.
    connection.set_read_timeout(Some(limit))?;
    connection.set_write_timeout(Some(limit))?;
    connection.send_packed_command(&packed).map_err(|error| {
        let is_tls = matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        if is_tls && error.is_timeout() { no_handshake(server, limit) } else { named(server, error, limit) }
    })?;
    let mut replies = Vec::with_capacity(requests.len());
    while replies.len() < requests.len() {
        connection.set_read_timeout(Some(time_left(deadline)?))?;
        match connection.recv_response().map_err(|error| named(server, error, limit))? {
            // Belongs to no request.
            Value::Push { .. } => {}
            reply => replies.push(reply),
        }
    }
    Ok(replies)
}

/// Whether a message has come within this time, or that the server closed the connection. Needs no request.
pub(crate) fn listen(connection: &mut Connection, time: Duration) -> Result<bool, RedisError> {
    let mut messages = connection.as_pubsub();
    messages.set_read_timeout(Some(time))?;
    let heard = messages.get_message();
    // To drop it would end what is subscribed to, and wait for replies.
    std::mem::forget(messages);
    match heard {
        Err(error) if error.is_timeout() => Ok(false),
        heard => heard.map(|_| true),
    }
}

/// The time that is left for a request. None of it is an error, since a socket takes zero for "no limit".
pub(crate) fn time_left(deadline: Moment) -> Result<Duration, RedisError> {
    let left = deadline.left();
    if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut).into()) } else { Ok(left) }
}

/// An error in words that name the server. What it says of whether it may pass stays.
fn named(server: &ConnectionInfo, error: RedisError, limit: Duration) -> RedisError {
    use io::ErrorKind::{InvalidData, TimedOut, WouldBlock};
    let address = server.addr();
    match io_kind(&error) {
        Some(TimedOut | WouldBlock) => no_answer(&address.to_string(), limit),
        Some(InvalidData) => io::Error::new(InvalidData, format!("{address}: {error}")).into(),
        Some(kind) => io::Error::new(kind, format!("no answer from {address}: {error}")).into(),
        None if error.kind() == ErrorKind::Parse => {
            io::Error::new(InvalidData, format!("{address} does not speak the Redis protocol")).into()
        }
        None => error,
    }
}

/// That a server did not answer in time.
pub(crate) fn no_answer(address: &str, limit: Duration) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {address} within {}", seconds(limit))).into()
}

fn no_handshake(server: &ConnectionInfo, limit: Duration) -> RedisError {
    let why = format!("the TLS handshake was not answered within {} (a port without TLS?)", seconds(limit));
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {}: {why}", server.addr())).into()
}

/// A time for people: `5s`, `0.5s`. What was used up before the request does not matter to them.
fn seconds(time: Duration) -> String {
    let per_second = if time < Duration::from_secs(1) { 10.0 } else { 1.0 };
    format!("{}s", (time.as_secs_f64() * per_second).round() / per_second)
}

/// Lets TLS use ring, if the program has not chosen: without a choice rustls panics.
fn choose_cryptography(server: &ConnectionInfo) {
    #[cfg(feature = "tls")]
    if matches!(server.addr(), ConnectionAddr::TcpTls { .. }) && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // If another thread was first, that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    #[cfg(not(feature = "tls"))]
    let _ = server;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_time_left_is_not_sent() {
        // A socket takes zero for no limit at all.
        assert!(time_left(Moment::now()).is_err_and(|error| error.is_timeout()));
        assert!(time_left(Moment::now() + Duration::from_secs(9)).is_ok());
    }

    #[test]
    fn a_connection_begins_with_what_the_url_says() {
        let words = |url: &str| {
            let server: ConnectionInfo = url.parse().expect("a URL");
            let packed = login(server.redis_settings()).iter().flat_map(Cmd::get_packed_command).collect();
            let text = String::from_utf8(packed).expect("text");
            text.lines().filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words("redis://one:1"), "");
        assert_eq!(words("redis://:secret@one:1/3"), "AUTH secret SELECT 3");
        assert_eq!(words("redis://user:secret@one:1"), "AUTH user secret");
        assert_eq!(words("redis://:secret@one:1/?protocol=resp3"), "HELLO 3 AUTH default secret");
        assert_eq!(words("redis://one:1/?protocol=resp3"), "HELLO 3");
    }

    #[test]
    fn times_are_short() {
        assert_eq!([4880, 500, 1040].map(|ms| seconds(Duration::from_millis(ms))), ["5s", "0.5s", "1s"]);
    }
}
