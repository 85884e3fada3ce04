//! What operators do to servers under load, and what happens to servers and clients.

use super::agents::{Stage, start};
use super::heart::Heart;
use super::kind::Kind;
use super::servers::{NAME, Node, Servers, ask};
use crate::agents::{Process, boot_us};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use redis::Value;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// So many beats after a client has died, the server has surely seen that its connection is closed.
const BEATS: u64 = 100;

/// Something that takes a while. All of them happen before one happens again.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// All servers get a module: the replicas, then one takes over, then the former primary.
    Upgrade,
    /// The primary is killed, and comes back when it has a successor.
    KillForGood,
    /// The primary is killed and comes back at once.
    KillAndRestart,
}

/// Something that is done in an instant.
const SMALL: [fn(&Servers, &Node, &mut StdRng) -> &'static str; 6] =
    [rewrite, kill_clients, kill_some, change_users, change_config, change_certificate];

pub struct Operator<'s> {
    pub stage: &'s Arc<Stage>,
    pub heart: &'s Heart,
    /// Modules to install, the first first. The last one stays.
    pub modules: Vec<&'s Path>,
    pub diary: Mutex<File>,
    /// For so long no server is restarted when all that is done to them was done once.
    pub calm: Duration,
}

impl Operator<'_> {
    fn servers(&self) -> &Servers {
        &self.stage.servers
    }

    fn note(&self, what: &str) {
        self.stage.record().count(what);
        writeln!(self.diary.lock().expect("nobody panics with it"), "{} {what}", boot_us()).expect("our own file");
    }

    /// Works until it is to stop. Whatever was begun is brought to its end.
    pub fn work(&self, dice: &mut StdRng, goes_on: &dyn Fn() -> bool) {
        let mut modules = self.modules.iter().copied().peekable();
        let mut small: Vec<usize> = Vec::new();
        while goes_on() {
            let mut plan = [Work::Upgrade, Work::KillForGood, Work::KillAndRestart];
            plan.shuffle(dice);
            for work in plan {
                for _ in 0..2 {
                    if !goes_on() {
                        return;
                    }
                    if small.is_empty() {
                        small = (0..SMALL.len()).collect();
                        small.shuffle(dice);
                    }
                    let next = small.pop().expect("just filled");
                    let what = SMALL[next](self.servers(), self.servers().wait_primary(), dice);
                    self.note(what);
                    thread::sleep(Duration::from_millis(dice.random_range(500..2_500)));
                }
                if !goes_on() {
                    return;
                }
                match work {
                    Work::Upgrade => {
                        let module = if modules.len() > 1 { modules.next() } else { modules.peek().copied() };
                        self.upgrade(module.expect("there is one"));
                    }
                    Work::KillForGood => self.kill_for_good(),
                    Work::KillAndRestart => self.kill_and_restart(),
                }
                thread::sleep(Duration::from_millis(dice.random_range(500..2_500)));
            }
            let calm = Instant::now() + self.calm;
            while Instant::now() < calm && goes_on() {
                thread::sleep(Duration::from_millis(200));
            }
        }
    }

    fn number(&self, node: &Node) -> usize {
        self.servers().nodes.iter().position(|one| one.port() == node.port()).expect("one of them")
    }

    fn stop(&self, node: &Node, at_once: bool) {
        let gone = node.stop(at_once);
        self.heart.is_gone(self.number(node), gone);
    }

    fn restart(&self, node: &Node, module: &Path) {
        self.servers().install(node, module);
        self.stop(node, false);
        self.servers().run(node);
        self.servers().wait_until_whole();
        self.note("servers upgraded");
    }

    /// As docs/operations/upgrading.md says.
    fn upgrade(&self, module: &Path) {
        let primary = self.servers().wait_until_whole();
        for replica in self.servers().nodes.iter().filter(|node| node.port() != primary.port()) {
            // Meanwhile another one may have taken over: then it is no upgrade of a replica.
            if self.servers().primary().is_some_and(|now| now.port() == replica.port()) {
                self.note("upgrades that an unasked failover spoiled");
                return;
            }
            self.restart(replica, module);
        }
        // Its answer may fail: the primary may have changed.
        if super::ending::replicas_have_the_lease(self.stage, primary) == Ok(true) {
            self.note("extensions that replicas have");
        }
        self.fail_over(primary);
        if self.servers().wait_until_whole().port() != primary.port() {
            self.restart(primary, module);
            self.note("rolling upgrades");
        }
    }

    fn fail_over(&self, primary: &Node) {
        let sentinel = self.servers().sentinel_ports()[0];
        let is_over = || self.servers().primary().is_some_and(|now| now.port() != primary.port());
        testbed::wait_so_long(super::servers::PATIENCE, "the failover", || {
            // Refused while the former failover is not over, or no replica is good enough just now.
            let asked = self.servers().ask(sentinel, &["SENTINEL", "FAILOVER", NAME]).is_ok();
            for _ in 0..100 {
                if is_over() {
                    return true;
                }
                thread::sleep(Duration::from_millis(if asked { 100 } else { 10 }));
            }
            false
        });
        self.note("failovers by the operator");
    }

    fn kill_for_good(&self) {
        let primary = self.servers().wait_until_whole();
        self.stop(primary, true);
        self.note("primaries killed");
        let is_over = || self.servers().primary().is_some_and(|now| now.port() != primary.port());
        testbed::wait_so_long(super::servers::PATIENCE, "a successor", || {
            thread::sleep(Duration::from_millis(50));
            is_over()
        });
        // Until then the other replica may still look for the old one, and would let it grant.
        let successor = self.servers().wait_primary();
        testbed::wait_so_long(super::servers::PATIENCE, "the successor's replica", || {
            thread::sleep(Duration::from_millis(50));
            self.servers().replicas(successor) > 0
        });
        self.servers().run(primary);
        self.servers().wait_until_whole();
        self.note("failovers by a kill");
    }

    fn kill_and_restart(&self) {
        let primary = self.servers().wait_until_whole();
        self.stop(primary, true);
        self.servers().run(primary);
        self.note("primaries killed");
        self.servers().wait_until_whole();
        self.note("restarts of a killed primary");
    }

    /// Kills and stops clients until it is to stop.
    pub fn harass(&self, clients: &Mutex<Vec<Process<Kind>>>, dice: &mut StdRng, goes_on: &dyn Fn() -> bool) {
        let mut next = Kind::ALL.len() as u64 + 1;
        while goes_on() {
            thread::sleep(Duration::from_millis(dice.random_range(300..2_500)));
            let mut clients = clients.lock().expect("nobody panics with it");
            let any = dice.random_range(0..clients.len());
            // Few have a session at any time, and what becomes of those is to be seen.
            let has_session = |client: &Process<Kind>| self.stage.record().session_of(client.client).is_some();
            let number = clients.iter().position(has_session).filter(|_| dice.random_bool(0.3)).unwrap_or(any);
            let (client, kind) = (clients[number].client, clients[number].kind);
            if !self.stage.record().is_at_work(client) {
                continue;
            }
            if kind == Kind::Program {
                self.hit_program(&clients[number], dice);
            } else if dice.random_bool(0.5) {
                let orphan = self.stage.record().session_of(client);
                let (at, since) = (self.heart.beats_at(), self.heart.since());
                clients[number].kill();
                clients[number] = start(self.stage, next, kind);
                next += 1;
                self.note("clients killed");
                if let Some(orphan) = orphan.filter(|orphan| orphan.asked > since) {
                    self.look_for(&orphan, at);
                }
            } else {
                // Whether a holder comes back too late is what is to be seen.
                let others = clients[number..].iter().chain(&clients[..number]);
                let holder = others
                    .filter(|client| client.kind != Kind::Program)
                    .find_map(|client| Some((client, self.stage.record().lease_of_holder(client.client)?)));
                let Some((holder, lease_ms)) = holder else { continue };
                holder.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(dice.random_range(lease_ms / 2..lease_ms * 3 / 2)));
                holder.signal(Signal::CONT);
                self.note("clients stopped");
            }
        }
    }

    /// Kills `redis-lock run`, or stops it for a while.
    fn hit_program(&self, client: &Process<Kind>, dice: &mut StdRng) {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", client.pid())).unwrap_or_default();
        let pid = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        let Some(pid) = pid else { return };
        // It may have ended meanwhile. Its number is not given again before its starter has waited for it.
        let send = |signal| {
            let _: rustix::io::Result<()> = kill_process(pid, signal);
        };
        if dice.random_bool(0.5) {
            send(Signal::KILL);
            self.note("clients killed");
        } else {
            send(Signal::STOP);
            thread::sleep(Duration::from_millis(dice.random_range(100..3_000)));
            send(Signal::CONT);
            self.note("clients stopped");
        }
    }

    /// A session has ended: its hold must be gone once the server has done a hundred other things.
    fn look_for(&self, orphan: &super::record::Orphan, at: Option<(usize, u64)>) {
        let Some((number, _)) = at else { return };
        let port = self.servers().nodes[number].port();
        let until = self.heart.count() + BEATS;
        loop {
            let reply = self.servers().ask(port, &["LOCK.INFO", &orphan.key, "OWNER", &orphan.owner]);
            if self.heart.beats_at() != at || reply.is_err() {
                // A successor knows nothing of sessions.
                return self.note("sessions that a failover ended");
            }
            if reply.as_ref() == Ok(&Value::Nil) {
                return self.note("sessions that ended with their client");
            }
            if self.heart.count() > until {
                let what = format!("a session outlives its client: {orphan:?}: {reply:?}");
                return self.stage.record().report.violation(what);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn rewrite(servers: &Servers, _: &Node, dice: &mut StdRng) -> &'static str {
    let node = &servers.nodes[dice.random_range(0..servers.nodes.len())];
    // Refused while one is under way.
    drop(servers.ask(node.port(), &["BGREWRITEAOF"]));
    "rewrites of the AOF"
}

fn kill_clients(servers: &Servers, primary: &Node, _: &mut StdRng) -> &'static str {
    drop(servers.ask(primary.port(), &["CLIENT", "KILL", "TYPE", "normal"]));
    "kills of all connections"
}

fn kill_some(servers: &Servers, primary: &Node, dice: &mut StdRng) -> &'static str {
    if let Ok(mut conn) = servers.connect(primary.port()) {
        let list: String = ask(&mut conn, &["CLIENT", "LIST", "TYPE", "normal"])
            .ok()
            .and_then(|list| redis::from_redis_value(list).ok())
            .unwrap_or_default();
        let ids: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next()).collect();
        for _ in 0..3 {
            let id = ids.get(dice.random_range(0..ids.len().max(1))).copied().unwrap_or("0");
            drop(ask(&mut conn, &["CLIENT", "KILL", "ID", id]));
        }
    }
    "kills of some connections"
}

/// On all servers: users are not replicated.
fn on_all(servers: &Servers, words: &[&str]) {
    servers.nodes.iter().for_each(|node| drop(servers.insist(node.port(), words)));
}

fn change_users(servers: &Servers, _: &Node, dice: &mut StdRng) -> &'static str {
    let next = format!(">another-{}", dice.random_range(0..1_000_000));
    on_all(servers, &["ACL", "SETUSER", "app", &next, "-lock.info"]);
    thread::sleep(Duration::from_millis(500));
    let forget = next.replace('>', "<");
    on_all(servers, &["ACL", "SETUSER", "app", &forget, "+lock.info"]);
    "changes of users"
}

fn change_config(servers: &Servers, _: &Node, dice: &mut StdRng) -> &'static str {
    let number = |dice: &mut StdRng, from: u32, to: u32| dice.random_range(from..to).to_string();
    let (log, waiters) = (number(dice, 10, 200), number(dice, 5_000, 20_000));
    let (lag, lease) = (number(dice, 8, 12), number(dice, 60_000, 90_000));
    on_all(servers, &["CONFIG", "SET", "lock.log-max-len", &log]);
    on_all(servers, &["CONFIG", "SET", "lock.max-waiters", &waiters]);
    on_all(servers, &["CONFIG", "SET", "lock.max-lease-ms", &lease]);
    on_all(servers, &["CONFIG", "SET", "min-replicas-max-lag", &lag]);
    on_all(servers, &["CONFIG", "REWRITE"]);
    "changes of the configuration"
}

fn change_certificate(servers: &Servers, _: &Node, _: &mut StdRng) -> &'static str {
    assert!(servers.tls.renew(), "openssl made a certificate before");
    let [certificate, key, ..] = servers.tls.options();
    on_all(servers, &["CONFIG", "SET", certificate.0, &certificate.1, key.0, &key.1]);
    "certificates loaded anew"
}
