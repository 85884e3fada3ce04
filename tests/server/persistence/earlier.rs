//! What earlier versions wrote: their files, and what a primary of theirs sends. tests/fixtures says how it was made.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::{Client, LockInfo, Server, parse_commands, wait_for};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/63db960").join(name)
}

fn machine_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// What the files say of one hold.
#[derive(Clone, Debug)]
struct Row {
    owner: Vec<u8>,
    reads: i64,
    writes: i64,
    fence: i64,
    deadline: i64,
    note: Option<String>,
}

/// What the files say.
#[derive(Debug)]
struct Expected {
    made: i64,
    fence_clock: String,
    /// The holds of each database and key, in order of owner.
    holds: BTreeMap<(u32, Vec<u8>), Vec<Row>>,
}

impl Expected {
    fn of(name: &str) -> Expected {
        let text = fs::read_to_string(fixture(name)).unwrap();
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let mut holds: BTreeMap<(u32, Vec<u8>), Vec<Row>> = BTreeMap::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<i64>().unwrap();
            let note = words[7].strip_prefix('=').map(|note| String::from_utf8(bytes_of(note)).unwrap());
            let row = Row {
                owner: bytes_of(words[2]),
                reads: number(3),
                writes: number(4),
                fence: number(5),
                deadline: number(6),
                note,
            };
            holds.entry((words[0].parse().unwrap(), bytes_of(words[1]))).or_default().push(row);
        }
        assert!(holds.len() > 15, "{holds:?}");
        Expected { made: head[1].parse().unwrap(), fence_clock: head[3].to_owned(), holds }
    }

    /// Without the holds that are over an hour later, and how many those are.
    fn an_hour_later(mut self) -> (Expected, usize) {
        let later = self.made + 3_600_000;
        let count = |holds: &BTreeMap<_, Vec<Row>>| holds.values().map(Vec::len).sum::<usize>();
        let before = count(&self.holds);
        self.holds.values_mut().for_each(|rows| rows.retain(|row| row.deadline > later));
        self.holds.retain(|_, rows| !rows.is_empty());
        let over = before - count(&self.holds);
        (self, over)
    }

    /// What to add to the wall clock, in whole seconds, to be an hour later.
    fn seconds_to_an_hour_later(&self) -> i64 {
        (self.made + 3_600_000 - machine_ms()) / 1000
    }

    /// Compares all but the times.
    fn assert_held(&self, conn: &mut Client, what: &str) {
        self.assert_held_with(conn, what, |_, _, _| {});
    }

    /// Compares all but the times, which `check` sees: the row, what is left, and when that was asked.
    fn assert_held_with(&self, conn: &mut Client, what: &str, check: impl Fn(&Row, i64, [i64; 2])) {
        for ((db, key), rows) in &self.holds {
            conn.ok(&["SELECT", &db.to_string()]);
            let (words, before): (&[&[u8]], i64) = (&[b"LOCK.INFO", key, b"COUNT", b"100"], machine_ms());
            let info = conn.call(words).unwrap();
            let asked = [before, machine_ms()];
            assert_ne!(info, redis::Value::Nil, "{what}: {}", key.escape_ascii());
            let mut holders = LockInfo::from(info).holders;
            holders.sort_by(|one, other| one.owner.cmp(&other.owner));
            assert_eq!(holders.len(), rows.len(), "{what}: {} has {holders:?}", key.escape_ascii());
            for (holder, row) in holders.iter().zip(rows) {
                let is = (&holder.owner, holder.reads, holder.writes, holder.fence, &holder.note);
                let said = (&row.owner, row.reads, row.writes, row.fence, &row.note);
                assert_eq!(is, said, "{what}: {}", key.escape_ascii());
                check(row, holder.ttl_ms, asked);
            }
        }
        for db in [0, 3, 9] {
            conn.ok(&["SELECT", &db.to_string()]);
            let locks = self.holds.keys().filter(|(at, _)| *at == db).count() as i64;
            // And one string.
            let strings = i64::from(db == 0);
            assert_eq!(conn.get::<i64>(&["DBSIZE"]), locks + strings, "{what}: database {db}");
        }
        conn.ok(&["SELECT", "0"]);
        assert!(conn.int(&["PTTL", "with-ttl"]).unwrap() > 0, "{what}");
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

#[test]
fn files_of_an_earlier_version_say_the_same_today() {
    // An upgrade must not lose a lock, nor make one longer: the form of a record has changed since then.
    for (file, text) in [("plain", "plain.txt"), ("preamble", "preamble.txt"), ("dump.rdb", "preamble.txt")] {
        let (expected, over) = Expected::of(text).an_hour_later();
        let seconds = expected.seconds_to_an_hour_later();
        let aof = if file == "dump.rdb" { "no" } else { "yes" };
        let setup = Server::setup().wall_offset(&format!("{seconds:+}")).option("appendonly", aof);
        let mut server = setup.option("appendfsync", "always").start();
        server.stop(true);
        if aof == "yes" {
            let folder = server.dir().join("appendonlydir");
            fs::remove_dir_all(&folder).unwrap();
            fs::create_dir(&folder).unwrap();
            for entry in fs::read_dir(fixture(file)).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
            }
        } else {
            fs::copy(fixture(file), server.dir().join(file)).unwrap();
        }
        server.start();
        let mut conn = server.connect();
        wait_for("what is over to lapse", || conn.info("lock", "lock_lapsed") == over.to_string());
        let check = |row: &Row, left: i64, [before, after]: [i64; 2]| {
            // The deadline was noted to 3 ms.
            let (least, most) = (row.deadline - after - seconds * 1000, row.deadline - before - seconds * 1000);
            assert!((least - 1_000..=most + 1_000).contains(&left), "{file}: {row:?} has {left} ms, not {least}");
        };
        expected.assert_held_with(&mut conn, file, check);
        // That of a hold which is gone: only the record of its end has it.
        assert_eq!(conn.info("lock", "lock_fence_clock"), expected.fence_clock, "{file}");
        assert_eq!(conn.int(&["LOCK.ACQUIRE", "plain", "other"]), None, "{file}");
        if aof == "yes" {
            // In today's form, and read again.
            conn.ok(&["CONFIG", "SET", "aof-use-rdb-preamble", "no"]);
            conn.get::<String>(&["BGREWRITEAOF"]);
            server.await_aof();
            server.restart();
            expected.assert_held_with(&mut server.connect(), &format!("{file}, rewritten"), check);
        }
    }
}

#[test]
fn what_a_primary_of_an_earlier_version_sends_is_read_as_it_was_meant() {
    // Replicas are upgraded first: for a while they read the earlier form.
    let expected = Expected::of("preamble.txt");
    let primary = TcpListener::bind("127.0.0.1:0").unwrap();
    // At the time at which the files were made: the time to live of a key has its end in them.
    let seconds = expected.seconds_to_an_hour_later() - 3_600;
    let setup = Server::setup().wall_offset(&format!("{seconds:+}"));
    let replica = setup.option("repl-timeout", "3600").start();
    let mut conn = replica.connect();
    conn.ok(&["REPLICAOF", "127.0.0.1", &primary.local_addr().unwrap().port().to_string()]);
    let (link, _) = primary.accept().unwrap();
    let link = serve_as_primary(link, "appendonly.aof.3.base.rdb", "appendonly.aof.3.incr.aof");
    wait_for("the last record, which ends the hold of the last fence", || {
        conn.info("lock", "lock_fence_clock") == expected.fence_clock && conn.int(&["EXISTS", "last"]) == Some(0)
    });
    expected.assert_held(&mut conn, "replica");
    drop(link);
}

/// Answers as a primary to a replica that asks for all, and sends it one file as the data and another as what followed.
fn serve_as_primary(mut link: TcpStream, data: &str, stream: &str) -> TcpStream {
    let mut requests = BufReader::new(link.try_clone().unwrap());
    loop {
        let request = read_request(&mut requests);
        match request[0].to_ascii_uppercase().as_str() {
            "PING" => link.write_all(b"+PONG\r\n").unwrap(),
            "REPLCONF" => link.write_all(b"+OK\r\n").unwrap(),
            "PSYNC" => break,
            other => panic!("{other}"),
        }
    }
    let (data, stream) = (fixture("preamble").join(data), fixture("preamble").join(stream));
    let (data, stream) = (fs::read(data).unwrap(), fs::read(stream).unwrap());
    assert!(parse_commands(&stream).iter().any(|command| command[0] == "LOCK.HOLD" && command.len() == 8));
    write!(link, "+FULLRESYNC {} 0\r\n${}\r\n", "a".repeat(40), data.len()).unwrap();
    link.write_all(&data).unwrap();
    link.write_all(&stream).unwrap();
    link
}

fn read_request(from: &mut impl BufRead) -> Vec<String> {
    let mut line = || {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let count: usize = line().strip_prefix('*').expect("a command").parse().unwrap();
    // The words have neither blanks nor ends of lines.
    (0..count).map(|_| [line(), line()][1].clone()).collect()
}

#[test]
fn a_file_of_the_earlier_form_replays_to_the_same_as_one_of_todays() {
    // By a client, as tools do that replay a file through a connection.
    let expected = Expected::of("plain.txt");
    let seconds = expected.seconds_to_an_hour_later() - 3_600;
    let mut commands = Vec::new();
    for file in ["appendonly.aof.2.base.aof", "appendonly.aof.2.incr.aof"] {
        commands.extend(parse_commands(&fs::read(fixture("plain").join(file)).unwrap()));
    }
    for in_one_word in [false, true] {
        let setup = Server::setup().wall_offset(&format!("{seconds:+}")).lock_option("allow-hold", "yes");
        let server = setup.start();
        let mut conn = server.connect();
        let mut packed = 0;
        for command in &commands {
            let command = if in_one_word { pack(command) } else { command.clone() };
            packed += usize::from(command[0] == "LOCK.HOLD" && command[3].starts_with("V1"));
            let words: Vec<Vec<u8>> =
                command.iter().map(|word| word.chars().map(|byte| byte as u8).collect()).collect();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            conn.call(&words).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        }
        assert_eq!(packed > 30, in_one_word, "{packed}");
        expected.assert_held(&mut conn, if in_one_word { "in one word" } else { "as it was written" });
        assert_eq!(conn.info("lock", "lock_fence_clock"), expected.fence_clock);
    }
}

/// A LOCK.HOLD of the earlier form in today's. Other commands stay as they are.
fn pack(command: &[String]) -> Vec<String> {
    if command[0] != "LOCK.HOLD" {
        return command.to_vec();
    }
    let is_end = command[3..5] == ["0", "0"];
    let part = |(at, letter): (usize, &&str)| {
        let number = command.get(at + 3)?;
        let is_left_out = number == "0" && (is_end || at < 2);
        (!is_left_out).then(|| format!("{letter}{number}"))
    };
    let parts: String = ["R", "W", "F", "D", "L"].iter().enumerate().filter_map(part).collect();
    let note = command.get(8).cloned();
    [command[..3].to_vec(), vec![format!("V1{parts}")], note.into_iter().collect()].concat()
}
