//! The command line: what there is, and what of it makes sense. The manual page is made from this, too.

use crate::exit;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::ffi::OsString;
use std::time::Duration;

/// What is to be done.
pub(crate) enum Asked {
    Run(Box<Run>),
    Check(Check),
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
        // Help that nobody can read is no error.
        drop(error.print());
        if error.use_stderr() { exit::USAGE } else { 0 }
    })?;
    let asked = match matches.subcommand() {
        Some(("check", matches)) => Ok(Asked::Check(check_of(matches))),
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

/// A time as people write it: `30s`, `1.5h`, `1m30s`, `500ms`, `2d`; a number alone means seconds.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no time such as 30s, 500ms, 5m, 1h30m or 2d");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) =
            rest.split_at(rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            // Without a unit it is all of the text.
            "" if number == text => 1.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let time = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(time).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// A time above zero.
fn some_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        none if none < Duration::from_millis(1) => Err("must be at least 1ms".to_owned()),
        some => Ok(some),
    }
}

fn option(name: &'static str, short: Option<char>, value: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).value_name(value).help(help);
    match short {
        Some(short) => arg.short(short),
        None => arg,
    }
}

fn flag(name: &'static str, short: Option<char>, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    match short {
        Some(short) => arg.short(short),
        None => arg,
    }
}

fn with_servers(command: Command) -> Command {
    let url = "redis://, rediss://, unix:// [$REDIS_LOCK_URL]";
    command.arg(option("url", Some('u'), "URL", url).action(ArgAction::Append)).arg(option(
        "sentinel",
        None,
        "NAME",
        "The URLs are Sentinels, which know NAME",
    ))
}

/// The whole command line.
pub(crate) fn cli() -> Command {
    let key = || Arg::new("key").value_name("KEY").value_parser(value_parser!(OsString)).required(true);
    let seconds = |arg: Arg| arg.value_parser(some_time);
    let run = Command::new("run")
        .about("Run a command while a lock is held")
        .override_usage("redis-lock run [OPTIONS] KEY [--] COMMAND [ARG ...]\n       redis-lock run [OPTIONS] KEY -c 'SHELL COMMAND'")
        .arg(option("wait", Some('w'), "TIME", "Wait so long at most [as long as it takes]").value_parser(time))
        .arg(flag("nonblock", Some('n'), "Do not wait").conflicts_with("wait"))
        .arg(flag("shared", Some('s'), "Share the lock with others that do"))
        .arg(option("limit", Some('N'), "N", "Share it with N-1 others at most")
            .value_parser(value_parser!(u32).range(1..)).conflicts_with("shared"))
        .arg(option("take", None, "K", "Count as K of these N [1]")
            .value_parser(value_parser!(u32).range(1..=5)).requires("limit"))
        .arg(seconds(option("lease", Some('t'), "TIME", "How long the lock outlives a crash [30s]")))
        .arg(seconds(option("kill-after", Some('k'), "TIME", "From TERM to KILL if the lock is lost [5s]")))
        .arg(seconds(option("session", None, "TIME", "Outlive a broken connection only so long")))
        .arg(seconds(option("at-least", None, "TIME", "Keep the lock so long, even after COMMAND")))
        .arg(seconds(option("max", None, "TIME", "End COMMAND after so long (exit 124)")))
        .arg(option("note", None, "TEXT", "For people: LOCK.INFO and LOCK.LOG show it"))
        .arg(option("owner-prefix", None, "TEXT", "Begin the owner's name with this"))
        .arg(option("conflict-exit", Some('E'), "CODE", "Exit code if others hold the lock [75]")
            .value_parser(value_parser!(u8)))
        .arg(flag("no-kill", None, "Let COMMAND go on when the lock is lost (exit 76)"))
        .arg(option("shell", Some('c'), "LINE", "Run LINE with /bin/sh").long(None::<&str>)
            .value_parser(value_parser!(OsString)).conflicts_with("command"))
        .arg(flag("verbose", Some('v'), "Say what happens"))
        .arg(flag("quiet", Some('q'), "Say errors only").conflicts_with("verbose"))
        .arg(key().hide(true))
        .arg(Arg::new("command").value_name("COMMAND").value_parser(value_parser!(OsString)).num_args(1..)
            .trailing_var_arg(true).required_unless_present("shell").hide(true))
        .after_help("TIME: 30s, 500ms, 5m, 1h30m; a number is seconds. Password: $REDISCLI_AUTH.\n\
             COMMAND sees REDIS_LOCK_KEY, _OWNER, _FENCE and _MODE (READ or WRITE).\n\
             Exit: COMMAND's own, 128+n for signal n; 75 not got, 76 lost, 124 --max,\n\
             69 no server or no module, 64 usage, 126 and 127 COMMAND cannot be run.");
    let check = Command::new("check")
        .about("Exit 0 if OWNER holds KEY under FENCE, else 1")
        .override_usage("redis-lock check [OPTIONS] KEY OWNER FENCE")
        .arg(key().hide(true))
        .arg(Arg::new("owner").value_name("OWNER").required(true).hide(true))
        .arg(Arg::new("fence").value_name("FENCE").value_parser(value_parser!(u64)).required(true).hide(true))
        .after_help("Exit: 0 held, 1 not held, 69 no server or no module, 64 usage.");
    Command::new("redis-lock")
        .about("Locks of Redis and Valkey servers with the module redis-lock, for shells")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(with_servers(run))
        .subcommand(with_servers(check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let ms = |text: &str| time(text).map(|time| time.as_millis());
        for (text, expected) in
            [("30", 30_000), ("1.5", 1500), ("500ms", 500), ("1h30m", 5_400_000), ("2d", 172_800_000)]
        {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        assert_eq!(ms("0"), Ok(0));
        for text in ["", "s", "-1s", "1x", "1h30", "1 s", "1..2s", "99999999999999999999d"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(some_time("0").is_err() && some_time("1ms").is_ok());
    }
}
