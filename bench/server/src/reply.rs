//! Replies of RESP2, as much of them as clients of locks read.

use std::fmt::{Display, Formatter};

/// A reply, borrowed from the bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'a> {
    Null,
    Int(i64),
    /// A text of either kind.
    Text(&'a [u8]),
    /// An error, code first. An array with an error in it is that error.
    Error(&'a [u8]),
    /// Only its first text and its last one: the kind of a pub/sub message, and what it says.
    Array(&'a [u8], &'a [u8]),
}

impl Reply<'_> {
    /// The first reply in `bytes` and its length; nothing while it is not whole.
    pub fn parse(bytes: &[u8]) -> Option<(Reply<'_>, usize)> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let (line, body) = (&bytes[1..end - 1], end + 1);
        let number =
            || std::str::from_utf8(line).ok().and_then(|line| line.parse::<i64>().ok()).expect("a number of RESP");
        let reply = match bytes[0] {
            b':' => (Reply::Int(number()), body),
            b'+' => (Reply::Text(line), body),
            b'-' => (Reply::Error(line), body),
            b'$' | b'*' if number() < 0 => (Reply::Null, body),
            b'$' => {
                let stop = body + number() as usize;
                if bytes.len() < stop + 2 {
                    return None;
                }
                (Reply::Text(&bytes[body..stop]), stop + 2)
            }
            b'*' => array(bytes, body, number())?,
            other => panic!("a reply of RESP2 begins with {other:#x}"),
        };
        Some(reply)
    }
}

/// Takes what has come on a connection: calls this for each reply that is whole, and keeps the rest for the next time.
pub fn take_in<E>(rest: &mut Vec<u8>, fresh: &[u8], mut each: impl FnMut(Reply<'_>) -> Result<(), E>) -> Result<(), E> {
    let before = std::mem::take(rest);
    let joined;
    let bytes = if before.is_empty() {
        fresh
    } else {
        joined = [&before[..], fresh].concat();
        &joined
    };
    let mut at = 0;
    while let Some((reply, len)) = Reply::parse(&bytes[at..]) {
        each(reply)?;
        at += len;
    }
    *rest = bytes[at..].to_vec();
    Ok(())
}

fn array(bytes: &[u8], body: usize, items: i64) -> Option<(Reply<'_>, usize)> {
    let (mut first, mut last, mut error, mut at) = (&b""[..], &b""[..], None, body);
    for n in 0..items {
        let (item, len) = Reply::parse(&bytes[at..])?;
        match item {
            Reply::Text(text) if n == 0 => first = text,
            Reply::Text(text) => last = text,
            Reply::Error(text) => error = error.or(Some(text)),
            _ => {}
        }
        at += len;
    }
    Some((error.map_or(Reply::Array(first, last), Reply::Error), at))
}

impl Display for Reply<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Reply::Null => write!(f, "null"),
            Reply::Int(number) => write!(f, "{number}"),
            Reply::Text(text) | Reply::Error(text) => write!(f, "{}", text.escape_ascii()),
            Reply::Array(first, _) => write!(f, "an array that begins with {}", first.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_only_when_it_is_whole() {
        for (bytes, reply) in [
            (&b"$-1\r\n"[..], Reply::Null),
            (b"*-1\r\n", Reply::Null),
            (b":-17\r\n", Reply::Int(-17)),
            (b"+OK\r\n", Reply::Text(b"OK")),
            (b"$4\r\na\r\nb\r\n", Reply::Text(b"a\r\nb")),
            (b"-ERR no\r\n", Reply::Error(b"ERR no")),
            (b"*2\r\n$7\r\nmessage\r\n:1\r\n", Reply::Array(b"message", b"")),
            (b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\na\r\n", Reply::Array(b"message", b"a")),
            (b"*2\r\n+OK\r\n-ERR no\r\n", Reply::Error(b"ERR no")),
        ] {
            assert_eq!(Reply::parse(bytes), Some((reply, bytes.len())));
            let more = [bytes, b":1"].concat();
            assert_eq!(Reply::parse(&more), Some((reply, bytes.len())), "and no further");
            for cut in 0..bytes.len() {
                assert_eq!(Reply::parse(&bytes[..cut]), None, "{} bytes of {}", cut, bytes.escape_ascii());
            }
        }
    }
}
