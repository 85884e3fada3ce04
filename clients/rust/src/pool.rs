//! Connections for requests whose reply a thread waits for, each with a thread of its own that can speak over it. So
//! the thread that waits can turn away from a request that is on its way: to be cancelled, or as its time is up. A
//! connection alone cannot be interrupted. A thread that need not turn away speaks over it itself. Idle ones serve the
//! next requests, and are closed after a while.

use crate::channel::{Channel, Failure, Parting};
use crate::clock::{BLOCKING_MAX, IDLE, IDLE_MAX, LOOK, Moment};
use crate::error::{Error, was_cut};
use crate::servers::Servers;
#[cfg(feature = "tokio")]
use crate::sync::here;
use crate::sync::{Caller, Mailbox, lock};
use redis::{Cmd, RedisError, Value};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What a waiting thread is told.
pub(crate) enum Event {
    /// The reply to its last request.
    Reply(Result<Value, Failure>),
    /// Whether there is a connection for renewals.
    Ready(Result<(), Failure>),
    /// It may be its turn to ask.
    Woken,
    /// It shall not wait any longer.
    Cancelled,
}

/// Whether a request that got no reply may be sent once more, over a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Never: it may be done twice.
    Never,
    /// If the connection was an old one, which the server may have closed long ago.
    AfterIdle,
}

/// One request, on its way to a connection.
pub(crate) struct Request {
    pub(crate) slot: u16,
    pub(crate) command: Cmd,
    /// How long an attempt may take.
    pub(crate) limit: Duration,
    pub(crate) repeat: Repeat,
    pub(crate) parting: Option<Parting>,
}

pub(crate) struct Pool {
    servers: Arc<Servers>,
    /// How many waits may have a connection.
    waits_max: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Worker>,
    /// How many may wait in the server just now.
    waits: usize,
    /// The number of the next one.
    next: u64,
    /// In a process that was forked no thread is left.
    pid: u32,
}

/// A thread with a connection.
struct Worker {
    number: u64,
    /// The server that it was last sent to.
    lane: String,
    /// Used by one thread at a time: its own, or the one that has this.
    channel: Arc<Mutex<Channel>>,
    tasks: Sender<Task>,
    idle_since: Moment,
}

enum Task {
    Ask(Request, Mailbox<Event>),
    AfterClosing(Box<dyn FnOnce() + Send>),
}

impl Pool {
    pub(crate) fn new(servers: Arc<Servers>) -> Pool {
        Pool { servers, waits_max: AtomicUsize::new(BLOCKING_MAX), state: Mutex::default() }
    }

    /// Lets so many waits have a connection.
    pub(crate) fn let_wait(&self, most: usize) {
        self.waits_max.store(most, Ordering::Relaxed);
    }

    /// The reply, once it is there or its time is up.
    pub(crate) async fn ask(self: &Arc<Self>, caller: Caller, request: Request) -> Result<Value, Failure> {
        self.ask_or(caller, request, drop).await
    }

    /// The same. If the future is dropped before, this is given the reply in its place.
    pub(crate) async fn ask_or(
        self: &Arc<Self>,
        caller: Caller,
        request: Request,
        late: impl FnOnce(Value) + Send + 'static,
    ) -> Result<Value, Failure> {
        let failed = |error: io::Error| Failure { error: Error::Connection(RedisError::from(error)), sent: false };
        let worker = self.take(request.slot).map_err(failed)?;
        let reply = match caller {
            Caller::Thread => {
                drop(late);
                request.send(&mut lock(&worker.channel))
            }
            #[cfg(feature = "tokio")]
            Caller::Task => worker.ask(caller, request, late).await,
        };
        self.put_back(worker, &reply);
        reply
    }

    /// A connection for one that waits. None while as many wait as may.
    pub(crate) fn wait(self: &Arc<Self>, slot: u16) -> io::Result<Option<Checkout>> {
        {
            let mut state = self.state();
            if state.waits >= self.waits_max.load(Ordering::Relaxed) {
                return Ok(None);
            }
            state.waits += 1;
        }
        let permit = Permit(self.clone());
        let worker = self.take(slot)?;
        Ok(Some(Checkout { worker: Some(worker), is_asked: false, permit }))
    }

    /// An idle one, or a new one.
    fn take(self: &Arc<Self>, slot: u16) -> io::Result<Worker> {
        let lane = self.servers.lane(slot);
        let mut state = self.state();
        let at = state.idle.iter().rposition(|worker| worker.lane == lane);
        if let Some(at) = at {
            return Ok(state.idle.remove(at));
        }
        let number = state.next;
        state.next += 1;
        drop(state);
        let (tasks, received) = channel();
        let (pool, own) = (Arc::downgrade(self), Arc::new(Mutex::new(Channel::new(&self.servers))));
        let channel = own.clone();
        let thread = std::thread::Builder::new().name("redis-lock-asker".to_owned());
        thread.spawn(move || serve(&pool, &own, number, &received))?;
        Ok(Worker { number, lane, channel, tasks, idle_since: Moment::now() })
    }

    /// What failed on one connection is not tried on the idle ones to that server: they may have died together.
    fn put_back(&self, worker: Worker, reply: &Result<Value, Failure>) {
        let has_failed = matches!(reply, Err(Failure { error: Error::Connection(_), .. }));
        let mut state = self.state();
        if has_failed {
            state.idle.retain(|idle| idle.lane != worker.lane);
            return;
        }
        if state.idle.len() == IDLE_MAX {
            state.idle.remove(0);
        }
        state.idle.push(Worker { idle_since: Moment::now(), ..worker });
    }

    /// Takes one out for good that is idle for long; false if it is not.
    fn retire(&self, number: u64) -> bool {
        let mut state = self.state();
        let is_it = |worker: &Worker| worker.number == number && worker.idle_since.elapsed() >= IDLE;
        let at = state.idle.iter().position(is_it);
        at.map(|at| state.idle.remove(at)).is_some()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if state.pid != std::process::id() {
            *state = State { pid: std::process::id(), next: state.next, ..State::default() };
        }
        state
    }
}

#[cfg(feature = "tokio")]
impl Worker {
    /// The reply to a request that its own thread sends. If nobody waits for that any more, the thread ends after it.
    async fn ask(
        &self,
        caller: Caller,
        request: Request,
        late: impl FnOnce(Value) + Send + 'static,
    ) -> Result<Value, Failure> {
        let (lane, limit) = (self.lane.clone(), request.limit);
        let mut asked = Asked { tasks: &self.tasks, events: Mailbox::new(), late: Some(late) };
        drop(self.tasks.send(Task::Ask(request, asked.events.clone())));
        // It may be sent twice.
        match asked.events.next(caller, Some(limit * 2 + LOOK)).await {
            Some(Event::Reply(reply)) => {
                asked.late = None;
                reply
            }
            _ => Err(Failure::silent(&lane, limit)),
        }
    }
}

/// A request whose reply a task waits for.
#[cfg(feature = "tokio")]
struct Asked<'a, F: FnOnce(Value) + Send + 'static> {
    tasks: &'a Sender<Task>,
    events: Mailbox<Event>,
    /// Is given the reply if the task is not.
    late: Option<F>,
}

#[cfg(feature = "tokio")]
impl<F: FnOnce(Value) + Send + 'static> Drop for Asked<'_, F> {
    fn drop(&mut self) {
        if let Some(late) = self.late.take() {
            let events = self.events.clone();
            drop(self.tasks.send(Task::AfterClosing(Box::new(move || {
                if let Some(Event::Reply(Ok(reply))) = here(events.next(Caller::Thread, Some(Duration::ZERO))) {
                    late(reply);
                }
            }))));
        }
    }
}

/// Does the tasks of a worker, until it is not needed any more.
fn serve(pool: &Weak<Pool>, channel: &Arc<Mutex<Channel>>, number: u64, tasks: &Receiver<Task>) {
    loop {
        match tasks.recv_timeout(LOOK) {
            Ok(Task::Ask(request, events)) => {
                let reply = request.send(&mut lock(channel));
                // A waiting thread that has turned away does not listen.
                events.send(Event::Reply(reply));
            }
            Ok(Task::AfterClosing(last)) => {
                lock(channel).close();
                return last();
            }
            Err(RecvTimeoutError::Timeout) if pool.upgrade().is_some_and(|pool| !pool.retire(number)) => {}
            Err(_) => return,
        }
    }
}

impl Request {
    fn send(self, channel: &mut Channel) -> Result<Value, Failure> {
        let deadline = Moment::now() + self.limit;
        if self.repeat == Repeat::Never {
            channel.test(self.slot, deadline);
        }
        let was_open = channel.is_open();
        channel.part_with(self.parting.into_iter().collect());
        let failure = match channel.ask(self.slot, &self.command, deadline) {
            Err(failure) if was_cut(&failure.error) => failure,
            replied => return replied,
        };
        if self.repeat == Repeat::Never || !was_open {
            return Err(failure);
        }
        let second = channel.ask(self.slot, &self.command, Moment::now() + self.limit);
        second.map_err(|second| Failure { sent: second.sent || failure.sent, ..second })
    }
}

/// Is counted as long as a request may wait in the server.
struct Permit(Arc<Pool>);

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waits = state.waits.saturating_sub(1);
    }
}

/// The connection of one wait. It serves the next one when this is dropped, unless a request is on its way.
pub(crate) struct Checkout {
    worker: Option<Worker>,
    /// Whether a request is on its way.
    is_asked: bool,
    permit: Permit,
}

impl Checkout {
    /// Sends a request. The reply is an event.
    pub(crate) fn ask(&mut self, request: Request, events: &Mailbox<Event>) {
        if let Some(worker) = &self.worker {
            // It lives as long as its tasks can be sent.
            drop(worker.tasks.send(Task::Ask(request, events.clone())));
            self.is_asked = true;
        }
    }

    /// Sends a request on this thread. The reply cannot be turned away from.
    pub(crate) fn ask_here(&self, request: Request) -> Option<Result<Value, Failure>> {
        self.worker.as_ref().map(|worker| request.send(&mut lock(&worker.channel)))
    }

    /// The reply has come.
    pub(crate) fn replied(&mut self, reply: &Result<Value, Failure>) {
        self.is_asked = false;
        if matches!(reply, Err(Failure { error: Error::Connection(_), .. }))
            && let Some(worker) = &self.worker
        {
            let lane = &worker.lane;
            self.permit.0.state().idle.retain(|idle| idle.lane != *lane);
        }
    }

    /// Leaves it alone with the request that is on its way. Once that is answered, or its time is up, it closes the
    /// connection and does this.
    pub(crate) fn end_with(mut self, last: impl FnOnce() + Send + 'static) {
        if let Some(worker) = self.worker.take() {
            drop(worker.tasks.send(Task::AfterClosing(Box::new(move || {
                drop(self);
                last();
            }))));
        }
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take().filter(|_| !self.is_asked) {
            self.permit.0.put_back(worker, &Ok(Value::Nil));
        }
    }
}
