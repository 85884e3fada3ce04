//! Whether this node is a primary. The server says when that changes, so commands need not ask each time.

use server_api::{Ctx, Flags};
use std::cell::Cell;

/// The role of this node; None until the server was asked.
#[derive(Debug, Default)]
pub struct Role(Cell<Option<bool>>);

impl Role {
    /// True if this node is a primary.
    pub(crate) fn is_primary(&self, ctx: &Ctx<'_>) -> bool {
        self.0.get().unwrap_or_else(|| self.refresh(ctx))
    }

    /// The server has said what this node is now.
    pub(crate) fn set_primary(&self, is_primary: bool) {
        self.0.set(Some(is_primary));
    }

    /// Asks the server again, whatever it has said.
    pub(crate) fn refresh(&self, ctx: &Ctx<'_>) -> bool {
        let is_primary = ctx.flags().contains(Flags::PRIMARY);
        self.set_primary(is_primary);
        is_primary
    }
}
