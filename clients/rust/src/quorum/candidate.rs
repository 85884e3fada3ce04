//! Takes a lock at a quorum. Asks all nodes at once. Where others have it, it waits in the queue of the first node that
//! answers, and then asks the others. Whatever happens, an owner that did not get it is in no queue afterwards, and
//! holds nothing at any node, as far as that can be reached.

use crate::acquisition::{Acquisition, Granted};
use crate::backend::Patience;
use crate::backoff::Backoff;
use crate::cancel::{Cancel, Notified};
use crate::clock::{Moment, node_limit};
use crate::error::Error;
use crate::hold::Hold;
use crate::owner::{Claim, Owner};
use crate::quorum::majority::{Change, Majority};
use crate::quorum::members::Members;
use crate::quorum::tally::{Round, Verdict};
use crate::request::Terms;
use crate::sync::{Caller, here};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long, and how often at least, one that does not wait asks the others again, once the first node has granted it:
/// two that ask at the same moment get in each other's way.
const INSISTS: Duration = Duration::from_secs(1);
const INSISTS_TIMES: u32 = 5;

/// How long, at least, servers that were never reached before are waited for when the others are enough: a server that
/// was named twice is to be found out before it counts.
const MEETING: Duration = Duration::from_millis(100);

pub(crate) struct Candidate<'a> {
    pub(crate) members: &'a Members,
    pub(crate) terms: &'a Terms,
    pub(crate) owner: &'a Owner,
    /// How long a request may take.
    pub(crate) limit: Duration,
    pub(crate) cancel: Option<&'a Cancel>,
    /// Is told of the errors that it asks again after.
    pub(crate) tell: &'a (dyn Fn(&Error) + Sync),
}

/// What was won.
pub(crate) struct Won {
    pub(crate) hold: Arc<Hold>,
    pub(crate) majority: Arc<Majority>,
    pub(crate) claim: Claim,
}

/// What came of one round.
enum Outcome {
    Held(Arc<Hold>),
    Occupied(usize),
    Split,
    Short(Error),
    /// And why there would be no quorum, if so few have answered.
    TimeUp(Option<Error>),
}

impl Candidate<'_> {
    pub(crate) fn take(&self, patience: Patience) -> Result<Option<Won>, Error> {
        let claim = here(self.owner.claim(Caller::Thread, &self.terms.keys, self.limit))?;
        let nodes = self.members.nodes.clone();
        let majority = Majority::new(nodes, self.terms.clone(), self.owner.clone(), self.limit);
        match self.campaign(&majority, patience) {
            Ok(Some(hold)) => Ok(Some(Won { hold, majority, claim })),
            outcome => {
                majority.withdraw();
                outcome.map(|_| None)
            }
        }
    }

    fn campaign(&self, majority: &Arc<Majority>, patience: Patience) -> Result<Option<Arc<Hold>>, Error> {
        let (mut granted, mut by_clock) = (None, true);
        let mut backoff = Backoff::default();
        loop {
            let outcome = self.round(majority, granted.take(), by_clock, patience)?;
            let is_too_far = majority.was_too_far();
            self.members.saw(majority.floor(), is_too_far);
            let failure = match outcome {
                Outcome::Held(hold) => return Ok(Some(hold)),
                Outcome::Short(_) if is_too_far && by_clock => {
                    // Our own clock may be the one that is wrong.
                    by_clock = false;
                    majority.withdraw();
                    continue;
                }
                Outcome::Occupied(_) | Outcome::Split if matches!(patience, Patience::None) => return Ok(None),
                Outcome::Short(error) if matches!(patience, Patience::None) || !error.is_transient() => {
                    return Err(error);
                }
                Outcome::Occupied(queue) => {
                    // Not waited for: others come to the queue meanwhile.
                    majority.give_back();
                    match self.wait_in_queue(majority, queue, patience) {
                        Ok(Some(Granted { fences, sent, .. })) => {
                            granted = Some((queue, fences[0], sent));
                            continue;
                        }
                        Ok(None) => None,
                        Err(error) if error.is_transient() => Some(error),
                        Err(error) => return Err(error),
                    }
                }
                Outcome::Split => None,
                Outcome::TimeUp(failure) => failure,
                Outcome::Short(error) => Some(error),
            };
            majority.withdraw();
            if let Some(error) = &failure {
                (self.tell)(error);
            }
            self.rest(backoff.pause(), patience)?;
            if patience.is_over() {
                return failure.map_or(Ok(None), Err);
            }
        }
    }

    /// Asks all nodes, until it is clear what comes of it.
    fn round(
        &self,
        majority: &Arc<Majority>,
        granted: Option<(usize, u64, Moment)>,
        by_clock: bool,
        patience: Patience,
    ) -> Result<Outcome, Error> {
        let (sender, changes) = channel();
        let _notified = self.notified(&sender);
        let begun = Moment::now();
        let lasts = self.terms.lasts();
        let insists = if matches!(patience, Patience::None) { INSISTS.min(node_limit(lasts)) } else { lasts / 3 };
        let round = Round {
            answers_by: begun + node_limit(lasts),
            insists_until: begun + insists,
            insists_times: INSISTS_TIMES,
            by_clock,
        };
        majority.tell(sender);
        majority.begin(self.members.proposal(by_clock), granted)?;
        let met_by = round.answers_by.min(begun + MEETING);
        loop {
            if let Some(refusal) = majority.refusal() {
                return Err(refusal);
            }
            if self.members.are_known() || met_by.is_past() {
                match majority.verdict(round) {
                    (Verdict::Held, Some(hold)) => return Ok(Outcome::Held(hold)),
                    (Verdict::Held | Verdict::Open, _) => {}
                    (Verdict::Occupied(queue), _) => return Ok(Outcome::Occupied(queue)),
                    (Verdict::Split, _) => return Ok(Outcome::Split),
                    (Verdict::Short, _) => return Ok(Outcome::Short(majority.why_short())),
                }
            }
            if patience.is_over() {
                return Ok(Outcome::TimeUp((!majority.has_answers()).then(|| majority.why_short())));
            }
            let looks = [Some(met_by), Some(round.answers_by), Some(round.insists_until), patience.deadline()];
            let look = looks.into_iter().flatten().filter(|look| !look.is_past()).min();
            heard(&changes, look.map_or(node_limit(lasts), Moment::left))?;
        }
    }

    /// Waits in the queue of one node, until it is granted there or the time is up. An error that says that the node is
    /// away ends it: the next node has the queue then.
    fn wait_in_queue(&self, majority: &Majority, queue: usize, patience: Patience) -> Result<Option<Granted>, Error> {
        let node = &self.members.nodes[queue];
        let (caller, transport) = (Caller::Thread, node.transport());
        let acquisition =
            Acquisition { caller, transport, terms: self.terms, owner: self.owner, unread: Arc::default() };
        let claim = Claim::of_nothing(self.owner);
        let failures = AtomicU32::new(0);
        let goes_on = |error: &Error| match error {
            Error::Server(error) => matches!(error.code(), Some("UNBLOCKED" | "LIMIT")),
            Error::Connection(error) => failures.fetch_add(1, Ordering::Relaxed) == 0 && !error.is_timeout(),
            Error::Notify(_) => true,
            _ => false,
        };
        let tell = |error: &Error, is_new| {
            let goes_on = goes_on(error);
            if goes_on && is_new {
                (self.tell)(error);
            }
            goes_on
        };
        let granted = here(acquisition.wait(claim.clone(), patience.deadline(), self.cancel, &tell));
        if let Err(error) = &granted {
            if matches!(error, Error::Connection(_)) {
                node.fell_silent();
            }
            if !claim.came_back() {
                majority.leave_out(queue, error.clone());
            }
        }
        granted
    }

    /// Lets a cancel be heard, until the guard is dropped.
    fn notified(&self, changes: &Sender<Change>) -> Option<Notified<'_>> {
        let changes = changes.clone();
        let wake = move || {
            // A round that is over listens no more.
            let _: Result<(), _> = changes.send(Change::Cancelled);
        };
        self.cancel.map(|cancel| cancel.notify(wake))
    }

    /// Waits so long, unless it is cancelled or the time is up.
    fn rest(&self, pause: Duration, patience: Patience) -> Result<(), Error> {
        let (sender, changes) = channel();
        let _notified = self.notified(&sender);
        heard(&changes, patience.deadline().map_or(pause, |deadline| deadline.left().min(pause)))
    }
}

/// Waits until something has changed, or so long.
fn heard(changes: &Receiver<Change>, time: Duration) -> Result<(), Error> {
    let first = changes.recv_timeout(time).ok();
    let is_cancelled = first.into_iter().chain(changes.try_iter()).any(|change| change == Change::Cancelled);
    if is_cancelled { Err(Error::Cancelled) } else { Ok(()) }
}
