//! What was found, as a page for people, a picture, and numbers for programs.

use crate::Failure;
use crate::contenders::{Contender, End};
use crate::contention::Sample;
use crate::{disk, picture};
use bench::machine::Machine;
use bench::page::whole;
use bench::ratio::Spread;
use bench::results::today;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A column of a table of samples: its head, and its value.
type Column<'n> = (&'n str, fn(&Sample) -> f64);

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
        value if value >= 1000.0 => whole(value),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// A table with these heads behind an empty one.
fn table(heads: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: String = rows.map(|cells| format!("| {} |\n", cells.join(" | "))).collect();
    format!("| | {heads} |\n|{}\n{rows}", " --- |".repeat(heads.matches(" | ").count() + 2))
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
        let crowds = || self.scenes.iter().map(|scene| scene.clients).filter(|clients| *clients > 1);
        let ends = [crowds().min(), crowds().max()];
        let scenes = self.scenes.iter().filter(|scene| ends.contains(&Some(scene.clients)));
        let scenes: String = scenes.map(|scene| self.scene(scene)).collect();
        let parts = [self.promises(), self.uncontended(), scenes, self.deaths(), self.memory(), self.not_run()];
        Ok(self.head()? + &parts.concat())
    }

    fn head(&self) -> Result<String, Failure> {
        let mut versions = self.versions.clone();
        versions.dedup();
        Ok(format!(
            "# Comparison with alternatives\n\n\
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
        ))
    }

    fn promises(&self) -> String {
        let all = self.contenders.iter().chain(self.not_run.iter().map(|(contender, _)| contender));
        let rows = all.map(|contender| {
            let Contender { name, order, end, fence, disk, survives, .. } = contender;
            vec![*name, *order, end.text(), *fence, *disk, *survives].into_iter().map(str::to_owned).collect()
        });
        let heads = "next is which waiter | a dead holder's lock ends with | fence | on disk at the reply | a held lock survives";
        format!(
            "## What each promises\n\n\
             They are not the same. A lock that is on the disk of three nodes before each grant cannot be as fast as one in memory.\n\n\
             {}\nLOCK.ACQUIRE is sent with `SESSION 0`: the end of the connection ends the hold. Without it only the lease does. \
             `BLPOP` is no lock: nothing gives the element back when its holder dies. But no hand-off of these servers is cheaper.\n\n",
            table(heads, rows),
        )
    }

    /// A table of the medians of a scene.
    fn medians(&self, scene: &Scene, columns: &[Column]) -> String {
        let row = |(place, contender): (usize, &Contender)| {
            let cell = |(head, value): &(&str, fn(&Sample) -> f64)| match scene.median(place, *value) {
                count if *head == "starved" => format!("{count:.0}"),
                value => short(value),
            };
            std::iter::once(contender.name.to_owned()).chain(columns.iter().map(cell)).collect()
        };
        let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        table(&heads.join(" | "), self.contenders.iter().enumerate().map(row))
    }

    fn uncontended(&self) -> String {
        let Some(scene) = self.scenes.iter().find(|scene| scene.clients == 1) else { return String::new() };
        let columns: [Column; 5] = [
            ("median, ms", |sample| sample.found.round_p50_ms),
            ("p99, ms", |sample| sample.found.round_p99_ms),
            ("server CPU, us", |sample| sample.cpu_us),
            ("requests", |sample| sample.requests),
            ("changed in files, bytes", |sample| sample.written),
        ];
        format!(
            "## One client\n\nA lock taken and released, by a client that is alone.\n\n{}\n\
             Bytes in files are those of whole pages that were changed, 4,096 at least. A page that changes twice before it is \
             on the disk counts once.\n\n",
            self.medians(scene, &columns),
        )
    }

    fn scene(&self, scene: &Scene) -> String {
        let columns: [Column; 8] = [
            ("locks per second", Sample::rate),
            ("wait, p99, ms", |sample| sample.found.wait_p99_ms),
            ("longest wait, ms", |sample| sample.found.wait_max_ms),
            ("most to least", Sample::most_to_least),
            ("starved", |sample| sample.found.starved as f64),
            ("server CPU, us", |sample| sample.cpu_us),
            ("requests", |sample| sample.requests),
            ("clients, processors", |sample| sample.client_busy),
        ];
        let (clients, ms, table) = (scene.clients, scene.hold.as_millis(), self.medians(scene, &columns));
        format!("## {clients} clients, each holds the lock for {ms} ms\n\n{table}\n")
    }

    fn deaths(&self) -> String {
        let row = |(contender, death): (&Contender, &Death)| {
            vec![contender.name.to_owned(), contender.end.text().to_owned(), death.text()]
        };
        let heads = "ended by | until the next holder, ms: median (least to most)";
        let has_never = self.contenders.iter().any(|contender| contender.end == End::Never);
        format!(
            "## A holder is killed\n\n\
             The process of the holder is killed while a client waits. Leases and session timeouts are {} s here, the least \
             that ZooKeeper allows; those that people set are longer. A lease has run for 0.2 s or more by then.\n\n{}{}\n",
            self.lease.as_secs(),
            table(heads, self.contenders.iter().zip(&self.deaths).map(row)),
            if has_never { "\nNever: not within the lease and 3 s.\n" } else { "" },
        )
    }

    fn memory(&self) -> String {
        let Some(scene) = self.crowded(false) else { return String::new() };
        let row = |(place, contender): (usize, &Contender)| {
            let crowded = scene.median(place, |sample| sample.memory_mib);
            vec![contender.name.to_owned(), short(self.idle_mib[place]), short(crowded)]
        };
        let heads = format!("server without clients, MiB | with {} clients on one lock, MiB", scene.clients);
        format!("## Memory\n\n{}\n", table(&heads, self.contenders.iter().enumerate().map(row)))
    }

    fn not_run(&self) -> String {
        let lines = self.not_run.iter().map(|(contender, why)| format!("- {}: {why}\n", contender.name));
        if self.not_run.is_empty() { String::new() } else { format!("## Not run\n\n{}", lines.collect::<String>()) }
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
