//! What a client does that waits with QUEUE and NOTIFY: it asks without waiting, and again when a message names its
//! owner or all, when its subscription is there anew, and now and then by itself.
//!
//! An owner that has a place gets the lock by an offer alone, and an offer is told. So one that was not told though its
//! subscription was there all the time is a violation. No time judges that: a message that this client sends last on
//! the same channel comes behind all others.

use super::client::{Client, Held};
use super::ears::{Ears, Heard, mark, may_be_forged};
use super::wish::{PATIENCE, Wish};
use crate::caller::Answer;
use crate::history::Moment;
use crate::places::Told;
use crate::requester::Requester;
use rand::RngExt;

impl Client {
    /// Requests a new hold, and asks again until it is granted or has had enough.
    pub fn stand_notified(&mut self, wish: &Wish) -> Option<Held> {
        // At most lock.away-ms, as in `stand`.
        let (queue_ms, lease_ms) = (self.dice.random_range(1_200..=2_000), self.lease_ms());
        let release = format!("LOCK.RELEASE {} {} ALL", wish.key, wish.owner);
        let enough = Moment::now().after_ms(self.dice.random_range(500..=4_000));
        let Client { line, dice, saw, ears, name, .. } = self;
        let ears = ears.get_or_insert_with(|| Ears::open(line.caller.port(), name));
        let request = format!("{wish} NOTIFY {}", ears.channel);
        let mut requester = Requester::new(line, PATIENCE, &request, wish.place(queue_ms, lease_ms));
        // Until when it has a place for certain. None also if a message may have been missed since it was asked for.
        let (mut stands_until, mut is_named, mut is_granted): (Option<Moment>, bool, bool) = (None, false, false);
        while !is_granted {
            let asked = Moment::now();
            match requester.ask(0) {
                Told::Fence(_) => {
                    is_granted = true;
                    stands_until = stands_until.filter(|until| Moment::now() < *until);
                    continue;
                }
                Told::Waits => stands_until = Some(asked.after_ms(queue_ms)),
                Told::Unknown => {
                    requester.settle();
                    stands_until = None;
                }
            }
            is_named = false;
            match dice.random_range(0..100) {
                0..3 => {
                    saw.count("never came back");
                    requester.die();
                    break;
                }
                _ if Moment::now() > enough => {
                    saw.count("gave its place up");
                    requester.leave(&release);
                    break;
                }
                _ => {}
            }
            match ears.hear(&wish.owner, dice.random_range(queue_ms / 8..=queue_ms / 4)) {
                Heard::Named => {
                    is_named = true;
                    saw.count("woken by name");
                }
                Heard::Anew => stands_until = None,
                Heard::All => saw.count("woken with all"),
                Heard::Mark | Heard::Nothing => {}
            }
        }
        let told = requester.settle();
        let Requester { place, forgotten, too_early, .. } = requester;
        if is_granted && stands_until.is_some() && !may_be_forged(&self.name) {
            self.must_be_told(&wish.owner, is_named);
        }
        self.collected(place, (forgotten, too_early), told, (wish.kind, false))
    }

    /// The owner was granted what it had a place for. If it was not told yet, the message is on its way.
    fn must_be_told(&mut self, owner: &str, mut is_named: bool) {
        let Some(ears) = &self.ears else { return };
        let (_, answer, _) = self.line.caller.ask(&format!("PUBLISH {} {}", ears.channel, mark(owner)));
        if matches!(answer, Answer::Lost | Answer::Silence) {
            return self.line.connect();
        }
        loop {
            match ears.hear(owner, PATIENCE.as_millis() as u64) {
                Heard::Mark => break,
                Heard::Named => is_named = true,
                Heard::All => {}
                Heard::Anew | Heard::Nothing => return,
            }
        }
        self.saw.count("offers that must be told");
        if !is_named {
            self.saw.untold.push(owner.to_owned());
        }
    }
}
