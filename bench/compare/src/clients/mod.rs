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
    #[cfg(feature = "servers")]
    Postgres,
    /// GET_LOCK.
    #[cfg(feature = "servers")]
    MariaDb,
    /// The lock service of etcd.
    #[cfg(feature = "servers")]
    Etcd,
    /// The recipe with ephemeral nodes in sequence.
    #[cfg(feature = "servers")]
    ZooKeeper,
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

/// A connected client.
pub(crate) enum Client {
    Redis(redis::Client),
    Redisson(Box<redis::Listener>),
    Nothing,
    #[cfg(feature = "servers")]
    Postgres(postgres::Client),
    #[cfg(feature = "servers")]
    MariaDb(Box<mariadb::Client>),
    #[cfg(feature = "servers")]
    Etcd(etcd::Client),
    #[cfg(feature = "servers")]
    ZooKeeper(zookeeper::Client),
}

/// Makes what a lock needs before its first client: an element, a folder, a script.
pub(crate) async fn prepare(target: Target) -> Result<(), Failure> {
    match target.kind {
        Kind::Lock | Kind::List | Kind::SetNx(_) | Kind::Redisson => redis::prepare(target).await,
        Kind::Nothing => Ok(()),
        #[cfg(feature = "servers")]
        Kind::ZooKeeper => zookeeper::prepare(target).await,
        #[cfg(feature = "servers")]
        Kind::Postgres | Kind::MariaDb | Kind::Etcd => Ok(()),
    }
}

impl Client {
    /// Connects the client of this number.
    pub(crate) async fn connect(target: Target, number: usize, requests: Requests) -> Result<Client, Failure> {
        Ok(match target.kind {
            Kind::Lock | Kind::List | Kind::SetNx(_) => {
                Client::Redis(redis::Client::connect(target, number, requests).await?)
            }
            Kind::Redisson => Client::Redisson(Box::new(redis::Listener::connect(target, number, requests).await?)),
            Kind::Nothing => Client::Nothing,
            #[cfg(feature = "servers")]
            Kind::Postgres => Client::Postgres(postgres::Client::connect(target, requests).await?),
            #[cfg(feature = "servers")]
            Kind::MariaDb => Client::MariaDb(Box::new(mariadb::Client::connect(target, requests).await?)),
            #[cfg(feature = "servers")]
            Kind::Etcd => Client::Etcd(etcd::Client::connect(target, requests).await?),
            #[cfg(feature = "servers")]
            Kind::ZooKeeper => Client::ZooKeeper(zookeeper::Client::connect(target, requests).await?),
        })
    }

    /// Waits until it has the lock.
    pub(crate) async fn acquire(&mut self) -> Result<(), Failure> {
        match self {
            Client::Redis(client) => client.acquire().await,
            Client::Redisson(client) => client.acquire().await,
            Client::Nothing => Ok(()),
            #[cfg(feature = "servers")]
            Client::Postgres(client) => client.acquire().await,
            #[cfg(feature = "servers")]
            Client::MariaDb(client) => client.acquire().await,
            #[cfg(feature = "servers")]
            Client::Etcd(client) => client.acquire().await,
            #[cfg(feature = "servers")]
            Client::ZooKeeper(client) => client.acquire().await,
        }
    }

    /// Gives it back; returns when the server has answered. Fails if it was no longer this client's.
    pub(crate) async fn release(&mut self) -> Result<(), Failure> {
        match self {
            Client::Redis(client) => client.release().await,
            Client::Redisson(client) => client.release().await,
            Client::Nothing => Ok(()),
            #[cfg(feature = "servers")]
            Client::Postgres(client) => client.release().await,
            #[cfg(feature = "servers")]
            Client::MariaDb(client) => client.release().await,
            #[cfg(feature = "servers")]
            Client::Etcd(client) => client.release().await,
            #[cfg(feature = "servers")]
            Client::ZooKeeper(client) => client.release().await,
        }
    }
}

/// Fails if the answer to a release is not what it must be.
fn check_released(released: bool) -> Result<(), Failure> {
    if released { Ok(()) } else { Err("the lock was no longer held when it was released".into()) }
}
