//! What a client does that asks with QUEUE. It asks again over another connection when it lost its own, also over two
//! at once. It comes too late, gives up, or never comes back.

use super::client::{Client, Held};
use super::wish::{Lock, PATIENCE, Wish};
use crate::history::{Maybe, Moment};
use crate::linear::Kind;
use crate::places::{Place, Told};
use crate::requester::Requester;
use rand::RngExt;
use std::thread;
use std::time::Duration;

impl Client {
    /// Requests a new hold, and asks again until it is granted or has had enough.
    pub fn stand(&mut self, lock: &Lock, wish: &Wish) -> Option<Held> {
        // At most lock.away-ms: a place whose connection is lost would end sooner than QUEUE says.
        let (queue_ms, lease_ms) = (self.dice.random_range(1_200..=2_000), self.lease_ms());
        let release = format!("LOCK.RELEASE {} {} ALL", wish.key, wish.owner);
        // It is granted by the limit of one of its requests, or collected by that of a later one.
        let (mut kind, mut highest, mut lowered) = (wish.kind, wish.kind, false);
        // It asks again at least each quarter of QUEUE, if nothing stops it.
        let pause_ms = queue_ms / 8;
        let enough = Moment::now().after_ms(self.dice.random_range(500..=4_000));
        let Client { line, dice, saw, .. } = self;
        let mut requester = Requester::new(line, PATIENCE, &wish.to_string(), wish.place(queue_ms, lease_ms));
        loop {
            let block_ms = dice.random_range(1..=pause_ms);
            let lost = requester.lost();
            let told = match dice.random_range(0..100) {
                0..35 => requester.ask(0),
                35..65 => requester.ask(block_ms),
                65..85 => {
                    let patience = Duration::from_millis(dice.random_range(1..=block_ms));
                    requester.ask_impatiently(block_ms, patience)
                }
                _ => {
                    saw.count("asked twice at once");
                    requester.ask_twice(block_ms)
                }
            };
            if told != Told::Unknown && lost > 0 {
                saw.count("came back over another connection");
            }
            if matches!(told, Told::Fence(_)) {
                break;
            }
            match dice.random_range(0..100) {
                0..4 => {
                    saw.count("never came back");
                    requester.die();
                    break;
                }
                4..8 => {
                    saw.count("came back too late");
                    thread::sleep(Duration::from_millis(queue_ms + dice.random_range(0..200)));
                }
                _ if Moment::now() > enough => {
                    saw.count("gave its place up");
                    requester.leave(&release);
                    break;
                }
                // At once, after a connection was lost.
                _ if told == Told::Unknown => {}
                _ => thread::sleep(Duration::from_millis(dice.random_range(0..=pause_ms))),
            }
            if let Some(other) = lock.with_another_limit(kind, dice) {
                saw.count("asked again with another limit");
                lowered |= other.limit() < kind.limit();
                highest = if other.limit() > highest.limit() { other } else { highest };
                kind = other;
                requester.turn_to(&Wish { kind, ..wish.clone() }.to_string());
            }
            // Not each time: what comes late over the lost connection is served as well.
            if dice.random_bool(0.5) {
                requester.settle();
            }
        }
        let told = requester.settle();
        let Requester { place, forgotten, too_early, .. } = requester;
        self.collected(place, (forgotten, too_early), told, (highest, lowered))
    }

    /// Notes what became of a place; the hold, if it was granted. `told` is when nothing was on its way any more.
    pub fn collected(
        &mut self,
        place: Place,
        (forgotten, too_early): (Vec<String>, Vec<String>),
        told: Moment,
        (highest, lowered): (Kind, bool),
    ) -> Option<Held> {
        let Client { saw, .. } = self;
        saw.forgotten.extend(forgotten);
        saw.too_early.extend(too_early);
        saw.uncertain.insert(place.owner.clone());
        saw.maybes.extend(place.maybes());
        if lowered {
            // An offer that is above the limit of the next request is not collected, and the owner stands behind.
            let (key, owner, asked) = (place.key.clone(), place.owner.clone(), place.first_asked());
            saw.maybes.push(Maybe { key, owner, asked, told: asked, until: told.after_ms(place.queue_ms) });
        } else {
            saw.stays.extend(place.stays());
            saw.places.push(place.clone());
        }
        // Of two requests at once the later may have been granted anew.
        let fence_of = |told| if let Told::Fence(fence) = told { Some(fence) } else { None };
        let (ask, fence) =
            place.asks.iter().filter_map(|ask| Some((ask, fence_of(ask.answer)?))).max_by_key(|(_, fence)| *fence)?;
        saw.count("granted to a place");
        let held = self.granted(&place, highest, fence, ask.asked, told);
        // From the answer on, however long it took to make sure that nothing else is on its way.
        self.may_hold(&place.key, &place.owner, ask.asked, ask.asked, told.after_ms(place.lease_ms));
        Some(held)
    }
}
