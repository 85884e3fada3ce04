//! Histories by hand: one for each way in which a fault shows, and one beside it that is none.

use super::*;

fn event(asked: u64, told: u64, owner: &str, what: What) -> Event {
    Event { asked: Moment(asked), told: Moment(told), owner: owner.to_owned(), what }
}

fn granted(kind: Kind, fence: i64) -> What {
    What::Locked { kind, at_least: None, fence: Some(fence), lease: 0 }
}

fn locked(fence: i64) -> What {
    granted(Kind::Write, fence)
}

fn read(fence: i64) -> What {
    granted(Kind::Read, fence)
}

const RELEASED: What = What::Released { to: None, left: Some(0) };
const LAPSED: What = What::Lapsed { lease: 0 };

fn fits(events: &[Event]) -> bool {
    explained(events, &BTreeSet::new())
}

#[test]
fn the_next_comes_in_after_a_release_or_a_lapse_and_not_before() {
    let first = event(0, 10, "a", locked(1));
    assert!(fits(&[first.clone(), event(20, 30, "a", RELEASED), event(5, 40, "b", locked(2))]));
    assert!(!fits(&[first.clone(), event(20, 30, "a", RELEASED), event(5, 15, "b", locked(2))]));
    assert!(fits(&[first.clone(), event(50, 60, "a", LAPSED), event(5, 55, "b", locked(2))]));
    assert!(!fits(&[first.clone(), event(50, 60, "a", LAPSED), event(5, 45, "b", locked(2))]));
}

#[test]
fn a_lapsed_holder_is_not_told_that_it_still_holds() {
    let (first, lapsed) = (event(0, 10, "a", locked(1)), event(50, 60, "a", LAPSED));
    assert!(!fits(&[first.clone(), lapsed.clone(), event(61, 70, "a", RELEASED)]));
    assert!(fits(&[first.clone(), lapsed.clone(), event(55, 70, "a", RELEASED)]));
    // Unless an extension has given it longer.
    let extended = event(20, 30, "a", What::Extended { fence: Some(1), lease: 1 });
    assert!(fits(&[first, lapsed, extended, event(61, 70, "a", RELEASED)]));
}

#[test]
fn a_lease_ends_after_it_began_even_for_one_who_waited_longer_than_it_lasts() {
    // Asked at 0, with a lease of 50: for all that is known from outside it may have ended from 50 on.
    let (waited, lapsed) = (event(0, 100, "a", locked(1)), event(50, 150, "a", LAPSED));
    assert!(fits(&[waited.clone(), lapsed.clone(), event(90, 160, "b", locked(2))]));
    assert!(!fits(&[waited, lapsed.clone(), event(151, 160, "a", RELEASED)]), "it had lapsed by then");
    // The end of a lease that was replaced, or that nothing is held by any more, changes nothing.
    let (early, extended) = (event(0, 10, "a", locked(1)), What::Extended { fence: Some(1), lease: 1 });
    let second = event(200, 210, "a", What::Lapsed { lease: 1 });
    let both = [early.clone(), event(20, 30, "a", extended), lapsed.clone(), second];
    assert!(fits(&[&both[..], &[event(160, 170, "a", RELEASED)]].concat()));
    assert!(fits(&[early, event(20, 30, "a", RELEASED), event(31, 35, "b", locked(2)), lapsed]));
}

#[test]
fn a_holder_that_has_what_it_asks_for_is_not_refused() {
    let refused = |writes| {
        let kind = if writes { Kind::Write } else { Kind::Read };
        event(20, 30, "a", What::Refused { kind, at_least: None })
    };
    let [reads, writes] = [event(0, 10, "a", read(1)), event(0, 10, "a", locked(1))];
    assert!(!fits(&[reads.clone(), refused(false)]));
    assert!(!fits(&[writes.clone(), refused(true)]));
    assert!(!fits(&[writes.clone(), refused(false)]), "down to reading");
    assert!(fits(&[reads, refused(true)]), "up to writing, beside others");
    assert!(fits(&[writes, event(25, 40, "a", LAPSED), refused(true)]));
    assert!(fits(&[refused(true)]));
}

#[test]
fn readers_come_in_together_and_a_fence_never_goes_back() {
    assert!(fits(&[event(0, 10, "a", read(1)), event(11, 20, "b", read(2))]));
    assert!(!fits(&[event(0, 10, "a", read(2)), event(11, 20, "b", read(1))]));
    assert!(!fits(&[event(0, 10, "a", read(1)), event(11, 20, "b", locked(2))]));
    let upgraded = event(11, 20, "a", locked(2));
    assert!(fits(&[event(0, 10, "a", read(1)), upgraded.clone()]));
    assert!(!fits(&[event(0, 10, "a", read(1)), event(0, 10, "b", read(3)), upgraded]));
}

#[test]
fn what_is_seen_is_what_is_held() {
    let look = |holders: &[(&str, (u32, u32, i64))]| {
        What::Looked(holders.iter().map(|(owner, counts)| ((*owner).to_owned(), *counts)).collect())
    };
    let first = event(0, 10, "a", locked(1));
    assert!(fits(&[first.clone(), event(20, 30, "", look(&[("a", (0, 1, 1))]))]));
    assert!(!fits(&[first.clone(), event(20, 30, "", look(&[]))]));
    assert!(!fits(&[first.clone(), event(20, 30, "", look(&[("a", (0, 2, 1))]))]));
    assert!(!fits(&[event(20, 30, "", look(&[("a", (0, 1, 1))]))]), "nobody was let in");
    // A release that was acknowledged and did not free.
    let released = event(12, 15, "a", RELEASED);
    assert!(!fits(&[first.clone(), released, event(20, 30, "", look(&[("a", (0, 1, 1))]))]));
    let uncertain = BTreeSet::from(["a".to_owned()]);
    assert!(explained(&[first, event(20, 30, "", look(&[]))], &uncertain));
}

fn shares(limit: u32, take: u32) -> Kind {
    Kind::Shares { limit, take }
}

#[test]
fn shares_stay_within_the_limit_of_each_request() {
    let beside = |take: u32, limit: u32, later: Kind| {
        let first = event(0, 10, "a", granted(shares(limit, take), 1));
        fits(&[first, event(11, 20, "b", granted(later, 2))])
    };
    assert!(beside(2, 2, shares(3, 1)));
    assert!(!beside(2, 9, shares(3, 2)), "the limit is the later one's");
    assert!(beside(2, 2, Kind::Read), "a reader has no limit");
    assert!(!beside(1, 2, Kind::Write));
    assert!(!fits(&[event(0, 10, "a", read(1)), event(11, 20, "b", granted(shares(3, 3), 2))]), "but it counts");
    assert!(!fits(&[event(0, 10, "a", locked(1)), event(11, 20, "b", granted(shares(3, 1), 2))]));
    // What is given back makes room, and what an operator takes away.
    let (first, later) = (event(0, 10, "a", granted(shares(3, 3), 1)), event(30, 40, "b", granted(shares(3, 2), 2)));
    let gives_back = |to, left| event(20, 25, "a", What::Released { to: Some(to), left: Some(left) });
    assert!(fits(&[first.clone(), gives_back(1, 1), later.clone()]));
    assert!(!fits(&[first.clone(), gives_back(2, 2), later.clone()]));
    assert!(!fits(&[first.clone(), gives_back(1, 2)]));
    let breaks = |owner, all, ended| event(20, 25, owner, What::Broken { all, ended });
    assert!(fits(&[first.clone(), breaks("", true, 1), later.clone()]));
    assert!(fits(&[first.clone(), breaks("a", false, 1), later.clone()]));
    assert!(!fits(&[first.clone(), breaks("x", false, 1), later.clone()]));
    assert!(!fits(&[first, breaks("a", false, 0), later]), "it held");
}

#[test]
fn a_holder_gets_more_shares_within_the_limit_and_a_repeated_request_counts_once() {
    let more = |kind, at_least, left| {
        let more = What::Locked { kind, at_least, fence: Some(1), lease: 0 };
        let released = What::Released { to: Some(9), left: Some(left) };
        fits(&[event(0, 10, "a", granted(shares(5, 2), 1)), event(11, 20, "a", more), event(21, 30, "a", released)])
    };
    assert!(more(shares(5, 3), None, 5));
    assert!(!more(shares(4, 3), None, 5));
    assert!(more(shares(5, 2), Some(2), 2), "it has them already");
    assert!(more(shares(2, 1), Some(2), 2), "whatever others have");
    assert!(!more(shares(5, 2), Some(2), 4));
    assert!(more(shares(5, 2), Some(4), 4), "what is missing");
    assert!(more(Kind::Read, None, 3));
    let refused = |at_least| event(20, 30, "a", What::Refused { kind: shares(5, 1), at_least });
    let first = event(0, 10, "a", granted(shares(5, 2), 1));
    assert!(fits(&[first.clone(), refused(None)]), "others may wait");
    assert!(fits(&[first.clone(), refused(Some(3))]));
    assert!(!fits(&[first, refused(Some(2))]));
}

#[test]
fn a_writer_goes_down_to_shares_within_the_limit_and_a_sole_holder_of_shares_up_to_writing() {
    let down = |kind| fits(&[event(0, 10, "a", locked(1)), event(11, 20, "a", granted(kind, 1))]);
    assert!(down(shares(3, 3)));
    assert!(!down(shares(2, 3)));
    let up = event(21, 30, "a", locked(3));
    let first = event(0, 10, "a", granted(shares(5, 2), 1));
    assert!(fits(&[first.clone(), up.clone()]));
    assert!(!fits(&[first, event(11, 20, "b", granted(shares(5, 2), 2)), up]));
}
