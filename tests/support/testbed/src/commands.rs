//! Commands as they lie in an append-only file or a replication stream.

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

/// A LOCK.HOLD with the state of its hold in words of their own, `key owner reads writes fence wall-deadline-ms
/// remaining-ms [note]`, or `key owner 0 0 fence` for an end: so tests can compare each. Other commands stay as they
/// are.
///
/// Knows the one form in which a word may be written, and fails at any other.
pub fn spelled_out(mut command: Vec<String>) -> Vec<String> {
    if command[0] != "LOCK.HOLD" {
        return command;
    }
    assert!(matches!(command.len(), 4 | 5), "four words, or five with a note: {command:?}");
    let mut rest = command[3].strip_prefix("V1").unwrap_or_else(|| panic!("no mark: {command:?}"));
    let mut parts = Vec::new();
    for letter in ["R", "W", "F", "D", "L"] {
        let Some(behind) = rest.strip_prefix(letter) else {
            parts.push(None);
            continue;
        };
        let len = behind.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(behind.len());
        let number: u64 = behind[..len].parse().unwrap_or_else(|_| panic!("no number behind {letter}: {command:?}"));
        assert_eq!(number.to_string(), behind[..len], "one way to write a number: {command:?}");
        assert!(number > 0 || letter == "D" || letter == "L", "what is 0 is left out: {command:?}");
        parts.push(Some(number.to_string()));
        rest = &behind[len..];
    }
    assert_eq!(rest, "", "parts in their order: {command:?}");
    let is_end = parts[..2] == [None, None];
    let given = [is_end || parts[2].is_some(), is_end == parts[3].is_none(), is_end == parts[4].is_none()];
    assert_eq!(given, [true; 3], "all parts of a hold, and none but the fence of an end: {command:?}");
    let counts = parts.drain(..2).map(|count| count.or_else(|| Some("0".to_owned()))).collect::<Vec<_>>();
    command.splice(3..4, counts.into_iter().chain(parts).flatten());
    command
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
