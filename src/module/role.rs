//! Whether this node is a primary. The server says when that changes, so commands need not ask each time.

use crate::ffi::{Ctx, Flags};
use std::cell::Cell;

thread_local! {
    /// None until it was asked.
    static IS_PRIMARY: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether it is.
pub(crate) fn is_primary(ctx: &Ctx<'_>) -> bool {
    IS_PRIMARY.get().unwrap_or_else(|| ask(ctx))
}

/// The server has said so.
pub(crate) fn set_primary(is_primary: bool) {
    IS_PRIMARY.set(Some(is_primary));
}

/// The server's tick: asks again, whatever was said.
pub(crate) fn tick(ctx: &Ctx<'_>) {
    ask(ctx);
}

fn ask(ctx: &Ctx<'_>) -> bool {
    let is_primary = ctx.flags().contains(Flags::PRIMARY);
    set_primary(is_primary);
    is_primary
}
