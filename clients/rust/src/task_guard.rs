//! A lock that a task holds, for the program that works under it. Nothing of it needs the runtime but to wait.

use crate::error::Error;
use crate::guard::{Ended, Ending, Held, Loss, begin_end, is_settled, may_guard};
use crate::handover::HoldToken;
use crate::hold::Hold;
use crate::one::OneServer;
use crate::owner::Claim;
use crate::sync::{Caller, here};
use redis::{Cmd, FromRedisValue, RedisError};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

impl Loss {
    /// [`wait`](Loss::wait) for tasks: true once the lock is lost, false once it is released.
    pub async fn wait_async(&self) -> bool {
        self.0.wait_lost(Caller::Task, Duration::MAX).await
    }
}

/// A lock that a task holds. It is renewed in the background, and released in the background when this is dropped.
///
/// To drop it never blocks, and needs no runtime. The release is repeated until it is answered or the lease is over;
/// [`Client::wait_released_async`] waits for that at the end of a program. All else is as of a
/// [`Guard`](crate::Guard).
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct AsyncGuard {
    held: Held,
    keeper: OneServer,
    /// None after the release.
    claim: Option<Claim>,
}

impl AsyncGuard {
    pub(crate) fn new(hold: Arc<Hold>, keeper: OneServer, claim: Claim) -> AsyncGuard {
        AsyncGuard { held: Held(hold), keeper, claim: Some(claim) }
    }

    /// Waits until it is lost, and for ever if it never is: for a branch of `tokio::select!` beside the work.
    pub async fn lost(&self) {
        self.held.0.wait_lost(Caller::Task, Duration::MAX).await;
    }

    /// Asks the server whether it is held: all keys, in the mode in which they were taken, under these fences.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub async fn check(&self) -> Result<bool, Error> {
        self.keeper.check(Caller::Task, &self.held.0).await
    }

    /// Renews the lease now, besides the renewals that happen anyway, and tells whether it is held.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub async fn renew(&self) -> Result<bool, Error> {
        self.keeper.renew(Caller::Task, &self.held.0).await
    }

    /// Replaces the text for people: [`Guard::set_note`](crate::Guard::set_note).
    ///
    /// # Errors
    ///
    /// Those of [`Guard::set_note`](crate::Guard::set_note).
    pub async fn set_note(&self, note: &str) -> Result<(), Error> {
        self.keeper.set_note(Caller::Task, &self.held.0, note).await
    }

    /// Runs a command on the server if the lock is held in that moment: [`Guard::guard`](crate::Guard::guard).
    ///
    /// # Errors
    ///
    /// Those of [`Guard::guard`](crate::Guard::guard).
    pub async fn guard<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        may_guard(&self.held.0)?;
        let reply = self.keeper.guard(Caller::Task, &self.held.0, command).await?;
        redis::from_redis_value(reply).map_err(|error| Error::Server(RedisError::from(error)))
    }

    /// Releases the lock, and tells what came of it. If the future is dropped, the release goes on all the same.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`](crate::Guard::release).
    pub async fn release(mut self) -> Result<(), Error> {
        let claim = self.claim.take();
        self.end(claim, Ending::Now).await
    }

    /// Gives the lock up without releasing it: it ends by itself after this time.
    ///
    /// # Errors
    ///
    /// Those of [`release`](AsyncGuard::release).
    pub async fn release_after(mut self, time: Duration) -> Result<(), Error> {
        let claim = self.claim.take();
        self.end(claim, Ending::After(time)).await
    }

    /// Renews the lock no more, and gives what another process adopts it by: [`Guard::detach`](crate::Guard::detach).
    /// If the future is dropped, the lock is released.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::detach`](crate::Guard::detach).
    pub async fn detach(mut self) -> Result<HoldToken, Error> {
        let token = HoldToken::of(&self.held.0)?;
        let ended = self.end(self.claim.clone(), Ending::HandedOver(token.lease)).await;
        if is_settled(&ended) {
            self.claim = None;
        }
        ended.map(|()| token)
    }

    async fn end(&self, claim: Option<Claim>, end: Ending) -> Result<(), Error> {
        let Some(claim) = claim else { return Ok(()) };
        let claim = begin_end(&self.held.0, claim)?;
        let release = Release(self.held.0.clone());
        let ended = self.keeper.end(Caller::Task, &self.held.0, end, claim, None).await;
        ended.of(&release.0)
    }
}

/// A release that is waited for. Given up, it counts as done: nobody is told otherwise.
struct Release(Arc<Hold>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.end_release(false);
    }
}

impl Deref for AsyncGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for AsyncGuard {
    fn drop(&mut self) {
        let Some(Ok(claim)) = self.claim.take().map(|claim| begin_end(&self.held.0, claim)) else { return };
        // Its answer is not waited for.
        let _: Ended = here(self.keeper.end(Caller::Thread, &self.held.0, Ending::Now, claim, Some(Duration::ZERO)));
        self.held.0.end_release(false);
    }
}

impl fmt::Debug for AsyncGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.0.describe(f, "AsyncGuard")
    }
}
