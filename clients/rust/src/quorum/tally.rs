//! Counts the votes of the nodes: whether a lock is held, or can be, and until when. Asks nobody.

use crate::clock::Moment;
use crate::error::Error;
use crate::quorum::vote::{Answer, Vote};

/// How many of so many nodes are a quorum: any two have one in common.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// How long one round goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Nodes that have not answered by then are left out.
    pub(crate) answers_by: Moment,
    /// So long the others are asked again, if the node where the queue is has granted it.
    pub(crate) insists_until: Moment,
    /// And so often at least, if they answer in time.
    pub(crate) insists_times: u32,
    /// Whether the fence that all were asked for is by the own wall clock, and not one that a node has given.
    pub(crate) by_clock: bool,
}

/// What the votes of one round say.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Open,
    Held,
    /// Others have it. That node, the first that answers, has the queue.
    Occupied(usize),
    /// Others have it at so many nodes that there is no quorum left.
    Split,
    /// Too many nodes did not answer, or refused.
    Short,
}

/// Counts the votes. The first node that answers has the queue: without its grant the lock would be taken past the
/// waiters there.
pub(crate) fn verdict(
    votes: &[Vote],
    is_silent: impl Fn(usize) -> bool,
    floor: u64,
    round: Round,
    now: Moment,
) -> Verdict {
    let needed = quorum_of(votes.len());
    let is_null = |number: &usize| votes[*number].is_null();
    let all = 0..votes.len();
    let holders = all.clone().filter(|number| votes[*number].holds(now).is_some()).count();
    let is_awaited = |number: usize| match votes[number].answer {
        Answer::None => now < round.answers_by && !is_silent(number),
        // If none has granted it, the own clock may be ahead, and not the one there behind.
        Answer::TooFar(_) => now < round.answers_by && (holders > 0 || !round.by_clock),
        _ => false,
    };
    let awaited = all.clone().filter(|number| is_awaited(*number)).count();
    let nulls = all.clone().filter(is_null).count();
    let is_told_off = |vote: &Vote| !matches!(vote.answer, Answer::Null) || vote.nulls >= round.insists_times;
    // A node whose fence is ahead of the others' clocks is out for this round. The next one is over sooner.
    let is_hopeless =
        votes.iter().any(Vote::is_barred) && votes.iter().filter(|vote| vote.may_grant()).count() < needed;
    let insists = now < round.insists_until || (now < round.answers_by && !votes.iter().all(is_told_off));
    let insists = insists && !is_hopeless;
    let queue =
        all.clone().find(|number| is_awaited(*number) || is_null(number) || votes[*number].holds(now).is_some());
    let Some(queue) = queue else { return Verdict::Short };
    let at_queue = votes[queue].holds(now).is_some();
    let exact = votes.iter().filter(|vote| vote.holds(now) == Some(floor)).count();
    let may_be_held = holders + awaited >= needed;
    if at_queue && exact >= needed {
        Verdict::Held
    } else if is_null(&queue) {
        match holders + nulls + awaited {
            answering if answering < needed => Verdict::Short,
            // Fewer have answered so far.
            _ if holders + nulls < needed => Verdict::Open,
            _ => Verdict::Occupied(queue),
        }
    } else if may_be_held || is_awaited(queue) || (at_queue && insists) {
        Verdict::Open
    } else if nulls > votes.len() - needed {
        Verdict::Split
    } else {
        Verdict::Short
    }
}

/// Until when a quorum holds it under this fence or higher ones. None if there is no quorum.
pub(crate) fn valid_until(votes: &[Vote], floor: u64) -> Option<Moment> {
    let mut ends: Vec<Moment> = votes.iter().filter_map(|vote| vote.until(floor)).collect();
    ends.sort_unstable();
    ends.into_iter().rev().nth(quorum_of(votes.len()) - 1)
}

/// Why there is no quorum: what does not pass comes first, then which nodes were missing.
pub(crate) fn why_short(votes: &[Vote], address: impl Fn(usize) -> String) -> Error {
    let failures: Vec<(usize, Option<&Error>)> = votes
        .iter()
        .enumerate()
        .filter_map(|(number, vote)| match &vote.answer {
            Answer::Failed(error) | Answer::TooFar(error) => Some((number, Some(error))),
            Answer::None => Some((number, None)),
            Answer::Granted | Answer::Null => None,
        })
        .collect();
    // Clocks meet again.
    let for_good = |vote: &&Vote| !vote.was_too_far() && vote.failure().is_some_and(|error| !error.is_transient());
    let stays: Vec<&Error> = votes.iter().filter(for_good).filter_map(Vote::failure).collect();
    if let Some(last) = stays.last()
        && votes.len() - stays.len() < quorum_of(votes.len())
    {
        return (*last).clone();
    }
    let mut text = format!("{} of {} servers did not grant the lock", failures.len(), votes.len());
    for (at, (number, error)) in failures.iter().enumerate() {
        let why = error.map_or_else(|| "no answer yet".to_owned(), Error::to_string);
        text.push_str(&format!("{} {}: {why}", if at == 0 { ":" } else { ";" }, address(*number)));
    }
    Error::NoQuorum(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::vote::{Reply, Step};
    use redis::{ErrorKind, RedisError};
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(30);

    fn later(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    /// The votes of nodes, one letter each: a digit for what was granted, under this fence; `n` for null, `-` for none,
    /// `x` for one that failed.
    fn votes(letters: &str) -> Vec<Vote> {
        let now = later(100);
        let vote = |letter: char| {
            let mut vote = Vote::new(now);
            let step = Step::Acquire { floor: 1 };
            match letter {
                'n' => vote.settle(step, Reply::Null, now, now, LEASE),
                'x' => {
                    let error = RedisError::from((ErrorKind::Io, "gone"));
                    vote.settle(step, Reply::Silence(Error::Connection(error)), now, now, LEASE);
                }
                '-' => {}
                digit => vote.granted(digit.to_digit(10).unwrap_or(0).into(), now, now, LEASE),
            }
            vote
        };
        letters.chars().map(vote).collect()
    }

    fn judged(letters: &str, silent: Option<usize>, now: u64) -> String {
        let round = Round { answers_by: later(110), insists_until: later(120), insists_times: 2, by_clock: true };
        let is_silent = |number| Some(number) == silent;
        format!("{:?}", verdict(&votes(letters), is_silent, 7, round, later(now)))
    }

    #[test]
    fn it_is_held_when_a_quorum_has_exactly_the_fence_and_the_first_that_answers_is_one_that_granted() {
        for (letters, expected) in [
            ("77-", "Held"),
            ("7-7", "Held"),
            // Granted by a quorum, but not under one fence yet.
            ("57-", "Open"),
            ("577", "Held"),
            ("7--", "Open"),
            // The first may have a queue.
            ("-77", "Open"),
            ("x77", "Held"),
            ("n77", "Occupied(0)"),
            ("xn7", "Occupied(1)"),
            ("n-x", "Open"),
            ("nnx", "Occupied(0)"),
            ("nxx", "Short"),
            ("xxx", "Short"),
            // The first insists.
            ("7nn", "Open"),
            ("7xx", "Open"),
            ("777--", "Held"),
            ("77---", "Open"),
            ("77nx-", "Open"),
        ] {
            assert_eq!(judged(letters, None, 101), expected, "{letters}");
        }
    }

    #[test]
    fn nodes_that_do_not_answer_are_not_waited_for_longer_than_that() {
        assert_eq!(judged("-77", Some(0), 101), "Held");
        assert_eq!(judged("-77", None, 111), "Held");
        assert_eq!(judged("-7x", None, 111), "Open", "the next one insists");
        assert_eq!(judged("-7x", None, 121), "Short");
        assert_eq!(judged("7nn", None, 121), "Split");
        assert_eq!(judged("7nx", None, 121), "Short", "one that says null is no quorum");
        // Its leases are over.
        assert_eq!(judged("777", None, 140), "Short");
    }

    #[test]
    fn a_round_without_hope_is_over_when_a_node_is_ahead_of_the_others() {
        let now = later(100);
        let refusal = || {
            let text = "MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock";
            Error::Server(RedisError::from((ErrorKind::Extension, "ERR", text.to_owned())))
        };
        let judge = |votes: &[Vote], by_clock| {
            let round = Round { answers_by: later(110), insists_until: later(120), insists_times: 2, by_clock };
            format!("{:?}", verdict(votes, |_| false, 7, round, later(101)))
        };
        let mut three = votes("77x");
        three[0].bar(Some(refusal()));
        assert_eq!(judge(&three, true), "Short");
        // Others have it at one more: that may pass.
        three[2] = votes("n").remove(0);
        assert_eq!(judge(&three, true), "Open");
        // The clocks of those that refuse the fence get there, if a node has given it.
        let mut ahead = votes("7--");
        ahead[0].bar(Some(refusal()));
        for vote in &mut ahead[1..] {
            vote.settle(Step::Acquire { floor: 7 }, Reply::Error(refusal()), now, now, LEASE);
        }
        assert_eq!(judge(&ahead, true), "Short");
        assert_eq!(judge(&ahead, false), "Open");
    }

    #[test]
    fn validity_is_that_of_a_quorum() {
        let mut three = votes("777");
        for (vote, seconds) in three.iter_mut().zip([100, 104, 108]) {
            vote.settle(Step::Renew { fence: 7 }, Reply::Fence(7), later(seconds), later(109), LEASE);
        }
        let end = |votes: &[Vote]| valid_until(votes, 7).map(|end| end.since(later(100)).as_millis());
        assert_eq!(end(&three), Some(4_000 + 29_698));
        // The one that was renewed last is gone.
        three[2].settle(Step::Renew { fence: 7 }, Reply::Null, later(110), later(110), LEASE);
        assert_eq!(end(&three), Some(29_698));
        three[1].settle(Step::Renew { fence: 7 }, Reply::Null, later(110), later(110), LEASE);
        assert_eq!(end(&three), None);
        // Won back under a higher fence it counts; under a lower one it does not.
        three[1].settle(Step::Acquire { floor: 7 }, Reply::Fence(9), later(111), later(111), LEASE);
        assert_eq!(end(&three), Some(29_698));
        three[1].settle(Step::Acquire { floor: 7 }, Reply::Fence(6), later(111), later(111), LEASE);
        assert_eq!(end(&three), None);
        assert_eq!([3, 4, 5, 7].map(quorum_of), [2, 3, 3, 4]);
    }
}
