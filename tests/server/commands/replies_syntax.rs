//! What a malformed request is answered: exactly one error, naming the argument, and no trace of it.

use crate::harness::connection::{Connection, Way};
use crate::harness::transcript::{Player, Row};
use testbed::Server;

/// Wrong arity: the server's own text.
const ARITY: &[Row] = &[
    ("LOCK.ACQUIRE", "ERR wrong number of arguments for 'lock.acquire' command"),
    ("LOCK.ACQUIRE k", "ERR wrong number of arguments for 'lock.acquire' command"),
    ("LOCK.RW k a", "ERR wrong number of arguments for 'lock.rw' command"),
    ("LOCK.SHARE k a", "ERR wrong number of arguments for 'lock.share' command"),
    ("LOCK.RELEASE k", "ERR wrong number of arguments for 'lock.release' command"),
    ("LOCK.EXTEND k a", "ERR wrong number of arguments for 'lock.extend' command"),
    ("LOCK.EXTEND k a PX", "ERR wrong number of arguments for 'lock.extend' command"),
    ("LOCK.GUARD k a 5", "ERR wrong number of arguments for 'lock.guard' command"),
    ("LOCK.CHECK k", "ERR wrong number of arguments for 'lock.check' command"),
    ("LOCK.INFO", "ERR wrong number of arguments for 'lock.info' command"),
    ("LOCK.HOLD k", "ERR wrong number of arguments for 'lock.hold' command"),
    ("LOCK.MACQUIRE", "ERR wrong number of arguments for 'lock.macquire' command"),
    ("LOCK.MACQUIRE 1 k", "ERR wrong number of arguments for 'lock.macquire' command"),
    ("LOCK.MRELEASE 1 k", "ERR wrong number of arguments for 'lock.mrelease' command"),
    ("LOCK.MEXTEND 1 k a PX", "ERR wrong number of arguments for 'lock.mextend' command"),
    ("LOCK.BREAK", "ERR wrong number of arguments for 'lock.break' command"),
];

/// Owners and notes that cannot be.
const OWNERS: &[Row] = &[
    (r#"LOCK.ACQUIRE k """#, "ERR owner must not be empty"),
    (r#"LOCK.RW k "" READ"#, "ERR owner must not be empty"),
    (r#"LOCK.SHARE k "" 5"#, "ERR owner must not be empty"),
    ("LOCK.SHARE k * 5 RETRY 1", "ERR RETRY cannot repeat an acquisition by owner *: name the owner"),
    ("LOCK.SHARE k * 5 QUEUE 1", "ERR QUEUE needs an owner of your own: * is another one each time"),
    (r#"LOCK.RELEASE k """#, "ERR owner must not be empty"),
    (r#"LOCK.GUARD k "" 5 PING"#, "ERR owner must not be empty"),
    ("LOCK.GUARD k * 5 PING", "ERR owner * can only acquire: use the owner that the server made"),
    (r#"LOCK.CHECK k """#, "ERR owner must not be empty"),
    ("LOCK.CHECK k *", "ERR owner * can only acquire: use the owner that the server made"),
    (r#"LOCK.EXTEND k "" PX 1"#, "ERR owner must not be empty"),
    ("LOCK.ACQUIRE k @257", "LIMIT owner is longer than lock.max-owner-bytes (256)"),
    ("LOCK.RW k @257 READ", "LIMIT owner is longer than lock.max-owner-bytes (256)"),
    ("LOCK.RELEASE k *", "ERR owner * can only acquire: use the owner that the server made"),
    ("LOCK.EXTEND k * PX 1", "ERR owner * can only acquire: use the owner that the server made"),
    ("LOCK.ACQUIRE k * RETRY 1", "ERR RETRY cannot repeat an acquisition by owner *: name the owner"),
    ("LOCK.RW k * READ BLOCK 0 RETRY 1", "ERR RETRY cannot repeat an acquisition by owner *: name the owner"),
    ("LOCK.ACQUIRE k a NOTE @257", "LIMIT note is longer than lock.max-note-bytes (256)"),
    ("LOCK.EXTEND k a PX 5 NOTE @257", "LIMIT note is longer than lock.max-note-bytes (256)"),
    ("LOCK.RW k a READ NOTE @257", "LIMIT note is longer than lock.max-note-bytes (256)"),
];

/// Numbers that are none, or out of range.
const NUMBERS: &[Row] = &[
    ("LOCK.ACQUIRE k a PX 0", PX),
    ("LOCK.ACQUIRE k a PX -1", PX),
    ("LOCK.ACQUIRE k a PX +1", PX),
    ("LOCK.ACQUIRE k a PX 01", PX),
    ("LOCK.ACQUIRE k a PX 00", PX),
    ("LOCK.ACQUIRE k a PX 1.0", PX),
    ("LOCK.ACQUIRE k a PX 1e3", PX),
    ("LOCK.ACQUIRE k a PX 0x10", PX),
    ("LOCK.ACQUIRE k a PX ms", PX),
    (r#"LOCK.ACQUIRE k a PX """#, PX),
    (r#"LOCK.ACQUIRE k a PX " 1""#, PX),
    (r#"LOCK.ACQUIRE k a PX "1 ""#, PX),
    (r#"LOCK.ACQUIRE k a PX "1\x00""#, PX),
    (r#"LOCK.ACQUIRE k a PX "\xff""#, PX),
    ("LOCK.ACQUIRE k a PX 86400001", PX),
    ("LOCK.ACQUIRE k a PX 9223372036854775807", PX),
    ("LOCK.ACQUIRE k a PX 9223372036854775808", PX),
    ("LOCK.ACQUIRE k a PX 18446744073709551615", PX),
    ("LOCK.ACQUIRE k a PX 18446744073709551616", PX),
    ("LOCK.ACQUIRE k a PX -9223372036854775808", PX),
    ("LOCK.ACQUIRE k a PX 340282366920938463463374607431768211456", PX),
    ("LOCK.ACQUIRE k a PX NOTE x", PX),
    ("LOCK.ACQUIRE k a EX 0", EX),
    ("LOCK.ACQUIRE k a EX -1", EX),
    ("LOCK.ACQUIRE k a EX 010", EX),
    ("LOCK.ACQUIRE k a EX 86401", EX),
    // Times a thousand this is 384 in 64 bits.
    ("LOCK.ACQUIRE k a EX 18446744073709552", EX),
    ("LOCK.ACQUIRE k a BLOCK -1", BLOCK),
    ("LOCK.ACQUIRE k a BLOCK 00", BLOCK),
    ("LOCK.ACQUIRE k a BLOCK 0.5", BLOCK),
    ("LOCK.ACQUIRE k a BLOCK 315360000001", BLOCK),
    ("LOCK.ACQUIRE k a BLOCK 18446744073709551616", BLOCK),
    ("LOCK.ACQUIRE k a BLOCK forever", BLOCK),
    (r#"LOCK.ACQUIRE k a BLOCK """#, BLOCK),
    ("LOCK.RW k a READ BLOCK PX 5", BLOCK),
    ("LOCK.ACQUIRE k a RETRY 0", RETRY),
    ("LOCK.ACQUIRE k a RETRY -1", RETRY),
    ("LOCK.ACQUIRE k a RETRY 01", RETRY),
    ("LOCK.ACQUIRE k a RETRY 4294967296", RETRY),
    ("LOCK.ACQUIRE k a RETRY BLOCK 0", RETRY),
    ("LOCK.RW k a WRITE BLOCK 0 RETRY once", RETRY),
    ("LOCK.RW k a READ PX 0", PX),
    ("LOCK.SHARE k a 0", LIMIT),
    ("LOCK.SHARE k a 05", LIMIT),
    ("LOCK.SHARE k a 4294967296", LIMIT),
    ("LOCK.SHARE k a TAKE 1", LIMIT),
    ("LOCK.SHARE k a 5 TAKE 0", TAKE),
    ("LOCK.SHARE k a 5 TAKE 6", TAKE),
    ("LOCK.SHARE k a 5 TAKE all", TAKE),
    ("LOCK.SHARE k a 5 TAKE 3 RETRY 2", RETRY_OF_SHARES),
    ("LOCK.SHARE k a 5 RETRY 2 TAKE 3", RETRY_OF_SHARES),
    ("LOCK.SHARE k a 5 TAKE 3 RETRY 6", RETRY_OF_SHARES),
    ("LOCK.SHARE k a 5 PX 0", PX),
    ("LOCK.RW k a WRITE EX 86401", EX),
    ("LOCK.EXTEND k a PX 0", PX),
    ("LOCK.EXTEND k a PX 86400001", PX),
    ("LOCK.EXTEND k a EX 86401", EX),
    ("LOCK.EXTEND k a PX 1 FENCE 0", FENCE),
    ("LOCK.EXTEND k a PX 1 FENCE 9007199254740992", FENCE),
    ("LOCK.ACQUIRE k a MINFENCE 0", MINFENCE),
    ("LOCK.ACQUIRE k a MINFENCE -5", MINFENCE),
    ("LOCK.ACQUIRE k a MINFENCE 05", MINFENCE),
    ("LOCK.ACQUIRE k a MINFENCE 9007199254740992", MINFENCE),
    ("LOCK.ACQUIRE k a MINFENCE 9223372036854775808", MINFENCE),
    ("LOCK.ACQUIRE k a MINFENCE PX 5", MINFENCE),
    ("LOCK.RW k a READ MINFENCE 0", MINFENCE),
    ("LOCK.EXTEND k a PX 1 MINFENCE 0", MINFENCE),
    ("LOCK.EXTEND k a PX 1 MINFENCE 18446744073709551616", MINFENCE),
    ("LOCK.GUARD k a 0 PING", GUARD_FENCE),
    ("LOCK.GUARD k a 05 PING", GUARD_FENCE),
    ("LOCK.GUARD k a -5 PING", GUARD_FENCE),
    ("LOCK.GUARD k a 9007199254740992 PING", GUARD_FENCE),
    ("LOCK.GUARD k a FENCE 5 PING", GUARD_FENCE),
    ("LOCK.GUARD k a PING 5", GUARD_FENCE),
    ("LOCK.CHECK k a FENCE 0", FENCE),
    ("LOCK.CHECK k a FENCE 9007199254740992", FENCE),
    ("LOCK.CHECK k a FENCE WRITE", FENCE),
    ("LOCK.RELEASE k a FENCE 0", FENCE),
    ("LOCK.RELEASE k a FENCE -1", FENCE),
    ("LOCK.RELEASE k a FENCE 007", FENCE),
    ("LOCK.RELEASE k a FENCE 9007199254740992", FENCE),
    ("LOCK.RELEASE k a FENCE nil", FENCE),
    ("LOCK.RELEASE k a TO -1", TO),
    ("LOCK.RELEASE k a TO 00", TO),
    ("LOCK.RELEASE k a TO 4294967296", TO),
    ("LOCK.RELEASE k a TO ALL", TO),
    ("LOCK.INFO k COUNT -1", COUNT),
    ("LOCK.INFO k COUNT 4294967296", COUNT),
    ("LOCK.INFO k COUNT all", COUNT),
    ("LOCK.INFO k COUNT 03", COUNT),
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

/// Options that are unknown, given twice, without their value, or exclude each other.
const OPTIONS: &[Row] = &[
    ("LOCK.ACQUIRE k a FOREVER", r#"ERR unknown option "FOREVER""#),
    ("LOCK.ACQUIRE k a PXX 5", r#"ERR unknown option "PXX""#),
    ("LOCK.ACQUIRE k a P 5", r#"ERR unknown option "P""#),
    ("LOCK.ACQUIRE k a 5000", r#"ERR unknown option "5000""#),
    (r#"LOCK.ACQUIRE k a """#, r#"ERR unknown option """#),
    (r#"LOCK.ACQUIRE k a "\x00\r\n\xff""#, r#"ERR unknown option "\x00\r\n\xff""#),
    ("LOCK.ACQUIRE k a READ", r#"ERR unknown option "READ""#),
    ("LOCK.ACQUIRE k a FENCE 5", r#"ERR unknown option "FENCE""#),
    ("LOCK.SHARE k a 5 MINFENCE 5", r#"ERR unknown option "MINFENCE""#),
    ("LOCK.RELEASE k a MINFENCE 5", r#"ERR unknown option "MINFENCE""#),
    ("LOCK.CHECK k a MINFENCE 5", r#"ERR unknown option "MINFENCE""#),
    ("LOCK.ACQUIRE k a MINFENCE", "ERR MINFENCE needs a value"),
    ("LOCK.RW k a WRITE MINFENCE", "ERR MINFENCE needs a value"),
    ("LOCK.EXTEND k a PX 5 MINFENCE", "ERR MINFENCE needs a value"),
    ("LOCK.EXTEND k a MINFENCE 5", "ERR PX or EX is needed"),
    ("LOCK.ACQUIRE k a MINFENCE 5 minfence 5", "ERR MINFENCE is given twice"),
    ("LOCK.EXTEND k a MINFENCE 5 PX 5 MINFENCE 5", "ERR MINFENCE is given twice"),
    ("LOCK.ACQUIRE k a PX 5 EXTRA", r#"ERR unknown option "EXTRA""#),
    ("LOCK.RW k a WRITE READ", r#"ERR unknown option "READ""#),
    ("LOCK.RW k a READ ALL", r#"ERR unknown option "ALL""#),
    ("LOCK.RW k a BOTH", "ERR mode must be READ or WRITE"),
    ("LOCK.RW k a PX 5 READ", "ERR mode must be READ or WRITE"),
    (r#"LOCK.RW k a """#, "ERR mode must be READ or WRITE"),
    ("LOCK.ACQUIRE k a TAKE 5", r#"ERR unknown option "TAKE""#),
    ("LOCK.RW k a READ TAKE 5", r#"ERR unknown option "TAKE""#),
    ("LOCK.SHARE k a 5 READ", r#"ERR unknown option "READ""#),
    ("LOCK.SHARE k a 5 6", r#"ERR unknown option "6""#),
    ("LOCK.SHARE k a 5 TAKE", "ERR TAKE needs a value"),
    ("LOCK.SHARE k a 5 TAKE 2 TAKE 2", "ERR TAKE is given twice"),
    ("LOCK.ACQUIRE k a WAIT 5", r#"ERR unknown option "WAIT""#),
    ("LOCK.CHECK k a BLOCK 5", r#"ERR unknown option "BLOCK""#),
    ("LOCK.CHECK k a BOTH", r#"ERR unknown option "BOTH""#),
    ("LOCK.CHECK k a READ WRITE", "ERR READ and WRITE exclude each other"),
    ("LOCK.CHECK k a FENCE 5 FENCE 5", "ERR FENCE is given twice"),
    ("LOCK.CHECK k a FENCE", "ERR FENCE needs a value"),
    ("LOCK.RELEASE k a BLOCK 5", r#"ERR unknown option "BLOCK""#),
    ("LOCK.RELEASE k a RETRY 5", r#"ERR unknown option "RETRY""#),
    ("LOCK.EXTEND k a PX 5 BLOCK 0", r#"ERR unknown option "BLOCK""#),
    ("LOCK.EXTEND k a PX 5 RETRY 1", r#"ERR unknown option "RETRY""#),
    ("LOCK.INFO k BLOCK 0", r#"ERR unknown option "BLOCK""#),
    ("LOCK.RELEASE k a PX 5", r#"ERR unknown option "PX""#),
    ("LOCK.RELEASE k a 1", r#"ERR unknown option "1""#),
    ("LOCK.EXTEND k a NOTE x", "ERR PX or EX is needed"),
    ("LOCK.EXTEND k a PX 5 NOTE", "ERR NOTE needs a value"),
    ("LOCK.EXTEND k a NOTE x PX 5 NOTE x", "ERR NOTE is given twice"),
    ("LOCK.MEXTEND 1 k a PX 5 NOTE x", r#"ERR unknown option "NOTE""#),
    ("LOCK.EXTEND k a PX 5 ALL", r#"ERR unknown option "ALL""#),
    ("LOCK.EXTEND k a 5000 PX", r#"ERR unknown option "5000""#),
    ("LOCK.EXTEND k a FENCE 5", "ERR PX or EX is needed"),
    ("LOCK.INFO k a", r#"ERR unknown option "a""#),
    ("LOCK.INFO k OWNER a b", r#"ERR unknown option "b""#),
    ("LOCK.ACQUIRE k a PX", "ERR PX needs a value"),
    ("LOCK.ACQUIRE k a EX", "ERR EX needs a value"),
    ("LOCK.ACQUIRE k a NOTE", "ERR NOTE needs a value"),
    ("LOCK.ACQUIRE k a BLOCK", "ERR BLOCK needs a value"),
    ("LOCK.ACQUIRE k a BLOCK 0 RETRY", "ERR RETRY needs a value"),
    ("LOCK.ACQUIRE k a PX 5 NOTE", "ERR NOTE needs a value"),
    ("LOCK.RW k a READ px", "ERR PX needs a value"),
    ("LOCK.RELEASE k a TO", "ERR TO needs a value"),
    ("LOCK.RELEASE k a ALL FENCE", "ERR FENCE needs a value"),
    ("LOCK.EXTEND k a PX 5 FENCE", "ERR FENCE needs a value"),
    ("LOCK.INFO k OWNER", "ERR OWNER needs a value"),
    ("LOCK.INFO k COUNT", "ERR COUNT needs a value"),
    ("LOCK.ACQUIRE k a PX 5 PX 5", "ERR PX is given twice"),
    ("LOCK.ACQUIRE k a EX 5 ex 6", "ERR EX is given twice"),
    ("LOCK.ACQUIRE k a BLOCK 0 block 0", "ERR BLOCK is given twice"),
    ("LOCK.RW k a READ RETRY 1 BLOCK 5 RETRY 1", "ERR RETRY is given twice"),
    ("LOCK.ACQUIRE k a NOTE x NOTE y", "ERR NOTE is given twice"),
    ("LOCK.RELEASE k a ALL ALL", "ERR ALL is given twice"),
    ("LOCK.RELEASE k a TO 1 TO 1", "ERR TO is given twice"),
    ("LOCK.RELEASE k a READ read", "ERR READ is given twice"),
    ("LOCK.RELEASE k a FENCE 5 FENCE 5", "ERR FENCE is given twice"),
    ("LOCK.EXTEND k a PX 5 PX 5", "ERR PX is given twice"),
    ("LOCK.INFO k COUNT 5 COUNT 5", "ERR COUNT is given twice"),
    ("LOCK.INFO k OWNER a OWNER a", "ERR OWNER is given twice"),
    ("LOCK.ACQUIRE k a PX 5 EX 5", "ERR PX and EX exclude each other"),
    ("LOCK.ACQUIRE k a EX 5 NOTE x PX 5", "ERR EX and PX exclude each other"),
    ("LOCK.RW k a READ PX 5 EX 5", "ERR PX and EX exclude each other"),
    ("LOCK.RELEASE k a READ WRITE", "ERR READ and WRITE exclude each other"),
    ("LOCK.RELEASE k a WRITE ALL READ", "ERR WRITE and READ exclude each other"),
    ("LOCK.RELEASE k a ALL TO 1", "ERR ALL and TO exclude each other"),
    ("LOCK.RELEASE k a TO 1 READ ALL", "ERR TO and ALL exclude each other"),
    ("LOCK.EXTEND k a PX 5 EX 5", "ERR PX and EX exclude each other"),
];

/// Several keys: how many there are is read first, and decides what is a key.
const MANY: &[Row] = &[
    ("LOCK.MACQUIRE 0 k a", NUMKEYS),
    ("LOCK.MACQUIRE 0 a READ", NUMKEYS),
    ("LOCK.MACQUIRE -1 k a", NUMKEYS),
    ("LOCK.MACQUIRE +1 k a", NUMKEYS),
    ("LOCK.MACQUIRE 01 k a", NUMKEYS),
    ("LOCK.MACQUIRE 1.0 k a", NUMKEYS),
    ("LOCK.MACQUIRE x k a", NUMKEYS),
    ("LOCK.MACQUIRE k a PX 5", NUMKEYS),
    (r#"LOCK.MACQUIRE "" k a"#, NUMKEYS),
    (r#"LOCK.MACQUIRE "1\x00" k a"#, NUMKEYS),
    // As an int of 32 bits this is 1.
    ("LOCK.MACQUIRE 4294967297 k a", NUMKEYS),
    ("LOCK.MACQUIRE 18446744073709551617 k a", NUMKEYS),
    ("LOCK.MRELEASE 0 k a", NUMKEYS),
    ("LOCK.MRELEASE -1 k a", NUMKEYS),
    ("LOCK.MEXTEND 0 k a PX 5", NUMKEYS),
    ("LOCK.MEXTEND 01 k a PX 5", NUMKEYS),
    ("LOCK.MACQUIRE 65 k a", "LIMIT numkeys is above lock.max-keys (64)"),
    ("LOCK.MACQUIRE 4294967295 k a", "LIMIT numkeys is above lock.max-keys (64)"),
    ("LOCK.MRELEASE 65 k a", "LIMIT numkeys is above lock.max-keys (64)"),
    ("LOCK.MEXTEND 65 k a PX 5", "LIMIT numkeys is above lock.max-keys (64)"),
    ("LOCK.MACQUIRE 3 k a", TOO_FEW_KEYS),
    ("LOCK.MACQUIRE 64 k a", TOO_FEW_KEYS),
    ("LOCK.MRELEASE 3 k a", TOO_FEW_KEYS),
    ("LOCK.MEXTEND 5 k a PX 5", TOO_FEW_KEYS),
    // The owner was taken for a key, or a key for the owner.
    ("LOCK.MACQUIRE 2 k a", "ERR owner needs a value"),
    ("LOCK.MRELEASE 2 k a", "ERR owner needs a value"),
    ("LOCK.MEXTEND 4 k a PX 5", "ERR owner needs a value"),
    ("LOCK.MACQUIRE 1 j k a", r#"ERR unknown option "a""#),
    ("LOCK.MRELEASE 1 j k a", r#"ERR unknown option "a""#),
    ("LOCK.MEXTEND 1 j k a PX 5", r#"ERR unknown option "a""#),
    ("LOCK.MACQUIRE 2 k k a", r#"ERR key "k" is given twice"#),
    ("LOCK.MACQUIRE 3 k j k a", r#"ERR key "k" is given twice"#),
    (r#"LOCK.MACQUIRE 2 "\x00'" "\x00'" a"#, r#"ERR key "\x00'" is given twice"#),
    ("LOCK.MRELEASE 2 both both a", r#"ERR key "both" is given twice"#),
    ("LOCK.MEXTEND 2 both both a PX 5", r#"ERR key "both" is given twice"#),
    (r#"LOCK.MACQUIRE 2 j k """#, "ERR owner must not be empty"),
    ("LOCK.MACQUIRE 2 j k @257", "LIMIT owner is longer than lock.max-owner-bytes (256)"),
    ("LOCK.MACQUIRE 2 j k * RETRY 1", "ERR RETRY cannot repeat an acquisition by owner *: name the owner"),
    (r#"LOCK.MRELEASE 2 j k """#, "ERR owner must not be empty"),
    ("LOCK.MRELEASE 2 j k *", "ERR owner * can only acquire: use the owner that the server made"),
    ("LOCK.MEXTEND 2 j k * PX 5", "ERR owner * can only acquire: use the owner that the server made"),
    ("LOCK.MACQUIRE 2 j k a PX 0", PX),
    ("LOCK.MACQUIRE 2 j k a EX 86401", EX),
    ("LOCK.MACQUIRE 2 j k a BLOCK -1", BLOCK),
    ("LOCK.MACQUIRE 2 j k a SESSION x", SESSION),
    ("LOCK.MACQUIRE 2 j k a RETRY 0", RETRY),
    ("LOCK.MACQUIRE 2 j k a NOTE @257", "LIMIT note is longer than lock.max-note-bytes (256)"),
    ("LOCK.MRELEASE 2 j k a TO -1", TO),
    ("LOCK.MEXTEND 2 j k a PX 0", PX),
    ("LOCK.MEXTEND 2 j k a PX 5 SESSION -1", SESSION),
    ("LOCK.MACQUIRE 2 j k a NOTE", "ERR NOTE needs a value"),
    ("LOCK.MACQUIRE 2 j k a READ WRITE", "ERR READ and WRITE exclude each other"),
    ("LOCK.MACQUIRE 2 j k a PX 5 WRITE EX 5", "ERR PX and EX exclude each other"),
    ("LOCK.MACQUIRE 2 j k a READ read", "ERR READ is given twice"),
    ("LOCK.MACQUIRE 2 j k a BLOCK 0 PX 5 BLOCK 0", "ERR BLOCK is given twice"),
    ("LOCK.MACQUIRE 2 j k a SESSION 5 SESSION 5", "ERR SESSION is given twice"),
    ("LOCK.MACQUIRE 2 j k a FENCE 5", r#"ERR unknown option "FENCE""#),
    ("LOCK.MACQUIRE 2 j k a MINFENCE 5", r#"ERR unknown option "MINFENCE""#),
    ("LOCK.MACQUIRE 1 j a MINFENCE 5", r#"ERR unknown option "MINFENCE""#),
    ("LOCK.MEXTEND 1 j a PX 5 MINFENCE 5", r#"ERR unknown option "MINFENCE""#),
    ("LOCK.MACQUIRE 2 j k a ALL", r#"ERR unknown option "ALL""#),
    ("LOCK.MACQUIRE 2 j k a COUNT 5", r#"ERR unknown option "COUNT""#),
    ("LOCK.MRELEASE 2 j k a FENCE 5", r#"ERR unknown option "FENCE""#),
    ("LOCK.MRELEASE 2 j k a SESSION 5", r#"ERR unknown option "SESSION""#),
    ("LOCK.MRELEASE 2 j k a BLOCK 0", r#"ERR unknown option "BLOCK""#),
    ("LOCK.MRELEASE 2 j k a ALL TO 1", "ERR ALL and TO exclude each other"),
    ("LOCK.MRELEASE 2 j k a TO 1 TO 1", "ERR TO is given twice"),
    ("LOCK.MEXTEND 2 j k a PX 5 FENCE 5", r#"ERR unknown option "FENCE""#),
    ("LOCK.MEXTEND 2 j k a PX 5 NOTE x", r#"ERR unknown option "NOTE""#),
    ("LOCK.MEXTEND 2 j k a SESSION 5", "ERR PX or EX is needed"),
    ("LOCK.MEXTEND 1 j a PX 5 PX 5", "ERR PX is given twice"),
    // One bad key is enough, wherever it stands.
    ("LOCK.MACQUIRE 2 k s a", WRONGTYPE),
    ("LOCK.MACQUIRE 2 s k a READ BLOCK 0", WRONGTYPE),
    ("LOCK.MACQUIRE 3 both k s a", WRONGTYPE),
    ("LOCK.MACQUIRE 2 j s *", WRONGTYPE),
    ("LOCK.MRELEASE 2 both s a ALL", WRONGTYPE),
    ("LOCK.MEXTEND 2 both s a PX 5", WRONGTYPE),
    ("LOCK.MACQUIRE 2 k s a NOPE", r#"ERR unknown option "NOPE""#),
    // And so is one that is held, or that would be unclear.
    ("LOCK.MACQUIRE 2 k both c", "nil"),
    ("LOCK.MACQUIRE 2 both k *", "nil"),
    ("LOCK.MACQUIRE 3 k read j a PX 80000000 NOTE upgrade", "nil"),
    ("LOCK.MACQUIRE 2 k read c READ", "LIMIT key has lock.max-holders-per-key holders"),
    ("LOCK.MACQUIRE 2 k read c READ BLOCK 0", "LIMIT key has lock.max-holders-per-key holders"),
    ("LOCK.MRELEASE 2 read both a", AMBIGUOUS),
    ("LOCK.MRELEASE 2 both read a TO 0", AMBIGUOUS),
    ("LOCK.MRELEASE 2 both nobody c", "[nil nil]"),
    ("LOCK.MRELEASE 2 read nobody a WRITE", "[1 nil]"),
    ("LOCK.MEXTEND 3 nobody read both c PX 5", "[nil nil nil]"),
];

const NUMKEYS: &str = "ERR numkeys must be a whole number from 1 to 4294967295";
const TOO_FEW_KEYS: &str = "ERR numkeys is greater than the number of arguments that follow";
const SESSION: &str = "ERR SESSION must be a whole number from 0 to 315360000000";

/// What operators may get wrong.
const OPERATORS: &[Row] = &[
    ("LOCK.BREAK s", WRONGTYPE),
    ("LOCK.BREAK s a", WRONGTYPE),
    ("LOCK.BREAK nobody", "0"),
    ("LOCK.BREAK both c", "0"),
    (r#"LOCK.BREAK both """#, "ERR owner must not be empty"),
    ("LOCK.BREAK both *", "ERR owner * can only acquire: use the owner that the server made"),
    ("LOCK.BREAK both a ALL", r#"ERR unknown option "ALL""#),
    ("LOCK.BREAK both a b", r#"ERR unknown option "b""#),
    ("LOCK.TOP COUNT -1", COUNT),
    ("LOCK.TOP COUNT", "ERR COUNT needs a value"),
    ("LOCK.TOP COUNT 1 COUNT 1", "ERR COUNT is given twice"),
    ("LOCK.TOP RESET", r#"ERR unknown option "RESET""#),
    ("LOCK.TOP k", r#"ERR unknown option "k""#),
    ("LOCK.LOG COUNT x", COUNT),
    ("LOCK.LOG COUNT 5 RESET", "ERR COUNT and RESET exclude each other"),
    ("LOCK.LOG RESET COUNT 5", "ERR RESET and COUNT exclude each other"),
    ("LOCK.LOG RESET RESET", "ERR RESET is given twice"),
    ("LOCK.LOG 5", r#"ERR unknown option "5""#),
    ("LOCK.LOG", "[]"),
];

/// LOCK.HOLD is not for clients, whatever they send along.
const FACTS: &[Row] = &[
    ("LOCK.HOLD k a 0 1 5 99999999999999 5000", HOLD),
    ("LOCK.HOLD k a 0 0", HOLD),
    ("LOCK.HOLD s a 0 0", HOLD),
    ("LOCK.HOLD k a x y z", HOLD),
    ("LOCK.HOLD k a V1W1F5D99999999999999L5000", HOLD),
    ("LOCK.HOLD k a V1", HOLD),
    ("LOCK.HOLD k V1F5", HOLD),
    ("LOCK.HOLD k a", HOLD),
];

const HOLD: &str = "ERR LOCK.HOLD is for replication: use LOCK.ACQUIRE (or start with lock.allow-hold yes)";

/// `s` is a string. Syntax is checked first.
const WRONG_TYPES: &[Row] = &[
    ("LOCK.ACQUIRE s a", WRONGTYPE),
    ("LOCK.ACQUIRE s *", WRONGTYPE),
    ("LOCK.RW s a READ", WRONGTYPE),
    ("LOCK.RELEASE s a", WRONGTYPE),
    ("LOCK.RELEASE s a FENCE 5", WRONGTYPE),
    ("LOCK.EXTEND s a PX 5", WRONGTYPE),
    ("LOCK.GUARD s a 5 PING", WRONGTYPE),
    ("LOCK.CHECK s a", WRONGTYPE),
    ("LOCK.INFO s", WRONGTYPE),
    ("LOCK.INFO s OWNER a", WRONGTYPE),
    ("LOCK.ACQUIRE s a BLOCK 0", WRONGTYPE),
    ("LOCK.RW s * READ BLOCK 5", WRONGTYPE),
    ("LOCK.RW s a WRITE BLOCK 0 RETRY 1", WRONGTYPE),
    ("LOCK.ACQUIRE s a BLOCK x", BLOCK),
    ("LOCK.ACQUIRE s a PX 0", PX),
    ("LOCK.RW s a NEITHER", "ERR mode must be READ or WRITE"),
    ("LOCK.RELEASE s a ALL TO 1", "ERR ALL and TO exclude each other"),
    ("LOCK.EXTEND s a FENCE 5", "ERR PX or EX is needed"),
    ("LOCK.INFO s COUNT", "ERR COUNT needs a value"),
];

const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// What the state refuses: `both` is held by a in both modes, `read` by a and b, `full` has all the holders it may
/// have.
const REFUSED_BY_STATE: &[Row] = &[
    ("LOCK.RELEASE both a", AMBIGUOUS),
    ("LOCK.RELEASE both a TO 0", AMBIGUOUS),
    ("LOCK.RELEASE both a TO 4294967295", AMBIGUOUS),
    ("LOCK.RW read c READ", "LIMIT key has lock.max-holders-per-key holders"),
    ("LOCK.RW read c READ PX 80000000 NOTE late", "LIMIT key has lock.max-holders-per-key holders"),
    ("LOCK.RW read * READ", "LIMIT key has lock.max-holders-per-key holders"),
    // To wait would be to wait for a place, not for the lock.
    ("LOCK.RW read c READ BLOCK 0", "LIMIT key has lock.max-holders-per-key holders"),
    // Not errors, but refusals all the same.
    ("LOCK.ACQUIRE read c PX 80000000", "nil"),
    ("LOCK.RW read a WRITE PX 80000000 NOTE upgrade", "nil"),
    ("LOCK.RW both c READ", "nil"),
    ("LOCK.ACQUIRE both *", "nil"),
    ("LOCK.RELEASE both c", "nil"),
    ("LOCK.RELEASE both a FENCE 5", "nil"),
    ("LOCK.RELEASE read a WRITE", "1"),
    ("LOCK.RELEASE read a WRITE ALL", "1"),
    ("LOCK.RELEASE read a TO 1", "1"),
    ("LOCK.EXTEND both c PX 5", "nil"),
    ("LOCK.EXTEND both a PX 5 FENCE 5", "nil"),
    ("LOCK.RELEASE nobody a", "nil"),
    ("LOCK.EXTEND nobody a PX 5", "nil"),
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
        player.go_on(ARITY);
        TABLES.iter().for_each(|rows| player.go_on(rows));
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
        TABLES.iter().for_each(|rows| player.go_on(rows));
    }
    Player::new(&mut wire, Way::Exec).go_on(ARITY);
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
    for row in [ARITY].iter().chain(TABLES).copied().flatten() {
        player.go_on(&[*row]);
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
    assert_eq!(
        written,
        ["FLUSHALL", "SET s", "LOCK.HOLD both", "LOCK.HOLD both", "LOCK.HOLD read", "LOCK.HOLD read"]
            .map(|text| text.to_owned())
    );
}

/// What a request may leave behind.
#[derive(Debug, PartialEq)]
struct Trace {
    digest: String,
    keys: u64,
    leases: u64,
    fence_clock: u64,
    aof_bytes: u64,
    granted: u64,
    extended: u64,
    released: u64,
    queued: u64,
    waiters: u64,
}

impl Trace {
    fn of(server: &Server) -> Trace {
        // The server may put a write off while it waits for the disk.
        server.await_aof();
        let mut conn = server.connect();
        let mut number = |field: &str| conn.info_number("lock", field);
        let (leases, fence_clock) = (number("lock_leases"), number("lock_fence_clock"));
        let (granted, extended, released) = (number("lock_granted"), number("lock_extended"), number("lock_released"));
        let (queued, waiters) = (number("lock_queued"), number("lock_waiters"));
        Trace {
            digest: conn.get::<Vec<String>>(&["DEBUG", "DIGEST-VALUE", "both", "read", "s", "k", "nobody"]).join(" "),
            keys: conn.get(&["DBSIZE"]),
            leases,
            fence_clock,
            aof_bytes: conn.info_number("persistence", "aof_current_size"),
            granted,
            extended,
            released,
            queued,
            waiters,
        }
    }
}
