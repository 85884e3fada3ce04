//! `redis-lock renew` and `redis-lock release`: a lock that a token holds, for processes that come later.

use crate::args::{Kept, Servers};
use crate::exit::{self, say, say_of};
use crate::nodes::{Node, fail, named};
use crate::token::Token;
use redis_lock_client::redis::{Cmd, cmd, from_redis_value};
use std::panic::resume_unwind;
use std::thread;

/// Renews the lock of a token, and gives the exit code.
pub(crate) fn renew(kept: &Kept) -> u8 {
    with_token(kept, |token| {
        let lease = kept.lease.map_or(u128::from(token.lease_ms), |lease| lease.as_millis());
        let request = cmd("LOCK.EXTEND").arg(&token.key).arg(&token.owner).arg("PX").arg(lease.to_string()).take();
        // A quorum may have raised its fence.
        ask(&kept.servers, token, &request, |fence| fence >= token.fence)
    })
}

/// Releases it. The token is of no use after that.
pub(crate) fn release(kept: &Kept) -> u8 {
    with_token(kept, |token| {
        let request = cmd("LOCK.RELEASE").arg(&token.key).arg(&token.owner).arg("ALL").take();
        let code = ask(&kept.servers, token, &request, |_| true);
        if [0, exit::LOST].contains(&code)
            && let Err(error) = std::fs::remove_file(&kept.token)
        {
            say(format_args!("{}: {error}", kept.token.display()));
        }
        code
    })
}

fn with_token(kept: &Kept, act: impl FnOnce(&Token) -> u8) -> u8 {
    match Token::read(&kept.token) {
        Ok(token) => act(&token),
        Err(error) => {
            say(format_args!("{}: {error}", kept.token.display()));
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
    let reply = |node: &Node| node.ask_about(token.key.as_bytes(), request);
    let replies: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> = nodes.iter().map(|node| scope.spawn(move || reply(node))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
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
    let of = |node: &Node| if nodes.len() > 1 { node.name.clone() } else { String::new() };
    failures.into_iter().map(|(node, error)| fail(&of(node), &error)).max().unwrap_or(exit::UNAVAILABLE)
}
