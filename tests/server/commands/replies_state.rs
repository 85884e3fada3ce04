//! What a request is answered by what is held: transcripts, in which `#1` is the first fence that was given, `#2` the
//! second, always higher. The same in RESP2 and RESP3, alone, in a transaction, a script and a function.

use crate::harness::connection::{Connection, Way};
use crate::harness::transcript::{Player, Row};
use testbed::Server;

/// The same owner again: counted, with the same fence; it leaves with the last count.
const AGAIN: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k b", "nil"),
    ("LOCK.ACQUIRE k A", "nil"),
    ("LOCK.RW k a WRITE", "#1"),
    ("LOCK.RW k b READ", "nil"),
    ("LOCK.RW k b WRITE", "nil"),
    ("LOCK.RELEASE k b", "nil"),
    ("LOCK.RELEASE k a", "2"),
    ("LOCK.RELEASE k a WRITE", "1"),
    ("EXISTS k", "1"),
    ("LOCK.RELEASE k a", "0"),
    ("EXISTS k", "0"),
    ("LOCK.RELEASE k a", "nil"),
    ("LOCK.ACQUIRE k b", "#2"),
    ("LOCK.ACQUIRE k a", "nil"),
    ("LOCK.ACQUIRE other a", "#3"),
];

/// Readers together, each with a fence of its own; a writer alone; the sole reader may become the writer.
const READERS: &[Row] = &[
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RW k b READ", "#2"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.ACQUIRE k c", "nil"),
    ("LOCK.RW k c WRITE", "nil"),
    // No upgrade beside another reader, for either of them, and nothing is lost by asking.
    ("LOCK.RW k a WRITE", "nil"),
    ("LOCK.ACQUIRE k b", "nil"),
    ("LOCK.RELEASE k b", "0"),
    ("LOCK.RW k a WRITE", "#3"),
    ("LOCK.RW k b READ", "nil"),
    (
        "LOCK.INFO k",
        "[mode write fence #3 shares 2 holding 1 holders [[owner a mode write reads 2 writes 1 fence #3]]]",
    ),
    ("LOCK.RELEASE k a FENCE #1 ALL", "nil"),
    ("LOCK.RELEASE k a", "ERR the owner holds both modes: name READ or WRITE"),
    ("LOCK.RELEASE k a FENCE #3", "ERR the owner holds both modes: name READ or WRITE"),
    ("LOCK.RELEASE k a FENCE #3 TO 1", "ERR the owner holds both modes: name READ or WRITE"),
    // Another fence: it does not hold that, so there is nothing to be ambiguous about.
    ("LOCK.RELEASE k a FENCE #1", "nil"),
    ("LOCK.RELEASE k a READ", "2"),
    ("LOCK.RELEASE k a READ", "1"),
    ("LOCK.RELEASE k a", "0"),
    ("EXISTS k", "0"),
];

/// The way back to read keeps the fence; to write again is a new upgrade.
const DOWNGRADE: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RW k b READ", "nil"),
    ("LOCK.RELEASE k a WRITE", "1"),
    ("LOCK.INFO k", "[mode read fence #1 shares 1 holding 1 holders [[owner a mode read reads 1 fence #1]]]"),
    ("LOCK.RW k b READ", "#2"),
    ("LOCK.RELEASE k b", "0"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RW k a WRITE", "#3"),
    ("LOCK.RELEASE k a WRITE", "2"),
    ("LOCK.RELEASE k a ALL", "0"),
];

/// How much is given back.
const AMOUNTS: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.RELEASE k a TO 3", "3"),
    ("LOCK.RELEASE k a TO 3", "3"),
    ("LOCK.RELEASE k a TO 4", "3"),
    ("LOCK.RELEASE k a TO 4294967295", "3"),
    ("LOCK.RELEASE k a WRITE TO 2", "2"),
    // A mode that it does not hold: the total, unchanged.
    ("LOCK.RELEASE k a READ", "2"),
    ("LOCK.RELEASE k a READ TO 0", "2"),
    ("LOCK.RELEASE k a READ ALL", "2"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RELEASE k a READ TO 2", "4"),
    ("LOCK.RELEASE k a READ TO 2", "4"),
    ("LOCK.RELEASE k a WRITE ALL", "2"),
    ("LOCK.RELEASE k a WRITE ALL", "2"),
    ("LOCK.RELEASE k a TO 0", "0"),
    ("LOCK.RELEASE k a TO 0", "nil"),
    ("EXISTS k", "0"),
    ("LOCK.ACQUIRE k a", "#2"),
    ("LOCK.RW k a READ", "#2"),
    ("LOCK.RELEASE k a ALL", "0"),
    ("EXISTS k", "0"),
    ("LOCK.RELEASE k a ALL", "nil"),
];

/// FENCE: only that hold.
const FENCES: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.RELEASE k a FENCE #1+1", "nil"),
    ("LOCK.RELEASE k a FENCE #1-1", "nil"),
    ("LOCK.RELEASE k a FENCE 9007199254740991", "nil"),
    ("LOCK.RELEASE k a FENCE 1 ALL", "nil"),
    ("LOCK.EXTEND k a PX 5000 FENCE #1+1", "nil"),
    ("LOCK.EXTEND k a PX 5000 FENCE 9007199254740991", "nil"),
    ("LOCK.EXTEND k a PX 60000 FENCE #1", "#1"),
    ("LOCK.EXTEND k a EX 60", "#1"),
    ("LOCK.EXTEND k b PX 5000", "nil"),
    ("LOCK.EXTEND k b PX 5000 FENCE #1", "nil"),
    ("LOCK.RELEASE k b FENCE #1", "nil"),
    ("LOCK.RELEASE k a FENCE #1", "0"),
    ("LOCK.EXTEND k a PX 5000", "nil"),
    ("LOCK.ACQUIRE k a", "#2"),
    // A late release of an earlier hold does not touch the new hold.
    ("LOCK.RELEASE k a FENCE #1", "nil"),
    ("LOCK.EXTEND k a PX 5000 FENCE #1", "nil"),
    ("LOCK.RELEASE k a FENCE #2", "0"),
];

/// Owners, notes and keys are bytes.
const BYTES: &[Row] = &[
    (r#"LOCK.ACQUIRE k "\x00""#, "#1"),
    (r#"LOCK.ACQUIRE k "\x00\x00""#, "nil"),
    (r#"LOCK.ACQUIRE k "\x00""#, "#1"),
    (r#"LOCK.RELEASE k "\x00\xff" ALL"#, "nil"),
    (r#"LOCK.RELEASE k "\x00" ALL"#, "0"),
    (r#"LOCK.ACQUIRE k "\xff\xfe\r\n" NOTE "\x00\xff""#, "#2"),
    (
        "LOCK.INFO k",
        r#"[mode write fence #2 holding 1 holders [[owner "\xff\xfe\r\n" mode write writes 1 fence #2 note "\x00\xff"]]]"#,
    ),
    (r#"LOCK.RELEASE k "\xff\xfe\r\n""#, "0"),
    ("LOCK.ACQUIRE k @256 NOTE @256", "#3"),
    ("LOCK.ACQUIRE k @255", "nil"),
    (
        "LOCK.INFO k OWNER @256",
        "[mode write fence #3 holding 1 holders [[owner @256 mode write writes 1 fence #3 note @256]]]",
    ),
    ("LOCK.RELEASE k @256", "0"),
    (r#"LOCK.ACQUIRE "\x00\xff k" a"#, "#4"),
    (r#"LOCK.ACQUIRE "\x00\xff k" b"#, "nil"),
    (r#"LOCK.ACQUIRE "\x00" b"#, "#5"),
    (r#"LOCK.ACQUIRE "" b"#, "#6"),
    (r#"LOCK.RELEASE "" b"#, "0"),
    // An owner that looks like an option is an owner.
    ("LOCK.ACQUIRE k PX PX 5000", "#7"),
    ("LOCK.RELEASE k PX", "0"),
    ("LOCK.ACQUIRE k ** NOTE NOTE", "#8"),
    ("LOCK.RELEASE k **", "0"),
];

/// The owner `*`: the server makes one, and says it beside the fence.
const MADE: &[Row] = &[
    ("LOCK.ACQUIRE k *", "[<made> #1]"),
    ("LOCK.ACQUIRE k *", "nil"),
    ("LOCK.RW k * READ", "nil"),
    ("LOCK.RW shared * READ PX 5000 NOTE x", "[<made> #2]"),
    ("LOCK.RW shared * READ", "[<made> #3]"),
    ("LOCK.RW shared * WRITE", "nil"),
    ("LOCK.INFO k OWNER *", "nil"),
];

/// NOTE is kept with the hold until another is given, or an extension takes it away.
const NOTES: &[Row] = &[
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.INFO k OWNER a", "[mode read fence #1 shares 1 holding 1 holders [[owner a mode read reads 1 fence #1]]]"),
    ("LOCK.RW k a READ NOTE first", "#1"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.EXTEND k a PX 60000", "#1"),
    ("LOCK.RELEASE k a", "2"),
    (
        "LOCK.INFO k OWNER a",
        "[mode read fence #1 shares 2 holding 1 holders [[owner a mode read reads 2 fence #1 note first]]]",
    ),
    ("LOCK.ACQUIRE k a", "#2"),
    (
        "LOCK.INFO k OWNER a",
        "[mode write fence #2 shares 2 holding 1 holders [[owner a mode write reads 2 writes 1 fence #2 note first]]]",
    ),
    ("LOCK.ACQUIRE k a NOTE second", "#2"),
    ("LOCK.ACQUIRE k b NOTE third", "nil"),
    (
        "LOCK.INFO k OWNER a",
        "[mode write fence #2 shares 2 holding 1 holders [[owner a mode write reads 2 writes 2 fence #2 note second]]]",
    ),
    (r#"LOCK.ACQUIRE k a NOTE """#, "#2"),
    (
        "LOCK.INFO k OWNER a",
        r#"[mode write fence #2 shares 2 holding 1 holders [[owner a mode write reads 2 writes 3 fence #2 note ""]]]"#,
    ),
    ("LOCK.EXTEND k a PX 60000 NOTE fourth FENCE #2", "#2"),
    ("LOCK.EXTEND k a PX 60000", "#2"),
    ("LOCK.EXTEND k a PX 60000 NOTE fifth FENCE #2+1", "nil"),
    ("LOCK.EXTEND k b NOTE fifth PX 60000", "nil"),
    (
        "LOCK.INFO k OWNER a",
        "[mode write fence #2 shares 2 holding 1 holders [[owner a mode write reads 2 writes 3 fence #2 note fourth]]]",
    ),
    // An empty note of an extension takes the note away.
    (r#"LOCK.EXTEND k a NOTE "" EX 60"#, "#2"),
    (
        "LOCK.INFO k OWNER a",
        "[mode write fence #2 shares 2 holding 1 holders [[owner a mode write reads 2 writes 3 fence #2]]]",
    ),
    ("LOCK.RELEASE k a ALL", "0"),
    ("LOCK.ACQUIRE k a", "#3"),
    ("LOCK.INFO k OWNER a", "[mode write fence #3 holding 1 holders [[owner a mode write writes 1 fence #3]]]"),
];

/// The holders.
const INFO: &[Row] = &[
    ("LOCK.INFO k", "nil"),
    ("LOCK.INFO k COUNT 0", "nil"),
    ("LOCK.INFO k OWNER a COUNT 5", "nil"),
    ("LOCK.RW k b READ", "#1"),
    ("LOCK.RW k a READ", "#2"),
    ("LOCK.RW k b READ", "#1"),
    (
        "LOCK.INFO k",
        "[mode read fence #2 shares 3 holding 2 holders [[owner a mode read reads 1 fence #2] [owner b mode read reads 2 fence #1]]]",
    ),
    ("LOCK.INFO k COUNT 0", "[mode read fence #2 shares 3 holding 2 holders []]"),
    ("LOCK.INFO k COUNT 1", "[mode read fence #2 shares 3 holding 2 holders [[owner a mode read reads 1 fence #2]]]"),
    ("lock.info k owner b", "[mode read fence #2 shares 3 holding 2 holders [[owner b mode read reads 2 fence #1]]]"),
    (
        "LOCK.INFO k COUNT 1 OWNER b",
        "[mode read fence #2 shares 3 holding 2 holders [[owner b mode read reads 2 fence #1]]]",
    ),
    // Null: it does not hold it.
    ("LOCK.INFO k OWNER c", "nil"),
    (r#"LOCK.INFO k OWNER """#, "nil"),
    ("LOCK.INFO k OWNER @1000", "nil"),
    // The highest fence given on the lock while it exists, though its holder has left.
    ("LOCK.RELEASE k a", "0"),
    (
        "LOCK.INFO k COUNT 4294967295",
        "[mode read fence #2 shares 2 holding 1 holders [[owner b mode read reads 2 fence #1]]]",
    ),
    ("LOCK.RELEASE k b ALL", "0"),
    ("LOCK.INFO k", "nil"),
];

/// Options in any case and order, and numbers at the ends of their ranges.
const OPTIONS: &[Row] = &[
    ("lock.acquire k a note x px 5000", "#1"),
    ("Lock.Rw k a wRiTe NoTe x eX 5", "#1"),
    ("LOCK.ACQUIRE k a EX 86400", "#1"),
    ("LOCK.ACQUIRE k a PX 86400000 NOTE PX", "#1"),
    ("lock.extend k a fence #1 ex 86400", "#1"),
    ("LOCK.EXTEND k a PX 86400000 FENCE #1", "#1"),
    ("lock.release k a fence #1 to 3 write", "3"),
    ("lock.release k a write fence #1 to 2", "2"),
    ("lock.release k a All Fence #1 Read", "2"),
    ("LOCK.RELEASE k a FENCE #1 ALL", "0"),
    ("LOCK.INFO k COUNT 4294967295 OWNER a", "nil"),
    ("LOCK.ACQUIRE k a PX 1", "#2"),
];

const TRANSCRIPTS: &[&[Row]] = &[AGAIN, READERS, DOWNGRADE, AMOUNTS, FENCES, BYTES, MADE, NOTES, INFO, OPTIONS];

fn play_all(wire: &mut Connection, way: Way) {
    for rows in TRANSCRIPTS {
        Player::new(wire, way).play(rows);
    }
}

#[test]
fn every_transcript_is_answered_as_written_in_resp2() {
    // A wrong count or fence makes a client believe that it holds what it does not, or leaves a lock behind.
    let server = Server::new();
    play_all(&mut Connection::resp2(&server), Way::Plain);
}

#[test]
fn every_transcript_is_answered_as_written_in_resp3() {
    // RESP3 has another null and maps: a reply made for one protocol only would differ here.
    let server = Server::new();
    play_all(&mut Connection::resp3(&server), Way::Plain);
}

#[test]
fn every_transcript_is_answered_as_written_in_a_transaction() {
    // EXEC answers in one array: a command that replies twice or not at all would shift the others.
    let server = Server::new();
    play_all(&mut Connection::resp2(&server), Way::Exec);
    play_all(&mut Connection::resp3(&server), Way::Exec);
}

#[test]
fn every_transcript_is_answered_as_written_in_a_script() {
    // Lua has doubles only: a fence above 2^53 would come back as another number.
    let server = Server::new();
    play_all(&mut Connection::resp2(&server), Way::Script);
    play_all(&mut Connection::resp3(&server), Way::Script);
}

#[test]
fn every_transcript_is_answered_as_written_in_a_function() {
    // A function runs with a client of its own, which has no connection.
    let (_server, mut wire) = Connection::alone();
    wire.load_function();
    play_all(&mut wire, Way::Function);
}
