//! One server of a quorum: a connection, and a thread that speaks over it while there is something to say. All that
//! locks ask of the node goes over that connection, in order, also after a reply that did not come in time: so no
//! release overtakes the request that it undoes. Knows nothing of fences.

use crate::channel::Failure;
use crate::clock::Moment;
use crate::connection::{connect, time_left};
use crate::error::Error;
use crate::quorum::census::{Census, Identity};
use crate::servers::{Servers, address_of};
use crate::sync::{lock, wait};
use crate::transport::Transport;
use redis::{Cmd, Connection, ConnectionInfo, RedisError, Value};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long a thread without work waits for the next lock.
const LINGER: Duration = Duration::from_millis(100);

/// How long it sleeps at most.
const LOOK_MAX: Duration = Duration::from_secs(3600);

/// How many requests are sent in one go.
const BATCH: usize = 256;

/// After so long without a reply the connection is given up. Until then later requests follow on it.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What one lock has to say to its nodes.
pub(crate) trait Work: Send + Sync {
    /// The owner and the key. Of two works of one name the earlier one comes first, until it is over.
    fn name(&self) -> (&str, &[u8]);

    /// What it has to say to the node of this number.
    fn next(&self, node: usize) -> Next;

    /// What the node said to the request that was sent then.
    fn answered(&self, node: usize, sent: Moment, reply: Result<Value, Failure>);

    /// The connection was given up. What was sent over it may be read after all, and after what is sent from now on.
    fn cut_off(&self, node: usize);
}

pub(crate) enum Next {
    /// A request, which may take so long.
    Ask(Cmd, Duration),
    /// Nothing before that.
    At(Moment),
    /// Nothing until the node is woken.
    Later,
    /// Nothing any more.
    Over,
}

pub(crate) struct Node {
    number: usize,
    server: ConnectionInfo,
    census: Arc<Census>,
    /// For requests that wait, and for those that belong to no lock of this program.
    transport: Arc<Transport>,
    silent: AtomicBool,
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Default)]
struct Desk {
    works: Vec<Arc<dyn Work>>,
    has_thread: bool,
    /// The thread has it while there is one.
    link: Option<Link>,
    /// In a process that was forked no thread is left, and the connection is the parent's.
    pid: u32,
}

/// A request of a work, on its way.
struct Errand {
    work: Arc<dyn Work>,
    request: Cmd,
    limit: Duration,
}

impl Node {
    pub(crate) fn new(number: usize, server: ConnectionInfo, census: Arc<Census>) -> Node {
        let transport = Arc::new(Transport::new(Servers::nodes(vec![server.clone()])));
        let silent = AtomicBool::new(false);
        Node { number, server, census, transport, silent, desk: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn address(&self) -> String {
        address_of(&self.server)
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// Whether the last request to it got no answer. Nobody waits for such a node.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// It was found out elsewhere that it does not answer.
    pub(crate) fn fell_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Asks from now on what this work has to say, until that is over. Fails if there can be no thread.
    pub(crate) fn add(self: &Arc<Self>, work: Arc<dyn Work>) -> io::Result<()> {
        let mut desk = lock(&self.desk);
        if desk.pid != std::process::id() {
            *desk = Desk { pid: std::process::id(), ..Desk::default() };
        }
        if !desk.has_thread {
            let node = self.clone();
            let thread = std::thread::Builder::new().name("redis-lock-node".to_owned());
            thread.spawn(move || node.run())?;
            desk.has_thread = true;
        }
        desk.works.push(work);
        self.changed.notify_all();
        Ok(())
    }

    /// A work has something else to say than before.
    pub(crate) fn wake(&self) {
        // Its thread has either not looked yet, or waits.
        drop(lock(&self.desk));
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut link = lock(&self.desk).link.take();
        while let Some(errands) = self.next(&mut link) {
            for batch in errands.chunks(BATCH) {
                self.converse(&mut link, batch);
            }
        }
    }

    /// What is to be sent now. None when the thread shall end; then it has given back its connection.
    fn next(&self, link: &mut Option<Link>) -> Option<Vec<Errand>> {
        let mut desk = lock(&self.desk);
        let mut idle_until = None;
        loop {
            let (errands, next_look) = desk.look(self.number);
            if !errands.is_empty() {
                return Some(errands);
            }
            let now = Moment::now();
            if desk.works.is_empty() {
                let end = *idle_until.get_or_insert(now + LINGER);
                if end <= now {
                    desk.has_thread = false;
                    desk.link = link.take();
                    return None;
                }
                desk = wait(&self.changed, desk, end.since(now));
            } else {
                idle_until = None;
                let time = next_look.map_or(LOOK_MAX, |look| look.since(now));
                desk = wait(&self.changed, desk, time);
            }
        }
    }

    fn converse(&self, link: &mut Option<Link>, errands: &[Errand]) {
        let limit = errands.iter().map(|errand| errand.limit).min().unwrap_or_default();
        let sent = Moment::now();
        let ready = match self.linked(link, sent + limit) {
            Ok(ready) => ready,
            Err(error) => {
                if matches!(error, Error::Connection(_)) {
                    self.fell_silent();
                }
                for errand in errands {
                    errand.work.answered(self.number, sent, Err(Failure { error: error.clone(), sent: false }));
                }
                return;
            }
        };
        // Counted from here: it may have taken long to connect.
        let sent = Moment::now();
        let requests: Vec<&Cmd> = errands.iter().map(|errand| &errand.request).collect();
        let replies = ready.exchange(&requests, sent + limit);
        if ready.is_broken {
            *link = None;
        }
        self.silent.store(replies.iter().any(Result::is_err), Ordering::Relaxed);
        for (errand, reply) in errands.iter().zip(replies) {
            let reply =
                reply.and_then(Value::extract_error).map_err(|error| Failure { error: error.into(), sent: true });
            errand.work.answered(self.number, sent, reply);
        }
    }

    /// The connection, opened if need be. A new one is asked who the node is.
    fn linked<'a>(&self, link: &'a mut Option<Link>, deadline: Moment) -> Result<&'a mut Link, Error> {
        if link.as_ref().is_some_and(Link::is_hopeless) {
            *link = None;
            let works = lock(&self.desk).works.clone();
            works.iter().for_each(|work| work.cut_off(self.number));
        }
        if link.is_none() {
            let mut new = Link::open(&self.server, deadline)?;
            let sections = ["server", "replication", "cluster"].map(|section| redis::cmd("INFO").arg(section).take());
            let mut info = String::new();
            for section in new.exchange(&sections.each_ref(), deadline) {
                // What the user may not ask is no reason to refuse the node; silence is none to trust it.
                if let Ok(text) = redis::from_redis_value::<String>(section?) {
                    info.push_str(&text);
                    info.push('\n');
                }
            }
            self.census.admit(self.number, Identity::read(&info))?;
            *link = Some(new);
        }
        Ok(link.as_mut().expect("it was just opened"))
    }
}

impl Desk {
    /// What is to be sent now, and when to look again.
    fn look(&mut self, number: usize) -> (Vec<Errand>, Option<Moment>) {
        let (mut errands, mut next_look) = (Vec::new(), None::<Moment>);
        let mut over = Vec::new();
        let mut names = HashSet::new();
        for (at, work) in self.works.iter().enumerate() {
            if self.works.len() > 1 && !names.insert(work.name()) {
                continue;
            }
            match work.next(number) {
                Next::Ask(request, limit) => errands.push(Errand { work: work.clone(), request, limit }),
                Next::At(moment) => next_look = Some(next_look.map_or(moment, |look| look.min(moment))),
                Next::Later => {}
                Next::Over => over.push(at),
            }
        }
        let behind = !over.is_empty();
        for at in over.into_iter().rev() {
            self.works.remove(at);
        }
        // What waited behind one that is over is next.
        (errands, if behind { Some(Moment::now()) } else { next_look })
    }
}

struct Link {
    connection: Connection,
    /// How many replies are yet to come for requests that nobody waits for any more.
    owed: usize,
    /// Since when no reply has come, where one should have.
    silent_since: Option<Moment>,
    is_broken: bool,
}

impl Link {
    fn open(server: &ConnectionInfo, deadline: Moment) -> Result<Link, RedisError> {
        let connection = connect(server, deadline)?;
        Ok(Link { connection, owed: 0, silent_since: None, is_broken: false })
    }

    fn is_hopeless(&self) -> bool {
        self.silent_since.is_some_and(|since| since.elapsed() > SILENCE_MAX)
    }

    /// The replies to all requests, each of them or why it did not come.
    fn exchange(&mut self, requests: &[&Cmd], deadline: Moment) -> Vec<Result<Value, RedisError>> {
        let packed: Vec<u8> = requests.iter().flat_map(|request| request.get_packed_command()).collect();
        let mut replies = Vec::with_capacity(requests.len());
        let mut failure = self.send(&packed, deadline).err();
        while replies.len() < requests.len() {
            let reply = match &failure {
                Some(error) => Err(error.clone()),
                None if self.owed > 0 => match self.receive(deadline) {
                    Ok(_) => {
                        (self.owed, self.silent_since) = (self.owed - 1, None);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                None => self.receive(deadline),
            };
            if let Err(error) = &reply {
                if failure.is_none() {
                    self.is_broken |= !error.is_timeout();
                    // The library itself skips the one that it was asked for just now.
                    self.owed += requests.len() - replies.len() - usize::from(error.is_timeout());
                    self.silent_since.get_or_insert(Moment::now());
                }
                failure.get_or_insert(error.clone());
            } else {
                self.silent_since = None;
            }
            replies.push(reply);
        }
        replies
    }

    fn send(&mut self, packed: &[u8], deadline: Moment) -> Result<(), RedisError> {
        let sent = time_left(deadline)
            .and_then(|left| self.connection.set_write_timeout(Some(left)))
            .and_then(|()| self.connection.send_packed_command(packed));
        // Half of a request may be on its way.
        self.is_broken |= sent.is_err();
        sent
    }

    fn receive(&mut self, deadline: Moment) -> Result<Value, RedisError> {
        loop {
            // What came in time but was not read in time is read: a millisecond is always left.
            let left = deadline.left().max(Duration::from_millis(1));
            self.connection.set_read_timeout(Some(left))?;
            match self.connection.recv_response()? {
                // Belongs to no request.
                Value::Push { .. } => {}
                reply => return Ok(reply),
            }
        }
    }
}
