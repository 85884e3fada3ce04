//! Messages that tell owners of places to ask again (NOTIFY): who may ask for them, and how they are sent.

use super::shell::{Shell, shell, with_manager};
use lock_core::model::notify::{self, Message, Notify};
use lock_core::model::owner::NOBODY;
use server_api::Ctx;
use server_api::publish::{Spread, publish};

/// How many messages are sent in one turn of the event loop: about as long as a slice of the background.
const PIECE: usize = 512;

/// What a request says of the channel of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel<'a> {
    /// It cannot name one: the place keeps the one that it has.
    AsBefore,
    /// None.
    Nowhere,
    /// This one.
    Named(&'a [u8]),
}

/// Why nobody can be told on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mute {
    /// The user may not send messages there.
    Denied,
    /// They would reach nobody from this node.
    Elsewhere,
}

/// Prepares what a request says of its channel for the core: names the channel, until [`forget`].
///
/// # Errors
/// If its client may not send messages there, or none would reach anybody.
#[inline(always)]
pub(super) fn admit(ctx: &mut Ctx<'_>, channel: Channel<'_>) -> Result<Notify, Mute> {
    let name = match channel {
        Channel::AsBefore => return Ok(Notify::AsBefore),
        Channel::Nowhere => return Ok(Notify::Never),
        Channel::Named(name) => name,
    };
    if !ctx.may_publish(name) {
        return Err(Mute::Denied);
    }
    if !ctx.reaches(name) {
        return Err(Mute::Elsewhere);
    }
    shell().outbox.by_shard.set(Some(ctx.spread() == Spread::Shard));
    let channel = with_manager(|manager| manager.channel(name));
    Ok(Notify::On { channel, client: ctx.client_id() })
}

/// The request is served that named a channel.
#[inline(always)]
pub(super) fn forget(notify: Notify) {
    if matches!(notify, Notify::On { .. }) {
        with_manager(|manager| manager.forget_channel());
    }
}

/// Sends the messages of a step. Those that could come to stand within the reply to a transaction or a script are sent
/// before the server sleeps.
pub(super) fn send_in(shell: &Shell, ctx: &mut Ctx<'_>, messages: Vec<Message>) {
    if ctx.would_push_into_reply() {
        hold(shell, ctx, messages);
    } else {
        send(messages);
    }
}

/// Sends messages before the server sleeps, in pieces if there are many.
pub(super) fn hold(shell: &Shell, ctx: &mut Ctx<'_>, messages: Vec<Message>) {
    if !messages.is_empty() {
        shell.scheduler.watch_event_loop(ctx);
        shell.outbox.held.borrow_mut().extend(messages);
    }
}

/// Sends messages at once.
pub(super) fn send(mut messages: Vec<Message>) {
    if messages.is_empty() {
        return;
    }
    notify::bundle(&mut messages);
    // Only a request with NOTIFY makes one, and it has asked the server.
    let spread = if shell().outbox.by_shard.get() == Some(true) { Spread::Shard } else { Spread::Everywhere };
    for Message { channel, owner } in messages {
        let heard = publish(&channel, owner.as_ref().map_or(NOBODY, |owner| owner.as_bytes()), spread);
        shell().metrics.count_notified(heard);
    }
}

/// The server is about to sleep: all transactions and scripts have their replies. Sends a piece. While there are more,
/// the server serves its clients and is here again at once.
pub(super) fn send_held(ctx: &mut Ctx<'_>) {
    let held = &shell().outbox.held;
    let piece: Vec<Message> = {
        let mut held = held.borrow_mut();
        let count = held.len().min(PIECE);
        held.drain(..count).collect()
    };
    send(piece);
    if held.borrow().is_empty() {
        held.take();
    } else {
        ctx.set_timer(0, |_| {});
    }
}
