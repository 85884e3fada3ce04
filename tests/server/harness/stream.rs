//! What a primary sends to its replicas, word by word: a connection that asks for it as a replica does.

use crate::harness::connection::{Connection, Reply};
use testbed::{Server, Speller};

/// A replication link that only reads.
pub(crate) struct Stream {
    link: Connection,
    speller: Speller,
    marks: u32,
    /// How many commands of the append-only file were compared.
    in_file: usize,
}

impl Stream {
    /// Begins after a full sync, whose data are thrown away.
    pub(crate) fn of(server: &Server) -> Stream {
        let mut stream = Stream { link: Connection::silent(server), speller: Speller::default(), marks: 0, in_file: 0 };
        stream.link.send_line("PSYNC ? -1");
        let answer = stream.line();
        assert!(answer.starts_with("+FULLRESYNC"), "{answer}");
        let head = stream.line();
        let len = head.strip_prefix('$').and_then(|len| len.parse().ok());
        let len = len.unwrap_or_else(|| panic!("not the length of an RDB: {head}"));
        stream.link.exactly(len).expect("the data");
        stream
    }

    /// A line that is not empty: while it prepares the data the server sends empty ones.
    fn line(&mut self) -> String {
        loop {
            let line = self.link.line().expect("a replication link");
            if !line.is_empty() {
                return line;
            }
        }
    }

    /// Everything sent since the last call, each command as its arguments, but for what keeps the link alive. Records
    /// are [spelled out](Speller).
    pub(crate) fn commands(&mut self, server: &Server) -> Vec<Vec<String>> {
        self.marks += 1;
        // Goes to replicas behind all that was sent before, and changes nothing.
        let mark = format!("mark-{}", self.marks);
        server.connect().get::<i64>(&["PUBLISH", "stream", &mark]);
        let mut commands: Vec<Vec<String>> = Vec::new();
        loop {
            let Reply::Array(words) = self.link.read() else { panic!("not a command, behind {commands:?}") };
            let command: Vec<String> = words.iter().map(as_latin_1).collect();
            if command.last() == Some(&mark) {
                break;
            }
            commands.push(command);
        }
        // In capitals or not, as the server has it.
        let passed_on = |command: &Vec<String>| {
            !["SELECT", "PING", "REPLCONF", "PUBLISH"].iter().any(|other| command[0].eq_ignore_ascii_case(other))
        };
        self.speller.spell_all(commands.into_iter().filter(passed_on).collect())
    }

    /// The same, which the append-only file has received, too.
    #[track_caller]
    pub(crate) fn commands_and_file(&mut self, server: &Server) -> Vec<Vec<String>> {
        let sent = self.commands(server);
        let file = server.aof_tail();
        assert_eq!(&file[self.in_file..], sent, "replicas and file must receive the same");
        self.in_file = file.len();
        sent
    }
}

/// Any bytes are kept, as [`testbed::parse_commands`] keeps those of the append-only file.
fn as_latin_1(word: &Reply) -> String {
    match word {
        Reply::Bulk(bytes) => bytes.iter().map(|byte| char::from(*byte)).collect(),
        other => panic!("not an argument: {other:?}"),
    }
}
