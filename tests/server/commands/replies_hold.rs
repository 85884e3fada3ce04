//! LOCK.HOLD from a client of a server that was started with `lock.allow-hold yes`: it does what it says, as long as
//! the lock stays one.

use crate::harness::connection::{Connection, Way};
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Player, Row, each};
use testbed::{Server, wait_for};

fn server() -> Server {
    Server::setup().option("appendonly", "yes").lock_option("allow-hold", "yes").start()
}

/// A server that has played [`FENCES`] and then these rows.
fn played(rows: &[Row]) -> Server {
    let server = server();
    let mut wire = Connection::resp2(&server);
    let mut player = Player::new(&mut wire, Way::Plain);
    player.play(FENCES);
    player.go_on(rows);
    server
}

/// The first two rows make two fences of this server that no hold has: `#1` and `#2`.
const FENCES: &[Row] = &[
    ("LOCK.ACQUIRE tmp t", "#1"),
    ("LOCK.RELEASE tmp t", "0"),
    ("LOCK.ACQUIRE tmp t", "#2"),
    ("LOCK.RELEASE tmp t", "0"),
];

/// Wall-clock deadlines are not used here: a client's counts by what remains.
const ROWS: &[Row] = &[
    ("LOCK.HOLD k a 0 2 #1 0 60000 note", "1"),
    ("LOCK.INFO k", "[mode write fence #1 holding 1 holders [[owner a mode write writes 2 fence #1 note note]]]"),
    // Absolute, so it may come twice.
    ("LOCK.HOLD k a 0 2 #1 0 60000 note", "1"),
    ("LOCK.RELEASE k a TO 2", "2"),
    // Nothing ends where nothing was held, and a writer holds on.
    ("LOCK.HOLD k nobody 0 0", "1"),
    ("LOCK.CHECK k a", "#1"),
    // Beside a writer there is no other holder, nor a writer beside a reader, nor two with one fence.
    ("LOCK.HOLD k b 1 0 #2 0 60000", CONFLICT),
    ("LOCK.HOLD k b 0 1 #2 0 60000", CONFLICT),
    ("LOCK.HOLD k a 1 0 #1 0 60000", "1"),
    ("LOCK.INFO k", "[mode read fence #1 shares 1 holding 1 holders [[owner a mode read reads 1 fence #1]]]"),
    ("LOCK.HOLD k b 1 0 #1 0 60000", CONFLICT),
    ("LOCK.HOLD k b 1 0 #2 0 60000", "1"),
    ("LOCK.HOLD k b 1 1 #2 0 60000", CONFLICT),
    ("LOCK.HOLD k a 0 1 #2 0 60000", CONFLICT),
    ("LOCK.RW k c WRITE", "nil"),
    // Removals: short or long, and of what is not there.
    ("LOCK.HOLD k nobody 0 0", "1"),
    ("LOCK.HOLD none a 0 0", "1"),
    ("EXISTS none", "0"),
    ("LOCK.HOLD k b 0 0 #2 0 0", "1"),
    ("LOCK.HOLD k a 0 0", "1"),
    ("EXISTS k", "0"),
    // A fence that no clock of ours made would poison the clock.
    ("LOCK.HOLD k a 0 1 9007199254740991 0 60000", "ERR fence is more than a year ahead of the clock"),
    ("LOCK.HOLD k a 0 0 9007199254740991", "ERR fence is more than a year ahead of the clock"),
    ("EXISTS k", "0"),
    ("LOCK.ACQUIRE k a", "#3"),
    ("LOCK.RELEASE k a", "0"),
    // Counts and lengths.
    ("LOCK.HOLD k a 4294967295 0 #1 0 60000", "1"),
    ("LOCK.RW k a READ", "LIMIT the owner's count is 4294967295, the highest there is"),
    ("LOCK.RELEASE k a", "4294967294"),
    ("LOCK.RW k a READ", "#4"),
    ("LOCK.RW k a READ", "LIMIT the owner's count is 4294967295, the highest there is"),
    ("LOCK.ACQUIRE k a", "#5"),
    ("LOCK.RELEASE k a READ", "4294967295"),
    ("LOCK.RELEASE k a ALL", "0"),
    ("LOCK.HOLD k a 0 4294967295 #1 0 60000", "1"),
    ("LOCK.ACQUIRE k a", "LIMIT the owner's count is 4294967295, the highest there is"),
    ("LOCK.RELEASE k a ALL", "0"),
    ("LOCK.HOLD k @257 0 1 #1 0 60000", "LIMIT owner is longer than lock.max-owner-bytes (256)"),
    ("LOCK.HOLD k a 0 1 #1 0 60000 @257", "LIMIT note is longer than lock.max-note-bytes (256)"),
];

/// The form with an argument for each number.
const NUMBERS: &[Row] = &[
    ("LOCK.HOLD k a 0", "ERR writes needs a value"),
    (r#"LOCK.HOLD k "" 0 0"#, "ERR owner must not be empty"),
    ("LOCK.HOLD k * 0 0", "ERR owner * can only acquire: use the owner that the server made"),
    ("LOCK.HOLD k a 4294967296 0", "ERR reads must be a whole number from 0 to 4294967295"),
    ("LOCK.HOLD k a 0 {-1|4294967296}", "ERR writes must be a whole number from 0 to 4294967295"),
    ("LOCK.HOLD k a 0 1", "ERR fence needs a value"),
    ("LOCK.HOLD k a 0 1 {0|9007199254740992} 0 5", "ERR fence must be a whole number from 1 to 9007199254740991"),
    ("LOCK.HOLD k a 0 1 #1", "ERR wall-deadline-ms needs a value"),
    ("LOCK.HOLD k a 0 1 #1 0", "ERR remaining-ms needs a value"),
    ("LOCK.HOLD k a 0 1 #1 -1 5", "ERR wall-deadline-ms must be a whole number from 0 to 9223372036854775807"),
    (
        "LOCK.HOLD k a 0 1 #1 0 9223372036854775808",
        "ERR remaining-ms must be a whole number from 0 to 9223372036854775807",
    ),
    ("LOCK.HOLD k a 0 1 #1 0 5 note {more}", r#"ERR unknown option "{}""#),
    ("EXISTS k", "0"),
];

/// The form with one word.
const STATES: &[Row] = &[
    (r#"LOCK.HOLD k "" V1"#, "ERR owner must not be empty"),
    ("LOCK.HOLD k * V1", "ERR owner * can only acquire: use the owner that the server made"),
    (r#"LOCK.HOLD k a {""|-1 0|v1|V2W1F#1D0L60000|V10W1F#1D0L60000|W1F#1D0L60000|note 0 1 #1 0 60000}"#, MARK),
    ("LOCK.HOLD k a V1{W1|W1F#1L60000|W1F#1D0|F#1D0L60000|W1R1F#1D0L60000|W1F#1D0L60000X}", PARTS),
    (r#"LOCK.HOLD k a "V1W1F5D0L60000 ""#, PARTS),
    ("LOCK.HOLD k a V1W{0|01|+1}F#1D0L60000", "ERR W of state must be a whole number from 1 to 4294967295"),
    ("LOCK.HOLD k a V1R4294967296F#1D0L60000", "ERR R of state must be a whole number from 1 to 4294967295"),
    (
        "LOCK.HOLD k a V1{W1F0D0L60000|F9007199254740992}",
        "ERR F of state must be a whole number from 1 to 9007199254740991",
    ),
    ("LOCK.HOLD k a V1W1F#1D-1L5", "ERR D of state must be a whole number from 0 to 18446744073709552"),
    ("LOCK.HOLD k a V1W1F#1D0L", "ERR L of state must be a whole number from 0 to 18446744073709551615"),
    ("LOCK.HOLD k a V1W1F#1D0L5 {note|0} {more}", r#"ERR unknown option "{}""#),
    ("EXISTS k", "0"),
];

/// The end of the hold with a fence, whoever holds.
const ENDS: &[Row] = &[
    ("LOCK.HOLD k", "ERR wrong number of arguments for 'lock.hold' command"),
    ("LOCK.HOLD k a", MARK),
    ("LOCK.HOLD k 0", MARK),
    ("LOCK.HOLD k V1", "ERR owner needs a value"),
    ("LOCK.HOLD k V1W1F#1D0L60000", "ERR owner needs a value"),
    ("LOCK.HOLD k V1F0", "ERR F of state must be a whole number from 1 to 9007199254740991"),
    ("LOCK.HOLD k V1F9007199254740991", "ERR fence is more than a year ahead of the clock"),
    // Where there is no lock, and on a lock whose hold has another fence.
    ("LOCK.HOLD k V1F#1", "1"),
    ("EXISTS k", "0"),
    ("LOCK.HOLD k a V1W2F#2D0L60000", "1"),
    ("LOCK.HOLD k V1F#1", "1"),
    ("LOCK.CHECK k a", "#2"),
    ("LOCK.HOLD k V1F#2", "1"),
    ("EXISTS k", "0"),
    // Of several readers it is one.
    ("LOCK.HOLD k a V1R1F#1D0L60000", "1"),
    ("LOCK.HOLD k b V1R2F#2D0L60000", "1"),
    ("LOCK.HOLD k V1F#1", "1"),
    ("LOCK.CHECK k a", "nil"),
    ("LOCK.CHECK k b", "#2"),
    ("LOCK.HOLD k V1F#2", "1"),
    ("EXISTS k", "0"),
    ("SET s text", "OK"),
    ("LOCK.HOLD s V1F#1", WRONGTYPE),
];

const MARK: &str = "ERR state must begin with V1, the form that this version reads";
const PARTS: &str = "ERR state must be V1[R<n>][W<n>]F<n>D<ms>L<ms>, or V1[F<n>] for an end";
const CONFLICT: &str = "ERR hold conflicts with another owner's hold on the key";

#[test]
fn a_client_that_may_send_facts_cannot_break_a_lock_with_them() {
    // A replaying tool that is fed a wrong file would make two writers, or use up the fences for good.
    let string: &[Row] = &[("SET s text", "OK"), ("LOCK.HOLD s a 0 1 #1 0 60000", WRONGTYPE)];
    played(&[ROWS, &each(NUMBERS), string].concat());
}

/// A command whose numbers are put into one word.
fn in_one_word(command: &'static str) -> String {
    let Some(rest) = command.strip_prefix("LOCK.HOLD ") else { return command.to_owned() };
    let words: Vec<&str> = rest.split(' ').collect();
    let is_end = words[2..4] == ["0", "0"];
    let part = |(at, letter): (usize, &&str)| {
        let number = words.get(at + 2)?;
        let is_left_out = *number == "0" && (is_end || at < 2);
        (!is_left_out).then(|| format!("{letter}{number}"))
    };
    let state: String = ["R", "W", "F", "D", "L"].iter().enumerate().filter_map(part).collect();
    let (key, owner) = (words[0], words[1]);
    let note = words.get(7).map_or(String::new(), |note| format!(" {note}"));
    format!("LOCK.HOLD {key} {owner} V1{state}{note}")
}

#[test]
fn the_two_forms_of_a_record_do_and_refuse_the_same() {
    // What an older primary or file says must not come to something else than the same said in today's form.
    let rows: Vec<Row> = ROWS.iter().map(|(command, reply)| (&*in_one_word(command).leak(), *reply)).collect();
    assert!(rows.iter().filter(|(command, _)| command.contains(" V1")).count() > 15, "{rows:?}");
    let string: &[Row] = &[("SET s text", "OK"), ("LOCK.HOLD s a V1W1F#1D0L60000", WRONGTYPE)];
    played(&[&rows, &each(STATES), string].concat());
}

#[test]
fn an_end_by_a_fence_ends_the_hold_with_that_fence_and_no_other() {
    // The record of a writer's end has no owner. What it meets beside that hold must stay.
    played(ENDS);
}

#[test]
fn an_end_by_a_fence_hands_the_lock_to_the_waiter() {
    // The server must not keep a client waiting for a lock that is free.
    let server = server();
    let mut conn = server.connect();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
    let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
    conn.int(&["LOCK.HOLD", "k", &format!("V1F{fence}")]);
    assert!(waiter.read().int() > fence);
}

#[test]
fn a_refused_fact_is_not_written_and_a_granted_one_is_as_absolute_as_before() {
    // What a refused fact leaves in the AOF would be believed at the next start.
    let server = server();
    let mut wire = Connection::resp2(&server);
    let mut player = Player::new(&mut wire, Way::Plain);
    player.play(FENCES);
    player.go_on(&[
        ("LOCK.HOLD k a 0 1 #1 0 60000 n", "1"),
        ("LOCK.HOLD k b 0 1 #2 0 60000", CONFLICT),
        ("LOCK.HOLD k a 0 1 9007199254740991 0 60000", "ERR fence is more than a year ahead of the clock"),
        ("LOCK.HOLD k a 0 0", "1"),
    ]);
    let fence = player.fence("#1").to_string();
    let facts: Vec<_> =
        server.aof_tail().into_iter().filter(|command| command.get(1).is_some_and(|key| key == "k")).collect();
    assert_eq!(facts.len(), 2, "{facts:?}");
    assert_eq!(facts[0][..6], ["LOCK.HOLD", "k", "a", "0", "1", &fence].map(str::to_owned));
    assert_eq!(facts[0][7..], ["60000".to_owned(), "n".to_owned()]);
    assert_eq!(facts[1][..5], ["LOCK.HOLD", "k", "a", "0", "0"].map(str::to_owned));
}

#[test]
fn a_fact_with_the_longest_lease_there_is_harms_nothing() {
    // A deadline beyond the end of time would overflow into the past, or stop the server's arithmetic.
    played(&[
        ("LOCK.HOLD k a 0 1 #1 9223372036854775807 9223372036854775807", "1"),
        ("LOCK.ACQUIRE k b", "nil"),
        ("LOCK.ACQUIRE k a", "#3"),
        ("LOCK.EXTEND k a PX 60000", "#3"),
        ("LOCK.RELEASE k a ALL", "0"),
        // And one that is over as it comes: it is gone when any command reads it.
        ("LOCK.HOLD k a 0 1 #3 0 0", "1"),
        ("LOCK.INFO k", "nil"),
        ("LOCK.HOLD k a V1W1F#3D18446744073709552L18446744073709551615", "1"),
        ("LOCK.ACQUIRE k b", "nil"),
        ("LOCK.HOLD k a V1W1F#3D0L0", "1"),
        ("LOCK.INFO k", "nil"),
        ("LOCK.ACQUIRE k b", "#4"),
    ]);
}

#[test]
fn the_longest_lease_there_is_keeps_no_other_from_ending() {
    // A deadline beyond the reach of the index once kept its timer busy for ever.
    let server = played(&[
        ("LOCK.HOLD far a 0 1 #1 0 9223372036854775807", "1"),
        ("LOCK.HOLD further a 0 1 #2 0 4398046511104", "1"),
        ("LOCK.ACQUIRE near b PX 20", "#3"),
    ]);
    let mut conn = server.connect();
    wait_for("the other lease to end", || conn.int(&["EXISTS", "near"]) == Some(0));
    assert_eq!(conn.int(&["EXISTS", "far", "further"]), Some(2));
}
