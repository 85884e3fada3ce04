//! What lies in contrib/: the dashboard, the alerts and the configurations for the collection of metrics. Compared with
//! what a server shows, because a panel that stays empty is not noticed until it is needed.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use testbed::{Client, Server};

/// The name that redis_exporter gives to all that a script returns, and how one field of it is asked for.
const METRIC: &str = "redis_script_values";

/// All files of contrib/, by their path in it.
fn files() -> BTreeMap<PathBuf, String> {
    fn collect(root: &Path, dir: &Path, into: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, into);
            } else {
                into.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib");
    let mut files = BTreeMap::new();
    collect(&root, &root, &mut files);
    files
}

fn file(name: &str) -> String {
    files().remove(Path::new(name)).unwrap_or_else(|| panic!("contrib/{name} is missing"))
}

/// The fields of `INFO lock` with their values.
fn section(conn: &mut Client) -> BTreeMap<String, String> {
    let text: String = conn.get(&["INFO", "lock"]);
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The fields that a text speaks of: its words that begin with `lock_`, also behind the prefix that Telegraf adds.
fn fields_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words = words.map(|word| word.strip_prefix("redis_commands_").unwrap_or(word));
    // `lock_` alone is the beginning of a pattern.
    words.filter(|word| word.starts_with("lock_") && *word != "lock_").map(str::to_owned).collect()
}

/// Every query in a dashboard, wherever it stands.
fn queries(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value {
                    Value::String(query) if name == "expr" || query.starts_with("label_values(") => {
                        into.push(query.clone());
                    }
                    value => queries(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, into)),
        _ => {}
    }
}

/// The fields that a query asks for. It must ask for nothing else.
fn fields_of_query(query: &str) -> BTreeSet<String> {
    let asked: BTreeSet<String> = query
        .split(METRIC)
        .skip(1)
        .map(|rest| {
            let field = rest.strip_prefix("{key=\"").and_then(|rest| rest.split_once('"'));
            field.unwrap_or_else(|| panic!("asks for all fields at once: {query}")).0.to_owned()
        })
        .collect();
    assert!(!asked.is_empty(), "asks for no field: {query}");
    asked
}

fn dashboard() -> Value {
    let text = file("grafana-dashboard.json");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("contrib/grafana-dashboard.json: {error}"))
}

#[test]
fn nothing_in_contrib_names_a_field_that_info_lock_does_not_have() {
    // What could go wrong: a panel or an alert that never has data, because a field was renamed or never existed.
    let server = Server::new();
    let real: BTreeSet<String> = section(&mut server.connect()).into_keys().collect();
    let mut unknown = BTreeSet::new();
    let page = PathBuf::from("../docs/operations/monitoring.md");
    let text = include_str!("../../../docs/operations/monitoring.md").to_owned();
    for (path, text) in files().into_iter().chain([(page, text)]) {
        for field in fields_in(&text).difference(&real) {
            unknown.insert(format!("{}: {field}", path.display()));
        }
    }
    assert!(unknown.is_empty(), "INFO lock has no such field: {unknown:#?}");
}

#[test]
fn every_panel_asks_for_fields_of_the_servers_that_were_chosen() {
    // What could go wrong: a panel without a query or an explanation, or one that ignores the variables.
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<i64> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "an id is given twice");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title} explains nothing");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} asks for nothing");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            assert_eq!(fields_of_query(query).len(), 1, "{title}: {query}");
            assert!(query.contains("instance=~\"$instance\""), "{title} ignores the chosen servers: {query}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title} has a data source of its own");
        }
    }
    let variables: Vec<&str> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "instance"]);
}

#[test]
fn the_dashboard_shows_every_field_but_the_clock() {
    // What could go wrong: a counter is added to the module, and the operator never sees it.
    let server = Server::new();
    let mut real: BTreeSet<String> = section(&mut server.connect()).into_keys().collect();
    // A number that only rises and says nothing of how it goes.
    real.remove("lock_fence_clock");
    let mut asked = Vec::new();
    queries(&dashboard(), &mut asked);
    let shown: BTreeSet<String> = asked.iter().flat_map(|query| fields_of_query(query)).collect();
    let missing: Vec<&String> = real.difference(&shown).collect();
    assert!(missing.is_empty(), "in no panel: {missing:?}");
}

#[test]
fn every_alert_asks_for_a_field_and_says_why_it_is_there() {
    // What could go wrong: a rule that asks for a metric under another name, or for which the operator has no remedy.
    let text = file("alerts.yml");
    let rules: Vec<&str> = text.split("      - alert: ").collect();
    assert!(rules.len() > 1);
    for (before, rule) in rules.iter().zip(&rules[1..]) {
        let name = rule.lines().next().unwrap();
        assert!(before.trim_end().lines().last().unwrap().trim().starts_with('#'), "{name} has no reason");
        let query = rule.split_once("expr:").unwrap().1.split_once("labels:").unwrap().0;
        // Series of two fields differ in their key, and without this they never meet.
        let two = fields_of_query(query).len() > 1;
        assert!(!two || query.contains("ignoring (key)"), "{name} never fires: {query}");
        assert!(rule.contains("summary:") && rule.contains("description:"), "{name} says not what to do");
    }
}

#[test]
fn every_alert_leads_to_its_section_of_the_page_and_back() {
    // What could go wrong: an operator is woken, and follows a link to nowhere.
    let page = include_str!("../../../docs/operations/alerts.md");
    let text = file("alerts.yml");
    let rules: Vec<&str> = text.split("      - alert: ").skip(1).collect();
    let named: Vec<&str> = rules.iter().map(|rule| rule.lines().next().unwrap()).collect();
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(headings, named);
    for (name, rule) in named.iter().zip(&rules) {
        let anchor = name.to_lowercase();
        let link = format!("          runbook_url: docs/operations/alerts.md#{anchor}\n");
        assert!(rule.contains(&link), "{name} has no such line: {link}");
        let severity = rule.split_once("severity: ").unwrap().1.lines().next().unwrap();
        assert!(page.contains(&format!("| [{name}](#{anchor}) | {severity} |")), "{name} is not in the table");
        let section = page.split_once(&format!("\n## {name}\n")).unwrap().1.split("\n## ").next().unwrap();
        for part in ["**What it means.** ", "**What to type.**", "```sh\nredis-cli ", "**What to do.**"] {
            assert!(section.contains(part), "{name} lacks {part}");
        }
        // A threshold that the rule and the page give alike.
        for limit in rule.split("} > ").skip(1).filter_map(|rest| rest.lines().next()).filter(|limit| limit.len() > 3) {
            let written = format!("{},{}", &limit[..limit.len() - 3], &limit[limit.len() - 3..]);
            assert!(section.contains(&format!("More than {written} ")), "{name}: the page does not say {written}");
        }
    }
}

#[test]
fn the_script_for_redis_exporter_returns_every_field_of_info_lock() {
    // What could go wrong: a field that the pattern does not take, or a number that Lua rounds: fences have 16 digits.
    let script = file("redis_exporter/lock.lua");
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    // As redis_exporter calls it, by default and with --lua-script-read-only.
    for call in ["EVAL", "EVAL_RO"] {
        let pairs: Vec<String> = conn.get(&[call, &script, "0", "0"]);
        let returned: BTreeMap<String, String> =
            pairs.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        assert_eq!(returned, section(&mut conn), "{call}");
    }
}

#[test]
fn the_script_for_redis_exporter_returns_nothing_without_the_module() {
    // What could go wrong: one script for all servers, and servers without the module count as down.
    let script = file("redis_exporter/lock.lua");
    let server = Server::setup().without_module().start();
    assert_eq!(server.connect().get::<Vec<String>>(&["EVAL", &script, "0", "0"]), Vec::<String>::new());
}

#[test]
fn info_lock_is_numbers_in_lines_that_telegraf_takes_apart() {
    // What could go wrong: telegraf.conf makes `name=number` of `name:number` and reads that as logfmt. A value that is
    // no integer, or a second colon, would give text, another type than before, or no field at all.
    let (_server, mut conn) = Server::connected();
    let text: String = conn.get(&["INFO", "lock"]);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("# lock"));
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no field: {line}"));
        assert!(name.starts_with("lock_") && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
        assert!(value.parse::<i64>().is_ok(), "no integer: {line}");
    }
}
