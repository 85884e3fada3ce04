//! A thread that carries the requests of one wait, over a connection of its own. The waiting thread can turn away from
//! a request that is on its way: to be cancelled, or because its time is up. A connection alone cannot be interrupted.

use crate::channel::{Channel, Failure};
use crate::clock::Moment;
use crate::servers::Servers;
use redis::{Cmd, Value};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a waiting thread is told.
pub(crate) enum Event {
    /// The reply to its last request.
    Reply(Result<Value, Failure>),
    /// It shall not wait any longer.
    Cancelled,
}

enum Task {
    Ask(Cmd, Duration),
    AfterClosing(Box<dyn FnOnce() + Send>),
}

pub(crate) struct Courier {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

impl Courier {
    /// Replies are sent to `events`.
    pub(crate) fn start(servers: &Arc<Servers>, slot: u16, events: Sender<Event>) -> io::Result<Courier> {
        let mut connection = Channel::new(servers);
        let (tasks, received) = channel();
        let thread = std::thread::Builder::new().name("redis-lock-waiter".to_owned());
        let thread = thread.spawn(move || {
            for task in received {
                match task {
                    Task::Ask(request, limit) => {
                        let reply = connection.ask(slot, &request, Moment::now() + limit);
                        // A waiting thread that has turned away does not listen.
                        drop(events.send(Event::Reply(reply)));
                    }
                    Task::AfterClosing(last) => {
                        drop(connection);
                        return last();
                    }
                }
            }
        })?;
        Ok(Courier { tasks, thread })
    }

    /// Sends a request, which may take so long.
    pub(crate) fn ask(&self, request: Cmd, limit: Duration) {
        // It lives as long as its tasks can be sent.
        drop(self.tasks.send(Task::Ask(request, limit)));
    }

    /// Closes the connection. No request is on its way.
    pub(crate) fn end(self) {
        drop(self.tasks);
        // It has nothing to do that could panic or take long.
        drop(self.thread.join());
    }

    /// Leaves it alone with the request that is on its way. Once that is answered, or its time is up, it closes the
    /// connection and does this.
    pub(crate) fn end_with(self, last: impl FnOnce() + Send + 'static) {
        drop(self.tasks.send(Task::AfterClosing(Box::new(last))));
    }
}
