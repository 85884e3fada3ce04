//! What one node of a quorum has granted to one owner, and what it is to be asked next. Sends nothing; time is an
//! argument.

use crate::backoff::Backoff;
use crate::clock::{Moment, renewal_interval, valid_until_at_node};
use crate::error::Error;
use redis::Value;
use std::time::Duration;

/// How long to wait before a node is asked again that others had, or whose clock is behind.
const AGAIN: Duration = Duration::from_millis(10);

/// What the owner wants of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// To be granted the lock.
    Take,
    /// To keep it.
    Keep,
    /// To hold nothing; or, where it holds, not for longer than that.
    Undo(Option<Duration>),
}

/// A request to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire {
        floor: u64,
    },
    Raise {
        fence: u64,
        floor: u64,
    },
    Renew {
        fence: u64,
    },
    /// The hold with this fence; without one, any hold of the owner.
    Release {
        fence: Option<u64>,
    },
    Shorten {
        fence: u64,
        left: Duration,
    },
}

impl Step {
    /// The fence that it asks for.
    pub(crate) fn floor(self) -> Option<u64> {
        match self {
            Step::Acquire { floor } | Step::Raise { floor, .. } => Some(floor),
            Step::Renew { .. } | Step::Release { .. } | Step::Shorten { .. } => None,
        }
    }

    /// Whether it asks for the lock, or for more of it.
    fn asks(self) -> bool {
        matches!(self, Step::Acquire { .. } | Step::Raise { .. } | Step::Renew { .. })
    }
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Ask(Step),
    At(Moment),
    Later,
    Over,
}

/// What the node said in this round.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    None,
    Granted,
    /// Others hold it there, or wait.
    Null,
    /// The fence that was asked for is too far ahead of its clock. Perhaps not for long.
    TooFar(Error),
    Failed(Error),
}

/// What came of a request.
pub(crate) enum Reply {
    Fence(u64),
    /// Null to a request that asks for the lock, or is about a hold.
    Null,
    Error(Error),
    /// No reply. The node may have got the request, or may not.
    Silence(Error),
}

#[derive(Debug)]
pub(crate) struct Vote {
    pub(crate) answer: Answer,
    /// What the node granted, as far as is known.
    pub(crate) fence: Option<u64>,
    /// Until when that is sure.
    until: Moment,
    /// When the last request was sent that it granted.
    sent: Moment,
    /// What it may hold has surely ended then. None if it holds nothing.
    gone_by: Option<Moment>,
    /// What it granted before counts no more, and is given back first.
    stale: bool,
    /// How often it said in this round that others have it.
    pub(crate) nulls: u32,
    /// Whether the last release found something.
    pub(crate) released: Option<bool>,
    /// In this round it is asked for nothing any more: its clock is too far ahead of the others.
    barred: bool,
    /// Whether a release got no reply, and whether it may come to pass after what is asked later. Then it is asked for
    /// nothing any more.
    release_lost: bool,
    left_out: bool,
    due: Moment,
    /// When it said that a hold was gone that was to be kept. It is not won back before the others were asked.
    doubted: Option<Moment>,
    /// When a release is repeated that failed.
    release_due: Moment,
    backoff: Backoff,
}

impl Vote {
    pub(crate) fn new(now: Moment) -> Vote {
        Vote {
            answer: Answer::None,
            fence: None,
            until: now,
            sent: now,
            gone_by: None,
            stale: false,
            nulls: 0,
            barred: false,
            released: None,
            release_lost: false,
            left_out: false,
            due: now,
            doubted: None,
            release_due: now,
            backoff: Backoff::default(),
        }
    }

    /// A new round begins. What was granted in another one does not count.
    pub(crate) fn begin(&mut self, now: Moment) {
        if !self.left_out {
            self.answer = Answer::None;
        }
        self.stale = self.may_hold(now);
        (self.nulls, self.barred, self.doubted) = (0, false, None);
        self.at_once(now);
    }

    /// It was granted elsewhere, by a request that was sent then.
    pub(crate) fn granted(&mut self, fence: u64, sent: Moment, now: Moment, lease: Duration) {
        self.stale = false;
        self.settle(Step::Acquire { floor: 0 }, Reply::Fence(fence), sent, now, lease);
    }

    /// It is asked for nothing any more, since a release may be on its way there.
    pub(crate) fn leave_out(&mut self, error: Error) {
        (self.left_out, self.answer) = (true, Answer::Failed(error));
    }

    /// What it granted is too far ahead of the others: it is given back.
    pub(crate) fn bar(&mut self, error: Option<Error>) {
        (self.stale, self.barred) = (true, true);
        self.answer = error.map_or(Answer::None, Answer::Failed);
    }

    /// Whether it has granted it in this round, or may do so.
    pub(crate) fn may_grant(&self) -> bool {
        !self.barred && !self.left_out && (self.failure().is_none() || self.was_too_far())
    }

    /// Whether it is out for this round.
    pub(crate) fn is_barred(&self) -> bool {
        self.barred
    }

    /// It was asked for too much, and is asked for less.
    pub(crate) fn ask_anew(&mut self, now: Moment) {
        if self.barred || self.left_out {
            return;
        }
        self.stale = false;
        self.answer = if self.fence.is_some() { Answer::Granted } else { Answer::None };
        self.at_once(now);
    }

    /// Whether it said that others have it.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.answer, Answer::Null)
    }

    /// Its connection was given up.
    pub(crate) fn cut_off(&mut self) {
        self.left_out |= self.release_lost;
    }

    /// Why it did not grant it, if it did not say that others have it.
    pub(crate) fn failure(&self) -> Option<&Error> {
        match &self.answer {
            Answer::Failed(error) | Answer::TooFar(error) => Some(error),
            Answer::None | Answer::Granted | Answer::Null => None,
        }
    }

    /// Whether its clock was too far behind for the fence.
    pub(crate) fn was_too_far(&self) -> bool {
        self.failure().is_some_and(Error::is_ahead)
    }

    /// Whatever is to be asked is asked at once.
    pub(crate) fn at_once(&mut self, now: Moment) {
        (self.due, self.release_due) = (now, now);
        self.backoff.reset();
    }

    /// When it said that its hold was gone, if it is to be won back.
    pub(crate) fn doubted(&self) -> Option<Moment> {
        self.doubted
    }

    /// The others still hold the lock: it is won back at once.
    pub(crate) fn believe(&mut self, now: Moment) {
        self.doubted = None;
        self.at_once(now);
    }

    /// Whether the node may hold something for the owner.
    pub(crate) fn may_hold(&self, now: Moment) -> bool {
        self.gone_by.is_some_and(|gone_by| gone_by > now)
    }

    /// The fence that it surely holds now.
    pub(crate) fn holds(&self, now: Moment) -> Option<u64> {
        self.fence.filter(|_| !self.stale && self.until > now)
    }

    /// Until when it surely holds, if it does so under this fence or a higher one.
    pub(crate) fn until(&self, floor: u64) -> Option<Moment> {
        self.fence.filter(|fence| !self.stale && *fence >= floor).map(|_| self.until)
    }

    /// When the last request was sent that it granted.
    pub(crate) fn sent(&self) -> Moment {
        self.sent
    }

    pub(crate) fn next(&self, aim: Aim, floor: u64, now: Moment) -> Turn {
        let release = Step::Release { fence: self.fence };
        let step = match (aim, self.holds(now)) {
            (Aim::Undo(_), _) if !self.may_hold(now) => return Turn::Over,
            (Aim::Undo(Some(left)), Some(fence)) => Step::Shorten { fence, left },
            (Aim::Undo(_), _) => release,
            (_, _) if self.stale && self.may_hold(now) => release,
            // Without delay: the owner waits for it.
            (_, Some(fence)) if fence < floor => return Turn::Ask(Step::Raise { fence, floor }),
            (_, Some(fence)) => Step::Renew { fence },
            (_, None) if self.left_out || (self.barred && aim == Aim::Take) => return Turn::Later,
            (_, None) => Step::Acquire { floor },
        };
        let due = if step.asks() { self.due } else { self.release_due };
        if due <= now { Turn::Ask(step) } else { Turn::At(due) }
    }

    /// What the node said to a step that was sent then.
    pub(crate) fn settle(&mut self, step: Step, reply: Reply, sent: Moment, now: Moment, lease: Duration) {
        match reply {
            Reply::Fence(fence) if step.asks() => {
                self.answer = Answer::Granted;
                self.fence = Some(fence);
                (self.until, self.sent) = (valid_until_at_node(sent, lease), sent);
                self.gone_by = Some(now + lease);
                self.backoff.reset();
                self.due = sent + renewal_interval(lease);
            }
            // It holds nothing any more that is ours to give back.
            Reply::Fence(_) => self.gave_back(true, now),
            Reply::Null if step.asks() => {
                self.answer = Answer::Null;
                self.nulls += 1;
                self.forget(now);
                match step {
                    Step::Acquire { .. } => self.due = now + AGAIN + self.backoff.short_pause(),
                    // By then each of the others was asked once more.
                    Step::Renew { .. } => (self.due, self.doubted) = (now + renewal_interval(lease), Some(now)),
                    _ => {}
                }
            }
            // Null to a repeated request: the first may have done it.
            Reply::Null => self.gave_back(self.release_lost, now),
            Reply::Error(error) => self.refused(step, error, now),
            Reply::Silence(error) => {
                self.again_at(step, now);
                match step {
                    Step::Acquire { .. } | Step::Raise { .. } => {
                        // It has this fence now, or the one of before, or none.
                        self.fence = None;
                        self.gone_by = Some(now + lease);
                        self.answer = Answer::Failed(error);
                    }
                    Step::Renew { .. } => self.gone_by = Some(now + lease),
                    Step::Release { .. } | Step::Shorten { .. } => self.release_lost = true,
                }
            }
        }
    }

    /// An error reply leaves no trace at the node.
    fn refused(&mut self, step: Step, error: Error, now: Moment) {
        match step {
            Step::Acquire { .. } if error.is_ahead() => {
                self.due = now + AGAIN + self.backoff.short_pause();
                self.answer = Answer::TooFar(error);
            }
            Step::Acquire { .. } => {
                self.again_at(step, now);
                self.answer = Answer::Failed(error);
            }
            // It cannot have the fence of the others: it is left out.
            Step::Raise { .. } => {
                self.stale = true;
                self.answer = Answer::Failed(error);
            }
            Step::Renew { .. } | Step::Release { .. } | Step::Shorten { .. } => self.again_at(step, now),
        }
    }

    /// It is asked once more after a pause.
    fn again_at(&mut self, step: Step, now: Moment) {
        let pause = self.backoff.pause();
        *(if step.asks() { &mut self.due } else { &mut self.release_due }) = now + pause;
    }

    /// It was released. In another round that makes room for a new request.
    fn gave_back(&mut self, was_held: bool, now: Moment) {
        (self.released, self.release_lost) = (Some(was_held), false);
        self.forget(now);
        match self.answer {
            Answer::Failed(_) => self.due = now + self.backoff.pause(),
            _ => self.answer = Answer::None,
        }
    }

    /// The node holds nothing for the owner.
    fn forget(&mut self, now: Moment) {
        (self.fence, self.gone_by, self.stale) = (None, None, false);
        self.due = now;
    }
}

/// The reply to a request, as the server sent it.
pub(crate) fn read(step: Step, reply: Result<Value, (Error, bool)>) -> Reply {
    match reply {
        Ok(Value::Nil) => Reply::Null,
        Ok(Value::Int(fence)) => Reply::Fence(u64::try_from(fence).unwrap_or_default()),
        Ok(_) => Reply::Error(Error::Refused("the server answers as no redis-lock does".to_owned())),
        // Something else lies at the key: what was held is gone.
        Err((Error::Server(error), _))
            if error.code() == Some("WRONGTYPE") && !matches!(step, Step::Acquire { .. }) =>
        {
            Reply::Null
        }
        Err((error @ Error::Connection(_), true)) => Reply::Silence(error),
        Err((error, _)) => Reply::Error(error),
    }
}
