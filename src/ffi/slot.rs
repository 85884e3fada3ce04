//! The slot of a key in a cluster: arithmetic, since the oldest servers have no function for it, and to ask Valkey 9.1 by a
//! call with keys of several slots makes it refuse all calls and scripts from then on.

const SLOTS: u16 = 1 << 14;

/// The slot of a key: by what stands in its first braces, if anything does, else by all of it.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}')?;
        (len > 0).then_some(&rest[..len])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// Whether a node takes this slot over, by what it says of itself in CLUSTER NODES.
pub(super) fn is_importing(nodes: &[u8], slot: u16) -> bool {
    let mark = format!("[{slot}-<-");
    let mut lines = nodes.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    lines.any(|mut words| {
        let flags = words.nth(2).unwrap_or_default();
        flags.split(|byte| *byte == b',').any(|flag| flag == b"myself")
            && words.any(|word| word.starts_with(mark.as_bytes()))
    })
}

/// CRC-16/XMODEM: polynomial 0x1021, from 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_takes_over_what_it_says_of_itself() {
        // What another node takes over, or this one gives away, is not this one's to grant.
        let nodes = b"aa 127.0.0.1:1@2 master - 0 1 2 connected 0-8191 [7-<-bb]\n\
            bb 127.0.0.1:3@4,host myself,master - 0 0 1 connected 8192-16383 [9000->-aa] [42-<-aa] [4-<-aa]\n";
        for (slot, expected) in [(42, true), (4, true), (7, false), (9000, false), (2, false), (420, false)] {
            assert_eq!(is_importing(nodes, slot), expected, "{slot}");
        }
        assert!(!is_importing(b"", 4));
    }

    #[test]
    fn slots_are_those_of_the_server() {
        // Keys that we took to be in one slot would be served where they are not.
        let cases: &[(&[u8], u16)] = &[
            (b"", 0),
            (b"123456789", 0x31c3),
            (b"a", 15495),
            (b"b", 3300),
            (b"{b}1", 3300),
            (b"x{b}{a}", 3300),
            (b"{}b", 6680),
            (b"{b", 6215),
            (b"b}{a", 1735),
            (b"{{b}}", 6215),
            (b"\0\xff{b}", 3300),
        ];
        for (key, slot) in cases {
            assert_eq!(slot_of(key), *slot, "{}", key.escape_ascii());
        }
    }
}
