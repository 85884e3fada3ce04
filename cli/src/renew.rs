//! Renews the leases of all locks that a client holds. One thread for each server, so that one that hangs does not
//! delay the others; it ends when it has nothing left to renew. Tells each hold what the server said, and no more.

use crate::backoff::Backoff;
use crate::channel::Channel;
use crate::clock::{Moment, renewal_interval, renewal_limit};
use crate::error::{Error, io_kind};
use crate::hold::Hold;
use crate::servers::Servers;
use crate::sync::{lock, wait};
use redis::{Cmd, RedisError, Value};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long a thread without work waits for the next lock. A loop that takes one lock after another needs no new
/// thread each time.
const LINGER: Duration = Duration::from_millis(100);

/// How many locks are renewed in one go.
const BATCH: usize = 256;

pub(crate) struct Renewer {
    servers: Arc<Servers>,
    lanes: Mutex<Lanes>,
    changed: Condvar,
}

#[derive(Default)]
struct Lanes {
    /// By the address of the server. Each has a thread.
    by_address: HashMap<String, Lane>,
    /// In a process that was forked no thread is left.
    pid: u32,
}

struct Lane {
    jobs: Vec<Job>,
    /// When its thread looks again by itself.
    looks_at: Moment,
}

struct Job {
    hold: Arc<Hold>,
    due: Moment,
    backoff: Backoff,
}

impl Renewer {
    pub(crate) fn new(servers: Arc<Servers>) -> Arc<Renewer> {
        Arc::new(Renewer { servers, lanes: Mutex::default(), changed: Condvar::new() })
    }

    /// Renews a hold from now on, until it is over. Fails if there can be no thread.
    pub(crate) fn add(self: &Arc<Self>, hold: &Arc<Hold>, sent: Moment) -> io::Result<()> {
        let due = sent + renewal_interval(hold.terms.lasts());
        self.put(Job { hold: hold.clone(), due, backoff: Backoff::default() })
    }

    /// Lets the thread end early when this was the last of its holds. The hold is over.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut lanes = lock(&self.lanes);
        for lane in lanes.by_address.values_mut() {
            lane.jobs.retain(|job| !Arc::ptr_eq(&job.hold, hold));
            if lane.jobs.is_empty() && lane.looks_at.left() > LINGER {
                self.changed.notify_all();
            }
        }
    }

    fn put(self: &Arc<Self>, job: Job) -> io::Result<()> {
        let address = self.servers.lane(job.hold.terms.slot());
        let mut lanes = lock(&self.lanes);
        if lanes.pid != std::process::id() {
            *lanes = Lanes { pid: std::process::id(), ..Lanes::default() };
        }
        if let Some(lane) = lanes.by_address.get_mut(&address) {
            if job.due < lane.looks_at {
                self.changed.notify_all();
            }
            lane.jobs.push(job);
            return Ok(());
        }
        let renewer = self.clone();
        let of_thread = address.clone();
        let thread = std::thread::Builder::new().name("redis-lock-renewer".to_owned());
        // It finds its lane, since the mutex is locked until then.
        thread.spawn(move || renewer.run(&of_thread))?;
        lanes.by_address.insert(address, Lane { jobs: vec![job], looks_at: Moment::now() });
        Ok(())
    }

    fn run(self: &Arc<Self>, address: &str) {
        let mut channel = Channel::new(&self.servers);
        while let Some((mut due, limit)) = self.next(address) {
            for batch in due.chunks_mut(BATCH) {
                self.renew(&mut channel, batch, limit);
            }
            for job in due {
                // Its slot may have moved to another server. Without a thread for that one, validity ends.
                drop(self.put(job));
            }
        }
    }

    /// What is to be renewed now, and the time that a request may take. None when the thread shall end.
    fn next(&self, address: &str) -> Option<(Vec<Job>, Duration)> {
        let mut lanes = lock(&self.lanes);
        let mut idle_until = None;
        loop {
            let lane = lanes.by_address.get_mut(address)?;
            lane.jobs.retain(|job| !job.hold.is_over());
            let now = Moment::now();
            let look_at = if let Some(first) = lane.jobs.iter().map(|job| job.due).min() {
                idle_until = None;
                // The shortest lease sets the pace: a request for another must not make it miss its turn.
                let limit = lane.jobs.iter().map(|job| renewal_limit(job.hold.terms.lasts())).min();
                if first <= now {
                    let due = lane.jobs.extract_if(.., |job| job.due <= now).collect();
                    return Some((due, limit.unwrap_or_default()));
                }
                first
            } else {
                let end = *idle_until.get_or_insert(now + LINGER);
                if end <= now {
                    lanes.by_address.remove(address);
                    return None;
                }
                end
            };
            lane.looks_at = look_at;
            lanes = wait(&self.changed, lanes, look_at.since(now));
        }
    }

    fn renew(&self, channel: &mut Channel, jobs: &mut [Job], limit: Duration) {
        // One whose validity has ended is not extended, whatever the server would say.
        let mut jobs: Vec<&mut Job> = jobs.iter_mut().filter(|job| !job.hold.is_over()).collect();
        let Some(slot) = jobs.first().map(|job| job.hold.terms.slot()) else { return };
        let sent = Moment::now();
        let requests: Vec<Vec<Cmd>> = jobs.iter().map(|job| requests_of(&job.hold)).collect();
        let replies = channel.exchange(slot, &requests.concat(), sent + limit);
        let mut replies = replies.map(Vec::into_iter);
        for (job, requests) in jobs.iter_mut().zip(&requests) {
            let own = replies.as_mut().map(|replies| replies.by_ref().take(requests.len()).collect::<Vec<_>>());
            let outcome = match own {
                Ok(own) => outcome_of(&own),
                Err(failure) => Err(failure.error.clone()),
            };
            match outcome {
                Ok(Outcome::Redirected) => job.settle(self.renew_elsewhere(&job.hold, requests, limit), sent),
                outcome => job.settle(outcome, sent),
            }
        }
    }

    /// The slot is on its way to another server, or has arrived there.
    fn renew_elsewhere(&self, hold: &Hold, requests: &[Cmd], limit: Duration) -> Result<Outcome, Error> {
        let mut channel = Channel::new(&self.servers);
        let deadline = Moment::now() + limit;
        let ask = |request| channel.ask(hold.terms.slot(), request, deadline);
        let replies: Result<Vec<Value>, _> = requests.iter().map(ask).collect();
        outcome_of(&replies?)
    }
}

fn requests_of(hold: &Hold) -> Vec<Cmd> {
    hold.terms.extend(&hold.owner, &hold.fences)
}

/// What the server said to the renewal of one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Extended,
    Lost,
    Redirected,
}

/// Of the replies for all its keys. One key that is lost is the whole: nobody works under half of the locks.
fn outcome_of(replies: &[Value]) -> Result<Outcome, Error> {
    let is_redirection = |reply: &Value| match reply {
        Value::ServerError(error) => ["MOVED", "ASK", "TRYAGAIN"].contains(&error.code()),
        _ => false,
    };
    // Something else than a lock lies at the key: it was overwritten.
    let is_overwritten = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() == "WRONGTYPE");
    if replies.iter().any(|reply| matches!(reply, Value::Nil) || is_overwritten(reply)) {
        return Ok(Outcome::Lost);
    }
    if replies.iter().any(is_redirection) {
        return Ok(Outcome::Redirected);
    }
    for reply in replies {
        match reply.clone().extract_error()? {
            Value::Int(_) => {}
            _ => return Err(RedisError::from(io::Error::other("the reply to a renewal is no fence")).into()),
        }
    }
    Ok(Outcome::Extended)
}

impl Job {
    fn settle(&mut self, outcome: Result<Outcome, Error>, sent: Moment) {
        if let Err(error) = &outcome
            && !(self.backoff.is_new() && was_cut(error))
        {
            self.hold.not_extended(error);
        }
        match outcome {
            Ok(Outcome::Extended) => {
                self.hold.extended(sent);
                self.backoff.reset();
                self.due = sent + renewal_interval(self.hold.terms.lasts());
            }
            Ok(Outcome::Lost) => self.hold.lose(),
            Ok(Outcome::Redirected) | Err(_) => self.due = Moment::now() + self.backoff.pause(),
        }
    }
}

/// Whether the connection broke, as one that is idle for long may: the next request makes a new one.
fn was_cut(error: &Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let Error::Connection(error) = error else { return false };
    matches!(io_kind(error), Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;
    use crate::request::Terms;

    #[test]
    fn its_thread_ends_with_the_last_hold() {
        let nobody = "redis://127.0.0.1:1".parse().expect("a URL");
        let renewer = Renewer::new(Arc::new(Servers::nodes(vec![nobody])));
        let lanes = || lock(&renewer.lanes).by_address.len();
        for _ in 0..3 {
            let holds = [b"a", b"b"].map(|key| {
                let terms = Terms::new(vec![key.to_vec()]);
                Arc::new(Hold::new(terms, Owner::new(), vec![7], Moment::now()))
            });
            for hold in &holds {
                renewer.add(hold, Moment::now()).expect("a thread");
            }
            assert_eq!(lanes(), 1, "one thread for one server");
            for hold in &holds {
                hold.begin_release();
                renewer.remove(hold);
            }
            // Long before the next renewal was due.
            let deadline = Moment::now() + Duration::from_secs(5);
            while lanes() > 0 {
                assert!(!deadline.is_past(), "the thread goes on");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn what_the_server_said_decides_for_all_keys_together() {
        let error = |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply");
        let outcome_of = |replies: &[Value]| outcome_of(replies).map_err(|error| error.to_string());
        assert_eq!(outcome_of(&[Value::Int(7), Value::Int(8)]), Ok(Outcome::Extended));
        assert_eq!(outcome_of(&[Value::Int(7), Value::Nil]), Ok(Outcome::Lost));
        assert_eq!(outcome_of(&[error("LOADING x"), Value::Nil]), Ok(Outcome::Lost));
        assert_eq!(outcome_of(&[Value::Int(7), error("WRONGTYPE x")]), Ok(Outcome::Lost));
        assert_eq!(outcome_of(&[error("MOVED 1 a:1"), Value::Int(8)]), Ok(Outcome::Redirected));
        assert_eq!(outcome_of(&[error("LOADING x"), Value::Int(8)]), Err("LOADING x".to_owned()));
        assert!(outcome_of(&[Value::Okay]).is_err());
    }
}
