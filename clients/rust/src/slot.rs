//! Which of the 16384 slots of a cluster a key lies in.

/// The slot of a key: of what stands within its first pair of braces, if anything does, else of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % 16384
}

fn tag_of(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let inner = &key[open + 1..];
    match inner.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(end) => &inner[..end],
    }
}

/// CRC-16/XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!([slot_of(b""), slot_of(b"foo"), slot_of(b"bar")], [0, 12182, 5061]);
    }

    #[test]
    fn a_key_with_a_tag_lies_in_the_slot_of_the_tag() {
        assert_eq!(slot_of(b"{foo}.lock"), slot_of(b"foo"));
        assert_eq!(slot_of(b"a{foo}b{bar}"), slot_of(b"foo"));
        // Empty, or not closed: no tag.
        for key in ["{}foo", "foo{}", "foo{", "}foo{"] {
            assert_eq!(slot_of(key.as_bytes()), crc16(key.as_bytes()) % 16384, "{key}");
        }
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }
}
