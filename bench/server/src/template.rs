//! Sequences of commands, written as a text in which some words differ from run to run:
//!
//! ```text
//! LOCK.ACQUIRE {key} {owner} PX 600000; LOCK.RELEASE {key} {owner} -> 0
//! ```
//!
//! Commands are divided by `;`, words by blanks; quotes of either kind keep both in a word. What `->` is followed by is
//! the reply that the command must have: `null`, `any` (all but an error), or a number or text. Without it the reply
//! must be neither an error nor null.

use crate::reply::Reply;
use std::fmt::{Display, Formatter};
use std::io::Write;

/// What differs from run to run of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Which of the keys it uses.
    pub number: usize,
    /// Which of the connections it is sent on.
    pub client: usize,
}

/// Commands that belong together, such as taking a lock and giving it back.
#[derive(Clone, Debug)]
pub struct Sequence {
    commands: Vec<Command>,
}

/// One command, and what it must be answered.
#[derive(Clone, Debug)]
pub struct Command {
    pieces: Vec<Piece>,
    expected: Expected,
    text: String,
}

/// A text that stands for another in all sequences, such as the hash of a script: `{name}` is replaced by the value.
pub type Names = [(String, String)];

#[derive(Clone, Debug)]
enum Piece {
    /// As it is sent.
    Fixed(Vec<u8>),
    /// One word, whose length goes before it.
    Word(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    /// `{key}`: `lock:` and the number.
    Key,
    /// `{n}`: the number.
    Number,
    /// `{owner}`: 36 bytes, one for each connection.
    Owner,
    /// `{id}`: 36 bytes, one for each number.
    Id,
}

#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Value,
    Any,
    Null,
    Exactly(String),
}

/// Why a text is no sequence.
#[derive(Debug, PartialEq)]
pub struct Malformed(String);

impl std::error::Error for Malformed {}

impl Display for Malformed {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Sequence {
    /// Reads it from a text.
    pub fn parse(text: &str, names: &Names) -> Result<Sequence, Malformed> {
        let words = words(text)?;
        let commands = words.split(|word| *word == Token::End).filter(|command| !command.is_empty());
        let commands = commands.map(|command| Command::of(command, names)).collect::<Result<Vec<_>, _>>()?;
        if commands.is_empty() {
            return Err(Malformed(format!("no command in {text:?}")));
        }
        Ok(Sequence { commands })
    }

    /// The commands, in order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }
}

impl Command {
    fn of(tokens: &[Token], names: &Names) -> Result<Command, Malformed> {
        let text = tokens.iter().map(Token::text).collect::<Vec<_>>().join(" ");
        let (words, expected) = match tokens {
            [words @ .., Token::Arrow, Token::Word(reply)] => (words, Expected::of(reply)),
            words => (words, Expected::Value),
        };
        if words.is_empty() || words.contains(&Token::Arrow) {
            return Err(Malformed(format!("not a command, or one with -> and one reply: {text}")));
        }
        let mut pieces = vec![Piece::Fixed(format!("*{}\r\n", words.len()).into_bytes())];
        for word in words {
            let piece = Piece::of(&parts(word.text(), names)?);
            match (pieces.last_mut(), piece) {
                (Some(Piece::Fixed(before)), Piece::Fixed(bytes)) => before.extend(bytes),
                (_, piece) => pieces.push(piece),
            }
        }
        Ok(Command { pieces, expected, text })
    }

    /// Appends it as it is sent.
    pub fn render(&self, run: Run, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Fixed(bytes) => out.extend_from_slice(bytes),
                Piece::Word(parts) => {
                    let len: usize = parts.iter().map(|part| part.len(run)).sum();
                    write_number(b'$', len, out);
                    parts.iter().for_each(|part| part.render(run, out));
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }

    /// Whether a reply is what it must be.
    pub fn accepts(&self, reply: &Reply<'_>) -> bool {
        match (&self.expected, reply) {
            (_, Reply::Error(_)) => false,
            (Expected::Any, _) | (Expected::Null, Reply::Null) => true,
            (Expected::Null, _) | (_, Reply::Null) => false,
            (Expected::Value, _) => true,
            (Expected::Exactly(text), Reply::Int(number)) => text.parse() == Ok(*number),
            (Expected::Exactly(text), Reply::Text(found)) => text.as_bytes() == *found,
            (Expected::Exactly(_), Reply::Array(..)) => false,
        }
    }
}

impl Display for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.text)
    }
}

impl Expected {
    fn of(text: &str) -> Expected {
        match text {
            "null" => Expected::Null,
            "any" => Expected::Any,
            text => Expected::Exactly(text.to_owned()),
        }
    }
}

impl Piece {
    fn of(parts: &[Part]) -> Piece {
        match parts {
            [] => Piece::Fixed(b"$0\r\n\r\n".to_vec()),
            [Part::Text(text)] => Piece::Fixed(format!("${}\r\n{text}\r\n", text.len()).into_bytes()),
            parts => Piece::Word(parts.to_vec()),
        }
    }
}

const KEY: &[u8] = b"lock:";

impl Part {
    fn len(&self, run: Run) -> usize {
        match self {
            Part::Text(text) => text.len(),
            Part::Key => KEY.len() + digits(run.number),
            Part::Number => digits(run.number),
            Part::Owner | Part::Id => UUID_LEN,
        }
    }

    fn render(&self, run: Run, out: &mut Vec<u8>) {
        match self {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Key => {
                out.extend_from_slice(KEY);
                write!(out, "{}", run.number).expect("memory takes it");
            }
            Part::Number => write!(out, "{}", run.number).expect("memory takes it"),
            // Those of connections are far from those of numbers.
            Part::Owner => out.extend_from_slice(&uuid(!(run.client as u64))),
            Part::Id => out.extend_from_slice(&uuid(run.number as u64)),
        }
    }
}

fn write_number(sign: u8, number: usize, out: &mut Vec<u8>) {
    out.push(sign);
    write!(out, "{number}\r\n").expect("memory takes it");
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

const UUID_LEN: usize = 36;

/// A name as clients make it, the same for the same number.
pub fn uuid(number: u64) -> [u8; UUID_LEN] {
    let (high, low) = (scattered(number.wrapping_mul(2)), scattered(number.wrapping_mul(2).wrapping_add(1)));
    let bits = (u128::from(high) << 64) | u128::from(low);
    let mut text = [b'-'; UUID_LEN];
    let places = (0..UUID_LEN).filter(|place| ![8, 13, 18, 23].contains(place));
    for (digit, place) in places.enumerate() {
        text[place] = b"0123456789abcdef"[(bits >> (4 * digit)) as usize & 0xf];
    }
    text
}

/// The finaliser of SplitMix64: one to one, and neighbours come out far apart.
fn scattered(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The parts of a word: texts, and what braces stand for.
fn parts(word: &str, names: &Names) -> Result<Vec<Part>, Malformed> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) =
            after.split_once('}').ok_or_else(|| Malformed(format!("a brace that does not end: {word}")))?;
        text.push_str(before);
        rest = after;
        let part = match name {
            "key" => Part::Key,
            "n" => Part::Number,
            "owner" => Part::Owner,
            "id" => Part::Id,
            name => {
                let known = names.iter().find(|(known, _)| known == name);
                text.push_str(&known.ok_or_else(|| Malformed(format!("nothing is called {{{name}}}: {word}")))?.1);
                continue;
            }
        };
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(part);
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Arrow,
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(word) => word,
            Token::Arrow => "->",
            Token::End => ";",
        }
    }
}

fn words(text: &str) -> Result<Vec<Token>, Malformed> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(&next) = chars.peek() {
        if next.is_whitespace() || next == ';' {
            chars.next();
            tokens.extend((next == ';').then_some(Token::End));
            continue;
        }
        let (mut word, mut quoted) = (String::new(), false);
        while let Some(next) = chars.next_if(|next| !next.is_whitespace() && *next != ';') {
            if next == '\'' || next == '"' {
                quoted = true;
                while let Some(other) = chars.next_if(|other| *other != next) {
                    word.push(other);
                }
                chars.next().ok_or_else(|| Malformed(format!("a quote that does not end: {text}")))?;
            } else {
                word.push(next);
            }
        }
        tokens.push(if word == "->" && !quoted { Token::Arrow } else { Token::Word(word) });
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = Run { number: 12, client: 3 };

    fn sent(text: &str) -> Vec<String> {
        let names = [("sha".to_owned(), "abc".to_owned())];
        let sequence = Sequence::parse(text, &names).unwrap();
        let render = |command: &Command| {
            let mut bytes = Vec::new();
            command.render(RUN, &mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        sequence.commands().iter().map(render).collect()
    }

    #[test]
    fn words_are_sent_with_their_lengths_and_what_differs_filled_in() {
        assert_eq!(sent("PING; GET {key};"), ["*1\r\n$4\r\nPING\r\n", "*2\r\n$3\r\nGET\r\n$7\r\nlock:12\r\n"]);
        assert_eq!(sent("EVALSHA {sha} x{n}"), ["*3\r\n$7\r\nEVALSHA\r\n$3\r\nabc\r\n$3\r\nx12\r\n"]);
        assert_eq!(sent("A 'b; c' \"d'e\" ''"), ["*4\r\n$1\r\nA\r\n$4\r\nb; c\r\n$3\r\nd'e\r\n$0\r\n\r\n"]);
        let owner = String::from_utf8(uuid(!3).to_vec()).unwrap();
        assert_eq!(sent("G {owner}"), [format!("*2\r\n$1\r\nG\r\n$36\r\n{owner}\r\n")]);
    }

    #[test]
    fn names_differ_from_number_to_number() {
        let names: std::collections::HashSet<_> =
            (0..1_000).chain((0..1_000).map(|number| !number)).map(uuid).collect();
        assert_eq!(names.len(), 2_000);
        assert_eq!(uuid(5), uuid(5));
    }

    #[test]
    fn a_reply_must_be_the_one_that_is_expected() {
        let (error, ok, one) = (Reply::Error(b"ERR"), Reply::Text(b"OK"), Reply::Int(1));
        for (text, accepted, refused) in [
            ("A", vec![ok, one, Reply::Array(b"", b"")], vec![Reply::Null, error]),
            ("A -> any", vec![ok, one, Reply::Null], vec![error]),
            ("A -> null", vec![Reply::Null], vec![ok, one, error]),
            ("A -> 1", vec![one, Reply::Text(b"1")], vec![ok, Reply::Int(2), Reply::Null, error]),
            ("A -> OK", vec![ok], vec![one, Reply::Null, error, Reply::Array(b"OK", b"")]),
        ] {
            let sequence = Sequence::parse(text, &[]).unwrap();
            let command = &sequence.commands()[0];
            accepted.iter().for_each(|reply| assert!(command.accepts(reply), "{text}: {reply}"));
            refused.iter().for_each(|reply| assert!(!command.accepts(reply), "{text}: {reply}"));
        }
    }

    #[test]
    fn what_is_no_sequence_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "no command in \"\""),
            (" ;; ", "no command in \" ;; \""),
            ("GET 'a", "a quote that does not end: GET 'a"),
            ("GET {a}", "nothing is called {a}: {a}"),
            ("GET {a", "a brace that does not end: {a"),
            ("GET a ->", "not a command, or one with -> and one reply: GET a ->"),
            ("-> 1", "not a command, or one with -> and one reply: -> 1"),
            ("GET -> 1 2", "not a command, or one with -> and one reply: GET -> 1 2"),
        ] {
            assert_eq!(Sequence::parse(text, &[]).unwrap_err().to_string(), reason);
        }
    }
}
