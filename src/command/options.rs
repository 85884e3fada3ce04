//! Reads the options of a command, which follow its other arguments in any order.

use super::args::{Arguments, Caller, Parser};
use super::error::ArgError;
use crate::module::notify::Channel;
use lock_core::model::fence::Fence;
use lock_core::model::hold::{Mode, Session};
use lock_core::model::limits::LEASE_CEILING;
use lock_core::model::owner::Note;
use lock_core::model::request::Wait;
use lock_core::model::time::Millis;

/// The longest channel of NOTIFY.
const CHANNEL_BYTES_MAX: usize = 256;

/// The options of one call. None: not given.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// `PX` or `EX`.
    pub lease: Option<Millis>,
    /// `NOTE`.
    pub note: Option<Note>,
    /// `FENCE`.
    pub fence: Option<Fence>,
    /// `MINFENCE`.
    pub min_fence: Option<Fence>,
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
    /// `QUEUE`.
    pub queue: Option<Millis>,
    /// `NOTIFY`.
    pub notify: Option<&'a [u8]>,
    /// `RETRY`.
    pub retry: Option<u32>,
    /// `TAKE`.
    pub take: Option<u32>,
    /// `RESET`.
    pub reset: bool,
    /// `SESSION`: how long the hold outlives its connection, which is what is called its grace.
    pub session: Option<Millis>,
}

/// Every option. A command names those that it takes.
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
    /// `QUEUE ms`
    Queue,
    /// `NOTIFY channel`
    Notify,
    /// `RETRY n`
    Retry,
    /// `SESSION ms`
    Session,
    /// `RESET`
    Reset,
    /// `TAKE n`
    Take,
    /// `MINFENCE f`
    MinFence,
}

impl Opt {
    /// The word that begins it.
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
            Opt::Queue => "QUEUE",
            Opt::Notify => "NOTIFY",
            Opt::Retry => "RETRY",
            Opt::Session => "SESSION",
            Opt::Reset => "RESET",
            Opt::Take => "TAKE",
            Opt::MinFence => "MINFENCE",
        }
    }

    /// True if a word begins it, in upper or lower case.
    fn is(self, word: &[u8]) -> bool {
        const CASE: u8 = b'a' ^ b'A';
        let name = self.word().as_bytes();
        // A name has nothing but capital letters, so that no other byte is taken for one of them.
        word.len() == name.len() && word.iter().zip(name).all(|(byte, letter)| byte & !CASE == *letter)
    }

    /// The option that excludes this one.
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
            Opt::Note
            | Opt::Fence
            | Opt::Owner
            | Opt::Block
            | Opt::Queue
            | Opt::Notify
            | Opt::Retry
            | Opt::Session
            | Opt::Take
            | Opt::MinFence => None,
        }
    }
}

impl<'a> Options<'a> {
    /// How many rows are shown at most.
    #[must_use]
    pub fn count_or_default(&self) -> usize {
        const COUNT_DEFAULT: u64 = 10;
        self.count.unwrap_or(COUNT_DEFAULT) as usize
    }

    /// The same for rows of what is there now, of which a client may make very many: a row costs almost a microsecond.
    #[must_use]
    pub fn count_bounded(&self) -> usize {
        const COUNT_MAX: usize = 4_096;
        self.count_or_default().min(COUNT_MAX)
    }

    /// What the call says of the channel of its owner's place.
    ///
    /// # Errors
    /// If it names one and asks for no place, or came over no connection.
    pub fn channel(&self, caller: &impl Caller) -> Result<Channel<'a>, ArgError> {
        match (self.notify, self.queue) {
            (Some(_), None) => Err(ArgError::NotifyAlone),
            (None, None) => Ok(Channel::AsBefore),
            (Some(_), Some(_)) if caller.connected().is_none() => Err(ArgError::NotifyNowhere),
            (Some(channel), Some(_)) => Ok(Channel::Named(channel)),
            (None, Some(_)) if caller.connected().is_none() => Ok(Channel::AsBefore),
            (None, Some(_)) => Ok(Channel::Nowhere),
        }
    }

    /// The session that a hold is bound to: that of the connection which the command came over.
    ///
    /// # Errors
    /// If it came over none.
    pub fn session(&self, caller: &impl Caller) -> Result<Option<Session>, ArgError> {
        let Some(grace) = self.session else { return Ok(None) };
        let connection = caller.connected().ok_or(ArgError::SessionNowhere)?;
        Ok(Some(Session { connection, grace }))
    }
}

impl<'a, A: Arguments<'a>> Parser<A> {
    /// Reads all that is left, as options of which the command takes these, into `options`: they are too many to be
    /// moved about. Each may be given once.
    ///
    /// # Errors
    /// If one is unknown, given twice, lacks its value, is out of range, or excludes another.
    #[inline(never)]
    pub fn read_options(&mut self, taken: &[Opt], options: &mut Options<'a>) -> Result<(), ArgError> {
        let mut seen = OptSet::default();
        while let Some(word) = self.take() {
            let word = word.into();
            let opt = taken.iter().find(|opt| opt.is(word));
            let opt = *opt.ok_or_else(|| ArgError::UnknownOption(word.to_vec()))?;
            if seen.has(opt) {
                return Err(ArgError::Twice(opt.word()));
            }
            if let Some(other) = opt.excluded().filter(|other| seen.has(*other)) {
                return Err(ArgError::Exclude(other.word(), opt.word()));
            }
            seen.add(opt);
            self.value(opt, options)?;
        }
        Ok(())
    }

    fn value(&mut self, opt: Opt, options: &mut Options<'a>) -> Result<(), ArgError> {
        let lease_max = self.bounds().lease_max.0;
        let word = opt.word();
        match opt {
            Opt::Px => options.lease = Some(Millis(self.number(word, 1, lease_max)?)),
            Opt::Ex => options.lease = Some(self.seconds(word)?),
            Opt::Note => {
                let text = self.need_bytes(word)?;
                options.note = Some(self.note_of(text)?);
            }
            Opt::Fence => options.fence = Fence::new(self.number(word, 1, Fence::MAX.get())?),
            Opt::MinFence => options.min_fence = Fence::new(self.number(word, 1, Fence::MAX.get())?),
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
            Opt::Queue => options.queue = Some(Millis(self.number(word, 1, self.bounds().queue_max.0)?)),
            Opt::Notify => {
                let channel = self.need_bytes(word)?;
                if !(1..=CHANNEL_BYTES_MAX).contains(&channel.len()) {
                    return Err(ArgError::NotifyChannel);
                }
                options.notify = Some(channel);
            }
            Opt::Session => options.session = Some(Millis(self.number(word, 0, LEASE_CEILING.0)?)),
            Opt::Retry => options.retry = Some(self.count(word, options.take.unwrap_or(1))?),
            Opt::Take => options.take = Some(self.count(word, 1)?),
        }
        Ok(())
    }

    /// A lease in whole seconds.
    fn seconds(&mut self, name: &'static str) -> Result<Millis, ArgError> {
        let max = self.bounds().lease_max;
        match self.number(name, 1, max.0 / 1000) {
            Ok(seconds) => Ok(Millis(seconds * 1000)),
            // The range is empty.
            Err(ArgError::Number { max: 0, .. }) => Err(ArgError::NoWholeSecond(max)),
            Err(error) => Err(error),
        }
    }
}

/// The options that were given so far, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct OptSet(u32);

impl OptSet {
    fn has(self, opt: Opt) -> bool {
        self.0 & (1 << opt as u32) != 0
    }

    fn add(&mut self, opt: Opt) {
        self.0 |= 1 << opt as u32;
    }
}
