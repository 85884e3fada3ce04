//! A lock that is held, for the program that works under it: gives it back, asks about it, writes under it.

use crate::clock::{LEAVE, Moment};
use crate::error::Error;
use crate::handover::HoldToken;
use crate::hold::Hold;
use crate::owner::{Claim, Owner};
use crate::sync::{Caller, here};
use crate::trouble::Trouble;
use redis::{Cmd, FromRedisValue, RedisError, Value};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// What speaks with the servers about a hold: with one, or with a quorum.
pub(crate) trait Keeper: Send + Sync {
    /// Asks whether it is held. What is found to be lost is lost.
    fn check(&self, hold: &Hold) -> Result<bool, Error>;

    /// Renews it now, and tells whether it is held.
    fn renew(&self, hold: &Hold) -> Result<bool, Error>;

    /// Lets the lease be so long once, then renews it; tells whether it is held.
    fn try_lease(&self, hold: &Hold, time: Duration) -> Result<bool, Error>;

    /// Replaces its note, and renews it.
    fn set_note(&self, hold: &Hold, note: &str) -> Result<(), Error>;

    /// Runs a command if it is held, and gives the reply.
    fn guard(&self, hold: &Hold, command: &Cmd) -> Result<Value, Error>;

    /// Refused where another process could not take it over.
    fn may_be_handed_over(&self) -> Result<(), Error>;

    /// Renews it no more, and releases it, or lets it end by itself. Goes on in the background where no answer comes in
    /// time: in this one, or in that of a request. The claim ends when it has ended.
    fn end(&self, hold: &Arc<Hold>, end: Ending, claim: Claim, patience: Option<Duration>) -> Ended;
}

/// How a hold is given up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending {
    Now,
    /// By itself, after this time.
    After(Duration),
    /// The same, but under its own fence, by which another process may take it over until then.
    HandedOver(Duration),
}

impl Ending {
    /// How long it lasts yet; None if it is released.
    pub(crate) fn after(self) -> Option<Duration> {
        match self {
            Ending::Now => None,
            Ending::After(time) | Ending::HandedOver(time) => Some(time),
        }
    }
}

/// What came of a release.
pub(crate) struct Ended {
    /// Whether a server says that it was not held any more.
    pub(crate) was_lost: bool,
    /// Why it may be held still.
    pub(crate) failure: Option<Error>,
}

/// What is known here of a lock that is held, without a request: of each guard.
pub struct Held(pub(crate) Arc<Hold>);

impl Held {
    /// Tells of renewals that fail, and of its loss.
    pub(crate) fn tell(&self, trouble: &Trouble) {
        self.0.tell(trouble);
    }

    /// The fence of the lock, or of its first key: each holder's is higher than those of all holders before. A resource
    /// that has seen a higher one refuses this holder's requests.
    pub fn fence(&self) -> u64 {
        self.0.fences[0]
    }

    /// The fences of all keys, in their order.
    pub fn fences(&self) -> &[u64] {
        &self.0.fences
    }

    /// The name under which the server knows the holder.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// Until when nobody else can hold it, as far as is known. Each renewal moves it.
    pub fn valid_until(&self) -> Moment {
        self.0.valid_until()
    }

    /// Whether it was lost. Asks nobody: see [`check`](Guard::check).
    ///
    /// It is true at the latest when validity ends, also if the server cannot be reached, and in the child of a fork.
    /// It stays true.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// A signal of its loss for other threads and tasks, which outlives the guard.
    pub fn loss(&self) -> Loss {
        Loss(self.0.clone())
    }
}

/// A lock that is held. It is renewed in the background, and released when this is dropped.
///
/// To drop it waits for the answer of the server, a quarter of a second at most. Where none comes by then, the release
/// goes on in the background, until it is answered or the lease is over. A process that ends sooner leaves the lock to
/// its lease: see [`Client::wait_released`](crate::Client::wait_released).
///
/// A lock can be lost while it is held: the server was away for longer than the lease, the program stood still, an
/// operator broke it. [`is_lost`](Held::is_lost) and [`wait_lost`](Guard::wait_lost) tell; so do
/// [`check`](Guard::check) and [`release`](Guard::release). Data that must stay right even then is written with
/// [`guard`](Guard::guard), or where the [`fence`](Held::fence) is compared.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    held: Held,
    keeper: Box<dyn Keeper>,
    /// None after the release.
    claim: Option<Claim>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>, keeper: Box<dyn Keeper>, claim: Claim) -> Guard {
        Guard { held: Held(hold), keeper, claim: Some(claim) }
    }

    /// Waits until it is lost, so long at most, and tells whether it was.
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        here(self.held.0.wait_lost(Caller::Thread, timeout))
    }

    /// Asks the server whether it is held: all keys, in the mode in which they were taken, under these fences.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub fn check(&self) -> Result<bool, Error> {
        self.keeper.check(&self.held.0)
    }

    /// Renews the lease now, besides the renewals that happen anyway, and tells whether it is held.
    ///
    /// For a program that is about to do what only a holder may do, or that stood still for a while.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub fn renew(&self) -> Result<bool, Error> {
        self.keeper.renew(&self.held.0)
    }

    /// Lets the lease be so long once, and renews it as usual then: whether the server would let it be so long, for
    /// [`release_after`](Guard::release_after). Tells whether it is held.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub fn try_lease(&self, time: Duration) -> Result<bool, Error> {
        self.keeper.try_lease(&self.held.0, time)
    }

    /// Replaces the text for people, such as by how far the work is, and renews the lease. An empty one takes it away.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if it is not held.
    /// - [`Error::Connection`] or [`Error::Server`] if the server does not answer, or refuses to.
    /// - [`Error::Refused`] for a lock of a quorum.
    pub fn set_note(&self, note: &str) -> Result<(), Error> {
        self.keeper.set_note(&self.held.0, note)
    }

    /// Runs a command on the server if the lock is held in that moment, and gives its reply. Nothing can come between.
    ///
    /// The keys of the command lie beside that of the lock: in a cluster in its slot (`{report}:lock`,
    /// `{report}:text`). Of several keys the first is the one that must be held.
    ///
    /// ```no_run
    /// # use redis_lock_client::{Client, Error};
    /// # let client = Client::open("redis://127.0.0.1")?;
    /// let held = client.lock("{report}:lock")?;
    /// let pages: Option<u32> = held.guard(redis::cmd("GET").arg("{report}:pages"))?;
    /// let pages = pages.unwrap_or(0) + 1;
    /// held.guard::<()>(redis::cmd("SET").arg("{report}:pages").arg(pages))?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if it is not held: nothing was run.
    /// - [`Error::Server`] with the error of the command.
    /// - [`Error::Connection`] if no answer came: it may have been run. It is not sent twice.
    /// - [`Error::Refused`] for a lock that is shared: the server guards by locks that are taken alone.
    pub fn guard<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        may_guard(&self.held.0)?;
        let reply = self.keeper.guard(&self.held.0, command)?;
        redis::from_redis_value(reply).map_err(|error| Error::Server(RedisError::from(error)))
    }

    /// Releases the lock, and tells what came of it. To drop the guard does the same, and tells nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if it was lost before: another may have held it meanwhile.
    /// - [`Error::Connection`] or [`Error::Server`] if it was not lost as far as is known, but the server did not
    ///   release it. Where no answer came, the release goes on in the background.
    pub fn release(mut self) -> Result<(), Error> {
        let claim = self.claim.take();
        self.end(claim, Ending::Now, None)
    }

    /// Gives the lock up without releasing it: it ends by itself after this time. So the next holder comes no earlier.
    ///
    /// # Errors
    ///
    /// As of [`release`](Guard::release).
    pub fn release_after(mut self, time: Duration) -> Result<(), Error> {
        let claim = self.claim.take();
        self.end(claim, Ending::After(time), None)
    }

    /// Renews the lock no more, and gives what another process [adopts](crate::Client::adopt) it by, within its lease.
    /// The lock stays held meanwhile. If nobody adopts it, it ends with its lease. Where this fails, it is released.
    ///
    /// # Errors
    ///
    /// - [`Error::Refused`] for several keys, shares, a session, a `max`, or a lock of a quorum.
    /// - As of [`release`](Guard::release).
    pub fn detach(mut self) -> Result<HoldToken, Error> {
        let token = HoldToken::of(&self.held.0)?;
        self.keeper.may_be_handed_over()?;
        let ended = self.end(self.claim.clone(), Ending::HandedOver(token.lease), None);
        if is_settled(&ended) {
            self.claim = None;
        }
        ended.map(|()| token)
    }

    fn end(&self, claim: Option<Claim>, end: Ending, patience: Option<Duration>) -> Result<(), Error> {
        let Some(claim) = claim else { return Ok(()) };
        let claim = begin_end(&self.held.0, claim)?;
        let ended = self.keeper.end(&self.held.0, end, claim, patience);
        ended.of(&self.held.0)
    }
}

/// Fails if a command under it would be refused, or is too late.
pub(crate) fn may_guard(hold: &Hold) -> Result<(), Error> {
    if !hold.terms.is_for_one() {
        return Err(Error::Refused("a shared lock guards nothing: use check".to_owned()));
    }
    if hold.is_lost() { Err(Error::Lost) } else { Ok(()) }
}

/// From here on it is not renewed, and what a renewal on its way is answered does not count.
pub(crate) fn begin_end(hold: &Hold, claim: Claim) -> Result<Claim, Error> {
    if !hold.is_ours() {
        // The lock is that of the process which took it.
        claim.keep();
        return Err(Error::Lost);
    }
    hold.begin_release();
    claim.release();
    Ok(claim)
}

/// Whether somebody else has what a guard was to hand over, or nobody. Else the guard has it still.
pub(crate) fn is_settled(handed_over: &Result<(), Error>) -> bool {
    matches!(handed_over, Ok(()) | Err(Error::Lost))
}

impl Ended {
    pub(crate) fn of(self, hold: &Hold) -> Result<(), Error> {
        if hold.end_release(self.was_lost) { Err(Error::Lost) } else { self.failure.map_or(Ok(()), Err) }
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Whoever wants to know uses release.
        let claim = self.claim.take();
        drop(self.end(claim, Ending::Now, Some(LEAVE)));
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.0.describe(f, "Guard")
    }
}

/// A signal of the loss of one lock, for threads that do not have its guard.
///
/// ```no_run
/// # use redis_lock_client::{Client, Error};
/// # use std::time::Duration;
/// # let client = Client::open("redis://127.0.0.1")?;
/// let guard = client.lock("report")?;
/// let loss = guard.loss();
/// let watch = std::thread::spawn(move || {
///     if loss.wait(Duration::MAX) {
///         eprintln!("the lock was lost");
///     }
/// });
/// // ... the work ...
/// guard.release()?;
/// watch.join().expect("no panic");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Loss(pub(crate) Arc<Hold>);

impl Loss {
    /// Whether the lock was lost before it was released.
    pub fn is_set(&self) -> bool {
        self.0.is_lost()
    }

    /// Waits until the validity of the lock ends at another moment than this one, since it was renewed. Tells which.
    /// `None` as soon as the lock is lost, or its release begins.
    ///
    /// For a program that has to tell others how long they may go on.
    pub fn next_end(&self, known: Moment) -> Option<Moment> {
        self.0.next_end(known)
    }

    /// Waits until the lock is lost, so long at most, and tells whether it was. Ends with false as soon as the lock is
    /// released.
    pub fn wait(&self, timeout: Duration) -> bool {
        here(self.0.wait_lost(Caller::Thread, timeout))
    }
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss").field("is_set", &self.is_set()).finish()
    }
}
