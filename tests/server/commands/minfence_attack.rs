//! An attack on the bounds of MINFENCE: many clients at once that push the fence clock as far as they may, with
//! restarts and failovers in between that lose what came last.
//!
//! The server's own order of events is what its replication stream says: each grant is a record there.

use super::minfence::{HALF_US, SKEW_MS, TOO_FAR, fence_clock, settled, take, wall};
use crate::harness::stream::Stream;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use testbed::{Server, Setup, text_of};

const CLIENTS: u64 = 8;
const REQUESTS: u64 = 40;

/// What has been given, by whatever server.
#[derive(Default)]
struct Given {
    /// The highest fence of each key.
    highest: BTreeMap<String, i64>,
    /// The fence of each hold, on the server that is the primary now.
    current: BTreeMap<(String, String), i64>,
}

impl Given {
    /// A server has become the primary, with the holds that it knows of.
    fn takes_over(&mut self, server: &Server) {
        self.current.clear();
        let mut conn = server.connect();
        for key in (0..3).map(|number| format!("k{number}")) {
            for holder in conn.lock_info(&key).into_iter().flat_map(|info| info.holders) {
                let owner = String::from_utf8(holder.owner).unwrap();
                self.current.insert((key.clone(), owner), holder.fence);
            }
        }
    }

    /// Reads what the primary did since the last call: each fence that it gave is above all that its key has had.
    fn follows(&mut self, server: &Server, stream: &mut Stream) {
        for words in stream.commands(server) {
            let ["LOCK.HOLD", key, owner, reads, writes, fence] = std::array::from_fn(|at| words[at].as_str()) else {
                continue;
            };
            let (hold, fence): (_, i64) = ((key.to_owned(), owner.to_owned()), fence.parse().unwrap());
            if (reads, writes) == ("0", "0") {
                self.current.remove(&hold);
            } else if self.current.insert(hold, fence) != Some(fence) {
                let highest = self.highest.insert(key.to_owned(), fence);
                assert!(highest.is_none_or(|highest| highest < fence), "{fence} on {key} after {highest:?}");
            }
        }
    }
}

/// A client that asks for fences at the bounds, and beyond.
fn push(server: &Server, seed: u64, before: i64) {
    let (mut conn, mut random) = (server.connect(), StdRng::seed_from_u64(seed));
    for _ in 0..REQUESTS {
        let (key, owner) = (format!("k{}", random.random_range(0..3)), format!("o{}", random.random_range(0..2)));
        let (last, here) = (fence_clock(&mut conn), wall(&mut conn));
        let from = match random.random_range(0..6) {
            0 => here,
            1 => last,
            2 => conn.lock_info(&key).map_or(last, |info| info.fence),
            3 => here + 2 * HALF_US,
            _ => here + HALF_US,
        };
        let least = from + random.random_range(-3..=3);
        let (asked, px) = (least.to_string(), ["PX", "3600000", "MINFENCE"]);
        let told = match random.random_range(0..5) {
            0 => conn.call(&[&["LOCK.ACQUIRE", &key, &owner], &px[..], &[&asked]].concat()),
            1 => conn.call(&[&["LOCK.RW", &key, &owner, "READ"], &px[..], &[&asked]].concat()),
            2 | 3 => conn.call(&[&["LOCK.EXTEND", &key, &owner], &px[..], &[&asked]].concat()),
            _ => conn.call(&["LOCK.RELEASE", &key, &owner, "ALL"]).map(|_| redis::Value::Nil),
        };
        match told {
            Ok(redis::Value::Int(fence)) => assert!(fence >= least, "{fence} is below {least}"),
            Ok(_) => {}
            Err(error) => {
                assert_eq!(text_of(&error), TOO_FAR);
                assert!(least > last.max(here + HALF_US - 3), "{least} was refused after {last} at {here}");
            }
        }
        // One fence more for each request; or half of the skew ahead of the wall clock, which is read after the fence
        // clock: others push it meanwhile. The module follows the wall clock within a millisecond.
        let clock = fence_clock(&mut conn);
        let most = (before + (CLIENTS * REQUESTS) as i64).max(wall(&mut conn) + HALF_US + 2_000);
        assert!(clock <= most, "asked for {least} at {here}");
    }
}

/// Many clients at once. What they were given is checked afterwards.
fn storm(server: &Server, seed: u64, given: &mut Given) {
    // It jumps before its first fence.
    take(&mut server.connect(), "first", "z", None);
    let mut stream = Stream::of(server);
    given.takes_over(server);
    let before = fence_clock(&mut server.connect());
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || push(server, seed * CLIENTS + number, before));
        }
    });
    given.follows(server, &mut stream);
}

#[test]
fn no_client_carries_the_clock_away_and_none_makes_a_fence_repeat_or_go_back() {
    let options = |setup: Setup| setup.option("save", "").option("appendfsync", "always");
    let mut given = Given::default();
    let mut server = settled(options(Server::setup().wall_offset("+0")));
    storm(&server, 0, &mut given);
    // Nothing is saved.
    server.crash();
    server.connect().ok(&["CONFIG", "SET", "lock.promotion-skew-ms", SKEW_MS]);
    storm(&server, 1, &mut given);
    // After a jump the clock is ahead of what a client may ask for, until time has passed.
    server.set_wall_offset("+10m");
    storm(&server, 2, &mut given);
    drop(server);
    // All is saved, and the wall clock is set back by what clients were ahead. What came before is below by its time.
    let mut server = settled(options(Server::setup().wall_offset("+20m").option("appendonly", "yes")));
    storm(&server, 3, &mut given);
    server.set_wall_offset("+30m");
    storm(&server, 4, &mut given);
    server.set_wall_offset("+1770");
    server.crash();
    server.connect().ok(&["CONFIG", "SET", "lock.promotion-skew-ms", SKEW_MS]);
    storm(&server, 5, &mut given);
    // To a node whose wall clock is behind by nearly half of the skew, and that has not seen what came last.
    for (number, offset, behind) in [(6, "+40m", "+2371"), (8, "+50m", "+2971")] {
        server.set_wall_offset(offset);
        storm(&server, number, &mut given);
        let setup = options(Server::setup().lock_option("promotion-skew-ms", SKEW_MS));
        let replica = setup.wall_offset(behind).start();
        replica.follow(&server);
        replica.catch_up(&server);
        let mut new = replica.connect();
        new.ok(&["REPLICAOF", "127.0.0.1", "1"]);
        storm(&server, number + 1, &mut given);
        new.ok(&["REPLICAOF", "NO", "ONE"]);
        server = replica;
        storm(&server, number + 10, &mut given);
    }
    assert_eq!(given.highest.len(), 3);
}
