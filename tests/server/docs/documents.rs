//! README.md and the pages of docs/: each command has a page, the page says what the server says of the command, and
//! all examples run. How an example is written stands in docs/commands/README.md.

use crate::commands::watch::has_own_categories;
use crate::docs::reference::{every_error, syntax};
use crate::harness::connection::{Connection, Reply};
use crate::harness::transcript::split;
use crate::operators::tools::client;
use linked::command;
use server_api::CommandSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{Client, Server, file_from, wait_for};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages, by their path: README.md and what lies below docs/ and contrib/.
fn pages() -> BTreeMap<String, String> {
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

/// The pages of the guide that begin with a lock in each language.
const FIRST_PAGES: [&str; 6] =
    ["first-lock", "waiting", "readers-writers", "semaphores", "several-keys", "losing-a-lock"];

/// The pages without a program in Python or in Java: an index, a page for those without a helper, a program for the
/// shell, and what the helper for Java does not have.
const OF_OTHERS: [&str; 4] = ["README", "clients", "command-line", "quorum"];

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

/// One command of an example, or the reply to an earlier one.
#[derive(Debug)]
struct Step<'p> {
    /// The name of the connection; empty where there is one alone.
    connection: &'p str,
    /// The command; None: its reply is awaited.
    command: Option<&'p str>,
    /// What is printed, line by line.
    printed: Vec<&'p str>,
}

/// What is printed while a command waits.
const WAITS: &str = "(waits)";

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Reads an example: `name> COMMAND`, `name:` and what is printed. Blank lines and `# ...` are for readers.
fn steps<'p>(lines: &[&'p str]) -> Vec<Step<'p>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in lines.iter().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let command = line.split_once("> ").filter(|(name, _)| is_name(name));
        let awaited = line.strip_suffix(':').filter(|name| is_name(name));
        if let Some((connection, command)) = command {
            steps.push(Step { connection, command: Some(command), printed: Vec::new() });
        } else if let Some(connection) = awaited {
            steps.push(Step { connection, command: None, printed: Vec::new() });
        } else {
            steps.last_mut().expect("a command stands above what is printed").printed.push(line);
        }
    }
    steps
}

/// A reply as redis-cli prints it, line by line.
fn printed(reply: &Reply) -> Vec<String> {
    let indented = |mark: &str, lines: Vec<String>| -> Vec<String> {
        let blank = " ".repeat(mark.len());
        lines.iter().enumerate().map(|(at, line)| format!("{}{line}", if at == 0 { mark } else { &blank })).collect()
    };
    let width = |len: usize| len.to_string().len();
    match reply {
        Reply::Simple(text) => vec![text.clone()],
        Reply::Error(text) => vec![format!("(error) {text}")],
        Reply::Int(number) => vec![format!("(integer) {number}")],
        Reply::Bulk(bytes) => {
            let escaped = |byte: &u8| match byte {
                b'\'' => "'".to_owned(),
                byte => byte.escape_ascii().to_string(),
            };
            vec![format!("\"{}\"", bytes.iter().map(escaped).collect::<String>())]
        }
        Reply::Null => vec!["(nil)".to_owned()],
        Reply::Closed => vec!["Error: Server closed the connection".to_owned()],
        Reply::Array(items) | Reply::Push(items) if items.is_empty() => vec!["(empty array)".to_owned()],
        Reply::Map(pairs) if pairs.is_empty() => vec!["(empty hash)".to_owned()],
        Reply::Array(items) | Reply::Push(items) => {
            let wide = width(items.len());
            let numbered = |(at, item)| indented(&format!("{:>wide$}) ", at + 1), printed(item));
            items.iter().enumerate().flat_map(numbered).collect()
        }
        Reply::Map(pairs) => {
            let wide = width(pairs.len());
            let numbered = |(at, (key, value)): (usize, &(Reply, Reply))| {
                let head = format!("{:>wide$}# {} =>", at + 1, printed(key).concat());
                let mut lines = printed(value);
                match value {
                    Reply::Array(items) if !items.is_empty() => {
                        let lines = lines.iter().map(|line| format!("{}{line}", " ".repeat(wide + 2)));
                        [head].into_iter().chain(lines).collect()
                    }
                    _ => vec![format!("{head} {}", lines.remove(0))],
                }
            };
            pairs.iter().enumerate().flat_map(numbered).collect()
        }
        Reply::Other(line) => vec![format!("unexpected {line}")],
    }
}

/// The fields whose values are times, or numbers of connections and rows.
const VARYING: &[&str] = &["ttl_ms", "held_ms", "waited_ms", "left_ms", "queue_left_ms", "time_ms", "client", "id"];

/// The lines with `~` in place of the number behind a field of [`VARYING`].
fn masked<L: AsRef<str>>(lines: &[L]) -> Vec<String> {
    let mut varies = false;
    let mut all = Vec::new();
    for line in lines {
        let line = line.as_ref().trim_end();
        let field = |name: &&str| line.contains(&format!("\"{name}\""));
        let here = VARYING.iter().any(field);
        match line.rsplit_once("(integer) ") {
            Some((before, number)) if (varies || here) && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                // The number of a line is set right where others have more digits.
                all.push(format!("{before}~"));
            }
            _ => all.push(line.to_owned()),
        }
        varies = here && !line.contains("=>");
    }
    all
}

/// Words of letters and digits, and what stands between them.
fn pieces(line: &str) -> Vec<&str> {
    line.split_inclusive(|c: char| !c.is_ascii_alphanumeric())
        .flat_map(|piece| match piece.char_indices().last() {
            Some((at, last)) if !last.is_ascii_alphanumeric() => vec![&piece[..at], &piece[at..]],
            _ => vec![piece],
        })
        .filter(|piece| !piece.is_empty())
        .collect()
}

/// A number of 16 digits is a fence.
fn is_fence(piece: &str) -> bool {
    piece.len() == 16 && piece.bytes().all(|byte| byte.is_ascii_digit())
}

/// 32 hexadecimal digits are an owner that the server made.
fn is_made(piece: &str) -> bool {
    piece.len() == 32 && piece.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What an example calls the fences and owners that this run was given.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    /// The words of a command, with what was given in place of what the page shows.
    fn words(&self, command: &str) -> Vec<Vec<u8>> {
        let given = |word: Vec<u8>| {
            let Ok(text) = std::str::from_utf8(&word) else { return word };
            // In the state of a hold the fence is a part of the word.
            let state = || {
                text.starts_with("V1")
                    .then(|| self.0.iter().fold(text.to_owned(), |text, (shown, given)| text.replace(shown, given)))
            };
            let known = self.0.get(text).cloned().or_else(state);
            known.map_or_else(|| text.as_bytes().to_vec(), String::into_bytes)
        };
        split(command).into_iter().map(|(word, _)| given(word)).collect()
    }

    /// Whether a line that was printed is the one that the page shows. A fence stands for the same one as before, and
    /// is higher than another if the page's is.
    fn agree(&mut self, shown: &str, real: &str) -> bool {
        let (shown, real) = (pieces(shown), pieces(real));
        shown.len() == real.len()
            && shown.iter().zip(real).all(|(shown, real)| {
                let varies = (is_fence(shown) && is_fence(real)) || (is_made(shown) && is_made(real));
                if varies { self.bind(shown, real) } else { *shown == real }
            })
    }

    fn bind(&mut self, shown: &str, real: &str) -> bool {
        self.0.entry(shown.to_owned()).or_insert_with(|| real.to_owned());
        let fences: Vec<&String> = self.0.iter().filter(|(shown, _)| is_fence(shown)).map(|(_, given)| given).collect();
        *self.0[shown] == *real && (is_made(shown) || fences.is_sorted_by(|one, next| one < next))
    }
}

/// Plays an example on a server with nothing in it.
fn play(server: &Server, resp3: bool, lines: &[&str]) -> Result<(), String> {
    let mut eye = server.connect();
    let clients = |eye: &mut Client| eye.info_number("clients", "connected_clients");
    let before = clients(&mut eye);
    let mut connections: BTreeMap<&str, Connection> = BTreeMap::new();
    let mut names = Names::default();
    for step in steps(lines) {
        let wire = connections
            .entry(step.connection)
            .or_insert_with(|| if resp3 { Connection::resp3(server) } else { Connection::resp2(server) });
        let waiting = eye.info_number("lock", "lock_waiters");
        if let Some(command) = step.command {
            wire.send(&names.words(command));
        }
        if step.printed == [WAITS] {
            wait_for("the command of an example to wait", || eye.info_number("lock", "lock_waiters") > waiting);
            continue;
        }
        let real = printed(&wire.read());
        let (mask, shown) = (masked(&real), masked(&step.printed));
        if mask.len() != shown.len() || !shown.iter().zip(&mask).all(|(shown, real)| names.agree(shown, real)) {
            return Err(format!(
                "{step:?}\nprints\n{}\nfor which the page has\n{}",
                real.join("\n"),
                step.printed.join("\n")
            ));
        }
    }
    drop(connections);
    // The next example counts waiters, too.
    wait_for("the connections of an example to close", || clients(&mut eye) <= before);
    Ok(())
}

#[test]
fn every_example_prints_what_its_page_says() {
    // What could go wrong: a reader types an example in and gets something else.
    let empty = Server::new();
    let mut admin = empty.connect();
    let (mut played, mut wrong) = (0, Vec::new());
    for (path, page) in pages() {
        for (kind, lines) in blocks(&page) {
            let mut words = kind.split(' ');
            if words.next() != Some("redis") {
                continue;
            }
            let (protocols, options): (Vec<&str>, Vec<&str>) = words.partition(|word| *word == "resp3");
            let other = options.iter().fold(Server::setup(), |setup, option| {
                let (name, value) = option.split_once('=').expect("an option of the server, and its value");
                setup.option(name, value)
            });
            let own = if options.is_empty() { None } else { Some(other.start()) };
            admin.ok(&["FLUSHALL"]);
            admin.ok(&["LOCK.LOG", "RESET"]);
            if let Err(error) = play(own.as_ref().unwrap_or(&empty), !protocols.is_empty(), &lines) {
                wrong.push(format!("{path}: {error}"));
            }
            played += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(played > command::table::TABLE.len(), "{played} examples");
}

#[test]
fn what_an_example_prints_is_what_redis_cli_prints() {
    // What could go wrong: the examples are right for this program, and no reader sees them so.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.RW", "k", "a \"b\"\n", "READ", "NOTE", "it's"]).unwrap();
    conn.int(&["LOCK.RW", "k", "b", "READ"]).unwrap();
    let commands: [&[&str]; 7] = [
        &["LOCK.INFO", "k"],
        &["LOCK.INFO", "free"],
        &["LOCK.TOP"],
        &["LOCK.MRELEASE", "2", "x", "y", "a"],
        &["LOCK.ACQUIRE", "k", ""],
        &["EXISTS", "k"],
        &["PING"],
    ];
    for (protocol, mut wire) in [("-2", Connection::resp2(&server)), ("-3", Connection::resp3(&server))] {
        for command in commands {
            let mut cli = Command::new(client());
            // Only from 7.0.? on there is a word for RESP2, which is what it speaks without one.
            cli.args((protocol == "-3").then_some("-3"));
            cli.args(["--no-raw", "-h", "127.0.0.1", "-p", &server.port().to_string()]).args(command);
            let said = String::from_utf8(cli.output().unwrap().stdout).unwrap();
            let lines: Vec<&str> = said.trim_end().lines().collect();
            assert_eq!(masked(&printed(&wire.ask(command))), masked(&lines), "{command:?} {protocol}");
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

/// Runs all programs in this language, each on a server of its own.
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
        let output = Command::new(interpreter).arg(&file).env("PYTHONPATH", root().join("clients/python")).output();
        let output = output
            .unwrap_or_else(|error| panic!("{}: {error}: run the tests with make test-clients", interpreter.display()));
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("the end"), "{path}: {}:\n{said}", output.status);
        assert!(server.connect().info_number("lock", "lock_granted") > 0, "{path} has taken no lock");
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
