//! A connection that shows what the server sends, byte by byte, where a client library would already have chosen a type;
//! and transcripts: a table "command -> exact reply" that is played over it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use testbed::{PATIENCE, Server};

/// What the server sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    /// `$-1` in RESP2, `_` in RESP3.
    Null,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Push(Vec<Reply>),
    /// What no command of ours may answer, as its first line.
    Other(String),
}

impl Reply {
    pub(crate) fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    /// The elements of an array.
    pub(crate) fn items(self) -> Vec<Reply> {
        match self {
            Reply::Array(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// A text, be it simple or bulk.
    pub(crate) fn text(&self) -> String {
        match self {
            Reply::Simple(text) | Reply::Error(text) => text.clone(),
            Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not a text: {other:?}"),
        }
    }

    pub(crate) fn int(&self) -> i64 {
        match self {
            Reply::Int(number) => *number,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// The value of a field of a map, flat or not.
    pub(crate) fn field(&self, name: &str) -> Reply {
        self.find(name).unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    fn find(&self, name: &str) -> Option<Reply> {
        match self {
            Reply::Map(pairs) => pairs.iter().find(|(key, _)| key.text() == name).map(|(_, value)| value.clone()),
            Reply::Array(flat) => flat.chunks(2).find(|pair| pair[0].text() == name).map(|pair| pair[1].clone()),
            _ => None,
        }
    }
}

/// How a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By itself.
    Plain,
    /// Between MULTI and EXEC.
    Exec,
    /// From a script.
    Script,
    /// From a function; [`Wire::load_function`] comes first.
    Function,
}

/// A raw connection.
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
    resp3: bool,
    seen: Vec<u8>,
}

impl Wire {
    /// A connection in RESP2.
    pub(crate) fn resp2(server: &Server) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Wire { stream: BufReader::new(stream), resp3: false, seen: Vec::new() }
    }

    /// A connection in RESP3.
    pub(crate) fn resp3(server: &Server) -> Wire {
        let mut wire = Wire::resp2(server);
        // The reply comes in the new protocol already.
        wire.resp3 = true;
        assert!(matches!(wire.ask(&["HELLO", "3"]), Reply::Map(_)));
        wire
    }

    /// Sends a command without waiting for what it answers.
    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.as_ref().len()).into_bytes());
            bytes.extend(arg.as_ref());
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).unwrap();
    }

    /// Sends bytes, unless the server closes the connection.
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) {
        // A connection that is closed says so when it is read.
        let _: std::io::Result<()> = self.stream.get_mut().write_all(bytes);
    }

    /// Closes the half of the connection that commands go over.
    pub(crate) fn shut_writing(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    /// Sends a command and reads its reply.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.read()
    }

    /// Whether something has come that was not read yet.
    pub(crate) fn has_reply(&mut self) -> bool {
        let socket = self.stream.get_ref();
        socket.set_nonblocking(true).unwrap();
        let came = socket.peek(&mut [0]).is_ok();
        socket.set_nonblocking(false).unwrap();
        came || !self.stream.buffer().is_empty()
    }

    /// Whether the next that comes is the end of the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.stream.fill_buf().is_ok_and(<[u8]>::is_empty)
    }

    /// Whether the connection has ended, when all that came before was read and thrown away.
    pub(crate) fn ends(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let ends = loop {
            match self.stream.fill_buf().map(<[u8]>::len) {
                Ok(0) => break true,
                Ok(len) => self.stream.consume(len),
                Err(error) => break error.kind() != ErrorKind::WouldBlock,
            }
        };
        self.stream.get_ref().set_nonblocking(false).unwrap();
        ends
    }

    /// Sends words that need no quotes.
    pub(crate) fn say(&mut self, command: &str) -> Reply {
        self.ask(&command.split(' ').collect::<Vec<_>>())
    }

    /// The very bytes of the reply.
    pub(crate) fn bytes(&mut self, command: &str) -> String {
        self.send(&command.split(' ').collect::<Vec<_>>());
        self.seen.clear();
        self.read();
        self.seen.escape_ascii().to_string()
    }

    /// Sends a command this way. A refusal within MULTI comes as the same error, and nothing stays queued.
    pub(crate) fn ask_by<A: AsRef<[u8]>>(&mut self, way: Way, args: &[A]) -> Reply {
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        let with = |head: [&'static str; 3]| -> Vec<Vec<u8>> {
            head.iter().map(|word| word.as_bytes()).chain(args.clone()).map(<[u8]>::to_vec).collect()
        };
        match way {
            Way::Plain => self.ask(&args),
            Way::Exec => {
                assert_eq!(self.say("MULTI"), Reply::Simple("OK".to_owned()));
                match self.ask(&args) {
                    Reply::Simple(queued) if queued == "QUEUED" => {
                        let mut replies = self.say("EXEC").items();
                        assert_eq!(replies.len(), 1, "{replies:?}");
                        replies.remove(0)
                    }
                    refused => {
                        assert_eq!(self.say("DISCARD"), Reply::Simple("OK".to_owned()));
                        refused
                    }
                }
            }
            Way::Script => self.ask(&with(["EVAL", "return redis.pcall(unpack(ARGV))", "0"])),
            Way::Function => self.ask(&with(["FCALL", "pass_on", "0"])),
        }
    }

    /// Loads the function that [`Way::Function`] calls.
    pub(crate) fn load_function(&mut self) {
        let code = "#!lua name=passing\nredis.register_function('pass_on', function(keys, args) return \
                    redis.pcall(unpack(args)) end)";
        assert_eq!(self.ask(&["FUNCTION", "LOAD", "REPLACE", code]).text(), "passing");
    }

    /// Reads one reply, or one message that nobody asked for.
    pub(crate) fn read(&mut self) -> Reply {
        let line = self.line();
        let rest = line[1..].to_owned();
        let len = rest.parse::<usize>();
        match (line.as_bytes()[0], len) {
            (b'+', _) => Reply::Simple(rest),
            (b'-', _) => Reply::Error(rest),
            (b':', _) => Reply::Int(rest.parse().unwrap()),
            (b'$', Ok(len)) => Reply::Bulk(self.body(len)),
            (b'=', Ok(len)) => Reply::Bulk(self.body(len).split_off(4)),
            (b'$', _) if rest == "-1" && !self.resp3 => Reply::Null,
            (b'_', _) if self.resp3 => Reply::Null,
            (b'*' | b'~', Ok(len)) => Reply::Array((0..len).map(|_| self.read()).collect()),
            (b'>', Ok(len)) => Reply::Push((0..len).map(|_| self.read()).collect()),
            (b'%', Ok(len)) => Reply::Map((0..len).map(|_| (self.read(), self.read())).collect()),
            _ => Reply::Other(line),
        }
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        assert!(!line.is_empty(), "the server closed the connection");
        self.seen.extend(&line);
        String::from_utf8(line).unwrap().trim_end_matches("\r\n").to_owned()
    }

    fn body(&mut self, len: usize) -> Vec<u8> {
        let mut body = vec![0; len + 2];
        self.stream.read_exact(&mut body).unwrap();
        self.seen.extend(&body);
        body.truncate(len);
        body
    }
}

/// One line of a transcript: the command, and its reply as [`Names::show`] writes it.
///
/// In the command `"..."` quotes bytes as redis-cli does, `@n` is n bytes, and `#n` is the nth fence that was given, to
/// which `+1` or `-1` may be added.
pub(crate) type Row = (&'static str, &'static str);

/// Plays transcripts. Remembers the fences that were given, so that a row can name them: `#1` is the first.
pub(crate) struct Player<'w> {
    pub(crate) wire: &'w mut Wire,
    pub(crate) way: Way,
    names: Names,
}

/// How rows are read and replies are shown: the fences that were given, by their names.
#[derive(Default)]
pub(crate) struct Names {
    fences: Vec<i64>,
}

/// The fields whose values depend on the time, or on the number of a connection.
const TIMES: &[&str] = &["ttl_ms", "held_ms", "waited_ms", "left_ms", "client"];

/// Integers from here on are fences: microseconds since 1970.
const FENCES_FROM: i64 = 1 << 40;

impl<'w> Player<'w> {
    pub(crate) fn new(wire: &'w mut Wire, way: Way) -> Player<'w> {
        Player { wire, way, names: Names::default() }
    }

    /// Plays all rows, on an empty database.
    pub(crate) fn play(&mut self, rows: &[Row]) {
        assert_eq!(self.wire.say("FLUSHALL"), Reply::Simple("OK".to_owned()));
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
                _ => word,
            })
            .collect()
    }

    /// A reply in one line: `nil`, `7`, `#1`, `word`, `"\xff"`, `[a b]`; errors as they are; `~` for a time or a client; `<made>` for
    /// an owner that the server made. Maps are shown flat: that they are maps in RESP3 is seen in their bytes.
    pub(crate) fn show(&mut self, reply: &Reply) -> String {
        match reply {
            Reply::Simple(text) | Reply::Error(text) => text.clone(),
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
        format!("[{}]", shown.join(" "))
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
}
