//! Transcripts: tables "command -> exact reply" that are played over one connection or over several.

use crate::harness::connection::{Connection, Reply, Way};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::{Duration, Instant};
use testbed::{Client, PATIENCE, Server};

/// One line of a transcript: the command, and its reply as [`Names::show`] writes it.
///
/// In the command `"..."` quotes bytes as redis-cli does, `@n` is n bytes, and `#n` is the nth fence that was given, to
/// which `+1` or `-1` may be added.
pub(crate) type Row = (&'static str, &'static str);

/// The rows of a table in which `{a|b}` stands for one of these each time: every combination, in order. In the reply
/// `{}` stands for the last choice.
pub(crate) fn each(rows: &[Row]) -> Vec<Row> {
    fn choose(command: &str, choice: &str, reply: &str, into: &mut Vec<Row>) {
        match command.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?))) {
            Some((head, (choices, tail))) => {
                choices.split('|').for_each(|choice| choose(&format!("{head}{choice}{tail}"), choice, reply, into));
            }
            None => into.push((command.to_owned().leak(), reply.replace("{}", choice).leak())),
        }
    }
    let mut all = Vec::new();
    rows.iter().for_each(|(command, reply)| choose(command, "", reply, &mut all));
    all
}

/// Plays transcripts. Remembers the fences that were given, so that a row can name them: `#1` is the first.
pub(crate) struct Player<'w> {
    pub(crate) wire: &'w mut Connection,
    pub(crate) way: Way,
    names: Names,
}

/// Plays rows in each of these ways, over one connection.
pub(crate) fn play_in(server: &Server, ways: &[Way], rows: &[Row]) {
    let mut wire = Connection::resp2(server);
    wire.load_function();
    for way in ways {
        Player::new(&mut wire, *way).play(rows);
    }
}

/// How rows are read and replies are shown: the fences that were given, by their names.
#[derive(Default)]
pub(crate) struct Names {
    fences: Vec<i64>,
}

/// The fields whose values depend on the time, or on the number of a connection.
const TIMES: &[&str] = &["ttl_ms", "held_ms", "waited_ms", "left_ms", "queue_left_ms", "client"];

/// The rows of LOCK.INFO and LOCK.TOP, each field with the value that says nothing. Of a row with all of its fields, in
/// this order, the others are shown.
const LAYOUTS: [&str; 5] = [
    "mode=,fence=,shares=0,holding=,holders=,waiting=0,waiters=[],reserved_by=nil",
    "owner=,mode=,reads=0,writes=0,fence=,ttl_ms=~,held_ms=~,offered=0,session=nil,client=nil,note=nil",
    "owner=,mode=,limit=nil,take=nil,waited_ms=~,left_ms=nil,queue_left_ms=nil,keys=1,client=~",
    "waited_ms=~,left_ms=nil,owner=,mode=,limit=nil,take=nil,db=0,keys=,client=~",
    "db=0,key=,waiting=,waited_ms=~",
];

/// Integers from here on are fences: microseconds since 1970.
const FENCES_FROM: i64 = 1 << 40;

impl<'w> Player<'w> {
    pub(crate) fn new(wire: &'w mut Connection, way: Way) -> Player<'w> {
        Player { wire, way, names: Names::default() }
    }

    /// Plays all rows, on an empty database.
    pub(crate) fn play(&mut self, rows: &[Row]) {
        assert_eq!(self.wire.say("FLUSHALL"), Reply::simple("OK"));
        self.go_on(rows);
    }

    /// Plays all rows, on what is there.
    pub(crate) fn go_on(&mut self, rows: &[Row]) {
        for (command, expected) in rows {
            let got = self.reply_to(command);
            assert_eq!(got, *expected, "{command} ({:?})", self.way);
        }
    }

    /// What the server answers to a command, as a row has it.
    pub(crate) fn reply_to(&mut self, command: &str) -> String {
        let words = self.names.words(command);
        let reply = self.wire.ask_by(self.way, &words);
        self.names.show(&reply)
    }

    /// A fence by its name.
    pub(crate) fn fence(&self, name: &str) -> i64 {
        self.names.fence(name)
    }

    /// The arguments of a command of a row.
    pub(crate) fn words(&self, command: &str) -> Vec<Vec<u8>> {
        self.names.words(command)
    }

    /// A reply as [`Names::show`] writes it.
    pub(crate) fn show(&mut self, reply: &Reply) -> String {
        self.names.show(reply)
    }
}

impl Names {
    /// A fence by its name.
    pub(crate) fn fence(&self, name: &str) -> i64 {
        let digits = name.trim_start_matches('#');
        let (number, more) = match digits.split_once(['+', '-']) {
            Some((number, _)) if digits.contains('+') => (number, 1),
            Some((number, _)) => (number, -1),
            None => (digits, 0),
        };
        self.fences[number.parse::<usize>().unwrap() - 1] + more
    }

    /// The arguments of a command of a row.
    pub(crate) fn words(&self, command: &str) -> Vec<Vec<u8>> {
        split(command)
            .into_iter()
            .map(|(word, quoted)| match word.first() {
                Some(b'@') if !quoted => vec![b'o'; String::from_utf8_lossy(&word[1..]).parse().unwrap()],
                Some(b'#') if !quoted => self.fence(&String::from_utf8_lossy(&word)).to_string().into_bytes(),
                Some(b'V') if !quoted => self.state(&String::from_utf8_lossy(&word)).into_bytes(),
                _ => word,
            })
            .collect()
    }

    /// The state of a hold as LOCK.HOLD takes it, in which a fence may stand by its name: `V1W1F#1D0L5`.
    fn state(&self, word: &str) -> String {
        let Some((before, behind)) = word.split_once('#') else { return word.to_owned() };
        let len = behind.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(behind.len());
        format!("{before}{}{}", self.fence(&behind[..len]), &behind[len..])
    }

    /// A reply in one line: `nil`, `7`, `#1`, `word`, `"\xff"`, `[a b]`; errors as they are. `~` stands for a time or a
    /// client; `<made>` for an owner that the server made. Maps are shown flat: that they are maps in RESP3 is seen in
    /// their bytes. Of the rows of [`LAYOUTS`] the fields that say nothing are left out.
    pub(crate) fn show(&mut self, reply: &Reply) -> String {
        match reply {
            Reply::Error(text) => show_grace(text).unwrap_or_else(|| text.clone()),
            Reply::Simple(text) => text.clone(),
            Reply::Int(number) if *number >= FENCES_FROM => self.name_of(*number),
            Reply::Int(number) => number.to_string(),
            Reply::Bulk(bytes) => show_bytes(bytes),
            Reply::Null => "nil".to_owned(),
            Reply::Array(items) | Reply::Push(items) => self.show_all(items),
            Reply::Map(pairs) => {
                let flat: Vec<Reply> = pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect();
                self.show_all(&flat)
            }
            Reply::Other(line) => format!("unexpected {line}"),
            Reply::Closed => "closed".to_owned(),
        }
    }

    fn show_all(&mut self, items: &[Reply]) -> String {
        let shown: Vec<String> = (0..items.len())
            .map(|at| {
                let behind = at.checked_sub(1).map(|before| &items[before]);
                let timed = TIMES.iter().any(|name| behind == Some(&Reply::bulk(name)));
                match &items[at] {
                    Reply::Int(ms) if timed && *ms < FENCES_FROM => "~".to_owned(),
                    item => self.show(item),
                }
            })
            .collect();
        let said = LAYOUTS.iter().find_map(|layout| said(layout, &shown)).unwrap_or(shown);
        format!("[{}]", said.join(" "))
    }

    fn name_of(&mut self, fence: i64) -> String {
        if let Some(at) = self.fences.iter().position(|known| *known == fence) {
            return format!("#{}", at + 1);
        }
        let highest = self.fences.iter().max().copied().unwrap_or_default();
        assert!(highest < fence && fence < 1 << 53, "fence {fence} after {highest}");
        self.fences.push(fence);
        format!("#{}", self.fences.len())
    }
}

/// What a row says that has this layout; None if it has another.
fn said(layout: &str, row: &[String]) -> Option<Vec<String>> {
    let fields: Vec<(&str, &str)> = layout.split(',').filter_map(|field| field.split_once('=')).collect();
    let has_all =
        row.len() == 2 * fields.len() && fields.iter().zip(row.chunks(2)).all(|(field, row)| field.0 == row[0]);
    let says = fields.iter().zip(row.chunks(2)).filter(|(field, row)| field.1.is_empty() || field.1 != row[1]);
    has_all.then(|| says.flat_map(|(_, row)| row.to_vec()).collect())
}

/// A transcript of several connections.
///
/// A row is a command, as [`Row`] has it, and its reply. `b: LOCK.ACQUIRE ...` sends it over the connection b, which is
/// made when it is first named; when that is to wait for its reply, the row says `waits`, or `sent` when the wait may
/// be over before one could see it. `b:` alone reads the reply that it waited for, or, with `waits`, sees that there is
/// none. Without a name the command goes over one that never waits. `%b` stands for the number of b's connection. What
/// others are told by a command may stand behind its reply: `0 | b: #2 | c: waits`.
pub(crate) struct Stage<'s> {
    server: Lent<'s>,
    wire: Connection,
    eye: Client,
    waiters: BTreeMap<String, Connection>,
    names: Names,
}

/// A server that a transcript is played on.
enum Lent<'s> {
    Own(Server),
    Other(&'s Server),
}

impl Deref for Lent<'_> {
    type Target = Server;

    fn deref(&self) -> &Server {
        match self {
            Lent::Own(server) => server,
            Lent::Other(server) => server,
        }
    }
}

impl Stage<'_> {
    /// On a server of its own.
    pub(crate) fn alone() -> Stage<'static> {
        Stage::owning(Server::new())
    }

    /// On a server of its own that was set up.
    pub(crate) fn owning(server: Server) -> Stage<'static> {
        Stage::with(Lent::Own(server))
    }

    pub(crate) fn new(server: &Server) -> Stage<'_> {
        Stage::with(Lent::Other(server))
    }

    fn with(server: Lent<'_>) -> Stage<'_> {
        let (wire, eye) = (Connection::resp2(&server), server.connect());
        Stage { server, wire, eye, waiters: BTreeMap::new(), names: Names::default() }
    }

    /// The server.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Its own server is killed and started again; all connections are new.
    pub(crate) fn crash(&mut self) {
        let Lent::Own(server) = &mut self.server else { panic!("not its own") };
        server.crash();
        self.waiters.clear();
        (self.wire, self.eye) = (Connection::resp2(server), server.connect());
    }

    /// A connection that looks.
    pub(crate) fn connect(&self) -> Client {
        self.server.connect()
    }

    /// Plays all rows.
    #[track_caller]
    pub(crate) fn play(&mut self, rows: &[Row]) {
        for (at, (command, expected)) in rows.iter().enumerate() {
            let (expected, others) = expected.split_once(" | ").unwrap_or((expected, ""));
            let others = others.split(" | ").filter(|other| !other.is_empty());
            let others = others.map(|other| other.split_once(": ").expect("a connection, and what it is told"));
            let others = others.map(|(name, expected)| (format!("{name}:"), expected));
            for (told, expected) in [((*command).to_owned(), expected)].into_iter().chain(others) {
                let got = self.play_row(&told, expected);
                assert_eq!(got, expected, "row {}, {command}: {told}", at + 1);
            }
        }
    }

    fn play_row(&mut self, command: &str, expected: &str) -> String {
        let (name, command) = match command.split_once(':') {
            Some((name, command)) if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => (name, command.trim()),
            _ => ("", command),
        };
        let words: Vec<Vec<u8>> = self.names.words(command).into_iter().map(|word| self.number(word)).collect();
        if name.is_empty() {
            let reply = self.wire.ask(&words);
            return self.names.show(&reply);
        }
        let waiter = self.waiters.entry(name.to_owned()).or_insert_with(|| Connection::resp2(&self.server));
        if !command.is_empty() {
            waiter.send(&words);
            if expected == "waits" {
                waiter.expect_blocked(&mut self.eye, command);
                return expected.to_owned();
            }
            if expected == "sent" {
                // What is sent after the reply to this is served after it.
                self.wire.say("PING");
                return expected.to_owned();
            }
        } else if expected == "waits" {
            // What was done for it at the end of a turn, or in a timer, is done when other turns have gone by.
            (0..3).for_each(|_| drop(self.wire.say("PING")));
            if waiter.is_blocked(&mut self.eye) {
                return expected.to_owned();
            }
        }
        let reply = waiter.read();
        self.names.show(&reply)
    }

    fn number(&self, word: Vec<u8>) -> Vec<u8> {
        match word.strip_prefix(b"%").map(|name| self.waiters.get(&String::from_utf8_lossy(name).into_owned())) {
            Some(Some(waiter)) => waiter.id().to_string().into_bytes(),
            _ => word,
        }
    }

    /// A fence by its name, as in rows.
    pub(crate) fn name_of(&mut self, fence: i64) -> String {
        self.names.show(&Reply::Int(fence))
    }

    /// A reply, as a row has it.
    pub(crate) fn show(&mut self, reply: &Reply) -> String {
        self.names.show(reply)
    }

    /// Sends what is no row over the connection that never waits.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.wire.ask(args)
    }

    /// A connection by its name.
    pub(crate) fn waiter(&mut self, name: &str) -> &mut Connection {
        self.waiters.get_mut(name).expect("a row named it")
    }

    /// The connection goes away, whatever it waits for, and the server has seen it.
    pub(crate) fn leave(&mut self, name: &str) {
        self.waiters.remove(name).expect("a row named it").leave(&mut self.eye);
    }

    /// Waits until a field of `INFO lock` has this value.
    #[track_caller]
    pub(crate) fn until(&mut self, field: &str, value: u64) {
        let mut conn = self.server.connect();
        let deadline = Instant::now() + PATIENCE;
        while conn.info_number("lock", field) != value {
            assert!(Instant::now() < deadline, "{field} is {}", conn.info("lock", field));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The refusal of a request during a grace, without the time that is left.
fn show_grace(text: &str) -> Option<String> {
    let left = text.strip_prefix("GRACE nobody is let in for another ")?.strip_suffix(" ms (lock.grace-ms)")?;
    left.parse::<u64>().ok().map(|_| "GRACE ~".to_owned())
}

fn show_bytes(bytes: &[u8]) -> String {
    let plain = !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"');
    match bytes {
        _ if bytes.len() == 32 && bytes.iter().all(u8::is_ascii_hexdigit) => "<made>".to_owned(),
        _ if bytes.len() > 64 => format!("@{}", bytes.len()),
        _ if plain => String::from_utf8_lossy(bytes).into_owned(),
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

/// Words, and whether each was quoted.
pub(crate) fn split(command: &str) -> Vec<(Vec<u8>, bool)> {
    let mut words = Vec::new();
    let mut rest = command;
    while !rest.is_empty() {
        let (word, after, quoted) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (word, after) = quoted.split_once('"').expect("a closing quote");
                (unescape(word), after, true)
            }
            None => {
                let end = rest.find(' ').unwrap_or(rest.len());
                (rest.as_bytes()[..end].to_vec(), &rest[end..], false)
            }
        };
        words.push((word, quoted));
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    words
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        match char {
            '\\' => match rest.next().expect("something behind the backslash") {
                'r' => bytes.push(b'\r'),
                'n' => bytes.push(b'\n'),
                'x' => {
                    let digits: String = rest.by_ref().take(2).collect();
                    bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                }
                other => panic!("\\{other} is not known here"),
            },
            char => bytes.extend(char.to_string().bytes()),
        }
    }
    bytes
}

#[test]
fn a_transcript_reads_quotes_lengths_and_fences() {
    // If the words of the tables were read wrongly, the tables would test something else than they say.
    let words: Vec<_> = split(r#"a "" "\x00\xff \r" @3 b"#).into_iter().map(|(word, _)| word).collect();
    assert_eq!(words, [b"a".to_vec(), vec![], b"\x00\xff \r".to_vec(), b"@3".to_vec(), b"b".to_vec()]);
    assert_eq!(show_bytes(b"\x00\xff"), r#""\x00\xff""#);
    let all = each(&[("A {x|y}", "1"), (r#"B {p|q} {5|"\xff"}"#, "no {}")]);
    let second = ["B p 5", r#"B p "\xff""#, "B q 5", r#"B q "\xff""#];
    assert_eq!(all.iter().map(|row| row.0).collect::<Vec<_>>(), [&["A x", "A y"][..], &second].concat());
    assert_eq!((all[1].1, all[2].1, all[3].1), ("1", "no 5", r#"no "\xff""#));
}

#[test]
fn a_row_is_shown_short_only_if_all_of_its_fields_are_there() {
    // What could go wrong: a field that is gone, or has another name, passes for one that says nothing.
    let key = |name: &str| ["db", "0", "key", "k", "waiting", "1", name, "~"].map(str::to_owned);
    let [right, other] = ["waited_ms", "waits_ms"].map(|name| said(LAYOUTS[4], &key(name)));
    assert_eq!((right.unwrap().join(" "), other), ("key k waiting 1".to_owned(), None));
    assert_eq!(said(LAYOUTS[4], &key("waited_ms")[..6]), None);
}
