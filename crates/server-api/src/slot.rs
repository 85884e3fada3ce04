//! The slot of a key in a cluster, by arithmetic.
//!
//! The oldest servers have no function for it. To ask Valkey 9.1 by a call with keys of several slots would make it
//! refuse all later calls and scripts.

const SLOTS: u16 = 1 << 14;

/// The slot of a key. If the key has text in its first braces, that text decides, else the whole key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}')?;
        (len > 0).then_some(&rest[..len])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// True if this node is importing the slot, by what CLUSTER NODES says of the node itself.
pub(super) fn is_importing(nodes: &[u8], slot: u16) -> bool {
    let mark = format!("[{slot}-<-");
    of_itself(nodes).any(|word| word.starts_with(mark.as_bytes()))
}

/// True if this node has the slot, by the same.
pub(super) fn has(nodes: &[u8], slot: u16) -> bool {
    // Behind the number of the epoch and the state of the link: a slot, or the first and the last of several.
    of_itself(nodes).skip(5).any(|word| {
        let mut ends = word.split(|byte| *byte == b'-').map(|end| str::from_utf8(end).ok()?.parse::<u16>().ok());
        match (ends.next().flatten(), ends.next()) {
            (Some(only), None) => only == slot,
            (Some(first), Some(Some(last))) => (first..=last).contains(&slot),
            _ => false,
        }
    })
}

/// The words of CLUSTER NODES about the node itself, behind its flags.
fn of_itself(nodes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = nodes.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    let mut own = lines.filter_map(|mut words| {
        let flags = words.nth(2)?;
        flags.split(|byte| *byte == b',').any(|flag| flag == b"myself").then_some(words)
    });
    own.next().into_iter().flatten()
}

/// A name of the same slot as this key, which ends with this mark.
pub(super) fn stand_in(key: &[u8], mark: &str) -> Vec<u8> {
    let slot = slot_of(key);
    // Four values of the CRC are of one slot, and each is that of exactly one pair of bytes.
    let mut tags = (0..=u16::MAX / SLOTS).map(|part| before_crc16(part * SLOTS + slot));
    let tag = tags.find(|tag| !tag.contains(&b'}')).expect("a closing brace is not in all four");
    [b"{", &tag[..], b"}", mark.as_bytes()].concat()
}

/// The two bytes that have this CRC: the steps of [`crc16`], taken back.
fn before_crc16(crc: u16) -> [u8; 2] {
    let back = |crc: u16, _| if crc & 1 == 1 { (crc ^ 0x1021) >> 1 | 0x8000 } else { crc >> 1 };
    (0..16).fold(crc, back).to_be_bytes()
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
        // A slot that another node imports, or that this one gives away, is not this node's to grant.
        let nodes = b"aa 127.0.0.1:1@2 master - 0 1 2 connected 0-8191 [7-<-bb]\n\
            bb 127.0.0.1:3@4,host myself,master - 0 0 1 connected 8192-16383 [9000->-aa] [42-<-aa] [4-<-aa]\n";
        for (slot, expected) in [(42, true), (4, true), (7, false), (9000, false), (2, false), (420, false)] {
            assert_eq!(is_importing(nodes, slot), expected, "{slot}");
        }
        assert!(!is_importing(b"", 4));
    }

    #[test]
    fn a_node_has_the_slots_that_it_says_of_itself() {
        // A channel in another node's slot would be sent to nobody; one in a slot that moves away is this node's still.
        let nodes = b"aa 127.0.0.1:1@2 master - 0 1 2 connected 0-8191\n\
            bb 127.0.0.1:3@4 myself,master - 0 9000 3 connected 8192-8200 8300 9000-9001 [9000->-aa] [42-<-aa]\n";
        for (slot, expected) in
            [(8192, true), (8200, true), (8201, false), (8300, true), (9000, true), (0, false), (42, false), (3, false)]
        {
            assert_eq!(has(nodes, slot), expected, "{slot}");
        }
    }

    #[test]
    fn a_stand_in_is_of_the_same_slot() {
        // A client that is blocked on a name of another slot would be redirected for no reason, or never.
        let mut slots = vec![false; usize::from(SLOTS)];
        for n in 0..300_000 {
            let key = format!("key:{n}");
            let slot = slot_of(key.as_bytes());
            assert_eq!(slot_of(&stand_in(key.as_bytes(), &n.to_string())), slot, "{key}");
            slots[usize::from(slot)] = true;
        }
        assert!(slots.iter().all(|seen| *seen));
        assert_ne!(stand_in(b"key", "1"), stand_in(b"key", "2"));
    }

    #[test]
    fn slots_are_those_of_the_server() {
        // A wrong slot here would serve keys on a node that does not have them.
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
