//! `redis-lock renew` and `redis-lock release`: a lock that a token holds, for processes that come later.

use crate::args::{Kept, Run, Servers};
use crate::backend::{client, of_token};
use crate::exit::{self, say, say_of};
use crate::nodes::{at_once, fail, named};
use crate::token::Token;
use redis_lock_client::redis::{Cmd, cmd, from_redis_value};

/// Renews the lock of a token, and gives the exit code.
pub(crate) fn renew(kept: &Kept) -> u8 {
    with_token(kept, |token, servers| {
        let lease = kept.lease.map_or(u128::from(token.lease_ms), |lease| lease.as_millis());
        let request = cmd("LOCK.EXTEND").arg(&token.key).arg(&token.owner).arg("PX").arg(lease.to_string()).take();
        // A quorum may have raised its fence.
        ask(servers, token, &request, |fence| fence >= token.fence)
    })
}

/// Releases it. The token is of no use after that.
pub(crate) fn release(kept: &Kept) -> u8 {
    with_token(kept, |token, servers| {
        let request = cmd("LOCK.RELEASE").arg(&token.key).arg(&token.owner).arg("ALL").take();
        let code = ask(servers, token, &request, |_| true);
        if [0, exit::LOST].contains(&code)
            && let Err(error) = std::fs::remove_file(&kept.token)
        {
            say(format_args!("{}: {error}", kept.token.display()));
        }
        code
    })
}

/// Why the file that is to hold the lock of this run stays as it is, with the exit code: it holds another one, or may.
/// A lock that nobody else can hold beside that one is waited for.
pub(crate) fn refusal(run: &Run, is_granted: bool) -> Option<(u8, String)> {
    let file = run.token.as_ref()?;
    let token = Token::read(file).ok()?;
    if !is_granted && token.key.as_str() == run.key && run.mode() == "WRITE" {
        return None;
    }
    match client(&token.servers).and_then(|client| client.check(token.key.as_bytes(), &token.owner, token.fence)) {
        Ok(false) => None,
        Ok(true) => {
            let (file, key) = (file.display(), &token.key);
            Some((exit::CANNOT_WRITE, format!("{file} holds the lock {key}: release that, or name another file")))
        }
        Err(error) => {
            let (code, why) = exit::of_error(&error);
            Some((code, format!("{} may hold the lock {}: {why}", file.display(), token.key)))
        }
    }
}

fn with_token(kept: &Kept, act: impl FnOnce(&Token, &Servers) -> u8) -> u8 {
    match Token::read(&kept.token) {
        Ok(token) => match of_token(&kept.servers, &token.servers) {
            Ok(servers) => act(&token, &servers),
            Err(error) => fail(&kept.token.to_string_lossy(), &error),
        },
        Err(error) => {
            say(error);
            exit::USAGE
        }
    }
}

/// Asks all servers at once. The exit code: whether more than half of them say that it is held.
fn ask(servers: &Servers, token: &Token, request: &Cmd, is_held: impl Fn(u64) -> bool) -> u8 {
    let nodes = match named(servers) {
        Ok(nodes) => nodes,
        Err(error) => return fail("", &error),
    };
    let replies = at_once(&nodes, |node| node.ask_about(token.key.as_bytes(), request));
    let needed = nodes.len() / 2 + 1;
    let (mut held, mut lost, mut failures) = (0, 0, Vec::new());
    for (node, reply) in nodes.iter().zip(replies) {
        match reply.map(from_redis_value::<Option<u64>>) {
            Ok(Ok(Some(fence))) if is_held(fence) => held += 1,
            Ok(Ok(_)) => lost += 1,
            // No server with locks.
            Ok(Err(_)) => {}
            Err(error) => failures.push((node, error)),
        }
    }
    if held >= needed {
        return 0;
    }
    if lost + needed > nodes.len() {
        say_of(token.key.as_ref(), "the lock was lost");
        return exit::LOST;
    }
    let of = |name: &'_ str| if nodes.len() > 1 { name.to_owned() } else { String::new() };
    failures.into_iter().map(|(node, error)| fail(&of(&node.name), &error)).max().unwrap_or(exit::UNAVAILABLE)
}
