//! What is done to the clients and to the server of a round.

use super::ears::{channel_of, may_be_forged};
use super::process::{Process, prefix};
use super::saw::Saw;
use super::wish::{CLIENTS, PATIENCE, PROCESSES, keys};
use crate::audit;
use crate::breaks::Break;
use crate::caller::Caller;
use crate::history::{Moment, Stop};
use crate::report::Report;
use crate::views::Waiter;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rustix::process::Signal;
use std::thread;
use std::time::Duration;
use testbed::{Client, Proxy, Server, wait_for};

#[derive(Default)]
pub struct Done {
    /// The stretches in which a process did not run, because it was stopped or because the machine was busy.
    pub stops: Vec<Stop>,
    /// What an operator broke, and how many holds that ended.
    pub breaks: Vec<(Break, u32)>,
    /// What the names of the owners of a killed process begin with, and when the server had closed its connections.
    pub killed: Vec<(String, Moment)>,
}

pub struct Disturber<'d> {
    server: &'d Server,
    proxies: &'d [Proxy],
    operator: Caller,
    eyes: Client,
    dice: &'d mut StdRng,
    round: u64,
    seed: u64,
    end: Moment,
    done: Done,
}

impl<'d> Disturber<'d> {
    pub fn new(
        server: &'d Server,
        proxies: &'d [Proxy],
        dice: &'d mut StdRng,
        round: u64,
        seed: u64,
        end: Moment,
    ) -> Disturber<'d> {
        let (operator, eyes) = (Caller::new(server.port(), PATIENCE), server.connect());
        Disturber { server, proxies, operator, eyes, dice, round, seed, end, done: Done::default() }
    }

    /// Goes on until all clients have ended; what those saw that were killed, and what was done.
    pub fn live(mut self, processes: &mut [Process], report: &mut Report) -> (Saw, Done) {
        let mut saw = Saw::default();
        while processes.iter_mut().any(Process::runs) {
            let ms = self.dice.random_range(1..=60);
            let awake = Moment::now().after_ms(ms);
            thread::sleep(Duration::from_millis(ms));
            let from = Moment::now();
            self.done.stops.push(Stop { whose: String::new(), from: awake, to: from });
            let whose = self.disturb(processes, &mut saw, report);
            self.done.stops.push(Stop { whose, from, to: Moment::now() });
        }
        (saw, self.done)
    }

    /// Does one thing; whom it stops.
    fn disturb(&mut self, processes: &mut [Process], saw: &mut Saw, report: &mut Report) -> String {
        let nth = self.dice.random_range(0..processes.len());
        match self.dice.random_range(0..100) {
            0..74 => self.proxies[nth].cut_after(self.dice.random_range(0..400)),
            74..84 => self.forge(report),
            84..91 if processes[nth].runs() => {
                processes[nth].signal(Signal::STOP);
                thread::sleep(Duration::from_millis(self.dice.random_range(50..=1_500)));
                processes[nth].signal(Signal::CONT);
                report.add("clients stopped", CLIENTS);
                return prefix(self.round, processes[nth].number);
            }
            91..94 => {
                self.server.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(self.dice.random_range(10..=500)));
                self.server.signal(Signal::CONT);
                report.add("server stopped", 1);
            }
            94..97 => self.break_holds(report),
            97.. if processes[nth].runs() && Moment::now() < self.end => self.kill(nth, processes, saw, report),
            _ => {}
        }
        String::new()
    }

    /// Sends names to the channels of owners that wait, or kills all subscriptions.
    fn forge(&mut self, report: &mut Report) {
        if self.dice.random_bool(0.3) {
            self.operator.ask("CLIENT KILL TYPE pubsub");
            return report.add("subscriptions killed", 1);
        }
        for key in keys(self.round) {
            // Not all: it takes a while.
            if self.dice.random_bool(0.5) {
                continue;
            }
            let view = audit::view(&mut self.operator, &key);
            for Waiter { owner, .. } in view.into_iter().flat_map(|view| view.waiters) {
                let (client, _) = owner.rsplit_once('.').expect("its client and a number");
                let name = [&*owner, "nobody", "*"][self.dice.random_range(0..3)];
                if name != owner || may_be_forged(client) {
                    self.operator.ask(&format!("PUBLISH {} {name}", channel_of(client)));
                    report.add("messages forged", 1);
                }
            }
        }
    }

    /// Kills a process, and starts another one when the server has closed its connections.
    fn kill(&mut self, nth: usize, processes: &mut [Process], saw: &mut Saw, report: &mut Report) {
        processes[nth].signal(Signal::KILL);
        let addresses = self.proxies[nth].addresses();
        self.proxies[nth].cut_all();
        wait_for("the connections to close", || {
            let clients: String = self.eyes.get(&["CLIENT", "LIST"]);
            let open = |address: &String| clients.contains(&format!(" addr={address} "));
            !addresses.iter().any(open)
        });
        let number = self.done.killed.len() as u64 + PROCESSES;
        let next = Process::start(&self.proxies[nth], nth as u64, number, self.round, self.seed, self.end);
        let old = std::mem::replace(&mut processes[nth], next);
        self.done.killed.push((prefix(self.round, old.number), Moment::now()));
        old.said(true, saw);
        report.add("clients killed", CLIENTS);
    }

    /// Breaks all holds of a lock, or the one of an owner that holds it.
    fn break_holds(&mut self, report: &mut Report) {
        let key = keys(self.round).choose(self.dice).expect("there are keys").clone();
        // An owner may lose an offer meanwhile, and stand in the queue again: its place would end.
        let view = audit::view(&mut self.operator, &key);
        let holders = view.into_iter().flat_map(|view| view.holders).filter(|holder| !holder.offered);
        let owners: Vec<String> = holders.map(|holder| holder.owner).collect();
        let owner = owners.choose(self.dice).filter(|_| self.dice.random_bool(0.5)).cloned();
        let whose = owner.as_ref().map_or(String::new(), |owner| format!(" {owner}"));
        let (asked, answer, told) = self.operator.ask(&format!("LOCK.BREAK {key}{whose}"));
        let ended = answer.int().and_then(|ended| u32::try_from(ended).ok()).expect("LOCK.BREAK is answered");
        report.add("holds broken", ended.into());
        self.done.breaks.push((Break { key, owner, asked, told }, ended));
    }
}
