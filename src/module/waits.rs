//! The beginning of a wait: the server parks the client, or the request is answered now.

use super::blocked_clients::{park, wake};
use super::clients::Reply;
use super::shell::with_manager;
use super::step;
use lock_core::manager::begun::{Asked, Settled};
use lock_core::model::owner::Owner;
use lock_core::model::request::{Begun, Outcome};
use server_api::{Ctx, Str};

/// Parks the client of a request that begins to wait, if the server lets it. Returns what becomes of the request.
#[cold]
pub(super) fn park_or_settle(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    (reply, owner): (Reply, &Owner),
    asked: &Asked<'_>,
) -> Settled {
    let mut parked = None;
    // What the step has published may have made others end the wait that is repeated.
    if with_manager(|manager| manager.may_park(asked.begun)) {
        park(ctx, names, (reply, owner, asked.client), || {
            let (waiter, settled) = with_manager(|manager| manager.client_parked(asked));
            parked = Some(settled);
            waiter
        });
    }
    let mut settled = parked.unwrap_or_else(|| with_manager(|manager| manager.client_not_parked(asked)));
    if settled.outcome != Outcome::Unavailable && !matches!(asked.begun, Begun::Repeat(_)) {
        step::announce_wait(ctx, names);
    }
    wake(settled.taken_over.take(), asked.now);
    settled
}
