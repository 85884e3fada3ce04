//! A lock as a program names it: which keys, and on what terms. Holds nothing.

use crate::backend::{Attempt, Backend, Patience};
use crate::cancel::Cancel;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::{Guard, Held};
use crate::owner::Owner;
use crate::request::Terms;
use crate::scope;
#[cfg(feature = "tokio")]
use crate::task_guard::AsyncGuard;
use crate::trouble::Trouble;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// A lock with its options, which is yet to be taken. [`Client::key`](crate::Client::key) and
/// [`Client::keys`](crate::Client::keys) make one.
///
/// It can be taken as often as one likes; each time it is another owner. It can be cloned and sent to other threads.
///
/// ```no_run
/// use redis_lock_client::{Client, Error};
/// use std::time::Duration;
///
/// let client = Client::open("redis://127.0.0.1")?;
/// let api = client.key("api").limit(3).lease(Duration::from_secs(10)).note("nightly import");
/// if let Some(guard) = api.try_lock_for(Duration::from_secs(5))? {
///     println!("one of three; fence {}", guard.fence());
///     guard.release()?;
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "it is taken by lock, try_lock or try_lock_for"]
pub struct Lock {
    backend: Arc<dyn Backend>,
    terms: Terms,
    owner: Option<Owner>,
    cancel: Option<Cancel>,
    trouble: Option<Trouble>,
}

impl Lock {
    pub(crate) fn new(backend: Arc<dyn Backend>, keys: Vec<Vec<u8>>) -> Lock {
        Lock { backend, terms: Terms::new(keys), owner: None, cancel: None, trouble: None }
    }

    /// How long the lock outlives its holder: 30 s without this. At least 1 s, at most what the server allows
    /// (`lock.max-lease-ms`). It is renewed each third of it.
    pub fn lease(mut self, lease: Duration) -> Lock {
        self.terms.lease = lease;
        self
    }

    /// How long it is held at most, from when it was asked for: it is renewed until then and no further, and then lost.
    /// So work that never ends keeps nobody out. At least the lease; not for a quorum.
    pub fn max(mut self, time: Duration) -> Lock {
        self.terms.max = Some(time);
        self
    }

    /// Shares the lock with all others that do: many readers, or one writer.
    pub fn shared(mut self) -> Lock {
        self.terms.shared = true;
        self
    }

    /// Shares the lock with others as long as all together take at most so many shares: a semaphore. Each holder brings
    /// its own limit; those that differ are each judged by their own. For one key.
    pub fn limit(mut self, limit: u32) -> Lock {
        self.terms.limit = Some(limit);
        self
    }

    /// Takes so many of these shares: 1 without this.
    pub fn take(mut self, take: u32) -> Lock {
        self.terms.take = take;
        self
    }

    /// A text for people, which `LOCK.INFO` and `LOCK.LOG` show.
    pub fn note(mut self, note: impl Into<String>) -> Lock {
        self.terms.note = Some(note.into());
        self
    }

    /// Binds the lock to the connection: when that breaks, the lease is cut to this time. So the lock of a program that
    /// dies is free sooner than its lease says. At least 1 s; it is then renewed each third of this.
    pub fn session(mut self, session: Duration) -> Lock {
        self.terms.session = Some(session);
        self
    }

    /// Lets clients with another kind of lock hold the same key, as a string or a hash. That counts as held by others:
    /// a wait asks again after a second at most, where it is an error otherwise (`WRONGTYPE`). Not for a quorum.
    pub fn old_clients(mut self) -> Lock {
        self.terms.old_clients = true;
        self
    }

    /// Takes the lock inside another one, under the same owner. So the server sees when holders wait for each other in
    /// a cycle, and answers [`Error::Deadlock`]. To take [several keys at once](crate::Client::keys) is better.
    pub fn within(self, outer: &Held) -> Lock {
        self.owner(outer.owner())
    }

    /// Takes the lock under this owner, instead of a new one each time.
    pub fn owner(mut self, owner: &Owner) -> Lock {
        self.owner = Some(owner.clone());
        self
    }

    /// Lets waits be ended from another thread.
    pub fn cancelled_by(mut self, cancel: &Cancel) -> Lock {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Tells what keeps a lock from being taken or renewed: that the server cannot be reached, has no module, allows
    /// no locks, is out of memory or tells no wait when it is its turn, that a renewal failed, that the lock was lost.
    /// Each kind is told once until it is over. Errors that are returned are told, too; [`Error::is_transient`] tells
    /// those after which a wait asks again.
    ///
    /// What goes wrong in a wait is told on the thread that waits, all else on a thread of its own. A callback that
    /// panics harms no lock.
    pub fn on_trouble(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Lock {
        self.trouble = Some(Trouble::new(tell));
        self
    }

    /// Takes the lock. Waits for it as long as it takes, in a queue that is first come, first served. While the server
    /// cannot be reached it tries again and again.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`], [`Error::Deadlock`], [`Error::Refused`], and [`Error::Server`] with what will not pass.
    pub fn lock(&self) -> Result<Guard, Error> {
        loop {
            // Without a deadline there is no end of the time.
            if let Some(guard) = self.acquire(Patience::Endless)? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if it is free. `None` if others hold it, or wait for it.
    ///
    /// # Errors
    ///
    /// Any: also those that may pass soon, such as [`Error::Connection`], or `GRACE` after a start of the server.
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.acquire(Patience::None)
    }

    /// Takes the lock, and waits for it so long at most. `None` if others had it until then. With no time it is
    /// [`try_lock`](Lock::try_lock).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Lock::lock), and the last one that might have passed, if the time was up in it.
    pub fn try_lock_for(&self, time: Duration) -> Result<Option<Guard>, Error> {
        if time.is_zero() { self.try_lock() } else { self.acquire(Patience::Until(Moment::now() + time)) }
    }

    /// Leads again and again: waits for the lock, does the work of a term under its guard, and gives the lock back.
    /// The number of the term is the [`fence`](Held::fence). Ends with what the work breaks with; after `Continue` it
    /// waits for the next term, behind others that wait.
    ///
    /// The term is over when the guard [is lost](Guard::wait_lost), and another may lead from then on. Only the work
    /// can stop itself: it looks at the guard, and writes under its fence. A panic of the work ends the term as well. A
    /// wait of the work for the same key is an [`Error::Deadlock`] at once.
    ///
    /// ```no_run
    /// use redis_lock_client::{Client, Error};
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    ///
    /// let client = Client::open("redis://127.0.0.1")?;
    /// let days = client.key("planner").lead(|guard| {
    ///     for day in 1..=7 {
    ///         println!("term {} plans day {day}", guard.fence());
    ///         if guard.wait_lost(Duration::from_secs(1)) {
    ///             return ControlFlow::Continue(());
    ///         }
    ///     }
    ///     ControlFlow::Break(7)
    /// })?;
    /// # assert_eq!(days, 7);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Lock::lock). A [`Cancel`] ends the wait for a term; it ends no work.
    pub fn lead<T>(&self, mut term: impl FnMut(&Guard) -> ControlFlow<T>) -> Result<T, Error> {
        loop {
            let guard = self.lock()?;
            if let ControlFlow::Break(value) = self.under(&guard, || term(&guard)) {
                return Ok(value);
            }
        }
    }

    fn acquire(&self, patience: Patience) -> Result<Option<Guard>, Error> {
        let owner = self.check(patience)?;
        let trouble = self.trouble();
        let tell = |error: &Error| trouble.iter().for_each(|trouble| trouble.tell(error));
        let taken = self.backend.take(owner, self.attempt(patience, &tell));
        taken.inspect(|taken| told(taken.as_deref(), &trouble)).inspect_err(|error| tell_rest(error, patience, &tell))
    }

    /// Takes it in a task. No callback of the application runs there: it may take long.
    #[cfg(feature = "tokio")]
    pub(crate) async fn acquire_in_task(&self, patience: Patience) -> Result<Option<AsyncGuard>, Error> {
        let owner = self.check(patience)?;
        let trouble = self.trouble();
        let tell = |error: &Error| trouble.iter().for_each(|trouble| trouble.tell_apart(error.clone()));
        let taken = self.backend.take_in_task(owner, self.attempt(patience, &tell)).await;
        taken.inspect(|taken| told(taken.as_deref(), &trouble)).inspect_err(|error| tell_rest(error, patience, &tell))
    }

    fn attempt<'a>(&'a self, patience: Patience, tell: &'a (dyn Fn(&Error) + Sync)) -> Attempt<'a> {
        Attempt { terms: &self.terms, patience, cancel: self.cancel.as_ref(), tell }
    }

    /// Runs what is a term of work under this guard, for as long as it is kept.
    pub(crate) fn under<T>(&self, held: &Held, work: impl FnOnce() -> T) -> T {
        scope::under(&held.0, &self.backend, work)
    }

    /// Whom to tell of trouble: the callback of the application, else its logger.
    fn trouble(&self) -> Option<Trouble> {
        #[cfg(feature = "log")]
        let logged = || Some(Trouble::logged(&self.terms));
        #[cfg(not(feature = "log"))]
        let logged = || None;
        self.trouble.clone().or_else(logged)
    }

    /// The owner that asks.
    fn check(&self, patience: Patience) -> Result<Owner, Error> {
        self.terms.check()?;
        if self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled);
        }
        if !matches!(patience, Patience::None) {
            scope::check(&*self.backend, &self.terms)?;
        }
        Ok(self.owner.clone().unwrap_or_else(Owner::new))
    }
}

/// Lets what was taken tell of its troubles.
fn told(held: Option<&Held>, trouble: &Option<Trouble>) {
    if let (Some(held), Some(trouble)) = (held, trouble) {
        held.tell(trouble);
    }
}

/// Tells an error that is returned, if it is trouble that was not told. A wait has told what passes before it asked
/// again.
fn tell_rest(error: &Error, patience: Patience, tell: &dyn Fn(&Error)) {
    let is_trouble = matches!(error, Error::Server(_) | Error::Connection(_) | Error::NoQuorum(_));
    if is_trouble && (matches!(patience, Patience::None) || !error.is_transient()) {
        tell(error);
    }
}
