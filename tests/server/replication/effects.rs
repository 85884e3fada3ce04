//! What replicas and the append-only file receive: facts, not requests. Word by word, for every command and option.

use crate::harness::stream::Stream;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::{Client, Server, wait_for};

/// A primary with an append-only file and a replica connection that reads what it sends.
struct Wire {
    server: Server,
    conn: Client,
    stream: Stream,
    in_file: usize,
    /// The fence that an owner was last given on a key.
    fences: HashMap<(String, String), i64>,
    began: u64,
}

fn wall_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

impl Wire {
    fn new() -> Wire {
        let server = Server::setup().option("appendonly", "yes").option("repl-diskless-sync-delay", "0").start();
        let (conn, stream) = (server.connect(), Stream::of(&server));
        Wire { server, conn, stream, in_file: 0, fences: HashMap::new(), began: wall_ms() }
    }

    /// What was sent since the last call; the file has the same.
    fn sent(&mut self) -> Vec<Vec<String>> {
        let sent = self.stream.commands(&self.server);
        let file = self.server.aof_tail();
        assert_eq!(&file[self.in_file..], sent, "replicas and file must receive the same");
        self.in_file = file.len();
        sent
    }

    /// Runs a command and compares what is sent with what is expected: words as they are, but for three. `F` is the
    /// fence that this owner was given last on this key, `W` the deadline on the wall clock. `L...` is what is left of
    /// the lease: `L=` exactly that, `L<` some less, for the time since the grant.
    fn check(&mut self, command: &str, expected: &[&str]) {
        let words: Vec<&str> = command.split(' ').collect();
        let before = wall_ms();
        let reply = self.conn.call(&words);
        if let ("LOCK.ACQUIRE" | "LOCK.RW", Ok(redis::Value::Int(fence))) = (words[0], &reply) {
            self.fences.insert((words[1].to_owned(), words[2].to_owned()), *fence);
        }
        let sent = self.sent();
        assert_eq!(sent.len(), expected.len(), "{command}: {reply:?}, sent {sent:?}, expected {expected:?}");
        for (sent, expected) in sent.iter().zip(expected) {
            self.compare(command, sent, expected, before);
        }
    }

    fn compare(&self, command: &str, sent: &[String], expected: &str, before: u64) {
        let words: Vec<&str> = expected.split(' ').collect();
        assert_eq!(sent.len(), words.len(), "{command}: sent {sent:?}, expected {expected:?}");
        for (at, (word, pattern)) in sent.iter().zip(words).enumerate() {
            let number = || word.parse::<u64>().unwrap_or_else(|_| panic!("{command}: {word:?} in {sent:?}"));
            let as_expected = match pattern {
                "F" => self.fences.get(&(sent[1].clone(), sent[2].clone())).map(i64::to_string).as_ref() == Some(word),
                "W" => {
                    // Deadline and rest say the same, as the clock stood when it was sent. Both are rounded up.
                    let left: u64 = sent[at + 1].parse().unwrap();
                    (before..=wall_ms() + 2).contains(&(number() - left))
                }
                _ => match pattern.strip_prefix("L=").map(str::parse::<u64>) {
                    Some(exact) => number() == exact.unwrap(),
                    None => match pattern.strip_prefix("L<").map(str::parse::<u64>) {
                        Some(most) => {
                            let most = most.unwrap();
                            (most.saturating_sub(wall_ms() - self.began)..=most).contains(&number())
                        }
                        None => word == pattern,
                    },
                },
            };
            assert!(as_expected, "{command}: {word:?} is not {pattern:?} in {sent:?}");
        }
    }
}

#[test]
fn every_change_to_a_hold_is_sent_as_one_fact() {
    // A request sent as it came would be judged again by a replica with another clock and another view.
    let mut wire = Wire::new();
    for (command, expected) in [
        ("LOCK.ACQUIRE k a PX 10000", &["LOCK.HOLD k a 0 1 F W L=10000"][..]),
        // Again: the absolute state, and the later of the two deadlines.
        ("LOCK.ACQUIRE k a PX 10", &["LOCK.HOLD k a 0 2 F W L<10000"]),
        ("LOCK.ACQUIRE k a EX 60", &["LOCK.HOLD k a 0 3 F W L=60000"]),
        ("LOCK.ACQUIRE k a NOTE job", &["LOCK.HOLD k a 0 4 F W L<60000 job"]),
        // The note stays.
        ("LOCK.EXTEND k a PX 20000", &["LOCK.HOLD k a 0 4 F W L=20000 job"]),
        ("LOCK.EXTEND k a EX 30", &["LOCK.HOLD k a 0 4 F W L=30000 job"]),
        ("LOCK.RW k a READ PX 1", &["LOCK.HOLD k a 1 4 F W L<30000 job"]),
        ("LOCK.RW k a WRITE NOTE other", &["LOCK.HOLD k a 1 5 F W L=30000 other"]),
        ("LOCK.EXTEND k a EX 30 NOTE 40%", &["LOCK.HOLD k a 1 5 F W L=30000 40%"]),
        // An empty one takes it away.
        ("LOCK.EXTEND k a EX 30 NOTE ", &["LOCK.HOLD k a 1 5 F W L=30000"]),
        ("LOCK.EXTEND k a EX 30 NOTE other", &["LOCK.HOLD k a 1 5 F W L=30000 other"]),
        ("LOCK.RELEASE k a WRITE", &["LOCK.HOLD k a 1 4 F W L<30000 other"]),
        ("LOCK.RELEASE k a WRITE TO 2", &["LOCK.HOLD k a 1 2 F W L<30000 other"]),
        // Downgraded: same fence.
        ("LOCK.RELEASE k a WRITE ALL", &["LOCK.HOLD k a 1 0 F W L<30000 other"]),
        ("LOCK.RW k b READ PX 5000", &["LOCK.HOLD k b 1 0 F W L=5000"]),
        ("LOCK.RELEASE k a", &["LOCK.HOLD k a 0 0 F"]),
        // Upgraded: a new fence.
        ("LOCK.RW k b WRITE PX 6000", &["LOCK.HOLD k b 1 1 F W L=6000"]),
        ("LOCK.RELEASE k b ALL", &["LOCK.HOLD k b 0 0 F"]),
        // The default lease.
        ("LOCK.ACQUIRE k c", &["LOCK.HOLD k c 0 1 F W L=30000"]),
        ("LOCK.RELEASE k c TO 0", &["LOCK.HOLD k c 0 0 F"]),
        // What the server does to keys goes its own way.
        ("LOCK.ACQUIRE k d PX 10000", &["LOCK.HOLD k d 0 1 F W L=10000"]),
        ("RENAME k r", &["RENAME k r"]),
        ("LOCK.ACQUIRE r d PX 10000", &["LOCK.HOLD r d 0 2 F W L=10000"]),
        ("DEL r", &["DEL r"]),
    ] {
        wire.check(command, expected);
    }
}

#[test]
fn a_release_of_a_named_fence_is_sent_like_any_other() {
    // FENCE is a condition for the primary alone; a replica has nothing to compare.
    let mut wire = Wire::new();
    wire.check("LOCK.ACQUIRE k a PX 10000", &["LOCK.HOLD k a 0 1 F W L=10000"]);
    let fence = wire.fences[&("k".to_owned(), "a".to_owned())];
    wire.check(&format!("LOCK.EXTEND k a PX 20000 FENCE {fence}"), &["LOCK.HOLD k a 0 1 F W L=20000"]);
    wire.check(&format!("LOCK.EXTEND k a PX 20000 FENCE {}", fence + 1), &[]);
    wire.check(&format!("LOCK.RELEASE k a FENCE {}", fence - 1), &[]);
    wire.check(&format!("LOCK.RELEASE k a FENCE {fence}"), &["LOCK.HOLD k a 0 0 F"]);
}

#[test]
fn the_deadline_on_the_wall_is_exact() {
    // The first fence is the wall clock at the grant, in microseconds, when the fence clock does not jump at the start.
    // Deadline and fence must agree on the time.
    let mut wire = Wire::new();
    wire.conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "0"]);
    let fence = wire.conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "12345"]).unwrap();
    let deadline = (fence + 12_345_000 + 999) / 1000;
    let expected = ["LOCK.HOLD", "k", "a", "0", "1", &fence.to_string(), &deadline.to_string(), "12345"];
    assert_eq!(wire.sent(), [expected.map(str::to_owned).to_vec()]);
}

#[test]
fn a_record_is_a_few_words_that_a_person_can_read() {
    // The form is a promise: files and nodes of other versions have it. Each word more costs the server a thousand
    // instructions.
    let (server, mut conn) = Server::setup().option("appendonly", "yes").connected();
    conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "0"]);
    let mut granted = |command: &str| {
        let fence = conn.int(&command.split(' ').collect::<Vec<_>>()).unwrap();
        (fence, (fence + 12_345_000 + 999) / 1000)
    };
    let (writer, writes_until) = granted("LOCK.ACQUIRE k a PX 12345");
    granted("LOCK.RELEASE k a");
    let (reader, reads_until) = granted("LOCK.RW k b READ PX 12345 NOTE n");
    granted("LOCK.RELEASE k b");
    let expected = [
        format!("LOCK.HOLD k a V1W1F{writer}D{writes_until}L12345"),
        format!("LOCK.HOLD k V1F{writer}"),
        format!("LOCK.HOLD k b V1R1F{reader}D{reads_until}L12345 n"),
        format!("LOCK.HOLD k b V1F{reader}"),
    ];
    let file: Vec<String> = server.raw_aof_tail().iter().map(|command| command.join(" ")).collect();
    assert_eq!(file, expected);
}

#[test]
fn what_is_refused_or_changes_nothing_sends_nothing() {
    // Every client that polls would fill the file and the links.
    let mut wire = Wire::new();
    wire.check("LOCK.ACQUIRE k a PX 60000", &["LOCK.HOLD k a 0 1 F W L=60000"]);
    wire.check("LOCK.RW r a READ PX 60000", &["LOCK.HOLD r a 1 0 F W L=60000"]);
    wire.check("LOCK.RW r b READ PX 60000", &["LOCK.HOLD r b 1 0 F W L=60000"]);
    wire.check("SET string v", &["SET string v"]);
    for refused in [
        "LOCK.ACQUIRE k b",
        "LOCK.ACQUIRE k *",
        "LOCK.RW k b READ",
        "LOCK.RW k b WRITE",
        // The upgrade of a reader that is not alone.
        "LOCK.RW r a WRITE",
        "LOCK.RELEASE k b",
        "LOCK.RELEASE none b",
        // A mode that it does not hold, and a count that is reached already.
        "LOCK.RELEASE k a READ",
        "LOCK.RELEASE k a TO 1",
        "LOCK.RELEASE k a WRITE TO 4294967295",
        "LOCK.RELEASE k a FENCE 1",
        "LOCK.EXTEND k b PX 5",
        "LOCK.EXTEND none b PX 5",
        "LOCK.EXTEND k a PX 5 FENCE 1",
        "LOCK.INFO k",
        "LOCK.INFO none",
        "LOCK.ACQUIRE string a",
        "LOCK.ACQUIRE k a PX 0",
        "LOCK.ACQUIRE k a PX 1 EX 1",
        "LOCK.ACQUIRE k a NONSENSE",
        "LOCK.HOLD k a 0 0",
        "COPY k copy",
    ] {
        wire.check(refused, &[]);
    }
    // The release that is refused for being unclear.
    wire.check("LOCK.RW k a READ", &["LOCK.HOLD k a 1 1 F W L<60000"]);
    wire.check("LOCK.RELEASE k a", &[]);
}

#[test]
fn an_owner_that_the_server_makes_is_sent_by_its_name() {
    // A replica that made one itself would make another.
    let mut wire = Wire::new();
    let (owner, fence): (String, i64) = wire.conn.get(&["LOCK.ACQUIRE", "k", "*", "PX", "10000"]);
    let sent = wire.sent();
    assert_eq!(sent[0][..6], ["LOCK.HOLD", "k", &owner, "0", "1", &fence.to_string()]);
    assert_eq!((sent.len(), sent[0].len(), owner.len()), (1, 8, 32));
}

#[test]
fn any_bytes_are_sent_as_they_are() {
    // Names are bytes: a NUL must not end one, an 0xFF must not be replaced, a note of nothing is a note.
    let mut wire = Wire::new();
    let (key, owner, note): (&[u8], &[u8], &[u8]) = (b"k\0\xff\r\n", b"\0o \xfe", b"%s\n\0");
    let latin = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
    wire.conn.call(&[b"LOCK.ACQUIRE", key, owner, b"NOTE", note]).unwrap();
    let sent = wire.sent();
    assert_eq!([&sent[0][1], &sent[0][2], &sent[0][8]], [&latin(key), &latin(owner), &latin(note)]);
    wire.conn.call(&[b"LOCK.ACQUIRE", key, owner, b"NOTE", b""]).unwrap();
    let sent = wire.sent();
    assert_eq!((sent[0].len(), sent[0][8].as_str()), (9, ""));
}

#[test]
fn a_lapse_is_sent_as_the_removal_of_the_hold() {
    // The primary alone ends leases; without the effect a replica would keep the key for ever.
    let mut wire = Wire::new();
    let fence = wire.conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "30"]).unwrap().to_string();
    wait_for("the lease to end", || wire.conn.info("lock", "lock_lapsed") == "1");
    let sent = wire.sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[1], ["LOCK.HOLD", "k", "a", "0", "0", &fence]);
}

#[test]
fn several_effects_of_one_step_are_sent_as_one() {
    // Between the end of one hold and the grant to another no replica may see the lock free.
    let mut wire = Wire::new();
    let mut pipe = redis::pipe();
    pipe.cmd("LOCK.RW").arg(&["k", "a", "READ", "PX", "50"]);
    pipe.cmd("LOCK.RW").arg(&["k", "b", "READ", "PX", "60"]);
    // The timer does not run before the next command settles the key.
    pipe.cmd("DEBUG").arg(&["SLEEP", "0.1"]).ignore();
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "c", "PX", "10000"]);
    let fences: Vec<i64> = pipe.query(&mut wire.conn.0).unwrap();
    wire.fences.insert(("k".to_owned(), "c".to_owned()), fences[2]);
    let sent = wire.sent();
    assert_eq!(sent.len(), 7, "{sent:?}");
    assert_eq!(sent[2], ["MULTI"]);
    // The one that ended first goes first.
    assert_eq!(sent[3], ["LOCK.HOLD", "k", "a", "0", "0", &fences[0].to_string()]);
    assert_eq!(sent[4], ["LOCK.HOLD", "k", "b", "0", "0", &fences[1].to_string()]);
    wire.compare("LOCK.ACQUIRE", &sent[5], "LOCK.HOLD k c 0 1 F W L=10000", wire.began);
    assert_eq!(sent[6], ["EXEC"]);
}

#[test]
fn a_refused_request_still_sends_what_settling_ended() {
    // The lapse has happened whatever becomes of the request: unsent, the replica would keep the hold.
    let mut wire = Wire::new();
    let mut pipe = redis::pipe();
    pipe.cmd("LOCK.RW").arg(&["k", "a", "READ", "PX", "50"]);
    pipe.cmd("LOCK.RW").arg(&["k", "b", "READ", "PX", "10000"]);
    pipe.cmd("DEBUG").arg(&["SLEEP", "0.1"]).ignore();
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "c"]);
    let replies: Vec<Option<i64>> = pipe.query(&mut wire.conn.0).unwrap();
    assert_eq!(replies[2], None);
    let sent = wire.sent();
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert_eq!(sent[2], ["LOCK.HOLD", "k", "a", "0", "0", &replies[0].unwrap().to_string()]);
}

#[test]
fn a_transaction_and_a_script_send_facts_too() {
    // Inside EXEC and Lua the server collects what is sent; nothing of the request itself may get in.
    let mut wire = Wire::new();
    let mut pipe = redis::pipe();
    pipe.atomic();
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "a", "PX", "10000"]);
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "b"]);
    pipe.cmd("LOCK.RELEASE").arg(&["k", "a"]);
    let replies: (i64, Option<i64>, i64) = pipe.query(&mut wire.conn.0).unwrap();
    assert_eq!((replies.1, replies.2), (None, 0));
    wire.fences.insert(("k".to_owned(), "a".to_owned()), replies.0);
    let sent = wire.sent();
    assert_eq!((sent.len(), &sent[0][0], &sent[3][0]), (4, &"MULTI".to_owned(), &"EXEC".to_owned()), "{sent:?}");
    wire.compare("EXEC", &sent[1], "LOCK.HOLD k a 0 1 F W L=10000", wire.began);
    wire.compare("EXEC", &sent[2], "LOCK.HOLD k a 0 0 F", wire.began);

    let script = "local f = redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', 10000)
                  redis.call('LOCK.ACQUIRE', KEYS[1], 'b')
                  redis.call('LOCK.RELEASE', KEYS[1], 'a')
                  return f";
    let fence = wire.conn.int(&["EVAL", script, "1", "k"]).unwrap();
    wire.fences.insert(("k".to_owned(), "a".to_owned()), fence);
    let sent = wire.sent();
    assert_eq!((sent.len(), &sent[0][0], &sent[3][0]), (4, &"MULTI".to_owned(), &"EXEC".to_owned()), "{sent:?}");
    wire.compare("EVAL", &sent[1], "LOCK.HOLD k a 0 1 F W L=10000", wire.began);
    wire.compare("EVAL", &sent[2], "LOCK.HOLD k a 0 0 F", wire.began);
}

#[test]
fn a_rewritten_file_has_the_same_command_once_for_each_hold() {
    // The file must be read by the same code as the stream, and must not grow with what is over.
    let (server, mut conn) =
        Server::setup().option("appendonly", "yes").option("aof-use-rdb-preamble", "no").connected();
    let mut fences = Vec::new();
    for reader in ["a", "b"] {
        conn.int(&["LOCK.RW", "k", reader, "READ", "PX", "60000"]).unwrap();
        fences.push(conn.int(&["LOCK.RW", "k", reader, "READ", "PX", "60000", "NOTE", "n"]).unwrap());
    }
    conn.int(&["LOCK.ACQUIRE", "gone", "a"]);
    conn.int(&["LOCK.RELEASE", "gone", "a"]);
    conn.get::<String>(&["BGREWRITEAOF"]);
    assert!(server.aof_tail().is_empty(), "all is in the base");
    let base = std::fs::read_dir(server.dir().join("appendonlydir")).unwrap().map(|entry| entry.unwrap().path());
    let base = base.filter(|path| path.to_string_lossy().ends_with(".base.aof")).max().unwrap();
    let commands = testbed::parse_commands(&std::fs::read(base).unwrap());
    let commands = testbed::Speller::default().spell_all(commands);
    let holds: Vec<&Vec<String>> = commands.iter().filter(|command| command[0] != "SELECT").collect();
    assert_eq!(holds.len(), 2, "{commands:?}");
    for ((hold, reader), fence) in holds.iter().zip(["a", "b"]).zip(fences) {
        assert_eq!(hold[..6], ["LOCK.HOLD", "k", reader, "2", "0", &fence.to_string()]);
        let (deadline, left): (u64, u64) = (hold[6].parse().unwrap(), hold[7].parse().unwrap());
        assert!(left <= 60_000 && left > 30_000 && deadline - left <= wall_ms() + 1, "{hold:?}");
        assert_eq!((hold.len(), hold[8].as_str()), (9, "n"));
    }
}
