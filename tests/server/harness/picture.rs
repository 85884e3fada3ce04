//! All locks of a server at one moment, to be compared with those of another moment or of another server.

use std::collections::BTreeMap;
use std::time::Instant;
use testbed::{Client, LockInfo, Server};

pub(crate) const DATABASES: [&str; 2] = ["0", "3"];
const READERS: usize = 300;
pub(crate) const KEYS: [&str; 8] =
    ["again", "both", "crowd", "dbl", "note", "plain", "upgraded", "\u{0}\u{ff}\r\n key"];

/// What a holder has that must not change by being saved.
pub(crate) type Hold = (String, i64, i64, i64, Option<String>);

/// What a lock has: its highest fence, and the holds by owner.
type Shown = (i64, BTreeMap<Vec<u8>, Hold>);

/// All locks of a server, by database and key. When each lease ends is apart, in [`Ttls`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) locks: BTreeMap<(String, String), Shown>,
    pub(crate) digests: Vec<Vec<String>>,
}

/// What is left of each lease, by database, key and owner.
pub(crate) type Ttls = BTreeMap<(String, String, Vec<u8>), i64>;

/// LOCK.INFO with all holders.
fn full_info(conn: &mut Client, key: &str) -> Option<LockInfo> {
    match conn.call(&["LOCK.INFO", key, "COUNT", "100000"]).unwrap() {
        redis::Value::Nil => None,
        value => Some(LockInfo::from(value)),
    }
}

/// All that a server holds.
pub(crate) fn picture(server: &Server) -> (Picture, Ttls) {
    let mut conn = server.connect();
    let (mut locks, mut ttls, mut digests) = (BTreeMap::new(), Ttls::new(), Vec::new());
    for db in DATABASES {
        conn.ok(&["SELECT", db]);
        let keys: Vec<String> = conn.get(&["KEYS", "*"]);
        for key in keys {
            let info = full_info(&mut conn, &key).unwrap_or_else(|| panic!("{key} is there but held by nobody"));
            assert_eq!(info.holding, info.holders.len());
            let mut holds = BTreeMap::new();
            for holder in info.holders {
                ttls.insert((db.to_owned(), key.clone(), holder.owner.clone()), holder.ttl_ms);
                let hold = (holder.mode, holder.reads, holder.writes, holder.fence, holder.note);
                holds.insert(holder.owner, hold);
            }
            locks.insert((db.to_owned(), key), (info.fence, holds));
        }
        let digest = [&["DEBUG", "DIGEST-VALUE"][..], &KEYS].concat();
        digests.push(conn.get(&digest));
    }
    (Picture { locks, digests }, ttls)
}

/// One lock of every shape.
pub(crate) fn fill(server: &Server) {
    let mut conn = server.connect();
    let mut run = |line: &[&str]| conn.int(line).unwrap_or_else(|| panic!("{line:?} was refused"));
    run(&["LOCK.ACQUIRE", "plain", "a", "PX", "600000"]);
    for _ in 0..3 {
        run(&["LOCK.ACQUIRE", "again", "a", "PX", "600000"]);
    }
    run(&["LOCK.RW", "upgraded", "a", "READ", "PX", "600000"]);
    run(&["LOCK.RW", "upgraded", "a", "WRITE", "PX", "600000"]);
    run(&["LOCK.RW", "both", "a", "WRITE", "PX", "600000"]);
    run(&["LOCK.RW", "both", "a", "READ", "PX", "600000"]);
    run(&["LOCK.RW", "both", "a", "READ", "PX", "600000"]);
    run(&["LOCK.ACQUIRE", "note", "a", "EX", "86400", "NOTE", "host 1, pid 2"]);
    run(&["LOCK.ACQUIRE", "dbl", "a", "PX", "600000", "NOTE", ""]);
    for reader in 0..READERS {
        let lease = (600_000 + reader).to_string();
        run(&["LOCK.RW", "crowd", &format!("reader {reader}"), "READ", "PX", &lease]);
    }
    // An owner of every byte there is, 256 of them.
    let owner: Vec<u8> = (0..=255).collect();
    let key = KEYS[7].as_bytes();
    conn.call(&[&b"LOCK.ACQUIRE"[..], key, &owner, b"PX", b"600000"]).unwrap();
    conn.ok(&["SELECT", "3"]);
    conn.int(&["LOCK.ACQUIRE", "plain", "of another database", "PX", "600000"]).unwrap();
}

/// No lease has become longer, nor shorter than by the time that passed since the earlier look began.
pub(crate) fn assert_running_on(before: &Ttls, after: &Ttls, began: Instant, how: &str) {
    let passed = i64::try_from(began.elapsed().as_millis()).unwrap() + 1;
    assert_eq!(before.len(), after.len(), "{how}");
    for (whose, ttl) in after {
        let was = before[whose];
        let kept = *ttl <= was && *ttl >= was - passed;
        assert!(kept, "{how}: {whose:?} had {was} ms left, {passed} ms later {ttl} ms");
    }
}
