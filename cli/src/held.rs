//! What stands in the place of a command under the lock of `redis-lock hold` and `redis-lock acquire`: it tells who
//! holds the lock. For `hold` it then lasts until nobody needs the lock any more.

use crate::exit;
use crate::sys::{self, Signals};
use crate::table::line;
use crate::token::Token;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::ffi::OsString;
use std::path::Path;

/// The word that makes this program a holder.
pub(crate) const ROLE: &str = "__held";

/// Tells it as the words say: `text` or `json`, for `acquire` also the file of the token and the lease in milliseconds.
pub(crate) fn start(words: &[OsString]) -> u8 {
    sys::name();
    let variable = |name: &str| std::env::var_os(format!("REDIS_LOCK_{name}")).unwrap_or_default();
    let (key, owner) = (variable("KEY"), variable("OWNER").to_string_lossy().into_owned());
    let number = |word: &OsString| word.to_str().and_then(|word| word.parse().ok());
    let Some(fence) = number(&variable("FENCE")) else { return exit::USAGE };
    let (how, file) = match words {
        [how] => (how, None),
        [how, file, lease] => (how, number(lease).map(|lease| (Path::new(file), lease))),
        _ => return exit::USAGE,
    };
    // It may come as soon as others know that the lock is held.
    let Ok(signals) = Signals::of(&[Signal::TERM, Signal::INT]) else { return exit::CANNOT_RUN };
    let told = Token { key: key.to_string_lossy().into_owned(), owner, fence, lease_ms: 0 };
    if let Some((file, lease_ms)) = file
        && let Err(error) = (Token { lease_ms, ..told.clone() }).write(file)
    {
        exit::say_of(&key, format_args!("{}: {error}", file.display()));
        return exit::CANNOT_WRITE;
    }
    if how == "json" {
        line(told.json());
    } else {
        line([&told.key, &told.owner, &told.fence.to_string()].map(exit::printable).join("\t"));
    }
    if file.is_none() {
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
