//! A holder is killed: how long it takes until the next client has the lock. The holder is a process of its own.

use crate::Failure;
use crate::clients::{Requests, Target, connect, prepare};
use crate::contenders::{Contender, End};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The option by which this program runs as a holder.
pub(crate) const HOLD: &str = "hold";
/// What the holder says when it holds the lock.
const HELD: &str = "held";
/// So long the waiter waits before the holder is killed.
const QUEUED: Duration = Duration::from_millis(200);
/// How much longer than a lease the wait for a lock that nothing frees goes on.
const SPARE: Duration = Duration::from_secs(3);
/// For all others. None takes as long but on a machine that stands still.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is ended at the latest when this goes.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The time from the death of a holder to the next one; None if there is none in time.
pub(crate) async fn measure(contender: &Contender, target: Target) -> Result<Option<Duration>, Failure> {
    prepare(target).await?;
    let mut waiter = connect(target, 1, Requests::default()).await?;
    let mut holder = start(contender.id, target).await?;
    let waiting = tokio::task::spawn_local(async move {
        let answer = waiter.acquire().await;
        (answer, Instant::now(), waiter)
    });
    tokio::time::sleep(QUEUED).await;
    if waiting.is_finished() {
        return Err("the lock was granted while another client held it".into());
    }
    let killed = Instant::now();
    holder.0.kill()?;
    let abort = waiting.abort_handle();
    let patience = if contender.end == End::Never { target.lease + SPARE } else { PATIENCE };
    match tokio::time::timeout(patience, waiting).await {
        Ok(answered) => {
            let (answer, at, _) = answered?;
            answer?;
            Ok(Some(at - killed))
        }
        Err(_) => {
            abort.abort();
            Ok(None)
        }
    }
}

/// Starts the holder, and waits until it has the lock.
async fn start(id: &str, target: Target) -> Result<Holder, Failure> {
    let words = [id.to_owned(), target.port.to_string(), target.lock.to_string(), target.lease.as_millis().to_string()];
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(format!("--{HOLD}")).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut holder = Holder(testbed::spawn(command)?);
    let output = holder.0.stdout.take().ok_or("the holder has no output")?;
    // The waiter's connection is served meanwhile.
    let mut line = String::new();
    let read = tokio::task::spawn_blocking(move || BufReader::new(output).read_line(&mut line).map(|_| line));
    let line = read.await??;
    if line.trim() == HELD { Ok(holder) } else { Err("the holder did not get the lock".into()) }
}

/// Takes the lock, says so, and keeps it until it is killed.
pub(crate) async fn hold(target: Target) -> Result<(), Failure> {
    let mut client = connect(target, 0, Requests::default()).await?;
    client.acquire().await?;
    println!("{HELD}");
    std::future::pending().await
}
