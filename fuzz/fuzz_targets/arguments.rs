//! Any arguments of any command: never a panic; what is parsed is what the documented syntax says, within the bounds;
//! and an error is one harmless line.
//!
//! An input is a command line: words between blanks, the command's name first.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linked::command::acquire::{self, Form};
use linked::command::args::{Caller, Parser};
use linked::command::error::ArgError;
use linked::command::{self, break_lock, check as check_hold, extend, guard, hold, info, log, release, top};
use linked::module::notify::Channel;
use lock_core::manager::LockManager;
use lock_core::model::hold::{Connection, Mode, Session};
use lock_core::model::limits::{Bounds, LEASE_CEILING, Limits, StepLimits};
use lock_core::model::owner::Owner;
use lock_core::model::record::Update;
use lock_core::model::request::{Amount, Operation, Request, Wait};
use lock_core::model::state::State;
use lock_core::model::time::{Millis, WallTime};
use server_api::CommandSpec;
use server_api::command_info::{ArgKind, ArgSpec};
use std::collections::BTreeMap;

/// As narrow as the configuration may be, but for the owner: else hardly any would do.
const TIGHT: Bounds = Bounds {
    lease_default: Millis(7),
    lease_max: Millis(1_500),
    owner_bytes_max: 3,
    note_bytes_max: 0,
    keys_max: 1,
    queue_max: Millis(1),
};

const WIDE: Bounds = Bounds {
    lease_default: Millis(30_000),
    lease_max: LEASE_CEILING,
    owner_bytes_max: 65_535,
    note_bytes_max: 65_535,
    keys_max: 4_096,
    queue_max: Millis(3_600_000),
};

/// What a node needs that only numbers connections.
const LIMITS: Limits = Limits {
    holders_per_key_max: 1,
    waiters_max: 1,
    waiters_per_key_max: 1,
    places_max: 1,
    place_bytes_max: 1,
    away_max: Millis(0),
    waiter_bytes_max: 1,
    reserve_max: Millis(0),
    deadlock_detection: false,
    promotion_skew: Millis(0),
    grace: Millis(0),
    step: StepLimits::DEFAULT,
};

/// LOCK.INFO and LOCK.TOP show no more rows than this, whatever is asked for.
const ROWS_MAX: u64 = 4_096;

struct Someone(Option<Connection>);

impl Caller for Someone {
    fn connected(&self) -> Option<Connection> {
        self.0
    }

    /// A client without a connection cannot wait either: as a script.
    fn can_wait(&self) -> bool {
        self.0.is_some()
    }
}

fuzz_target!(|line: &[u8]| {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let name = words[0].to_ascii_lowercase();
    let Some(spec) = command::table::TABLE.iter().find(|spec| spec.name.to_bytes() == name) else { return };
    // The server checks their number itself.
    if words.len() < spec.arity.unsigned_abs() as usize {
        return;
    }
    for bounds in [WIDE, TIGHT] {
        for connected in [Some(LockManager::new(LIMITS, |_| 0).sessions().connection(7)), None] {
            let parsed = parse(spec, &words, bounds, &mut Someone(connected));
            check(spec, &words, parsed);
        }
    }
});

/// What the module's parser must have made of a reading by the documented syntax.
type Parsed = Result<Box<dyn Fn(&Reading)>, ArgError>;

fn parse(spec: &CommandSpec, words: &[&[u8]], bounds: Bounds, someone: &mut Someone) -> Parsed {
    let parser = Parser::new(words, bounds);
    let bound = someone.0;
    let form = match spec.name.to_bytes() {
        b"lock.acquire" => Form::Acquire,
        b"lock.rw" => Form::ReadWrite,
        b"lock.share" => Form::Share,
        b"lock.macquire" => Form::Many,
        b"lock.release" => {
            let (keys, request) = release::parse_one(parser, kept)?;
            return released(keys, request, bounds);
        }
        b"lock.mrelease" => {
            let (keys, request) = release::parse_many(parser, kept)?;
            return released(keys, request, bounds);
        }
        b"lock.extend" => {
            let (keys, request) = extend::parse_one(parser, someone, |_, keys, request| kept(keys, request))?;
            return extended(keys, request, bounds, bound);
        }
        b"lock.mextend" => {
            let (keys, request) = extend::parse_many(parser, someone, |_, keys, request| kept(keys, request))?;
            return extended(keys, request, bounds, bound);
        }
        b"lock.break" => {
            let (key, owner) = break_lock::parse(parser)?;
            let key = vec![key.to_vec()];
            return Ok(Box::new(move |reading| {
                assert_eq!(key, reading.keys);
                assert_eq!(owner.as_ref().map(Owner::as_bytes), reading.get("owner"));
            }));
        }
        b"lock.check" => {
            let wanted = check_hold::parse(parser)?;
            let (key, owner, check) = (vec![wanted.key.to_vec()], wanted.owner.to_vec(), wanted.check);
            return Ok(Box::new(move |reading| {
                assert_eq!((&key, Some(&owner[..])), (&reading.keys, reading.get("owner")));
                assert_eq!(
                    (check.mode, check.fence.map(|fence| fence.get())),
                    (reading.mode(), reading.number("FENCE"))
                );
            }));
        }
        b"lock.guard" => {
            let (key, request) = guard::parse(parser)?;
            let key = vec![key.to_vec()];
            let Operation::Guard(ask) = request.operation else { panic!("{:?}", request.operation) };
            return Ok(Box::new(move |reading| {
                assert_eq!((&key, Some(request.owner.as_bytes())), (&reading.keys, reading.get("owner")));
                assert_eq!(Some(ask.fence.get()), reading.number("fence"));
            }));
        }
        b"lock.info" => {
            let wanted = info::parse(parser)?;
            let (key, owner, count) = (vec![wanted.key.to_vec()], wanted.owner.map(<[u8]>::to_vec), wanted.count);
            return Ok(Box::new(move |reading| {
                assert_eq!(key, reading.keys);
                assert_eq!(owner.as_deref(), reading.get("OWNER"));
                assert_eq!(count as u64, reading.number("COUNT").unwrap_or(10).min(ROWS_MAX));
            }));
        }
        b"lock.top" => {
            let count = top::parse(parser)?;
            return Ok(Box::new(move |reading| {
                assert_eq!(count as u64, reading.number("COUNT").unwrap_or(10).min(ROWS_MAX));
            }));
        }
        b"lock.log" => {
            let count = log::parse(parser)?.map(|count| count as u64);
            return Ok(Box::new(move |reading| match reading.get("RESET") {
                Some(_) => assert_eq!(count, None),
                None => assert_eq!(count, Some(reading.number("COUNT").unwrap_or(10))),
            }));
        }
        b"lock.hold" => return told(Parser::new(words, bounds)),
        other => panic!("{} is not tried", other.escape_ascii()),
    };
    let parsed = |_: &mut Someone, parsed: acquire::Parsed<'_, &[u8]>| {
        let (keys, request) = kept(parsed.keys, parsed.request);
        (keys, request, parsed.generated, heard_on(parsed.channel))
    };
    let (keys, request, generated, channel) = acquire::parse(parser, someone, form, parsed)?;
    let Operation::Acquire(ask) = request.operation else { panic!("{:?}", request.operation) };
    let terms = ask.terms.map(|terms| *terms).unwrap_or_default();
    assert!(request.owner.as_bytes().len() <= bounds.owner_bytes_max.max(32));
    assert!((Millis(1)..=bounds.lease_max.max(bounds.lease_default)).contains(&ask.lease));
    assert!(terms.note.as_ref().is_none_or(|note| note.0.len() <= bounds.note_bytes_max));
    assert!(ask.queue.is_none_or(|queue| (Millis(1)..=bounds.queue_max).contains(&queue)));
    assert!(keys.len() <= bounds.keys_max && (keys.len() == 1 || form == Form::Many));
    Ok(Box::new(move |reading| {
        assert_eq!(keys, reading.keys);
        let owner = request.owner.as_bytes();
        if generated {
            assert_eq!((reading.get("owner"), ask.retry, ask.queue), (Some(&b"*"[..]), None, None));
            assert!(owner.len() == 32 && owner.iter().all(u8::is_ascii_hexdigit));
        } else {
            assert_eq!(reading.get("owner"), Some(owner));
        }
        let share = reading.number("limit").map(|limit| (limit, reading.number("TAKE").unwrap_or(1)));
        assert_eq!(ask.share.map(|share| (share.limit.get().into(), share.take.get().into())), share);
        assert!(
            share.is_none_or(
                |(limit, take)| take <= limit && ask.retry.is_none_or(|n| (take..=limit).contains(&n.into()))
            )
        );
        let mode = if share.is_some() { Mode::Read } else { Mode::Write };
        assert_eq!(ask.mode, reading.mode().unwrap_or(mode));
        assert_eq!(ask.lease, reading.lease().unwrap_or(bounds.lease_default));
        assert_eq!(terms.note.as_ref().map(|note| &*note.0), reading.get("NOTE"));
        assert_eq!(ask.queue.map(|queue| queue.0), reading.number("QUEUE"));
        // Only a request with QUEUE, over a connection, says on which channel its owner is to be told, or on none.
        let said = reading.get("NOTIFY").map(<[u8]>::to_vec);
        assert_eq!(channel, bound.filter(|_| ask.queue.is_some()).map(|_| said.clone()));
        assert!(said.is_none_or(|said| channel.is_some() && (1..=256).contains(&said.len())));
        // A request with QUEUE repeats itself.
        let implied = ask.queue.map(|_| share.map_or(1, |(_, take)| take));
        assert_eq!(ask.retry.map(u64::from), reading.number("RETRY").or(implied));
        assert_eq!(terms.session, reading.session(bound));
        assert_eq!(terms.min_fence.map(|fence| fence.get()), reading.number("MINFENCE"));
        let wait = match reading.number("BLOCK") {
            Some(0) => Wait::Forever,
            Some(ms) => Wait::For(Millis(ms)),
            None => Wait::Never,
        };
        assert_eq!(ask.wait, if bound.is_some() { wait } else { Wait::Never });
    }))
}

/// What a request says of the channel of its place, if it can: the channel, or none.
fn heard_on(channel: Channel<'_>) -> Option<Option<Vec<u8>>> {
    match channel {
        Channel::AsBefore => None,
        Channel::Nowhere => Some(None),
        Channel::Named(name) => Some(Some(name.to_vec())),
    }
}

fn kept(keys: &[&[u8]], request: &Request) -> (Vec<Vec<u8>>, Request) {
    (keys.iter().map(|key| key.to_vec()).collect(), request.clone())
}

fn released(keys: Vec<Vec<u8>>, request: Request, bounds: Bounds) -> Parsed {
    let Operation::Release(ask) = request.operation else { panic!("{:?}", request.operation) };
    assert!((1..=bounds.keys_max).contains(&keys.len()));
    Ok(Box::new(move |reading| {
        assert_eq!((&keys, Some(request.owner.as_bytes())), (&reading.keys, reading.get("owner")));
        assert_eq!((ask.mode, ask.fence.map(|fence| fence.get())), (reading.mode(), reading.number("FENCE")));
        let to = reading.number("TO").map_or(Amount::One, |to| Amount::To(u32::try_from(to).unwrap()));
        assert_eq!(ask.amount, if reading.get("ALL").is_some() { Amount::All } else { to });
    }))
}

fn extended(keys: Vec<Vec<u8>>, request: Request, bounds: Bounds, bound: Option<Connection>) -> Parsed {
    let Operation::Extend(ask) = request.operation else { panic!("{:?}", request.operation) };
    assert!((1..=bounds.keys_max).contains(&keys.len()));
    assert!((Millis(1)..=bounds.lease_max).contains(&ask.lease));
    assert!(ask.note.as_ref().is_none_or(|note| note.0.len() <= bounds.note_bytes_max));
    Ok(Box::new(move |reading| {
        assert_eq!((&keys, Some(request.owner.as_bytes())), (&reading.keys, reading.get("owner")));
        assert_eq!(ask.note.as_ref().map(|note| &*note.0), reading.get("NOTE"));
        assert_eq!((Some(ask.lease), ask.session), (reading.lease(), reading.session(bound)));
        assert_eq!(ask.fence.map(|fence| fence.get()), reading.number("FENCE"));
        assert_eq!(ask.min_fence.map(|fence| fence.get()), reading.number("MINFENCE"));
    }))
}

fn told(parser: Parser<&[&[u8]]>) -> Parsed {
    let bounds = *parser.bounds();
    let (key, update) = hold::parse(parser)?;
    let key = vec![key.to_vec()];
    let record = match update {
        Update::State(record) => record,
        Update::End(fence) => {
            return Ok(Box::new(move |reading| {
                assert_eq!((&key, None), (&reading.keys, reading.get("owner")));
                assert_eq!(reading.get("state"), Some(State::end(Some(fence)).word().as_bytes()));
            }));
        }
    };
    assert!(record.owner.as_bytes().len() <= bounds.owner_bytes_max);
    assert!(record.note.as_ref().is_none_or(|note| note.0.len() <= bounds.note_bytes_max));
    let state = record.state;
    assert!(state.is_end() || state.fence.is_some());
    Ok(Box::new(move |reading| {
        assert_eq!((&key, Some(record.owner.as_bytes())), (&reading.keys, reading.get("owner")));
        assert_eq!(record.note.as_ref().map(|note| &*note.0), reading.get("note"));
        if let Some(word) = reading.get("state") {
            assert_eq!(state.word().as_bytes(), word, "one word for each state");
            return;
        }
        let counts = [state.reads, state.writes].map(|count| Some(u64::from(count)));
        assert_eq!(counts, [reading.number("reads"), reading.number("writes")]);
        assert_eq!(state.fence.map(|fence| fence.get()), reading.number("fence"));
        let wall_deadline = reading.number("wall-deadline-ms").unwrap_or(0);
        assert_eq!(state.wall_deadline, WallTime::from_millis(wall_deadline));
        assert_eq!(state.left.0, reading.number("remaining-ms").unwrap_or(0));
    }))
}

fn check(spec: &CommandSpec, words: &[&[u8]], parsed: Parsed) {
    let reading = Reading::of(syntax(spec, words), &words[1..]);
    let error = match parsed {
        Ok(is) => return is(&reading.expect("not the documented syntax")),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(text.starts_with("ERR ") || text.starts_with("LIMIT "), "{text}");
    assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.len() < 400, "{text}");
    let is_of_syntax = match error {
        // A hold that is no removal needs what is documented as optional.
        ArgError::Missing(_) => spec.name != c"lock.hold",
        ArgError::UnknownOption(_)
        | ArgError::Twice(_)
        | ArgError::Exclude(..)
        | ArgError::NoLease
        | ArgError::Mode
        | ArgError::TooFewKeys => true,
        _ => false,
    };
    assert!(!is_of_syntax || reading.is_none(), "{text}, but it is the documented syntax");
}

/// The documented syntax of a command. LOCK.HOLD has three: the number of words and the first one behind the owner tell
/// them apart.
fn syntax(spec: &CommandSpec, words: &[&[u8]]) -> &'static [ArgSpec] {
    const NUMBERS: &[ArgSpec] = &[
        ArgSpec::new(c"key", ArgKind::Key),
        ArgSpec::new(c"owner", ArgKind::String),
        ArgSpec::new(c"reads", ArgKind::Integer),
        ArgSpec::new(c"writes", ArgKind::Integer),
        ArgSpec::new(c"fence", ArgKind::Integer).optional(),
        ArgSpec::new(c"wall-deadline-ms", ArgKind::Integer).optional(),
        ArgSpec::new(c"remaining-ms", ArgKind::Integer).optional(),
        ArgSpec::new(c"note", ArgKind::String).optional(),
    ];
    const END: &[ArgSpec] = &[ArgSpec::new(c"key", ArgKind::Key), ArgSpec::new(c"state", ArgKind::String)];
    let is_number = |word: &&[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    match words {
        _ if spec.name != c"lock.hold" => spec.args,
        [_, _, _] => END,
        [_, _, _, fourth, ..] if is_number(fourth) => NUMBERS,
        _ => spec.args,
    }
}

/// Arguments as the documented syntax reads them: by the name of an argument, or by the word before it.
#[derive(Debug, Default)]
struct Reading<'a> {
    keys: Vec<Vec<u8>>,
    given: BTreeMap<&'static str, &'a [u8]>,
}

impl<'a> Reading<'a> {
    fn of(specs: &'static [ArgSpec], words: &[&'a [u8]]) -> Option<Reading<'a>> {
        let mut reading = Reading::default();
        let mut left: Vec<ArgSpec> = specs.to_vec();
        let mut words = words.iter().copied();
        // What has its place comes first; all else in any order.
        while let Some(at) = left.iter().position(|spec| is_placed(spec) && !(spec.optional && words.len() == 0)) {
            if at > 0 && left[at].optional {
                break;
            }
            let spec = left.remove(at);
            if spec.multiple && spec.optional {
                // All that follows: the arguments of another command.
                words.by_ref().for_each(drop);
                continue;
            }
            if spec.multiple {
                let count = usize::try_from(reading.number("numkeys")?).ok()?;
                reading.keys = words.by_ref().take(count).map(<[u8]>::to_vec).collect();
                if reading.keys.len() != count || count == 0 {
                    return None;
                }
                continue;
            }
            let word = words.next()?;
            match spec.kind {
                ArgKind::Key => reading.keys.push(word.to_vec()),
                ArgKind::OneOf(choices) => {
                    let chosen = choices.iter().find(|choice| says(choice, word))?;
                    reading.given.insert(chosen.token?.to_str().unwrap(), b"");
                }
                _ => drop(reading.given.insert(spec.name.to_str().unwrap(), word)),
            }
        }
        while let Some(word) = words.next() {
            let at = left.iter().position(|spec| choices(spec).iter().any(|choice| says(choice, word)))?;
            let spec = left.remove(at);
            let chosen = *choices(&spec).iter().find(|choice| says(choice, word))?;
            let value = if let ArgKind::Token = chosen.kind { &b""[..] } else { words.next()? };
            reading.given.insert(chosen.token?.to_str().unwrap(), value);
        }
        left.iter().all(|spec| spec.optional).then_some(reading)
    }

    fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.given.get(name).copied()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name).map(|word| String::from_utf8_lossy(word).parse().unwrap_or(u64::MAX))
    }

    fn mode(&self) -> Option<Mode> {
        let read = self.get("READ").map(|_| Mode::Read);
        read.or(self.get("WRITE").map(|_| Mode::Write))
    }

    fn lease(&self) -> Option<Millis> {
        self.number("PX").or(self.number("EX").map(|s| s * 1000)).map(Millis)
    }

    fn session(&self, connection: Option<Connection>) -> Option<Session> {
        let grace = Millis(self.number("SESSION")?);
        Some(Session { connection: connection.expect("SESSION needs a connection"), grace })
    }
}

/// Whether an argument is known by its place rather than by a word before it.
fn is_placed(spec: &ArgSpec) -> bool {
    match spec.kind {
        // A mode that must be given.
        ArgKind::OneOf(choices) => !spec.optional && choices.iter().all(|one| matches!(one.kind, ArgKind::Token)),
        _ => spec.token.is_none(),
    }
}

fn choices(spec: &ArgSpec) -> Vec<ArgSpec> {
    match spec.kind {
        ArgKind::OneOf(choices) => choices.to_vec(),
        _ => vec![*spec],
    }
}

fn says(spec: &ArgSpec, word: &[u8]) -> bool {
    spec.token.is_some_and(|token| word.eq_ignore_ascii_case(token.to_bytes()))
}
