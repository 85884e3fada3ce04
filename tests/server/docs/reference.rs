//! docs/reference and redis.conf against the tables in the code: what they say is there, and nothing else is.

use linked::command;
use linked::command::error::{ArgError, Instead, NO_REPLY, TAKEN_OVER, text_of, text_of_deadlock, text_of_redirect};
use linked::command::options::Opt;
use linked::module::config::TABLE;
use linked::module::notify::Mute;
use linked::module::request::ServeError;
use linked::module::step;
use lock_core::model::effect::Cause;
use lock_core::model::fence::Fence;
use lock_core::model::key::{Db, KeyName};
use lock_core::model::owner::Owner;
use lock_core::model::request::{Cycle, Hop, RedirectReason, Refusal};
use lock_core::model::state::StateError;
use lock_core::model::time::Millis;
use server_api::command_info::{ArgKind, ArgSpec};
use server_api::config::{ConfigKind, ConfigSpec};
use std::collections::BTreeSet;
use testbed::{Fields, Server, Value, module, wait_for};

const ERRORS: &str = include_str!("../../../docs/reference/errors.md");
const CONFIGURATION: &str = include_str!("../../../docs/reference/configuration.md");
const EVENTS: &str = include_str!("../../../docs/reference/events.md");
const FIELDS: &str = include_str!("../../../docs/reference/info-fields.md");
const REDIS_CONF: &str = include_str!("../../../redis.conf");

/// A command's syntax as its page writes it.
pub(crate) fn syntax(args: &[ArgSpec]) -> String {
    let one = |arg: &ArgSpec| {
        let name = match arg.kind {
            ArgKind::OneOf(args) => args.iter().map(|arg| syntax(&[*arg])).collect::<Vec<_>>().join(" | "),
            ArgKind::Token => String::new(),
            _ => arg.name.to_str().unwrap().to_owned(),
        };
        let token = arg.token.map_or("", |token| token.to_str().unwrap());
        let name = if arg.multiple { format!("{name} [{name} ...]") } else { name };
        let both = format!("{token} {name}");
        if arg.optional { format!("[{}]", both.trim()) } else { both.trim().to_owned() }
    };
    args.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The rows of the first table of a text: the cells between the bars.
fn table(text: &'static str) -> Vec<Vec<&'static str>> {
    let rows = text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2)
        .map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('|').trim()).collect())
        .collect()
}

/// The text that follows a heading.
fn below(text: &'static str, heading: &str) -> &'static str {
    text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}")).1
}

/// The first cells of a table, without their quotes.
fn names(text: &'static str) -> Vec<&'static str> {
    table(text).iter().map(|row| row[0].trim_matches('`')).collect()
}

#[test]
fn the_options_that_are_parsed_are_the_options_that_are_documented() {
    // What could go wrong: an option stays in the table that no command has.
    fn tokens(args: &[ArgSpec], into: &mut BTreeSet<String>) {
        for arg in args {
            into.extend(arg.token.map(|token| token.to_str().unwrap().to_owned()));
            if let ArgKind::OneOf(args) = arg.kind {
                tokens(args, into);
            }
        }
    }
    let mut documented = BTreeSet::new();
    for spec in command::table::TABLE {
        tokens(spec.args, &mut documented);
    }
    assert_eq!(documented, Opt::ALL.iter().map(|known| known.word().to_owned()).collect());
}

/// One of each refusal. The matches make the compiler ask for new ones.
pub(crate) fn every_error() -> BTreeSet<String> {
    let complaints = [
        ArgError::Missing("PX"),
        ArgError::UnknownOption(b"FOO".to_vec()),
        ArgError::Twice("PX"),
        ArgError::Exclude("PX", "EX"),
        ArgError::NoLease,
        ArgError::Number { name: "PX", min: 1, max: 86_400_000 },
        ArgError::Number { name: "limit", min: 1, max: u64::from(u32::MAX) },
        ArgError::Number { name: "TAKE", min: 1, max: 5 },
        ArgError::Number { name: "RETRY", min: 3, max: 5 },
        ArgError::Number { name: "MINFENCE", min: 1, max: Fence::MAX.get() },
        ArgError::NoWholeSecond(Millis(500)),
        ArgError::Mode,
        ArgError::OwnerEmpty,
        ArgError::OwnerGenerated,
        ArgError::OwnerTooLong(256),
        ArgError::NoteTooLong(256),
        ArgError::HoldRefused,
        ArgError::State(StateError::Mark),
        ArgError::State(StateError::Parts),
        ArgError::State(StateError::Number { part: "W", min: 1, max: u64::from(u32::MAX) }),
        ArgError::RetryGenerated,
        ArgError::QueueGenerated,
        ArgError::SessionNowhere,
        ArgError::NotifyAlone,
        ArgError::NotifyChannel,
        ArgError::NotifyNowhere,
        ArgError::TooManyKeys(64),
        ArgError::TooFewKeys,
        ArgError::KeyTwice(b"k".to_vec()),
        ArgError::NotGuarded { command: b"EVAL".to_vec(), instead: Instead::CheckInScript },
        ArgError::NotGuarded { command: b"MULTI".to_vec(), instead: Instead::Nothing },
        ArgError::NotGuarded { command: b"VSIM".to_vec(), instead: Instead::Transaction },
    ];
    for error in &complaints {
        match error {
            ArgError::Missing(_)
            | ArgError::UnknownOption(_)
            | ArgError::Twice(_)
            | ArgError::Exclude(..)
            | ArgError::NoLease
            | ArgError::Number { .. }
            | ArgError::NoWholeSecond(_)
            | ArgError::Mode
            | ArgError::OwnerEmpty
            | ArgError::OwnerGenerated
            | ArgError::OwnerTooLong(_)
            | ArgError::NoteTooLong(_)
            | ArgError::HoldRefused
            | ArgError::State(StateError::Mark | StateError::Parts | StateError::Number { .. })
            | ArgError::RetryGenerated
            | ArgError::QueueGenerated
            | ArgError::SessionNowhere
            | ArgError::NotifyAlone
            | ArgError::NotifyChannel
            | ArgError::NotifyNowhere
            | ArgError::TooManyKeys(_)
            | ArgError::TooFewKeys
            | ArgError::KeyTwice(_)
            | ArgError::NotGuarded { .. } => {}
        }
    }
    let refusals = [
        Refusal::AmbiguousRelease,
        Refusal::OutOfMemory,
        Refusal::TooManyHolders,
        Refusal::TooManyCounts,
        Refusal::FencesUsedUp,
        Refusal::FenceFarAhead,
        Refusal::MinFenceAhead,
        Refusal::BreaksLock,
        Refusal::AlreadyWaits,
        Refusal::TooManyWaiters,
        Refusal::TooManyWaitersOfKey,
        Refusal::TooManyPlaces,
        Refusal::TooManyPlacesOfOwner,
        Refusal::TooManyPlaceBytes,
        Refusal::TooManyWaiterBytes,
        Refusal::OtherMode,
        Refusal::OtherTake,
        Refusal::OtherKeys,
        Refusal::HoldsShares,
        Refusal::QueuedUpgrade,
        Refusal::Grace(Millis(12_345)),
    ];
    let hop = |owner: &[u8], key: &[u8]| Hop { owner: Owner::new(owner), db: Db(0), key: KeyName::new(key, |_| 0) };
    let cycle = Cycle(vec![hop(b"a", b"k1"), hop(b"b", b"k2")]);
    for refusal in &refusals {
        match refusal {
            Refusal::AmbiguousRelease
            | Refusal::OutOfMemory
            | Refusal::TooManyHolders
            | Refusal::TooManyCounts
            | Refusal::FencesUsedUp
            | Refusal::FenceFarAhead
            | Refusal::MinFenceAhead
            | Refusal::BreaksLock
            | Refusal::AlreadyWaits
            | Refusal::TooManyWaiters
            | Refusal::TooManyWaitersOfKey
            | Refusal::TooManyPlaces
            | Refusal::TooManyPlacesOfOwner
            | Refusal::TooManyPlaceBytes
            | Refusal::TooManyWaiterBytes
            | Refusal::OtherMode
            | Refusal::OtherTake
            | Refusal::OtherKeys
            | Refusal::HoldsShares
            | Refusal::QueuedUpgrade
            | Refusal::Grace(_)
            // Its text is that of its cycle.
            | Refusal::Deadlock(_) => {}
        }
    }
    let mute = [Mute::Denied, Mute::Elsewhere].map(ServeError::Mute);
    let error = [ServeError::WrongType, ServeError::Replica, ServeError::CheckedElsewhere, ServeError::Nested]
        .into_iter()
        .chain(mute)
        .chain(refusals.map(ServeError::Refused));
    let away = [RedirectReason::Demoted, RedirectReason::SlotGone, RedirectReason::Failed]
        .map(|away| text_of_redirect(away).to_owned());
    let texts = complaints.iter().map(ArgError::to_string).chain(error.map(|error| text_of(&error).into_owned()));
    let spoken = [text_of_deadlock(&cycle, Db(0), |_| true), TAKEN_OVER.to_owned(), NO_REPLY.to_owned()];
    texts.chain(away).chain(spoken).collect()
}

#[test]
fn the_page_of_errors_lists_every_error_word_by_word() {
    // What could go wrong: a program compares a text that the page got wrong.
    let shown: BTreeSet<String> = names(ERRORS).into_iter().map(str::to_owned).collect();
    assert_eq!(shown, every_error());
}

fn written(spec: &ConfigSpec) -> (String, String) {
    match spec.kind {
        ConfigKind::YesNo => {
            let when = if spec.fixed { "; at the start only" } else { "" };
            (if spec.default == 0 { "no" } else { "yes" }.to_owned(), format!("yes, no{when}"))
        }
        ConfigKind::Number(min, max) => (spec.default.to_string(), format!("{min} to {max}")),
    }
}

#[test]
fn the_page_of_configurations_lists_each_with_unit_default_range_and_reason() {
    let shown: Vec<Vec<String>> =
        table(CONFIGURATION).iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
    let real: Vec<Vec<String>> = TABLE
        .iter()
        .map(|spec| {
            let (default, range) = written(spec);
            vec![format!("`lock.{}`", spec.name), spec.unit.to_owned(), default, range, spec.reason.to_owned()]
        })
        .collect();
    assert_eq!(shown, real);
}

#[test]
fn redis_conf_sets_every_configuration_to_its_default() {
    // What could go wrong: a production file that lacks an option, or that sets another value than it says.
    let shown: BTreeSet<&str> = REDIS_CONF.lines().filter(|line| line.starts_with("lock.")).collect();
    let real: BTreeSet<String> = TABLE.iter().map(|spec| format!("lock.{} {}", spec.name, written(spec).0)).collect();
    assert_eq!(shown.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), real);
}

#[test]
fn a_server_starts_from_redis_conf_as_it_is() {
    // What could go wrong: a line that some server does not take, or a value that is not in force.
    let text = REDIS_CONF.replace("./target/release/libredis_lock.so", module().to_str().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    std::fs::write(&file, text).unwrap();
    let (_server, mut conn) = Server::setup().without_module().config_file(&file).connected();
    for spec in TABLE {
        let pair: Vec<String> = conn.get(&["CONFIG", "GET", &format!("lock.{}", spec.name)]);
        assert_eq!(pair[1], written(spec).0, "{}", spec.name);
    }
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "a"]).is_some());
    assert_eq!(conn.get::<Vec<String>>(&["CONFIG", "GET", "maxmemory-policy"])[1], "noeviction");
    assert_eq!(conn.get::<Vec<String>>(&["CONFIG", "GET", "protected-mode"])[1], "yes");
}

#[test]
fn the_page_of_fields_names_each_field_that_a_server_shows() {
    // What could go wrong: a field that no page explains, or that a dashboard searches for in vain.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "NOTE", "n"]);
    let mut waits = server.connect();
    waits.send(&["LOCK.ACQUIRE", "k", "b", "BLOCK", "0"]);
    wait_for("somebody to wait", || conn.info_number("lock", "lock_waiters") == 1);
    let first = |fields: &Fields, name: &str| {
        let Value::Array(rows) = fields.value(name) else { panic!("an array") };
        Fields::from(rows[0].clone())
    };
    let lock = Fields::from(conn.call(&["LOCK.INFO", "k"]).unwrap());
    let top = Fields::from(conn.call(&["LOCK.TOP"]).unwrap());
    conn.int(&["LOCK.BREAK", "k"]);
    let Value::Array(lost) = conn.call(&["LOCK.LOG"]).unwrap() else { panic!("an array") };
    for (heading, real) in [
        ("LOCK.INFO", &lock),
        ("Holders of LOCK.INFO", &first(&lock, "holders")),
        ("Waiters of LOCK.INFO", &first(&lock, "waiters")),
        ("LOCK.TOP", &top),
        ("Waits of LOCK.TOP", &first(&top, "waits")),
        ("Keys of LOCK.TOP", &first(&top, "keys")),
        ("LOCK.LOG", &Fields::from(lost[0].clone())),
    ] {
        assert_eq!(names(below(FIELDS, heading)), real.names(), "{heading}");
    }

    let text: String = conn.get(&["INFO", "lock"]);
    let real: BTreeSet<&str> = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let section = below(FIELDS, "INFO lock");
    let shown: Vec<&str> = [section, section.split_once("\nAs things are now:\n").unwrap().1].map(names).concat();
    assert_eq!(shown.len(), real.len(), "none is there twice");
    assert_eq!(shown.into_iter().collect::<BTreeSet<_>>(), real);
}

#[test]
fn the_page_of_events_names_every_keyspace_event() {
    let causes = [Cause::Acquire, Cause::Release, Cause::Extend, Cause::Lapse, Cause::Break, Cause::Replicated];
    let real: Vec<&str> = causes
        .iter()
        .filter_map(|cause| step::event_of(*cause, true))
        .chain([step::WAIT])
        .map(|name| name.to_str().unwrap())
        .collect();
    assert_eq!(names(EVENTS), real);
}
