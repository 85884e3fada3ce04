//! What was found, as a page for people, a picture, and numbers for programs.

use crate::Failure;
use crate::contenders::{Contender, End};
use crate::contention::Sample;
use crate::{disk, picture};
use bench::machine::Machine;
use bench::ratio::Spread;
use bench::results::today;
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// All that was found.
pub(crate) struct Report {
    pub(crate) contenders: Vec<Contender>,
    pub(crate) versions: Vec<String>,
    /// The memory of each server before its first client, in MiB.
    pub(crate) idle_mib: Vec<f64>,
    /// And why.
    pub(crate) not_run: Vec<(Contender, String)>,
    pub(crate) scenes: Vec<Scene>,
    pub(crate) deaths: Vec<Death>,
    pub(crate) time: Duration,
    pub(crate) lease: Duration,
    pub(crate) rounds: usize,
    /// How this is done again.
    pub(crate) command: String,
}

/// So many clients that hold one lock for so long.
pub(crate) struct Scene {
    pub(crate) clients: usize,
    pub(crate) hold: Duration,
    /// Of each contender, one for each round.
    pub(crate) samples: Vec<Vec<Sample>>,
}

/// How long it took until the next client had the lock of one that was killed.
#[derive(Default)]
pub(crate) struct Death {
    ms: Vec<f64>,
    never: usize,
}

impl Death {
    pub(crate) fn add(&mut self, time: Option<Duration>) {
        match time {
            Some(time) => self.ms.push(time.as_secs_f64() * 1e3),
            None => self.never += 1,
        }
    }

    fn text(&self) -> String {
        if self.never > 0 {
            return "never".to_owned();
        }
        let Spread { min, median, max } = Spread::of(self.ms.iter().copied());
        format!("{} ({} to {})", short(median), short(min), short(max))
    }
}

impl Scene {
    pub(crate) fn new(clients: usize, hold: Duration, contenders: usize) -> Scene {
        Scene { clients, hold, samples: vec![Vec::new(); contenders] }
    }

    /// The median of the rounds.
    pub(crate) fn median(&self, contender: usize, value: impl Fn(&Sample) -> f64) -> f64 {
        Spread::of(self.samples[contender].iter().map(value)).median
    }
}

/// Three digits, as far as they say something.
fn short(value: f64) -> String {
    match value {
        value if !value.is_finite() => "-".to_owned(),
        value if value >= 1000.0 => {
            let digits = format!("{value:.0}");
            let (front, back) = digits.split_at(digits.len() - 3);
            if front.len() > 3 { digits } else { format!("{front},{back}") }
        }
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

impl Report {
    /// Writes comparison.md, comparison.svg and, where it is asked for, the numbers.
    pub(crate) fn write(&self, folder: &Path, json: Option<&Path>) -> Result<(), Failure> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("comparison.md"), self.markdown()?)?;
        picture::draw(&folder.join("comparison.svg"), self)?;
        if let Some(json) = json {
            fs::write(json, format!("{:#}\n", self.json()))?;
        }
        Ok(())
    }

    /// The scene with most clients and this hold: that of the picture.
    pub(crate) fn crowded(&self, has_hold: bool) -> Option<&Scene> {
        let scenes = self.scenes.iter().filter(|scene| scene.hold.is_zero() != has_hold && scene.clients > 1);
        scenes.max_by_key(|scene| scene.clients)
    }

    pub(crate) fn markdown(&self) -> Result<String, Failure> {
        let mut page = String::new();
        self.write_head(&mut page)?;
        self.write_promises(&mut page)?;
        self.write_uncontended(&mut page)?;
        let crowds = || self.scenes.iter().map(|scene| scene.clients).filter(|clients| *clients > 1);
        let ends = [crowds().min(), crowds().max()];
        for scene in self.scenes.iter().filter(|scene| ends.contains(&Some(scene.clients))) {
            self.write_scene(&mut page, scene)?;
        }
        self.write_deaths(&mut page)?;
        self.write_memory(&mut page)?;
        self.write_not_run(&mut page)?;
        Ok(page)
    }

    fn write_head(&self, page: &mut String) -> Result<(), Failure> {
        let mut versions = self.versions.clone();
        versions.dedup();
        write!(
            page,
            "# Beside what one would pick instead\n\n\
             Ways to lock, measured beside each other on {}. This page and its picture are the output of a program:\n\n\
             ```sh\n{}\n```\n\n\
             - Machine: {}\n- Disk: {}\n- Servers: {}\n\n\
             ![Locks per second, and the wait](comparison.svg)\n\n\
             ## How it is measured\n\n\
             - Each way to lock has a server of its own on this machine, one node. Redis saves nothing but where it says AOF; all other settings are the usual ones. All take turns of {} s, \
             for {} rounds. A figure is the median of the rounds.\n\
             - The clients are one thread of one program, each with a connection of its own. They use the Rust clients that \
             people use, asynchronously.\n\
             - A client that has released the lock asks for it again at once. A wait that still runs at the end counts as \
             long as it was by then.\n\
             - Most to least: the locks of the luckiest client for each of the unluckiest; - if some got none. With few locks \
             for each client, one more is a large ratio. Starved: the clients that got none while another got two or more.\n\
             - The clients change a number under the lock. The program fails if two of them ever hold it together.\n\
             - CPU and memory are those of all processes of the server, as the system counts them. Requests are those that the \
             clients sent.\n\
             - \"redis-py's Lock\" and \"Redisson's shape\" are their algorithms with their usual pauses, from the same Rust \
             client. Their own clients cost more. Each client stands for a process: of the threads of one process Redisson wakes \
             one.\n\n",
            today(),
            self.command,
            Machine::this(),
            disk::describe()?,
            versions.join(", "),
            self.time.as_secs_f64(),
            self.rounds,
        )?;
        Ok(())
    }

    fn write_promises(&self, page: &mut String) -> Result<(), Failure> {
        page.push_str(
            "## What each promises\n\n\
             They are not the same. A lock that is on the disk of three nodes before each grant cannot be as fast as one in memory.\n\n\
             | | next is which waiter | a dead holder's lock ends with | fence | on disk at the reply | a held lock survives |\n\
             | --- | --- | --- | --- | --- | --- |\n",
        );
        for contender in self.contenders.iter().chain(self.not_run.iter().map(|(contender, _)| contender)) {
            let Contender { name, order, end, fence, disk, survives, .. } = contender;
            writeln!(page, "| {name} | {order} | {} | {fence} | {disk} | {survives} |", end.text())?;
        }
        page.push_str(
            "\nLOCK.ACQUIRE is sent with `SESSION 0`: the end of the connection ends the hold. Without it only the lease does. \
             `BLPOP` is no lock: nothing gives the element back when its holder dies. But no hand-off of these servers is cheaper.\n\n",
        );
        Ok(())
    }

    fn write_uncontended(&self, page: &mut String) -> Result<(), Failure> {
        let Some(scene) = self.scenes.iter().find(|scene| scene.clients == 1) else { return Ok(()) };
        page.push_str(
            "## One client\n\n\
             A lock taken and released, by a client that is alone.\n\n\
             | | median, ms | p99, ms | server CPU, us | requests | changed in files, bytes |\n\
             | --- | --- | --- | --- | --- | --- |\n",
        );
        for (place, contender) in self.contenders.iter().enumerate() {
            let median = |value: fn(&Sample) -> f64| short(scene.median(place, value));
            writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} |",
                contender.name,
                median(|sample| sample.found.round_p50_ms),
                median(|sample| sample.found.round_p99_ms),
                median(|sample| sample.cpu_us),
                median(|sample| sample.requests),
                median(|sample| sample.written),
            )?;
        }
        page.push_str(
            "\nBytes in files are those of whole pages that were changed, 4,096 at least. A page that changes twice before it is \
             on the disk counts once.\n\n",
        );
        Ok(())
    }

    fn write_scene(&self, page: &mut String, scene: &Scene) -> Result<(), Failure> {
        write!(
            page,
            "## {} clients, each holds the lock for {} ms\n\n\
             | | locks per second | wait, p99, ms | longest wait, ms | most to least | starved | server CPU, us | requests | \
             clients, processors |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            scene.clients,
            scene.hold.as_millis(),
        )?;
        for (place, contender) in self.contenders.iter().enumerate() {
            let median = |value: fn(&Sample) -> f64| short(scene.median(place, value));
            writeln!(
                page,
                "| {} | {} | {} | {} | {} | {:.0} | {} | {} | {} |",
                contender.name,
                median(Sample::rate),
                median(|sample| sample.found.wait_p99_ms),
                median(|sample| sample.found.wait_max_ms),
                median(Sample::most_to_least),
                scene.median(place, |sample| sample.found.starved as f64),
                median(|sample| sample.cpu_us),
                median(|sample| sample.requests),
                median(|sample| sample.client_busy),
            )?;
        }
        page.push('\n');
        Ok(())
    }

    fn write_deaths(&self, page: &mut String) -> Result<(), Failure> {
        let lease = self.lease.as_secs();
        write!(
            page,
            "## A holder is killed\n\n\
             The process of the holder is killed while a client waits. Leases and session timeouts are {lease} s here, the least \
             that ZooKeeper allows; those that people set are longer. A lease has run for 0.2 s or more by then.\n\n\
             | | ended by | until the next holder, ms: median (least to most) |\n| --- | --- | --- |\n",
        )?;
        for (contender, death) in self.contenders.iter().zip(&self.deaths) {
            writeln!(page, "| {} | {} | {} |", contender.name, contender.end.text(), death.text())?;
        }
        if self.contenders.iter().any(|contender| contender.end == End::Never) {
            page.push_str("\nNever: not within the lease and 3 s.\n");
        }
        page.push('\n');
        Ok(())
    }

    fn write_memory(&self, page: &mut String) -> Result<(), Failure> {
        let Some(scene) = self.crowded(false) else { return Ok(()) };
        write!(
            page,
            "## Memory\n\n| | server without clients, MiB | with {} clients on one lock, MiB |\n| --- | --- | --- |\n",
            scene.clients
        )?;
        for (place, contender) in self.contenders.iter().enumerate() {
            let crowded = scene.median(place, |sample| sample.memory_mib);
            writeln!(page, "| {} | {} | {} |", contender.name, short(self.idle_mib[place]), short(crowded))?;
        }
        page.push('\n');
        Ok(())
    }

    fn write_not_run(&self, page: &mut String) -> Result<(), Failure> {
        if self.not_run.is_empty() {
            return Ok(());
        }
        page.push_str("## Not run\n\n");
        for (contender, why) in &self.not_run {
            writeln!(page, "- {}: {why}", contender.name)?;
        }
        Ok(())
    }

    /// For other programs.
    fn json(&self) -> Value {
        let scene = |scene: &Scene| {
            let rows = self.contenders.iter().zip(&scene.samples).map(|(contender, samples)| {
                json!({ "contender": contender.id, "rounds": samples.iter().map(Sample::json).collect::<Vec<_>>() })
            });
            json!({
                "clients": scene.clients, "hold_ms": scene.hold.as_secs_f64() * 1e3, "rows": rows.collect::<Vec<_>>(),
            })
        };
        let death = |(contender, death): (&Contender, &Death)| {
            let Death { ms, never } = death;
            json!({ "contender": contender.id, "ms": ms, "never": never })
        };
        let server = |(place, contender): (usize, &Contender)| {
            let (version, idle) = (&self.versions[place], self.idle_mib[place]);
            json!({ "contender": contender.id, "server": version, "idle_mib": idle })
        };
        let not_run = |(contender, why): &(Contender, String)| json!({ "contender": contender.id, "why": why });
        json!({
            "date": today(), "machine": Machine::this().json(), "command": self.command,
            "contenders": self.contenders.iter().enumerate().map(server).collect::<Vec<_>>(),
            "scenes": self.scenes.iter().map(scene).collect::<Vec<_>>(),
            "deaths": self.contenders.iter().zip(&self.deaths).map(death).collect::<Vec<_>>(),
            "not_run": self.not_run.iter().map(not_run).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_three_digits_that_say_something() {
        let numbers = [(0.0, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234")];
        for (value, text) in numbers.into_iter().chain([(f64::INFINITY, "-"), (f64::NAN, "-"), (98_765.4, "98,765")]) {
            assert_eq!(short(value), text);
        }
    }
}
