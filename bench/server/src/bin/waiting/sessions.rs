//! Connections that close while holds are bound to them. Measures how soon the waiter has the lock, and how long other
//! clients stand still while many holds end at once.

use crate::alone;
use crate::pings::{Pings, row};
use crate::sample::median;
use bench::server::Bench;
use hdrhistogram::Histogram;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How often one lock is handed on in a round.
const HANDOFFS: usize = 500;
/// How many commands are sent before their replies are read.
const BATCH: usize = 500;

/// How a holder releases its lock.
#[derive(Clone, Copy, PartialEq)]
enum Give {
    Close,
    Release,
}

/// From the end of a connection to the grant of the waiter, beside a release by command.
pub(crate) fn handoff_table(server: &mut Bench, rounds: usize) {
    println!("\nfrom the moment at which the holder gives back to the reply that its one waiter reads");
    println!("{:<30} {:>10} {:>10} {:>10} {:>10}", "", "p50 us", "p99 us", "max us", "worst us");
    let address = server.address();
    let (mut close, mut release) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        close.push(hand_on(address, Give::Close));
        release.push(hand_on(address, Give::Release));
    }
    for (name, samples) in [("the connection closes", &close), ("LOCK.RELEASE", &release)] {
        println!(
            "{name:<30} {:>10.0} {:>10.0} {:>10.0} {:>10.0}",
            median(samples, |us| us.value_at_quantile(0.5) as f64),
            median(samples, |us| us.value_at_quantile(0.99) as f64),
            median(samples, |us| us.max() as f64),
            samples.iter().map(Histogram::max).max().unwrap() as f64,
        );
    }
    alone(server);
}

/// Hands one lock from connection to connection. Each waits before its predecessor releases.
fn hand_on(address: SocketAddr, give: Give) -> Histogram<u64> {
    let mut us = Histogram::new(3).unwrap();
    let mut watcher = connect(address);
    let take = |number: usize| format!("LOCK.ACQUIRE k o{number} PX 600000 BLOCK 0 SESSION 0\r\n");
    let mut holder = connect(address);
    ask(&mut holder, &take(0));
    for number in 1..=HANDOFFS {
        let mut waiter = connect(address);
        waiter.write_all(take(number).as_bytes()).unwrap();
        while !ask(&mut watcher, "LOCK.INFO k COUNT 0\r\n").contains("waiting\r\n:1") {}
        let start = Instant::now();
        match give {
            Give::Close => drop(std::mem::replace(&mut holder, waiter)),
            Give::Release => {
                let release = format!("LOCK.RELEASE k o{}\r\n", number - 1);
                holder.write_all(release.as_bytes()).unwrap();
                holder = waiter;
            }
        }
        assert!(read_some(&mut holder).starts_with(':'));
        us.record(start.elapsed().as_micros() as u64).expect("it grows");
    }
    us
}

/// Closes a connection that many holds are bound to.
pub(crate) fn close_table(server: &mut Bench, size: usize, rounds: usize) {
    println!("\na connection closes to which {size} holds are bound, and a PING meanwhile; medians of {rounds} rounds");
    println!("{:<30} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "all ms", "PINGs", "p99 ms", "max ms", "worst ms");
    let address = server.address();
    let (mut keys, mut readers, mut cut, mut quiet) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // The last in order is the last to end: its waiter waits for all.
    let last = size - 1;
    for _ in 0..rounds {
        let key = |number| format!("LOCK.ACQUIRE k{number:07} a PX 600000 SESSION 0\r\n");
        keys.push(close(address, size, key, &format!("LOCK.ACQUIRE k{last:07} w BLOCK 0\r\n")));
        flush(server);
        let reader = |number| format!("LOCK.RW k r{number} READ PX 600000 SESSION 0\r\n");
        readers.push(close(address, size, reader, "LOCK.ACQUIRE k w BLOCK 0\r\n"));
        flush(server);
        let brief = |number| format!("LOCK.RW k r{number} READ PX 600000 SESSION 1\r\n");
        cut.push(close(address, size, brief, "LOCK.ACQUIRE k w BLOCK 0\r\n"));
        flush(server);
        let time = Duration::from_secs_f64(readers[readers.len() - 1].ms / 1e3);
        let end = Instant::now() + time;
        quiet.push(Pings::while_it(&mut connect(address), || Instant::now() < end));
    }
    row("keys, one holder", &keys);
    row("readers of one key", &readers);
    row("the same, SESSION 1", &cut);
    row("nothing, for the time of those", &quiet);
    alone(server);
}

fn close(address: SocketAddr, size: usize, take: impl Fn(usize) -> String, wait: &str) -> Pings {
    let (mut holder, mut other) = (connect(address), connect(address));
    let numbers: Vec<usize> = (0..size).collect();
    for batch in numbers.chunks(BATCH) {
        let commands: String = batch.iter().map(|number| take(*number)).collect();
        holder.write_all(commands.as_bytes()).unwrap();
        let mut replies = 0;
        while replies < batch.len() {
            let some = read_some(&mut holder);
            assert!(!some.contains(['$', '-']), "not granted: {some}");
            replies += some.bytes().filter(|byte| *byte == b'\n').count();
        }
    }
    let mut waiter = connect(address);
    let before = queued(&mut other);
    waiter.write_all(wait.as_bytes()).unwrap();
    while queued(&mut other) == before {}
    waiter.set_nonblocking(true).unwrap();
    drop(holder);
    Pings::while_it(&mut other, || match waiter.read(&mut [0; 64]) {
        Ok(len) => {
            assert!(len > 0, "the waiter is granted");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            true
        }
    })
}

/// How many requests have begun to wait so far.
fn queued(conn: &mut TcpStream) -> String {
    let text = ask(conn, "INFO lock\r\n");
    text.lines().find(|line| line.starts_with("lock_queued:")).expect("a field of INFO").to_owned()
}

fn flush(server: &mut Bench) {
    server.conn.ok(&["FLUSHALL"]);
}

fn connect(address: SocketAddr) -> TcpStream {
    let conn = TcpStream::connect(address).unwrap();
    conn.set_nodelay(true).unwrap();
    conn
}

/// A command whose reply comes in one piece.
fn ask(conn: &mut TcpStream, command: &str) -> String {
    conn.write_all(command.as_bytes()).unwrap();
    read_some(conn)
}

fn read_some(conn: &mut TcpStream) -> String {
    let mut bytes = vec![0; 64 * 1024];
    let len = conn.read(&mut bytes).unwrap();
    assert!(len > 0, "the server closed the connection");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}
