//! Histories by hand: one for each way in which a fault shows, and one beside it that is none.

use super::*;
use crate::places::{Ask, End, Told};

fn raise(asked: u64, told: u64, limit: u32) -> Raise {
    Raise { asked: Moment(asked), told: Moment(told), limit: Some(limit) }
}

/// Shares that were taken by this request, and are sure until then.
fn taken(owner: &str, counts: u32, raise: Raise, until: u64) -> Piece {
    Piece {
        key: "k".to_owned(),
        owner: owner.to_owned(),
        fence: 1,
        since: raise.asked,
        writes: false,
        counts,
        raise,
        raised: true,
        from: raise.told,
        until: Moment(until),
        changed: None,
        denied: None,
    }
}

fn writer(owner: &str, asked: u64, told: u64, until: u64) -> Piece {
    let raise = Raise { limit: None, ..raise(asked, told, 1) };
    Piece { writes: true, counts: 0, ..taken(owner, 0, raise, until) }
}

fn changed(piece: Piece, at: u64) -> Piece {
    Piece { changed: Some(Moment(at)), ..piece }
}

fn broken(owner: Option<&str>, asked: u64, told: u64) -> Break {
    Break { key: "k".to_owned(), owner: owner.map(str::to_owned), asked: Moment(asked), told: Moment(told) }
}

#[test]
fn a_grant_above_its_limit_is_seen_if_others_have_too_many_all_the_while() {
    let with = |first: Piece| granted_above(&[first, taken("b", 2, raise(20, 30, 3), 100)]).1.len();
    assert_eq!(with(taken("a", 2, raise(0, 10, 3), 100)), 1);
    assert_eq!(with(taken("a", 1, raise(0, 10, 3), 100)), 0, "it fits");
    assert_eq!(with(taken("a", 2, raise(0, 21, 3), 100)), 0, "the first may have been granted later");
    assert_eq!(with(changed(taken("a", 2, raise(0, 10, 3), 100), 29)), 0, "it may have given back before");
    assert_eq!(with(taken("a", 2, raise(0, 10, 3), 29)), 0, "its lease may have ended before");
}

#[test]
fn a_grant_that_one_after_the_other_kept_out_all_the_while_is_seen() {
    let first = changed(taken("a", 2, raise(0, 10, 9), 100), 26);
    let with = |second: u64| {
        let second = taken("c", 2, raise(0, second, 9), 100);
        granted_above(&[first.clone(), second, taken("b", 2, raise(20, 30, 3), 100)]).1.len()
    };
    assert_eq!((with(25), with(27)), (1, 0));
}

#[test]
fn a_holder_that_asks_for_more_counts_once() {
    let before = changed(taken("a", 2, raise(0, 10, 3), 100), 20);
    let more = |counts| [before.clone(), taken("a", counts, raise(20, 30, 3), 100)];
    assert_eq!((granted_above(&more(3)).1.len(), granted_above(&more(4)).1.len()), (0, 1));
    assert_eq!((above_limit(&more(3)).1.len(), above_limit(&more(4)).1.len()), (0, 1));
}

#[test]
fn more_shares_at_once_than_the_limit_are_seen_also_after_a_long_wait() {
    // It waited from 0 on, so its grant may lie before the other's: only what both hold afterwards tells.
    let waited = |limit| taken("b", 2, raise(0, 30, limit), 100);
    let with = |first: Piece, limit| above_limit(&[first, waited(limit)]).1.len();
    let first = taken("a", 2, raise(5, 10, 3), 100);
    assert_eq!((granted_above(&[first.clone(), waited(3)]).1.len(), with(first.clone(), 3)), (0, 1));
    assert_eq!(with(changed(first.clone(), 30), 3), 0, "the first had asked for the end");
    assert_eq!(with(taken("a", 2, raise(5, 10, 3), 30), 3), 0, "its lease may have ended");
    assert_eq!(with(first, 4), 0, "the second, with a higher limit, may have been the last");
}

#[test]
fn only_the_limit_of_the_last_grant_counts() {
    let low = |asked, told| taken("a", 2, raise(asked, told, 3), 100);
    let high = |asked, told| taken("b", 2, raise(asked, told, 8), 100);
    assert!(above_limit(&[low(0, 10), high(20, 30)]).1.is_empty());
    assert_eq!(above_limit(&[low(20, 30), high(0, 10)]).1.len(), 1);
    let without = Piece { raise: Raise { limit: None, ..raise(20, 30, 1) }, ..high(20, 30) };
    assert!(above_limit(&[low(0, 10), without]).1.is_empty(), "a reader has no limit");
}

#[test]
fn a_full_lock_is_counted_as_what_could_have_shown_a_limit_that_is_one_too_high() {
    let of = |counts| [taken("a", counts, raise(0, 10, 3), 100), taken("b", 1, raise(20, 30, 3), 100)];
    assert_eq!((granted_above(&of(2)).0, granted_above(&of(1)).0), (1, 0));
    assert_eq!((above_limit(&of(2)).0, above_limit(&of(1)).0), (1, 0));
}

#[test]
fn a_writer_beside_a_share_is_seen() {
    let with = |share: Piece| beside_writers(&[share, writer("w", 20, 30, 100)]).len();
    assert_eq!(with(taken("a", 1, raise(0, 10, 3), 100)), 1);
    assert_eq!(with(taken("a", 1, raise(0, 40, 3), 100)), 1);
    assert_eq!(with(changed(taken("a", 1, raise(0, 10, 3), 100), 30)), 0);
    assert_eq!(with(taken("a", 1, raise(0, 10, 3), 30)), 0);
    assert_eq!(with(writer("x", 0, 10, 100)), 2, "two writers, each beside the other");
}

#[test]
fn an_operator_ends_what_is_sure_when_it_asks() {
    let until = |broken: Break| but_for_breaks(vec![taken("a", 1, raise(10, 20, 3), 100)], &[broken])[0].until.0;
    assert_eq!(until(broken(None, 50, 60)), 50);
    assert_eq!(until(broken(Some("a"), 50, 60)), 50);
    assert_eq!(until(broken(Some("b"), 50, 60)), 100);
    assert_eq!(until(broken(None, 5, 15)), 5, "it may have been granted before");
    assert_eq!(until(broken(None, 5, 10)), 100, "it was asked for later");
}

#[test]
fn a_hold_that_is_denied_while_it_is_sure_is_lost() {
    let denied = |told| Piece { denied: Some(Moment(told)), ..taken("a", 1, raise(0, 10, 3), 100) };
    assert_eq!((lost(&[denied(99)]).len(), lost(&[denied(100)]).len()), (1, 0));
    let but_for_breaks = but_for_breaks(vec![denied(99)], &[broken(None, 50, 60)]);
    assert!(lost(&but_for_breaks).is_empty());
}

#[test]
fn a_release_that_leaves_another_count_is_seen() {
    let (key, owner) = ("k".to_owned(), "a".to_owned());
    let left = |left| Returned { key: key.clone(), owner: owner.clone(), expected: 1, left, repeated: true };
    assert_eq!((miscounted(&[left(2)]).len(), miscounted(&[left(0)]).len(), miscounted(&[left(1)]).len()), (1, 1, 0));
}

fn look(holders: &[(&str, u64, bool)], waiters: &[&str], asked: u64, told: u64) -> Look {
    Look {
        key: "k".to_owned(),
        asked: Moment(asked),
        told: Moment(told),
        holders: holders.iter().map(|(owner, reads, writes)| ((*owner).to_owned(), *reads, *writes)).collect(),
        waiters: waiters.iter().map(|owner| (*owner).to_owned()).collect(),
    }
}

#[test]
fn a_look_at_too_many_shares_or_a_writer_beside_another_is_seen() {
    let limits = BTreeMap::from([("k".to_owned(), 3)]);
    let of = |holders: &[(&str, u64, bool)]| {
        let looks = [look(holders, &[], 0, 10)];
        let (full, crowded) = crowded(&looks, &limits);
        (full, crowded.len())
    };
    assert_eq!(of(&[("a", 2, false), ("b", 2, false)]), (0, 1));
    assert_eq!(of(&[("a", 2, false), ("b", 1, false)]), (1, 0));
    assert_eq!(of(&[("a", 0, true), ("b", 1, false)]), (0, 1));
    assert_eq!(of(&[("a", 1, true)]), (0, 0));
    let looks = [look(&[("a", 9, false)], &[], 0, 10)];
    assert!(crowded(&looks, &BTreeMap::new()).1.is_empty(), "no limit is known");
}

/// One request that waited until it was granted.
fn waited(owner: &str, asked: u64, told: u64, fence: i64) -> Place {
    let ask = Ask { asked: Moment(asked), told: Moment(told), block_ms: 1_000, answer: Told::Fence(fence) };
    Place {
        key: "k".to_owned(),
        owner: owner.to_owned(),
        queue_ms: 0,
        lease_ms: 1_000,
        shown: None,
        asks: vec![ask],
        end: End::Open,
    }
}

#[test]
fn a_heavy_request_that_a_later_one_passed_is_seen() {
    let passed_with = |looks: &[Look], later_asked: u64, breaks: &[Break]| {
        let places = [waited("heavy", 0, 90, 7), waited("light", later_asked, 60, 6)];
        let places = shown(places.to_vec(), looks);
        let (compared, passed) = passed(&places, breaks);
        (compared, passed.len())
    };
    let shows = [look(&[], &["heavy"], 20, 30)];
    assert_eq!(passed_with(&shows, 40, &[]), (1, 1));
    assert_eq!(passed_with(&shows, 30, &[]), (0, 0), "nothing shows that the first waited by then");
    assert_eq!(passed_with(&[], 40, &[]), (0, 0));
    assert_eq!(passed_with(&[look(&[], &["heavy"], 0, 50_030)], 50_040, &[]), (0, 0), "the look took too long");
    assert_eq!(passed_with(&shows, 40, &[broken(None, 50, 55)]), (1, 0), "it may have lost an offer");
    assert_eq!(passed_with(&shows, 40, &[broken(None, 95, 99)]), (1, 1));
}

#[test]
fn what_a_killed_client_told_last_counts() {
    let mut saw = Saw::default();
    let piece = taken("a", 2, raise(0, 10, 3), 100);
    saw.add(Line::Begins(piece.clone()));
    assert_eq!(saw.pieces[0].sure_until(), Moment(100), "it asked for nothing more");
    saw.add(Line::Changes("a".to_owned(), Moment(50)));
    assert_eq!(saw.pieces[0].sure_until(), Moment(50));
    saw.add(Line::Begins(Piece { counts: 1, from: Moment(60), ..piece }));
    saw.add(Line::Denied("a".to_owned(), Moment(70)));
    assert_eq!((saw.pieces[0].denied, saw.pieces[1].denied), (None, Some(Moment(70))));
}

#[test]
fn one_hold_is_one_grant_however_often_it_changed() {
    let piece = taken("a", 2, raise(0, 10, 3), 100);
    let later = Piece { from: Moment(60), ..piece.clone() };
    let anew = Piece { fence: 2, from: Moment(80), ..piece.clone() };
    let holds = holds(&[piece, later, anew]);
    assert_eq!(holds.iter().map(|hold| (hold.fence, hold.told.0)).collect::<Vec<_>>(), [(1, 10), (2, 80)]);
}
