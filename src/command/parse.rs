//! Reads arguments. Every complaint names the argument.

use super::reply::ArgError;
use crate::ffi::{Args, Ctx, Str};
use crate::lock::model::fence::Fence;
use crate::lock::model::hold::{Connection, Mode, Session};
use crate::lock::model::limits::{Bounds, LEASE_CEILING};
use crate::lock::model::owner::{NOBODY, Note, Owner};
use crate::lock::model::request::Wait;
use crate::lock::model::time::Millis;
use crate::module::connection_of;
use std::collections::HashSet;

/// The arguments of one call, the command's name first: the server's, or plain bytes where there is no server.
pub trait Arguments<'a>: Copy {
    /// One of them.
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

/// What a request depends on besides its arguments.
pub trait Caller {
    /// The connection that the call came over, if it came over one.
    fn connected(&self) -> Option<Connection>;
    /// Whether it can be made to wait.
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

/// The arguments of one call, read from left to right.
#[derive(Debug)]
pub struct Parser<A> {
    args: A,
    at: usize,
    bounds: Bounds,
}

/// The options of a command: each may be given once. `None`: not given.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// `PX` or `EX`: a lease.
    pub lease: Option<Millis>,
    /// `NOTE`.
    pub note: Option<Note>,
    /// `FENCE`.
    pub fence: Option<Fence>,
    /// `READ` or `WRITE`.
    pub mode: Option<Mode>,
    /// `ALL`.
    pub all: bool,
    /// `TO`.
    pub to: Option<u32>,
    /// `OWNER`.
    pub owner: Option<&'a [u8]>,
    /// `COUNT`.
    pub count: Option<u64>,
    /// `BLOCK`.
    pub wait: Option<Wait>,
    /// `RETRY`.
    pub retry: Option<u32>,
    /// `RESET`.
    pub reset: bool,
    /// `SESSION`: how long the hold outlives its connection.
    pub session: Option<Millis>,
}

/// The options there are. A command names those that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    /// `PX ms`
    Px,
    /// `EX s`
    Ex,
    /// `NOTE text`
    Note,
    /// `FENCE f`
    Fence,
    /// `READ`
    Read,
    /// `WRITE`
    Write,
    /// `ALL`
    All,
    /// `TO n`
    To,
    /// `OWNER o`
    Owner,
    /// `COUNT n`
    Count,
    /// `BLOCK ms`
    Block,
    /// `RETRY n`
    Retry,
    /// `SESSION ms`
    Session,
    /// `RESET`
    Reset,
}

impl Opt {
    /// The word that introduces it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Opt::Px => "PX",
            Opt::Ex => "EX",
            Opt::Note => "NOTE",
            Opt::Fence => "FENCE",
            Opt::Read => "READ",
            Opt::Write => "WRITE",
            Opt::All => "ALL",
            Opt::To => "TO",
            Opt::Owner => "OWNER",
            Opt::Count => "COUNT",
            Opt::Block => "BLOCK",
            Opt::Retry => "RETRY",
            Opt::Session => "SESSION",
            Opt::Reset => "RESET",
        }
    }

    /// The option that cannot be given together with this one.
    fn excluded(self) -> Option<Opt> {
        match self {
            Opt::Px => Some(Opt::Ex),
            Opt::Ex => Some(Opt::Px),
            Opt::Read => Some(Opt::Write),
            Opt::Write => Some(Opt::Read),
            Opt::All => Some(Opt::To),
            Opt::To => Some(Opt::All),
            Opt::Count => Some(Opt::Reset),
            Opt::Reset => Some(Opt::Count),
            Opt::Note | Opt::Fence | Opt::Owner | Opt::Block | Opt::Retry | Opt::Session => None,
        }
    }
}

/// The owner of a request, as ACQUIRE takes it.
#[derive(Debug)]
pub enum OwnerArg<'a> {
    /// An owner of the client's.
    Named(&'a [u8]),
    /// `*`: the server is to make one.
    Generate,
}

impl Options<'_> {
    /// How many rows are to be shown.
    #[must_use]
    pub fn count_or_default(&self) -> usize {
        const COUNT_DEFAULT: u64 = 10;
        self.count.unwrap_or(COUNT_DEFAULT) as usize
    }

    /// What a hold is to be bound to: the connection that the command came over.
    ///
    /// # Errors
    /// When it came over none.
    pub fn session(&self, caller: &impl Caller) -> Result<Option<Session>, ArgError> {
        let Some(grace) = self.session else { return Ok(None) };
        let connection = caller.connected().ok_or(ArgError::SessionNowhere)?;
        Ok(Some(Session { connection, grace }))
    }
}

impl<'a, A: Arguments<'a>> Parser<A> {
    /// Begins after the command's name.
    #[must_use]
    pub fn new(args: A, bounds: Bounds) -> Parser<A> {
        Parser { args, at: 1, bounds }
    }

    /// What is allowed.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The next argument, if there is one.
    pub fn take(&mut self) -> Option<A::Word> {
        let arg = self.args.get(self.at)?;
        self.at += 1;
        Some(arg)
    }

    /// The next argument, which must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn need(&mut self, name: &'static str) -> Result<A::Word, ArgError> {
        self.take().ok_or(ArgError::Missing(name))
    }

    fn need_bytes(&mut self, name: &'static str) -> Result<&'a [u8], ArgError> {
        self.need(name).map(Into::into)
    }

    /// As many keys as the argument before them says, all different.
    ///
    /// # Errors
    /// When there are not so many, or too many, or one comes twice.
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
    /// When it is empty or too long.
    pub fn owner_arg(&mut self) -> Result<OwnerArg<'a>, ArgError> {
        match self.need_bytes("owner")? {
            NOBODY => Ok(OwnerArg::Generate),
            bytes => self.check_new_owner(bytes).map(|()| OwnerArg::Named(bytes)),
        }
    }

    /// An owner that may begin to hold.
    ///
    /// # Errors
    /// When it is empty, too long, or `*`.
    pub fn new_owner(&mut self) -> Result<Owner, ArgError> {
        let bytes = self.need_bytes("owner")?;
        self.check_new_owner(bytes)?;
        Ok(Owner::new(bytes))
    }

    /// An owner that may hold already. However long: a limit that is lowered must not keep a holder from leaving.
    ///
    /// # Errors
    /// When it is empty or `*`.
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

    /// A note as the last argument, if there is one.
    ///
    /// # Errors
    /// When it is too long.
    pub fn note(&mut self) -> Result<Option<Note>, ArgError> {
        self.take().map(|text| self.note_of(text.into())).transpose()
    }

    fn note_of(&self, bytes: &[u8]) -> Result<Note, ArgError> {
        let max = self.bounds.note_bytes_max;
        if bytes.len() > max { Err(ArgError::NoteTooLong(max)) } else { Ok(Note::new(bytes)) }
    }

    /// Whether all arguments are read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.args.get(self.at).is_none()
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// When something does.
    pub fn done(mut self) -> Result<(), ArgError> {
        match self.take() {
            Some(word) => Err(ArgError::UnknownOption(word.into().to_vec())),
            None => Ok(()),
        }
    }

    /// `READ` or `WRITE`.
    ///
    /// # Errors
    /// When it is another word.
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

    /// All that is left, as options of which the command takes these.
    ///
    /// # Errors
    /// When one is unknown, given twice, without its value or out of range, or excludes another.
    pub fn options(mut self, taken: &[Opt]) -> Result<Options<'a>, ArgError> {
        let mut options = Options::default();
        let mut seen = OptSet::default();
        while let Some(word) = self.take() {
            let word = word.into();
            let opt = taken.iter().find(|opt| word.eq_ignore_ascii_case(opt.word().as_bytes()));
            let opt = *opt.ok_or_else(|| ArgError::UnknownOption(word.to_vec()))?;
            if seen.has(opt) {
                return Err(ArgError::Twice(opt.word()));
            }
            if let Some(other) = opt.excluded().filter(|other| seen.has(*other)) {
                return Err(ArgError::Exclude(other.word(), opt.word()));
            }
            seen.add(opt);
            self.value(opt, &mut options)?;
        }
        Ok(options)
    }

    fn value(&mut self, opt: Opt, options: &mut Options<'a>) -> Result<(), ArgError> {
        let lease_max = self.bounds.lease_max.0;
        let word = opt.word();
        match opt {
            Opt::Px => options.lease = Some(Millis(self.number(word, 1, lease_max)?)),
            Opt::Ex => options.lease = Some(self.seconds(word)?),
            Opt::Note => {
                let text = self.need_bytes(word)?;
                options.note = Some(self.note_of(text)?);
            }
            Opt::Fence => options.fence = Fence::new(self.number(word, 1, Fence::MAX.get())?),
            Opt::Read => options.mode = Some(Mode::Read),
            Opt::Write => options.mode = Some(Mode::Write),
            Opt::All => options.all = true,
            Opt::Reset => options.reset = true,
            Opt::To => options.to = Some(self.number(word, 0, u64::from(u32::MAX))? as u32),
            Opt::Owner => options.owner = Some(self.need_bytes(word)?),
            Opt::Count => options.count = Some(self.number(word, 0, u64::from(u32::MAX))?),
            Opt::Block => {
                options.wait = Some(match self.number(word, 0, LEASE_CEILING.0)? {
                    // As in BLPOP and XREAD.
                    0 => Wait::Forever,
                    ms => Wait::For(Millis(ms)),
                });
            }
            Opt::Session => options.session = Some(Millis(self.number(word, 0, LEASE_CEILING.0)?)),
            Opt::Retry => options.retry = Some(self.number(word, 1, u64::from(u32::MAX))? as u32),
        }
        Ok(())
    }

    /// A lease in whole seconds.
    fn seconds(&mut self, name: &'static str) -> Result<Millis, ArgError> {
        let max = self.bounds.lease_max;
        match self.number(name, 1, max.0 / 1000) {
            Ok(seconds) => Ok(Millis(seconds * 1000)),
            // There is no such range.
            Err(ArgError::Number { max: 0, .. }) => Err(ArgError::NoWholeSecond(max)),
            Err(error) => Err(error),
        }
    }

    /// A whole number of this range, both ends included: decimal digits alone.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn number(&mut self, name: &'static str, min: u64, max: u64) -> Result<u64, ArgError> {
        let bytes = self.need_bytes(name)?;
        decimal(bytes).filter(|value| (min..=max).contains(value)).ok_or(ArgError::Number { name, min, max })
    }
}

/// The options that were given so far, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct OptSet(u16);

impl OptSet {
    fn has(self, opt: Opt) -> bool {
        self.0 & (1 << opt as u16) != 0
    }

    fn add(&mut self, opt: Opt) {
        self.0 |= 1 << opt as u16;
    }
}

/// Decimal digits without a sign or leading zeros, as the server writes numbers itself.
fn decimal(bytes: &[u8]) -> Option<u64> {
    match bytes {
        b"0" => Some(0),
        b"" | [b'0', ..] => None,
        _ => bytes.iter().try_fold(0_u64, |number, byte| {
            let digit = char::from(*byte).to_digit(10)?;
            number.checked_mul(10)?.checked_add(u64::from(digit))
        }),
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
