//! The tables of figures in a page, made from the files in bench/results: no figure is typed by hand.
//!
//! Each day, processor and kernel has tables of its own. A table stands between two marks, which name it.

use crate::goals::{BOUNDS, Bound, Limit, Measured};
use crate::row::{Goal, Verdict};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The page with all figures, from the top of the repository.
pub const PAGE: &str = "docs/performance.md";

/// The top of the repository.
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

/// The figure of a bound in a file, and how the table shows it.
fn figure(bound: &Bound, file: &Value) -> Option<(f64, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match bound.measured {
        Measured::Ratio(..) | Measured::Memory => {
            let rows = file["rivals"]["found"]["rows"].as_array()?;
            let is_it = |row: &&Value| {
                let [group, environment, with] = ["group", "environment", "with"].map(|name| text(&row[name]));
                bound.measured.is_row(&group, &environment, &with)
            };
            let row = rows.iter().find(is_it)?;
            let ratio = row["ratio"]["median"].as_f64()?;
            let bytes = |of: &str| row[of]["median"].as_f64().map_or(0.0, f64::round);
            let shown = if bound.measured == Measured::Memory {
                format!("{} / {} = {ratio:.2}", bytes("ours"), bytes("theirs"))
            } else {
                format!("{ratio:.2}")
            };
            Some((ratio, shown))
        }
        Measured::HandOff(clients) => {
            let sizes = file["handoff"]["found"]["sizes"].as_array()?;
            let size = sizes.iter().find(|size| size["clients"].as_u64() == Some(clients as u64))?;
            let ratio = size["ratio"]["cpu"]["median"].as_f64()?;
            Some((ratio, format!("{ratio:.2}")))
        }
        Measured::Instructions | Measured::Own => {
            let commands = file["instructions"]["found"]["commands"].as_array()?;
            let lock = commands.iter().find(|command| command["name"] == crate::rivals::LOCK_NAME)?;
            let of = if bound.measured == Measured::Own { "own" } else { "instructions" };
            lock[of].as_f64().map(|count| (count, whole(count)))
        }
    }
}

/// A whole number with its thousands set apart.
fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A table with nothing but one blank in an empty cell.
fn tidy(table: &str) -> String {
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
        let servers: Vec<String> = self.files().map(|(_, file)| server_name(file)).collect();
        format!("{date}`{}`, {} cores, {}; {}", self.cpu, self.cores, self.kernel, servers.join(", "))
    }

    fn files(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.servers.iter()
    }

    fn heads(&self, names: &str) -> String {
        let heads: String = self.files().map(|(head, _)| format!(" {head} |")).collect();
        let columns = self.servers.len() + names.matches('|').count();
        let (before, after) = names.split_once('*').unwrap_or((names, ""));
        format!("{before}{heads}{after}\n|{}\n", " --- |".repeat(columns - 1))
    }

    /// Whether a figure was found that has a bound.
    pub fn has_figures(&self) -> bool {
        self.files().any(|(_, file)| BOUNDS.iter().any(|bound| figure(bound, file).is_some()))
    }

    /// The table of all bounds. Rows of which nothing was found are left out.
    pub fn bounds(&self) -> String {
        if !self.has_figures() {
            return String::new();
        }
        let mut table = self.heads("| |* at most | aim |");
        for bound in BOUNDS {
            let cells: Vec<Option<String>> = self.files().map(|(_, file)| cell(bound, file)).collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let cells: String = cells.into_iter().map(|cell| format!(" {} |", cell.unwrap_or_default())).collect();
            let goals = match bound.limit {
                Limit::Everywhere(goal) | Limit::Redis7(goal) => vec![goal],
                Limit::ByAge(old, new) => vec![old, new],
            };
            let listed = |of: &dyn Fn(&Goal) -> Option<f64>| {
                let texts: Vec<String> = goals.iter().filter_map(of).map(number).collect();
                texts.join("; newer ")
            };
            let (at_most, aim) = (listed(&|goal| Some(goal.at_most)), listed(&|goal| goal.aim));
            writeln!(table, "| {} |{cells} {at_most} | {aim} |", bound.name).expect("a string takes it");
        }
        tidy(&table)
    }

    /// The instructions of all commands that were counted.
    pub fn instructions(&self) -> String {
        let commands = |file: &'_ Value| file["instructions"]["found"]["commands"].as_array().cloned();
        let mut names: Vec<String> = Vec::new();
        for command in self.files().filter_map(|(_, file)| commands(file)).flatten() {
            let name = command["name"].as_str().unwrap_or_default().to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return String::new();
        }
        let mut table = self.heads("| instructions of the server |*");
        let mut row = |name: &str, of: &dyn Fn(&[Value]) -> Option<f64>| {
            let cells = self.files().map(|(_, file)| commands(file).as_deref().and_then(of).map(whole));
            let cells: String = cells.map(|cell| format!(" {} |", cell.unwrap_or_default())).collect();
            writeln!(table, "| {name} |{cells}").expect("a string takes it");
        };
        let find = |commands: &[Value], name: &str, of: &str| {
            commands.iter().find(|command| command["name"] == name).and_then(|command| command[of].as_f64())
        };
        for name in &names {
            row(name, &|commands| find(commands, name, "instructions"));
            if name == crate::rivals::LOCK_NAME {
                row("of these the module's own", &|commands| find(commands, name, "own"));
                row("more than two empty module commands", &|commands| {
                    let empty = find(commands, "two empty module commands", "instructions")?;
                    Some(find(commands, name, "instructions")? - empty)
                });
            }
        }
        tidy(&table)
    }

    /// Hand-offs among few clients and many, server by server.
    pub fn handoffs(&self) -> String {
        let mut table = self.heads("| clients on one lock, without pauses |*");
        let sizes = |file: &Value| file["handoff"]["found"]["sizes"].as_array().cloned().unwrap_or_default();
        let mut all: Vec<u64> = Vec::new();
        for size in self.files().flat_map(|(_, file)| sizes(file)) {
            all.extend(size["clients"].as_u64().filter(|clients| !all.contains(clients)));
        }
        if all.is_empty() {
            return String::new();
        }
        all.sort_unstable();
        for clients in all {
            let cell = |(_, file): (&String, &Value)| {
                let sizes = sizes(file);
                let size = sizes.iter().find(|size| size["clients"].as_u64() == Some(clients))?;
                let median = |of: &Value| of["median"].as_f64();
                let (rate, cpu) = (median(&size["ratio"]["rate"])?, median(&size["ratio"]["cpu"])?);
                let (a_second, us) = (median(&size["lock"]["rate"])?, median(&size["lock"]["cpu_us"])?);
                Some(format!("{} ({rate:.2}), {us:.1} us ({cpu:.2})", whole(a_second)))
            };
            let cells: String = self.files().map(|of| format!(" {} |", cell(of).unwrap_or_default())).collect();
            writeln!(table, "| {} |{cells}", whole(clients as f64)).expect("a string takes it");
        }
        tidy(&table)
    }

    /// The instructions and system calls of a hand-off, beside those of a list's element.
    pub fn profile(&self) -> String {
        let mut text = String::new();
        for (head, file) in self.files() {
            let sizes = file["profile"]["found"]["sizes"].as_array().cloned().unwrap_or_default();
            if sizes.is_empty() {
                continue;
            }
            let clients: Vec<String> =
                sizes.iter().map(|size| whole(size["clients"].as_f64().unwrap_or_default())).collect();
            let heads: String = clients.iter().map(|count| format!(" {count} clients | `BLPOP` |")).collect();
            writeln!(text, "| {head} |{heads}\n|{}", " --- |".repeat(1 + 2 * clients.len()))
                .expect("a string takes it");
            for part in ["parts", "calls", "of_the_server"] {
                for (at, row) in sizes[0][part].as_array().into_iter().flatten().enumerate() {
                    let name = row["name"].as_str().unwrap_or_default();
                    let cell = |size: &Value| {
                        // Functions may come in another order among more clients.
                        let same = size[part].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == name));
                        let value = |of: &str| same.and_then(|row| row[of].as_f64());
                        let shown = |value: Option<f64>| match (part, value) {
                            (_, None) => String::new(),
                            ("calls", Some(calls)) => format!("{calls:.2}"),
                            (_, Some(count)) => whole(count),
                        };
                        format!(" {} | {} |", shown(value("lock")), shown(value("list")))
                    };
                    let cells: String = sizes.iter().map(cell).collect();
                    let name = match (part, at) {
                        ("parts", 0) => "instructions, all".to_owned(),
                        ("of_the_server", _) => format!("`{}`", name.rsplit(": ").next().unwrap_or(name)),
                        _ => name.to_owned(),
                    };
                    writeln!(text, "| {name} |{cells}").expect("a string takes it");
                }
            }
            text.push('\n');
        }
        tidy(&text)
    }

    /// What is above its bound, what is within it, and what reaches the aim, server by server.
    pub fn verdicts(&self) -> String {
        let mut text = format!("{}\n", self.name());
        for (head, file) in self.files() {
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
    let newest = |table: &dyn Fn(&Machine) -> String, most: usize| {
        let tables = machines.iter().map(|machine| (machine.name(), table(machine)));
        let tables = tables.filter(|(_, table)| !table.is_empty()).take(most);
        tables.map(|(name, table)| format!("{name}:\n\n{table}")).collect::<Vec<_>>().join("\n")
    };
    let each = |table: &dyn Fn(&Machine) -> String| newest(table, usize::MAX);
    BTreeMap::from([
        ("where we are", each(&Machine::bounds)),
        ("instructions", newest(&Machine::instructions, 1)),
        ("hand-offs", each(&Machine::handoffs)),
        ("profile of a hand-off", newest(&Machine::profile, 1)),
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
