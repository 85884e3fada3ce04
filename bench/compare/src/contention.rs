//! Clients that want one lock, without a pause between their locks, for some time.

use crate::Failure;
use crate::clients::{Client, Requests, Target, connect, prepare};
use crate::hold::Timer;
use crate::process::{Cpu, own_cpu};
use crate::server::Server;
use crate::tally::{Found, Tally};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// For the last waiters of a slice.
const PATIENCE: Duration = Duration::from_secs(60);

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) clients: usize,
    /// How long each keeps the lock.
    pub(crate) hold: Duration,
    pub(crate) time: Duration,
}

/// What one measurement gave.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) found: Found,
    pub(crate) seconds: f64,
    /// The server's CPU time for each lock.
    pub(crate) cpu_us: f64,
    pub(crate) requests: f64,
    /// Bytes that the server changed in files for each lock, in whole pages.
    pub(crate) written: f64,
    /// How much of a processor this program used. At 1 it is the clients that bound the figures.
    pub(crate) client_busy: f64,
    /// Of the server at the end, in MiB.
    pub(crate) memory_mib: f64,
}

/// What is counted while it runs.
struct Counters {
    start: Instant,
    cpu: Cpu,
    own_cpu: Duration,
    written: u64,
    requests: u64,
}

impl Counters {
    fn now(server: &Server, requests: &Requests) -> Counters {
        Counters {
            cpu: server.tree.cpu(),
            own_cpu: own_cpu(),
            written: server.tree.written(),
            requests: requests.count(),
            start: Instant::now(),
        }
    }
}

/// Connects the clients, lets them run for a while, and measures. Must be called inside of a LocalSet.
pub(crate) async fn measure(server: &Server, target: Target, slice: Slice) -> Result<Sample, Failure> {
    prepare(target).await?;
    let requests = Requests::default();
    let tally = Rc::new(RefCell::new(Tally::new(slice.clients)));
    let goes_on = Rc::new(Cell::new(true));
    let mut clients = Vec::new();
    for number in 0..slice.clients {
        clients.push(connect(target, number, requests.clone()).await?);
    }
    let mut running = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        running.spawn_local(lock_on(client, number, slice.hold, tally.clone(), goes_on.clone()));
    }

    wait(&mut running, slice.time / 4).await?;
    let before = Counters::now(server, &requests);
    tally.borrow_mut().clear();
    wait(&mut running, slice.time).await?;
    // On a machine that stands still for so long it takes longer: a lock that was never granted has no cost.
    while !tally.borrow().has_grants() && before.start.elapsed() < PATIENCE {
        wait(&mut running, slice.time).await?;
    }
    let found = tally.borrow_mut().finish(Instant::now());
    let after = Counters::now(server, &requests);
    let memory = server.tree.memory();

    // Each gets the lock once more and leaves: to cut off a crowd of waiters is not what is measured.
    goes_on.set(false);
    tokio::time::timeout(PATIENCE, leave(&mut running)).await.map_err(|_| "a client waited in vain")??;
    let grants = found.grants as f64;
    let seconds = (after.start - before.start).as_secs_f64();
    Ok(Sample {
        found,
        seconds,
        cpu_us: after.cpu.since(&before.cpu).as_secs_f64() * 1e6 / grants,
        requests: (after.requests - before.requests) as f64 / grants,
        written: after.written.saturating_sub(before.written) as f64 / grants,
        client_busy: (after.own_cpu - before.own_cpu).as_secs_f64() / seconds,
        memory_mib: memory as f64 / f64::from(1 << 20),
    })
}

/// Waits so long, or until a client fails: none of them ends otherwise.
async fn wait(running: &mut JoinSet<Result<(), Failure>>, time: Duration) -> Result<(), Failure> {
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        Some(ended) = running.join_next() => ended?,
    }
}

async fn leave(running: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

async fn lock_on(
    mut client: Box<dyn Client>,
    number: usize,
    hold: Duration,
    tally: Rc<RefCell<Tally>>,
    goes_on: Rc<Cell<bool>>,
) -> Result<(), Failure> {
    let mut timer = Timer::new()?;
    while goes_on.get() {
        let asked = Instant::now();
        tally.borrow_mut().asks(number, asked);
        client.acquire().await?;
        let entry = tally.borrow_mut().gets(number, Instant::now());
        timer.wait(hold).await?;
        tally.borrow_mut().leaves(entry);
        client.release().await?;
        tally.borrow_mut().released(asked, Instant::now());
    }
    Ok(())
}

impl Sample {
    /// Locks in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.found.grants as f64 / self.seconds
    }

    /// The locks of the luckiest client for each of the unluckiest. Infinite if that one got none.
    pub(crate) fn most_to_least(&self) -> f64 {
        self.found.most as f64 / self.found.least as f64
    }

    /// For other programs.
    pub(crate) fn json(&self) -> Value {
        let Found { grants, wait_p50_ms, wait_p99_ms, wait_max_ms, round_p50_ms, round_p99_ms, .. } = self.found;
        json!({
            "seconds": self.seconds, "grants": grants, "wait_p50_ms": wait_p50_ms, "wait_p99_ms": wait_p99_ms,
            "wait_max_ms": wait_max_ms, "round_p50_ms": round_p50_ms, "round_p99_ms": round_p99_ms,
            "most": self.found.most, "least": self.found.least, "starved": self.found.starved,
            "overlaps": self.found.overlaps, "server_cpu_us": self.cpu_us, "requests": self.requests,
            "written_bytes": self.written, "client_busy": self.client_busy, "memory_mib": self.memory_mib,
        })
    }
}
