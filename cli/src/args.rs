//! What the user asks for. Refuses what makes no sense.

use crate::cli::cli;
use crate::exit;
use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What is to be done.
pub(crate) enum Asked {
    Run(Box<Run>),
    Check(Check),
    Operator(Operator),
    #[cfg(feature = "top")]
    Top(Top),
    Renew(Kept),
    Release(Kept),
    /// What lets a shell complete the words of a command line.
    Completion(Shell),
}

/// A command under a lock, or what stands in its place.
pub(crate) struct Run {
    pub(crate) servers: Servers,
    pub(crate) key: OsString,
    pub(crate) purpose: Purpose,
    /// The program and its arguments; none where another purpose has its own.
    pub(crate) command: Vec<OsString>,
    /// None: as long as it takes.
    pub(crate) wait: Option<Duration>,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) take: u32,
    /// The file that is to hold the lock, if one is.
    pub(crate) token: Option<PathBuf>,
    /// For programs.
    pub(crate) json: bool,
    pub(crate) lease: Duration,
    pub(crate) session: Option<Duration>,
    pub(crate) kill_after: Duration,
    pub(crate) at_least: Option<Duration>,
    pub(crate) max: Option<Duration>,
    pub(crate) note: Option<String>,
    pub(crate) owner_prefix: String,
    pub(crate) conflict_exit: u8,
    pub(crate) no_kill: bool,
    pub(crate) verbose: bool,
    pub(crate) quiet: bool,
}

/// What a lock is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Command,
    /// Others are told that it is held.
    Hold,
    /// It stays held when all is done here.
    Token,
}

/// A lock that is held by a file.
pub(crate) struct Kept {
    pub(crate) servers: Servers,
    pub(crate) token: PathBuf,
    /// None: that of the token.
    pub(crate) lease: Option<Duration>,
}

/// A question about a lock.
pub(crate) struct Check {
    pub(crate) servers: Servers,
    pub(crate) key: OsString,
    pub(crate) owner: String,
    pub(crate) fence: u64,
}

/// What an operator wants to know, or to be done.
pub(crate) struct Operator {
    pub(crate) servers: Servers,
    /// For programs.
    pub(crate) json: bool,
    pub(crate) task: Task,
}

/// What it is.
pub(crate) enum Task {
    /// The locks whose keys are like this.
    List { pattern: OsString },
    /// One lock.
    Show { key: OsString },
    /// The holds that were lost last, so many of each server at most.
    Log { count: u32 },
    /// The end of all holds of a lock, or of this owner's.
    Break { key: OsString, owner: Option<String>, is_sure: bool },
}

/// A screen of the locks that are waited for.
#[cfg(feature = "top")]
pub(crate) struct Top {
    pub(crate) servers: Servers,
    /// How long after a refresh the next one comes.
    pub(crate) interval: Duration,
    pub(crate) no_color: bool,
}

/// Where the lock is kept, in the user's words.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Servers {
    #[serde(rename = "servers")]
    pub(crate) urls: Vec<String>,
    /// The URLs are those of Sentinels, which know the primary by this name.
    pub(crate) sentinel: Option<String>,
}

/// The shortest lease that leaves time to renew it.
const LEASE_MIN: Duration = Duration::from_secs(2);
const SHORT_LEASE: &str = "--lease must be at least 2s";

impl Run {
    /// How long a hold surely lasts after a request.
    pub(crate) fn lasts(&self) -> Duration {
        self.session.map_or(self.lease, |session| session.min(self.lease))
    }

    /// The mode, in the word of the server.
    pub(crate) fn mode(&self) -> &'static str {
        if self.shared || self.limit.is_some() { "READ" } else { "WRITE" }
    }
}

/// Reads the command line. What makes no sense, and what only asks for help, is answered here: with an exit code.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Asked, u8> {
    let all = cli();
    let of = words.iter().skip(1).find_map(|word| all.find_subcommand(word));
    let of = of.map(|command| format!(" {}", command.get_name())).unwrap_or_default();
    let matches = cli().try_get_matches_from(words_of_help(words)).map_err(|error| {
        if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            exit::say(format_args!("{} (see redis-lock{of} --help)", line_of(&error)));
        } else {
            // Help that cannot be printed is no error.
            drop(error.print());
        }
        if error.use_stderr() { exit::USAGE } else { 0 }
    })?;
    let command = matches.subcommand_name().unwrap_or("run");
    let asked = match matches.subcommand() {
        Some(("check", matches)) => check_of(matches).map(Asked::Check),
        Some(("completion", matches)) => Ok(Asked::Completion(*matches.get_one("shell").unwrap_or(&Shell::Bash))),
        Some((name @ ("ls" | "info" | "log" | "break"), matches)) => operator_of(name, matches).map(Asked::Operator),
        #[cfg(feature = "top")]
        Some(("top", matches)) => top_of(matches).map(Asked::Top),
        Some(("renew", matches)) => kept_of(matches).map(Asked::Renew),
        Some(("release", matches)) => kept_of(matches).map(Asked::Release),
        Some((name, matches)) => run_of(name, matches).map(|run| Asked::Run(Box::new(run))),
        None => Err("run or check is missing".to_owned()),
    };
    asked.map_err(|why| {
        exit::say(format_args!("{why} (see redis-lock {command} --help)"));
        exit::USAGE
    })
}

/// `help run` is `run --help`.
fn words_of_help(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// What is wrong with the words, in one line.
fn line_of(error: &clap::Error) -> String {
    let value = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let name = value(ContextKind::InvalidArg).unwrap_or_default();
    let name = name.split(' ').next().unwrap_or_default();
    match (error.kind(), std::error::Error::source(error)) {
        (ErrorKind::ValueValidation, Some(why)) => return format!("{name}: {why}"),
        (ErrorKind::ArgumentConflict, _) if name == "-c" => return "-c takes one argument: quote the line".to_owned(),
        _ => {}
    }
    // The first paragraph. What follows is the usage, and advice that would be wrong here.
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ").replacen("error: ", "", 1);
    let similar = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    match similar.into_iter().find_map(value) {
        Some(similar) => format!("{line}; is it {similar}?"),
        None => line,
    }
}

/// Of `run`, and of `hold` and `acquire`, which have fewer options.
fn run_of(name: &str, matches: &ArgMatches) -> Result<Run, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let time = |name: &str| matches.try_get_one::<Duration>(name).ok().flatten().copied();
    let is_set = |name: &str| matches.try_get_one(name).is_ok_and(|flag| flag == Some(&true));
    let key = matches.get_one::<OsString>("key").cloned().unwrap_or_default();
    let lease = time("lease").unwrap_or(Duration::from_secs(30));
    let session = time("session");
    let (purpose, command) = match name {
        "acquire" if key.to_str().is_none() => return Err("KEY must be UTF-8".to_owned()),
        "acquire" => (Purpose::Token, Vec::new()),
        "hold" => (Purpose::Hold, Vec::new()),
        _ => (Purpose::Command, command_of(matches)),
    };
    // Not every process that reads it stays in the folder of the user.
    let token = matches.try_get_one::<PathBuf>("token").ok().flatten();
    let token = token.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    let least = session.map_or(lease, |session| session.min(lease));
    let run = Run {
        servers: servers_of(matches),
        key,
        purpose,
        command,
        wait: if matches.get_flag("nonblock") { Some(Duration::ZERO) } else { time("wait") },
        shared: matches.get_flag("shared"),
        limit: matches.get_one("limit").copied(),
        take: matches.get_one("take").copied().unwrap_or(1),
        token,
        json: is_set("json"),
        lease,
        session,
        kill_after: time("kill-after").unwrap_or(Duration::from_secs(5).min(least / 3)),
        at_least: if purpose == Purpose::Token { Some(lease) } else { time("at-least") },
        max: time("max"),
        note: text("note"),
        owner_prefix: separated(text("owner-prefix").unwrap_or_default()),
        conflict_exit: exit_code(matches),
        no_kill: is_set("no-kill"),
        verbose: matches.get_flag("verbose"),
        quiet: matches.get_flag("quiet"),
    };
    match &run {
        _ if run.key.is_empty() => Err("KEY is empty"),
        _ if run.lease < LEASE_MIN => Err(SHORT_LEASE),
        _ if run.limit.is_some_and(|limit| run.take > limit) => Err("--take must be at most --limit"),
        _ if session.is_some_and(|session| session < Duration::from_secs(1) || session < 3 * run.kill_after) => {
            Err("--session must be at least 1s, and 3 times --kill-after")
        }
        _ if lease < 3 * run.kill_after => Err("--lease must be at least 3 times --kill-after"),
        _ if run.owner_prefix.contains(char::is_control) => Err("--owner-prefix must not have control characters"),
        _ if run.at_least.is_some() && session.is_some() => Err("--at-least cannot keep a lock that has a --session"),
        _ => return Ok(run),
    }
    .map_err(str::to_owned)
}

fn command_of(matches: &ArgMatches) -> Vec<OsString> {
    match matches.get_one::<OsString>("shell") {
        Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        None => matches.get_many::<OsString>("command").unwrap_or_default().cloned().collect(),
    }
}

fn kept_of(matches: &ArgMatches) -> Result<Kept, String> {
    let lease = matches.try_get_one::<Duration>("lease").ok().flatten().copied();
    let token = matches.get_one::<PathBuf>("token").cloned().unwrap_or_default();
    if lease.is_some_and(|lease| lease < LEASE_MIN) {
        return Err(SHORT_LEASE.to_owned());
    }
    Ok(Kept { servers: servers_of(matches), token, lease })
}

fn exit_code(matches: &ArgMatches) -> u8 {
    let code = matches.get_one::<u32>("conflict-exit").and_then(|code| u8::try_from(*code).ok());
    code.unwrap_or(exit::CONFLICT)
}

/// Between the prefix and the rest of the owner's name stands a colon, or what the prefix itself ends with.
fn separated(prefix: String) -> String {
    if prefix.ends_with(char::is_alphanumeric) { prefix + ":" } else { prefix }
}

/// Of the command line, or of the environment that `run` makes.
fn check_of(matches: &ArgMatches) -> Result<Check, String> {
    const OUTSIDE: &str = "not inside redis-lock run?";
    let from_environment = !matches.contains_id("key");
    let word = |given: Option<OsString>, name: &str| match given {
        Some(word) if word.is_empty() => Err(format!("{name} is empty: {OUTSIDE}")),
        Some(word) => Ok(word),
        None if from_environment => {
            let name = format!("REDIS_LOCK_{name}");
            std::env::var_os(&name)
                .filter(|word| !word.is_empty())
                .ok_or_else(|| format!("{name} is not set: {OUTSIDE}"))
        }
        None => Err(format!("{name} is missing")),
    };
    let key = matches.get_one::<OsString>("key").cloned();
    if key.as_ref().is_some_and(|key| key.is_empty()) {
        return Err("KEY is empty".to_owned());
    }
    let text = |name: &str| matches.get_one::<String>(name).map(OsString::from);
    let (key, owner) = (word(key, "KEY")?, word(text("owner"), "OWNER")?);
    let fence = word(text("fence"), "FENCE")?;
    let owner = owner.into_string().map_err(|_| "OWNER is no text")?;
    let fence = fence.to_str().and_then(|fence| fence.parse().ok());
    let fence = fence.ok_or("FENCE must be a whole number")?;
    Ok(Check { servers: servers_of(matches), key, owner, fence })
}

fn operator_of(name: &str, matches: &ArgMatches) -> Result<Operator, String> {
    let word = |name: &str| matches.get_one::<OsString>(name).cloned().unwrap_or_default();
    let task = match name {
        "ls" if matches.contains_id("pattern") => Task::List { pattern: word("pattern") },
        "ls" => Task::List { pattern: "*".into() },
        "log" => Task::Log { count: matches.get_one("count").copied().unwrap_or(10) },
        _ if word("key").is_empty() => return Err("KEY is empty".to_owned()),
        "info" => Task::Show { key: word("key") },
        _ => {
            Task::Break { key: word("key"), owner: matches.get_one("owner").cloned(), is_sure: matches.get_flag("yes") }
        }
    };
    Ok(Operator { servers: servers_of(matches), json: matches.get_flag("json"), task })
}

#[cfg(feature = "top")]
fn top_of(matches: &ArgMatches) -> Result<Top, String> {
    let interval = matches.get_one("interval").copied().unwrap_or(Duration::from_secs(2));
    if interval < Duration::from_millis(100) {
        return Err("--interval must be at least 100ms".to_owned());
    }
    Ok(Top { servers: servers_of(matches), interval, no_color: matches.get_flag("no-color") })
}

fn servers_of(matches: &ArgMatches) -> Servers {
    let urls = matches.get_many::<String>("url").unwrap_or_default().cloned().collect();
    Servers { urls, sentinel: matches.get_one::<String>("sentinel").cloned() }
}
