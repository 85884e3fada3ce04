//! DUMP payloads, taken apart and sealed again. What the server checks itself (length and CRC) is made right, so that
//! only the module is left to notice what is wrong.

use crc::{CRC_64_REDIS, Crc};
use std::ops::Range;
use testbed::Client;

/// Two bytes RDB version, eight bytes CRC.
const FOOTER: usize = 2 + 8;
/// One byte type, nine bytes module id, one byte "a string follows".
const STRING_AT: usize = 1 + 9 + 1;

static CRC: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);

/// DUMP of a key that exists.
pub(crate) fn dump(conn: &mut Client, key: &str) -> Vec<u8> {
    let payload: Option<Vec<u8>> = redis::from_redis_value(conn.call(&["DUMP", key]).unwrap()).unwrap();
    payload.unwrap_or_else(|| panic!("nothing lies under {key}"))
}

/// RESTORE without a time to live.
pub(crate) fn restore(conn: &mut Client, key: &str, payload: &[u8]) -> Result<redis::Value, redis::RedisError> {
    conn.call(&[b"RESTORE", key.as_bytes(), b"0", payload])
}

/// RESTORE over what lies there.
pub(crate) fn restore_over(conn: &mut Client, key: &str, payload: &[u8]) -> Result<redis::Value, redis::RedisError> {
    conn.call(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"])
}

/// The same payload with a CRC that fits what it says now.
pub(crate) fn seal(mut payload: Vec<u8>) -> Vec<u8> {
    let end = payload.len() - 8;
    let sum = CRC.checksum(&payload[..end]);
    payload[end..].copy_from_slice(&sum.to_le_bytes());
    payload
}

/// Where the module's own byte string lies in a payload that was made with `rdbcompression no`.
pub(crate) fn own_string(payload: &[u8]) -> Range<usize> {
    assert_eq!((payload[0], payload[1], payload[10]), (7, 0x81, 5), "a module's value that begins with a string");
    // The server's variable length: 6 bits, 14 bits, or 32 bits.
    let (start, len) = match payload[STRING_AT] >> 6 {
        0 => (STRING_AT + 1, usize::from(payload[STRING_AT] & 0x3f)),
        1 => (STRING_AT + 2, usize::from(payload[STRING_AT] & 0x3f) << 8 | usize::from(payload[STRING_AT + 1])),
        _ => (STRING_AT + 5, u32::from_be_bytes(payload[STRING_AT + 1..STRING_AT + 5].try_into().unwrap()) as usize),
    };
    assert_eq!(payload[start + len], 0, "the end of the module's value");
    assert_eq!(payload.len(), start + len + 1 + FOOTER);
    start..start + len
}

/// The payload with another byte string of the module in the place of its own, sealed.
pub(crate) fn with_own_string(payload: &[u8], string: &[u8]) -> Vec<u8> {
    let mut made = payload[..STRING_AT].to_vec();
    // Always the 32-bit form of the length.
    made.push(0x80);
    made.extend_from_slice(&(string.len() as u32).to_be_bytes());
    made.extend_from_slice(string);
    made.extend_from_slice(&payload[own_string(payload).end..]);
    seal(made)
}
