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
