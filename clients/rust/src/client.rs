//! A server, or several that act as one, and how to reach them. Makes locks.

use crate::acquisition::{Acquisition, Granted};
use crate::backend::{Attempt, Backend, Patience};
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::Guard;
use crate::handover::HoldToken;
use crate::hold::Hold;
use crate::listener::{Figure, Figures, Listener};
use crate::lock::Lock;
use crate::one::OneServer;
use crate::owner::{Claim, Owner};
use crate::request::{check, holders_of, is_some};
use crate::servers::Servers;
use crate::slot::slot_of;
use crate::sync::{Caller, here};
use crate::transport::Transport;
use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError, Value};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take, connecting included.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where locks are kept: one server, a cluster, or the primary that Sentinels know.
///
/// Clones share its connections. It is made for many threads; one client for a program is enough. It has one
/// connection to each server for renewals, from before the first lock on, and one for each wait, 32 at most
/// ([`max_blocking`](Client::max_blocking)); further waits share one. Idle connections, 8 at most, are closed after
/// 30 s.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
    timeout: Duration,
    figures: Option<Figures>,
}

impl Client {
    /// The server at this address: a URL (`redis://`, `rediss://` for TLS, `unix://`), or whatever the crate `redis`
    /// takes for one. A node of a cluster will do: the others are found when they are needed. Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if this is no address.
    pub fn open(server: impl IntoConnectionInfo) -> Result<Client, Error> {
        Client::cluster([server])
    }

    /// The cluster of these nodes. The first that answers is asked for the others.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if one is no address, or there is none.
    pub fn cluster<T: IntoConnectionInfo>(nodes: impl IntoIterator<Item = T>) -> Result<Client, Error> {
        let nodes = addresses(nodes)?;
        Ok(Client::of(Servers::nodes(nodes)))
    }

    /// The primary that these Sentinels know by this name. It is asked with these settings: user, password, database.
    /// If the Sentinels speak TLS, so does it.
    ///
    /// ```no_run
    /// use redis_lock_client::{Client, Error};
    ///
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let settings = redis::RedisConnectionInfo::default().set_password("secret");
    /// let client = Client::sentinel(sentinels, "mymaster", settings)?;
    /// let guard = client.lock("report")?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if one is no address, or there is none.
    pub fn sentinel<T: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = T>,
        name: &str,
        settings: RedisConnectionInfo,
    ) -> Result<Client, Error> {
        let sentinels = addresses(sentinels)?;
        Ok(Client::of(Servers::sentinels(sentinels, name, settings)))
    }

    fn of(servers: Servers) -> Client {
        Client { transport: Arc::new(Transport::new(servers)), timeout: TIMEOUT, figures: None }
    }

    /// How long a request may take, connecting included: 5 s without this. It does not bound how long a lock is waited
    /// for.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Client {
        self.timeout = timeout;
        self
    }

    /// Lets this one hear what the locks of this client do.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`] if the system has no thread for it.
    pub fn listener(mut self, listener: impl Listener + 'static) -> Result<Client, Error> {
        self.figures = Some(Figures::to(listener).map_err(|error| Error::Connection(error.into()))?);
        Ok(self)
    }

    /// How many waits of this client, and of its clones, have a connection each: 32 without this. Further ones are told
    /// by the server when it is their turn, over one connection together.
    #[must_use]
    pub fn max_blocking(self, waits: usize) -> Client {
        self.transport.pool.let_wait(waits);
        self
    }

    /// How the channels begin on which waits are told so, behind `lock:notify:`. A user of the server who may use no
    /// others has the right to those: `&lock:notify:app:*` for `app:`. It is for this client and its clones.
    #[must_use]
    pub fn notify_prefix(self, prefix: &str) -> Client {
        self.transport.notices.name_channels(prefix);
        self
    }

    /// A lock of this name, with options that can be changed.
    pub fn key(&self, key: impl AsRef<[u8]>) -> Lock {
        self.keys([key])
    }

    /// A lock of several names at once: all of them are taken in one step, or none. In a cluster all lie in one slot
    /// (`{acct}:1`, `{acct}:2`).
    pub fn keys<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Lock {
        Lock::new(Arc::new(self.clone()), keys.into_iter().map(|key| key.as_ref().to_vec()).collect())
    }

    /// Takes a lock, and waits for it as long as it takes: [`Lock::lock`].
    ///
    /// ```no_run
    /// # use redis_lock_client::{Client, Error};
    /// # let client = Client::open("redis://127.0.0.1")?;
    /// let guard = client.lock("report")?;
    /// // ... only one program in the world is here ...
    /// guard.release()?;
    /// # Ok::<(), Error>(())
    /// ```
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

    /// Takes over a lock that another process has [detached](Guard::detach). Its fence rises, so that what the giver
    /// still sends under the former one is refused. Asked again for the time of a request, where the server cannot
    /// answer yet.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if its lease is over, another has adopted it, or it was broken.
    /// - [`Error::Connection`] if no answer came: the lock may be taken over for nobody, and then ends with its lease.
    /// - [`Error::Server`] if the server refuses to.
    pub fn adopt(&self, token: &HoldToken) -> Result<Guard, Error> {
        let (hold, keeper, claim) = here(self.adopt_in(Caller::Thread, token))?;
        Ok(Guard::new(hold, Box::new(keeper), claim))
    }

    pub(crate) async fn adopt_in(
        &self,
        caller: Caller,
        token: &HoldToken,
    ) -> Result<(Arc<Hold>, OneServer, Claim), Error> {
        let (terms, owner) = (token.terms(), Owner::named(&token.owner));
        terms.check()?;
        let claim = owner.claim(caller, &terms.keys, Duration::ZERO).await?;
        let (fence, sent) = token.raise(caller, &self.transport, self.timeout.min(token.lease)).await?;
        let hold = Arc::new(Hold::new(terms, owner, vec![fence], sent).counted_by(&self.figures));
        #[cfg(feature = "log")]
        hold.tell(&crate::trouble::Trouble::logged(&hold.terms));
        let keeper = OneServer::keep(&hold, sent, &self.transport, self.timeout)?;
        Ok((hold, keeper, claim))
    }

    /// Whether this owner holds this lock under this fence, in any mode. For a resource that is told the owner and the
    /// fence by a program that claims to hold it.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub fn check(&self, key: impl AsRef<[u8]>, owner: &str, fence: u64) -> Result<bool, Error> {
        let key = key.as_ref();
        Ok(is_some(&self.ask(key, &check(key, owner, None, Some(fence)))?))
    }

    /// The owners that hold a lock, each with its note: for people.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub fn holders(&self, key: impl AsRef<[u8]>) -> Result<Vec<(String, Option<String>)>, Error> {
        let key = key.as_ref();
        Ok(holders_of(self.ask(key, redis::cmd("LOCK.INFO").arg(key))?))
    }

    /// The reply to a command about a key, such as LOCK.BREAK: for what has no method here. A command without a key has
    /// an empty one. It is sent a second time if a connection breaks that was used before.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses to ([`Error::Connection`], [`Error::Server`]).
    pub fn ask(&self, key: impl AsRef<[u8]>, command: &Cmd) -> Result<Value, Error> {
        here(self.ask_in(Caller::Thread, key.as_ref(), command))
    }

    /// The replies to commands for the server of this key, in their order: they are sent in one go. An error of the
    /// server is one of the replies. They may be done twice: where a cluster redirects one, all are sent again.
    ///
    /// # Errors
    ///
    /// If the server does not answer all of them in time ([`Error::Connection`]).
    pub fn ask_all(&self, key: impl AsRef<[u8]>, commands: Vec<Cmd>) -> Result<Vec<Value>, Error> {
        let (slot, unread) = (place_of(key.as_ref()), Arc::default());
        Ok(here(self.transport.lanes.ask(Caller::Thread, slot, commands, self.timeout, &unread))?)
    }

    /// Waits until all is given back that goes on in the background: what guards held that were dropped or released
    /// without an answer, and the places of waits that ended so. So long at most; tells whether it is.
    ///
    /// For the end of a program: what is left when the process ends stays until its lease is over.
    pub fn wait_released(&self, timeout: Duration) -> bool {
        here(self.wait_released_in(Caller::Thread, timeout))
    }

    pub(crate) async fn ask_in(&self, caller: Caller, key: &[u8], command: &Cmd) -> Result<Value, Error> {
        Ok(self.transport.ask(caller, place_of(key), command.clone(), self.timeout).await?)
    }

    pub(crate) async fn wait_released_in(&self, caller: Caller, timeout: Duration) -> bool {
        self.transport.wait_released(caller, timeout).await
    }

    /// Takes a lock, and keeps it alive from then on.
    pub(crate) async fn take_in(
        &self,
        caller: Caller,
        owner: Owner,
        attempt: Attempt<'_>,
    ) -> Result<Option<(Arc<Hold>, OneServer, Claim)>, Error> {
        let Attempt { terms, patience, cancel, tell } = attempt;
        let began = Moment::now();
        let (transport, limit) = (&self.transport, self.timeout);
        let acquisition = Acquisition { caller, transport, terms, owner: &owner, unread: Arc::default() };
        let time = patience.deadline().map_or(limit, |end| limit.min(end.left()));
        let claim = owner.claim(caller, &terms.keys, time).await?;
        let tell_and_go_on = |error: &Error, is_new| {
            if is_new {
                tell(error);
            }
            true
        };
        let granted = match patience {
            Patience::None => acquisition.try_once(claim, limit).await,
            _ => acquisition.wait(claim, patience.deadline(), cancel, &tell_and_go_on).await,
        };
        let granted = granted?;
        if let Some(figures) = &self.figures {
            let time = began.elapsed();
            figures.tell(if granted.is_some() { Figure::Waited(time) } else { Figure::Refused(time) });
        }
        let Some(Granted { fences, sent, claim }) = granted else { return Ok(None) };
        let unread = acquisition.unread;
        let mut hold = Hold::new(terms.clone(), owner, fences, sent).counted_by(&self.figures);
        hold.unread = unread;
        let hold = Arc::new(hold);
        let keeper = OneServer::keep(&hold, sent, transport, limit)?;
        Ok(Some((hold, keeper, claim)))
    }
}

impl Backend for Client {
    fn place(&self) -> *const () {
        Arc::as_ptr(&self.transport).cast()
    }

    fn take(&self, owner: Owner, attempt: Attempt<'_>) -> Result<Option<Guard>, Error> {
        let taken = here(self.take_in(Caller::Thread, owner, attempt))?;
        Ok(taken.map(|(hold, keeper, claim)| Guard::new(hold, Box::new(keeper), claim)))
    }

    #[cfg(feature = "tokio")]
    fn take_in_task<'a>(&'a self, owner: Owner, attempt: Attempt<'a>) -> crate::backend::Taken<'a> {
        Box::pin(async move {
            let taken = self.take_in(Caller::Task, owner, attempt).await?;
            Ok(taken.map(|(hold, keeper, claim)| crate::task_guard::AsyncGuard::new(hold, keeper, claim)))
        })
    }
}

/// The server that a client of the crate `redis` speaks to, with all its settings.
impl From<&redis::Client> for Client {
    fn from(client: &redis::Client) -> Client {
        Client::of(Servers::nodes(vec![client.get_connection_info().clone()]))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No addresses: they have passwords.
        f.debug_struct("Client").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// The slot of a key. What has none belongs to no slot, so that no redirection leads it to another server.
fn place_of(key: &[u8]) -> u16 {
    if key.is_empty() { u16::MAX } else { slot_of(key) }
}

pub(crate) fn addresses<T: IntoConnectionInfo>(
    servers: impl IntoIterator<Item = T>,
) -> Result<Vec<ConnectionInfo>, Error> {
    let addresses: Result<Vec<ConnectionInfo>, RedisError> =
        servers.into_iter().map(IntoConnectionInfo::into_connection_info).collect();
    let addresses = addresses.map_err(|error| Error::Refused(error.to_string()))?;
    if addresses.is_empty() { Err(Error::Refused("no address of a server is given".to_owned())) } else { Ok(addresses) }
}
