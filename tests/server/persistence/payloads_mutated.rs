//! RESTORE of payloads that were changed at random, very many of them. The server lives, refuses what is no lock, and
//! what it accepts is the lock that the payload says.
//!
//! `REDIS_LOCK_PAYLOADS` says how many (100,000), `REDIS_LOCK_PAYLOADS_SEED` where chance begins; both are printed.

use crate::harness::dice::number_from;
use crate::harness::payload::{dump, own_string, seal, with_own_string};
use rand::prelude::IndexedRandom;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{RedisResult, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::{Client, Fields, Server, text_of};

/// As many in one go.
const BATCH: usize = 250;
/// What of a hold has its place behind the owner: counts, fence, two times, whether there is a note.
const NUMBERS: usize = 4 + 4 + 8 + 8 + 8 + 1;
/// The version, the sum, the lock's fence and the number of holds.
const HEAD: usize = 1 + 8 + 8 + 4;
/// A lease that lasts longer than the test.
const LONG_MS: u64 = 3_600_000;
const YEAR_US: u64 = 366 * 24 * 3600 * 1_000_000;

/// A hold as a payload says it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    reads: u64,
    writes: u64,
    fence: u64,
    left_ms: u64,
    note: Option<Vec<u8>>,
}

/// A lock as a payload says it: its fence, and its holds by owner.
type SaidLock = (u64, BTreeMap<Vec<u8>, Said>);

/// A key with what was accepted there, as a payload. Also as a digest, if that is known to be of no hold that is over.
type Accepted<'a> = (&'a [u8], SaidLock, Vec<u8>, Option<Value>);

/// Takes numbers and bytes off the front.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn number(&mut self, len: usize) -> Option<u64> {
        Some(self.bytes(len)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let len = self.number(2)? as usize;
        self.bytes(len).map(<[u8]>::to_vec)
    }
}

/// FNV-1a of all but itself.
fn sum(string: &[u8]) -> u64 {
    let summed = string[..1].iter().chain(&string[9..]);
    summed.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The lock that a byte string of the module's says, by the letter of its form; None when it says none.
fn said(string: &[u8]) -> Option<SaidLock> {
    let mut rest = Rest(string);
    if rest.number(1)? != 1 || rest.number(8)? != sum(string) {
        return None;
    }
    let fence = rest.number(8)?;
    let count = rest.number(4)?;
    let (mut holds, mut fences) = (BTreeMap::new(), BTreeSet::new());
    for _ in 0..count {
        let owner = rest.text().filter(|owner| !owner.is_empty() && owner != b"*")?;
        let (reads, writes, own_fence) = (rest.number(4)?, rest.number(4)?, rest.number(8)?);
        let (_wall_deadline_ms, left_ms) = (rest.number(8)?, rest.number(8)?);
        let note = match rest.number(1)? {
            0 => None,
            1 => Some(rest.text()?),
            _ => return None,
        };
        let in_order = holds.keys().next_back().is_none_or(|last| *last < owner);
        let alone = writes == 0 || count == 1;
        if !in_order
            || !alone
            || reads + writes == 0
            || own_fence == 0
            || own_fence > fence
            || !fences.insert(own_fence)
        {
            return None;
        }
        holds.insert(owner, Said { reads, writes, fence: own_fence, left_ms, note });
    }
    (!holds.is_empty() && rest.0.is_empty() && fence < 1 << 53).then_some((fence, holds))
}

/// Locks of many shapes, by DUMP.
fn shapes(conn: &mut Client, dice: &mut StdRng) -> Vec<Vec<u8>> {
    (0..60)
        .map(|shape| {
            let readers = if shape % 2 == 0 { 1 } else { dice.random_range(2..9) };
            for reader in 0..readers {
                let len = *[1, 2, 8, 36, 40, 41, 256].choose(dice).unwrap();
                // Any bytes, but no two alike, and none that the server is to make.
                let mut owner: Vec<u8> = (0..len).map(|_| dice.random()).collect();
                owner[0] = b'a' + reader;
                let mode: &[u8] = if readers == 1 && dice.random() { b"WRITE" } else { b"READ" };
                let note: Vec<u8> = (0..*[0, 1, 5, 256].choose(dice).unwrap()).map(|_| dice.random()).collect();
                let lease = [LONG_MS, 2 * LONG_MS, 86_400_000].choose(dice).unwrap().to_string();
                let mut command: Vec<&[u8]> = vec![b"LOCK.RW", b"shape", &owner, mode, b"PX", lease.as_bytes()];
                if dice.random() {
                    command.extend([&b"NOTE"[..], &note]);
                }
                if dice.random_ratio(1, 3) {
                    command.extend([&b"SESSION"[..], b"1000"]);
                }
                for _ in 0..dice.random_range(1..4) {
                    conn.call(&command).unwrap();
                }
                if readers == 1 && dice.random() {
                    command[3] = b"READ";
                    conn.call(&command).unwrap();
                }
            }
            let payload = dump(conn, "shape");
            conn.int(&["DEL", "shape"]);
            payload
        })
        .collect()
}

/// Changes bytes wherever it pleases, once or a few times.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], dice: &mut StdRng) {
    for _ in 0..*[1, 1, 1, 2, 3, 8].choose(dice).unwrap() {
        let at = dice.random_range(0..=bytes.len().saturating_sub(1));
        match dice.random_range(0..9) {
            _ if bytes.is_empty() => bytes.push(dice.random()),
            0 | 1 => bytes[at] ^= 1 << dice.random_range(0..8),
            2 => bytes[at] = dice.random(),
            3 => bytes[at] = *[0, 1, 2, b'*', 0x7f, 0x80, 0xff].choose(dice).unwrap(),
            4 => bytes.truncate(at),
            5 => bytes.insert(at, dice.random()),
            6 => drop(bytes.remove(at)),
            7 => {
                // A piece of another, over this or in between.
                let from = dice.random_range(0..=other.len());
                let piece = &other[from..dice.random_range(from..=other.len())];
                let end = if dice.random() { at } else { (at + piece.len()).min(bytes.len()) };
                bytes.splice(at..end, piece.iter().copied());
            }
            _ => {
                // A number that is as great as it can be, or as small.
                let end = (at + *[2, 4, 8].choose(dice).unwrap()).min(bytes.len());
                bytes[at..end].fill(if dice.random() { 0xff } else { 0 });
            }
        }
    }
}

/// Changes what the module's string says, field by field: most of these are locks still, or nearly.
fn retell(string: &mut Vec<u8>, dice: &mut StdRng) {
    let mut starts = vec![HEAD];
    let mut rest = Rest(&string[HEAD..]);
    while !rest.0.is_empty() {
        rest.text().unwrap();
        if rest.bytes(NUMBERS).unwrap()[NUMBERS - 1] == 1 {
            rest.text().unwrap();
        }
        starts.push(string.len() - rest.0.len());
    }
    let count = starts.len() - 1;
    let one = dice.random_range(0..count);
    let (start, end) = (starts[one], starts[one + 1]);
    let numbers = start + 2 + usize::from(string[start]) + 256 * usize::from(string[start + 1]);
    let flip = 1 << dice.random_range(0..8);
    match dice.random_range(0..9) {
        0 if dice.random() => string[start + 2] = b'*',
        0 => string[start + 2] ^= flip,
        1 => string[start] ^= flip,
        2 => string[numbers + dice.random_range(0..8)] ^= flip,
        3 => string[numbers + 8 + dice.random_range(0..8)] ^= flip,
        4 => string[numbers + 16 + dice.random_range(0..16)] ^= flip,
        5 => string[9 + dice.random_range(0..8)] ^= flip,
        6 => string[17] = dice.random_range(0..12),
        7 => {
            // Said twice.
            let again = string[start..end].to_vec();
            string.extend(again);
            string[17] += 1;
        }
        _ => {
            string.drain(start..end);
            string[17] -= 1;
        }
    }
}

/// A changed payload, and whether the server must find the lock that it says in it; None where it may not even ask the
/// module.
fn made(payloads: &[Vec<u8>], dice: &mut StdRng) -> (Vec<u8>, Option<Option<SaidLock>>) {
    let payload = payloads.choose(dice).unwrap();
    let other = payloads.choose(dice).unwrap();
    if dice.random_ratio(1, 5) {
        // Around the module's string too. Not the first byte, which is the type of the value: other types are the
        // server's own.
        let (end, mut body) = (payload.len() - 10, payload[1..payload.len() - 10].to_vec());
        mutate(&mut body, &other[1..other.len() - 10], dice);
        return (seal([&payload[..1], &body, &payload[end..]].concat()), None);
    }
    let mut string = payload[own_string(payload)].to_vec();
    if dice.random() {
        retell(&mut string, dice);
    } else {
        mutate(&mut string, &other[own_string(other)], dice);
    }
    if string.len() >= 9 && dice.random_ratio(9, 10) {
        let sum = sum(&string);
        string[1..9].copy_from_slice(&sum.to_le_bytes());
    }
    let lock = if string.len() >= 9 { said(&string) } else { None };
    (with_own_string(payload, &string), Some(lock))
}

/// Sends many commands at once.
fn all(conn: &mut Client, commands: &[Vec<&[u8]>]) -> Vec<RedisResult<Value>> {
    let mut packed = Vec::new();
    for command in commands {
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        packed.extend(cmd.get_packed_command());
    }
    conn.0.send_packed_command(&packed).unwrap();
    commands.iter().map(|_| conn.0.recv_response().and_then(Value::extract_error)).collect()
}

/// The lock as LOCK.INFO shows it.
fn shown(info: Value) -> SaidLock {
    let info = Fields::from(info);
    let Value::Array(holders) = info.value("holders") else { panic!("an array") };
    let of = |holder: Value| {
        let holder = Fields::from(holder);
        let [reads, writes, fence, left_ms] = ["reads", "writes", "fence", "ttl_ms"].map(|name| holder.get(name));
        (holder.get("owner"), Said { reads, writes, fence, left_ms, note: holder.get("note") })
    };
    (info.get("fence"), holders.into_iter().map(of).collect())
}

/// How it went.
#[derive(Debug, Default)]
struct Tally {
    accepted: usize,
    refused: usize,
    /// Of these not even the module was asked, or it was asked half-way.
    around: usize,
}

/// Restores these, reads what is there, sends it on, and lets every owner release it.
fn restore_all(conn: &mut Client, payloads: &[Vec<u8>], dice: &mut StdRng, count: usize, tally: &mut Tally) {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    let batch: Vec<_> = (0..count).map(|_| made(payloads, dice)).collect();
    let names: Vec<Vec<u8>> = (0..count).map(|n| format!("k{n}").into_bytes()).collect();
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    for (name, (payload, _)) in names.iter().zip(&batch) {
        commands.push(vec![b"RESTORE", name, b"0", payload]);
        commands.push(vec![b"LOCK.INFO", name, b"COUNT", b"4294967295"]);
        commands.push(vec![b"DUMP", name]);
        commands.push(vec![b"DEBUG", b"DIGEST-VALUE", name]);
    }
    let mut replies = all(conn, &commands).into_iter();
    let mut held: Vec<Accepted<'_>> = Vec::new();
    for (name, (payload, expected)) in names.iter().zip(&batch) {
        let [restored, info, dumped, digest] = [(); 4].map(|()| replies.next().unwrap());
        let shows = || format!("{}: {restored:?} {info:?}", payload.escape_ascii());
        match &restored {
            Ok(_) => tally.accepted += 1,
            Err(error) => {
                tally.refused += 1;
                assert_eq!(text_of(error), "ERR Bad data format", "{}", shows());
            }
        }
        let Some(expected) = expected else {
            tally.around += 1;
            // What else there is of the server's own is no lock.
            if let (Ok(_), Ok(info)) = (&restored, &info)
                && *info != Value::Nil
            {
                let lock = shown(info.clone());
                assert_sound(&lock, &shows);
                let Ok(Value::BulkString(dumped)) = dumped else { panic!("{dumped:?}") };
                held.push((name, lock, dumped, None));
            }
            continue;
        };
        let Some(expected) = expected.as_ref().filter(|(fence, _)| *fence <= now_us + YEAR_US) else {
            assert!(restored.is_err(), "accepted {}", shows());
            continue;
        };
        assert!(restored.is_ok(), "refused {} {expected:?}", shows());
        let mut lock = match info.as_ref().unwrap() {
            Value::Nil => (expected.0, BTreeMap::new()),
            info => shown(info.clone()),
        };
        // What was left of some may be over.
        for (owner, said) in &expected.1 {
            match lock.1.get_mut(owner) {
                Some(hold) => {
                    let lasts_ms = said.left_ms.min(315_360_000_000);
                    assert!(hold.left_ms <= lasts_ms && hold.left_ms + 60_000 > lasts_ms, "{}", shows());
                    hold.left_ms = said.left_ms;
                }
                None => assert!(said.left_ms < 60_000, "{owner:?} of {}", shows()),
            }
        }
        assert!(lock.1.iter().all(|(owner, hold)| expected.1.get(owner) == Some(hold)), "{}", shows());
        if lock.1.is_empty() {
            continue;
        }
        assert_eq!(lock.0, expected.0, "{}", shows());
        assert_sound(&lock, &shows);
        match (dumped, digest) {
            (Ok(Value::BulkString(dumped)), Ok(digest)) => {
                // A hold that is over is shown no more, and is in the digest until its end has been seen to. So the
                // digest is compared only where it is known that there is none.
                let digest = (lock.1.len() == expected.1.len()).then_some(digest);
                held.push((name, lock, dumped, digest));
            }
            // It ended between two of the commands.
            _ => assert!(lock.1.values().any(|hold| hold.left_ms < 60_000), "{}", shows()),
        }
    }
    send_on(conn, &held);
    release(conn, &names, &held, &batch);
}

fn assert_sound((fence, holds): &SaidLock, shows: &dyn Fn() -> String) {
    let fences: BTreeSet<u64> = holds.values().map(|hold| hold.fence).collect();
    let sound = holds
        .values()
        .all(|hold| hold.reads + hold.writes > 0 && hold.fence <= *fence && (hold.writes == 0 || holds.len() == 1));
    assert!(sound && fences.len() == holds.len() && !holds.is_empty(), "{}", shows());
}

/// What was accepted goes to another key and is the same there.
fn send_on(conn: &mut Client, held: &[Accepted<'_>]) {
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    for (_, _, payload, _) in held {
        commands.push(vec![b"RESTORE", b"again", b"0", payload]);
        commands.push(vec![b"DEBUG", b"DIGEST-VALUE", b"again"]);
        commands.push(vec![b"UNLINK", b"again"]);
    }
    let mut replies = all(conn, &commands).into_iter();
    for (_, lock, payload, digest) in held {
        let [restored, again, _] = [(); 3].map(|()| replies.next().unwrap());
        let shows = || format!("{lock:?} {}", payload.escape_ascii());
        assert!(restored.is_ok(), "{restored:?}: {}", shows());
        if let Some(digest) = digest
            && lock.1.values().all(|hold| hold.left_ms >= 60_000)
        {
            assert_eq!(again.as_ref().unwrap(), digest, "{}", shows());
        }
    }
}

/// Every owner gives back what it has: no key may be left. What is left of the others is deleted.
fn release(conn: &mut Client, names: &[Vec<u8>], held: &[Accepted<'_>], batch: &[(Vec<u8>, Option<Option<SaidLock>>)]) {
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    for (name, lock, ..) in held {
        commands.extend(lock.1.keys().map(|owner| vec![&b"LOCK.RELEASE"[..], name, owner, b"ALL"]));
        commands.push(vec![b"EXISTS", name]);
    }
    let mut replies = all(conn, &commands).into_iter();
    for (_, lock, ..) in held {
        for (owner, hold) in &lock.1 {
            let left = replies.next().unwrap().unwrap();
            assert!(left == Value::Int(0) || hold.left_ms < 60_000, "{owner:?} of {lock:?}: {left:?}");
        }
        assert_eq!(replies.next().unwrap().unwrap(), Value::Int(0), "{lock:?}");
    }
    // Keys that damage around the module's string may have turned into anything, and keys whose lease was over.
    let rest: Vec<Vec<&[u8]>> = names.iter().zip(batch).map(|(name, _)| vec![&b"DEL"[..], name]).collect();
    all(conn, &rest);
}

#[test]
fn a_hundred_thousand_mutated_payloads_are_refused_or_are_the_lock_they_say() {
    // What could go wrong: the server dies, or holds a lock that no sequence of commands could have made.
    let count = number_from("REDIS_LOCK_PAYLOADS").unwrap_or(100_000) as usize;
    let seed = number_from("REDIS_LOCK_PAYLOADS_SEED").unwrap_or_else(rand::random);
    println!("REDIS_LOCK_PAYLOADS={count} REDIS_LOCK_PAYLOADS_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let (_server, mut conn) = Server::setup().option("rdbcompression", "no").connected();
    let payloads = shapes(&mut conn, &mut dice);
    let (mut tally, mut left) = (Tally::default(), count);
    while left > 0 {
        let batch = left.min(BATCH);
        restore_all(&mut conn, &payloads, &mut dice, batch, &mut tally);
        assert_eq!((conn.int(&["DBSIZE"]), conn.info("lock", "lock_leases").as_str()), (Some(0), "0"));
        left -= batch;
    }
    println!("{tally:?}");
    assert!(tally.accepted > count / 20 && tally.refused > count / 4, "{tally:?} tells little");
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "k", "o"]).map(|fence| fence > 0), Some(true));
}
