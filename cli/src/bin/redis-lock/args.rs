//! What the user asks for. Refuses what makes no sense.

use crate::cli::cli;
use crate::exit;
use clap::ArgMatches;
use clap_complete::Shell;
use std::ffi::OsString;
use std::time::Duration;

/// What is to be done.
pub(crate) enum Asked {
    Run(Box<Run>),
    Check(Check),
    /// What lets a shell complete the words of a command line.
    Completion(Shell),
}

/// A command under a lock.
pub(crate) struct Run {
    pub(crate) servers: Servers,
    pub(crate) key: OsString,
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// None: as long as it takes.
    pub(crate) wait: Option<Duration>,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) take: u32,
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

/// A question about a lock.
pub(crate) struct Check {
    pub(crate) servers: Servers,
    pub(crate) key: OsString,
    pub(crate) owner: String,
    pub(crate) fence: u64,
}

/// Where the lock is kept, in the user's words.
pub(crate) struct Servers {
    pub(crate) urls: Vec<String>,
    /// The URLs are those of Sentinels, which know the primary by this name.
    pub(crate) sentinel: Option<String>,
}

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
    let matches = cli().try_get_matches_from(words).map_err(|error| {
        // Help that cannot be printed is no error.
        drop(error.print());
        if error.use_stderr() { exit::USAGE } else { 0 }
    })?;
    let asked = match matches.subcommand() {
        Some(("check", matches)) => Ok(Asked::Check(check_of(matches))),
        Some(("completion", matches)) => Ok(Asked::Completion(*matches.get_one("shell").unwrap_or(&Shell::Bash))),
        Some((_, matches)) => run_of(matches).map(|run| Asked::Run(Box::new(run))),
        None => Err("run or check is missing".to_owned()),
    };
    asked.map_err(|why| {
        exit::say(format_args!("{why} (see redis-lock run --help)"));
        exit::USAGE
    })
}

fn run_of(matches: &ArgMatches) -> Result<Run, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let time = |name: &str| matches.get_one::<Duration>(name).copied();
    let shell = |line: &OsString| vec!["/bin/sh".into(), "-c".into(), line.clone()];
    let command = match matches.get_one::<OsString>("shell") {
        Some(line) => shell(line),
        None => matches.get_many::<OsString>("command").unwrap_or_default().cloned().collect(),
    };
    let lease = time("lease").unwrap_or(Duration::from_secs(30));
    let session = time("session");
    let least = session.map_or(lease, |session| session.min(lease));
    let run = Run {
        servers: servers_of(matches),
        key: matches.get_one::<OsString>("key").cloned().unwrap_or_default(),
        command,
        wait: if matches.get_flag("nonblock") { Some(Duration::ZERO) } else { time("wait") },
        shared: matches.get_flag("shared"),
        limit: matches.get_one("limit").copied(),
        take: matches.get_one("take").copied().unwrap_or(1),
        lease,
        session,
        kill_after: time("kill-after").unwrap_or(Duration::from_secs(5).min(least / 3)),
        at_least: time("at-least"),
        max: time("max"),
        note: text("note"),
        owner_prefix: text("owner-prefix").unwrap_or_default(),
        conflict_exit: matches.get_one("conflict-exit").copied().unwrap_or(exit::CONFLICT),
        no_kill: matches.get_flag("no-kill"),
        verbose: matches.get_flag("verbose"),
        quiet: matches.get_flag("quiet"),
    };
    match &run {
        _ if run.lease < Duration::from_secs(2) => Err("--lease must be at least 2s"),
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

fn check_of(matches: &ArgMatches) -> Check {
    Check {
        servers: servers_of(matches),
        key: matches.get_one::<OsString>("key").cloned().unwrap_or_default(),
        owner: matches.get_one::<String>("owner").cloned().unwrap_or_default(),
        fence: matches.get_one("fence").copied().unwrap_or_default(),
    }
}

fn servers_of(matches: &ArgMatches) -> Servers {
    let urls = matches.get_many::<String>("url").unwrap_or_default().cloned().collect();
    Servers { urls, sentinel: matches.get_one::<String>("sentinel").cloned() }
}
