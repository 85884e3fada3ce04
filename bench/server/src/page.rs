//! The tables of figures in a page, made from the files in bench/results: no figure is typed by hand.
//!
//! Each day, processor and kernel has tables of its own. A table stands between two marks, which name it.

use crate::goals::{BOUNDS, Bound, Limit, Measured};
use crate::rivals::LOCK_NAME;
use crate::row::{Goal, Verdict};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The page with all figures, from the top of the repository.
pub const PAGE: &str = "docs/performance.md";

pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What was found on one machine on one day.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Empty if a file tells no day.
    date: String,
    cpu: String,
    kernel: String,
    cores: u64,
    /// What was found of each server, by its name in the head of a table.
    servers: BTreeMap<String, Value>,
}

/// Reads all files of a folder. The newest machine comes first.
pub fn machines(folder: &Path) -> io::Result<Vec<Machine>> {
    let mut found: Vec<Machine> = Vec::new();
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let file: Value = serde_json::from_slice(&fs::read(path)?)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let date = text(&file["date"]);
        let sections = ["rivals", "handoff", "instructions", "profile"];
        let Some(machine) = sections.iter().map(|section| &file[section]["machine"]).find(|found| !found.is_null())
        else {
            continue;
        };
        let (cpu, kernel) = (text(&machine["cpu"]), text(&machine["kernel"]));
        let cores = sections.iter().filter_map(|section| file[section]["machine"]["cores"].as_u64()).max();
        let same = |other: &&mut Machine| (&other.date, &other.cpu, &other.kernel) == (&date, &cpu, &kernel);
        let server = head(&text(&file["server"]));
        match found.iter_mut().find(same) {
            Some(machine) => drop(machine.servers.insert(server, file)),
            None => {
                let servers = BTreeMap::from([(server, file)]);
                found.push(Machine { date, cpu, kernel, cores: cores.unwrap_or(1), servers });
            }
        }
    }
    found.sort_by(|one, other| other.date.cmp(&one.date));
    Ok(found)
}

/// `redis 7.0.15` as it stands in the head of a table.
fn head(server: &str) -> String {
    let (kind, version) = server.split_once(' ').unwrap_or((server, ""));
    let short: Vec<&str> = version.split('.').take(2).collect();
    format!("{}{} {}", kind[..1].to_uppercase(), &kind[1..], short.join("."))
}

/// A file's server as `goals` asks for it.
fn server_of(file: &Value) -> (&str, &str) {
    file["server"].as_str().and_then(|server| server.split_once(' ')).unwrap_or_default()
}

/// The rows that a program has written into a file; none if it was not run.
fn rows<'f>(file: &'f Value, section: &str, list: &str) -> &'f [Value] {
    file[section]["found"][list].as_array().map_or(&[], Vec::as_slice)
}

fn median(of: &Value) -> Option<f64> {
    of["median"].as_f64()
}

/// The figure of a bound in a file, and how the table shows it.
fn figure(bound: &Bound, file: &Value) -> Option<(f64, String)> {
    match bound.measured {
        Measured::Ratio(..) | Measured::Memory => {
            let is_it = |row: &&Value| {
                let [group, environment, with] =
                    ["group", "environment", "with"].map(|name| row[name].as_str().unwrap_or_default());
                bound.measured.is_row(group, environment, with)
            };
            let row = rows(file, "rivals", "rows").iter().find(is_it)?;
            let ratio = median(&row["ratio"])?;
            let bytes = |of: &str| median(&row[of]).map_or(0.0, f64::round);
            let of = if bound.measured == Measured::Memory {
                format!("{} / {} = ", bytes("ours"), bytes("theirs"))
            } else {
                String::new()
            };
            Some((ratio, format!("{of}{ratio:.2}")))
        }
        Measured::HandOff(clients) => {
            let size = rows(file, "handoff", "sizes").iter().find(|size| size["clients"] == clients)?;
            let ratio = median(&size["ratio"]["cpu"])?;
            Some((ratio, format!("{ratio:.2}")))
        }
        Measured::Instructions | Measured::Own => {
            let of = if bound.measured == Measured::Own { "own" } else { "instructions" };
            counted(file, LOCK_NAME, of).map(|count| (count, whole(count)))
        }
    }
}

/// The instructions of a command.
fn counted(file: &Value, name: &str, of: &str) -> Option<f64> {
    rows(file, "instructions", "commands").iter().find(|command| command["name"] == name)?[of].as_f64()
}

/// A whole number with its thousands set apart.
pub fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    groups.iter().map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}

/// A table of these rows below a head, with nothing but one blank in an empty cell; nothing without rows.
fn table(head: &str, rows: &str) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let table = format!("{head}\n|{}\n{rows}", " --- |".repeat(head.matches('|').count() - 1));
    table.replace("|  |  |", "| | |").replace("|  |", "| |")
}

fn number(number: f64) -> String {
    match number {
        1_000.0.. => whole(number),
        _ if number.fract() == 0.0 => format!("{number:.1}"),
        _ => number.to_string(),
    }
}

impl Machine {
    /// Where and when it was, for the head of its tables.
    pub fn name(&self) -> String {
        let date = if self.date.is_empty() { String::new() } else { format!("{}, ", self.date) };
        let servers: Vec<String> = self.servers.values().map(server_name).collect();
        format!("{date}`{}`, {} cores, {}; {}", self.cpu, self.cores, self.kernel, servers.join(", "))
    }

    /// A row of a table: the cell of each server, and what stands behind. Nothing if no server has one.
    fn row(&self, name: &str, cell: impl Fn(&Value) -> Option<String>, behind: &str) -> String {
        let cells: Vec<Option<String>> = self.servers.values().map(cell).collect();
        if cells.iter().all(Option::is_none) {
            return String::new();
        }
        let cells: String = cells.into_iter().map(|cell| format!(" {} |", cell.unwrap_or_default())).collect();
        format!("| {name} |{cells}{behind}\n")
    }

    /// A table with a column for each server.
    fn by_server(&self, name: &str, behind: &str, rows: &str) -> String {
        let heads: String = self.servers.keys().map(|head| format!(" {head} |")).collect();
        table(&format!("| {name} |{heads}{behind}"), rows)
    }

    /// What all files have as this part of a row, each once.
    fn each(&self, section: &str, list: &str, part: &str) -> Vec<&Value> {
        let mut found = Vec::new();
        for row in self.servers.values().flat_map(|file| rows(file, section, list)) {
            if !found.contains(&&row[part]) {
                found.push(&row[part]);
            }
        }
        found
    }

    pub fn has_figures(&self) -> bool {
        self.servers.values().any(|file| BOUNDS.iter().any(|bound| figure(bound, file).is_some()))
    }

    /// The table of all bounds. Rows of which nothing was found are left out.
    pub fn bounds(&self) -> String {
        let row = |bound: &Bound| {
            let goals = match bound.limit {
                Limit::Everywhere(goal) | Limit::Redis7(goal) => vec![goal],
                Limit::ByAge(old, new) => vec![old, new],
            };
            let listed = |of: &dyn Fn(&Goal) -> Option<f64>| {
                goals.iter().filter_map(of).map(number).collect::<Vec<_>>().join("; newer ")
            };
            let (at_most, aim) = (listed(&|goal| Some(goal.at_most)), listed(&|goal| goal.aim));
            self.row(bound.name, |file| cell(bound, file), &format!(" {at_most} | {aim} |"))
        };
        self.by_server("", " at most | aim |", &BOUNDS.iter().map(row).collect::<String>())
    }

    /// The instructions of all commands that were counted.
    pub fn instructions(&self) -> String {
        let of_command = |name: &Value| {
            let name = name.as_str().unwrap_or_default();
            let mut text = self.row(name, |file| counted(file, name, "instructions").map(whole), "");
            if name == LOCK_NAME {
                text += &self.row("of these the module's own", |file| counted(file, name, "own").map(whole), "");
                let more = |file: &Value| {
                    let empty = counted(file, "two empty module commands", "instructions")?;
                    Some(whole(counted(file, name, "instructions")? - empty))
                };
                text += &self.row("more than two empty module commands", more, "");
            }
            text
        };
        let names = self.each("instructions", "commands", "name");
        self.by_server("instructions of the server", "", &names.into_iter().map(of_command).collect::<String>())
    }

    /// Hand-offs among few clients and many, server by server.
    pub fn handoffs(&self) -> String {
        let mut all: Vec<f64> =
            self.each("handoff", "sizes", "clients").into_iter().filter_map(Value::as_f64).collect();
        all.sort_by(f64::total_cmp);
        let of_size = |clients: f64| {
            let cell = |file: &Value| {
                let is_it = |size: &&Value| size["clients"].as_f64() == Some(clients);
                let size = rows(file, "handoff", "sizes").iter().find(is_it)?;
                let (rate, cpu) = (median(&size["ratio"]["rate"])?, median(&size["ratio"]["cpu"])?);
                let (a_second, us) = (median(&size["lock"]["rate"])?, median(&size["lock"]["cpu_us"])?);
                Some(format!("{} ({rate:.2}), {us:.1} us ({cpu:.2})", whole(a_second)))
            };
            self.row(&whole(clients), cell, "")
        };
        let rows: String = all.into_iter().map(of_size).collect();
        self.by_server("clients on one lock, without pauses", "", &rows)
    }

    /// The instructions and system calls of a hand-off, beside those of a list's element.
    pub fn profile(&self) -> String {
        let of_server = |(head, file): (&String, &Value)| {
            let sizes = rows(file, "profile", "sizes");
            let clients = sizes.iter().map(|size| whole(size["clients"].as_f64().unwrap_or_default()));
            let heads: String = clients.map(|count| format!(" {count} clients | `BLPOP` |")).collect();
            let parts = ["parts", "calls"].into_iter().flat_map(|part| {
                let of_first = sizes.first().and_then(|size| size[part].as_array()).into_iter().flatten();
                of_first.enumerate().map(move |(at, row)| profile_row(sizes, part, at, &row["name"]))
            });
            table(&format!("| {head} |{heads}"), &parts.collect::<String>()) + "\n"
        };
        self.servers.iter().map(of_server).filter(|table| table != "\n").collect()
    }

    /// What is above its bound, what is within it, and what reaches the aim, server by server.
    pub fn verdicts(&self) -> String {
        let mut text = format!("{}\n", self.name());
        for (head, file) in &self.servers {
            writeln!(text, "{head}").expect("a string takes it");
            for bound in BOUNDS {
                let (Some((value, shown)), Some(goal)) = (figure(bound, file), bound.limit.on(server_of(file))) else {
                    continue;
                };
                let (word, goal) = (goal.verdict(value).word(), goal.to_string());
                writeln!(text, "  {word:<17} {shown:>17}   {goal:<27} {}", bound.name).expect("a string takes it");
            }
        }
        text
    }
}

/// One part of a profile, of all sizes.
fn profile_row(sizes: &[Value], part: &str, at: usize, name: &Value) -> String {
    let cell = |size: &Value| {
        let same = size[part].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == *name));
        let shown = |of: &str| match (part, same.and_then(|row| row[of].as_f64())) {
            (_, None) => String::new(),
            ("calls", Some(calls)) => format!("{calls:.2}"),
            (_, Some(count)) => whole(count),
        };
        format!(" {} | {} |", shown("lock"), shown("list"))
    };
    let cells: String = sizes.iter().map(cell).collect();
    let name = name.as_str().unwrap_or_default();
    match (part, at) {
        ("parts", 0) => format!("| instructions, all |{cells}\n"),
        _ => format!("| {name} |{cells}\n"),
    }
}

fn server_name(file: &Value) -> String {
    let (kind, version) = server_of(file);
    format!("{}{} {version}", kind[..1].to_uppercase(), &kind[1..])
}

/// A figure in a table: italic above its bound, bold within its aim.
fn cell(bound: &Bound, file: &Value) -> Option<String> {
    let (value, shown) = figure(bound, file)?;
    Some(match bound.limit.on(server_of(file)).map(|goal| goal.verdict(value)) {
        Some(Verdict::Missed) => format!("*{shown}*"),
        Some(Verdict::Aim) => format!("**{shown}**"),
        _ => shown,
    })
}

/// All that may stand between two marks, by their name. Instructions are those of the newest machine: others hardly
/// differ.
pub fn blocks(machines: &[Machine]) -> BTreeMap<&'static str, String> {
    let newest = |table: fn(&Machine) -> String, most: usize| {
        let tables = machines.iter().map(|machine| (machine.name(), table(machine)));
        let tables = tables.filter(|(_, table)| !table.is_empty()).take(most);
        tables.map(|(name, table)| format!("{name}:\n\n{table}")).collect::<Vec<_>>().join("\n")
    };
    BTreeMap::from([
        ("where we are", newest(Machine::bounds, usize::MAX)),
        ("instructions", newest(Machine::instructions, 1)),
        ("hand-offs", newest(Machine::handoffs, usize::MAX)),
        ("profile of a hand-off", newest(Machine::profile, 1)),
    ])
}

/// A page with these blocks between its marks.
///
/// # Errors
/// When a mark has no end, or names no block.
pub fn filled(page: &str, blocks: &BTreeMap<&'static str, String>) -> Result<String, String> {
    const BEGIN: &str = "<!-- figures: ";
    const END: &str = "<!-- end of figures -->";
    let (mut text, mut rest) = (String::new(), page);
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->").ok_or("a mark without its end")?;
        let (_, after) = after.split_once(END).ok_or_else(|| format!("{name}: the figures have no end"))?;
        let block = blocks.get(name).ok_or_else(|| format!("no figures are called {name}"))?;
        let block = if block.is_empty() { String::new() } else { format!("{}\n\n", block.trim_end()) };
        write!(text, "{before}{BEGIN}{name} -->\n\n{block}{END}").expect("a string takes it");
        rest = after;
    }
    Ok(text + rest)
}
