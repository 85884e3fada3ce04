//! What takes locks: one server, or several of which most must agree.

use crate::cancel::Cancel;
use crate::clock::Moment;
use crate::error::Error;
use crate::guard::Guard;
use crate::owner::Owner;
use crate::request::Terms;
use std::fmt::Debug;

/// Where a lock is kept.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Where it is in memory: clones, which share their connections, are at the same place.
    fn place(&self) -> *const ();

    /// Takes a lock for this owner. None if others have it until then.
    fn take(&self, owner: Owner, attempt: Attempt<'_>) -> Result<Option<Guard>, Error>;

    /// The same in a task.
    #[cfg(feature = "tokio")]
    fn take_in_task<'a>(&'a self, _owner: Owner, _attempt: Attempt<'a>) -> Taken<'a> {
        let why = "a quorum is for threads: take it in spawn_blocking";
        Box::pin(std::future::ready(Err(Error::Refused(why.to_owned()))))
    }
}

/// What is taken in a task.
#[cfg(feature = "tokio")]
pub(crate) type Taken<'a> =
    std::pin::Pin<Box<dyn Future<Output = Result<Option<crate::task_guard::AsyncGuard>, Error>> + Send + 'a>>;

/// How a lock is to be taken.
pub(crate) struct Attempt<'a> {
    pub(crate) terms: &'a Terms,
    pub(crate) patience: Patience,
    pub(crate) cancel: Option<&'a Cancel>,
    /// Told of errors that may pass.
    pub(crate) tell: &'a (dyn Fn(&Error) + Sync),
}

/// How long it waits while others have the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    None,
    Until(Moment),
    Endless,
}

impl Patience {
    pub(crate) fn deadline(self) -> Option<Moment> {
        match self {
            Patience::Until(deadline) => Some(deadline),
            Patience::None | Patience::Endless => None,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        self.deadline().is_some_and(Moment::is_past)
    }
}
