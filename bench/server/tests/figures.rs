//! The figures in the page are those of the files in bench/results.

use bench::page::{Machine, PAGE, blocks, filled, machines, top};
use bench::results;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

#[test]
fn every_figure_in_the_page_comes_from_a_result_that_is_there() {
    let blocks = blocks(&machines(&results::folder()).unwrap());
    let text = fs::read_to_string(top().join(PAGE)).unwrap();
    let expected = filled(&text, &blocks).unwrap();
    let differs = text.lines().zip(expected.lines()).find(|(line, expected)| line != expected);
    assert!(differs.is_none() && text == expected, "{PAGE}: run make figures: {differs:?}");
}

#[test]
fn a_row_of_a_result_has_a_line() {
    let files = fs::read_dir(results::folder()).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "json")) {
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(results::rows(&serde_json::from_str(&text).unwrap()), text, "{}", file.display());
    }
    let row = json!({ "what": "a pair", "ratio": 1.000_000_4, "text": "x".repeat(500) });
    let text = results::rows(&json!({ "rows": [row, row], "date": "2026-11-27" }));
    let expected = row.to_string().replace("1.0000004", "1.0");
    let lines = [
        "{",
        " \"date\": \"2026-11-27\",",
        " \"rows\": [",
        &format!("  {expected},"),
        &format!("  {expected}"),
        " ]",
        "}",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

fn row(group: &str, environment: &str, with: &str, [ours, theirs, ratio]: [f64; 3]) -> Value {
    let spread = |median: f64| json!({ "min": median, "median": median, "max": median });
    json!({
        "group": group, "environment": environment, "with": with, "ours": spread(ours), "theirs": spread(theirs),
        "ratio": spread(ratio),
    })
}

/// A file as the programs leave it: one server on one machine.
fn result(server: &str, cpu: &str, date: &str, pair: f64, own: f64) -> Value {
    let machine = json!({ "cpu": cpu, "cores": 2, "kernel": "Linux 6.1" });
    let busy = "pipeline 16, 16 connections, no AOF, no replica";
    let rows = [
        row("pair", busy, "SET NX PX + EVALSHA", [2.0, 3.0, pair]),
        row("pair", "pipeline 1, 48 connections, no AOF, no replica", "SET NX PX + EVALSHA", [1.0, 1.0, 0.99]),
        row("memory", "9 held locks, owners of 36 bytes", "SET NX PX", [230.4, 160.0, 1.44]),
    ];
    let spread = |median: f64| json!({ "median": median });
    let size = |clients: u64, cpu: f64| {
        let lock = json!({ "rate": spread(20_000.4), "cpu_us": spread(12.34) });
        json!({ "clients": clients, "lock": lock, "ratio": { "rate": spread(1.02), "cpu": spread(cpu) } })
    };
    let command = |name: &str, instructions: f64| json!({ "name": name, "instructions": instructions, "own": own });
    let commands = [command("LOCK.ACQUIRE + LOCK.RELEASE", 16_234.4), command("two empty module commands", 7_000.0)];
    json!({
        "server": server, "date": date,
        "rivals": { "machine": machine, "found": { "rows": rows } },
        "handoff": { "machine": machine, "found": { "sizes": [size(16, 1.04), size(128, 1.5)] } },
        "instructions": { "machine": machine, "found": { "commands": commands } },
    })
}

fn found(name: &str, results: &[Value]) -> Vec<Machine> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for (nth, result) in results.iter().enumerate() {
        fs::write(folder.join(format!("{nth}.json")), result.to_string()).unwrap();
    }
    machines(&folder).unwrap()
}

#[test]
fn a_table_says_on_which_machine_it_was_measured_and_how_each_figure_stands_to_its_bound() {
    let old = result("redis 7.0.15", "AMD EPYC", "2026-11-23", 0.5, 4_800.0);
    let new = result("valkey 9.1.2", "AMD EPYC", "2026-11-23", 0.7, 4_800.0);
    let machines = found("figures-table", &[old, new]);
    assert_eq!(machines.len(), 1);
    let name = "2026-11-23, `AMD EPYC`, 2 cores, Linux 6.1; Redis 7.0.15, Valkey 9.1.2";
    assert_eq!(machines[0].name(), name);
    assert_eq!(
        machines[0].bounds(),
        "| | Redis 7.0 | Valkey 9.1 | at most | aim |\n| --- | --- | --- | --- | --- |\n\
         | ACQUIRE + RELEASE / `SET NX PX` + `EVALSHA` compare-and-delete | **0.50** | *0.70* | 0.65 | 0.55 |\n\
         | memory of a held lock / of a `SET NX PX`, in bytes | *230 / 160 = 1.44* | **230 / 160 = 1.44** \
         | 1.4; newer 1.6 | 1.3; newer 1.5 |\n\
         | hand-off to one of 16 waiters / `BLPOP` + `LPUSH` | 1.04 | 1.04 | 1.1 | 1.0 |\n\
         | instructions of ACQUIRE + RELEASE | 16,234 | 16,234 | 16,500 | 15,500 |\n\
         | of these the module's own | *4,800* | 4,800 | 4,500 | 3,500 |\n"
    );
    let verdicts = machines[0].verdicts();
    for (word, count) in [("within the aim", 2), ("within the bound", 3), ("above the bound", 3)] {
        assert_eq!(verdicts.matches(word).count(), count, "{word}: {verdicts}");
    }
    assert_eq!(
        machines[0].handoffs(),
        "| clients on one lock, without pauses | Redis 7.0 | Valkey 9.1 |\n| --- | --- | --- |\n\
         | 16 | 20,000 (1.02), 12.3 us (1.04) | 20,000 (1.02), 12.3 us (1.04) |\n\
         | 128 | 20,000 (1.02), 12.3 us (1.50) | 20,000 (1.02), 12.3 us (1.50) |\n"
    );
    assert!(machines[0].instructions().contains("| more than two empty module commands | 9,234 | 9,234 |\n"));
}

#[test]
fn figures_of_two_machines_are_never_in_one_table() {
    let machines = found(
        "figures-machines",
        &[
            result("redis 7.0.15", "AMD EPYC", "2026-11-22", 0.5, 1.0),
            result("redis 7.0.15", "Intel", "2026-11-23", 0.6, 1.0),
        ],
    );
    let blocks = blocks(&machines);
    let tables = &blocks["where we are"];
    let at = |text: &str| tables.find(text).unwrap_or_else(|| panic!("{text} is not in {tables}"));
    // The newest first.
    assert!(at("`Intel`") < at("0.60") && at("0.60") < at("`AMD EPYC`") && at("`AMD EPYC`") < at("**0.50**"));
}

#[test]
fn figures_are_written_between_their_marks_and_nowhere_else() {
    let blocks = [("where we are", "1".to_owned()), ("instructions", "2".to_owned())].into();
    let page = |one: &str, two: &str| {
        format!(
            "a\n<!-- figures: where we are -->{one}<!-- end of figures -->\nb\n\
             <!-- figures: instructions -->{two}<!-- end of figures -->\nc\n"
        )
    };
    let expected = page("\n\n1\n\n", "\n\n2\n\n");
    assert_eq!(filled(&page("", "\nold\n"), &blocks).unwrap(), expected);
    assert_eq!(filled(&expected, &blocks).unwrap(), expected);
    for (page, reason) in
        [("<!-- figures: x --><!-- end of figures -->", "called x"), ("<!-- figures: where we are -->", "no end")]
    {
        assert!(filled(page, &blocks).unwrap_err().contains(reason), "{page}");
    }
}
