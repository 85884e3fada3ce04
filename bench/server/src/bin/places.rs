//! What places (QUEUE) cost a server: memory, hand-offs, and how long other clients stand still. Many are measured
//! beside few, on one key and over as many keys, each in a server of its own and in turn.

use bench::machine::Machine;
use bench::ratio::Spread;
use bench::reply::Reply;
use bench::results;
use bench::server::{Bench, Plan};
use clap::{Arg, ArgMatches, Command, value_parser};
use redis::Cmd;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FEW: usize = 100;
/// Requests that are under way at once. Few, since a PING waits for all that the server reads together.
const PIPELINE: usize = 12;
/// A round has so many slices of hand-offs of each room.
const SLICES: usize = 5;
/// Longer than everything takes.
const LONG_MS: &str = "3600000";
/// All places are asked for again before they end together: twice as many requests as filled the queues. So many times
/// as long as that took, and some to spare.
const RENEWAL_TIMES: u32 = 4;
const RENEWAL_SPARE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);
const BYTES_GOAL: f64 = 700.0;
const RATIO_GOAL: f64 = 1.5;
const PING_GOAL_MS: f64 = 5.0;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let number = |name: &str| *options.get_one::<usize>(name).expect("has a default");
    let (many, rounds, handoffs) = (number("places"), number("rounds"), number("handoffs"));
    let program = options.get_one::<PathBuf>("server");
    // Each room with many stands behind the one with few that it is compared with.
    let mut rooms = Vec::new();
    for shape in [Shape::OneKey, Shape::Keys] {
        for places in [FEW, many] {
            rooms.push(Room::open(program.cloned(), shape, places)?);
        }
    }
    let (kind, version, module) = rooms[0].server.versions();
    println!("{kind} {version}, module {module}; {}", Machine::this());
    let mut samples = vec![Vec::new(); rooms.len()];
    for _ in 0..rounds {
        let mut round = rooms.iter_mut().map(Room::fill).collect::<Outcome<Vec<Sample>>>()?;
        for _ in 0..SLICES {
            for (room, sample) in rooms.iter_mut().zip(&mut round) {
                sample.handoff_us += room.hand_off(handoffs / SLICES)? / SLICES as f64;
            }
        }
        for ((room, mut sample), samples) in rooms.iter_mut().zip(round).zip(&mut samples) {
            room.end(&mut sample)?;
            samples.push(sample);
        }
    }
    let found = table(&rooms, &samples);
    if let Some(folder) = options.get_one::<PathBuf>("results") {
        let found = json!({ "module": module, "rounds": rounds, "rooms": found });
        println!("results: {}", results::write(folder, kind, &version, "places", found)?.display());
    }
    Ok(())
}

fn table(rooms: &[Room], samples: &[Vec<Sample>]) -> Vec<Value> {
    println!(
        "{:<22} {:>10} {:>10} {:>11} {:>20} {:>12} {:>12}",
        "places", "bytes each", "bytes left", "hand-off us", "ratio", "PING fill ms", "PING end ms"
    );
    let mut found = Vec::new();
    for (at, room) in rooms.iter().enumerate() {
        let (few, samples) = (&samples[at / 2 * 2], &samples[at]);
        let spread = |value: fn(&Sample) -> f64| Spread::of(samples.iter().map(value));
        let (bytes, left) = (spread(|sample| sample.bytes), spread(|sample| sample.bytes_left));
        let handoff = spread(|sample| sample.handoff_us);
        let ratio = Spread::of(samples.iter().zip(few).map(|(sample, few)| sample.handoff_us / few.handoff_us));
        let (fill, end) = (spread(|sample| sample.ping_fill_ms), spread(|sample| sample.ping_end_ms));
        println!(
            "{:<22} {:>10.0} {:>10.1} {:>11.2} {:>20} {:>12.2} {:>12.2}",
            format!("{} {}", room.places, room.shape.name()),
            bytes.median,
            left.median,
            handoff.median,
            ratio.to_string(),
            fill.max,
            end.max
        );
        found.push(json!({
            "places": room.places, "shape": room.shape.name(), "bytes": bytes.json(), "bytes_left": left.json(),
            "handoff_us": handoff.json(), "ratio": ratio.json(), "ping_fill_ms": fill.json(),
            "ping_end_ms": end.json(),
        }));
    }
    println!("goals: {BYTES_GOAL} bytes each; ratio {RATIO_GOAL}; PING {PING_GOAL_MS} ms");
    println!("bytes: used_memory, medians; left: when all places have ended; PING: the longest of all rounds");
    println!("hand-off: server CPU of RELEASE, of the next owner's ACQUIRE that collects, of the first's that queues");
    println!("ratio: to few, of the same round, min - median - max; end: all places end within some milliseconds");
    found
}

/// Where the places stand.
#[derive(Clone, Copy)]
enum Shape {
    OneKey,
    /// One on each key.
    Keys,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::OneKey => "on one key",
            Shape::Keys => "on a key each",
        }
    }

    /// The key and the owner of a hold or a place. Owner 0 holds the only key. Where each place has a key, owner n is
    /// the first there, and owner `places` + n the second.
    fn names(self, places: usize, owner: usize) -> (String, String) {
        let key = match self {
            Shape::OneKey => 0,
            Shape::Keys => owner % places,
        };
        (format!("lock:{key:012}"), format!("owner-{owner:030}"))
    }
}

/// What a round gave.
#[derive(Clone, Copy)]
struct Sample {
    bytes: f64,
    bytes_left: f64,
    handoff_us: f64,
    ping_fill_ms: f64,
    ping_end_ms: f64,
}

/// A server with places of one shape.
struct Room {
    server: Bench,
    shape: Shape,
    places: usize,
    conn: TcpStream,
    /// How many hand-offs there were in this round.
    handed_off: usize,
    /// What the server used before the places came.
    memory: f64,
    /// How long it took to fill the queues.
    filling: Duration,
}

impl Room {
    fn open(program: Option<PathBuf>, shape: Shape, places: usize) -> Outcome<Room> {
        let limit = (places + 1).to_string();
        let options = [
            ("lock.max-places", &limit[..]),
            ("lock.max-waiters-per-key", &limit),
            ("lock.max-place-bytes", "1073741824"),
            ("lock.max-queue-ms", LONG_MS),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let server = Plan { program, options, ..Plan::default() }.start();
        let conn = connect(server.address())?;
        Ok(Room { server, shape, places, conn, handed_off: 0, memory: 0.0, filling: Duration::ZERO })
    }

    /// The owners that hold, and those that have a place.
    fn owners(&self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        match self.shape {
            Shape::OneKey => (0..1, 1..self.places + 1),
            Shape::Keys => (0..self.places, self.places..2 * self.places),
        }
    }

    /// Takes the locks, and queues for them.
    fn fill(&mut self) -> Outcome<Sample> {
        self.handed_off = 0;
        let (holders, waiters) = self.owners();
        let hold = |owner| {
            let (key, owner) = self.shape.names(self.places, owner);
            (request(&["LOCK.ACQUIRE", &key, &owner, "PX", LONG_MS]), Expected::Fence)
        };
        send(&self.conn, holders.map(hold))?;
        self.memory = self.server.memory();
        let pings = Pings::start(self.server.address())?;
        let wait = |owner| {
            let (key, owner) = self.shape.names(self.places, owner);
            (request(&["LOCK.ACQUIRE", &key, &owner, "QUEUE", LONG_MS]), Expected::Null)
        };
        let start = Instant::now();
        send(&self.conn, waiters.map(wait))?;
        self.filling = start.elapsed();
        let ping_fill_ms = pings.worst_ms()?;
        self.expect_places(self.places)?;
        let bytes = (self.server.memory() - self.memory) / self.places as f64;
        Ok(Sample { bytes, bytes_left: 0.0, handoff_us: 0.0, ping_fill_ms, ping_end_ms: 0.0 })
    }

    /// Hands locks off so many times: a holder gives back, the next owner collects, and the former one queues again.
    /// Server CPU in microseconds of each.
    fn hand_off(&mut self, count: usize) -> Outcome<f64> {
        let (shape, places) = (self.shape, self.places);
        let steps = self.handed_off..self.handed_off + count;
        self.handed_off = steps.end;
        let requests = steps.flat_map(|step| {
            let (from, to) = match shape {
                Shape::OneKey => (step % (places + 1), (step + 1) % (places + 1)),
                Shape::Keys => (step % (2 * places), (step + places) % (2 * places)),
            };
            let ((key, from), (_, to)) = (shape.names(places, from), shape.names(places, to));
            [
                (request(&["LOCK.RELEASE", &key, &from]), Expected::Exactly(0)),
                (request(&["LOCK.ACQUIRE", &key, &to, "PX", LONG_MS, "QUEUE", LONG_MS]), Expected::Fence),
                (request(&["LOCK.ACQUIRE", &key, &from, "QUEUE", LONG_MS]), Expected::Null),
            ]
        });
        let cpu_us = self.server.cpu_us();
        send(&self.conn, requests)?;
        Ok((self.server.cpu_us() - cpu_us) / count as f64)
    }

    /// Lets all places end within some milliseconds, and frees the locks.
    fn end(&mut self, sample: &mut Sample) -> Outcome<()> {
        self.expect_places(self.places)?;
        let end = Instant::now() + RENEWAL_SPARE + RENEWAL_TIMES * self.filling;
        // Both owners of a lock are asked for: the holder has what it asks for.
        let (holders, waiters) = self.owners();
        let renew = |owner| {
            let (key, owner) = self.shape.names(self.places, owner);
            let left = end.saturating_duration_since(Instant::now()).as_millis().max(1).to_string();
            (request(&["LOCK.ACQUIRE", &key, &owner, "QUEUE", &left]), Expected::FenceOrNull)
        };
        send(&self.conn, (holders.start..waiters.end).map(renew))?;
        let pings = Pings::start(self.server.address())?;
        while self.server.conn.info_number("lock", "lock_places") > 0 {
            std::thread::sleep(10 * PAUSE);
        }
        sample.ping_end_ms = pings.worst_ms()?;
        sample.bytes_left = (self.server.memory() - self.memory) / self.places as f64;
        self.server.clear();
        Ok(())
    }

    fn expect_places(&mut self, expected: usize) -> Outcome<()> {
        let found = self.server.conn.info_number("lock", "lock_places");
        if found == expected as u64 { Ok(()) } else { Err(format!("{found} places instead of {expected}").into()) }
    }
}

/// What a request must be answered.
#[derive(Clone, Copy)]
enum Expected {
    Null,
    Fence,
    FenceOrNull,
    Exactly(i64),
}

impl Expected {
    fn is(self, reply: &Reply<'_>) -> bool {
        match (self, reply) {
            (Expected::Null | Expected::FenceOrNull, Reply::Null) => true,
            (Expected::Fence | Expected::FenceOrNull, Reply::Int(_)) => true,
            (Expected::Exactly(number), Reply::Int(found)) => number == *found,
            _ => false,
        }
    }
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut command = Cmd::new();
    words.iter().for_each(|word| _ = command.arg(word));
    command.get_packed_command()
}

/// Sends requests, a few at once, and reads their replies.
fn send(mut conn: &TcpStream, requests: impl Iterator<Item = (Vec<u8>, Expected)>) -> Outcome<()> {
    let mut requests = requests.peekable();
    let (mut buffer, mut replies) = (vec![0; 64 * 1024], Vec::new());
    while requests.peek().is_some() {
        let (bytes, expected): (Vec<_>, Vec<_>) = requests.by_ref().take(PIPELINE).unzip();
        conn.write_all(&bytes.concat())?;
        for expected in expected {
            let len = loop {
                if let Some((reply, len)) = Reply::parse(&replies) {
                    if !expected.is(&reply) {
                        return Err(format!("answered {reply}").into());
                    }
                    break len;
                }
                match conn.read(&mut buffer)? {
                    0 => return Err("the server closed the connection".into()),
                    len => replies.extend_from_slice(&buffer[..len]),
                }
            };
            replies.drain(..len);
        }
    }
    Ok(())
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let conn = TcpStream::connect(address)?;
    conn.set_nodelay(true)?;
    Ok(conn)
}

/// A PING each millisecond, until it is asked which took longest.
struct Pings {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<Duration>>,
}

impl Pings {
    fn start(address: SocketAddr) -> std::io::Result<Pings> {
        let mut conn = connect(address)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let sent = Instant::now();
                conn.write_all(b"PING\r\n")?;
                conn.read_exact(&mut [0; 7])?;
                worst = worst.max(sent.elapsed());
                std::thread::sleep(PAUSE);
            }
            Ok(worst)
        });
        Ok(Pings { stop, thread })
    }

    fn worst_ms(self) -> std::io::Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let worst = self.thread.join().expect("it does not panic")?;
        Ok(worst.as_secs_f64() * 1e3)
    }
}

fn options() -> ArgMatches {
    let count = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).value_parser(value_parser!(usize)).help(help)
    };
    let path = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_parser(value_parser!(PathBuf)).help(help)
    };
    Command::new("places")
        .about("What places (QUEUE) cost a server: memory, hand-offs, and how long other clients stand still")
        .arg(count("places", "100000", "How many; 100 are measured beside them"))
        .arg(count("rounds", "5", "Rounds; all are measured in each, in turn"))
        .arg(count("handoffs", "10000", "Hand-offs of each room in a round"))
        .arg(path("server", "The program of the server"))
        .arg(path("results", "The folder to write what was found to"))
        .get_matches()
}
