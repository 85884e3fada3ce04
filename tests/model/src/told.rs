//! What the owners of places are told (NOTIFY), followed by the ends of their waits alone: one message for each offer,
//! none while a client is parked, and one for each place without a client that ends otherwise than by its owner or by
//! time.

use lock_core::model::notify::{Message, Notify};
use lock_core::model::request::{WaitEnd, WaiterId};
use std::collections::{BTreeMap, BTreeSet};

/// The places, by the numbers of their waiters. Those that were granted are kept, too.
#[derive(Debug, Default)]
pub(crate) struct Places(BTreeMap<u64, Place>);

#[derive(Clone, Copy, Debug)]
struct Place {
    owner: u8,
    /// The only byte of the channel's name.
    channel: Option<u8>,
    has_client: bool,
}

/// To which channel, and for which owner.
type Told = (u8, u8);

impl Places {
    /// A request of this owner has a place now, or has renewed it: under this name, in place of the old one.
    pub(crate) fn asked(
        &mut self,
        (old, id): (Option<WaiterId>, WaiterId),
        owner: u8,
        (notify, channel): (Notify, u8),
        has_client: bool,
    ) {
        let before = old.and_then(|old| self.0.remove(&old.to_number()));
        let before = before.or_else(|| self.0.get(&id.to_number()).copied());
        let channel = match notify {
            Notify::AsBefore => before.and_then(|before| before.channel),
            Notify::Never => None,
            Notify::On { .. } => Some(channel),
        };
        let has_client = before.filter(|_| old.is_none()).map_or(has_client, |before| before.has_client);
        self.0.insert(id.to_number(), Place { owner, channel, has_client });
    }

    /// The waiters that are known.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// The client of a place is gone, and the place has this name now; none if it was no place.
    pub(crate) fn left(&mut self, id: u64, place: Option<u64>) {
        let left = self.0.remove(&id);
        if let (Some(left), Some(place)) = (left, place) {
            self.0.insert(place, Place { has_client: false, ..left });
        }
    }

    /// A step has ended these waits and sent these messages; the owner that it served gave something back, if it is
    /// named. A grant of this waiter was found undelivered, if one is named.
    pub(crate) fn follow(
        &mut self,
        ends: &[(WaiterId, WaitEnd)],
        messages: &[Message],
        (left_by, undelivered): (Option<u8>, Option<u64>),
    ) {
        let told = |place: Place| Some((place.channel?, place.owner));
        let (mut must, mut may) = (Vec::new(), Vec::new());
        must.extend(undelivered.and_then(|id| told(self.0.remove(&id)?)));
        for (id, end) in ends {
            match end {
                WaitEnd::Detached(place) | WaitEnd::InGrace { place: Some(place), .. } => {
                    self.left(id.to_number(), Some(place.to_number()));
                }
                WaitEnd::Granted(_) => {}
                WaitEnd::TimedOut | WaitEnd::InGrace { place: None, .. } => drop(self.0.remove(&id.to_number())),
                end => {
                    let Some(place) = self.0.remove(&id.to_number()).filter(|place| !place.has_client) else {
                        continue;
                    };
                    let by_owner = *end == WaitEnd::Left && left_by == Some(place.owner);
                    (if by_owner { &mut may } else { &mut must }).extend(told(place));
                }
            }
        }
        let mut sent: Vec<Told> =
            messages.iter().map(|message| (message.channel[0], owner_of(message).expect("for one owner"))).collect();
        for one in must {
            let at = sent.iter().position(|other| *other == one);
            sent.remove(at.unwrap_or_else(|| panic!("{one:?} was not told: {ends:?} {messages:?}")));
        }
        for one in sent {
            let at = may.iter().position(|other| *other == one);
            may.remove(at.unwrap_or_else(|| panic!("{one:?} was told for nothing: {ends:?} {messages:?}")));
        }
    }

    /// All waits have ended: each channel is told once of all, as far as its waiters were there still.
    pub(crate) fn dismissed(&mut self, messages: &[Message], was_there: impl Fn(u64) -> bool) {
        let there = std::mem::take(&mut self.0).into_iter().filter(|(id, _)| was_there(*id));
        let expected: BTreeSet<u8> = there.filter_map(|(_, place)| place.channel).collect();
        let told: Vec<u8> = messages.iter().map(|message| message.channel[0]).collect();
        assert_eq!(told.iter().copied().collect::<BTreeSet<u8>>(), expected);
        assert!(told.len() == expected.len() && messages.iter().all(|message| message.owner.is_none()));
    }
}

fn owner_of(message: &Message) -> Option<u8> {
    message.owner.as_ref().map(|owner| owner.as_bytes()[0])
}
