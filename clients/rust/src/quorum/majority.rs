//! One owner's lock at the nodes of a quorum: what it wants of them, and their votes. The nodes ask it what to send,
//! and tell it what they answered; so each is renewed, won back and released apart from the others. It waits only for
//! the end of a renewal or a release.

use crate::channel::Failure;
use crate::clock::{Moment, node_limit, renewal_limit};
use crate::error::Error;
use crate::guard::{Ended, Ending, Keeper};
use crate::hold::Hold;
use crate::owner::{Claim, Owner};
use crate::quorum::node::{Next, Node, Work};
use crate::quorum::tally::{Round, Verdict, quorum_of, valid_until, verdict, why_short};
use crate::quorum::vote::{Aim, Step, Turn, Vote, read};
use crate::request::{Queue, Terms, is_some};
use crate::sync::{Caller, here, lock};
use redis::{Cmd, RedisError, Value};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the release of a lock that is lost, or was not got, may take.
const LOST_LIMIT: Duration = Duration::from_secs(1);

/// What whoever waits is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Voted,
    Cancelled,
}

pub(crate) struct Majority {
    nodes: Vec<Arc<Node>>,
    terms: Terms,
    owner: Owner,
    /// How long a release may take.
    limit: Duration,
    state: Mutex<State>,
}

struct State {
    aim: Aim,
    /// The fence that all were asked for, and the one that all shall have.
    proposal: u64,
    floor: u64,
    /// By the number of the node; so are the next two.
    votes: Vec<Vote>,
    /// The request that is on its way there.
    under_way: Vec<Option<Step>>,
    /// Whether the node has this on its list.
    listed: Vec<bool>,
    listeners: Vec<Sender<Change>>,
    /// Once it is held.
    hold: Option<Arc<Hold>>,
}

impl Majority {
    pub(crate) fn new(nodes: Vec<Arc<Node>>, terms: Terms, owner: Owner, limit: Duration) -> Arc<Majority> {
        let now = Moment::now();
        let state = State {
            aim: Aim::Undo(None),
            proposal: 0,
            floor: 0,
            votes: nodes.iter().map(|_| Vote::new(now)).collect(),
            under_way: vec![None; nodes.len()],
            listed: vec![false; nodes.len()],
            listeners: Vec::new(),
            hold: None,
        };
        Arc::new(Majority { nodes, terms, owner, limit, state: Mutex::new(state) })
    }

    /// Tells this one of each answer from now on.
    pub(crate) fn tell(&self, listener: Sender<Change>) {
        lock(&self.state).listeners.push(listener);
    }

    /// Asks all nodes at once, for a fence of at least this. One of them may have granted it already.
    pub(crate) fn begin(self: &Arc<Self>, proposal: u64, granted: Option<(usize, u64, Moment)>) -> Result<(), Error> {
        let now = Moment::now();
        let unlisted = {
            let mut state = lock(&self.state);
            (state.aim, state.proposal, state.floor) = (Aim::Take, proposal, proposal);
            state.votes.iter_mut().for_each(|vote| vote.begin(now));
            if let Some((number, fence, sent)) = granted {
                state.votes[number].granted(fence, sent, now, self.terms.lasts());
                state.floor = proposal.max(fence);
            }
            let listed = std::mem::replace(&mut state.listed, vec![true; self.nodes.len()]);
            self.nodes.iter().zip(listed).filter_map(|(node, listed)| (!listed).then_some(node))
        };
        for node in unlisted {
            node.add(self.clone()).map_err(RedisError::from)?;
        }
        self.wake();
        Ok(())
    }

    /// What the votes say. Whatever is not held yet is held from then on, if they say so.
    pub(crate) fn verdict(&self, round: Round) -> (Verdict, Option<Arc<Hold>>) {
        let now = Moment::now();
        let mut state = lock(&self.state);
        let is_silent = |number: usize| self.nodes[number].is_silent();
        let verdict = verdict(&state.votes, is_silent, state.floor, round, now);
        if !matches!(verdict, Verdict::Held) {
            return (verdict, None);
        }
        let Some(until) = valid_until(&state.votes, state.floor) else { return (Verdict::Open, None) };
        let hold = Arc::new(Hold::until(self.terms.clone(), self.owner.clone(), vec![state.floor], until));
        state.aim = Aim::Keep;
        state.listeners.clear();
        state.hold = Some(hold.clone());
        drop(state);
        // Nodes that were left out are asked again from now on.
        self.wake();
        (verdict, Some(hold))
    }

    /// The first error that is about the request itself, or about the nodes being no quorum.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let state = lock(&self.state);
        let mut failures = state.votes.iter().filter_map(Vote::failure);
        failures.find(|error| matches!(error, Error::Refused(_) | Error::Deadlock(_))).cloned()
    }

    /// Whether a node has refused the fence, since its clock is too far behind.
    pub(crate) fn was_too_far(&self) -> bool {
        lock(&self.state).votes.iter().any(Vote::was_too_far)
    }

    /// The highest fence that was granted or asked for.
    pub(crate) fn floor(&self) -> u64 {
        lock(&self.state).floor
    }

    /// Whether a quorum has granted it, or said that others have it.
    pub(crate) fn has_answers(&self) -> bool {
        let now = Moment::now();
        let state = lock(&self.state);
        let answered = state.votes.iter().filter(|vote| vote.holds(now).is_some() || vote.is_null());
        answered.count() >= quorum_of(self.nodes.len())
    }

    /// Why there was no quorum.
    pub(crate) fn why_short(&self) -> Error {
        why_short(&lock(&self.state).votes, |number| self.nodes[number].address())
    }

    /// Asks this node for nothing any more: a release may be on its way there.
    pub(crate) fn leave_out(&self, number: usize, error: Error) {
        lock(&self.state).votes[number].leave_out(error);
    }

    /// Gives back all that was granted. Waits for nobody.
    pub(crate) fn give_back(&self) {
        self.undo(None, Duration::ZERO);
    }

    /// Gives back all that was granted. Waits for the nodes that answer.
    pub(crate) fn withdraw(&self) {
        self.undo(None, LOST_LIMIT);
    }

    fn undo(&self, after: Option<Duration>, limit: Duration) {
        let (sender, changes) = channel();
        {
            let now = Moment::now();
            let mut state = lock(&self.state);
            state.aim = Aim::Undo(after);
            for vote in &mut state.votes {
                vote.released = None;
                vote.at_once(now);
            }
            state.listeners.push(sender);
        }
        self.wake();
        self.wait(&changes, Moment::now() + limit, |state| {
            let now = Moment::now();
            let is_done = |number: usize| state.under_way[number].is_none() && !state.votes[number].may_hold(now);
            (0..self.nodes.len()).all(|number| is_done(number) || self.nodes[number].is_silent())
        });
    }

    /// Waits until the votes are like that, or so long. Tells whether they are.
    fn wait(&self, changes: &Receiver<Change>, deadline: Moment, is_done: impl Fn(&State) -> bool) -> bool {
        loop {
            if is_done(&lock(&self.state)) {
                return true;
            }
            if deadline.is_past() || changes.recv_timeout(deadline.left()).is_err() {
                return is_done(&lock(&self.state));
            }
        }
    }

    fn wake(&self) {
        self.nodes.iter().for_each(|node| node.wake());
    }

    /// The request, and how long it may take.
    fn request(&self, step: Step) -> (Option<Cmd>, Duration) {
        let (terms, owner) = (&self.terms, &self.owner);
        let lasts = terms.lasts();
        match step {
            Step::Acquire { floor } => (Some(terms.acquire(owner, Queue::No, Some(floor))), node_limit(lasts)),
            Step::Raise { fence, floor } => (terms.raise(owner, fence, floor).pop(), node_limit(lasts)),
            Step::Renew { fence } => (terms.extend(owner, &[fence]).pop(), renewal_limit(lasts)),
            Step::Release { fence: Some(fence) } => (terms.release(owner, &[fence]).pop(), node_limit(lasts)),
            Step::Release { fence: None } => (Some(terms.leave(owner)), node_limit(lasts)),
            Step::Shorten { fence, left } => (terms.shorten(owner, &[fence], left).pop(), node_limit(lasts)),
        }
    }
}

impl State {
    /// The fence that all shall have, after an answer of this node. It is the highest that was granted. If that is too
    /// high for the clocks of others, those that have it are left out, provided that the others can be a quorum. If
    /// they cannot, they are asked until their clocks get there.
    fn agree(&mut self, node: usize, now: Moment) {
        let top = |votes: &[Vote]| votes.iter().filter_map(|vote| vote.holds(now)).max().unwrap_or_default();
        let is_top = |vote: &Vote, floor| vote.holds(now) == Some(floor);
        let is_ahead = self.votes[node].was_too_far() && self.floor > self.proposal;
        let others = self.votes.iter().filter(|vote| !is_top(vote, self.floor) && vote.may_grant());
        if is_ahead && others.count() >= quorum_of(self.votes.len()) {
            let error = self.votes[node].failure().cloned();
            for vote in self.votes.iter_mut().filter(|vote| is_top(vote, self.floor)) {
                vote.bar(error.clone());
            }
            self.votes[node].ask_anew(now);
        }
        self.floor = self.proposal.max(top(&self.votes));
    }

    /// A node that lost its hold may be the first to tell that all have: of LOCK.BREAK, say. So the others are asked at
    /// once, and it is won back when they hold the lock still: else another owner could have held it in between,
    /// unseen. Tells whether there is something to ask.
    fn doubt(&mut self, node: usize, now: Moment) -> bool {
        if self.votes[node].doubted() == Some(now) {
            self.votes.iter_mut().filter(|vote| vote.fence.is_some()).for_each(|vote| vote.at_once(now));
            return true;
        }
        let asked_since = |vote: &Vote, since| vote.fence.is_none() || vote.sent() >= since;
        let is_believed = |since: Moment| self.votes.iter().all(|vote| asked_since(vote, since));
        let believed: Vec<bool> = self.votes.iter().map(|vote| vote.doubted().is_some_and(is_believed)).collect();
        for (vote, _) in self.votes.iter_mut().zip(&believed).filter(|(_, is_believed)| **is_believed) {
            vote.believe(now);
        }
        believed.contains(&true)
    }

    /// Tells the hold what the votes say of it.
    fn judge(&self) {
        let Some(hold) = &self.hold else { return };
        match valid_until(&self.votes, self.floor) {
            Some(end) => hold.ends_at(end),
            None => hold.lose(),
        }
    }
}

impl Work for Majority {
    fn name(&self) -> (&str, &[u8]) {
        (self.owner.as_str(), &self.terms.keys[0])
    }

    fn next(&self, node: usize) -> Next {
        let mut state = lock(&self.state);
        // One whose validity has ended is not extended, whatever the nodes would say.
        if state.aim == Aim::Keep && state.hold.as_ref().is_some_and(|hold| hold.is_over()) {
            return Next::Later;
        }
        match state.votes[node].next(state.aim, state.floor, Moment::now()) {
            Turn::Ask(step) => match self.request(step) {
                (Some(request), limit) => {
                    state.under_way[node] = Some(step);
                    Next::Ask(request, limit)
                }
                (None, _) => Next::Later,
            },
            Turn::At(moment) => Next::At(moment),
            Turn::Later => Next::Later,
            Turn::Over => {
                state.listed[node] = false;
                Next::Over
            }
        }
    }

    fn answered(&self, node: usize, sent: Moment, reply: Result<Value, Failure>) {
        let now = Moment::now();
        let mut state = lock(&self.state);
        let Some(step) = state.under_way[node].take() else { return };
        let reply = read(step, reply.map_err(|failure| (failure.error, failure.sent)));
        state.votes[node].settle(step, reply, sent, now, self.terms.lasts());
        if step.floor().is_some_and(|asked| asked > state.floor) && state.votes[node].was_too_far() {
            // Meanwhile it is to have less than what it refused.
            state.votes[node].ask_anew(now);
        }
        let floor = state.floor;
        let mut is_doubted = false;
        match state.aim {
            Aim::Take => state.agree(node, now),
            Aim::Keep => {
                is_doubted = state.doubt(node, now);
                state.judge();
            }
            Aim::Undo(_) => {}
        }
        state.listeners.retain(|listener| listener.send(Change::Voted).is_ok());
        let is_new = state.floor != floor;
        drop(state);
        if is_new || is_doubted {
            self.wake();
        }
    }

    fn cut_off(&self, node: usize) {
        lock(&self.state).votes[node].cut_off();
    }
}

/// As the keeper of a hold it does not go away before the nodes have heard of its end.
impl Keeper for Arc<Majority> {
    fn may_be_handed_over(&self) -> Result<(), Error> {
        Err(Error::Refused("a lock of a quorum cannot be handed over".to_owned()))
    }

    /// A renewal is answered by nodes that hold it, and by no others.
    fn check(&self, hold: &Hold) -> Result<bool, Error> {
        self.renew(hold)
    }

    fn renew(&self, hold: &Hold) -> Result<bool, Error> {
        let (sender, changes) = channel();
        let now = Moment::now();
        {
            let mut state = lock(&self.state);
            state.votes.iter_mut().for_each(|vote| vote.at_once(now));
            state.listeners.push(sender);
        }
        self.wake();
        let is_renewed = |state: &State| {
            let renewed = state.votes.iter().filter(|vote| vote.until(state.floor).is_some() && vote.sent() >= now);
            renewed.count() >= quorum_of(state.votes.len())
        };
        let deadline = now + renewal_limit(self.terms.lasts());
        let is_renewed = self.wait(&changes, deadline, |state| hold.is_over() || is_renewed(state));
        match hold.is_over() {
            true => Ok(false),
            false if is_renewed => Ok(true),
            false => Err(Error::NoQuorum("too few servers answered the renewal in time".to_owned())),
        }
    }

    fn try_lease(&self, hold: &Hold, time: Duration) -> Result<bool, Error> {
        let now = Moment::now();
        let fences: Vec<Option<u64>> = lock(&self.state).votes.iter().map(|vote| vote.holds(now)).collect();
        let (mut willing, mut failure) = (0, None);
        for (node, fence) in self.nodes.iter().zip(fences) {
            let Some(request) = fence.and_then(|fence| self.terms.shorten(&self.owner, &[fence], time).pop()) else {
                continue;
            };
            let (transport, limit) = (node.transport(), node_limit(self.terms.lasts()));
            match here(transport.ask(Caller::Thread, self.terms.slot(), request, limit)) {
                Ok(reply) => willing += usize::from(is_some(&reply)),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if willing < quorum_of(self.nodes.len()) => Err(error.into()),
            _ => self.renew(hold),
        }
    }

    fn set_note(&self, _: &Hold, _: &str) -> Result<(), Error> {
        Err(Error::Refused("a lock of a quorum keeps its note".to_owned()))
    }

    fn guard(&self, _: &Hold, _: &Cmd) -> Result<Value, Error> {
        Err(Error::Refused("a quorum guards no data: compare the fence where the data is".to_owned()))
    }

    fn end(&self, hold: &Arc<Hold>, end: Ending, claim: Claim, patience: Option<Duration>) -> Ended {
        let now = Moment::now();
        let was_free: Vec<bool> = lock(&self.state).votes.iter().map(|vote| !vote.may_hold(now)).collect();
        let limit = if hold.is_lost() { self.limit.min(LOST_LIMIT) } else { self.limit };
        self.undo(end.after(), patience.unwrap_or(limit));
        let state = lock(&self.state);
        let count = |released| state.votes.iter().filter(|vote| vote.released == Some(released)).count();
        let is_free = |(vote, was_free): &(&Vote, bool)| *was_free || vote.released == Some(false);
        let free = state.votes.iter().zip(was_free).filter(is_free).count();
        let needed = quorum_of(self.nodes.len());
        let was_lost = self.nodes.len() - free < needed;
        let is_done = was_lost || count(true) >= needed;
        if !is_done {
            claim.keep();
        }
        let failure = || Error::NoQuorum("too few servers answered the release in time".to_owned());
        Ended { was_lost, failure: (!is_done).then(failure) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::vote::Reply;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn what_a_node_has_lost_is_won_back_when_all_others_were_renewed_since() {
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let mut votes: Vec<Vote> = (0..3).map(|_| Vote::new(at(100))).collect();
        votes.iter_mut().for_each(|vote| vote.granted(7, at(100), at(100), LEASE));
        let mut state = State {
            aim: Aim::Keep,
            proposal: 7,
            floor: 7,
            votes,
            under_way: vec![None; 3],
            listed: vec![true; 3],
            listeners: Vec::new(),
            hold: None,
        };
        let renew = Step::Renew { fence: 7 };
        let next = |state: &State, node: usize, now| state.votes[node].next(Aim::Keep, 7, now);
        state.votes[0].settle(renew, Reply::Null, at(105), at(105), LEASE);
        assert!(state.doubt(0, at(105)), "the others are asked");
        assert_eq!([1, 2].map(|node| next(&state, node, at(105))), [Turn::Ask(renew); 2]);
        assert_eq!(next(&state, 0, at(106)), Turn::At(at(115)));
        // A reply to what was sent before says nothing of the time since.
        for (node, sent, is_enough) in [(1, 106, false), (2, 104, false), (2, 106, true)] {
            state.votes[node].settle(renew, Reply::Fence(7), at(sent), at(107), LEASE);
            assert_eq!(state.doubt(node, at(107)), is_enough, "{node}");
        }
        assert_eq!(next(&state, 0, at(107)), Turn::Ask(Step::Acquire { floor: 7 }));
    }
}
