//! The longest uninterrupted step of the server, by its CPU, for the worst that an ordinary client builds with default
//! limits. Beside it stands the same request on an empty server, or on plain values of the same size.
//!
//! A round measures each row of the table once. What counts is the median. A run of fewer than five rounds shares its
//! machine with others. There it is the least of ten samples: a step that grows with what a client makes is long in
//! each of them. The bounds are those of a machine on which 10,000 uncontended pairs of ACQUIRE and RELEASE take
//! [`PAIRS_US`]. Where they take longer, the bounds are higher.

mod rows;
mod stage;

use self::rows::{CASES, Case};
use self::stage::{Stage, pairs_us};
use crate::options::{Options, Scene};
use crate::report::Report;
use clap::{Arg, ArgAction};
use std::fs;
use std::path::{Path, PathBuf};
use testbed::{Server, Setup};

/// What 10,000 pairs take where the bounds hold as they stand.
const PAIRS_US: u64 = 22_000;
/// A run of fewer rounds is a short one.
const SAMPLES_MIN: usize = 5;
/// In a short run a row is above its bound only if each of so many samples is.
const SAMPLES_SHORT: usize = 10;

pub const SCENE: Scene = Scene {
    name: "worst_step",
    about: "The longest uninterrupted step of the server, for the worst that a client builds",
    rounds: "5",
    more: arguments,
    play,
    ..Scene::PLAIN
};

fn arguments() -> Vec<Arg> {
    let many = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::Append);
    vec![
        many("row", "Only rows whose name contains this"),
        many("server", "The program of a server, instead of the one that REDIS_LOCK_SERVER names"),
        Arg::new("write").long("write").num_args(0).help("Writes the table into docs/reliability.md"),
    ]
}

fn play(options: &Options, report: &mut Report) {
    let (rows, servers) = (options.all("row"), options.all("server"));
    let is_chosen = |scene: &&Case| rows.is_empty() || rows.iter().any(|row| scene.name.contains(row));
    let chosen: Vec<&Case> = CASES.iter().filter(is_chosen).collect();
    let servers: Vec<Option<PathBuf>> = match servers.is_empty() {
        true => vec![None],
        false => servers.into_iter().map(|path| Some(path.into())).collect(),
    };

    let measure = |server: &Option<PathBuf>| Column::measure(server.as_deref(), &chosen, options.rounds, report);
    let columns: Vec<Column> = servers.iter().map(measure).collect();
    if options.has("write") {
        let text = fs::read_to_string(page()).expect("the page");
        fs::write(page(), filled(&text, &table(&chosen, &columns))).expect("the page");
    }
    report.must_reach("rows", (chosen.len() * servers.len()) as u64);
}

struct Column {
    server: String,
    pairs_us: u64,
    rows: Vec<Row>,
}

/// What was found of a scene, in microseconds.
#[derive(Clone, Copy)]
struct Row {
    full: u64,
    empty: u64,
}

impl Column {
    fn measure(program: Option<&Path>, chosen: &[&Case], rounds: u64, report: &mut Report) -> Column {
        let setup = || program.into_iter().fold(Server::setup(), Setup::program);
        let mut stage = Stage::new(setup(), true, 1);
        let (kind, version) = stage.conn.version();
        let server = format!("{} {version}", if kind == "valkey" { "Valkey" } else { "Redis" });
        let pairs_us = median(&mut (0..SAMPLES_MIN).map(|_| pairs_us(&mut stage)).collect::<Vec<_>>());
        drop(stage);
        println!("{server}: 10,000 pairs take {} of CPU", ms(pairs_us));
        let rows = chosen.iter().map(|scene| {
            let setup = || scene.options.iter().fold(setup(), |setup, (name, value)| setup.option(name, value));
            let is_short = rounds < SAMPLES_MIN as u64;
            let empty = Samples::of(scene, &setup, false).median(rounds as usize);
            let bound = scene.bound.us() * pairs_us.max(PAIRS_US) / PAIRS_US;
            let judged = |full: u64| if scene.bound.is_beyond() { full.saturating_sub(empty) } else { full };
            let mut samples = Samples::of(scene, &setup, true);
            let mut full = samples.median(rounds as usize);
            while is_short && judged(full) > bound && samples.found.len() < SAMPLES_SHORT {
                full = samples.least(samples.found.len() + 1);
            }
            // Rows near their bound want a whole run on a machine with nothing else to do.
            let most = if is_short { 2 * bound } else { bound };
            let is_above = judged(full) > most;
            let verdict = if is_above { "ABOVE" } else { "" };
            println!("{verdict:5} {:>9} {:>9}  {}", ms(full), ms(empty), scene.name);
            report.add("rows", 1);
            if is_above {
                report.violation(format!("{server}: {}: {}, above {}", scene.name, ms(judged(full)), ms(most)));
            }
            Row { full, empty }
        });
        let rows = rows.collect();
        Column { server, pairs_us, rows }
    }
}

/// What a scene has cost on servers of this setup.
struct Samples<'s> {
    scene: &'s Case,
    setup: &'s dyn Fn() -> Setup,
    is_full: bool,
    stage: Option<Stage>,
    found: Vec<u64>,
}

impl<'s> Samples<'s> {
    fn of(scene: &'s Case, setup: &'s dyn Fn() -> Setup, is_full: bool) -> Samples<'s> {
        Samples { scene, setup, is_full, stage: None, found: Vec::new() }
    }

    /// The scene on a server of its own. A busy machine gets more time for it.
    fn built(&self) -> Stage {
        let mut patience = 1;
        loop {
            let setup = match self.scene.grace_ms * patience {
                0 => (self.setup)(),
                grace_ms => (self.setup)().option("lock.grace-ms", &grace_ms.to_string()),
            };
            let mut stage = Stage::new(setup, self.is_full, patience);
            (self.scene.build)(&mut stage);
            if !stage.is_late {
                return stage;
            }
            patience *= 2;
        }
    }

    fn take(&mut self, count: usize) {
        while self.found.len() < count {
            let mut stage = self.stage.take().unwrap_or_else(|| self.built());
            self.found.push(stage.longest_us(self.scene.act));
            self.stage = (!self.scene.once).then_some(stage);
        }
    }

    /// The median of so many samples at least.
    fn median(&mut self, count: usize) -> u64 {
        self.take(count);
        median(&mut self.found)
    }

    /// The least of so many samples at least.
    fn least(&mut self, count: usize) -> u64 {
        self.take(count);
        self.found.iter().copied().min().expect("a sample")
    }
}

fn median(all: &mut [u64]) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

fn ms(us: u64) -> String {
    format!("{}.{} ms", us / 1_000, us % 1_000 / 100)
}

fn table(chosen: &[&Case], columns: &[Column]) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpu = model.map_or("an unknown processor", |(_, name)| name);
    let each = |cell: &dyn Fn(&Column) -> String| columns.iter().map(cell).collect::<String>();
    let pairs: Vec<String> =
        columns.iter().map(|column| format!("{} {}", column.server, ms(column.pairs_us))).collect();
    let mut lines = format!(
        "`{cpu}`; 10,000 pairs of ACQUIRE and RELEASE take: {}.\n\n| longest step, beside an empty server |{}\n| --- |{}\n",
        pairs.join(", "),
        each(&|column| format!(" {} | |", column.server)),
        each(&|_| " ---: | ---: |".to_owned()),
    );
    for (at, scene) in chosen.iter().enumerate() {
        let cells = each(&|column| format!(" {} | {} |", ms(column.rows[at].full), ms(column.rows[at].empty)));
        lines += &format!("| {} |{cells}\n", scene.name);
    }
    lines
}

const BEGIN: &str = "<!-- the longest step -->\n";
const END: &str = "<!-- end of the longest step -->";

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reliability.md")
}

/// What stands before the mark, between the marks, and behind.
fn split(page: &str) -> (&str, &str, &str) {
    let (before, rest) = page.split_once(BEGIN).expect("a mark");
    let (table, after) = rest.split_once(END).expect("a mark");
    (before, table, after)
}

fn filled(page: &str, table: &str) -> String {
    let (before, _, after) = split(page);
    format!("{before}{BEGIN}\n{table}\n{END}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_rows_of_the_program_in_their_order() {
        // Figures of a row that is measured no more would be believed, and a row without figures not be missed.
        let text = fs::read_to_string(page()).expect("the page");
        let rows = split(&text).1.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let rows: Vec<&str> = rows.skip(1).filter(|row| *row != "---").collect();
        assert_eq!(rows, CASES.iter().map(|scene| scene.name).collect::<Vec<_>>());
    }
}
