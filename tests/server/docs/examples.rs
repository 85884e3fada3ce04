//! The examples of the documents: each is played on a server, and prints what its page says. How one is written
//! stands in docs/commands/README.md.

use crate::docs::documents::{blocks, pages};
use crate::harness::connection::{Connection, Reply};
use crate::harness::transcript::split;
use crate::operators::tools::client;
use linked::command;
use std::collections::BTreeMap;
use std::process::Command;
use testbed::{Client, Server, wait_for};

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
