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
use server_api::command_info::{ArgKind, ArgSpec};

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

/// Makes the options of a table: their names, what they exclude, and how each is read.
macro_rules! options {
    (
        ($parser:ident, $options:ident, $word:ident)
        $($opt:ident $token:literal $(excludes $other:ident)? => $read:expr;)+
    ) => {
        /// Every option. A command takes those that its arguments in COMMAND DOCS name: [`OptList::among`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Opt {
            $(
                #[doc = concat!("`", $token, "`")]
                $opt
            ),+
        }

        impl Opt {
            /// All of them.
            pub const ALL: &[Opt] = &[$(Opt::$opt),+];

            /// The word that begins it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Opt::$opt => $token),+
                }
            }

            /// The option that excludes this one.
            fn excluded(self) -> Option<Opt> {
                match self {
                    $($(Opt::$opt => Some(Opt::$other),)?)+
                    _ => None,
                }
            }
        }

        impl<'a, A: Arguments<'a>> Parser<A> {
            /// Reads what follows the word of an option.
            fn value(&mut self, opt: Opt, $options: &mut Options<'a>) -> Result<(), ArgError> {
                let ($parser, $word) = (self, opt.word());
                match opt {
                    $(Opt::$opt => $read),+
                }
                Ok(())
            }
        }
    };
}

options! { (parser, options, word)
    Px "PX" excludes Ex => options.lease = Some(Millis(parser.number(word, 1, parser.bounds().lease_max.0)?));
    Ex "EX" excludes Px => options.lease = Some(parser.seconds(word)?);
    Block "BLOCK" => options.wait = Some(match parser.number(word, 0, LEASE_CEILING.0)? {
        // As in BLPOP and XREAD.
        0 => Wait::Forever,
        ms => Wait::For(Millis(ms)),
    });
    Queue "QUEUE" => options.queue = Some(Millis(parser.number(word, 1, parser.bounds().queue_max.0)?));
    Notify "NOTIFY" => options.notify = Some(parser.channel(word)?);
    Session "SESSION" => options.session = Some(Millis(parser.number(word, 0, LEASE_CEILING.0)?));
    Retry "RETRY" => options.retry = Some(parser.count(word, options.take.unwrap_or(1))?);
    Take "TAKE" => options.take = Some(parser.count(word, 1)?);
    Note "NOTE" => {
        let text = parser.need_bytes(word)?;
        options.note = Some(parser.note_of(text)?);
    };
    Fence "FENCE" => options.fence = Fence::new(parser.number(word, 1, Fence::MAX.get())?);
    MinFence "MINFENCE" => options.min_fence = Fence::new(parser.number(word, 1, Fence::MAX.get())?);
    Read "READ" excludes Write => options.mode = Some(Mode::Read);
    Write "WRITE" excludes Read => options.mode = Some(Mode::Write);
    All "ALL" excludes To => options.all = true;
    To "TO" excludes All => options.to = Some(parser.number(word, 0, u64::from(u32::MAX))? as u32);
    Owner "OWNER" => options.owner = Some(parser.need_bytes(word)?);
    Count "COUNT" excludes Reset => options.count = Some(parser.number(word, 0, u64::from(u32::MAX))?);
    Reset "RESET" excludes Count => options.reset = true;
}

impl Opt {
    const fn named(token: &[u8]) -> Opt {
        let mut at = 0;
        while at < Opt::ALL.len() {
            let (word, mut same) = (Opt::ALL[at].word().as_bytes(), 0);
            while same < word.len() && same < token.len() && word[same] == token[same] {
                same += 1;
            }
            if same == word.len() && same == token.len() {
                return Opt::ALL[at];
            }
            at += 1;
        }
        panic!("a command has an option that is not in the table");
    }

    /// True if a word begins it, in upper or lower case.
    fn is(self, word: &[u8]) -> bool {
        const CASE: u8 = b'a' ^ b'A';
        let name = self.word().as_bytes();
        // A name has nothing but capital letters, so that no other byte is taken for one of them.
        word.len() == name.len() && word.iter().zip(name).all(|(byte, letter)| byte & !CASE == *letter)
    }
}

/// The options of a command, in the order of its arguments.
#[derive(Clone, Copy, Debug)]
pub struct OptList {
    opts: [Opt; Opt::ALL.len()],
    count: usize,
}

impl OptList {
    /// The options among the arguments of a command, behind so many that are read by position.
    ///
    /// # Panics
    /// If an argument has a word that is no option. It is called while the module is compiled.
    #[must_use]
    pub const fn among(args: &[ArgSpec], behind: usize) -> OptList {
        OptList { opts: [Opt::Px; Opt::ALL.len()], count: 0 }.with(args, behind)
    }

    const fn with(mut self, args: &[ArgSpec], behind: usize) -> OptList {
        let mut at = behind;
        while at < args.len() {
            match (args[at].token, args[at].kind) {
                (Some(token), _) => {
                    self.opts[self.count] = Opt::named(token.to_bytes());
                    self.count += 1;
                }
                (None, ArgKind::OneOf(some)) => self = self.with(some, 0),
                _ => {}
            }
            at += 1;
        }
        self
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
    #[inline(always)]
    pub fn read_options(&mut self, taken: &OptList, options: &mut Options<'a>) -> Result<(), ArgError> {
        if self.peek().is_none() { Ok(()) } else { self.read_given(taken, options) }
    }

    #[inline(never)]
    fn read_given(&mut self, taken: &OptList, options: &mut Options<'a>) -> Result<(), ArgError> {
        let mut seen = OptSet::default();
        while let Some(word) = self.take() {
            let word = word.into();
            let opt = taken.opts[..taken.count].iter().find(|opt| opt.is(word));
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

    /// A channel of NOTIFY.
    fn channel(&mut self, name: &'static str) -> Result<&'a [u8], ArgError> {
        let channel = self.need_bytes(name)?;
        let is_long = !(1..=CHANNEL_BYTES_MAX).contains(&channel.len());
        if is_long { Err(ArgError::NotifyChannel) } else { Ok(channel) }
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
