//! Several servers that know nothing of each other, of which more than half have to grant a lock.
//!
//! A [`Quorum`] names its [members]; a [candidate] asks them for one owner. What each [node] answers is a [vote], the
//! [tally] counts votes, and a [majority] keeps what was got. The [census] tells servers that are no quorum.

pub(crate) mod candidate;
mod census;
mod majority;
mod members;
mod node;
mod tally;
mod vote;

use self::candidate::{Candidate, Won};
use self::members::Members;
use self::tally::quorum_of;
use crate::backend::{Attempt, Backend};
use crate::client::addresses;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::owner::Owner;
use crate::request::{check, holders_of};
use crate::slot::slot_of;
use crate::sync::{Caller, here};
use redis::{IntoConnectionInfo, RedisError};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long a release or a check may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A quorum of servers: a lock is held while more than half of them hold it. So it outlives the loss of any minority,
/// without replication.
///
/// The servers are at least three, and each is one of its own: no replica of another, no node of a cluster. Best is an
/// odd number. All programs name them in the same order, since the first that answers is where they wait in a queue.
/// Each server keeps what it granted (`appendfsync always`), or observes a grace after each start (`lock.grace-ms`).
///
/// [Locks](Lock) and [guards](Guard) are those of a [`Client`](crate::Client), and so are the fences: each holder's is
/// higher than those of all holders before. Left out is what one server alone can do: several keys at once,
/// [`limit`](Lock::limit) and [`guard`](Guard::guard).
///
/// ```no_run
/// use redis_lock_client::{Error, Quorum};
///
/// let quorum = Quorum::open(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let guard = quorum.lock("report")?;
/// println!("fence {}", guard.fence());
/// guard.release()?;
/// # Ok::<(), Error>(())
/// ```
///
/// Clones are one and the same. One for a program is enough: it has one connection and at most one thread for each
/// server. At the first one, where it waits, it has one more for what it gives up, and one for each lock that is waited
/// for, as a [`Client`](crate::Client) has.
#[derive(Clone)]
pub struct Quorum {
    members: Arc<Members>,
    timeout: Duration,
}

impl Quorum {
    /// The servers at these addresses: URLs, or whatever the crate `redis` takes for an address. Connects to nothing
    /// yet.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if one is no address, or there are fewer than three.
    pub fn open<T: IntoConnectionInfo>(servers: impl IntoIterator<Item = T>) -> Result<Quorum, Error> {
        let members = Arc::new(Members::new(addresses(servers)?)?);
        Ok(Quorum { members, timeout: TIMEOUT })
    }

    /// How long a release or a check may take: 5 s without this. Servers that hang do not hold it up.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Quorum {
        self.timeout = timeout;
        self
    }

    /// A lock of this name, with options that can be changed.
    pub fn key(&self, key: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::new(self.clone()), vec![key.as_ref().to_vec()])
    }

    /// Takes a lock, and waits for it as long as it takes: [`Lock::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`Lock::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Result<Guard, Error> {
        self.key(key).lock()
    }

    /// Takes a lock if it is free: [`Lock::try_lock`].
    ///
    /// # Errors
    ///
    /// Those of [`Lock::try_lock`].
    pub fn try_lock(&self, key: impl AsRef<[u8]>) -> Result<Option<Guard>, Error> {
        self.key(key).try_lock()
    }

    /// Takes a lock, and waits for it so long at most: [`Lock::try_lock_for`].
    ///
    /// # Errors
    ///
    /// Those of [`Lock::try_lock_for`].
    pub fn try_lock_for(&self, key: impl AsRef<[u8]>, time: Duration) -> Result<Option<Guard>, Error> {
        self.key(key).try_lock_for(time)
    }

    /// Whether more than half of the servers say that this owner holds this lock under this fence, or has won a higher
    /// one back there.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if too few answer.
    pub fn check(&self, key: impl AsRef<[u8]>, owner: &str, fence: u64) -> Result<bool, Error> {
        let (key, needed) = (key.as_ref(), quorum_of(self.members.nodes.len()));
        let (sender, answers) = channel();
        for (number, node) in self.members.nodes.iter().enumerate() {
            let (sender, transport, limit) = (sender.clone(), node.transport().clone(), self.timeout);
            let (slot, request) = (slot_of(key), check(key, owner, None, None));
            let thread = std::thread::Builder::new().name("redis-lock-check".to_owned());
            let ask = move || {
                let reply = here(transport.ask(Caller::Thread, slot, request, limit)).map_err(Error::from);
                let held = reply.and_then(|reply| {
                    redis::from_redis_value::<Option<u64>>(reply).map_err(|error| RedisError::from(error).into())
                });
                // Nobody listens any more when the others were enough.
                drop(sender.send((number, held)));
            };
            thread.spawn(ask).map_err(RedisError::from)?;
        }
        drop(sender);
        let (mut held, mut free, mut failures) = (0, 0, Vec::new());
        for (number, answer) in answers {
            match answer {
                Ok(found) if found.is_some_and(|found| found >= fence) => held += 1,
                Ok(_) => free += 1,
                Err(error) => failures.push(format!("{}: {error}", self.members.nodes[number].address())),
            }
            if held >= needed {
                return Ok(true);
            }
            if free > self.members.nodes.len() - needed {
                return Ok(false);
            }
        }
        Err(Error::NoQuorum(failures.join("; ")))
    }

    /// The owners that hold a lock, each with its note: for people. As the first server says that answers.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if none answers.
    pub fn holders(&self, key: impl AsRef<[u8]>) -> Result<Vec<(String, Option<String>)>, Error> {
        let key = key.as_ref();
        let request = redis::cmd("LOCK.INFO").arg(key).take();
        let mut failures = Vec::new();
        for node in &self.members.nodes {
            match here(node.transport().ask(Caller::Thread, slot_of(key), request.clone(), self.timeout)) {
                Ok(reply) => return Ok(holders_of(reply)),
                Err(error) => failures.push(format!("{}: {}", node.address(), Error::from(error))),
            }
        }
        Err(Error::NoQuorum(failures.join("; ")))
    }

    /// Waits until the places of waits are given back that ended without an answer, so long at most. Tells whether they
    /// are.
    pub fn wait_released(&self, timeout: Duration) -> bool {
        let deadline = Moment::now() + timeout;
        let nodes = &mut self.members.nodes.iter();
        nodes.all(|node| here(node.transport().wait_released(Caller::Thread, deadline.left())))
    }
}

impl Backend for Quorum {
    fn place(&self) -> *const () {
        Arc::as_ptr(&self.members).cast()
    }

    fn take(&self, owner: Owner, attempt: Attempt<'_>) -> Result<Option<Guard>, Error> {
        let Attempt { terms, patience, cancel, tell } = attempt;
        terms.check_for_quorum()?;
        let candidate = Candidate { members: &self.members, terms, owner: &owner, limit: self.timeout, cancel, tell };
        let won = candidate.take(patience)?;
        Ok(won.map(|Won { hold, majority, claim }| Guard::new(hold, Box::new(majority), claim)))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.members.nodes.iter().map(|node| node.address()).collect();
        f.debug_struct("Quorum").field("servers", &servers).field("timeout", &self.timeout).finish()
    }
}
