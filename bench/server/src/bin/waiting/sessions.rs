//! Connections that close while a hold is bound to them: how soon the waiter has the lock.

use crate::alone;
use crate::sample::median;
use bench::server::Bench;
use hdrhistogram::Histogram;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// How often one lock is handed on in a round.
const HANDOFFS: usize = 500;

/// How a holder releases its lock.
#[derive(Clone, Copy, PartialEq)]
enum Give {
    Close,
    Release,
}

/// From the end of a connection to the grant of the waiter, beside a release by command.
pub(crate) fn table(server: &mut Bench, rounds: usize) {
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
