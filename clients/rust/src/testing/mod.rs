//! A server in memory, for tests of programs that use locks. The helper and the crate `redis` run on it as they are.

mod commands;
mod locks;

use crate::client::Client;
use crate::clock;
use crate::sync::{lock, wait};
use crate::testing::commands::Data;
use crate::testing::locks::{Bytes, Reply};
use redis::{Parser, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How often one looks whether the client of a request that waits has gone.
const GLANCE: Duration = Duration::from_millis(50);

/// A server in memory. It lives in this process, on a port of the loopback interface, until it is dropped.
///
/// It knows the commands that the helper sends, and `GET`, `SET`, `DEL`, `EXISTS` and `PUBLISH`. The same tests compare
/// what it does with locks with a real server.
///
/// ```
/// use redis_lock_client::testing::FakeServer;
/// use std::time::Duration;
///
/// let fake = FakeServer::start()?;
/// let guard = fake.client().key("report").lease(Duration::from_secs(2)).lock().expect("a lock");
/// assert!(fake.client().try_lock("report").expect("an answer").is_none());
/// fake.lose("report");
/// assert!(guard.wait_lost(Duration::from_secs(60)));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FakeServer {
    inner: Arc<Inner>,
    port: u16,
}

struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    data: Data,
    sessions: BTreeMap<u64, Session>,
    next: u64,
}

/// The server's end of a connection.
struct Session {
    stream: TcpStream,
    is_resp3: bool,
    /// Its last command is not answered yet.
    waits: bool,
}

impl FakeServer {
    /// Starts one, without a lock.
    ///
    /// # Errors
    ///
    /// If there is no port, or no thread.
    pub fn start() -> io::Result<FakeServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (state, changed, is_over) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        let inner = Arc::new(Inner { state, changed, is_over });
        let (accepting, ticking) = (inner.clone(), inner.clone());
        std::thread::Builder::new().name("fake-server".to_owned()).spawn(move || accepting.accept(&listener))?;
        std::thread::Builder::new().name("fake-server-clock".to_owned()).spawn(move || ticking.tick())?;
        Ok(FakeServer { inner, port })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A client for it.
    ///
    /// # Panics
    ///
    /// Never: its address is one.
    pub fn client(&self) -> Client {
        Client::open(self.url()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Takes a lock away from its holders, as an operator does with LOCK.BREAK. They learn of it at the next renewal.
    pub fn lose(&self, key: impl AsRef<[u8]>) {
        self.inner.change(|data| data.locks.clear(&key.as_ref().to_vec()));
    }

    /// Lets all leases end at the server. The holders learn of it at the next renewal, as after a restart without data.
    pub fn expire(&self) {
        self.inner.change(|data| data.locks.expire());
    }

    /// Lets time pass at once, for the server and for all locks of this process: as if it had been stopped so long. A
    /// lock whose lease is over by then is lost within a second.
    pub fn advance(&self, time: Duration) {
        clock::skip(time);
        self.inner.change(|data| data.locks.tick());
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.inner.is_over.store(true, Ordering::Relaxed);
        let state = lock(&self.inner.state);
        for session in state.sessions.values() {
            // It may be closed already.
            drop(session.stream.shutdown(std::net::Shutdown::Both));
        }
        drop(state);
        self.inner.changed.notify_all();
        // Wakes the thread that accepts.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeServer").field("port", &self.port).finish()
    }
}

impl Inner {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let Ok((stream, own)) = stream.and_then(|stream| Ok((stream.try_clone()?, stream))) else { continue };
            let number = {
                let mut state = lock(&self.state);
                state.next += 1;
                let number = state.next;
                state.sessions.insert(number, Session { stream, is_resp3: false, waits: false });
                number
            };
            let server = self.clone();
            let thread = std::thread::Builder::new().name("fake-server-client".to_owned());
            // Without a thread the connection ends.
            drop(thread.spawn(move || server.serve(number, own)));
        }
    }

    /// Answers the commands of a connection, in their order.
    fn serve(&self, number: u64, stream: TcpStream) {
        let Ok(ended) = stream.try_clone() else { return };
        let (mut parser, mut commands) = (Parser::new(), BufReader::new(stream));
        while let Ok(Value::Array(words)) = parser.parse_value(&mut commands) {
            let words: Vec<Bytes> = words.into_iter().filter_map(|word| redis::from_redis_value(word).ok()).collect();
            let mut state = lock(&self.state);
            let reply = state.data.perform(number, &words);
            let is = |name: &[u8]| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name));
            if let Some(session) = state.sessions.get_mut(&number) {
                session.is_resp3 |= is(b"HELLO") && words.get(1).is_some_and(|version| version == b"3");
                session.waits = reply.is_none() && !is(b"SUBSCRIBE");
            }
            // Before the replies that come of it.
            if let Some(reply) = reply {
                state.data.locks.answers.insert(0, (number, reply));
            }
            state.flush();
            self.changed.notify_all();
            while state.sessions.get(&number).is_some_and(|session| session.waits) {
                state = wait(&self.changed, state, GLANCE);
                let has_gone = ended.set_nonblocking(true).is_ok() && matches!(ended.peek(&mut [0]), Ok(0));
                if has_gone || ended.set_nonblocking(false).is_err() || self.is_over.load(Ordering::Relaxed) {
                    return self.part(state, number);
                }
            }
        }
        self.part(lock(&self.state), number);
    }

    fn part(&self, mut state: std::sync::MutexGuard<'_, State>, number: u64) {
        state.sessions.remove(&number);
        state.data.part(number);
        state.flush();
        self.changed.notify_all();
    }

    fn change<T>(&self, change: impl FnOnce(&mut Data) -> T) {
        let mut state = lock(&self.state);
        change(&mut state.data);
        // What a change leads to goes out with the next look at it.
        state.data.perform(0, &[b"PING".to_vec()]);
        state.flush();
        self.changed.notify_all();
    }

    /// Ends what is over.
    fn tick(&self) {
        let mut state = lock(&self.state);
        while !self.is_over.load(Ordering::Relaxed) {
            state.data.perform(0, &[b"PING".to_vec()]);
            state.flush();
            self.changed.notify_all();
            let next = state.data.locks.tick().map_or(Duration::MAX, clock::Moment::left);
            state = wait(&self.changed, state, next.clamp(Duration::from_millis(1), clock::LOOK));
        }
    }
}

impl State {
    /// Sends what is to be sent.
    fn flush(&mut self) {
        for (number, reply) in std::mem::take(&mut self.data.locks.answers) {
            let Some(session) = self.sessions.get_mut(&number) else { continue };
            if !matches!(reply, Reply::Push(_)) {
                session.waits = false;
            }
            let mut bytes = Vec::new();
            encode(&reply, session.is_resp3, &mut bytes);
            // A client that has gone is seen where its commands are read.
            drop(session.stream.write_all(&bytes));
        }
    }
}

/// A reply as it goes over the wire.
fn encode(reply: &Reply, is_resp3: bool, to: &mut Vec<u8>) {
    let mut head = |kind: char, length: usize| to.extend(format!("{kind}{length}\r\n").bytes());
    match reply {
        Reply::Null => to.extend(if is_resp3 { &b"_\r\n"[..] } else { b"$-1\r\n" }),
        Reply::Int(number) => to.extend(format!(":{number}\r\n").bytes()),
        Reply::Status(text) => to.extend(format!("+{text}\r\n").bytes()),
        Reply::Error(text) => to.extend(format!("-{text}\r\n").bytes()),
        Reply::Text(text) => {
            head('$', text.len());
            to.extend(text.iter().chain(b"\r\n"));
        }
        Reply::Array(items) | Reply::Push(items) => {
            head(if is_resp3 && matches!(reply, Reply::Push(_)) { '>' } else { '*' }, items.len());
            items.iter().for_each(|item| encode(item, is_resp3, to));
        }
        Reply::Map(fields) => {
            if is_resp3 {
                head('%', fields.len())
            } else {
                head('*', fields.len() * 2)
            }
            for (name, value) in fields {
                encode(&Reply::text(name), is_resp3, to);
                encode(value, is_resp3, to);
            }
        }
    }
}
