//! Places that were asked for with QUEUE: what their owners and the server saw, and what must be true of it.
//!
//! The fences tell the order of the grants, and LOCK.INFO how long a place or an offer is kept. So a busy machine, or a
//! process that is stopped, makes a judgement milder, and never wrong.

use crate::history::{Maybe, Moment, Stay};
use crate::views::{View, Waiter};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a request for a place came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    Fence(i64),
    /// Null: the owner stands in the queue.
    Waits,
    /// Nobody knows: the connection was lost. Or a later request of the owner took the place over.
    Unknown,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub asked: Moment,
    /// When its answer was read. Without an answer: from here on its connection is known to be closed.
    pub told: Moment,
    /// For how long it may wait; 0 without BLOCK.
    pub block_ms: u64,
    pub answer: Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// With a fence, or they go on.
    Open,
    /// The owner gave the place up; the answer was read then.
    Left(Moment),
    /// The owner never came back. From this moment on the server knows that it has no connection.
    Died(Moment),
}

/// One owner that asks for one lock, again and again, until it is granted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// What it asks for; of several keys the first.
    pub key: String,
    /// The owner, which asks for nothing else.
    pub owner: String,
    /// QUEUE; 0 for a request without it.
    pub queue_ms: u64,
    pub lease_ms: u64,
    /// The server showed then that it stood in the queue, for the first request.
    pub shown: Option<Moment>,
    pub asks: Vec<Ask>,
    pub end: End,
}

impl Place {
    pub fn first_asked(&self) -> Moment {
        // Of two at once either may have been sent first.
        self.asks.iter().map(|ask| ask.asked).min().unwrap_or(Moment(u64::MAX))
    }

    /// Since when it stands in the queue for certain.
    pub fn stands_since(&self) -> Option<Moment> {
        let waits = self.asks.iter().filter(|ask| ask.answer == Told::Waits).map(|ask| ask.told).min();
        waits.into_iter().chain(self.shown).min()
    }

    /// The first request that was granted, and its fence.
    pub fn granted(&self) -> Option<(&Ask, i64)> {
        let fence = |ask: &&Ask| if let Told::Fence(fence) = ask.answer { Some(fence) } else { None };
        self.asks
            .iter()
            .filter(|ask| fence(ask).is_some())
            .min_by_key(|ask| ask.told)
            .and_then(|ask| Some((ask, fence(&ask)?)))
    }

    /// Whether it kept its place from `stands_since` to the grant: it asked again within a third of QUEUE each time. A
    /// grant whose reply was lost may have lasted for its lease only.
    fn kept_asking(&self) -> bool {
        let (Some(mut since), Some((grant, _))) = (self.stands_since(), self.granted()) else { return false };
        for ask in self.answered() {
            if ask.told <= since || ask.told > grant.told {
                continue;
            }
            let most = self.queue_ms / 3;
            let most = if self.unknown_between(since, ask.told) { most.min(self.lease_ms) } else { most };
            // The request that the server showed keeps the place until it is answered.
            let is_shown = self.shown.is_some_and(|shown| ask.asked <= shown && shown <= ask.told);
            if !is_shown && ask.arrived_by() > since.after_ms(most) {
                return false;
            }
            since = since.max(ask.kept_from());
        }
        true
    }

    /// The requests that were answered, in the order of the answers.
    fn answered(&self) -> Vec<&Ask> {
        let mut answered: Vec<&Ask> = self.asks.iter().filter(|ask| ask.answer != Told::Unknown).collect();
        answered.sort_by_key(|ask| ask.told);
        answered
    }

    /// Whether a request without an answer may have been served between two moments.
    fn unknown_between(&self, from: Moment, to: Moment) -> bool {
        self.asks.iter().any(|ask| ask.answer == Told::Unknown && ask.asked < to && ask.told > from)
    }

    /// When the owner may have held the lock, or have been offered it, without knowing.
    pub fn maybes(&self) -> Vec<Maybe> {
        let mut maybes = Vec::new();
        let mut since = self.first_asked();
        let mut note = |since: Moment, until: Moment| {
            maybes.push(Maybe { key: self.key.clone(), owner: self.owner.clone(), asked: since, told: since, until });
        };
        for ask in self.answered() {
            let late = ask.arrived_by() > since.after_ms(self.queue_ms);
            if ask.answer != Told::Waits || late || self.unknown_between(since, ask.told) {
                note(since, ask.told);
            }
            since = since.max(ask.kept_from());
        }
        match self.end {
            End::Open => {}
            End::Left(told) => note(since, told),
            End::Died(known) => {
                let delivered = self.unknown_between(since, known);
                let most = if delivered { self.queue_ms.max(self.lease_ms) } else { self.queue_ms };
                note(since, known.after_ms(most));
            }
        }
        maybes
    }

    /// When the owner stood in the queue, and was offered nothing.
    pub fn stays(&self) -> Vec<Stay> {
        let mut stays: Vec<Stay> = Vec::new();
        let (mut since, mut stands) = (self.first_asked(), false);
        for ask in self.answered() {
            let on_time = ask.arrived_by() <= since.after_ms(self.queue_ms) && !self.unknown_between(since, ask.told);
            match stays.last_mut() {
                // It was not offered the lock in between: it would have been told.
                Some(stay) if stands && on_time && ask.answer == Told::Waits => stay.told = ask.told,
                _ => {
                    let (key, owner) = (self.key.clone(), self.owner.clone());
                    stays.push(Stay { key, owner, asked: ask.asked, told: ask.told });
                }
            }
            stands = ask.answer == Told::Waits;
            since = since.max(ask.kept_from());
        }
        stays
    }

    /// Whether the server may have delivered a grant to an owner that does not know of it.
    fn may_be_delivered(&self) -> bool {
        self.asks.iter().any(|ask| ask.answer == Told::Unknown)
    }
}

impl Ask {
    /// The server had it at this moment at the latest.
    fn arrived_by(&self) -> Moment {
        let waited_us = if self.answer == Told::Waits { self.block_ms * 1_000 } else { 0 };
        Moment(self.told.0.saturating_sub(waited_us))
    }

    /// The server has kept the place since this moment at least.
    fn kept_from(&self) -> Moment {
        if self.answer == Told::Waits { self.asked.after_ms(self.block_ms) } else { self.asked }
    }
}

/// Pairs on one key of which the second was asked for when the first stood in the queue, and was granted before it.
/// Only owners count that kept asking. Also says how many pairs there were to compare.
pub fn out_of_order(places: &[Place]) -> (u64, Vec<(&Place, &Place)>) {
    let (mut compared, mut pairs) = (0, Vec::new());
    for first in places.iter().filter(|place| place.kept_asking()) {
        let (Some(since), Some((_, fence))) = (first.stands_since(), first.granted()) else { continue };
        let behind = places.iter().filter(|later| later.key == first.key && later.first_asked() > since);
        for (later, (_, later_fence)) in behind.filter_map(|later| Some((later, later.granted()?))) {
            compared += 1;
            if later_fence < fence {
                pairs.push((first, later));
            }
        }
    }
    (compared, pairs)
}

/// What the server kept for an owner that never came back, for longer than it may: a place or an offer for longer than
/// QUEUE, a grant that it delivered for longer than PX, or a hold that cannot have been delivered. Also says in how
/// many views such an owner was offered the lock.
pub fn outstayed<'h>(places: &'h [Place], views: &'h [View]) -> (u64, Vec<(&'h Place, &'h View)>) {
    let (mut offers, mut found) = (0, Vec::new());
    for place in places {
        let End::Died(known) = place.end else { continue };
        for view in views.iter().filter(|view| view.key == place.key && view.asked > known) {
            let gone_ms = (view.asked.0 - known.0) / 1_000;
            // The server rounds what is left up.
            let too_long = |left_ms: i64, most_ms: u64| left_ms + gone_ms as i64 > most_ms as i64 + 1;
            let waits = |waiter: &&Waiter| waiter.owner == place.owner;
            let waits_too_long = view
                .waiters
                .iter()
                .find(waits)
                .is_some_and(|waiter| waiter.left_ms.is_none_or(|left| too_long(left, place.queue_ms)));
            let holder = view.holders.iter().find(|holder| holder.owner == place.owner);
            offers += u64::from(holder.is_some_and(|holder| holder.offered));
            let holds_too_long = holder.is_some_and(|holder| match holder.offered {
                true => too_long(holder.left_ms, place.queue_ms),
                false => !place.may_be_delivered() || too_long(holder.left_ms, place.lease_ms),
            });
            if waits_too_long || holds_too_long {
                found.push((place, view));
                // One cause would show in each view from here on.
                break;
            }
        }
    }
    (offers, found)
}

/// How much later than it had to the first owner that lived was granted a lock that was free since `freed`, behind
/// owners that never came back; in microseconds. The times of these run at once. `lapsed` are those whose grants were
/// delivered, as the server's log says, so that each held for PX. One whose end is open died without the server's
/// knowledge: it keeps no place, but may have been granted.
pub fn held_up_us(next: Moment, freed: Moment, dead: &[Place], lapsed: &BTreeSet<String>) -> u64 {
    let died = |place: &Place| if let End::Died(known) = place.end { Some(known) } else { None };
    let since = dead.iter().filter_map(died).fold(freed, Moment::max);
    let queue_ms = dead.iter().map(|place| place.queue_ms).max().unwrap_or_default();
    let held_ms: u64 = dead.iter().filter(|place| lapsed.contains(&place.owner)).map(|place| place.lease_ms).sum();
    next.0.saturating_sub(since.after_ms(queue_ms + held_ms).0)
}

/// The requests for new holds, each with the moment at which the server first showed that it waits.
pub fn shown(mut places: Vec<Place>, views: &[View]) -> Vec<Place> {
    /// A view that took longer says little of when.
    const QUICK_MS: u64 = 50;
    let mut first: BTreeMap<(&str, &str), Moment> = BTreeMap::new();
    for view in views.iter().filter(|view| view.told < view.asked.after_ms(QUICK_MS)) {
        for Waiter { owner, .. } in &view.waiters {
            first.entry((&view.key, owner)).and_modify(|told| *told = view.told.min(*told)).or_insert(view.told);
        }
    }
    for place in &mut places {
        place.shown = first.get(&(place.key.as_str(), place.owner.as_str())).copied();
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::Holder;

    const QUEUE_MS: u64 = 300;

    fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000)
    }

    fn ask(asked: u64, told: u64, answer: Told) -> Ask {
        Ask { asked: ms(asked), told: ms(told), block_ms: 0, answer }
    }

    fn place(owner: &str, asks: &[Ask], end: End) -> Place {
        Place {
            key: "k".to_owned(),
            owner: owner.to_owned(),
            queue_ms: QUEUE_MS,
            lease_ms: 1_000,
            shown: None,
            asks: asks.to_vec(),
            end,
        }
    }

    /// Stands from 10 on, and asks again every 80 ms until it is granted at 250.
    fn first(fence: i64) -> Place {
        let asks = [
            ask(0, 10, Told::Waits),
            ask(80, 90, Told::Waits),
            ask(160, 170, Told::Waits),
            ask(240, 250, Told::Fence(fence)),
        ];
        place("first", &asks, End::Open)
    }

    fn later(asked: u64, fence: i64) -> Place {
        place("later", &[ask(asked, 200, Told::Fence(fence))], End::Open)
    }

    fn passed(first: &Place, later: Place) -> (u64, usize) {
        let places = [first.clone(), later];
        let (compared, pairs) = out_of_order(&places);
        (compared, pairs.len())
    }

    #[test]
    fn a_waiter_that_asked_later_and_was_granted_before_is_found() {
        assert_eq!(passed(&first(9), later(20, 5)), (1, 1));
        assert_eq!(passed(&first(5), later(20, 9)), (1, 0));
        assert_eq!(passed(&first(9), later(5, 5)), (0, 0), "both may have come in this order");
        assert_eq!(passed(&first(9), Place { key: "other".to_owned(), ..later(20, 5) }), (0, 0));
        let shown = Place { shown: Some(ms(3)), ..first(9) };
        assert_eq!(passed(&shown, later(5, 5)), (1, 1), "the server had shown it");
        let waited = place("first", &[ask(0, 5_000, Told::Fence(9))], End::Open);
        assert_eq!(passed(&waited, later(20, 5)), (0, 0), "it may have come late");
        assert_eq!(passed(&Place { shown: Some(ms(10)), ..waited }, later(20, 5)), (1, 1));
    }

    #[test]
    fn an_owner_that_was_late_in_asking_again_has_no_claim() {
        let mut late = first(9);
        late.asks.remove(2);
        assert_eq!(passed(&late, later(20, 5)), (0, 0));
        // A request that waits keeps the place while it does.
        late.asks[1].block_ms = 80;
        late.asks[1].told = ms(175);
        assert_eq!(passed(&late, later(20, 5)), (1, 1));
    }

    #[test]
    fn requests_without_an_answer_keep_no_place_and_may_have_been_granted() {
        let mut lost = first(9);
        lost.asks[2].answer = Told::Unknown;
        assert_eq!(passed(&lost, later(20, 5)), (0, 0), "it may never have come to the server");
        let more = ask(175, 180, Told::Waits);
        lost.asks.insert(3, more);
        assert_eq!(passed(&lost, later(20, 5)), (1, 1));
        lost.lease_ms = 50;
        assert_eq!(passed(&lost, later(20, 5)), (0, 0), "the grant without a reply may be over");
    }

    fn view(at: u64, holder: Option<(&str, bool, i64)>, waiter: Option<(&str, Option<i64>)>) -> View {
        let holder = holder.map(|(owner, offered, left_ms)| {
            let owner = owner.to_owned();
            Holder { owner, reads: 0, writes: true, offered, left_ms }
        });
        let waiter = waiter.map(|(owner, left_ms)| Waiter { owner: owner.to_owned(), left_ms });
        View {
            key: "k".to_owned(),
            asked: ms(at),
            told: ms(at),
            holders: holder.into_iter().collect(),
            waiters: waiter.into_iter().collect(),
        }
    }

    fn stays(place: &Place, view: View) -> bool {
        !outstayed(std::slice::from_ref(place), &[view]).1.is_empty()
    }

    #[test]
    fn a_place_or_an_offer_of_one_that_never_came_back_is_kept_for_queue_and_no_longer() {
        let dead = place("dead", &[ask(0, 10, Told::Waits)], End::Died(ms(100)));
        for (left, too_long) in [(100, false), (201, false), (202, true), (300, true)] {
            assert_eq!(stays(&dead, view(200, None, Some(("dead", Some(left))))), too_long, "place, {left}");
            assert_eq!(stays(&dead, view(200, Some(("dead", true, left)), None)), too_long, "offer, {left}");
        }
        assert!(stays(&dead, view(402, None, Some(("dead", Some(0))))), "its time does not end it");
        assert!(!stays(&dead, view(90, None, Some(("dead", Some(300))))), "it had not died yet");
        assert!(stays(&dead, view(200, None, Some(("dead", None)))), "there is no client that could wait");
        let lives = Place { end: End::Open, ..dead.clone() };
        assert!(!stays(&lives, view(200, None, Some(("dead", None)))));
        let offered = [view(150, Some(("dead", true, 200)), None), view(160, Some(("dead", true, 190)), None)];
        assert_eq!(outstayed(&[dead], &offered).0, 2);
    }

    #[test]
    fn a_hold_of_one_that_never_came_back_was_delivered_and_ends_with_its_lease() {
        let polled = place("dead", &[ask(0, 10, Told::Waits)], End::Died(ms(100)));
        assert!(stays(&polled, view(200, Some(("dead", false, 1)), None)), "no request was under way");
        let parked = place("dead", &[ask(0, 100, Told::Unknown)], End::Died(ms(100)));
        assert!(!stays(&parked, view(200, Some(("dead", false, 901)), None)));
        assert!(stays(&parked, view(200, Some(("dead", false, 902)), None)));
    }

    #[test]
    fn owners_that_died_hold_a_line_up_for_queue_all_together_and_for_the_leases_of_those_that_held() {
        let dead = |owner: &str, at| place(owner, &[ask(0, at, Told::Unknown)], End::Died(ms(at)));
        let dead = [dead("a", 40), dead("b", 60), dead("c", 50)];
        let late = |next, freed, lapsed: &[&str]| {
            held_up_us(ms(next), ms(freed), &dead, &lapsed.iter().map(|owner| (*owner).to_owned()).collect())
        };
        assert_eq!((late(360, 20, &[]), late(361, 20, &[])), (0, 1_000), "from the death of the last");
        assert_eq!((late(400, 100, &[]), late(401, 100, &[])), (0, 1_000), "from the release");
        assert_eq!((late(2_400, 100, &["a", "b"]), late(2_401, 100, &["a", "b"])), (0, 1_000));
        assert_eq!(late(1_401, 100, &["b", "other"]), 1_000);
    }

    #[test]
    fn an_owner_may_hold_unknown_to_it_only_where_it_was_late_or_had_no_answer_or_died() {
        let spans = |place: &Place| -> Vec<(u64, u64)> {
            place.maybes().iter().map(|maybe| (maybe.asked.0 / 1_000, maybe.until.0 / 1_000)).collect()
        };
        assert_eq!(spans(&first(1)), [(160, 250)], "the offer, before it was collected");
        let stays = |place: &Place| -> Vec<(u64, u64)> {
            place.stays().iter().map(|stay| (stay.asked.0 / 1_000, stay.told.0 / 1_000)).collect()
        };
        assert_eq!(stays(&first(1)), [(0, 170), (240, 250)], "it may have been offered it before it asked");
        let mut lost = first(1);
        lost.asks[1].answer = Told::Unknown;
        assert_eq!(spans(&lost), [(0, 170), (160, 250)]);
        assert_eq!(stays(&lost), [(0, 10), (160, 170), (240, 250)]);
        let late = [ask(0, 10, Told::Waits), ask(305, 310, Told::Waits)];
        assert_eq!(spans(&place("late", &late, End::Open)), [(0, 310)]);
        assert_eq!(spans(&place("left", &late[..1], End::Left(ms(50)))), [(0, 50)]);
        assert_eq!(spans(&place("dead", &late[..1], End::Died(ms(50)))), [(0, 350)]);
        let under_way = [late[0], ask(20, 50, Told::Unknown)];
        assert_eq!(spans(&place("dead", &under_way, End::Died(ms(50)))), [(0, 1_050)]);
    }

    #[test]
    fn of_two_requests_at_once_the_one_that_was_sent_first_counts() {
        let place = place("a", &[ask(20, 40, Told::Waits), ask(10, 30, Told::Waits)], End::Open);
        assert_eq!(place.first_asked(), ms(10));
    }

    #[test]
    fn a_request_is_shown_by_the_first_view_in_which_it_waits() {
        let shows = |asked, told, owner| View { told: ms(told), ..view(asked, None, Some((owner, None))) };
        let views = [shows(80, 90, "a"), shows(5, 60_000, "a"), shows(20, 30, "a"), shows(1, 11, "b")];
        assert_eq!(shown(vec![place("a", &[], End::Open)], &views)[0].shown, Some(ms(30)));
    }
}
