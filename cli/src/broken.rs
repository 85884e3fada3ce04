//! `redis-lock break`: ends holds, after a question.

use crate::exit::{self, printable, say_of};
use crate::nodes::{MOST, Node, Whose, each, look};
use crate::reply::{text, time_of};
use crate::speaker;
use crate::table::line;
use redis_lock_client::Error;
use redis_lock_client::redis::{cmd, from_redis_value};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{IsTerminal, stdin};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Which holds are to end.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a OsStr,
    /// All of them without this.
    pub(crate) owner: Option<&'a str>,
    /// Nobody need be asked.
    pub(crate) is_sure: bool,
}

/// How many holders a question names.
const NAMED: usize = 10;

/// Ends them, and gives the exit code. It ends those that held the lock when it began, by their owners: whoever comes
/// next keeps the lock, however late the answer.
pub(crate) fn end(nodes: &[Node], wanted: &Wanted<'_>, as_json: bool) -> u8 {
    let Wanted { key, owner, is_sure } = *wanted;
    let begun = Instant::now();
    let (code, mut seen) = Seen::find(nodes, wanted, Duration::ZERO);
    if seen.holders.is_empty() {
        if code == 0 {
            let whose = owner.map_or("is free".to_owned(), |owner| format!("is not held by {owner}"));
            say_of(key, format_args!("{whose}: there is nothing to break"));
        }
        return code.max(exit::NO);
    }
    if !is_sure && let Err(refusal) = ask(key, &seen.question(key)) {
        return refusal;
    }
    loop {
        let owners: Vec<String> = std::mem::take(&mut seen.holders).into_keys().collect();
        let failed = each(nodes, |node| {
            for (owner, ended) in owners.iter().zip(end_those(node, key.as_bytes(), &owners)?) {
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
        let code = code.max(failed);
        if code > 0 || seen.more == 0 {
            return code;
        }
        // A server does not name them all at once.
        let again = Seen::find(nodes, wanted, begun.elapsed());
        if again.0 > 0 || again.1.holders.is_empty() {
            return again.0;
        }
        seen = again.1;
    }
}

/// Ends these holds of a lock, and tells how many each of these owners had.
pub(crate) fn end_those(node: &Node, key: &[u8], owners: &[String]) -> Result<Vec<u64>, Error> {
    let requests = owners.iter().map(|owner| cmd("LOCK.BREAK").arg(key).arg(owner).take()).collect();
    let replies = node.ask_all_about(key, requests)?;
    Ok(replies.into_iter().map(|reply| from_redis_value(reply).unwrap_or_default()).collect())
}

/// Those that hold a lock.
struct Seen {
    /// How they hold it, by owner.
    holders: BTreeMap<String, String>,
    /// How many more there are, which no server has named.
    more: u64,
}

impl Seen {
    /// Asks all servers for those that have held it for so long at least. With the exit code.
    fn find(nodes: &[Node], wanted: &Wanted<'_>, least: Duration) -> (u8, Seen) {
        let mut seen = Seen { holders: BTreeMap::new(), more: 0 };
        let whose = wanted.owner.map_or(Whose::First(MOST), Whose::Owner);
        let code = each(nodes, |node| {
            let lock = look(node, wanted.key.as_bytes(), whose)?.unwrap_or_default();
            let holders = lock["holders"].as_array().map_or(&[][..], Vec::as_slice);
            for holder in holders {
                if holder["held_ms"].as_u64().is_some_and(|held| u128::from(held) >= least.as_millis()) {
                    let note = holder["note"].as_str().map(|note| format!(", {note}")).unwrap_or_default();
                    let how = format!("held for {}{note}", time_of(&holder["held_ms"]));
                    seen.holders.insert(text(&holder["owner"]), how);
                }
            }
            if wanted.owner.is_none() {
                let holding = lock["holding"].as_u64().unwrap_or_default();
                seen.more = seen.more.max(holding.saturating_sub(holders.len() as u64));
            }
            Ok(())
        });
        (code, seen)
    }

    fn question(&self, key: &OsStr) -> String {
        let names = self.holders.iter().take(NAMED).map(|(owner, how)| format!("{owner} ({how})"));
        let names = names.collect::<Vec<_>>().join(", ");
        let more = self.more + self.holders.len().saturating_sub(NAMED) as u64;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}: break the hold of {names}{more}? [y/N] ", key.display())
    }
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
