//! `redis-lock ls`, `info` and `log`: what the servers know of locks, for operators.

use crate::args::{Operator, Task};
use crate::broken;
use crate::exit::{is_without_locks, printable, say};
use crate::nodes::{self, MOST, Node, Whose, all, each, look, look_all, named, with_place};
use crate::reply::{json, text, time_of};
use crate::shown;
use crate::table::{Table, line};
use redis_lock_client::Error;
use redis_lock_client::redis::{RedisError, cmd, from_redis_value};
use serde_json::Value as Json;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::Instant;

/// How many keys a server goes through in one step: less than a millisecond.
const STEP: u32 = 1000;

/// Answers, and gives the exit code.
pub(crate) fn answer(asked: &Operator) -> u8 {
    let nodes = match &asked.task {
        Task::List { .. } | Task::Log { .. } => all(&asked.servers),
        Task::Show { .. } | Task::Break { .. } => named(&asked.servers),
    };
    let nodes = match nodes {
        Ok(nodes) => nodes,
        Err(error) => return nodes::fail("", &error),
    };
    match &asked.task {
        Task::List { pattern } => list(&nodes, pattern, asked.json),
        Task::Show { key } => show(&nodes, key, asked.json),
        Task::Log { count } => log(&nodes, *count, asked.json),
        Task::Break { key, owner, is_sure } => {
            let wanted = broken::Wanted { key, owner: owner.as_deref(), is_sure: *is_sure };
            broken::end(&nodes, &wanted, asked.json)
        }
    }
}

/// What LOCK.INFO would say of a free lock.
fn free(node: &Node, key: &[u8]) -> Json {
    let fields = [("mode", Json::Null), ("fence", Json::Null), ("shares", 0.into()), ("reserved_by", Json::Null)];
    let lists = ["holders", "waiters"].map(|name| (name, Json::Array(Vec::new())));
    let counts = ["holding", "waiting"].map(|name| (name, 0.into()));
    let all = fields.into_iter().chain(lists).chain(counts);
    with_place(all.map(|(name, value)| (name.to_owned(), value)).collect(), node, key)
}

/// Such as `1 lock`, or `2 locks`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn list(nodes: &[Node], pattern: &OsStr, as_json: bool) -> u8 {
    let (mut found, mut locks) = (0_u64, Vec::new());
    // Not all who may scan may know how many keys there are.
    let mut among = Some(0_u64);
    let code = each(nodes, |node| {
        // A server without locks would be searched in vain. This is no request for a lock: any other answer will do.
        if let Some(error) = node.ask(&cmd("LOCK.INFO")).err().filter(is_without_locks) {
            return Err(error);
        }
        let size = node.ask(&cmd("DBSIZE")).ok().and_then(|size| from_redis_value::<u64>(size).ok());
        among = among.zip(size).map(|(among, size)| among + size);
        let (mut cursor, mut seen, mut refusal) = ("0".to_owned(), HashSet::new(), None);
        loop {
            let begun = Instant::now();
            let mut step = cmd("SCAN");
            step.arg(&cursor).arg("MATCH").arg(pattern.as_bytes()).arg("COUNT").arg(STEP).arg("TYPE").arg("redislock");
            let reply = from_redis_value(node.ask(&step)?);
            let keys: Vec<Vec<u8>>;
            (cursor, keys) = reply.map_err(|error| Error::Server(RedisError::from(error)))?;
            // A key may come twice, and may be free by now.
            let new: Vec<Vec<u8>> = keys.into_iter().filter(|key| seen.insert(key.clone())).collect();
            let (known, refused) = look_all(node, &new)?;
            refusal = refusal.or(refused);
            let took = begun.elapsed();
            for lock in known.into_iter().flatten() {
                found += 1;
                if !as_json {
                    locks.push(lock);
                } else if !line(&lock) {
                    return Ok(());
                }
            }
            if cursor == "0" {
                return refusal.map_or(Ok(()), Err);
            }
            // Others have the server for as long.
            sleep(took);
        }
    });
    locks.sort_by_cached_key(|lock| (text(&lock["key"]), text(&lock["server"])));
    let mut table = Table::new(&["SERVER", "KEY", "MODE", "HOLDER", "HELD", "LEFT", "WAITING", "NOTE"]);
    for lock in &locks {
        let holder = &lock["holders"][0];
        let more = lock["holding"].as_u64().unwrap_or(0).saturating_sub(1);
        let more = if more > 0 { format!(" +{more}") } else { String::new() };
        table.add(vec![
            text(&lock["server"]),
            text(&lock["key"]),
            text(&lock["mode"]),
            text(&holder["owner"]) + &more,
            time_of(&holder["held_ms"]),
            time_of(&holder["ttl_ms"]),
            text(&lock["waiting"]),
            text(&holder["note"]),
        ]);
    }
    table.print();
    let databases: BTreeSet<_> = nodes.iter().map(|node| node.db.to_string()).collect();
    let databases = databases.into_iter().collect::<Vec<_>>().join(", ");
    let among = among.map_or("all keys".to_owned(), |among| counted(among, "key"));
    say(format_args!("{} in database {databases}, went through {among}", counted(found, "lock")));
    code
}

fn show(nodes: &[Node], key: &OsStr, as_json: bool) -> u8 {
    each(nodes, |node| {
        let found = look(node, key.as_bytes(), Whose::First(MOST))?;
        let of = if nodes.len() > 1 { format!("{}: ", node.name) } else { String::new() };
        match found {
            found if as_json => drop(line(found.unwrap_or_else(|| free(node, key.as_bytes())))),
            None => drop(line(printable(format_args!("{of}{} is free", key.display())))),
            Some(lock) => show_to_people(&lock, &of),
        }
        Ok(())
    })
}

fn show_to_people(lock: &Json, of: &str) {
    line(format_args!("{}{}", printable(of), shown::head(lock)));
    shown::holders(lock).print();
    shown::waiters(lock).print();
}

fn log(nodes: &[Node], count: u32, as_json: bool) -> u8 {
    let mut rows = Vec::new();
    let code = each(nodes, |node| {
        let reply = json(node.ask(cmd("LOCK.LOG").arg("COUNT").arg(count))?);
        for row in reply.as_array().into_iter().flatten() {
            let mut row = row.clone();
            row["server"] = node.name.clone().into();
            rows.push(row);
        }
        Ok(())
    });
    rows.sort_by_key(|row| std::cmp::Reverse(row["time_ms"].as_u64()));
    if as_json {
        for row in rows {
            line(row);
        }
        return code;
    }
    shown::losses(&rows).print();
    code
}
