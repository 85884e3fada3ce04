//! The same locks for tasks of tokio. They wait by the same rule and in the same code as threads do, but without a
//! connection of their own: the server tells them when it is their turn. All requests go out, and all locks are
//! renewed, on the threads of the client; so a runtime that is busy, or has ended, neither loses a lock nor keeps one.

use crate::backend::Patience;
use crate::client::Client;
use crate::clock::Moment;
use crate::error::Error;
use crate::handover::HoldToken;
use crate::lock::Lock;
use crate::request::{check, holders_of, is_some};
use crate::sync::Caller;
use crate::task_guard::AsyncGuard;
use redis::{Cmd, Value};
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// These need the timer of tokio: a runtime that was built with `enable_time` or `enable_all`.
///
/// To drop one of their futures cancels the wait: the owner leaves the queue in the background, and what is granted all
/// the same is given back.
impl Lock {
    /// [`lock`](Lock::lock) for tasks: waits for it as long as it takes.
    ///
    /// ```no_run
    /// # use redis_lock_client::{Client, Error};
    /// # async fn work() -> Result<(), Error> {
    /// let client = Client::open("redis://127.0.0.1")?;
    /// let guard = client.key("report").lock_async().await?;
    /// // ... only one program in the world is here ...
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Lock::lock), and [`Error::Refused`] for a lock of a [`Quorum`](crate::Quorum).
    pub async fn lock_async(&self) -> Result<AsyncGuard, Error> {
        loop {
            // Without a deadline there is no end of the time.
            if let Some(guard) = self.acquire_in_task(Patience::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// [`try_lock`](Lock::try_lock) for tasks. `None` if others hold it, or wait for it.
    ///
    /// # Errors
    ///
    /// Those of [`try_lock`](Lock::try_lock), and [`Error::Refused`] for a lock of a [`Quorum`](crate::Quorum).
    pub async fn try_lock_async(&self) -> Result<Option<AsyncGuard>, Error> {
        self.acquire_in_task(Patience::None).await
    }

    /// [`try_lock_for`](Lock::try_lock_for) for tasks. `None` if others had it until then.
    ///
    /// # Errors
    ///
    /// Those of [`try_lock_for`](Lock::try_lock_for), and [`Error::Refused`] for a lock of a
    /// [`Quorum`](crate::Quorum).
    pub async fn try_lock_for_async(&self, time: Duration) -> Result<Option<AsyncGuard>, Error> {
        if time.is_zero() {
            return self.try_lock_async().await;
        }
        self.acquire_in_task(Patience::Until(Moment::now() + time)).await
    }

    /// [`lead`](Lock::lead) for tasks. The future of a term is dropped as soon as its lock is lost.
    ///
    /// # Errors
    ///
    /// Those of [`lock_async`](Lock::lock_async).
    pub async fn lead_async<T>(&self, mut term: impl AsyncFnMut(&AsyncGuard) -> ControlFlow<T>) -> Result<T, Error> {
        loop {
            let guard = self.lock_async().await?;
            let outcome = {
                let (mut work, mut over) = (pin!(term(&guard)), pin!(guard.lost()));
                let first = poll_fn(|context| match over.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(None),
                    Poll::Pending => self.under(&guard, || work.as_mut().poll(context)).map(Some),
                });
                first.await
            };
            if let Some(ControlFlow::Break(value)) = outcome {
                return Ok(value);
            }
        }
    }

    /// Takes the lock inside another one of a task, under the same owner: [`within`](Lock::within).
    pub fn within_async(self, outer: &AsyncGuard) -> Lock {
        self.owner(outer.owner())
    }
}

/// These need the timer of tokio: a runtime that was built with `enable_time` or `enable_all`.
impl Client {
    /// [`check`](Client::check) for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Client::check).
    pub async fn check_async(&self, key: impl AsRef<[u8]>, owner: &str, fence: u64) -> Result<bool, Error> {
        let request = check(key.as_ref(), owner, None, Some(fence));
        Ok(is_some(&self.ask_in(Caller::Task, key.as_ref(), &request).await?))
    }

    /// [`adopt`](Client::adopt) for tasks. If its future is dropped, what the server gives all the same is given back.
    ///
    /// # Errors
    ///
    /// Those of [`adopt`](Client::adopt).
    pub async fn adopt_async(&self, token: &HoldToken) -> Result<AsyncGuard, Error> {
        let (hold, keeper, claim) = self.adopt_in(Caller::Task, token).await?;
        Ok(AsyncGuard::new(hold, keeper, claim))
    }

    /// [`holders`](Client::holders) for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`holders`](Client::holders).
    pub async fn holders_async(&self, key: impl AsRef<[u8]>) -> Result<Vec<(String, Option<String>)>, Error> {
        let request = redis::cmd("LOCK.INFO").arg(key.as_ref()).take();
        Ok(holders_of(self.ask_in(Caller::Task, key.as_ref(), &request).await?))
    }

    /// [`ask`](Client::ask) for tasks.
    ///
    /// # Errors
    ///
    /// Those of [`ask`](Client::ask).
    pub async fn ask_async(&self, key: impl AsRef<[u8]>, command: &Cmd) -> Result<Value, Error> {
        self.ask_in(Caller::Task, key.as_ref(), command).await
    }

    /// [`wait_released`](Client::wait_released) for tasks.
    pub async fn wait_released_async(&self, timeout: Duration) -> bool {
        self.wait_released_in(Caller::Task, timeout).await
    }
}
