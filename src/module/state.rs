//! What the module keeps in memory for as long as it is loaded.

use super::alarm::Alarm;
use super::metrics::Counters;
use crate::ffi::event::LoadedFrom;
use crate::lock::lease::KeyName;
use crate::lock::limits::Limits;
use crate::lock::node::Node;
use crate::lock::request::Db;
use crate::lock::time::Millis;
use std::cell::RefCell;

/// All of it.
#[derive(Debug)]
pub struct State {
    /// The core's.
    pub node: Node,
    /// The timer that ends leases.
    pub alarm: Alarm,
    /// What INFO counts.
    pub counters: Counters,
    /// What is being loaded, if anything is.
    pub loading: Option<LoadedFrom>,
    /// Locks that came by RESTORE and whose facts are yet to be sent.
    pub restored: Vec<(Db, KeyName)>,
    /// Whether clients may send LOCK.HOLD.
    pub hold_allowed: bool,
}

thread_local! {
    // The server calls a module on its main thread alone, but for freeing values, which needs none of this.
    static STATE: RefCell<State> = const { RefCell::new(State::new()) };
}

/// Works on the state. Must not be called from within itself: nothing that calls the server happens inside, but
/// creating a lock.
pub fn with<R>(work: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(work)
}

impl State {
    const fn new() -> State {
        // The configuration table sets all of these before the first command.
        let limits = Limits {
            lease_default: Millis(0),
            lease_max: Millis(0),
            owner_bytes_max: 0,
            note_bytes_max: 0,
            holders_per_key_max: 0,
            promotion_skew: Millis(0),
        };
        State {
            node: Node::new(limits),
            alarm: Alarm::new(),
            counters: Counters::new(),
            loading: None,
            restored: Vec::new(),
            hold_allowed: false,
        }
    }
}
