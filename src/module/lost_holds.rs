//! The last holds that their owners lost: by a lapse, a break, or a closed connection. A ring in memory, never saved.
//!
//! A key's name may have half a gigabyte, and outlives its lock here: so names are cut, and the ring is bounded in
//! bytes, too.

use lock_core::collections::bytes::Bytes;
use lock_core::model::effect::{Cause, Change};
use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode;
use lock_core::model::key::Db;
use lock_core::model::time::{Millis, Now};
use server_api::Ctx;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;

/// How much of a key's name is kept: as much as the servers' SLOWLOG keeps of an argument.
const KEY_KEPT_MAX: usize = 128;
/// How much of an owner or a note is kept: all that the default configuration lets them have.
const TEXT_KEPT_MAX: usize = 256;
/// The bytes of all rows together: enough for as many of the usual size as `lock.log-max-len` can ask for.
const RING_BYTES_MAX: usize = 32 << 20;

/// A hold that was lost.
#[derive(Clone, Debug)]
pub struct LostHold {
    /// Its number; the next one has the next.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// How.
    pub reason: Reason,
    /// In which database.
    pub db: Db,
    /// On which key.
    pub key: Head,
    /// Its owner.
    pub owner: Head,
    /// The stronger of its modes.
    pub mode: Mode,
    /// Its fence.
    pub fence: Fence,
    /// How long it was held.
    pub held: Millis,
    /// Its holder's note about itself.
    pub note: Option<Head>,
}

impl LostHold {
    /// The memory that it takes.
    fn bytes(&self) -> usize {
        let outside = self.key.heap_bytes() + self.owner.heap_bytes() + self.note.as_ref().map_or(0, Head::heap_bytes);
        size_of::<LostHold>() + outside
    }
}

/// The beginning of a name or a note, and how much more there was.
#[derive(Clone, Debug)]
pub struct Head {
    kept: HeadBytes,
    more: usize,
}

/// The usual owner and the usual key live in place.
type HeadBytes = Bytes<38>;

impl Head {
    fn of(whole: &[u8], most: usize) -> Head {
        let kept = &whole[..whole.len().min(most)];
        Head { kept: HeadBytes::from_slice(kept), more: whole.len() - kept.len() }
    }

    /// As it is shown: what was cut off is counted behind the rest, as in the servers' SLOWLOG.
    #[must_use]
    pub fn shown(&self) -> Cow<'_, [u8]> {
        match self.more {
            0 => Cow::Borrowed(&self.kept),
            more => Cow::Owned([&self.kept, format!("... ({more} more bytes)").as_bytes()].concat()),
        }
    }

    fn heap_bytes(&self) -> usize {
        HeadBytes::heap_bytes_of(self.kept.len())
    }
}

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its lease ended.
    Lapse,
    /// An operator ended it.
    Break,
    /// Its connection closed, and no connection bound it anew.
    Session,
}

/// A ring that is bounded in rows and in bytes.
#[derive(Debug)]
struct Ring {
    /// The latest first.
    rows: VecDeque<LostHold>,
    len_max: usize,
    bytes: usize,
    bytes_max: usize,
    given: u64,
}

impl Ring {
    const fn new(bytes_max: usize) -> Ring {
        Ring { rows: VecDeque::new(), len_max: 0, bytes: 0, bytes_max, given: 0 }
    }

    /// Adds the latest row, which `row` makes from its number. Drops the oldest rows while there are too many.
    fn add(&mut self, row: impl FnOnce(u64) -> LostHold) {
        if self.len_max == 0 {
            return;
        }
        self.given += 1;
        let row = row(self.given);
        self.bytes += row.bytes();
        self.rows.push_front(row);
        self.shorten();
    }

    fn set_len_max(&mut self, len_max: usize) {
        self.len_max = len_max;
        self.shorten();
        self.rows.shrink_to_fit();
    }

    fn shorten(&mut self) {
        while self.rows.len() > self.len_max || self.bytes > self.bytes_max {
            let Some(oldest) = self.rows.pop_back() else { return };
            self.bytes -= oldest.bytes();
        }
    }

    fn reset(&mut self) {
        self.rows = VecDeque::new();
        self.bytes = 0;
    }
}

/// The holds lost last.
#[derive(Debug)]
pub struct LostHolds(RefCell<Ring>);

impl LostHolds {
    /// Remembers none until its length is set.
    pub(crate) fn new() -> LostHolds {
        LostHolds(RefCell::new(Ring::new(RING_BYTES_MAX)))
    }

    /// Takes note of a change, if a hold was lost by it.
    pub(crate) fn note(&self, ctx: &Ctx<'_>, key: &[u8], change: &Change, now: Now) {
        // The owner of an offer never knew that it had it.
        if !change.ended || change.hold.offer().is_some() {
            return;
        }
        let reason = match change.cause {
            Cause::Lapse if change.hold.is_orphaned() => Reason::Session,
            Cause::Lapse => Reason::Lapse,
            Cause::Break => Reason::Break,
            Cause::Close => Reason::Session,
            // Its owner knows, or never knew that it had it.
            Cause::Acquire
            | Cause::Release
            | Cause::Extend
            | Cause::RevokeUndelivered
            | Cause::Offer
            | Cause::Collect
            | Cause::Replicated => return,
        };
        self.add((ctx, key), change, reason, now);
    }

    // Kept out of the way of changes by which no hold is lost.
    #[inline(never)]
    fn add(&self, (ctx, key): (&Ctx<'_>, &[u8]), change: &Change, reason: Reason, now: Now) {
        self.0.borrow_mut().add(|id| LostHold {
            id,
            at_ms: now.wall.0 / 1000,
            reason,
            db: Db(ctx.db()),
            key: Head::of(key, KEY_KEPT_MAX),
            owner: Head::of(change.owner.as_bytes(), TEXT_KEPT_MAX),
            mode: change.hold.mode(),
            fence: change.hold.fence(),
            held: change.hold.since().ago(now.mono),
            note: change.hold.note().map(|note| Head::of(&note.0, TEXT_KEPT_MAX)),
        });
    }

    /// The last ones, at most so many, the latest first.
    #[must_use]
    pub fn last(&self, most: usize) -> Vec<LostHold> {
        self.0.borrow().rows.iter().take(most).cloned().collect()
    }

    /// Drops all of them.
    pub fn reset(&self) {
        self.0.borrow_mut().reset();
    }

    /// How many are remembered at most.
    #[must_use]
    pub fn len_max(&self) -> usize {
        self.0.borrow().len_max
    }

    /// Sets how many are remembered at most.
    pub(crate) fn set_len_max(&self, len_max: usize) {
        self.0.borrow_mut().set_len_max(len_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64, key: &[u8]) -> LostHold {
        let head = |bytes| Head::of(bytes, KEY_KEPT_MAX);
        LostHold {
            id,
            at_ms: 0,
            reason: Reason::Lapse,
            db: Db(0),
            key: head(key),
            owner: head(b"a"),
            mode: Mode::Write,
            fence: Fence::new(1).expect("above 0"),
            held: Millis(0),
            note: None,
        }
    }

    fn ids(ring: &Ring) -> Vec<u64> {
        ring.rows.iter().map(|row| row.id).collect()
    }

    #[test]
    fn a_ring_keeps_no_more_bytes_than_it_may_and_forgets_the_oldest_first() {
        // What could go wrong: a hundred thousand rows of the longest names fill the memory of the server.
        let (short, long) = (row(0, b"k").bytes(), row(0, &[b'k'; 128]).bytes());
        assert!(long >= short + 128, "the name is counted");
        let mut ring = Ring::new(3 * long);
        ring.set_len_max(100_000);
        for _ in 0..5 {
            ring.add(|id| row(id, &[b'k'; 1000]));
        }
        assert_eq!((ids(&ring), ring.bytes), (vec![5, 4, 3], 3 * long));
        // Shorter ones have room beside them.
        ring.add(|id| row(id, b"k"));
        assert_eq!((ids(&ring), ring.bytes), (vec![6, 5, 4], 2 * long + short));
        // What leaves by the number of rows, or by a reset, is taken off the sum.
        ring.set_len_max(1);
        assert_eq!((ids(&ring), ring.bytes), (vec![6], short));
        ring.reset();
        assert_eq!((ids(&ring), ring.bytes, ring.rows.capacity()), (vec![], 0, 0));
        ring.add(|id| row(id, b"k"));
        assert_eq!((ids(&ring), ring.bytes), (vec![7], short));
    }

    #[test]
    fn as_many_rows_of_the_usual_size_as_can_be_asked_for_have_room() {
        let usual = LostHold { note: Some(Head::of(b"host a, pid 41", TEXT_KEPT_MAX)), ..row(0, b"lock:report:17") };
        assert!(100_000 * usual.bytes() <= RING_BYTES_MAX);
    }

    #[test]
    fn a_name_is_cut_where_it_is_too_long_and_says_by_how_much() {
        let shown = |bytes: &[u8]| Head::of(bytes, 4).shown().into_owned();
        assert_eq!(shown(b""), b"");
        assert_eq!(shown(b"abcd"), b"abcd");
        assert_eq!(shown(b"abcde"), b"abcd... (1 more bytes)");
        assert_eq!(shown(b"\xff\0\xff\0\xff\0"), b"\xff\0\xff\0... (2 more bytes)");
    }
}
