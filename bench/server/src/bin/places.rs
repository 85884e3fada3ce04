//! What a hand-off costs a server where owners wait with QUEUE: many places beside few, on one key and over as many
//! keys, each in a server of its own and in turn. `tools/sizing.py` measures their memory, and `faults worst_step` how
//! long other clients stand still.

use bench::Outcome;
use bench::machine::Machine;
use bench::options::{number, number_of, path};
use bench::ratio::Spread;
use bench::reply::Reply;
use bench::results;
use bench::server::{Bench, Plan, options_of};
use clap::{ArgMatches, Command};
use redis::Cmd;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;

const FEW: usize = 100;
/// Requests that are under way at once.
const PIPELINE: usize = 12;
/// A round has so many slices of each room.
const SLICES: usize = 5;
/// Longer than everything takes.
const LONG_MS: &str = "3600000";
const RATIO_GOAL: f64 = 1.5;

fn main() -> ExitCode {
    bench::finish(run(&options()))
}

fn run(options: &ArgMatches) -> Outcome<()> {
    let [many, rounds, handoffs] = ["places", "rounds", "handoffs"].map(|name| number_of(options, name));
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
        let mut round = vec![0.0; rooms.len()];
        for _ in 0..SLICES {
            for (room, us) in rooms.iter_mut().zip(&mut round) {
                *us += room.hand_off(handoffs / SLICES)? / SLICES as f64;
            }
        }
        samples.iter_mut().zip(round).for_each(|(samples, us)| samples.push(us));
    }
    let found = table(&rooms, &samples);
    if let Some(folder) = options.get_one::<PathBuf>("results") {
        let found = json!({ "module": module, "rounds": rounds, "rooms": found });
        println!("results: {}", results::write(folder, kind, &version, "places", found)?.display());
    }
    Ok(())
}

fn table(rooms: &[Room], samples: &[Vec<f64>]) -> Vec<Value> {
    println!("{:<22} {:>11} {:>20}", "places", "hand-off us", "ratio");
    let row = |(at, room): (usize, &Room)| {
        let (handoff, ratio) =
            (Spread::of(samples[at].iter().copied()), Spread::of_ratios(&samples[at], &samples[at / 2 * 2]));
        let (places, shape) = (room.places, room.shape.name());
        println!("{:<22} {:>11.2} {ratio:>20}", format!("{places} {shape}"), handoff.median);
        json!({ "places": places, "shape": shape, "handoff_us": handoff.json(), "ratio": ratio.json() })
    };
    let found = rooms.iter().enumerate().map(row).collect();
    println!("hand-off: server CPU of RELEASE, of the next owner's ACQUIRE that collects, of the first's that queues");
    println!("ratio: to few, of the same round, min - median - max; goal: {RATIO_GOAL}");
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

/// A server with places of one shape.
struct Room {
    server: Bench,
    shape: Shape,
    places: usize,
    conn: TcpStream,
    /// How many hand-offs there were.
    handed_off: usize,
}

impl Room {
    /// Starts a server, takes the locks, and queues for them.
    fn open(program: Option<PathBuf>, shape: Shape, places: usize) -> Outcome<Room> {
        let limit = (places + 1).to_string();
        let options = [
            ("lock.max-places", &limit[..]),
            ("lock.max-waiters-per-key", &limit),
            ("lock.max-place-bytes", "1073741824"),
            ("lock.max-queue-ms", LONG_MS),
        ];
        let mut server = Plan { program, options: options_of(options), ..Plan::default() }.start();
        let conn = TcpStream::connect(server.address())?;
        conn.set_nodelay(true)?;
        let (holders, waiters) = match shape {
            Shape::OneKey => (0..1, 1..places + 1),
            Shape::Keys => (0..places, places..2 * places),
        };
        let ask = |owner, word, expected| {
            let (key, owner) = shape.names(places, owner);
            (request(&["LOCK.ACQUIRE", &key, &owner, word, LONG_MS]), expected)
        };
        send(&conn, holders.map(|owner| ask(owner, "PX", Expected::Fence)))?;
        send(&conn, waiters.map(|owner| ask(owner, "QUEUE", Expected::Null)))?;
        let found = server.conn.info_number("lock", "lock_places");
        if found != places as u64 {
            return Err(format!("{found} places instead of {places}").into());
        }
        Ok(Room { server, shape, places, conn, handed_off: 0 })
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
                (request(&["LOCK.RELEASE", &key, &from]), Expected::Nothing),
                (request(&["LOCK.ACQUIRE", &key, &to, "PX", LONG_MS, "QUEUE", LONG_MS]), Expected::Fence),
                (request(&["LOCK.ACQUIRE", &key, &from, "QUEUE", LONG_MS]), Expected::Null),
            ]
        });
        let cpu_us = self.server.cpu_us();
        send(&self.conn, requests)?;
        Ok((self.server.cpu_us() - cpu_us) / count as f64)
    }
}

/// What a request must be answered.
#[derive(Clone, Copy)]
enum Expected {
    Null,
    Fence,
    /// That nothing is left.
    Nothing,
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
                    match (expected, &reply) {
                        (Expected::Null, Reply::Null) | (Expected::Nothing, Reply::Int(0)) => {}
                        (Expected::Fence, Reply::Int(fence)) if *fence > 0 => {}
                        _ => return Err(format!("answered {reply}").into()),
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

fn options() -> ArgMatches {
    Command::new("places")
        .about("What a hand-off costs a server where owners wait with QUEUE")
        .arg(number("places", "100000", "How many; 100 are measured beside them"))
        .arg(number("rounds", "5", "Rounds; all are measured in each, in turn"))
        .arg(number("handoffs", "10000", "Hand-offs of each room in a round"))
        .arg(path("server", "The program of the server"))
        .arg(path("results", "The folder to write what was found to"))
        .get_matches()
}
