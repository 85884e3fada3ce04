//! LOCK.GUARD: a command that runs only while an owner holds a lock for writing.
//!
//! The server does nothing else between the judgement and the command. Both the lock and the keys of the command lie in
//! one slot, so what the command changes is in the same stream of changes as what happens to the lock.

use super::request::{ServeError, run};
use super::shell::shell;
use lock_core::model::fence::Fence;
use lock_core::model::request::{Outcome, Request};
use server_api::call::{CallError, CallReply};
use server_api::{Args, Ctx, Str};
use std::cell::Cell;

/// The result of a guarded command; None if it was not run, because the owner does not hold the lock as it said.
pub type Guarded = Option<(Fence, Result<CallReply, CallError>)>;

/// Runs a command, if the owner of this request holds the lock. The first of these words is its name.
///
/// # Errors
/// On a replica, within a guarded command, and when the key has a value of another type. Then nothing was run.
pub fn guard(ctx: &mut Ctx<'_>, name: Str<'_>, request: &Request, words: Args<'_>) -> Result<Guarded, ServeError> {
    // However the command came to run this one: by another name, or by another module. A client could else nest them
    // until the stack is full.
    let Some(_running) = Running::begin(&shell().guarding) else { return Err(ServeError::Nested) };
    let outcome = run(ctx, &[name], request, None).map_err(|error| match error {
        ServeError::Replica => ServeError::CheckedElsewhere,
        error => error,
    })?;
    // The keys are closed and the manager is free: the command may be one of this module, or delete the lock.
    match outcome {
        Outcome::Guarded(Some(fence)) => Ok(Some((fence, ctx.call_for_client(words)))),
        _ => Ok(None),
    }
}

/// A guarded command is being judged or run.
struct Running<'s>(&'s Cell<bool>);

impl<'s> Running<'s> {
    fn begin(running: &'s Cell<bool>) -> Option<Running<'s>> {
        (!running.replace(true)).then(|| Running(running))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
