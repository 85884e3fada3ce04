//! Reads the arguments of a command from left to right. Every error names the argument.

use super::error::ArgError;
use crate::module::request::connection_of;
use lock_core::model::hold::{Connection, Mode};
use lock_core::model::limits::Bounds;
use lock_core::model::owner::{NOBODY, Note, Owner};
use server_api::{Args, Ctx, Str};
use std::collections::HashSet;
use std::num::NonZeroU32;

/// The arguments of one call, the command's name first: the server's strings, or plain bytes where no server is.
pub trait Arguments<'a>: Copy {
    /// One argument.
    type Word: Copy + Into<&'a [u8]>;
    /// The argument at this place; the name is at 0.
    fn get(self, at: usize) -> Option<Self::Word>;
}

impl<'a> Arguments<'a> for Args<'a> {
    type Word = Str<'a>;

    fn get(self, at: usize) -> Option<Str<'a>> {
        Args::get(&self, at)
    }
}

impl<'a> Arguments<'a> for &[&'a [u8]] {
    type Word = &'a [u8];

    fn get(self, at: usize) -> Option<&'a [u8]> {
        <[_]>::get(self, at).copied()
    }
}

/// The facts on which a request depends besides its arguments.
pub trait Caller {
    /// The connection that the call came over. None for a script, another module, the primary and the AOF.
    fn connected(&self) -> Option<Connection>;
    /// True if the server can block it.
    fn can_wait(&self) -> bool;
}

impl Caller for Ctx<'_> {
    fn connected(&self) -> Option<Connection> {
        connection_of(self)
    }

    fn can_wait(&self) -> bool {
        self.can_block()
    }
}

/// Reads the arguments of one call, from left to right.
#[derive(Debug)]
pub struct Parser<A> {
    args: A,
    at: usize,
    bounds: Bounds,
    /// The highest count that an option may name.
    count_max: u32,
}

/// The owner of an acquisition.
#[derive(Debug)]
pub enum OwnerArg<'a> {
    /// The client's own name.
    Named(&'a [u8]),
    /// `*`: the server makes one.
    Generate,
}

impl<'a, A: Arguments<'a>> Parser<A> {
    /// Starts behind the command's name.
    #[must_use]
    pub fn new(args: A, bounds: Bounds) -> Parser<A> {
        Parser { args, at: 1, bounds, count_max: u32::MAX }
    }

    /// The limits in force.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The next argument; None at the end.
    pub fn take(&mut self) -> Option<A::Word> {
        let arg = self.args.get(self.at)?;
        self.at += 1;
        Some(arg)
    }

    /// The next argument, which is yet to be taken.
    pub(super) fn peek(&self) -> Option<&'a [u8]> {
        self.args.get(self.at).map(Into::into)
    }

    /// The next argument.
    ///
    /// # Errors
    /// If it is missing.
    pub fn need(&mut self, name: &'static str) -> Result<A::Word, ArgError> {
        self.take().ok_or(ArgError::Missing(name))
    }

    pub(super) fn need_bytes(&mut self, name: &'static str) -> Result<&'a [u8], ArgError> {
        self.need(name).map(Into::into)
    }

    /// A number and as many keys, all different.
    ///
    /// # Errors
    /// If there are fewer keys, more than allowed, or one comes twice.
    pub fn keys(&mut self) -> Result<Vec<A::Word>, ArgError> {
        let (count, max) = (self.number("numkeys", 1, u64::from(u32::MAX))? as usize, self.bounds.keys_max);
        if count > max {
            return Err(ArgError::TooManyKeys(max));
        }
        let keys: Vec<A::Word> = (0..count).map_while(|_| self.take()).collect();
        if keys.len() < count {
            return Err(ArgError::TooFewKeys);
        }
        let mut seen = HashSet::new();
        match keys.iter().map(|key| (*key).into()).find(|key: &&[u8]| !seen.insert(*key)) {
            Some(key) => Err(ArgError::KeyTwice(key.to_vec())),
            None => Ok(keys),
        }
    }

    /// An owner, or `*`.
    ///
    /// # Errors
    /// If it is empty or too long.
    pub fn owner_arg(&mut self) -> Result<OwnerArg<'a>, ArgError> {
        match self.need_bytes("owner")? {
            NOBODY => Ok(OwnerArg::Generate),
            bytes => self.check_new_owner(bytes).map(|()| OwnerArg::Named(bytes)),
        }
    }

    /// These bytes as an owner that may begin to hold.
    ///
    /// # Errors
    /// If it is empty, too long, or `*`.
    pub fn new_owner(&self, bytes: &[u8]) -> Result<Owner, ArgError> {
        self.check_new_owner(bytes)?;
        Ok(Owner::new(bytes))
    }

    /// An owner that may hold already, of any length: a limit that is lowered must not keep a holder from releasing.
    ///
    /// # Errors
    /// If it is empty or `*`.
    pub fn owner(&mut self) -> Result<&'a [u8], ArgError> {
        match self.need_bytes("owner")? {
            b"" => Err(ArgError::OwnerEmpty),
            NOBODY => Err(ArgError::OwnerGenerated),
            bytes => Ok(bytes),
        }
    }

    fn check_new_owner(&self, bytes: &[u8]) -> Result<(), ArgError> {
        let max = self.bounds.owner_bytes_max;
        match bytes {
            b"" => Err(ArgError::OwnerEmpty),
            NOBODY => Err(ArgError::OwnerGenerated),
            _ if bytes.len() > max => Err(ArgError::OwnerTooLong(max)),
            _ => Ok(()),
        }
    }

    /// A note as the last argument, which may be left out.
    ///
    /// # Errors
    /// If it is too long.
    pub fn note(&mut self) -> Result<Option<Note>, ArgError> {
        self.take().map(|text| self.note_of(text.into())).transpose()
    }

    pub(super) fn note_of(&self, bytes: &[u8]) -> Result<Note, ArgError> {
        let max = self.bounds.note_bytes_max;
        if bytes.len() > max { Err(ArgError::NoteTooLong(max)) } else { Ok(Note::new(bytes)) }
    }

    /// True if no argument is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.args.get(self.at).is_none()
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// If an argument is left.
    pub fn done(mut self) -> Result<(), ArgError> {
        match self.take() {
            Some(word) => Err(ArgError::UnknownOption(word.into().to_vec())),
            None => Ok(()),
        }
    }

    /// `READ` or `WRITE`.
    ///
    /// # Errors
    /// If it is another word.
    pub fn mode(&mut self) -> Result<Mode, ArgError> {
        let word = self.need_bytes("mode")?;
        if word.eq_ignore_ascii_case(b"READ") {
            Ok(Mode::Read)
        } else if word.eq_ignore_ascii_case(b"WRITE") {
            Ok(Mode::Write)
        } else {
            Err(ArgError::Mode)
        }
    }

    /// How many shares there may be. No count that follows may be higher.
    ///
    /// # Errors
    /// If it is no number of this range.
    pub fn limit(&mut self) -> Result<NonZeroU32, ArgError> {
        self.count_max = self.count("limit", 1)?;
        Ok(NonZeroU32::new(self.count_max).unwrap_or(NonZeroU32::MIN))
    }

    /// How often something is to be held, at least so often.
    pub(super) fn count(&mut self, name: &'static str, min: u32) -> Result<u32, ArgError> {
        Ok(self.number(name, u64::from(min), u64::from(self.count_max))? as u32)
    }

    /// A whole number of this range, both ends included, in decimal digits.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn number(&mut self, name: &'static str, min: u64, max: u64) -> Result<u64, ArgError> {
        let bytes = self.need_bytes(name)?;
        decimal(bytes).filter(|value| (min..=max).contains(value)).ok_or(ArgError::Number { name, min, max })
    }
}

/// Decimal digits without a sign or leading zeros, as the server writes numbers itself.
fn decimal(bytes: &[u8]) -> Option<u64> {
    match bytes {
        b"0" => Some(0),
        b"" | [b'0' | b'+', ..] => None,
        // So few digits always fit.
        _ if bytes.len() < 20 => {
            let mut number = 0;
            for byte in bytes {
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 {
                    return None;
                }
                number = number * 10 + u64::from(digit);
            }
            Some(number)
        }
        _ => str::from_utf8(bytes).ok()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn only_plain_digits_are_numbers() {
        for bad in ["", "+1", "-1", " 1", "1 ", "01", "00", "1.0", "1e3", "0x1", "18446744073709551616", "\u{0661}"] {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
    }
}
