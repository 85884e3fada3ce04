//! What a malformed request is answered: exactly one error, naming the argument, and no trace of it.

use crate::harness::connection::{Connection, Way};
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Player, Row, each};
use testbed::Server;

/// Wrong arity: the server's own text.
const ARITY: &[Row] = &[
    ("LOCK.{acquire|rw|share|release|extend|guard|check|macquire|mrelease|mextend|break|info|hold}", ARITY_OF),
    ("LOCK.ACQUIRE k", "ERR wrong number of arguments for 'lock.acquire' command"),
    ("LOCK.RW k a", "ERR wrong number of arguments for 'lock.rw' command"),
    ("LOCK.SHARE k a", "ERR wrong number of arguments for 'lock.share' command"),
    ("LOCK.RELEASE k", "ERR wrong number of arguments for 'lock.release' command"),
    ("LOCK.EXTEND k a{| PX}", "ERR wrong number of arguments for 'lock.extend' command"),
    ("LOCK.GUARD k a 5", "ERR wrong number of arguments for 'lock.guard' command"),
    ("LOCK.CHECK k", "ERR wrong number of arguments for 'lock.check' command"),
    ("LOCK.HOLD k", "ERR wrong number of arguments for 'lock.hold' command"),
    ("LOCK.MACQUIRE 1 k", "ERR wrong number of arguments for 'lock.macquire' command"),
    ("LOCK.MRELEASE 1 k", "ERR wrong number of arguments for 'lock.mrelease' command"),
    ("LOCK.MEXTEND 1 k a PX", "ERR wrong number of arguments for 'lock.mextend' command"),
];

const ARITY_OF: &str = "ERR wrong number of arguments for 'lock.{}' command";

/// Owners and notes that cannot be.
const OWNERS: &[Row] = &[
    (r#"LOCK.{ACQUIRE|RELEASE|CHECK} k """#, EMPTY),
    (r#"LOCK.{RW k "" READ|SHARE k "" 5|GUARD k "" 5 PING|EXTEND k "" PX 1}"#, EMPTY),
    ("LOCK.{GUARD k * 5 PING|CHECK k *|RELEASE k *|EXTEND k * PX 1}", MADE),
    ("LOCK.{SHARE k * 5|ACQUIRE k *|RW k * READ BLOCK 0} RETRY 1", RETRY_MADE),
    ("LOCK.SHARE k * 5 QUEUE 1", "ERR QUEUE needs an owner of your own: * is another one each time"),
    ("LOCK.{ACQUIRE k @257|RW k @257 READ}", TOO_LONG),
    ("LOCK.{ACQUIRE k a|EXTEND k a PX 5|RW k a READ} NOTE @257", NOTE_TOO_LONG),
];

const EMPTY: &str = "ERR owner must not be empty";
const MADE: &str = "ERR owner * can only acquire: use the owner that the server made";
const RETRY_MADE: &str = "ERR RETRY cannot repeat an acquisition by owner *: name the owner";
const TOO_LONG: &str = "LIMIT owner is longer than lock.max-owner-bytes (256)";
const NOTE_TOO_LONG: &str = "LIMIT note is longer than lock.max-note-bytes (256)";

/// Numbers that are none, or out of range. As an int of 64 bits 18446744073709551616 is 0, and 18446744073709552
/// seconds are 384 milliseconds.
const NUMBERS: &[Row] = &[
    (r#"LOCK.ACQUIRE k a PX {0|-1|+1|01|00|1.0|1e3|0x10|ms|""|" 1"|"1 "|"1\x00"|"\xff"|86400001|NOTE x}"#, PX),
    ("LOCK.ACQUIRE k a PX {9223372036854775807|9223372036854775808|-9223372036854775808}", PX),
    ("LOCK.ACQUIRE k a PX {18446744073709551615|18446744073709551616|340282366920938463463374607431768211456}", PX),
    ("LOCK.{RW k a READ PX 0|SHARE k a 5 PX 0|EXTEND k a PX 0|EXTEND k a PX 86400001}", PX),
    ("LOCK.ACQUIRE k a EX {0|-1|010|86401|18446744073709552}", EX),
    ("LOCK.{RW k a WRITE|EXTEND k a} EX 86401", EX),
    (r#"LOCK.ACQUIRE k a BLOCK {-1|00|0.5|315360000001|18446744073709551616|forever|""}"#, BLOCK),
    ("LOCK.RW k a READ BLOCK PX 5", BLOCK),
    ("LOCK.ACQUIRE k a RETRY {0|-1|01|4294967296|BLOCK 0}", RETRY),
    ("LOCK.RW k a WRITE BLOCK 0 RETRY once", RETRY),
    ("LOCK.SHARE k a {0|05|-1|4294967296|TAKE 1|PX 500}", LIMIT),
    ("LOCK.SHARE k a 5 TAKE {0|6|all}", TAKE),
    ("LOCK.SHARE k a 5 {TAKE 3 RETRY 2|RETRY 2 TAKE 3|TAKE 3 RETRY 6}", RETRY_OF_SHARES),
    ("LOCK.SHARE k a 5 RETRY 0", "ERR RETRY must be a whole number from 1 to 5"),
    ("LOCK.{EXTEND k a PX 1|CHECK k a|RELEASE k a} FENCE {0|9007199254740992}", FENCE),
    ("LOCK.{CHECK k a FENCE WRITE|RELEASE k a FENCE -1|RELEASE k a FENCE 007|RELEASE k a FENCE nil}", FENCE),
    ("LOCK.ACQUIRE k a MINFENCE {0|-5|05|9007199254740992|9223372036854775808|PX 5}", MINFENCE),
    ("LOCK.{RW k a READ|EXTEND k a PX 1} MINFENCE {0|18446744073709551616}", MINFENCE),
    ("LOCK.GUARD k a {0|05|-5|9007199254740992|FENCE 5|PING 5} PING", GUARD_FENCE),
    ("LOCK.RELEASE k a TO {-1|00|4294967296|ALL}", TO),
    ("LOCK.INFO k COUNT {-1|4294967296|all|03}", COUNT),
    (r#"LOCK.{ACQUIRE n a|RW n a WRITE} SESSION {-1|315360000001|1.5|+1|00|""|PX|soon}"#, SESSION),
    ("LOCK.{MACQUIRE 1 n a|EXTEND k a PX 5|MEXTEND 1 k a PX 5} SESSION {-0|18446744073709551616|x}", SESSION),
];

const PX: &str = "ERR PX must be a whole number from 1 to 86400000";
const EX: &str = "ERR EX must be a whole number from 1 to 86400";
const BLOCK: &str = "ERR BLOCK must be a whole number from 0 to 315360000000";
const RETRY: &str = "ERR RETRY must be a whole number from 1 to 4294967295";
const LIMIT: &str = "ERR limit must be a whole number from 1 to 4294967295";
const TAKE: &str = "ERR TAKE must be a whole number from 1 to 5";
const RETRY_OF_SHARES: &str = "ERR RETRY must be a whole number from 3 to 5";
const FENCE: &str = "ERR FENCE must be a whole number from 1 to 9007199254740991";
const MINFENCE: &str = "ERR MINFENCE must be a whole number from 1 to 9007199254740991";
const GUARD_FENCE: &str = "ERR fence must be a whole number from 1 to 9007199254740991";
const TO: &str = "ERR TO must be a whole number from 0 to 4294967295";
const COUNT: &str = "ERR COUNT must be a whole number from 0 to 4294967295";
const SESSION: &str = "ERR SESSION must be a whole number from 0 to 315360000000";

/// Options that are unknown, given twice, without their value, or exclude each other.
const OPTIONS: &[Row] = &[
    ("LOCK.ACQUIRE k a {FOREVER|PXX|P|READ|FENCE|TAKE|WAIT} 5", UNKNOWN),
    ("LOCK.ACQUIRE k a {5000}", UNKNOWN),
    (r#"LOCK.ACQUIRE k a "\x00\r\n\xff""#, r#"ERR unknown option "\x00\r\n\xff""#),
    (r#"LOCK.ACQUIRE k a """#, r#"ERR unknown option """#),
    ("LOCK.ACQUIRE k a PX 5 {EXTRA}", UNKNOWN),
    ("LOCK.RW k a WRITE {READ|TAKE} 5", UNKNOWN),
    ("LOCK.RW k a READ {ALL|TAKE} 5", UNKNOWN),
    ("LOCK.SHARE k a 5 {MINFENCE|READ|6} 5", UNKNOWN),
    ("LOCK.RELEASE k a {MINFENCE|BLOCK|RETRY|PX|1|SESSION} 5", UNKNOWN),
    ("LOCK.CHECK k a {MINFENCE|BLOCK|BOTH} 5", UNKNOWN),
    ("LOCK.EXTEND k a PX 5 {BLOCK|RETRY|ALL} 1", UNKNOWN),
    ("LOCK.EXTEND k a {5000} PX", UNKNOWN),
    ("LOCK.INFO k {BLOCK|a|SESSION} 0", UNKNOWN),
    ("LOCK.INFO k OWNER a {b}", UNKNOWN),
    (r#"LOCK.RW k a {BOTH|PX 5 READ|""}"#, "ERR mode must be READ or WRITE"),
    ("LOCK.EXTEND k a {MINFENCE 5|NOTE x|FENCE 5|SESSION 0 FENCE 5}", NO_LEASE),
    ("LOCK.ACQUIRE k a{| PX 5} {NOTE|BLOCK|MINFENCE|SESSION}", NEEDS),
    ("LOCK.ACQUIRE k a {PX|EX}", NEEDS),
    ("LOCK.ACQUIRE k a BLOCK 0 {RETRY}", NEEDS),
    ("LOCK.RW k a READ px", "ERR PX needs a value"),
    ("LOCK.RW k a WRITE {MINFENCE}", NEEDS),
    ("LOCK.SHARE k a 5 {TAKE}", NEEDS),
    ("LOCK.{CHECK k a|RELEASE k a ALL|EXTEND k a PX 5} {FENCE}", NEEDS),
    ("LOCK.RELEASE k a {TO}", NEEDS),
    ("LOCK.EXTEND k a PX 5 {NOTE|MINFENCE|SESSION}", NEEDS),
    ("LOCK.INFO k {OWNER|COUNT}", NEEDS),
    ("LOCK.ACQUIRE k a MINFENCE 5 minfence 5", "ERR MINFENCE is given twice"),
    ("LOCK.EXTEND k a MINFENCE 5 PX 5 MINFENCE 5", "ERR MINFENCE is given twice"),
    ("LOCK.EXTEND k a NOTE x PX 5 NOTE x", "ERR NOTE is given twice"),
    ("LOCK.EXTEND k a SESSION 0 PX 5000 SESSION 1", "ERR SESSION is given twice"),
    ("LOCK.EXTEND k a PX 5 PX 5", "ERR PX is given twice"),
    ("LOCK.SHARE k a 5 TAKE 2 TAKE 2", "ERR TAKE is given twice"),
    ("LOCK.{CHECK|RELEASE} k a FENCE 5 FENCE 5", "ERR FENCE is given twice"),
    ("LOCK.ACQUIRE k a PX 5 PX 5", "ERR PX is given twice"),
    ("LOCK.ACQUIRE k a EX 5 ex 6", "ERR EX is given twice"),
    ("LOCK.ACQUIRE k a BLOCK 0 block 0", "ERR BLOCK is given twice"),
    ("LOCK.ACQUIRE k a NOTE x NOTE y", "ERR NOTE is given twice"),
    ("LOCK.ACQUIRE k a SESSION 0 SESSION 0", "ERR SESSION is given twice"),
    ("LOCK.RW k a READ RETRY 1 BLOCK 5 RETRY 1", "ERR RETRY is given twice"),
    ("LOCK.RELEASE k a ALL ALL", "ERR ALL is given twice"),
    ("LOCK.RELEASE k a TO 1 TO 1", "ERR TO is given twice"),
    ("LOCK.RELEASE k a READ read", "ERR READ is given twice"),
    ("LOCK.INFO k COUNT 5 COUNT 5", "ERR COUNT is given twice"),
    ("LOCK.INFO k OWNER a OWNER a", "ERR OWNER is given twice"),
    ("LOCK.{ACQUIRE k a|RW k a READ|EXTEND k a} PX 5 EX 5", "ERR PX and EX exclude each other"),
    ("LOCK.ACQUIRE k a EX 5 NOTE x PX 5", "ERR EX and PX exclude each other"),
    ("LOCK.{CHECK|RELEASE} k a READ WRITE", "ERR READ and WRITE exclude each other"),
    ("LOCK.RELEASE k a WRITE ALL READ", "ERR WRITE and READ exclude each other"),
    ("LOCK.RELEASE k a ALL TO 1", "ERR ALL and TO exclude each other"),
    ("LOCK.RELEASE k a TO 1 READ ALL", "ERR TO and ALL exclude each other"),
];

const UNKNOWN: &str = r#"ERR unknown option "{}""#;
const NEEDS: &str = "ERR {} needs a value";
const NO_LEASE: &str = "ERR PX or EX is needed";

/// Several keys: how many there are is read first, and decides what is a key. As an int of 32 bits 4294967297 is 1.
const MANY: &[Row] = &[
    (r#"LOCK.MACQUIRE {0|-1|+1|01|1.0|x|""|"1\x00"|4294967297|18446744073709551617} k a"#, NUMKEYS),
    ("LOCK.{MACQUIRE 0 a READ|MACQUIRE k a PX 5|MRELEASE 0 k a|MRELEASE -1 k a}", NUMKEYS),
    ("LOCK.MEXTEND {0|01} k a PX 5", NUMKEYS),
    ("LOCK.{MACQUIRE 65|MACQUIRE 4294967295|MRELEASE 65|MEXTEND 65} k a PX 5", TOO_MANY_KEYS),
    ("LOCK.{MACQUIRE 3 k a|MACQUIRE 64 k a|MRELEASE 3 k a|MEXTEND 5 k a PX 5}", TOO_FEW_KEYS),
    // The owner was taken for a key, or a key for the owner.
    ("LOCK.{MACQUIRE 2 k a|MRELEASE 2 k a|MEXTEND 4 k a PX 5}", "ERR owner needs a value"),
    ("LOCK.{MACQUIRE|MRELEASE|MEXTEND} 1 j k {a} PX 5", UNKNOWN),
    ("LOCK.MACQUIRE {2 k k a|3 k j k a}", r#"ERR key "k" is given twice"#),
    (r#"LOCK.MACQUIRE 2 "\x00'" "\x00'" a"#, r#"ERR key "\x00'" is given twice"#),
    ("LOCK.{MRELEASE 2 both both a|MEXTEND 2 both both a PX 5}", r#"ERR key "both" is given twice"#),
    (r#"LOCK.{MACQUIRE|MRELEASE} 2 j k """#, EMPTY),
    ("LOCK.MACQUIRE 2 j k @257", TOO_LONG),
    ("LOCK.MACQUIRE 2 j k * RETRY 1", RETRY_MADE),
    ("LOCK.{MRELEASE 2 j k *|MEXTEND 2 j k * PX 5}", MADE),
    ("LOCK.{MACQUIRE|MEXTEND} 2 j k a PX 0", PX),
    ("LOCK.MACQUIRE 2 j k a EX 86401", EX),
    ("LOCK.MACQUIRE 2 j k a BLOCK -1", BLOCK),
    ("LOCK.{MACQUIRE 2 j k a SESSION x|MEXTEND 2 j k a PX 5 SESSION -1}", SESSION),
    ("LOCK.MACQUIRE 2 j k a RETRY 0", RETRY),
    ("LOCK.MACQUIRE 2 j k a NOTE @257", NOTE_TOO_LONG),
    ("LOCK.MRELEASE 2 j k a TO -1", TO),
    ("LOCK.MACQUIRE 2 j k a {NOTE|SESSION}", NEEDS),
    ("LOCK.MACQUIRE 2 j k a READ WRITE", "ERR READ and WRITE exclude each other"),
    ("LOCK.MACQUIRE 2 j k a PX 5 WRITE EX 5", "ERR PX and EX exclude each other"),
    ("LOCK.MACQUIRE 2 j k a READ read", "ERR READ is given twice"),
    ("LOCK.MACQUIRE 2 j k a BLOCK 0 PX 5 BLOCK 0", "ERR BLOCK is given twice"),
    ("LOCK.{MACQUIRE 2 j k a|MEXTEND 1 k a} SESSION 5 PX 5 SESSION 5", "ERR SESSION is given twice"),
    ("LOCK.MACQUIRE {2 j k|1 j} a {FENCE|MINFENCE|ALL|COUNT} 5", UNKNOWN),
    ("LOCK.MRELEASE 2 j k a {FENCE|SESSION|BLOCK} 5", UNKNOWN),
    ("LOCK.MRELEASE 2 j k a ALL TO 1", "ERR ALL and TO exclude each other"),
    ("LOCK.MRELEASE 2 j k a TO 1 TO 1", "ERR TO is given twice"),
    ("LOCK.MEXTEND {1 j|2 j k} a PX 5 {FENCE|NOTE|MINFENCE} 5", UNKNOWN),
    ("LOCK.MEXTEND 2 j k a SESSION 5", NO_LEASE),
    ("LOCK.MEXTEND 1 j a PX 5 PX 5", "ERR PX is given twice"),
    // One bad key is enough, wherever it stands.
    ("LOCK.MACQUIRE {2 k s a|2 s k a READ BLOCK 0|3 both k s a|2 j s *}", WRONGTYPE),
    ("LOCK.{MRELEASE 2 both s a ALL|MEXTEND 2 both s a PX 5}", WRONGTYPE),
    ("LOCK.MACQUIRE 2 k s a {NOPE}", UNKNOWN),
    // And so is one that is held, or that would be unclear.
    ("LOCK.MACQUIRE {2 k both c|2 both k *|3 k read j a PX 80000000 NOTE upgrade}", "nil"),
    ("LOCK.MACQUIRE 2 k read c READ{| BLOCK 0}", TOO_MANY_HOLDERS),
    ("LOCK.MRELEASE 2 {read both a|both read a TO 0}", AMBIGUOUS),
    ("LOCK.MRELEASE 2 both nobody c", "[nil nil]"),
    ("LOCK.MRELEASE 2 read nobody a WRITE", "[1 nil]"),
    ("LOCK.MEXTEND 3 nobody read both c PX 5", "[nil nil nil]"),
];

const NUMKEYS: &str = "ERR numkeys must be a whole number from 1 to 4294967295";
const TOO_MANY_KEYS: &str = "LIMIT numkeys is above lock.max-keys (64)";
const TOO_FEW_KEYS: &str = "ERR numkeys is greater than the number of arguments that follow";
const TOO_MANY_HOLDERS: &str = "LIMIT key has lock.max-holders-per-key holders";

/// What operators may get wrong.
const OPERATORS: &[Row] = &[
    ("LOCK.BREAK s{| a}", WRONGTYPE),
    ("LOCK.BREAK {nobody|both c}", "0"),
    (r#"LOCK.BREAK both """#, EMPTY),
    ("LOCK.BREAK both *", MADE),
    ("LOCK.BREAK both a {ALL|b|SESSION} 0", UNKNOWN),
    ("LOCK.{TOP COUNT -1|LOG COUNT x}", COUNT),
    ("LOCK.TOP {COUNT}", NEEDS),
    ("LOCK.TOP COUNT 1 COUNT 1", "ERR COUNT is given twice"),
    ("LOCK.TOP {RESET|k}", UNKNOWN),
    ("LOCK.LOG COUNT 5 RESET", "ERR COUNT and RESET exclude each other"),
    ("LOCK.LOG RESET COUNT 5", "ERR RESET and COUNT exclude each other"),
    ("LOCK.LOG RESET RESET", "ERR RESET is given twice"),
    ("LOCK.LOG {5}", UNKNOWN),
    ("LOCK.LOG", "[]"),
];

/// LOCK.HOLD is not for clients, whatever they send along.
const FACTS: &[Row] = &[
    ("LOCK.HOLD k a{| 0 0| x y z| 0 1 5 99999999999999 5000| V1| V1W1F5D99999999999999L5000}", HOLD),
    ("LOCK.HOLD {s a 0 0|both a 0 0|both b 0 1 1 1 1000|k V1F5}", HOLD),
];

const HOLD: &str = "ERR LOCK.HOLD is for replication: use LOCK.ACQUIRE (or start with lock.allow-hold yes)";

/// `s` is a string. Syntax is checked first.
const WRONG_TYPES: &[Row] = &[
    ("LOCK.{ACQUIRE s a|ACQUIRE s *|RW s a READ|RELEASE s a|RELEASE s a FENCE 5|EXTEND s a PX 5}", WRONGTYPE),
    ("LOCK.{GUARD s a 5 PING|CHECK s a|INFO s|INFO s OWNER a}", WRONGTYPE),
    ("LOCK.{ACQUIRE s a BLOCK 0|RW s * READ BLOCK 5|RW s a WRITE BLOCK 0 RETRY 1}", WRONGTYPE),
    ("LOCK.ACQUIRE s a BLOCK x", BLOCK),
    ("LOCK.ACQUIRE s a PX 0", PX),
    ("LOCK.RW s a NEITHER", "ERR mode must be READ or WRITE"),
    ("LOCK.RELEASE s a ALL TO 1", "ERR ALL and TO exclude each other"),
    ("LOCK.EXTEND s a FENCE 5", NO_LEASE),
    ("LOCK.INFO s {COUNT}", NEEDS),
];

/// What the state refuses: `both` is held by a in both modes, `read` by a and b, `full` has all the holders it may
/// have.
const REFUSED_BY_STATE: &[Row] = &[
    ("LOCK.RELEASE both a{| TO 0| TO 4294967295}", AMBIGUOUS),
    // To wait would be to wait for a place, not for the lock.
    ("LOCK.RW read {c READ|c READ PX 80000000 NOTE late|* READ|c READ BLOCK 0}", TOO_MANY_HOLDERS),
    // Not errors, but refusals all the same.
    ("LOCK.{ACQUIRE read c PX 80000000|RW read a WRITE PX 80000000 NOTE upgrade|RW both c READ|ACQUIRE both *}", "nil"),
    ("LOCK.RELEASE {both c|both a FENCE 5|nobody a}", "nil"),
    ("LOCK.RELEASE read a {WRITE|WRITE ALL|TO 1}", "1"),
    ("LOCK.EXTEND {both c PX 5|both a PX 5 FENCE 5|nobody a PX 5}", "nil"),
    ("LOCK.INFO nobody", "nil"),
];

const AMBIGUOUS: &str = "ERR the owner holds both modes: name READ or WRITE";

const STATE: &[Row] = &[
    ("SET s text", "OK"),
    ("LOCK.ACQUIRE both a PX 60000 NOTE first", "#1"),
    ("LOCK.RW both a READ", "#1"),
    ("LOCK.RW read a READ PX 60000", "#2"),
    ("LOCK.RW read b READ PX 60000", "#3"),
];

/// All tables, but the first, whose errors the server words differently in scripts.
const TABLES: &[&[Row]] = &[OWNERS, NUMBERS, OPTIONS, MANY, OPERATORS, FACTS, WRONG_TYPES, REFUSED_BY_STATE];

#[test]
fn a_malformed_request_is_answered_with_one_exact_error() {
    // A client would take the error of one command for the reply to the next, or could not tell what it did wrong.
    let server = Server::setup().lock_option("max-holders-per-key", "2").start();
    for mut wire in [Connection::resp2(&server), Connection::resp3(&server)] {
        let mut player = Player::new(&mut wire, Way::Plain);
        player.play(STATE);
        player.go_on(&each(ARITY));
        TABLES.iter().for_each(|rows| player.go_on(&each(rows)));
    }
}

#[test]
fn the_errors_are_the_same_in_a_transaction_a_script_and_a_function() {
    // A script that compares the code of an error would work outside and fail inside.
    let server = Server::setup().lock_option("max-holders-per-key", "2").start();
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    for way in [Way::Exec, Way::Script, Way::Function] {
        let mut player = Player::new(&mut wire, way);
        player.play(STATE);
        TABLES.iter().for_each(|rows| player.go_on(&each(rows)));
    }
    Player::new(&mut wire, Way::Exec).go_on(&each(ARITY));
}

#[test]
fn a_refusal_leaves_no_trace() {
    // A refused request that changes a lease, a note or the fence clock, or reaches the replicas, is no refusal.
    let server = Server::setup().option("appendonly", "yes").lock_option("max-holders-per-key", "2").start();
    let mut wire = Connection::resp2(&server);
    let mut watcher = server.connect();
    let mut player = Player::new(&mut wire, Way::Plain);
    player.play(STATE);
    let before = Trace::of(&server);
    let leases: Vec<_> = ["both", "read"].iter().map(|key| watcher.lock_info(key).unwrap()).collect();
    for row in [ARITY].iter().chain(TABLES).flat_map(|rows| each(rows)) {
        player.go_on(&[row]);
        assert_eq!(Trace::of(&server), before, "{}", row.0);
    }
    for (key, before) in ["both", "read"].iter().zip(leases) {
        for (then, now) in before.holders.iter().zip(watcher.lock_info(key).unwrap().holders) {
            assert_eq!(
                (&now.owner, now.reads, now.writes, now.fence),
                (&then.owner, then.reads, then.writes, then.fence)
            );
            assert_eq!(now.note, then.note);
            assert!(now.ttl_ms <= then.ttl_ms && now.ttl_ms > 0, "{now:?}, was {then:?}");
        }
    }
    // And the append-only file has the commands that were served, no other.
    let written: Vec<_> = server.aof_tail().iter().map(|command| command[..command.len().min(2)].join(" ")).collect();
    let served = ["FLUSHALL", "SET s", "LOCK.HOLD both", "LOCK.HOLD both", "LOCK.HOLD read", "LOCK.HOLD read"];
    assert_eq!(written, served);
}

/// What a request may leave behind: values, keys, the length of the file, and what INFO counts but for the refusals.
#[derive(Debug, PartialEq)]
struct Trace(Vec<String>, u64, u64, Vec<String>);

impl Trace {
    fn of(server: &Server) -> Trace {
        // The server may put a write off while it waits for the disk.
        server.await_aof();
        let mut conn = server.connect();
        let counted: String = conn.get(&["INFO", "lock"]);
        let refusals = ["lock_refused", "lock_guard_refused", "lock_shares_refused"];
        let counted = counted.lines().filter(|line| !refusals.iter().any(|field| line.starts_with(field)));
        Trace(
            conn.get(&["DEBUG", "DIGEST-VALUE", "both", "read", "s", "k", "nobody"]),
            conn.get(&["DBSIZE"]),
            conn.info_number("persistence", "aof_current_size"),
            counted.map(str::to_owned).collect(),
        )
    }
}
