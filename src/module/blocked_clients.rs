//! Blocked clients. Each is answered exactly once: by a grant, a timeout or a redirect. If the server itself ends the
//! wait, or the client disconnects before its reply, the grant is rolled back and handed off to the next waiter.

use super::clients::{Client, Reply};
use super::notify;
use super::shell::{shell, with_manager};
use lock_core::model::effect::Ended;
use lock_core::model::key::Db;
use lock_core::model::owner::Owner;
use lock_core::model::request::{RedirectReason, WaitEnd, WaiterId};
use lock_core::model::time::Timestamp;
use server_api::blocked::Parked;
use server_api::{Ctx, Str};

/// Parks the client of this call, and asks for its waiter then. `waiter` is not asked when the server does not let the
/// client wait.
pub(crate) fn park(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    (reply, owner, id): (Reply, &Owner, u64),
    waiter: impl FnOnce() -> WaiterId,
) {
    let mut parked = None;
    let blocked = ctx.block::<Waiter>(names, || parked.insert(waiter()).to_number());
    let (Some(blocked), Some(waiter)) = (blocked, parked) else { return };
    // Delivery is known in the event loop: see `Parked`.
    shell().scheduler.watch_event_loop(ctx);
    let generated = reply.generated.then(|| owner.clone());
    let client = Client { blocked: Some(blocked), id, reply, generated, answer: None };
    shell().clients.borrow_mut().insert(waiter, client);
}

/// The number of a waiter's client at the server.
pub(crate) fn client_of(waiter: WaiterId) -> Option<u64> {
    shell().clients.borrow().get(waiter).map(|client| client.id)
}

/// Answers the clients whose waits have ended.
pub(crate) fn wake(wait_ends: impl IntoIterator<Item = (WaiterId, WaitEnd)>, now: Timestamp) {
    for (waiter, answer) in wait_ends {
        let since = match &answer {
            WaitEnd::Granted(_) => with_manager(|manager| manager.waited_since(waiter)),
            WaitEnd::Offered { since } => Some(*since),
            _ => None,
        };
        if let Some(since) = since {
            shell().metrics.count_wait(now.0.saturating_sub(since.0));
        }
        shell().metrics.count_wait_end(&answer);
        let blocked = shell().clients.borrow_mut().get_mut(waiter).and_then(|client| {
            client.answer = Some(answer);
            client.blocked.take()
        });
        // The server may call `Waiter::answer` from within.
        if let Some(blocked) = blocked {
            blocked.unblock();
        }
    }
}

/// Tells the owners of places and answers the clients whose waits have ended together.
pub(crate) fn wake_all(ended: Ended) {
    notify::send(ended.messages);
    wake(ended.waits, shell().clock.mono());
}

/// Ends all waits for a key: this node does not serve it any more.
pub(crate) fn redirect_waiters(db: Db, name: &[u8]) {
    let answer = WaitEnd::Redirected(RedirectReason::SlotGone);
    wake_all(with_manager(|manager| manager.end_waits(db, name, &answer)));
}

/// Ends all waits: this node does not grant any more. There may be as many messages as places.
pub(crate) fn dismiss(ctx: &mut Ctx<'_>) {
    let Ended { waits, messages } = with_manager(|manager| manager.dismiss());
    notify::hold(shell(), ctx, messages);
    wake(waits, shell().clock.mono());
}

/// The server's reports on parked clients.
struct Waiter;

impl Parked for Waiter {
    fn answer(ctx: &mut Ctx<'_>, ticket: u64) {
        let Some(waiter) = WaiterId::from_number(ticket) else { return ctx.reply_null() };
        let found = shell().clients.borrow_mut().get_mut(waiter).map(|client| {
            // The server has unblocked it already, and would not know the handle any more.
            client.blocked = None;
            (client.answer.clone(), client.reply, client.generated.clone())
        });
        match found {
            Some((Some(answer), reply, generated)) => (reply.write)(ctx, &answer, generated.as_ref()),
            Some((None, reply, _)) => {
                // CLIENT UNBLOCK TIMEOUT.
                let end = with_manager(|manager| manager.cancel(waiter, shell().clock.mono()));
                let end = end.unwrap_or(WaitEnd::TimedOut);
                shell().metrics.count_wait_end(&end);
                (reply.write)(ctx, &end, None);
            }
            None => unreachable!("the server asks for an answer before it lets go of a client"),
        }
    }

    fn lost(ticket: u64, has_closed: bool) {
        let Some(waiter) = WaiterId::from_number(ticket) else { return };
        let now = shell().clock.mono();
        let client = shell().clients.borrow_mut().remove(waiter);
        let closed = client.as_ref().filter(|_| has_closed).map(|client| client.id);
        match client.map(|client| client.answer) {
            Some(None) => {
                // The wait of a place goes on.
                if !with_manager(|manager| manager.waits_at_place(waiter)) {
                    shell().metrics.count_cancelled();
                }
                with_manager(|manager| manager.client_gone(waiter, closed, now));
            }
            Some(Some(WaitEnd::Granted(_))) => {
                with_manager(|manager| manager.client_gone(waiter, closed, now));
            }
            _ => {}
        }
    }

    fn done(ticket: u64) {
        let Some(waiter) = WaiterId::from_number(ticket) else { return };
        let client = shell().clients.borrow_mut().remove(waiter);
        if client.is_some() {
            with_manager(|manager| manager.delivered(waiter));
        }
    }
}
