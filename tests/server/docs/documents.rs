//! README.md and the pages of docs/: each command has a page, the page says what the server says of the command, and
//! all examples run. How an example is written stands in docs/commands/README.md.

use crate::commands::watch::has_own_categories;
use crate::docs::reference::{every_error, syntax};
use crate::harness::connection::{Connection, Reply};
use linked::command;
use server_api::CommandSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{Server, file_from};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages, by their path: README.md and what lies below docs/ and contrib/.
pub(super) fn pages() -> BTreeMap<String, String> {
    fn collect(dir: &Path, into: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                into.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut pages = BTreeMap::new();
    collect(&root().join("docs"), &mut pages);
    collect(&root().join("contrib"), &mut pages);
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.insert(name.clone(), fs::read_to_string(root().join(&name)).unwrap());
        }
    }
    pages
}

/// Pages whose programs are run elsewhere. Those of client libraries, frameworks and stores: each program stands for
/// itself and needs a library of its own; tests/guide runs them. That of quorums: its programs need several servers;
/// see `quorum`. That of TLS: they need certificates; tests/operations runs them. Migrating: they need the helpers;
/// clients/python/tests runs them. Testing: they need no server; the tests of each helper run them.
const OTHERS: [&str; 7] = [
    "docs/guide/clients.md",
    "docs/guide/frameworks.md",
    "docs/guide/migrating.md",
    "docs/guide/quorum.md",
    "docs/guide/stores.md",
    "docs/guide/testing.md",
    "docs/operations/tls.md",
];

/// The fenced blocks of a page: what stands behind the first fence, and the lines up to the second one.
pub(super) fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            blocks.push((kind, lines.by_ref().take_while(|line| *line != "```").collect()));
        }
    }
    blocks
}

/// The part of a page below a heading of the second rank.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let after = page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}")).1;
    after.split("\n## ").next().unwrap()
}

/// The cells of the tables in a text, without the lines above the content.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let rule = |line: &str| line.starts_with("| ---");
    (0..lines.len())
        .filter(|at| {
            lines[*at].starts_with('|') && !rule(lines[*at]) && !lines.get(at + 1).is_some_and(|next| rule(next))
        })
        .map(|at| lines[at].trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

fn name_of(spec: &CommandSpec) -> String {
    spec.name.to_str().unwrap().to_uppercase()
}

fn page_of(spec: &CommandSpec) -> String {
    let path = root().join(format!("docs/commands/{}.md", spec.name.to_str().unwrap()));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_command_has_a_page_and_every_page_a_command() {
    // What could go wrong: a command that no page describes, or a page about a command that is gone.
    let real: BTreeSet<String> =
        command::table::TABLE.iter().map(|spec| format!("{}.md", spec.name.to_str().unwrap())).collect();
    let folder = fs::read_dir(root().join("docs/commands")).unwrap();
    let mut there: BTreeSet<String> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(there.remove("README.md"), "the folder has no index");
    assert_eq!(there, real);
    let index = fs::read_to_string(root().join("docs/commands/README.md")).unwrap();
    for spec in command::table::TABLE {
        let link = format!("| [{}]({}.md) |", name_of(spec), spec.name.to_str().unwrap());
        assert!(index.contains(&link), "the index has no row {link}");
    }
}

/// The languages of the helpers, and the shell.
const LANGUAGES: [&str; 6] = ["python", "js", "java", "go", "rust", "sh"];

#[test]
fn the_front_page_is_short_and_begins_with_a_lock_in_each_language() {
    // What could go wrong: it grows until no user reads it; or the one line of a language stands where no one looks.
    let page = &pages()["README.md"];
    let lines: Vec<&str> = page.lines().collect();
    assert!(lines.len() <= 120 && page.len() <= 6 * 1024, "{} lines, {} bytes", lines.len(), page.len());
    for language in LANGUAGES {
        let at = lines.iter().position(|line| *line == format!("```{language}"));
        assert!(at.is_some_and(|at| at < 60), "{language} in line {at:?}");
    }
    for word in ["make run", "make test"] {
        assert!(page.contains(word), "{word}");
    }
}

/// The number that a cell of a table is: 1,878 or 20.2.
fn number(cell: &str) -> f64 {
    cell.replace(',', "").parse().unwrap_or_else(|_| panic!("{cell} is no number"))
}

/// Rounds to two digits: 662 to 660, 40,100 to 40,000.
fn to_two_digits(exact: f64) -> f64 {
    let unit = 10f64.powf(exact.log10().floor() - 1.0);
    (exact / unit).round() * unit
}

#[test]
fn figures_that_the_front_page_repeats_are_those_of_their_sources() {
    // What could go wrong: a new measurement is written into its table, and the front page has the one before.
    let pages = pages();
    let row = |page: &str, heading: &str, first: &str| -> Vec<String> {
        let found = rows(section(&pages[page], heading)).into_iter().find(|row| row[0] == first);
        found.unwrap_or_else(|| panic!("{page}: no row {first}")).into_iter().skip(1).map(str::to_owned).collect()
    };
    let p99_ms = |way| number(&row("docs/comparison.md", "128 clients, each holds the lock for 0 ms", way)[1]);
    let bytes = |what| row("docs/operations/sizing.md", "Memory", what).iter().map(|cell| number(cell)).collect();
    let most = |what| Vec::into_iter(bytes(what)).fold(0.0, f64::max);
    let least = |what| Vec::into_iter(bytes(what)).fold(f64::MAX, f64::min);
    let (lock, waiter) =
        ("the same by a helper, whose owners have 46 bytes", "a parked waiter (`BLOCK`), with its connection");
    let lost = row("docs/reliability.md", "What is promised", "A store that refuses older fences loses no update");
    let (_, without) = lost[1].split_once("without fences ").unwrap();
    let (before, _) = pages["docs/guide/first-lock.md"].split_once(" s, the default").unwrap();
    let lease_s = number(before.split_whitespace().last().unwrap());
    let a_lock = format!("{} to {} bytes", to_two_digits(least(lock)), to_two_digits(most(lock)));
    let a_waiter = format!("{} KB", to_two_digits(most(waiter)) / 1000.0);
    let (front, managed) = ("README.md", "docs/operations/managed.md");
    for (page, said) in [
        (front, format!("99 of 100 waits end within {} ms", p99_ms("LOCK.ACQUIRE BLOCK").ceil())),
        (front, format!("`SET NX` every 10 ms within {} ms", p99_ms("SET NX each 10 ms").ceil())),
        (front, format!("without fences lost {} updates", without.split_once(" updates").unwrap().0)),
        (front, format!("told within {} s", lease_s / 3.0)),
        (front, format!("takes {a_lock}, a waiter some {a_waiter}")),
        (
            managed,
            format!(
                "takes {a_lock}, a place in the queue {}, a waiter with `BLOCK` {a_waiter}",
                to_two_digits(most("a place, where no other request waits for the lock"))
            ),
        ),
        (managed, format!("take {} MB", ((10_000.0 * most(lock) + 1_000.0 * most(waiter)) / 1e6).round())),
    ] {
        let text = pages[page].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&said), "{page} does not say: {said}");
    }
    assert_eq!(lost[2], "0", "and the front page says that none was lost");
}

/// The pages of the guide that begin with a lock in each language.
const FIRST_PAGES: [&str; 6] =
    ["first-lock", "waiting", "readers-writers", "semaphores", "several-keys", "losing-a-lock"];

/// The pages without a program in Python or in Java: an index, a program for the shell, and what the helper for Java
/// does not have.
const OF_OTHERS: [&str; 3] = ["README", "command-line", "quorum"];

#[test]
fn each_page_of_the_guide_has_a_program_in_the_languages_of_its_readers() {
    // What could go wrong: a reader finds commands alone, and writes a loop of his own around them.
    let pages = pages();
    let guide = pages
        .iter()
        .filter_map(|(path, page)| Some((path.strip_prefix("docs/guide/")?.strip_suffix(".md")?, page.as_str())));
    let mut count = 0;
    for (name, page) in guide.filter(|(name, _)| !OF_OTHERS.contains(name)) {
        let is_first = FIRST_PAGES.contains(&name);
        let part = if is_first { page.split("\n## ").next().unwrap() } else { page };
        // The site makes tabs of blocks that have the name of a language above them.
        for (label, language) in ["Python", "Node.js", "Java", "Go", "Rust"].iter().zip(LANGUAGES).filter(|_| is_first)
        {
            let block = format!("\n\n{label}:\n\n```{language}\n");
            assert!(part.contains(&block), "{name} has no block with the label {label}:");
        }
        let languages: BTreeSet<&str> = blocks(part).into_iter().map(|(kind, _)| kind).collect();
        let needed = if is_first { &LANGUAGES[..5] } else { &["python", "java"][..] };
        assert!(needed.iter().all(|language| languages.contains(language)), "{name} has {languages:?}");
        count += usize::from(is_first);
    }
    assert_eq!(count, FIRST_PAGES.len());
}

/// The headings of the page of a command, in order.
const HEADINGS: [&str; 6] =
    ["Options", "Replies", "Errors", "In MULTI, scripts and functions", "On a replica", "Examples"];

#[test]
fn the_page_of_a_command_has_its_syntax_and_every_part() {
    // What could go wrong: an option that the page does not have, or has and the command does not; a part left out.
    for spec in command::table::TABLE {
        let (name, page) = (name_of(spec), page_of(spec));
        let beginning: Vec<&str> = page.split("```").next().unwrap().split_whitespace().collect();
        assert_eq!(beginning.join(" "), format!("# {name} {}", spec.summary.to_str().unwrap()));
        let written = format!("{name} {}", syntax(spec.args));
        assert_eq!(blocks(&page)[0], ("", vec![written.as_str()]), "{name}");
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{name}");
        let shown = section(&page, "Options");
        for token in written.split(|c: char| !c.is_ascii_uppercase()).filter(|word| *word != "LOCK" && word.len() > 1) {
            assert!(name.contains(token) || shown.contains(&format!("`{token}")), "{name}: {token} is not explained");
        }
        assert!(
            blocks(section(&page, "Examples")).iter().any(|(kind, _)| kind.starts_with("redis")),
            "{name}: example"
        );
    }
}

#[test]
fn the_page_of_a_command_says_what_the_server_says_of_it() {
    // What could go wrong: a right is given by a category that the command is not in, or a flag has changed.
    let (_server, mut wire) = Connection::alone();
    let words = |reply: Reply| -> BTreeSet<String> { reply.items().iter().map(Reply::text).collect() };
    for spec in command::table::TABLE {
        let (name, page) = (name_of(spec), page_of(spec));
        let facts: BTreeMap<&str, &str> =
            rows(page.split("\n## ").next().unwrap()).into_iter().map(|row| (row[0], row[1])).collect();
        let shown = |fact: &str| -> BTreeSet<String> { facts[fact].split(' ').map(str::to_owned).collect() };
        let mut info = wire.say(&format!("COMMAND INFO {name}")).items().remove(0).items();
        assert_eq!(shown("flags"), words(info.remove(2)), "{name}");
        // Servers without a category of ours have theirs alone, or none: docs/operations/acl.md.
        if has_own_categories(&mut wire) {
            assert_eq!(shown("ACL categories"), words(info.remove(5)), "{name}");
        }
        let docs = wire.say(&format!("COMMAND DOCS {name}")).items().remove(1);
        for fact in ["complexity", "since"] {
            assert_eq!(facts[fact], docs.field(fact).text(), "{name}");
        }
    }
}

#[test]
fn the_page_of_a_command_names_errors_that_there_are() {
    // What could go wrong: a program looks for a text that no server sends.
    let real: BTreeSet<String> = every_error();
    for spec in command::table::TABLE {
        let (name, page) = (name_of(spec), page_of(spec));
        for row in rows(section(&page, "Errors")) {
            let text = row[0].trim_matches('`');
            let server_own =
                ["MOVED", "OOM", "READONLY", "NOPERM", "CROSSSLOT"].iter().any(|code| text.starts_with(code));
            assert!(server_own || real.contains(text), "{name}: {text}");
        }
    }
}

/// The program that all blocks of a language on a page make, with this port in place of the usual one. A page that uses
/// a helper without making its client, as docs/guide/first-lock.md says, is given one.
fn program(page: &str, language: &str, port: u16) -> Option<String> {
    let made = match language {
        "python" => "import redis\nfrom redis_lock_client import Lock\n\nclient = redis.Redis(port=6379)\n",
        _ => {
            "import { Locks } from 'redis-lock-client';\nimport { createClient } from 'redis';\n\
            const client = await createClient({ url: 'redis://127.0.0.1:6379' }).connect();\n\
            const locks = new Locks(client);\n"
        }
    };
    let mut blocks: Vec<String> =
        blocks(page).into_iter().filter(|(kind, _)| *kind == language).map(|(_, lines)| lines.join("\n")).collect();
    if blocks.first().is_some_and(|block| !block.contains("import ")) {
        blocks.insert(0, made.to_owned());
    }
    (!blocks.is_empty()).then(|| blocks.join("\n\n").replace("6379", &port.to_string()))
}

/// What the job of a recipe prints, which runs once a day.
const ONCE: &str = "once a day\n";

/// Runs all programs in this language, each on a server of its own. That with the job runs twice.
fn run_all(language: &str, interpreter: &Path, ending: &str, prepare: impl Fn(String) -> String) {
    let mut count = 0;
    for (path, page) in pages().into_iter().filter(|(path, _)| !OTHERS.contains(&path.as_str())) {
        let server = Server::new();
        let Some(text) = program(&page, language, server.port()) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let file: PathBuf = dir.path().join(format!("program.{ending}"));
        // What ends early ends well, too. A client that is left open keeps Node.js running.
        let said_last =
            if language == "python" { "print('the end')" } else { "console.log('the end');\nprocess.exit();" };
        fs::write(&file, format!("{}\n{said_last}\n", prepare(text))).unwrap();
        let play = || {
            let output = Command::new(interpreter).arg(&file).env("PYTHONPATH", root().join("clients/python")).output();
            let output = output.unwrap_or_else(|error| {
                panic!("{}: {error}: run the tests with make test-clients", interpreter.display())
            });
            let said =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && said.contains("the end"), "{path}: {}:\n{said}", output.status);
            said
        };
        let said = play();
        let mut conn = server.connect();
        assert!(conn.info_number("lock", "lock_granted") > 0, "{path} has taken no lock");
        if page.contains("\"once a day\"") {
            let said = said + &play();
            // The second run may be at the next day.
            let days = conn.get::<Vec<String>>(&["KEYS", "{nightly}*"]).len();
            assert!(days > 0 && said.matches(ONCE).count() == days, "{path}: {days} days:\n{said}");
            assert_eq!(said.matches("leading with the fence ").count(), 2, "{path}:\n{said}");
        }
        count += 1;
    }
    assert!(count > 0, "no page has a program in {language}");
}

#[test]
fn every_program_in_python_runs() {
    // What could go wrong: a reader copies a program that fails, or that does not keep others out.
    run_all("python", &file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python"), "py", |text| text);
}

#[test]
fn every_program_in_javascript_runs() {
    // The same. tools/install.sh has put the package next to Node.js, and compiled the helper.
    let node = file_from("REDIS_LOCK_NODE", "target/node/bin/node");
    let home = node.parent().and_then(Path::parent).unwrap().to_str().unwrap().to_owned();
    let helper = file_from("REDIS_LOCK_NODE_HELPER", "target/helpers/node/redis-lock.js");
    run_all("js", &node, "mjs", |text| {
        let import = "import { createClient } from 'redis';";
        assert!(text.contains(import), "{text}");
        let required = format!(
            "import {{ createRequire }} from 'node:module';\nconst {{ createClient }} = createRequire('{home}/')('redis');"
        );
        text.replace(import, &required).replace("'redis-lock-client'", &format!("'{}'", helper.display()))
    });
}
