//! One client of each way to lock: connects, acquires, releases. All are driven by one thread, through the crates that
//! people use for these servers. Each request is counted as it is sent.

#[cfg(feature = "servers")]
mod etcd;
#[cfg(feature = "servers")]
mod mariadb;
#[cfg(feature = "servers")]
mod postgres;
mod redis;
#[cfg(feature = "servers")]
mod zookeeper;

use crate::Failure;
use futures_util::future::LocalBoxFuture;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How to lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// LOCK.ACQUIRE with BLOCK, bound to its connection.
    Lock,
    /// An element of a list, popped and pushed.
    List,
    /// SET NX, asked again after this pause.
    SetNx(Duration),
    /// A hash, scripts and a channel, in the shape of Redisson's lock.
    Redisson,
    /// Each client goes on as if it had the lock.
    Nothing,
    /// pg_advisory_lock.
    Postgres,
    /// GET_LOCK.
    MariaDb,
    /// The lock service of etcd.
    Etcd,
    /// The recipe with ephemeral nodes in sequence.
    ZooKeeper,
}

impl Kind {
    /// True if this program was built with the client.
    pub(crate) fn is_built(self) -> bool {
        cfg!(feature = "servers") || !matches!(self, Kind::Postgres | Kind::MariaDb | Kind::Etcd | Kind::ZooKeeper)
    }
}

/// Which lock, where, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// Of the server, on this machine.
    pub(crate) port: u16,
    /// Each measurement has a lock of its own: what the one before left behind is of no effect.
    pub(crate) lock: u64,
    /// Where there are leases or session timeouts.
    pub(crate) lease: Duration,
}

/// How many requests were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Rc<Cell<u64>>);

impl Requests {
    pub(crate) fn add(&self) {
        self.0.set(self.0.get() + 1);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.get()
    }
}

/// Why a kind that is not built cannot be measured.
pub(crate) const NOT_BUILT: &str = "this program was built without the feature servers";

/// What a request comes to.
pub(crate) type Answer<'c> = LocalBoxFuture<'c, Result<(), Failure>>;

/// A connected client.
pub(crate) trait Client {
    /// Waits until it has the lock.
    fn acquire(&mut self) -> Answer<'_>;
    /// Gives it back; returns when the server has answered. Fails if it was no longer this client's.
    fn release(&mut self) -> Answer<'_>;
}

macro_rules! clients {
    ($($client:ty),+) => {
        $(impl Client for $client {
            fn acquire(&mut self) -> Answer<'_> {
                Box::pin(<$client>::acquire(self))
            }

            fn release(&mut self) -> Answer<'_> {
                Box::pin(<$client>::release(self))
            }
        })+
    };
}

clients!(redis::Client, redis::Listener, Nothing);
#[cfg(feature = "servers")]
clients!(postgres::Client, mariadb::Client, etcd::Client, zookeeper::Client);

/// A client without a server.
struct Nothing;

impl Nothing {
    async fn acquire(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Makes what a lock needs before its first client: an element, a folder, a script.
pub(crate) async fn prepare(target: Target) -> Result<(), Failure> {
    match target.kind {
        Kind::Lock | Kind::List | Kind::SetNx(_) | Kind::Redisson => redis::prepare(target).await,
        #[cfg(feature = "servers")]
        Kind::ZooKeeper => zookeeper::prepare(target).await,
        _ => Ok(()),
    }
}

/// Connects the client of this number.
pub(crate) async fn connect(target: Target, number: usize, requests: Requests) -> Result<Box<dyn Client>, Failure> {
    Ok(match target.kind {
        Kind::Lock | Kind::List | Kind::SetNx(_) => Box::new(redis::Client::connect(target, number, requests).await?),
        Kind::Redisson => Box::new(redis::Listener::connect(target, number, requests).await?),
        Kind::Nothing => Box::new(Nothing),
        #[cfg(feature = "servers")]
        Kind::Postgres => Box::new(postgres::Client::connect(target, requests).await?),
        #[cfg(feature = "servers")]
        Kind::MariaDb => Box::new(mariadb::Client::connect(target, requests).await?),
        #[cfg(feature = "servers")]
        Kind::Etcd => Box::new(etcd::Client::connect(target, requests).await?),
        #[cfg(feature = "servers")]
        Kind::ZooKeeper => Box::new(zookeeper::Client::connect(target, requests).await?),
        #[cfg(not(feature = "servers"))]
        _ => return Err(NOT_BUILT.into()),
    })
}

/// Fails if the answer to a release is not what it must be.
fn check_released(released: bool) -> Result<(), Failure> {
    if released { Ok(()) } else { Err("the lock was no longer held when it was released".into()) }
}
