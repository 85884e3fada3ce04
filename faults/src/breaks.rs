//! Holds that an operator ended while clients had them.

use crate::history::{Grant, Moment};
use crate::places::Place;
use rand::{RngExt, rngs::StdRng};
use std::thread;
use std::time::{Duration, Instant};
use testbed::Server;

#[derive(Clone, Debug)]
pub struct Break {
    pub key: String,
    /// Whose hold; None for all.
    pub owner: Option<String>,
    pub asked: Moment,
    pub told: Moment,
}

/// The grants, each held for certain until the first break that may have ended it.
pub fn but_for_breaks(mut grants: Vec<Grant>, breaks: &[Break]) -> Vec<Grant> {
    for grant in &mut grants {
        let concerns = |broken: &&Break| {
            broken.key == grant.key
                && broken.owner.as_ref().is_none_or(|owner| *owner == grant.owner)
                && broken.told > grant.asked
        };
        let first = breaks.iter().filter(concerns).map(|broken| broken.asked).min();
        grant.lease_ends = first.map_or(grant.lease_ends, |asked| asked.min(grant.lease_ends));
    }
    grants
}

/// Whether nothing was broken on the key of a place before its grant: else it may have lost an offer.
pub fn is_undisturbed(place: &Place, breaks: &[Break]) -> bool {
    let until = place.granted().map_or(Moment(u64::MAX), |(ask, _)| ask.told);
    let meanwhile =
        |broken: &Break| broken.key == place.key && broken.told >= place.first_asked() && broken.asked <= until;
    !breaks.iter().any(meanwhile)
}

/// Takes so many locks from their holders, which are not informed, again and again until then.
pub fn break_locks(server: &Server, locks: usize, mut dice: StdRng, until: Instant) {
    let mut conn = server.connect();
    while Instant::now() < until {
        conn.get::<i64>(&["LOCK.BREAK", &format!("lock{}", dice.random_range(0..locks))]);
        thread::sleep(Duration::from_millis(dice.random_range(1..40)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::{Ask, End, Told};

    fn broken(owner: Option<&str>, asked: u64, told: u64) -> Break {
        Break { key: "k".to_owned(), owner: owner.map(str::to_owned), asked: Moment(asked), told: Moment(told) }
    }

    #[test]
    fn a_hold_is_certain_until_a_break_that_may_have_ended_it_was_sent() {
        let until = |broken: Break| {
            let (key, owner, lease_ends) = ("k".to_owned(), "a".to_owned(), Moment(100));
            let (asked, told) = (Moment(20), Moment(30));
            let grant = Grant { key, owner, writes: true, fence: 1, node: 1, asked, told, lease_ends, release: None };
            but_for_breaks(vec![grant], &[broken])[0].lease_ends.0
        };
        assert_eq!((until(broken(None, 50, 60)), until(broken(Some("a"), 50, 60))), (50, 50));
        assert_eq!((until(broken(Some("b"), 50, 60)), until(broken(None, 5, 15))), (100, 100));
        assert_eq!(until(broken(None, 5, 25)), 5, "it may have come after the grant");
        assert_eq!(until(Break { key: "j".to_owned(), ..broken(None, 50, 60) }), 100);
    }

    #[test]
    fn a_place_on_a_key_where_something_was_broken_meanwhile_may_have_lost_an_offer() {
        let ask = Ask { asked: Moment(20), told: Moment(90), block_ms: 0, answer: Told::Fence(1) };
        let (key, owner, asks) = ("k".to_owned(), "a".to_owned(), vec![ask]);
        let place = Place { key, owner, queue_ms: 1, lease_ms: 1, shown: None, asks, end: End::Open };
        let undisturbed = |asked, told| is_undisturbed(&place, &[broken(None, asked, told)]);
        assert_eq!((undisturbed(50, 60), undisturbed(91, 95), undisturbed(5, 19)), (false, true, true));
    }
}
