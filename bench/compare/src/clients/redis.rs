//! Clients of Redis and Valkey: our lock, and what people use where there is no module.

use super::{Kind, Requests, Target, check_released};
use crate::Failure;
use bench::scripts::{COMPARE_AND_DELETE, GIVE_AND_TELL, TAKE};
use futures_util::{FutureExt, StreamExt};
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{AsyncConnectionConfig, Cmd, Script};
use std::time::Duration;

fn open(target: Target) -> Result<redis::Client, Failure> {
    Ok(redis::Client::open(format!("redis://127.0.0.1:{}", target.port))?)
}

async fn connection(target: Target) -> Result<MultiplexedConnection, Failure> {
    // A wait takes as long as it takes.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(open(target)?.get_multiplexed_async_connection_with_config(&config).await?)
}

fn key(target: Target) -> String {
    format!("compare:{}", target.lock)
}

fn channel(target: Target) -> String {
    format!("{}:released", key(target))
}

/// As long as a UUID.
fn owner(number: usize) -> String {
    format!("client-{number:029}")
}

fn lease_ms(target: Target) -> u64 {
    target.lease.as_millis() as u64
}

fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

fn evalsha(script: &str, keys: &[String], arguments: &[String]) -> Cmd {
    let mut command = Cmd::new();
    command.arg("EVALSHA").arg(Script::new(script).get_hash()).arg(keys.len()).arg(keys).arg(arguments);
    command
}

/// Puts the element into a list, and loads scripts.
pub(super) async fn prepare(target: Target) -> Result<(), Failure> {
    let mut conn = connection(target).await?;
    if target.kind == Kind::List {
        command(&["LPUSH", &key(target), "x"]).exec_async(&mut conn).await?;
    }
    for script in [COMPARE_AND_DELETE, TAKE, GIVE_AND_TELL] {
        command(&["SCRIPT", "LOAD", script]).exec_async(&mut conn).await?;
    }
    Ok(())
}

/// A client with one connection: it waits in the server, or asks again after a pause.
pub(crate) struct Client {
    conn: MultiplexedConnection,
    take: Cmd,
    give: Cmd,
    /// The reply to `give`.
    given: i64,
    /// None if the server lets it wait.
    pause: Option<Duration>,
    requests: Requests,
}

impl Client {
    pub(super) async fn connect(target: Target, number: usize, requests: Requests) -> Result<Client, Failure> {
        let (key, owner, lease) = (key(target), owner(number), lease_ms(target).to_string());
        let (take, give, given, pause) = match target.kind {
            Kind::List => (command(&["BLPOP", &key, "0"]), command(&["LPUSH", &key, "x"]), 1, None),
            Kind::SetNx(pause) => {
                let take = command(&["SET", &key, &owner, "NX", "PX", &lease]);
                (take, evalsha(COMPARE_AND_DELETE, &[key], &[owner]), 1, Some(pause))
            }
            _ => {
                let take = ["LOCK.ACQUIRE", &key, &owner, "PX", &lease, "SESSION", "0", "BLOCK", "0"];
                (command(&take), command(&["LOCK.RELEASE", &key, &owner]), 0, None)
            }
        };
        Ok(Client { conn: connection(target).await?, take, give, given, pause, requests })
    }

    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        loop {
            self.requests.add();
            let reply: redis::Value = self.take.query_async(&mut self.conn).await?;
            match (reply, self.pause) {
                (redis::Value::Nil, Some(pause)) => tokio::time::sleep(pause).await,
                (redis::Value::Nil, None) => return Err("a wait without a limit was answered null".into()),
                _ => return Ok(()),
            }
        }
    }

    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let reply: Option<i64> = self.give.query_async(&mut self.conn).await?;
        check_released(reply == Some(self.given))
    }
}

/// A client in the shape of Redisson's lock. A script says for how long the lock is still held, a channel says when it
/// was released, and all subscribers try again. Each client is a process of its own: of the threads of one process
/// Redisson wakes one.
pub(crate) struct Listener {
    conn: MultiplexedConnection,
    sink: PubSubSink,
    messages: PubSubStream,
    channel: String,
    take: Cmd,
    give: Cmd,
    requests: Requests,
}

impl Listener {
    pub(super) async fn connect(target: Target, number: usize, requests: Requests) -> Result<Listener, Failure> {
        let (key, channel, lease) = (key(target), channel(target), lease_ms(target).to_string());
        let (sink, messages) = open(target)?.get_async_pubsub().await?.split();
        Ok(Listener {
            conn: connection(target).await?,
            sink,
            messages,
            take: evalsha(TAKE, std::slice::from_ref(&key), &[owner(number), lease.clone()]),
            give: evalsha(GIVE_AND_TELL, &[key, channel.clone()], &[owner(number), lease]),
            channel,
            requests,
        })
    }

    /// None when it has the lock, else for how long the lock is still held.
    async fn attempt(&mut self) -> Result<Option<Duration>, Failure> {
        self.requests.add();
        let left: Option<i64> = self.take.query_async(&mut self.conn).await?;
        Ok(left.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))))
    }

    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        if self.attempt().await?.is_none() {
            return Ok(());
        }
        // Those of an earlier subscription say nothing of this one.
        while let Some(Some(_)) = self.messages.next().now_or_never() {}
        self.requests.add();
        self.sink.subscribe(&self.channel).await?;
        while let Some(left) = self.attempt().await? {
            // The lease may end without a message.
            if let Ok(None) = tokio::time::timeout(left, self.messages.next()).await {
                return Err("the server closed the channel".into());
            }
        }
        self.requests.add();
        self.sink.unsubscribe(&self.channel).await?;
        Ok(())
    }

    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let reply: Option<i64> = self.give.query_async(&mut self.conn).await?;
        check_released(reply == Some(1))
    }
}
