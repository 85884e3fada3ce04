//! One time for one unit: all commands of a transaction, a script or a function are judged by the time of the first.

use testbed::{Server, Value, wait_for};

/// Works until the lease of `k` is over.
const BEYOND: &str = "local function field(map, name)
    for i = 1, #map, 2 do if map[i] == name then return map[i + 1] end end
end
repeat until field(field(redis.call('LOCK.INFO', 'k'), 'holders')[1], 'ttl_ms') == 0 ";

/// What is there then.
const SEEN: &str = "return {redis.call('LOCK.CHECK', 'k', 'a'), #redis.call('LOCK.INFO', 'k'), redis.call('LOCK.ACQUIRE', 'k', 'b') == false, \
                    redis.call('LOCK.EXTEND', 'k', 'a', 'PX', 100) > 0} ";

const TAKEN: &str = "redis.call('LOCK.ACQUIRE', 'k', 'a', 'PX', 100) ";

/// Held by its owner; seen; refused to another owner; extended.
fn assert_held(reply: &Value) {
    let Value::Array(items) = reply else { panic!("{reply:?}") };
    assert!(
        matches!(items[..], [Value::Int(_), Value::Int(fields), Value::Int(1), Value::Int(1)] if fields > 0),
        "{reply:?}"
    );
}

#[test]
fn a_lease_that_ends_within_a_script_is_there_for_all_of_it_and_gone_after_it() {
    let (_server, mut conn) = Server::connected();
    let script = [TAKEN, BEYOND, SEEN].concat();
    assert_held(&conn.call(&["EVAL", &script, "1", "k"]).unwrap());
    // Another script is another unit.
    let next = "return redis.call('LOCK.INFO', 'k') == false";
    wait_for("the lease to end", || conn.int(&["EVAL", next, "1", "k"]) == Some(1));
}

#[test]
fn a_script_that_takes_so_long_that_the_server_looks_after_other_clients_is_one_unit_still() {
    // The server's own clock goes on then. It counts the instructions of the script to see when.
    const LONG: &str = "for i = 1, 5000000 do end ";
    let (_server, mut conn) = Server::setup().option("busy-reply-threshold", "1").connected();
    let script = [TAKEN, BEYOND, LONG, SEEN].concat();
    assert_held(&conn.call(&["EVAL", &script, "1", "k"]).unwrap());
    let again = ["redis.call('LOCK.EXTEND', 'k', 'a', 'PX', 100) ", BEYOND, LONG, "return 1"].concat();
    conn.ok(&["MULTI"]);
    for command in [vec!["LOCK.ACQUIRE", "k", "a"], vec!["EVAL", &again, "0"], vec!["EVAL", SEEN, "1", "k"]] {
        conn.call(&command).unwrap();
    }
    let Value::Array(items) = conn.call(&["EXEC"]).unwrap() else { panic!("not an array") };
    assert_held(&items[2]);
}

#[test]
fn a_lease_that_ends_within_a_transaction_is_there_for_all_of_it() {
    let (_server, mut conn) = Server::connected();
    conn.ok(&["MULTI"]);
    for command in [
        vec!["LOCK.ACQUIRE", "k", "a", "PX", "100"],
        vec!["DEBUG", "SLEEP", "0.2"],
        vec!["LOCK.ACQUIRE", "k", "b"],
        // A script within it has another client id, and no time of its own.
        vec!["EVAL", SEEN, "1", "k"],
        vec!["DEBUG", "SLEEP", "0.2"],
        vec!["LOCK.RELEASE", "k", "a"],
        vec!["LOCK.ACQUIRE", "k", "c", "PX", "60000"],
    ] {
        assert_eq!(conn.call(&command).unwrap(), Value::SimpleString("QUEUED".to_owned()));
    }
    let Value::Array(items) = conn.call(&["EXEC"]).unwrap() else { panic!("not an array") };
    assert_eq!(items[2], Value::Nil);
    assert_held(&items[3]);
    assert_eq!(items[5], Value::Int(0));
    assert!(matches!(items[6], Value::Int(_)));
    assert_eq!(conn.info_number("lock", "lock_lapsed"), 0);
}

#[test]
fn a_lease_that_ends_within_a_function_is_there_for_all_of_it() {
    let (_server, mut conn) = Server::connected();
    let body = [TAKEN, BEYOND, SEEN].concat();
    let library = format!("#!lua name=units\nredis.register_function('beyond', function(keys, args) {body} end)");
    conn.call(&["FUNCTION", "LOAD", &library]).unwrap();
    assert_held(&conn.call(&["FCALL", "beyond", "1", "k"]).unwrap());
}

#[test]
fn commands_of_one_pipeline_are_units_of_their_own() {
    // A pipeline may be as long as a lease.
    let (_server, mut conn) = Server::connected();
    let commands = [
        vec!["LOCK.ACQUIRE", "k", "a", "PX", "100"],
        vec!["DEBUG", "SLEEP", "0.2"],
        vec!["LOCK.ACQUIRE", "k", "b", "PX", "60000"],
    ];
    let mut pipeline = redis::pipe();
    for command in &commands {
        pipeline.cmd(command[0]).arg(&command[1..]);
    }
    let replies: Vec<Value> = pipeline.query(&mut conn.0).unwrap();
    assert!(matches!(replies[..], [Value::Int(_), _, Value::Int(_)]), "{replies:?}");
}
