//! A lock as it is to be seen: settled, though nothing is changed.

use crate::model::fence::Fence;
use crate::model::hold::{Hold, Mode, Session};
use crate::model::key::{Db, KeyName};
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::Check;
use crate::model::session::Sessions;
use crate::model::settle::Over;
use crate::model::time::{Millis, Timestamp};

/// A lock as it is to be seen: settled, though nothing was changed.
#[derive(Clone, Debug)]
pub struct View<'a> {
    lock: &'a Lock,
    at: ViewContext<'a>,
    name: KeyName,
    /// The holds of it that are over and have not left it.
    over: Over,
}

/// Where and when a lock is viewed.
#[derive(Clone, Copy, Debug)]
pub struct ViewContext<'a> {
    /// In which database.
    pub db: Db,
    /// Under which name.
    pub name: &'a [u8],
    /// The holds that are bound to connections.
    pub sessions: &'a Sessions,
    /// When: what is left counts from here.
    pub now: Timestamp,
    /// By which time it is judged what is over.
    pub judged: Timestamp,
}

impl ViewContext<'_> {
    fn is_over(self, hold: &Hold) -> bool {
        self.sessions.end_of(hold) <= self.judged
    }
}

/// The fence of an owner's hold if it is what is asked for; None if not, or if it is over. It looks at no other hold.
#[must_use]
pub fn check(lock: &Lock, at: ViewContext<'_>, owner: &[u8], check: Check) -> Option<Fence> {
    let hold = lock.holds.get(owner).filter(|hold| !at.is_over(hold))?;
    check.admits(hold).then_some(hold.fence())
}

/// One holder as it is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The holder.
    pub owner: &'a [u8],
    /// The stronger of the modes held.
    pub mode: Mode,
    /// How often for reading.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// The hold's fence.
    pub fence: Fence,
    /// The rest of the lease.
    pub left: Millis,
    /// How long it has been held, since the grant or since it was carried here.
    pub held: Millis,
    /// The connection that it is bound to.
    pub session: Option<Session>,
    /// True if its owner has not collected it yet.
    pub offered: bool,
    /// The holder's note about itself.
    pub note: Option<&'a [u8]>,
}

impl<'a> View<'a> {
    /// The lock as it is then; None when it has no hold. O(N) where holds may be over, and N is their number.
    #[must_use]
    pub fn of(lock: &'a Lock, at: ViewContext<'a>) -> Option<View<'a>> {
        let over = Over::on(lock, at.sessions, at.judged);
        let view = View { lock, at, name: at.sessions.name(at.name), over };
        (view.holding() > 0).then_some(view)
    }

    /// How many hold it.
    #[must_use]
    pub fn holding(&self) -> usize {
        self.lock.holds.len() - self.over.holds
    }

    /// The read counts of all holders.
    #[must_use]
    pub fn shares(&self) -> u64 {
        self.lock.holds.reads() - self.over.reads
    }

    /// The mode it is held in.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.lock.holds.iter().find(|(_, hold)| !self.at.is_over(hold)).map(|(_, hold)| hold.mode())
    }

    /// The highest fence given on it.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.lock.fence()
    }

    /// The holders, in order of owner.
    pub fn holders(&self) -> impl Iterator<Item = Holder<'a>> {
        self.lock.holds.iter().filter_map(|(owner, hold)| self.holder_of(owner, hold))
    }

    /// One owner's hold.
    #[must_use]
    pub fn holder(&self, owner: &[u8]) -> Option<Holder<'a>> {
        let (owner, hold) = self.lock.holds.entry(owner)?;
        self.holder_of(owner, hold)
    }

    /// None when the hold is over.
    fn holder_of(&self, owner: &'a Owner, hold: &'a Hold) -> Option<Holder<'a>> {
        let at = self.at;
        (!at.is_over(hold)).then(|| Holder {
            owner: owner.as_bytes(),
            mode: hold.mode(),
            reads: hold.reads(),
            writes: hold.writes(),
            fence: hold.fence(),
            left: at.sessions.end_of(hold).left(at.now),
            held: hold.since().ago(at.now),
            // The connection that an offer is bound to is the one over which its owner waited.
            session: at.sessions.of(at.db, &self.name, hold).filter(|_| hold.offer().is_none()),
            offered: hold.offer().is_some(),
            note: hold.note().map(|note| &*note.0),
        })
    }
}
