//! What replicas and the append-only file receive: facts, not requests. Word by word, for every command and option.

use crate::harness::transcript::{Row, each};
use crate::waiting::effects::{Scene, server};
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::Server;

fn wall_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Each command, its reply, and the one record that is sent of it.
const CHANGES: &[(&str, &str, &str)] = &[
    ("LOCK.ACQUIRE k a PX 10000", "#1", "LOCK.HOLD k a 0 1 #1 ~ 10000"),
    // Again: the absolute state, and the later of the two deadlines.
    ("LOCK.ACQUIRE k a PX 10", "#1", "LOCK.HOLD k a 0 2 #1 ~ ~"),
    ("LOCK.ACQUIRE k a EX 60", "#1", "LOCK.HOLD k a 0 3 #1 ~ 60000"),
    ("LOCK.ACQUIRE k a NOTE job", "#1", "LOCK.HOLD k a 0 4 #1 ~ ~ job"),
    // The note stays.
    ("LOCK.EXTEND k a PX 20000", "#1", "LOCK.HOLD k a 0 4 #1 ~ 20000 job"),
    ("LOCK.EXTEND k a EX 30 FENCE #1", "#1", "LOCK.HOLD k a 0 4 #1 ~ 30000 job"),
    ("LOCK.RW k a READ PX 1", "#1", "LOCK.HOLD k a 1 4 #1 ~ ~ job"),
    ("LOCK.RW k a WRITE NOTE other", "#1", "LOCK.HOLD k a 1 5 #1 ~ 30000 other"),
    ("LOCK.EXTEND k a EX 30 NOTE 40%", "#1", "LOCK.HOLD k a 1 5 #1 ~ 30000 40%"),
    // An empty one takes it away.
    (r#"LOCK.EXTEND k a EX 30 NOTE """#, "#1", "LOCK.HOLD k a 1 5 #1 ~ 30000"),
    ("LOCK.EXTEND k a EX 30 NOTE other", "#1", "LOCK.HOLD k a 1 5 #1 ~ 30000 other"),
    ("LOCK.RELEASE k a WRITE", "5", "LOCK.HOLD k a 1 4 #1 ~ ~ other"),
    ("LOCK.RELEASE k a WRITE TO 2", "3", "LOCK.HOLD k a 1 2 #1 ~ ~ other"),
    // Downgraded: same fence.
    ("LOCK.RELEASE k a WRITE ALL", "1", "LOCK.HOLD k a 1 0 #1 ~ ~ other"),
    ("LOCK.RW k b READ PX 5000", "#2", "LOCK.HOLD k b 1 0 #2 ~ 5000"),
    ("LOCK.RELEASE k a FENCE #1", "0", "LOCK.HOLD k a 0 0 #1"),
    // Upgraded: a new fence.
    ("LOCK.RW k b WRITE PX 6000", "#3", "LOCK.HOLD k b 1 1 #3 ~ 6000"),
    ("LOCK.RELEASE k b ALL", "0", "LOCK.HOLD k b 0 0 #3"),
    // The default lease.
    ("LOCK.ACQUIRE k c", "#4", "LOCK.HOLD k c 0 1 #4 ~ 30000"),
    ("LOCK.RELEASE k c TO 0", "0", "LOCK.HOLD k c 0 0 #4"),
    // What the server does to keys goes its own way.
    ("LOCK.ACQUIRE k d PX 10000", "#5", "LOCK.HOLD k d 0 1 #5 ~ 10000"),
    ("RENAME k r", "OK", "RENAME k r"),
    ("LOCK.ACQUIRE r d PX 10000", "#6", "LOCK.HOLD r d 0 2 #6 ~ 10000"),
    ("DEL r", "1", "DEL r"),
    // Names are bytes: a NUL must not end one, a percent sign must not be replaced.
    (
        r#"LOCK.ACQUIRE "k\x00\xff" "\x00o\xfe" NOTE "%s\n\x00" PX 10000"#,
        "#7",
        "LOCK.HOLD k\0\u{ff} \0o\u{fe} 0 1 #7 ~ 10000 %s\n\0",
    ),
    // A note of nothing is a note.
    (r#"LOCK.ACQUIRE e a PX 10000 NOTE """#, "#8", "LOCK.HOLD e a 0 1 #8 ~ 10000 "),
];

#[test]
fn every_change_to_a_hold_is_sent_as_one_fact() {
    // A request sent as it came would be judged again by a replica with another clock and another view.
    let mut scene = Scene::alone();
    for (command, reply, sent) in CHANGES {
        scene.check(&[(command, reply)], &[sent]);
    }
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
    let mut scene = Scene::alone();
    scene.check(
        &[
            ("LOCK.ACQUIRE k a PX 60000", "#1"),
            ("LOCK.RW r a READ PX 60000", "#2"),
            ("LOCK.RW r b READ PX 60000", "#3"),
        ],
        &["LOCK.HOLD k a 0 1 #1 ~ 60000", "LOCK.HOLD r a 1 0 #2 ~ 60000", "LOCK.HOLD r b 1 0 #3 ~ 60000"],
    );
    let nothing: &[Row] = &[
        // The upgrade of a reader that is not alone, too.
        ("LOCK.{ACQUIRE k b|ACQUIRE k *|RW k b READ|RW k b WRITE|RW r a WRITE}", "nil"),
        ("LOCK.{RELEASE k b|RELEASE none b|RELEASE k a FENCE #1-1|EXTEND k b PX 5|EXTEND none b PX 5}", "nil"),
        ("LOCK.{EXTEND k a PX 5 FENCE #1+1|INFO none}", "nil"),
        // A mode that it does not hold, and a count that is reached already.
        ("LOCK.RELEASE k a {READ|TO 1|WRITE TO 4294967295}", "1"),
        ("LOCK.CHECK k a", "#1"),
        ("LOCK.ACQUIRE k a PX 0", "ERR PX must be a whole number from 1 to 86400000"),
    ];
    scene.check(&each(nothing), &[]);
    assert_eq!(scene.stage.ask(&["COPY", "k", "copy"]).code(), "ERR");
    // The release that is refused for being unclear.
    let unclear = "ERR the owner holds both modes: name READ or WRITE";
    scene.check(&[("LOCK.RW k a READ", "#1"), ("LOCK.RELEASE k a", unclear)], &["LOCK.HOLD k a 1 1 #1 ~ ~"]);
}

#[test]
fn an_owner_that_the_server_makes_is_sent_by_its_name() {
    // A replica that made one itself would make another.
    let (server, mut conn) = Server::setup().option("appendonly", "yes").connected();
    let (owner, fence): (String, i64) = conn.get(&["LOCK.ACQUIRE", "k", "*", "PX", "10000"]);
    let sent = server.aof_tail();
    assert_eq!(sent[0][..6], ["LOCK.HOLD", "k", &owner, "0", "1", &fence.to_string()]);
    assert_eq!((sent.len(), sent[0].len(), owner.len()), (1, 8, 32));
}

#[test]
fn several_effects_of_one_step_are_sent_as_one() {
    // Between the end of one hold and the grant to another no replica may see the lock free.
    let server = server();
    let mut scene = Scene::new(&server);
    // The timer does not run before the next command settles the key.
    let mut pipe = redis::pipe();
    pipe.cmd("LOCK.RW").arg(&["k", "a", "READ", "PX", "50"]);
    pipe.cmd("LOCK.RW").arg(&["k", "b", "READ", "PX", "60"]);
    pipe.cmd("DEBUG").arg(&["SLEEP", "0.1"]).ignore();
    pipe.cmd("LOCK.ACQUIRE").arg(&["k", "c", "PX", "10000"]);
    pipe.query::<Vec<i64>>(&mut server.connect().0).unwrap();
    scene.check(
        &[],
        &[
            "LOCK.HOLD k a 1 0 #1 ~ 50",
            "LOCK.HOLD k b 1 0 #2 ~ 60",
            "MULTI",
            // The one that ended first goes first.
            "LOCK.HOLD k a 0 0 #1",
            "LOCK.HOLD k b 0 0 #2",
            "LOCK.HOLD k c 0 1 #3 ~ 10000",
            "EXEC",
        ],
    );
}

#[test]
fn a_transaction_and_a_script_send_facts_too() {
    // Inside EXEC and Lua the server collects what is sent; nothing of the request itself may get in.
    let server = server();
    let mut scene = Scene::new(&server);
    scene.check(
        &[
            ("MULTI", "OK"),
            ("LOCK.ACQUIRE k a PX 10000", "QUEUED"),
            ("LOCK.ACQUIRE k b", "QUEUED"),
            ("LOCK.RELEASE k a", "QUEUED"),
            ("EXEC", "[#1 nil 0]"),
        ],
        &["MULTI", "LOCK.HOLD k a 0 1 #1 ~ 10000", "LOCK.HOLD k a 0 0 #1", "EXEC"],
    );
    let script = "redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', 10000) redis.call('LOCK.ACQUIRE', KEYS[1], 'b')
                  return redis.call('LOCK.RELEASE', KEYS[1], 'a')";
    assert_eq!(scene.stage.ask(&["EVAL", script, "1", "k"]).int(), 0);
    scene.check(&[], &["MULTI", "LOCK.HOLD k a 0 1 #2 ~ 10000", "LOCK.HOLD k a 0 0 #2", "EXEC"]);
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
