//! The saved form of a lock: one versioned byte string. Encoding and decoding stand side by side and read no clock.
//!
//! ```text
//! version  1 byte
//! checksum 8 bytes: FNV-1a (64 bits) of the version and of all that follows the checksum
//! fence    8 bytes: the highest given on this lock
//! holds    4 bytes: how many, then each, in order of owner:
//!   owner         2 bytes length, bytes
//!   reads writes  4 bytes each
//!   fence         8 bytes
//!   wall deadline 8 bytes, ms since 1970
//!   left          8 bytes, ms
//!   note          1 byte whether there is one; 2 bytes length, bytes
//! ```
//!
//! All numbers are little-endian. FNV-1a's step is a bijection of its state for each byte, so a single changed byte
//! always changes the sum.

use crate::model::fence::Fence;
use crate::model::hold::Hold;
use crate::model::lock::Lock;
use crate::model::owner::{NOBODY, Note, Owner};
use crate::model::record::{DecodedLock, HoldRecord};
use crate::model::state::State;
use crate::model::time::{Millis, Now, Timestamp, WallTime};
use alloc::vec::Vec;

/// The version that [`encode`] writes and the highest that [`decode`] reads.
pub const VERSION: u8 = 1;

/// Why a payload is not a saved lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Written by a later version of this module.
    Newer(u8),
    /// Cut short, changed, or never a lock.
    Broken,
}

const CHECKSUM_AT: usize = 1;
const BODY_AT: usize = CHECKSUM_AT + 8;
/// The bytes of a hold with an owner of one byte and no note.
const HOLD_BYTES_MIN: usize = 2 + 1 + 4 + 4 + 8 + 8 + 8 + 1;

/// Saves a lock as it is at `now`.
#[must_use]
pub fn encode(lock: &Lock, now: Now) -> Vec<u8> {
    encode_until(lock, now, |hold| hold.deadline)
}

/// Saves a lock as it is at `now`, with holds that end then.
#[must_use]
pub fn encode_until(lock: &Lock, now: Now, end_of: impl Fn(&Hold) -> Timestamp) -> Vec<u8> {
    let mut out = Vec::with_capacity(BODY_AT + 12 + lock.holds.len() * (HOLD_BYTES_MIN + 40));
    out.push(VERSION);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&lock.fence().map_or(0, Fence::get).to_le_bytes());
    out.extend_from_slice(&(lock.holds.len() as u32).to_le_bytes());
    for (owner, hold) in lock.holds.iter() {
        let state = State::until(hold, end_of(hold), now);
        put_bytes(&mut out, owner.as_bytes());
        out.extend_from_slice(&state.reads.to_le_bytes());
        out.extend_from_slice(&state.writes.to_le_bytes());
        out.extend_from_slice(&hold.fence().get().to_le_bytes());
        out.extend_from_slice(&state.wall_deadline.millis().to_le_bytes());
        out.extend_from_slice(&state.left.0.to_le_bytes());
        out.push(u8::from(hold.note().is_some()));
        if let Some(note) = hold.note() {
            put_bytes(&mut out, &note.0);
        }
    }
    let sum = checksum(&out);
    out[CHECKSUM_AT..BODY_AT].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Reads a saved lock. Every length is checked before it is used, and what is read keeps I1 to I3 and I6.
///
/// # Errors
/// When the payload is damaged or of a later version.
pub fn decode(bytes: &[u8]) -> Result<DecodedLock, DecodeError> {
    match bytes.first() {
        Some(&VERSION) => {}
        Some(&version) if version > VERSION => return Err(DecodeError::Newer(version)),
        _ => return Err(DecodeError::Broken),
    }
    let sum = bytes.get(CHECKSUM_AT..BODY_AT).ok_or(DecodeError::Broken)?;
    if sum != checksum(bytes).to_le_bytes() {
        return Err(DecodeError::Broken);
    }
    let saved = Reader(&bytes[BODY_AT..]).saved().ok_or(DecodeError::Broken)?;
    if is_sound(&saved) { Ok(saved) } else { Err(DecodeError::Broken) }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // A length that is cut would save another owner's hold.
    let len = u16::try_from(bytes.len())
        .expect("no owner or note is above SAVED_BYTES_CEILING: parser and decoder see to it");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// FNV-1a, 64 bits, of everything but the checksum itself.
fn checksum(bytes: &[u8]) -> u64 {
    let summed = bytes.iter().take(CHECKSUM_AT).chain(bytes.iter().skip(BODY_AT));
    summed.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// True if the parts make a lock (I1, I2, I3 and I6), each owner once and in the order in which they are saved.
fn is_sound(saved: &DecodedLock) -> bool {
    let mut fences: Vec<_> = saved.holds.iter().map(|record| record.state.fence).collect();
    fences.sort_unstable();
    let alone = saved.holds.len() == 1;
    !saved.holds.is_empty()
        && saved.holds.is_sorted_by(|one, other| one.owner < other.owner)
        && fences.is_sorted_by(|one, other| one < other)
        && saved.holds.iter().all(|HoldRecord { state, .. }| {
            !state.is_end() && state.fence.is_some() && state.fence <= saved.fence && (alone || state.writes == 0)
        })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn saved(mut self) -> Option<DecodedLock> {
        let fence = Fence::new(self.u64()?);
        let count = self.u32()? as usize;
        if count > self.0.len() / HOLD_BYTES_MIN {
            return None;
        }
        let holds = (0..count).map(|_| self.record()).collect::<Option<Vec<HoldRecord>>>()?;
        self.0.is_empty().then_some(DecodedLock { fence, holds })
    }

    fn record(&mut self) -> Option<HoldRecord> {
        let owner = self.bytes().filter(|owner| !owner.is_empty() && *owner != NOBODY).map(Owner::new)?;
        let state = State {
            reads: self.u32()?,
            writes: self.u32()?,
            fence: Some(Fence::new(self.u64()?)?),
            wall_deadline: WallTime::from_millis(self.u64()?),
            left: Millis(self.u64()?),
        };
        let note = match self.take(1)? {
            [0] => None,
            [1] => Some(Note::new(self.bytes()?)),
            _ => return None,
        };
        Some(HoldRecord { owner, state, note })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        self.take(usize::from(len))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}
