//! What a guarded command replies is what it replies by itself, byte by byte.

use crate::harness::connection::Connection;

/// What is there. Words that need no quotes.
const THERE: &str = "\
    SET text value; SET number 7; RPUSH list a b c; HSET hash f 1 g 2; SADD set only; ZADD sorted 1.5 a 2 b; XADD \
    stream 1-1 f v; GEOADD places 13.361389 38.115556 palermo; SETBIT bits 7 1; PFADD log a; LOCK.ACQUIRE other x PX \
    600000";

/// Commands of all types of reply, which reply the same when they are sent again.
const COMMANDS: &str = "\
    PING; ECHO hello; SET text value; SET text other NX; SET text value GET; GET text; GET nothing; MGET text nothing \
    list; STRLEN text; GETRANGE text 1 2; TYPE list; EXISTS text nothing; DEL nothing; EXPIRE nothing 5; TTL text; \
    OBJECT ENCODING text; LRANGE list 0 -1; LRANGE nothing 0 -1; LPOP nothing; LPOP nothing 2; LMPOP 1 nothing LEFT; \
    LPOS list b; HGETALL hash; HGETALL nothing; HGET hash nothing; HMGET hash f nothing; HRANDFIELD nothing 2 \
    WITHVALUES; HINCRBYFLOAT hash new 0; SMEMBERS set; SMISMEMBER set only nothing; SRANDMEMBER nothing; ZSCORE \
    sorted a; ZSCORE sorted nothing; ZMSCORE sorted a nothing; ZRANGE sorted 0 -1 WITHSCORES; ZADD sorted INCR 0 a; \
    ZRANK sorted b; ZPOPMIN nothing; ZMPOP 1 nothing MIN; XRANGE stream - +; XINFO STREAM stream FULL; XREAD COUNT 1 \
    STREAMS stream 0; XREAD COUNT 1 STREAMS stream 5; GEOPOS places palermo nothing; GEOSEARCH places FROMMEMBER \
    palermo BYRADIUS 1 km WITHCOORD WITHDIST; BITFIELD bits GET u8 0 OVERFLOW FAIL INCRBY u2 100 9; PFCOUNT log; SCAN \
    0 COUNT 1000; LCS text text IDX; PUBLISH channel message; COMMAND INFO get nosuch; COMMAND DOCS nosuch; INFO \
    cluster; LOCK.INFO other; LOCK.CHECK other x; LOCK.CHECK other y; LOCK.MRELEASE 2 nothing none y";

/// Those that reply an error, which is the whole reply.
const ERRORS: &str = "\
    GET; NOSUCH a b; LPUSH text a; HINCRBY hash f x; SET text value NOSUCH; XADD stream 1-1 f v; LOCK.EXTEND other x";

#[test]
fn a_guarded_command_replies_as_it_does_by_itself() {
    // What could go wrong: a client library that knows the type of a command's reply gets another one, or one more.
    let (server, mut wire) = Connection::alone();
    for command in THERE.split("; ") {
        wire.say(command);
    }
    let fence = wire.say("LOCK.ACQUIRE k a PX 600000").int();
    for mut wire in [wire, Connection::resp3(&server)] {
        for command in COMMANDS.split("; ").chain(ERRORS.split("; ")) {
            let alone = without_times(&wire.bytes(command));
            let guarded = without_times(&wire.bytes(&format!("LOCK.GUARD k a {fence} {command}")));
            let expected = if alone.starts_with('-') { alone } else { format!("*2\\r\\n:{fence}\\r\\n{alone}") };
            assert_eq!(guarded, expected, "{command}");
        }
        assert_eq!(wire.bytes("PING"), "+PONG\\r\\n");
    }
}

/// Numbers that follow these names change from one call to the next.
fn without_times(bytes: &str) -> String {
    let mut text = bytes.to_owned();
    for name in ["ttl_ms\\r\\n:", "held_ms\\r\\n:"] {
        if let Some(at) = text.find(name) {
            let from = at + name.len();
            let to = from + text[from..].find('\\').unwrap();
            text.replace_range(from..to, "~");
        }
    }
    text
}
