//! Which locks the work of a thread runs under, where that is certain: the terms of leaders. A guard by itself says
//! nothing of it, since it may be on its way to another thread.

use crate::backend::Backend;
use crate::error::Error;
use crate::hold::Hold;
use crate::request::Terms;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static RUNNING: RefCell<Vec<Term>> = const { RefCell::new(Vec::new()) };
}

struct Term {
    hold: Arc<Hold>,
    backend: Arc<dyn Backend>,
}

/// Takes a term from the list, also if its work panics.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        drop(RUNNING.with_borrow_mut(Vec::pop));
    }
}

/// Runs a piece of work under a lock that is kept until it returns.
pub(crate) fn under<T>(hold: &Arc<Hold>, backend: &Arc<dyn Backend>, work: impl FnOnce() -> T) -> T {
    let term = Term { hold: hold.clone(), backend: backend.clone() };
    RUNNING.with_borrow_mut(|running| running.push(term));
    let _ends = Ends;
    work()
}

/// Fails if a wait on these terms would be one for the work that begins it.
pub(crate) fn check(backend: &dyn Backend, terms: &Terms) -> Result<(), Error> {
    let is_in_the_way = |term: &&Term| {
        let held = &term.hold.terms;
        let shares_a_key = held.keys.iter().any(|key| terms.keys.contains(key));
        let excludes = held.is_for_one() || terms.is_for_one();
        // One with a maximum ends by itself.
        shares_a_key
            && excludes
            && held.max.is_none()
            && !term.hold.is_over()
            && term.backend.place() == backend.place()
    };
    let key = RUNNING.with_borrow(|running| {
        let term = running.iter().find(is_in_the_way)?;
        terms.keys.iter().find(|key| term.hold.terms.keys.contains(key)).cloned()
    });
    match key {
        Some(key) => {
            let why = format!("this work leads under \"{}\", and would wait for itself", key.escape_ascii());
            Err(Error::Deadlock(why))
        }
        None => Ok(()),
    }
}
