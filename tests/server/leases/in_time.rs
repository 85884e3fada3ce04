//! Leases on the clock: that they end in time, and not before. Whether they follow keys about is in leases/index.rs.

use crate::harness::lapses::{Lapses, Lease, lease, sleep_until};
use crate::harness::state::let_it_tick;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use testbed::{Client, PATIENCE, Server, wait_for};

/// A server that ticks once a second only. At each tick the module makes good what a lost timer has missed. That is
/// about a second late here, too late to pass for the delay of a busy machine. Leases that end at their timers are
/// late by that alone.
fn slowly_ticking() -> Server {
    Server::setup().option("hz", "1").option("dynamic-hz", "no").start()
}

/// Half of a tick of such a server.
const HALF_A_TICK: Duration = Duration::from_millis(500);

/// Most leases ended at their timers, and not at a tick.
fn assert_in_time(mut late: Vec<Duration>) {
    late.sort_unstable();
    assert!(late[late.len() / 2] < HALF_A_TICK, "{late:?} late");
}

#[test]
fn an_abandoned_lock_disappears_by_itself() {
    // No command touches the key again: without the timer it would stay.
    let server = Server::setup().option("appendonly", "yes").start();
    let mut lapses = Lapses::of(&server);
    let mut conn = server.connect();
    let abandoned = lease(&mut conn, "LOCK.ACQUIRE k a PX 50");
    lapses.expect(0, &abandoned);
    assert_eq!(conn.get::<i64>(&["EXISTS", "k"]), 0);
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    assert_eq!(conn.info("lock", "lock_released"), "0", "a lapse is no release");
    let effects = server.aof_tail();
    let fence = abandoned.fence.to_string();
    assert_eq!(effects.last().unwrap(), &["LOCK.HOLD", "k", "a", "0", "0", &fence]);
    assert_eq!(effects.len(), 2, "the grant and the end: {effects:?}");
}

#[test]
fn leases_of_all_lengths_end_once_and_none_early() {
    // Over several levels of the wheel, most of them at odd moments, from one millisecond to more than a second.
    // Rounding could end one before its time, or lose it. The program `clock` of faults measures how late they end.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let mut running: HashMap<String, Lease> = (0..100u64)
        .map(|n| lease(&mut conn, &format!("LOCK.ACQUIRE k{n} a PX {}", 1 + n * n * 13 % 1300)))
        .map(|lease| (lease.key.clone(), lease))
        .collect();
    while !running.is_empty() {
        let lapse = lapses.next();
        let lease = running.remove(&lapse.key).expect("each lapses once");
        assert!(lapse.at >= lease.earliest, "{} lapsed early: {:?}", lapse.key, lease.earliest - lapse.at);
    }
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0);
    assert_eq!(conn.info("lock", "lock_leases"), "0");
    assert_eq!(conn.info("lock", "lock_lapsed"), "100");
}

#[test]
fn a_shorter_lease_after_a_longer_one_ends_in_time() {
    // The timer is set for the longer one then. On other keys, on the same one, and in the last database.
    let server = slowly_ticking();
    let mut lapses = Lapses::of(&server);
    let mut conn = server.connect();
    let mut other = server.connect_in("15");
    lease(&mut conn, "LOCK.ACQUIRE long a PX 600000");
    lease(&mut conn, "LOCK.RW shared long READ PX 600000");
    let mut late = Vec::new();
    for n in 0..10 {
        let shorts = [
            (0, lease(&mut conn, &format!("LOCK.ACQUIRE other{n} a PX {}", 40 + n))),
            (0, lease(&mut conn, &format!("LOCK.RW shared r{n} READ PX {}", 80 + n))),
            (15, lease(&mut other, &format!("LOCK.ACQUIRE other{n} a PX {}", 120 + n))),
        ];
        for (db, short) in &shorts {
            let at = lapses.expect(*db, short);
            late.push(at.saturating_duration_since(short.latest));
        }
    }
    assert_in_time(late);
    assert_eq!(conn.info("lock", "lock_leases"), "2");
}

#[test]
fn a_restored_lock_ends_in_time() {
    // It comes in by no command of ours: the module might set no timer for it, and only the tick would end it.
    let server = slowly_ticking();
    let mut lapses = Lapses::of(&server);
    let mut conn = server.connect();
    // In one step: it must not have lapsed before it is dumped.
    let mut step = redis::pipe();
    step.atomic().cmd("LOCK.ACQUIRE").arg(&["k", "a", "PX", "40"]).ignore();
    step.cmd("DUMP").arg("k").cmd("DEL").arg("k").ignore();
    let (payload,): (Vec<u8>,) = step.query(&mut conn.0).unwrap();
    let late = (0..10).map(|n| {
        conn.call(&[b"RESTORE", format!("k{n}").as_bytes(), b"0", &payload]).unwrap();
        let latest = Instant::now() + Duration::from_millis(40);
        lapses.next().at.saturating_duration_since(latest)
    });
    assert_in_time(late.collect());
}

/// The server's wall clock.
fn wall_secs(conn: &mut Client) -> i64 {
    conn.get::<(i64, i64)>(&["TIME"]).0
}

/// Runs leases on a server while its wall clock is set from one offset to another.
fn step_of_the_wall_clock(from: &str, to: &str, step_secs: i64) {
    let server = Server::setup().wall_offset(from).start();
    let mut lapses = Lapses::of(&server);
    let mut conn = server.connect();
    let before = wall_secs(&mut conn);
    // Close together, so that some end after the clock was set and before the next tick.
    let leases: Vec<Lease> =
        (0..20).map(|n| lease(&mut conn, &format!("LOCK.ACQUIRE k{n} a PX {}", 250 + 30 * n))).collect();
    let long = lease(&mut conn, "LOCK.ACQUIRE long a PX 600000");
    // The first has run out when the clock is set; the timer for the second is set on the old clock.
    lapses.expect(0, &leases[0]);
    server.set_wall_offset(to);
    let after = wall_secs(&mut conn);
    assert!((after - before - step_secs).abs() < 30, "the clock went {} s, not {step_secs}", after - before);
    // Taken on the new clock; ends between two of the others.
    let fresh = lease(&mut conn, "LOCK.ACQUIRE fresh a PX 580");
    // The monotonic clock, too, measures what is left.
    let left = conn.lock_info("long").expect("held still").holders[0].ttl_ms;
    assert!((300_000..=600_000).contains(&left), "{left} ms left");
    assert_eq!(conn.int(&["LOCK.RELEASE", &long.key, "a"]), Some(0));
    let mut running: HashMap<&str, &Lease> = leases[1..].iter().chain([&fresh]).map(|l| (&*l.key, l)).collect();
    // The server's timers follow the wall clock: one that is set when the clock goes back fires an hour late. The
    // server's tick checks then and sets it anew. Without that, the test would wait for these in vain.
    while !running.is_empty() {
        let lapse = lapses.next();
        let lease = running.remove(&*lapse.key).expect("each lapses once");
        assert!(lapse.at >= lease.earliest, "{}: {:?} early", lapse.key, lease.earliest - lapse.at);
    }
    assert_eq!(conn.info("lock", "lock_leases"), "0");
}

#[test]
fn a_wall_clock_set_forward_ends_no_lease_early() {
    // By wall-clock deadlines all leases would be over at once.
    step_of_the_wall_clock("+0", "+3600", 3600);
    step_of_the_wall_clock("-43200", "+43200", 86_400);
}

#[test]
fn a_wall_clock_set_back_keeps_no_lease_alive() {
    // By wall-clock deadlines, or by the server's timers alone, locks would be kept for an hour.
    step_of_the_wall_clock("+0", "-3600", -3600);
    step_of_the_wall_clock("+43200", "-43200", -86_400);
}

#[test]
fn a_wall_clock_that_jumps_about_moves_no_end() {
    // Each jump leaves a timer that is wrong in another way.
    let server = Server::setup().wall_offset("+0").start();
    let mut lapses = Lapses::of(&server);
    let mut conn = server.connect();
    let end = lease(&mut conn, "LOCK.ACQUIRE k a PX 1500");
    let start = wall_secs(&mut conn);
    for offset in [3_600, -3_600, 86_400, 0, -86_400].iter().cycle() {
        if Instant::now() + Duration::from_millis(100) > end.earliest {
            break;
        }
        server.set_wall_offset(&format!("{offset:+}"));
        let gone = wall_secs(&mut conn) - start;
        assert!((gone - offset).abs() < 30, "the clock went {gone} s, not {offset}");
        let info = conn.lock_info("k");
        if Instant::now() < end.earliest {
            let ttl = info.expect("held still").holders[0].ttl_ms;
            assert!(ttl <= 1500, "{ttl} ms left");
        }
        sleep_until(Instant::now() + Duration::from_millis(70));
    }
    let lapse = lapses.next();
    assert!(lapse.at >= end.earliest);
    wait_for("the key to go", || conn.get::<i64>(&["EXISTS", "k"]) == 0);
}

#[test]
fn a_wall_clock_that_is_set_back_while_the_timer_rings_does_not_keep_the_server_ringing() {
    // The server fires all timers that are due by the wall clock as it was when it began. A timer that is set anew by a
    // clock that was set back meanwhile is due at once, and so on. Then no client is served for as long as there is a
    // lease.
    let (server, mut conn) = Server::setup().wall_offset("+0").connected();
    lease(&mut conn, "LOCK.ACQUIRE long a PX 600000");
    conn.0.set_read_timeout(Some(PATIENCE)).unwrap();
    for attempt in 0..8 {
        // Some end at each millisecond, so that the timer fires all the time.
        let mut pipe = redis::pipe();
        (0..5000).for_each(|n| {
            pipe.cmd("LOCK.ACQUIRE").arg(format!("k{attempt}.{n}")).arg("a").arg("PX").arg(100 + n / 10).ignore();
        });
        pipe.query::<()>(&mut conn.0).unwrap();
        while conn.info("lock", "lock_leases") != "1" {
            server.set_wall_offset("+3600");
            server.set_wall_offset("+0");
            assert_eq!(conn.get::<String>(&["PING"]), "PONG");
        }
    }
    assert_eq!(conn.info("lock", "lock_leases"), "1", "it would have ended with the long lease anyhow");
}

#[test]
fn a_wall_clock_that_is_set_back_between_a_tick_and_the_timers_does_not_end_the_server() {
    // When the module no longer needs the server's event-loop turns, a tick sets a timer that ends the subscription. If
    // the clock is set back before that fires, the next tick sets another, and the first finds nothing to end. To the
    // server, that is a listener without a function, which it calls.
    let server = Server::setup().wall_offset("+0").start();
    let (mut conn, mut other) = (server.connect(), server.connect());
    let start = wall_secs(&mut conn);
    // All in one turn, at whose end the tick comes.
    let mut pipe = redis::pipe();
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "a", "SESSION", "0"]);
    pipe.cmd("LOCK.RELEASE").arg(&["k", "a"]);
    pipe.cmd("DEBUG").arg(&["SLEEP", "0.5"]);
    conn.0.send_packed_command(&pipe.get_packed_pipeline()).unwrap();
    // The server has read that by now, and reads this in its next turn, before the timers fire.
    sleep_until(Instant::now() + Duration::from_millis(250));
    other.send(&["DEBUG", "SLEEP", "0.5"]);
    for _ in 0..3 {
        conn.0.recv_response().unwrap();
    }
    server.set_wall_offset("-2");
    other.0.recv_response().unwrap();
    // The first timer is due by the clock as it is now, and ticks come after it.
    wait_for("the timers to ring", || wall_secs(&mut conn) > start + 2);
    let_it_tick(&mut conn);
    assert_eq!(conn.get::<String>(&["PING"]), "PONG");
}

#[test]
fn a_lease_that_begins_on_the_servers_way_to_sleep_ends_in_time() {
    // Redis 7.0 serves what a client has sent behind BLPOP when it knows already for how long it will sleep. It would
    // sleep through the timer, until its next tick: a second, here. Each server is a new one, on which nothing has
    // ended yet, and comes to this at another moment between two ticks.
    let late = (0..7).map(|_| {
        let server = slowly_ticking();
        let mut lapses = Lapses::of(&server);
        let (mut conn, mut other) = (server.connect(), server.connect());
        let mut pipe = redis::pipe();
        pipe.cmd("BLPOP").arg(&["list", "0"]);
        pipe.cmd("LOCK.ACQUIRE").arg(&["k", "a", "PX", "20"]);
        conn.0.send_packed_command(&pipe.get_packed_pipeline()).unwrap();
        wait_for("the client to wait", || other.info("clients", "blocked_clients") == "1");
        other.get::<i64>(&["RPUSH", "list", "x"]);
        conn.0.recv_response().unwrap();
        conn.0.recv_response().unwrap();
        let latest = Instant::now() + Duration::from_millis(20);
        lapses.next().at.saturating_duration_since(latest)
    });
    // By the tick, about half of them would be late by more than half a tick.
    assert!(late.max().expect("seven") < HALF_A_TICK, "too late");
}

#[test]
fn a_lease_that_may_not_end_now_does_not_keep_the_server_busy() {
    // Until the server may write again, each tick checks; a timer for what is due already would fire all the time.
    let (_server, mut conn) = Server::connected();
    let cpu_s = |conn: &mut Client| {
        let of = |conn: &mut Client, field: &str| conn.info("cpu", field).parse::<f64>().unwrap();
        of(conn, "used_cpu_user") + of(conn, "used_cpu_sys")
    };
    for (off, on) in [
        ("CONFIG SET min-replicas-to-write 3", "CONFIG SET min-replicas-to-write 0"),
        ("CLIENT PAUSE 600000 WRITE", "CLIENT UNPAUSE"),
    ] {
        let say = |conn: &mut Client, command: &str| conn.ok(&command.split(' ').collect::<Vec<_>>());
        let end = lease(&mut conn, "LOCK.ACQUIRE k a PX 50");
        say(&mut conn, off);
        // Two ticks later each has visited what is due.
        sleep_until(end.latest + Duration::from_millis(200));
        let (began, before) = (Instant::now(), cpu_s(&mut conn));
        std::thread::sleep(Duration::from_secs(1));
        let used = (cpu_s(&mut conn) - before) / began.elapsed().as_secs_f64();
        assert!(used < 0.1, "{off}: {used:.2} of a CPU for nothing");
        say(&mut conn, on);
        wait_for("the lease to end", || conn.get::<i64>(&["EXISTS", "k"]) == 0);
    }
}
