//! `redis-lock break`: ends holds, after a question.

use crate::exit::{self, printable, say_of};
use crate::nodes::{ALL, Node, each, look};
use crate::reply::{text, time_of};
use crate::speaker;
use crate::table::line;
use redis_lock_client::redis::{cmd, from_redis_value};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{IsTerminal, stdin};
use std::os::unix::ffi::OsStrExt;

/// Which holds are to end.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a OsStr,
    /// All of them without this.
    pub(crate) owner: Option<&'a str>,
    /// Nobody need be asked.
    pub(crate) is_sure: bool,
}

/// Ends them, and gives the exit code. It ends those that it has seen, by their owners: whoever comes next keeps the
/// lock, however late the answer.
pub(crate) fn end(nodes: &[Node], wanted: &Wanted<'_>, as_json: bool) -> u8 {
    let Wanted { key, owner: only, is_sure } = *wanted;
    let mut holders = BTreeMap::new();
    let code = each(nodes, |node| {
        let lock = look(node, key.as_bytes(), ALL)?.unwrap_or_default();
        for holder in lock["holders"].as_array().into_iter().flatten() {
            let owner = text(&holder["owner"]);
            if only.is_none_or(|only| only == owner) {
                let note = holder["note"].as_str().map(|note| format!(", {note}")).unwrap_or_default();
                holders.insert(owner, format!("held for {}{note}", time_of(&holder["held_ms"])));
            }
        }
        Ok(())
    });
    if holders.is_empty() {
        if code == 0 {
            let whose = only.map_or("is free".to_owned(), |owner| format!("is not held by {owner}"));
            say_of(key, format_args!("{whose}: there is nothing to break"));
        }
        return code.max(exit::NO);
    }
    let names: Vec<String> = holders.iter().map(|(owner, how)| format!("{owner} ({how})")).collect();
    let question = format!("{}: break the hold of {}? [y/N] ", key.display(), names.join(", "));
    if !is_sure && let Err(refusal) = ask(key, &question) {
        return refusal;
    }
    let failed = each(nodes, |node| {
        for owner in holders.keys() {
            let reply = node.ask_about(key.as_bytes(), cmd("LOCK.BREAK").arg(key.as_bytes()).arg(owner))?;
            let ended: u64 = from_redis_value(reply).unwrap_or_default();
            if as_json {
                line(json!({ "server": node.name, "key": key.to_string_lossy(), "owner": owner, "ended": ended }));
            } else {
                let what = if ended > 0 { "ended the hold of" } else { "is not held any more by" };
                let of = if nodes.len() > 1 { format!("{}: ", node.name) } else { String::new() };
                line(printable(format_args!("{of}{}: {what} {owner}", key.display())));
            }
        }
        Ok(())
    });
    code.max(failed)
}

/// Asks at the terminal. The exit code if the answer is not yes.
fn ask(key: &OsStr, question: &str) -> Result<(), u8> {
    if !stdin().is_terminal() {
        say_of(key, "nothing was broken: without a terminal, --yes is needed");
        return Err(exit::USAGE);
    }
    speaker::write(printable(question));
    let mut answer = String::new();
    // What cannot be read is no yes.
    drop(stdin().read_line(&mut answer));
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    say_of(key, "nothing was broken");
    Err(exit::NO)
}
