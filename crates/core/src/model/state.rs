//! What LOCK.HOLD says of a hold, in one word of text. Writing and reading stand side by side.
//!
//! ```text
//! state = hold | end
//! hold  = "V1" ["R" reads] ["W" writes] "F" fence "D" wall-deadline-ms "L" remaining-ms
//! end   = "V1" ["F" fence]
//! ```
//!
//! A hold has at least one count. Numbers are decimal, without leading zeros; a count of 0 is left out. So each state
//! has one word, and no word is digits alone, as the counts of the earlier form are.

use super::fence::Fence;
use super::hold::Hold;
use super::time::{Millis, Now, Timestamp, WallTime};

/// The form that is written, and the only one that begins with its mark.
const MARK: &[u8] = b"V1";

/// The state of a hold, but for its owner and note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// How often for reading; 0 with 0 writes is the end of the hold.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// Its fence; only an end may lack it.
    pub fence: Option<Fence>,
    /// When the lease ends, by the wall clock of the node that wrote this.
    pub wall_deadline: WallTime,
    /// The rest of the lease when this was written.
    pub left: Millis,
}

/// Why a word is not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// It is of another form.
    Mark,
    /// A part is missing, or where it must not be.
    Parts,
    /// A number is out of range, or not written as numbers are.
    Number {
        /// The part that it stands in.
        part: &'static str,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
}

impl State {
    /// The latest deadline that a word can say, in milliseconds: that of the latest [`WallTime`].
    pub const DEADLINE_MAX: u64 = u64::MAX.div_ceil(1000);

    /// The state of a hold as it stands now.
    #[must_use]
    pub fn of(hold: &Hold, now: Now) -> State {
        State::until(hold, hold.deadline, now)
    }

    /// The state of a hold that ends then.
    #[must_use]
    pub fn until(hold: &Hold, end: Timestamp, now: Now) -> State {
        State {
            reads: hold.reads(),
            writes: hold.writes(),
            fence: Some(hold.fence()),
            wall_deadline: now.wall_at(end),
            left: end.left(now.mono),
        }
    }

    /// The end of a hold that had this fence.
    #[must_use]
    pub fn end(fence: Option<Fence>) -> State {
        State { reads: 0, writes: 0, fence, wall_deadline: WallTime(0), left: Millis(0) }
    }

    /// True if it says that the hold is gone.
    #[must_use]
    pub fn is_end(self) -> bool {
        self.reads == 0 && self.writes == 0
    }

    /// The word that says it.
    #[must_use]
    pub fn word(self) -> Word {
        // From its end to its beginning, as the digits of a number come.
        let mut word = Word { bytes: [0; Word::LEN_MAX], from: Word::LEN_MAX };
        if !self.is_end() {
            word.put(b'L', self.left.0);
            word.put(b'D', self.wall_deadline.millis());
        }
        if let Some(fence) = self.fence {
            word.put(b'F', fence.get());
        }
        if self.writes > 0 {
            word.put(b'W', u64::from(self.writes));
        }
        if self.reads > 0 {
            word.put(b'R', u64::from(self.reads));
        }
        word.push(MARK[1]);
        word.push(MARK[0]);
        word
    }

    /// Reads the word.
    ///
    /// # Errors
    /// Where it is not what [`State::word`] writes.
    pub fn read(word: &[u8]) -> Result<State, StateError> {
        // A later mark may begin like this one.
        let rest = word.strip_prefix(MARK).filter(|rest| !rest.first().is_some_and(u8::is_ascii_digit));
        let mut parts = Parts(rest.ok_or(StateError::Mark)?);
        let reads = parts.take("R", 1, u64::from(u32::MAX))?;
        let writes = parts.take("W", 1, u64::from(u32::MAX))?;
        let fence = parts.take("F", 1, Fence::MAX.get())?;
        let wall_deadline = parts.take("D", 0, State::DEADLINE_MAX)?;
        let left = parts.take("L", 0, u64::MAX)?;
        let is_end = reads.is_none() && writes.is_none();
        let is_whole = match is_end {
            true => wall_deadline.is_none() && left.is_none(),
            false => fence.is_some() && wall_deadline.is_some() && left.is_some(),
        };
        if !is_whole || !parts.0.is_empty() {
            return Err(StateError::Parts);
        }
        Ok(State {
            reads: reads.unwrap_or(0) as u32,
            writes: writes.unwrap_or(0) as u32,
            fence: fence.and_then(Fence::new),
            wall_deadline: WallTime::from_millis(wall_deadline.unwrap_or(0)),
            left: Millis(left.unwrap_or(0)),
        })
    }
}

/// A state in text, in place.
#[derive(Clone, Debug)]
pub struct Word {
    bytes: [u8; Word::LEN_MAX],
    from: usize,
}

impl Word {
    /// The mark, two counts, a fence, a deadline and what is left, each with its letter.
    const LEN_MAX: usize = 2 + 2 * 11 + 17 + 18 + 21;

    /// The text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    fn push(&mut self, byte: u8) {
        self.from -= 1;
        self.bytes[self.from] = byte;
    }

    fn put(&mut self, letter: u8, mut number: u64) {
        loop {
            self.push(b'0' + (number % 10) as u8);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(letter);
    }
}

/// The unread rest of a word.
struct Parts<'a>(&'a [u8]);

impl Parts<'_> {
    /// The number behind this letter; None if another one follows, or none.
    fn take(&mut self, part: &'static str, min: u64, max: u64) -> Result<Option<u64>, StateError> {
        let Some(rest) = self.0.strip_prefix(part.as_bytes()) else { return Ok(None) };
        let len = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(len);
        self.0 = rest;
        decimal(digits).filter(|number| (min..=max).contains(number)).map(Some).ok_or(StateError::Number {
            part,
            min,
            max,
        })
    }
}

/// The number of these digits, if it is written as numbers are.
fn decimal(digits: &[u8]) -> Option<u64> {
    match digits {
        b"0" => Some(0),
        b"" | [b'0', ..] => None,
        _ => {
            digits.iter().try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn text(state: State) -> String {
        String::from_utf8(state.word().as_bytes().to_vec()).unwrap()
    }

    fn hold(reads: u32, writes: u32) -> State {
        State {
            reads,
            writes,
            fence: Fence::new(1_795_254_138_291_343),
            wall_deadline: WallTime::from_millis(1_795_254_198_291),
            left: Millis(60_000),
        }
    }

    #[test]
    fn a_word_has_what_there_is_in_one_order() {
        assert_eq!(text(hold(0, 1)), "V1W1F1795254138291343D1795254198291L60000");
        assert_eq!(text(hold(2, 0)), "V1R2F1795254138291343D1795254198291L60000");
        assert_eq!(text(hold(1, 3)), "V1R1W3F1795254138291343D1795254198291L60000");
        assert_eq!(text(State { left: Millis(0), ..hold(1, 0) }), "V1R1F1795254138291343D1795254198291L0");
        assert_eq!(text(State::end(Fence::new(7))), "V1F7");
        assert_eq!(text(State::end(None)), "V1");
    }

    #[test]
    fn the_usual_word_fits_beside_the_header_of_a_string() {
        // Servers keep strings of up to 44 bytes in one allocation. A lease of a day has 8 digits.
        assert!(text(State { left: Millis(86_400_000), ..hold(0, 1) }).len() <= 44);
    }

    #[test]
    fn the_longest_word_has_room() {
        let longest = State {
            reads: u32::MAX,
            writes: u32::MAX,
            fence: Some(Fence::MAX),
            wall_deadline: WallTime(u64::MAX),
            left: Millis(u64::MAX),
        };
        assert_eq!(longest.word().as_bytes().len(), Word::LEN_MAX);
        assert_eq!(State::read(longest.word().as_bytes()), Ok(longest));
    }

    #[test]
    fn what_is_not_written_is_not_read() {
        for other in ["", "V", "1", "v1W1F5D5L5", "V2W1F5D5L5", "V10W1F5D5L5", "V12", "W1F5D5L5", " V1", "V01", "X"] {
            assert_eq!(State::read(other.as_bytes()), Err(StateError::Mark), "{other}");
        }
        let plain = "V1W1 V1W1F5 V1W1F5D5 V1W1F5L5 V1W1D5L5 V1F5D5L5 V1F5D5 V1F5L5 V1D5L5 V1L5 V1W1R1F5D5L5 V1F5W1D5L5 \
                     V1W1F5L5D5 V1R1R1F5D5L5 V1W1F5D5L5L5 V1w1F5D5L5 V1W1F5D5L5X1 V1V1 V1-W1F5D5L5 V1,W1F5D5L5";
        let odd = ["V1 ", "V1W1F5D5L5 ", "V1W1 F5D5L5", "V1W1F5D5L5\0", "V1W1F5D5L5\u{0661}"];
        for broken in plain.split(' ').chain(odd) {
            assert_eq!(State::read(broken.as_bytes()), Err(StateError::Parts), "{broken}");
        }
        let numbers = [
            ("W", "V1W0F5D5L5|V1WF5D5L5|V1W01F5D5L5|V1W+1F5D5L5|V1W-1F5D5L5|V1W4294967296F5D5L5"),
            ("R", "V1R0F5D5L5|V1R4294967296F5D5L5"),
            ("F", "V1W1F0D5L5|V1W1F9007199254740992D5L5|V1F0|V1F|V1F05|V1F 5"),
            ("D", "V1W1F5D00L5|V1W1F5DL5|V1W1F5D18446744073709553L5"),
            ("L", "V1W1F5D5L|V1W1F5D5L05|V1W1F5D5L18446744073709551616|V1W1F5D5L-1"),
            ("", "V1W1F5D5L1_0|V1W1F5D5L1e3|V1W1F5D5L1.0"),
        ];
        for (part, broken) in numbers.into_iter().flat_map(|(part, all)| all.split('|').map(move |one| (part, one))) {
            match State::read(broken.as_bytes()) {
                Err(StateError::Number { part: named, .. }) => assert_eq!(named, part, "{broken}"),
                read => assert_eq!((read, part), (Err(StateError::Parts), ""), "{broken}"),
            }
        }
    }
}
