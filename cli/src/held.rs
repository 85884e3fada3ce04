//! What stands in the place of a command under the lock of `redis-lock hold` and `redis-lock acquire`: it tells who
//! holds the lock. For `hold` it then lasts until nobody needs the lock any more.

use crate::args::Run;
use crate::backend::told;
use crate::exit;
use crate::kept;
use crate::sys::{self, Signals};
use crate::table::line;
use crate::token::Token;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use serde_json::json;
use std::io;

/// The word that makes this program a holder.
pub(crate) const ROLE: &str = "__held";

/// Tells it, for `acquire` also a file.
pub(crate) fn start(run: &Run) -> u8 {
    sys::name();
    let variable = |name: &str| std::env::var(format!("REDIS_LOCK_{name}")).unwrap_or_default();
    let (key, owner) = (run.key.to_string_lossy().into_owned(), variable("OWNER"));
    let Ok(fence) = variable("FENCE").parse::<u64>() else { return exit::USAGE };
    // It may come as soon as others know that the lock is held.
    let Ok(signals) = Signals::of(&[Signal::TERM, Signal::INT]) else { return exit::CANNOT_RUN };
    let words = if run.json {
        json!({ "key": key, "owner": owner, "fence": fence }).to_string()
    } else {
        [&key, &owner, &fence.to_string()].map(exit::printable).join("\t")
    };
    if let Some(file) = &run.token {
        // Another may have written it while this one waited.
        if let Some((code, text)) = kept::refusal(run, true) {
            exit::say_of(&run.key, text);
            return code;
        }
        let lease_ms = u64::try_from(run.lease.as_millis()).unwrap_or(u64::MAX);
        let servers = told(&run.servers).map_err(io::Error::other);
        let token = servers.map(|servers| Token { key, owner, fence, lease_ms, servers });
        if let Err(error) = token.and_then(|token| token.write(file)) {
            exit::say_of(&run.key, format_args!("{}: {error}", file.display()));
            return exit::CANNOT_WRITE;
        }
    }
    line(words);
    if run.token.is_none() {
        wait_for_end(signals);
    }
    0
}

/// Waits until the standard input ends, or a signal comes.
fn wait_for_end(mut signals: Signals) {
    let input = rustix::stdio::stdin();
    loop {
        let mut files = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
        // A signal that is not waited for interrupts it at most.
        poll(&mut files, None).ok();
        let has_input = !files[1].revents().is_empty();
        if signals.next().is_some() || (has_input && rustix::io::read(input, &mut [0; 4096]) == Ok(0)) {
            return;
        }
    }
}
