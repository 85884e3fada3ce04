//! When each wait asks that has no connection of its own, at one server, and on which channel it is told to. Sends
//! nothing and reads no clock: the moments are handed in.
//!
//! Such waits share one subscription, and each asks when the server publishes its owner's name there. A message is a
//! hint: one that is lost, doubled, late or forged costs time or a request, and no lock. Without a subscription they
//! ask each second.

use crate::clock::{Moment, PAUSE_MAX, PAUSE_MIN, POLL, REFUSED};
use crate::error::Error;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// From one message for all to the next one that is heeded.
const ALL: Duration = Duration::from_secs(1);

/// From one request to the next where all ask: 10,000 a second.
const PACE: Duration = Duration::from_micros(100);

/// So many messages in a row may be followed by null, before there are pauses.
const FREE_NULLS: u32 = 2;

/// The message that is for all.
const EVERYBODY: &str = "*";

/// The waits, and how their subscription stands.
pub(crate) struct Turns {
    state: State,
    /// The connection over which they ask, as far as is known. The server ends their places soon after it is closed.
    connection: Option<u64>,
    /// True if another subscription is to follow the one that is there.
    is_stale: bool,
    turns: BTreeMap<u64, Turn>,
    by_owner: HashMap<String, Vec<u64>>,
    next: u64,
    /// When all asked last because of a message.
    all_at: Option<Moment>,
    /// False from a refusal on, until the server takes a channel.
    works: bool,
    /// Why there are no messages, if nobody was told.
    untold: Option<Error>,
    /// True if the last channel was at another node.
    was_elsewhere: bool,
    /// Those that are due sooner than they know.
    woken: Vec<u64>,
}

/// How the subscription stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It is about to be there.
    Opening,
    /// Messages come, on this channel.
    There(String),
    /// There are none. It is tried again at that time, or when the connection for requests is another one.
    Without(Option<Moment>),
}

/// When one wait asks.
struct Turn {
    owner: String,
    slot: u16,
    due: Moment,
    /// A request is on its way.
    is_unanswered: bool,
    /// A message came meanwhile.
    again: bool,
    /// How many messages in a row were followed by null; and how many will be, if the next answer is null.
    nulls: u32,
    nulls_then: u32,
    answered: Option<Moment>,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns {
            state: State::Opening,
            connection: None,
            is_stale: false,
            turns: BTreeMap::new(),
            by_owner: HashMap::new(),
            next: 0,
            all_at: None,
            works: true,
            untold: None,
            was_elsewhere: false,
            woken: Vec::new(),
        }
    }

    // --- the waits ---

    /// A wait for a key of this slot, due at once. Its number.
    pub(crate) fn enter(&mut self, owner: &str, slot: u16, now: Moment) -> u64 {
        let number = self.next;
        self.next += 1;
        let owner = owner.to_owned();
        self.by_owner.entry(owner.clone()).or_default().push(number);
        let (due, answered) = (now, None);
        let turn = Turn { owner, slot, due, is_unanswered: false, again: false, nulls: 0, nulls_then: 0, answered };
        self.turns.insert(number, turn);
        number
    }

    pub(crate) fn leave(&mut self, number: u64) {
        let Some(turn) = self.turns.remove(&number) else { return };
        if let Some(numbers) = self.by_owner.get_mut(&turn.owner) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_owner.remove(&turn.owner);
            }
        }
    }

    /// The slot of a key for which somebody waits; None if nobody does.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.turns.values().next().map(|turn| turn.slot)
    }

    /// When a wait asks next.
    pub(crate) fn due(&self, number: u64) -> Option<Moment> {
        self.turns.get(&number).map(|turn| turn.due)
    }

    pub(crate) fn sends(&mut self, number: u64) {
        if let Some(turn) = self.turns.get_mut(&number) {
            (turn.is_unanswered, turn.again) = (true, false);
        }
    }

    /// Others hold the lock. Without a message the wait asks again after this time.
    pub(crate) fn null(&mut self, number: u64, now: Moment, interval: Duration) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        (turn.nulls, turn.nulls_then) = (turn.nulls_then, 0);
        turn.is_unanswered = false;
        (turn.answered, turn.due) = (Some(now), now + interval);
        // Redis 7.0 may send the message before the reply to a request that came earlier.
        if turn.again {
            turn.told(now);
        }
    }

    /// There was no answer, or an error: who waits makes a pause of its own.
    pub(crate) fn failed(&mut self, number: u64, now: Moment) {
        if let Some(turn) = self.turns.get_mut(&number) {
            (turn.is_unanswered, turn.due) = (false, now);
        }
    }

    /// Those that are due sooner than when they looked last.
    pub(crate) fn take_woken(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.woken)
    }

    // --- messages ---

    pub(crate) fn heard(&mut self, message: &str, now: Moment) {
        if message != EVERYBODY {
            for number in self.by_owner.get(message).into_iter().flatten() {
                if self.turns.get_mut(number).is_some_and(|turn| turn.told(now)) {
                    self.woken.push(*number);
                }
            }
        } else if self.all_at.is_none_or(|at| at <= now) {
            let at = self.all_at.map_or(now, |last| now.max(last + ALL));
            self.all_at = Some(at);
            self.ask_all(at);
        }
    }

    /// All ask from then on, one after the other. Those that are unanswered do so after a null.
    fn ask_all(&mut self, from: Moment) {
        let mut due = from;
        for (number, turn) in &mut self.turns {
            turn.again |= turn.is_unanswered;
            if turn.hasten(due, turn.nulls) {
                self.woken.push(*number);
            }
            due = due + PACE;
        }
    }

    // --- the subscription ---

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// True if it is time to subscribe.
    pub(crate) fn wants_channel(&self, now: Moment) -> bool {
        !self.turns.is_empty()
            && match self.state {
                State::Opening => true,
                State::There(_) => self.is_stale,
                State::Without(again) => again.is_some_and(|again| again <= now),
            }
    }

    /// True if another subscription is to follow.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Another one is asked for.
    pub(crate) fn begins(&mut self) {
        self.is_stale = false;
    }

    /// The server has confirmed the subscription. What it said before is lost, so all ask.
    pub(crate) fn opened(&mut self, channel: String, now: Moment) {
        self.decide(State::There(channel), now);
    }

    fn decide(&mut self, state: State, now: Moment) {
        self.state = state;
        self.ask_all(now);
        // Those that are due wait for this.
        self.wake_all();
    }

    /// It is gone.
    pub(crate) fn lost(&mut self) {
        if matches!(self.state, State::There(_)) {
            self.state = State::Opening;
        }
    }

    /// The key of a wait may be at another server: each looks where it is.
    pub(crate) fn moved(&mut self) {
        self.wake_all();
    }

    fn wake_all(&mut self) {
        self.woken = self.turns.keys().copied().collect();
    }

    /// It cannot be had just now, which nobody need be told. The waits go on without it.
    pub(crate) fn missing(&mut self, again: Moment, now: Moment) {
        self.decide(State::Without(Some(again)), now);
    }

    /// It cannot be had, which is told once until it can. The waits go on without it.
    pub(crate) fn refused(&mut self, why: &Error, now: Moment) {
        if matches!(self.state, State::Without(_)) && !self.works {
            return;
        }
        if self.works {
            self.works = false;
            self.untold = Some(Error::Notify(why.to_string()));
        }
        self.decide(State::Without(passes(why).then(|| now + REFUSED)), now);
    }

    /// Why there are no messages, for the one who is to tell it.
    pub(crate) fn take_untold(&mut self) -> Option<Error> {
        self.untold.take()
    }

    /// Which connection there is for requests now. If the one before is gone, the places that were asked for over it
    /// end soon: all ask. The next one may lead to another server, so the subscription follows, or is tried again.
    pub(crate) fn asks_over(&mut self, connection: Option<u64>, now: Moment) {
        if self.connection == connection {
            return;
        }
        let before = std::mem::replace(&mut self.connection, connection);
        if connection.is_some() && matches!(self.state, State::Without(_)) {
            self.state = State::Opening;
        }
        if before.is_some() {
            self.is_stale = true;
            self.ask_all(now);
        }
    }

    /// A request with a channel was taken.
    pub(crate) fn accepted(&mut self) {
        (self.works, self.untold, self.was_elsewhere) = (true, None, false);
    }

    /// Whether the server refused just the channel, so that the wait asks at once in another way.
    pub(crate) fn heed(&mut self, error: &Error, now: Moment) -> bool {
        let Error::Server(reply) = error else { return false };
        let text = reply.detail().unwrap_or_default();
        let is_of_channel = match reply.code() {
            Some("NOTIFYSLOT") if !self.was_elsewhere => {
                // The slot of the channel has moved. Another one will do.
                (self.was_elsewhere, self.is_stale, self.state) = (true, true, State::Opening);
                return true;
            }
            Some("NOTIFYSLOT") => true,
            Some("NOPERM" | "ERR") => text.contains("NOTIFY"),
            Some("LIMIT") => text.contains("channels of places"),
            _ => false,
        };
        if is_of_channel {
            self.refused(error, now);
        }
        is_of_channel
    }
}

impl Turn {
    /// A message has come. True if it is due sooner than it was.
    fn told(&mut self, now: Moment) -> bool {
        if self.is_unanswered {
            self.again = true;
            return false;
        }
        let pause = match self.nulls.checked_sub(FREE_NULLS) {
            None => Duration::ZERO,
            Some(more) => PAUSE_MIN.saturating_mul(1 << more.min(10)).min(PAUSE_MAX),
        };
        self.hasten(self.answered.map_or(now, |answered| now.max(answered + pause)), self.nulls + 1)
    }

    fn hasten(&mut self, due: Moment, nulls_then: u32) -> bool {
        let is_sooner = !self.is_unanswered && due < self.due;
        if is_sooner {
            (self.due, self.nulls_then) = (due, nulls_then);
        }
        is_sooner
    }
}

/// How long after a null a wait asks by itself, at the latest.
pub(crate) fn interval(is_told: bool, queue: Duration) -> Duration {
    if is_told { queue / 3 } else { POLL.min(queue / 3) }
}

/// Whether it may be over soon. A right that is missing is missing until somebody gives it, and each attempt leaves a
/// row in ACL LOG.
fn passes(why: &Error) -> bool {
    match why {
        Error::Server(error) => error.code() == Some("NOTIFYSLOT") || why.is_transient(),
        Error::Connection(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::NOTIFY_QUEUE;

    const SECOND: Duration = Duration::from_secs(1);
    const TEN: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(1000) + Duration::from_millis(ms))
    }

    fn error(text: &str) -> Error {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply");
        Error::from(reply.extract_error().expect_err("an error"))
    }

    /// With a subscription, and these owners, each of which was answered null at the beginning.
    fn told(owners: &[&str]) -> (Turns, Vec<u64>) {
        let mut turns = Turns::new();
        let numbers: Vec<u64> = owners.iter().map(|owner| turns.enter(owner, 7, at(0))).collect();
        turns.opened("channel".to_owned(), at(0));
        turns.asks_over(Some(1), at(0));
        for number in &numbers {
            turns.sends(*number);
            turns.accepted();
            turns.null(*number, at(0), TEN);
        }
        turns.take_woken();
        (turns, numbers)
    }

    fn due(turns: &Turns, number: u64) -> u64 {
        let due = turns.due(number).expect("it waits").since(at(0)).as_micros();
        u64::try_from(due).expect("soon") / 1000
    }

    #[test]
    fn a_message_is_for_its_owner_alone_and_for_all_its_waits() {
        let (mut turns, numbers) = told(&["a", "b", "a"]);
        assert_eq!(numbers.iter().map(|number| due(&turns, *number)).collect::<Vec<_>>(), [10_000; 3]);
        turns.heard("a", at(50));
        turns.heard("stranger", at(50));
        assert_eq!(turns.take_woken(), [numbers[0], numbers[2]]);
        assert_eq!(numbers.iter().map(|number| due(&turns, *number)).collect::<Vec<_>>(), [50, 10_000, 50]);
        turns.leave(numbers[0]);
        turns.heard("a", at(60));
        assert_eq!((turns.take_woken(), turns.due(numbers[0])), (vec![], None));
    }

    #[test]
    fn a_message_during_a_request_counts_after_its_null() {
        let (mut turns, numbers) = told(&["a"]);
        turns.sends(numbers[0]);
        turns.heard("a", at(20));
        turns.heard("*", at(20));
        assert_eq!(turns.take_woken(), []);
        turns.null(numbers[0], at(30), TEN);
        assert_eq!(due(&turns, numbers[0]), 30);
    }

    #[test]
    fn messages_in_vain_are_heeded_ever_later() {
        let (mut turns, numbers) = told(&["a"]);
        let mut now = 0;
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                turns.heard("a", at(now));
                let pause = due(&turns, numbers[0]) - now;
                now += pause;
                turns.sends(numbers[0]);
                turns.null(numbers[0], at(now), TEN);
                pause
            })
            .collect();
        assert_eq!(pauses, [0, 0, 100, 200, 400, 800, 1000, 1000]);
        // By itself it asked in vain as well; that is no message.
        turns.sends(numbers[0]);
        turns.null(numbers[0], at(now), TEN);
        turns.heard("a", at(now));
        assert_eq!(due(&turns, numbers[0]), now);
    }

    #[test]
    fn a_message_for_all_counts_once_a_second_and_they_ask_one_after_the_other() {
        let (mut turns, numbers) = told(&["a"; 11]);
        turns.heard("*", at(100));
        assert_eq!(turns.take_woken(), numbers);
        assert_eq!([due(&turns, numbers[0]), due(&turns, numbers[10])], [100, 101]);
        for number in &numbers {
            turns.sends(*number);
            turns.null(*number, at(200), TEN);
        }
        // The second one counts at the end of the second, and the third one not at all.
        for _ in 0..2 {
            turns.heard("*", at(300));
            assert_eq!(due(&turns, numbers[0]), 1100);
        }
        assert_eq!(turns.take_woken(), numbers);
    }

    #[test]
    fn all_ask_when_the_subscription_is_there_again_or_the_connection_is_another_one() {
        let (mut turns, numbers) = told(&["a", "b"]);
        turns.lost();
        assert!(turns.wants_channel(at(10)) && turns.take_woken().is_empty());
        turns.begins();
        turns.opened("another".to_owned(), at(20));
        assert_eq!((due(&turns, numbers[1]), turns.take_woken()), (20, numbers.clone()));
        assert_eq!(*turns.state(), State::There("another".to_owned()));

        for number in &numbers {
            turns.null(*number, at(30), TEN);
        }
        turns.asks_over(Some(1), at(40));
        assert!(turns.take_woken().is_empty() && !turns.is_stale());
        turns.asks_over(None, at(50));
        assert_eq!((due(&turns, numbers[1]), turns.take_woken()), (50, numbers.clone()));
        assert!(turns.is_stale() && turns.wants_channel(at(50)));
        for number in &numbers {
            turns.null(*number, at(60), TEN);
        }
        // They have asked since it was gone.
        turns.asks_over(Some(2), at(70));
        assert!(turns.take_woken().is_empty());
        turns.asks_over(Some(3), at(80));
        assert_eq!(turns.take_woken(), numbers);
    }

    #[test]
    fn a_refusal_is_told_once_until_the_server_takes_a_channel() {
        let denied = error("NOPERM this user has no permissions to publish on the channel of NOTIFY");
        let (mut turns, numbers) = told(&["a", "b"]);
        assert!(turns.heed(&denied, at(10)) && turns.heed(&denied, at(10)));
        assert_eq!((turns.take_woken(), turns.state()), (numbers.clone(), &State::Without(None)));
        let text = turns.take_untold().expect("a trouble").to_string();
        assert!(text.starts_with("waits hear nothing from the server") && text.ends_with("of NOTIFY"), "{text}");
        assert!(turns.take_untold().is_none() && !turns.wants_channel(at(3_600_000)));

        // Another connection may lead elsewhere: it is tried again, and if it is refused nobody is told.
        turns.asks_over(Some(2), at(20));
        assert!(turns.wants_channel(at(20)));
        turns.opened("another".to_owned(), at(30));
        assert!(turns.heed(&denied, at(40)) && turns.take_untold().is_none());
        turns.asks_over(Some(3), at(50));
        turns.opened("third".to_owned(), at(60));
        turns.accepted();
        assert!(turns.heed(&denied, at(70)) && turns.take_untold().is_some());
    }

    #[test]
    fn what_passes_is_tried_again_after_ten_seconds() {
        let (mut turns, _) = told(&["a"]);
        let full = error("LIMIT keys, owners and channels of places would take more than lock.max-place-bytes");
        assert!(turns.heed(&full, at(0)) && turns.take_untold().is_some());
        assert!(!turns.wants_channel(at(9_999)) && turns.wants_channel(at(10_000)));
    }

    #[test]
    fn a_channel_whose_slot_has_moved_is_replaced_once() {
        let moved = error("NOTIFYSLOT another node serves the slot of this channel");
        let (mut turns, _) = told(&["a"]);
        assert!(turns.heed(&moved, at(0)) && turns.take_untold().is_none());
        assert!(*turns.state() == State::Opening && turns.is_stale());
        turns.begins();
        turns.opened("another".to_owned(), at(10));
        assert!(turns.heed(&moved, at(20)) && turns.take_untold().is_some());
        assert_eq!(*turns.state(), State::Without(Some(at(20) + TEN)));
    }

    #[test]
    fn errors_that_are_not_about_the_channel_are_left_to_the_wait() {
        let (mut turns, _) = told(&["a"]);
        for text in [
            "NOPERM User alice has no permissions to run the 'lock.acquire' command",
            "LIMIT server has lock.max-places places",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
        ] {
            assert!(!turns.heed(&error(text), at(0)), "{text}");
        }
        assert!(turns.heed(&error("ERR unknown option \"NOTIFY\""), at(0)));
    }

    #[test]
    fn nobody_needs_a_subscription_where_nobody_waits() {
        let (mut turns, numbers) = told(&["a"]);
        turns.lost();
        turns.leave(numbers[0]);
        assert!(!turns.wants_channel(at(0)) && turns.slot().is_none());
    }

    #[test]
    fn a_wait_asks_by_itself_at_a_third_of_its_place_or_each_second() {
        assert_eq!([interval(true, NOTIFY_QUEUE), interval(true, 6 * SECOND)], [TEN, 2 * SECOND]);
        assert_eq!([interval(false, TEN), interval(false, SECOND)], [SECOND, SECOND / 3]);
    }
}
