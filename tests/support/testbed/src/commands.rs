//! Commands as they lie in an append-only file or a replication stream.

use std::collections::HashMap;

/// Commands in the protocol's form, as an append-only file or a replication stream has them; any bytes are kept, as
/// Latin-1 characters.
pub fn parse_commands(mut bytes: &[u8]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let line = take_line(&mut bytes);
        // Time stamps and the like.
        if line.starts_with(b"#") {
            continue;
        }
        let count: usize = number_after(line, b'*');
        commands.push(
            (0..count)
                .map(|_| {
                    let len: usize = number_after(take_line(&mut bytes), b'$');
                    let (arg, rest) = bytes.split_at(len);
                    bytes = &rest[2..];
                    arg.iter().map(|byte| char::from(*byte)).collect()
                })
                .collect(),
        );
    }
    commands
}

/// Spells records out, so that tests can compare each part of a state: `key owner reads writes fence wall-deadline-ms
/// remaining-ms [note]`, or `key owner 0 0 fence` for an end. Other commands stay as they are.
///
/// Knows the one form in which a record may be written, and fails at any other.
#[derive(Debug, Default)]
pub struct Speller {
    /// Of each key and fence that a record had: the owner, and whether it held for writing.
    holders: HashMap<(String, String), (String, bool)>,
}

impl Speller {
    /// Spells out the next command of a file or a stream. The end of a writer has no owner: it gets that of the hold
    /// with its fence, or `?` if no record before it told of one.
    pub fn spell_out(&mut self, mut command: Vec<String>) -> Vec<String> {
        if command[0] != "LOCK.HOLD" {
            return command;
        }
        let owner = if command.len() == 3 { None } else { Some(command.remove(2)) };
        assert!(matches!(command.len(), 3 | 4), "a key, an owner or none, a state, and perhaps a note: {command:?}");
        let [counts @ .., fence, deadline, left] = parts(&command[2]);
        let is_end = counts == [None, None];
        let given = [fence.is_some(), is_end == deadline.is_none(), is_end == left.is_none()];
        assert_eq!(given, [true; 3], "all parts of a hold, and the fence alone of an end: {command:?}");
        let hold = (command[1].clone(), fence.clone().unwrap_or_default());
        let known = self.holders.get(&hold);
        assert!(owner.is_some() || is_end, "only an end has no owner: {command:?}");
        assert!(
            !is_end || known.is_none_or(|(_, writes)| *writes == owner.is_none()),
            "the end of a writer has no owner, that of a reader has one: {command:?}"
        );
        let owner = owner.unwrap_or_else(|| known.map_or("?".to_owned(), |(owner, _)| owner.clone()));
        let writes = counts[1].is_some();
        let counts = counts.map(|count| count.or_else(|| Some("0".to_owned())));
        let spelled = counts.into_iter().chain([fence, deadline, left]).flatten();
        command.splice(2..3, std::iter::once(owner.clone()).chain(spelled));
        if !is_end {
            self.holders.insert(hold, (owner, writes));
        }
        command
    }

    /// Spells out all of them.
    pub fn spell_all(&mut self, commands: Vec<Vec<String>>) -> Vec<Vec<String>> {
        commands.into_iter().map(|command| self.spell_out(command)).collect()
    }
}

/// The parts of a state: reads, writes, fence, deadline, what is left. None where there is none.
fn parts(state: &str) -> [Option<String>; 5] {
    let mut rest = state.strip_prefix("V1").unwrap_or_else(|| panic!("no mark: {state}"));
    let parts = ["R", "W", "F", "D", "L"].map(|letter| {
        let behind = rest.strip_prefix(letter)?;
        let len = behind.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(behind.len());
        let number: u64 = behind[..len].parse().unwrap_or_else(|_| panic!("no number behind {letter}: {state}"));
        assert_eq!(number.to_string(), behind[..len], "one way to write a number: {state}");
        assert!(number > 0 || letter == "D" || letter == "L", "what is 0 is left out: {state}");
        rest = &behind[len..];
        Some(number.to_string())
    });
    assert_eq!(rest, "", "parts in their order: {state}");
    parts
}

fn take_line<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a whole line");
    let line = &bytes[..end];
    *bytes = &bytes[end + 2..];
    line
}

fn number_after(line: &[u8], sign: u8) -> usize {
    assert_eq!(line[0], sign, "{}", line.escape_ascii());
    std::str::from_utf8(&line[1..]).unwrap().parse().unwrap()
}
