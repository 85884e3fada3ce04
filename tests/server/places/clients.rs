//! redis-rs as it comes waits with QUEUE: it gives up on replies, and asks again behind its own request.

use super::patient_server;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Value, cmd};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use testbed::{LockInfo, PATIENCE, Server};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// How many stand in each line, beside the first holder and a late one.
const WAITERS: usize = 6;
/// All of such a line.
const IN_LINE: u64 = WAITERS as u64 + 2;

/// Each of so many gave the lock back; no hold lapsed, and nobody waits.
fn each_gave_it_back(server: &Server, owners: u64) {
    let mut conn = server.connect();
    let fields = ["released", "taken_back", "lapsed", "timed_out", "waiters", "places", "offered"];
    let found = fields.map(|field| conn.info_number("lock", &format!("lock_{field}")));
    assert_eq!(found, [owners, 0, 0, 0, 0, 0, 0], "{fields:?}");
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0, "nothing is left behind");
}

/// One acquisition by redis-rs, with an owner of its own.
struct Waiter {
    /// As [`redis::Client::get_multiplexed_async_connection`] makes it: it gives up on a reply after 500 ms.
    conn: MultiplexedConnection,
    /// Without a timeout, to look at the lock.
    judge: MultiplexedConnection,
    key: &'static str,
    owner: String,
    block: bool,
    /// How often redis-rs gave up on a reply.
    timed_out: Rc<Cell<u32>>,
    /// How often the answer was null.
    told_null: Rc<Cell<u32>>,
}

impl Waiter {
    /// The loop of the guide, then some work under the lock. Returns the fence.
    async fn run(mut self) -> i64 {
        let mut ask = cmd("LOCK.ACQUIRE");
        ask.arg(self.key).arg(&self.owner).arg("PX").arg(30_000);
        if self.block {
            ask.arg("BLOCK").arg(3_000);
        }
        ask.arg("QUEUE").arg(10_000);
        let fence = loop {
            match ask.query_async::<Option<i64>>(&mut self.conn).await {
                Ok(Some(fence)) => break fence,
                Ok(None) => self.told_null.set(self.told_null.get() + 1),
                Err(error) if error.is_timeout() => self.timed_out.set(self.timed_out.get() + 1),
                Err(error) => panic!("{error}"),
            }
            if !self.block {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let info = lock_info(&mut self.judge, self.key).await;
        let holders: Vec<_> = info.holders.iter().map(|h| (h.owner.as_slice(), h.fence, h.reads, h.writes)).collect();
        assert_eq!(holders, [(self.owner.as_bytes(), fence, 0, 1)], "one holder, granted once");
        sleep(Duration::from_millis(200)).await;
        let mut release = cmd("LOCK.RELEASE");
        release.arg(self.key).arg(&self.owner);
        assert_eq!(get::<Option<i64>>(&mut self.judge, &release).await, Some(0), "nothing is left of it");
        fence
    }
}

async fn get<T: FromRedisValue>(conn: &mut MultiplexedConnection, command: &Cmd) -> T {
    command.query_async(conn).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// LOCK.INFO of a key that somebody holds.
async fn lock_info(conn: &mut MultiplexedConnection, key: &str) -> LockInfo {
    get::<Value>(conn, cmd("LOCK.INFO").arg(key)).await.into()
}

async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// A line in which all ask again and again, before the lock is given back. With BLOCK, each on a connection
/// of its own; without, all on one that also has other work.
async fn line(client: redis::Client, key: &'static str, block: bool) {
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut judge = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let mut shared = client.get_multiplexed_async_connection().await.unwrap();
    let mut first = cmd("LOCK.ACQUIRE");
    first.arg(key).arg("first").arg("PX").arg(600_000);
    assert!(get::<i64>(&mut judge, &first).await > 0);
    let (mut owners, mut tasks, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..=WAITERS {
        if number == WAITERS {
            wait_until("all to have asked again and again", async || {
                counts.iter().all(
                    |(timed_out, told_null): &(Rc<Cell<u32>>, Rc<Cell<u32>>)| {
                        if block { timed_out.get() >= 13 } else { told_null.get() >= 40 }
                    },
                )
            })
            .await;
            if !block {
                let waiters = lock_info(&mut judge, key).await.waiters;
                assert!(waiters.iter().all(|waiter| waiter.client.is_none()), "no request holds up the connection");
                assert_eq!(get::<Option<i64>>(&mut shared, cmd("GET").arg("plain")).await, None);
            }
        }
        let conn = if block { client.get_multiplexed_async_connection().await.unwrap() } else { shared.clone() };
        let (timed_out, told_null) = <(Rc<Cell<u32>>, Rc<Cell<u32>>)>::default();
        counts.push((Rc::clone(&timed_out), Rc::clone(&told_null)));
        let owner = format!("owner {number}");
        owners.push(owner.clone().into_bytes());
        let judge_too = judge.clone();
        tasks.push(spawn_local(Waiter { conn, judge: judge_too, key, owner, block, timed_out, told_null }.run()));
        wait_until("it to wait", async || lock_info(&mut judge, key).await.waiting == owners.len()).await;
    }
    let standing: Vec<_> = lock_info(&mut judge, key).await.waiters.into_iter().map(|waiter| waiter.owner).collect();
    assert_eq!(standing, owners, "all stand where they stood");
    let mut release = cmd("LOCK.RELEASE");
    release.arg(key).arg("first");
    assert_eq!(get::<Option<i64>>(&mut judge, &release).await, Some(0));
    let mut fences = Vec::new();
    for task in tasks {
        fences.push(task.await.unwrap());
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "first come, first served: {fences:?}");
}

#[test]
fn redis_rs_gives_up_on_replies_and_has_its_turn_all_the_same() {
    // With BLOCK 3000, redis-rs gives up after 500 ms, and sends the next request on the same connection. There the
    // server meets it when BLOCK is over. What could go wrong: the reply with the fence is one that redis-rs does not
    // read, and a request that is late counts twice or stands at the end.
    let server = patient_server();
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let lines = [("parked", true), ("polled", false)];
        let lines = lines.map(|(key, block)| spawn_local(line(client.clone(), key, block)));
        for line in lines {
            line.await.unwrap();
        }
    }));
    each_gave_it_back(&server, 2 * IN_LINE);
}
