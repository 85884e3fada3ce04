//! What commands reply, refuse and may be called with.

mod acl;
mod boundary;
mod clients;
mod fences;
mod many;
mod memory;
mod minfence;
mod panic;
mod replies;
mod replies_hold;
mod replies_state;
mod replies_syntax;
mod state;
pub(crate) mod watch;
