//! A crowd in one queue: how long it takes to queue up, and how long other clients stand still while all are granted at
//! once.

use crate::alone;
use crate::clients::{Ring, Then};
use crate::driver::Driver;
use crate::pings::{Pings, row};
use crate::rivals::{Line, list, locks, readers};
use crate::sample::median;
use bench::server::Bench;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Queues a crowd up and serves it.
pub(crate) fn fill_table(server: &mut Bench, size: usize, rounds: usize) {
    println!("\nfilling one line with {size} clients, medians of {rounds} rounds");
    println!("{:<30} {:>10} {:>14}", "", "all ms", "cpu us each");
    let mut driver = Driver::connect(server.address(), size);
    let mut measure = |mut line: Line| {
        let (cpu_us, start) = (server.cpu_us(), Instant::now());
        line.fill(server, &mut driver);
        let sample = (start.elapsed().as_secs_f64() * 1e3, (server.cpu_us() - cpu_us) / size as f64);
        line.open.exec(&mut server.conn.0).unwrap();
        line.finish(&mut driver);
        sample
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(measure(locks(size, Then::GiveBack)));
        theirs.push(measure(list(size, Then::GiveBack, 1)));
    }
    for (name, samples) in [("LOCK.ACQUIRE BLOCK 0", &ours), ("BLPOP 0", &theirs)] {
        println!(
            "{name:<30} {:>10.1} {:>14.2}",
            median(samples, |sample| sample.0),
            median(samples, |sample| sample.1)
        );
    }
    drop(driver);
    alone(server);
}

/// Lets a crowd of readers in.
pub(crate) fn readers_table(server: &mut Bench, size: usize, rounds: usize) {
    println!("\n{size} clients that are let in at once, and a PING meanwhile; medians of {rounds} rounds");
    println!("{:<30} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "all ms", "PINGs", "p99 ms", "max ms", "worst ms");
    let mut driver = Driver::connect(server.address(), size);
    let mut other = TcpStream::connect(server.address()).unwrap();
    other.set_nodelay(true).unwrap();
    let (mut ours, mut theirs, mut quiet) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(let_in(server, &mut driver, &mut other, readers(size)));
        theirs.push(let_in(server, &mut driver, &mut other, list(size, Then::Keep, size)));
        let end = Instant::now() + Duration::from_secs_f64(ours[ours.len() - 1].ms / 1e3);
        let mut idle = Ring::new(Vec::new(), Then::Keep, None);
        quiet.push(ping_while(&mut driver, &mut other, &mut idle, |_| Instant::now() < end));
    }
    row("LOCK.RW READ, after a writer", &ours);
    row("BLPOP, by one RPUSH", &theirs);
    row("nothing, for the time of LOCK", &quiet);
    drop((driver, other));
    alone(server);
}

fn let_in(server: &mut Bench, driver: &mut Driver, other: &mut TcpStream, mut line: Line) -> Pings {
    line.fill(server, driver);
    let all = line.ring.clients();
    // Its reply is read afterwards.
    let open = line.open.get_packed_command();
    server.conn.0.send_packed_command(&open).unwrap();
    let pings = ping_while(driver, other, &mut line.ring, |ring| ring.done < all);
    server.conn.0.recv_response().unwrap();
    pings
}

/// One thread for all, and no socket of the crowd read while a PING is under way: what its reply waits for is the
/// server.
fn ping_while(driver: &mut Driver, other: &mut TcpStream, ring: &mut Ring, goes_on: impl Fn(&Ring) -> bool) -> Pings {
    Pings::while_it(other, || {
        driver.turn(ring, Duration::ZERO);
        goes_on(ring)
    })
}
