//! Many keys that are released at once, before a crowd that waits for many keys each. Measures how long other clients
//! stand still while the crowd is granted.

use crate::alone;
use crate::pings::{Pings, row};
use bench::server::Bench;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// How many keys each request names: as many as `lock.max-keys` allows by default.
const KEYS: usize = 64;
/// How many wait, each for one of the keys that are released, and for keys of its own, which are free.
const WAITERS: usize = 256;

/// LOCK.MRELEASE of all keys, and PINGs until the last waiter has its grant.
pub(crate) fn release_table(server: &mut Bench, rounds: usize) {
    println!(
        "\nMRELEASE of {KEYS} keys before {WAITERS} waiters of {KEYS} keys, and a PING meanwhile; medians of {rounds} rounds"
    );
    println!("{:<30} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "all ms", "PINGs", "p99 ms", "max ms", "worst ms");
    let mut cpu_ms = Vec::new();
    let mut pings = Vec::new();
    let mut turns_ms = Vec::new();
    for _ in 0..rounds {
        let (found, cpu) = release(server);
        pings.push(found);
        cpu_ms.push(cpu);
        turns_ms.extend(longest_turn_ms(server));
        server.conn.ok(&["FLUSHALL"]);
    }
    row("readers of 64 keys each", &pings);
    cpu_ms.sort_by(f64::total_cmp);
    println!("{:<30} {:>10.1} ms of CPU for all, in the median", "", cpu_ms[cpu_ms.len() / 2]);
    turns_ms.sort_by(f64::total_cmp);
    if let (Some(median), Some(worst)) = (turns_ms.get(turns_ms.len() / 2), turns_ms.last()) {
        println!("{:<30} {median:>10.1} ms the longest turn of the event loop, in the median; {worst:.1} at worst", "");
    }
    alone(server);
}

/// The longest turn of the event loop since the counters were set back, as servers from Redis 7.2 on count it.
fn longest_turn_ms(server: &mut Bench) -> Option<f64> {
    let text: String = server.conn.get(&["INFO", "debug"]);
    let longest = text.lines().find_map(|line| line.strip_prefix("eventloop_duration_max:"))?;
    Some(longest.parse::<f64>().unwrap() / 1e3)
}

fn release(server: &mut Bench) -> (Pings, f64) {
    let address = server.address();
    let hot: Vec<String> = (0..KEYS).map(|n| format!("hot{n}")).collect();
    let mut holder = connect(address);
    ask(&mut holder, &format!("LOCK.MACQUIRE {KEYS} {} w PX 600000\r\n", hot.join(" ")));
    let mut waiters: Vec<TcpStream> = (0..WAITERS)
        .map(|n| {
            let own: Vec<String> = (1..KEYS).map(|key| format!("own{n}-{key}")).collect();
            let keys = own.join(" ");
            let hot = &hot[n % KEYS];
            let mut waiter = connect(address);
            let wait = format!("LOCK.MACQUIRE {KEYS} {hot} {keys} r{n} READ PX 600000 BLOCK 0\r\n");
            waiter.write_all(wait.as_bytes()).unwrap();
            waiter.set_nonblocking(true).unwrap();
            waiter
        })
        .collect();
    let all = WAITERS.to_string();
    testbed::wait_for("all to wait", || server.conn.info("lock", "lock_waiters") == all);
    let cpu_us = server.cpu_us();
    let mut other = connect(address);
    server.conn.ok(&["CONFIG", "RESETSTAT"]);
    holder.write_all(format!("LOCK.MRELEASE {KEYS} {} w\r\n", hot.join(" ")).as_bytes()).unwrap();
    let pings = Pings::while_it(&mut other, || {
        waiters.retain_mut(|waiter| match waiter.read(&mut [0; 4096]) {
            Ok(len) => {
                assert!(len > 0, "the waiter is granted");
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                true
            }
        });
        !waiters.is_empty()
    });
    (pings, (server.cpu_us() - cpu_us) / 1e3)
}

fn connect(address: SocketAddr) -> TcpStream {
    let conn = TcpStream::connect(address).unwrap();
    conn.set_nodelay(true).unwrap();
    conn
}

fn ask(conn: &mut TcpStream, command: &str) {
    conn.write_all(command.as_bytes()).unwrap();
    let len = conn.read(&mut [0; 4096]).unwrap();
    assert!(len > 0, "the server closed the connection");
}
