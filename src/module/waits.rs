//! The beginning of a wait: the server parks the client, or the request is answered now.

use super::blocked_clients::{park, wake};
use super::clients::Reply;
use super::shell::with_manager;
use super::step;
use lock_core::manager::begun::Asked;
use lock_core::model::notify::Notify;
use lock_core::model::request::{Begun, Operation, Outcome, Request};
use lock_core::model::time::Timestamp;
use server_api::{Ctx, Flags, Str};

/// Parks the client of a request that begins to wait, if the server lets it. Returns what becomes of the request, and
/// whether it counts.
#[cold]
pub(super) fn park_or_settle(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    request: &Request,
    reply: Option<Reply>,
    (begun, notify, now): (Begun, Notify, Timestamp),
) -> (Outcome, bool) {
    let (Operation::Acquire(operation), Some(reply)) = (&request.operation, reply) else {
        unreachable!("nothing but an acquisition begins to wait, and says how it is to be answered")
    };
    // Within a command, the servers of a cluster see keys of its own slot alone.
    let is_partial = ctx.flags().contains(Flags::CLUSTER);
    let asked = Asked { begun, operation, notify, client: ctx.client_id(), is_partial, now };
    let mut parked = None;
    // What the step has published may have made others end the wait that is repeated.
    if with_manager(|manager| manager.may_park(begun)) {
        park(ctx, names, (reply, &request.owner, asked.client), || {
            let (waiter, settled) = with_manager(|manager| manager.client_parked(&asked));
            parked = Some(settled);
            waiter
        });
    }
    let mut settled = parked.unwrap_or_else(|| with_manager(|manager| manager.client_not_parked(&asked)));
    if settled.outcome != Outcome::Unavailable && !matches!(begun, Begun::Repeat(_)) {
        step::announce_wait(ctx, names);
    }
    wake(settled.taken_over.take(), now);
    (settled.outcome, settled.counts)
}
