//! redis-rs: the examples of the page, and how it comes.

use crate::library::Library;
use crate::program::Program;
use std::future::Future;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

#[rustfmt::skip]
mod examples {
    use redis::{AsyncConnectionConfig, Client, RedisResult, cmd};
    use std::time::Duration;

pub(super) fn report(client: &Client, me: &str) -> RedisResult<bool> {
    let mut conn = client.get_connection()?;
    conn.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut ask = cmd("LOCK.ACQUIRE");
    ask.arg("report").arg(me).arg("PX").arg(30_000).arg("BLOCK").arg(3_000).arg("QUEUE").arg(10_000);
    let fence: u64 = loop {
        if let Some(fence) = ask.query(&mut conn)? { break fence }
    };
    // ... the work, with the fence in each write ...
    let left: Option<u64> = cmd("LOCK.RELEASE").arg("report").arg(me).arg("FENCE").arg(fence).query(&mut conn)?;
    Ok(left.is_some()) // false: the lease may have ended before the work did
}

pub(super) async fn report_async(client: &Client, me: &str) -> RedisResult<bool> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
    let mut conn = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let mut ask = cmd("LOCK.ACQUIRE");
    ask.arg("report").arg(me).arg("PX").arg(30_000).arg("BLOCK").arg(3_000).arg("QUEUE").arg(10_000);
    let fence: u64 = loop {
        if let Some(fence) = ask.query_async(&mut conn).await? { break fence }
    };
    // ... the work, with the fence in each write ...
    let mut release = cmd("LOCK.RELEASE");
    let left: Option<u64> = release.arg("report").arg(me).arg("FENCE").arg(fence).query_async(&mut conn).await?;
    Ok(left.is_some()) // false: the lease may have ended before the work did
}
}

fn client(port: u16) -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

fn run<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(task)
}

/// Runs the example of the page, if it is the code above.
pub(crate) fn example(library: Library, text: &str, port: u16) -> Result<Program, String> {
    // The page has no `pub(super)`.
    if !include_str!("redis_rs.rs").replace("pub(super) ", "").contains(text) {
        return Err(format!("not the code that is compiled here:\n{text}"));
    }
    Ok(Program::thread(move |_, _| {
        let client = client(port);
        match library {
            Library::RedisRs => examples::report(&client, "me"),
            _ => run(examples::report_async(&client, "me")),
        }
        .unwrap()
    }))
}

/// What redis-rs does as it comes: traps.rs says what the modes are.
pub(crate) fn trap(library: Library, port: u16, mode: &'static str) -> Program {
    let mut wait = redis::cmd("LOCK.ACQUIRE");
    wait.arg(&["traps", "client", "PX", "600000", "BLOCK", "600000"]);
    let mut null = redis::cmd("LOCK.ACQUIRE");
    null.arg(&["traps", "other"]);
    let mut wrong = null.clone();
    wrong.arg(&["PX", "0"]);
    Program::thread(move |say: Sender<String>, go: Receiver<()>| {
        let reply = |what: &str, reply: redis::RedisResult<redis::Value>| match reply {
            Ok(reply) => say.send(format!("{what} {reply:?}")).unwrap(),
            Err(error) => say.send(format!("error RedisError {error}")).unwrap(),
        };
        let line = |text: &str| say.send(text.to_owned()).unwrap();
        if library == Library::RedisRs {
            let mut conn = client(port).get_connection().unwrap();
            if mode == "wait" {
                reply("reply", wait.query(&mut conn));
            } else {
                reply("null", null.query(&mut conn));
                reply("error", wrong.query(&mut conn));
            }
            return true;
        }
        run(async {
            let mut conn = client(port).get_multiplexed_async_connection().await.unwrap();
            match mode {
                "wait" => reply("reply", wait.query_async(&mut conn).await),
                "shared" => {
                    let mut other = conn.clone();
                    let waiting = tokio::spawn(async move { wait.query_async::<redis::Value>(&mut conn).await });
                    while go.try_recv().is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    line("get sent");
                    let got: redis::RedisResult<redis::Value> =
                        redis::cmd("GET").arg("traps:other").query_async(&mut other).await;
                    line(if got.is_ok() { "get answered" } else { "get failed" });
                    reply("reply", waiting.await.unwrap());
                }
                _ => {
                    reply("null", null.query_async(&mut conn).await);
                    reply("error", wrong.query_async(&mut conn).await);
                }
            }
        });
        true
    })
}
