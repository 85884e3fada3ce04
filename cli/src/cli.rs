//! The command line: which words there are, and what help says of them. The manual page and the completion of shells
//! are made from this, too. What the words mean together is decided in [`args`](crate::args).

use crate::time::{number, some_time, time};
use clap::{Arg, ArgAction, Command, value_parser};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// The whole command line.
pub(crate) fn cli() -> Command {
    let key = || Arg::new("key").value_name("KEY").value_parser(value_parser!(OsString)).required(true);
    // What is too short is told with the true minimum.
    let any_time = |arg: Arg| arg.value_parser(time).allow_negative_numbers(true);
    let seconds = |arg: Arg| arg.value_parser(some_time).allow_negative_numbers(true);
    let number = |arg: Arg, range| arg.value_parser(number(range)).allow_negative_numbers(true);
    let lease = |help| any_time(option("lease", Some('t'), "TIME", help));
    let session = || any_time(option("session", None, "TIME", "Free the lock TIME after the connection breaks"));
    let token = || {
        option("token", None, "FILE", "The file that says who holds it")
            .required(true)
            .value_parser(value_parser!(PathBuf))
    };
    // Which lock, and on what terms.
    let terms = |command: Command| {
        command
            .arg(
                any_time(option("wait", Some('w'), "TIME", "Wait at most TIME [as long as it takes]")).alias("timeout"),
            )
            .arg(flag("nonblock", Some('n'), "Do not wait").conflicts_with("wait").alias("nb"))
            .arg(flag("shared", Some('s'), "Share the lock with others that use -s"))
            .arg(
                number(option("limit", Some('N'), "N", "Let at most N hold it at once"), 1..=u32::MAX)
                    .conflicts_with("shared"),
            )
            .arg(number(option("take", None, "K", "Take K of the N [1]"), 1..=5).requires("limit"))
            .arg(lease("Free the lock TIME after a crash [30s]"))
            .arg(option("note", None, "TEXT", "Show TEXT in LOCK.INFO and LOCK.LOG"))
            .arg(option("owner-prefix", None, "TEXT", "Begin the owner's name with TEXT"))
            .arg(
                number(
                    option("conflict-exit", Some('E'), "CODE", "Exit with CODE if others hold the lock [75]"),
                    0..=255,
                )
                .alias("conflict-exit-code"),
            )
            .arg(flag("verbose", Some('v'), "Say what happens"))
            .arg(flag("quiet", Some('q'), "Say errors only").conflicts_with("verbose"))
            // What flock has, and does here in any case.
            .arg(
                flag("exclusive", Some('x'), "Hold the lock alone, as without -s and -N")
                    .short_alias('e')
                    .conflicts_with_all(["shared", "limit"])
                    .hide(true),
            )
            .arg(key().hide(true))
    };
    let run = terms(Command::new("run"))
        .about("Run a command while a lock is held")
        .override_usage("redis-lock run [OPTIONS] KEY [--] COMMAND [ARG ...]\n       redis-lock run [OPTIONS] KEY -c 'SHELL COMMAND'")
        .arg(seconds(option("kill-after", Some('k'), "TIME", "Send KILL TIME after TERM if the lock is lost [5s]")))
        .arg(session())
        .arg(seconds(option("at-least", None, "TIME", "Keep the lock for TIME, even after COMMAND")))
        .arg(seconds(option("max", None, "TIME", "End COMMAND after TIME (exit 124)")))
        .arg(flag("no-kill", None, "Let COMMAND go on when the lock is lost (exit 76)"))
        .arg(option("shell", Some('c'), "LINE", "Run LINE with /bin/sh").long(None::<&str>).alias("command")
            .value_parser(value_parser!(OsString)).conflicts_with("command"))
        .arg(Arg::new("command").value_name("COMMAND").value_parser(value_parser!(OsString)).num_args(1..)
            .trailing_var_arg(true).required_unless_present("shell").hide(true))
        .after_help("TIME: 30s, 500ms, 5m, 1h30m; a number is seconds. Password: $REDISCLI_AUTH.\n\
             Several URLs without --sentinel are those of a quorum.\n\
             COMMAND sees REDIS_LOCK_KEY, _OWNER, _FENCE and _MODE (READ or WRITE).\n\
             Exit: COMMAND's own, 128+n for signal n; 75 not got, 76 lost, 124 --max,\n\
             69 no server or no module, 64 usage, 126 and 127 COMMAND cannot be run.");
    let hold = with_json(terms(Command::new("hold")))
        .about("Hold a lock until the standard input ends")
        .override_usage("redis-lock hold [OPTIONS] KEY")
        .arg(session())
        .after_help(
            "It prints KEY, OWNER and FENCE, with tabs between, as soon as it holds the lock.\n\
             TERM and INT end it as well.\n\
             Exit: 0, 75 not got, 76 lost, 69 no server or no module, 64 usage,\n\
             128+n for signal n while it waits.",
        );
    let acquire = with_json(terms(Command::new("acquire")))
        .about("Take a lock that no process holds, but a file")
        .override_usage("redis-lock acquire [OPTIONS] --token FILE KEY")
        .arg(token())
        .after_help(
            "The lock is free again after the lease, unless it is renewed before.\n\
             Exit: 0, 75 not got, 73 FILE cannot be written or holds another lock,\n\
             else as hold.",
        );
    let renew = Command::new("renew")
        .about("Renew a lock that a file holds")
        .override_usage("redis-lock renew [OPTIONS] --token FILE")
        .arg(token())
        .arg(lease("Hold the lock for TIME from now [as acquired]"))
        .after_help(
            "Without a URL the servers are those of FILE.\n\
             Exit: 0 held, 76 lost, 69 no server or no module, 64 usage, no token in FILE.",
        );
    let release = Command::new("release")
        .about("Release a lock that a file holds, and remove the file")
        .override_usage("redis-lock release [OPTIONS] --token FILE")
        .arg(token())
        .after_help(
            "Without a URL the servers are those of FILE.\n\
             Exit: 0 released, 76 lost before, 69 no server or no module, 64 usage,\n\
             no token in FILE.",
        );
    let check = Command::new("check")
        .about("Exit 0 if OWNER holds KEY under FENCE, else 1")
        .override_usage("redis-lock check [OPTIONS] [KEY OWNER FENCE]")
        .arg(key().required(false).hide(true))
        .arg(Arg::new("owner").value_name("OWNER").hide(true))
        .arg(Arg::new("fence").value_name("FENCE").hide(true))
        .after_help(
            "Without KEY: those of the redis-lock run in which it is called.\n\
             Exit: 0 held, 1 not held, 69 no server or no module, 64 usage.",
        );
    let ls = Command::new("ls")
        .about("List the locks of the servers")
        .override_usage("redis-lock ls [OPTIONS] [PATTERN]")
        .arg(Arg::new("pattern").value_name("PATTERN").value_parser(value_parser!(OsString)).hide(true))
        .after_help(
            "PATTERN is one of SCAN: 'report:*'. It says how many keys it went through.\n\
             Only one database is searched: that of the URL.",
        );
    let info = Command::new("info")
        .about("Show who holds a lock, and who waits for it")
        .override_usage("redis-lock info [OPTIONS] KEY")
        .arg(key().hide(true));
    let log = Command::new("log")
        .about("Show the holds that were lost last")
        .arg(number(option("count", None, "N", "Show at most N of each server [10]"), 1..=u32::MAX));
    let end = Command::new("break")
        .about("End the holds of a lock, or the one of OWNER")
        .override_usage("redis-lock break [OPTIONS] KEY [OWNER]")
        .arg(flag("yes", None, "Do not ask"))
        .arg(key().hide(true))
        .arg(Arg::new("owner").value_name("OWNER").hide(true))
        .after_help(
            "It asks on the terminal first. Only those that it has shown lose the lock.\n\
             Exit: 0 broken, 1 not held or not wanted, 69 no server or no right, 64 usage.",
        );
    let top = Command::new("top")
        .about("Watch the locks that are waited for")
        .override_usage("redis-lock top [OPTIONS]")
        .arg(any_time(option("interval", None, "TIME", "Refresh TIME after TIME [2s]")))
        .arg(flag("no-color", None, "Show no colours, as with $NO_COLOR"))
        .after_help("Keys: q quit, s sort, / filter, enter look into a lock, b break it (it asks).");
    let completion = Command::new("completion")
        .about("Print what lets a shell complete these commands")
        .arg(Arg::new("shell").value_name("SHELL").value_parser(value_parser!(Shell)).required(true));
    Command::new("redis-lock")
        .about("Locks of Redis and Valkey servers with the module redis-lock, for shells")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        // Before the command as well as after it.
        .args(servers().map(|arg| arg.global(true)))
        .subcommands([run, check, hold, acquire, renew, release])
        .subcommands([ls, info, log, end].map(with_json))
        .subcommands(cfg!(feature = "top").then_some(top))
        .subcommand(completion)
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

fn with_json(command: Command) -> Command {
    command.arg(flag("json", None, "Print an object a line"))
}

fn servers() -> [Arg; 2] {
    let url = "redis://, rediss://, unix:// [$REDIS_LOCK_URL]";
    [
        option("url", Some('u'), "URL", url).action(ArgAction::Append),
        option("sentinel", None, "NAME", "The URLs are Sentinels, which know NAME"),
    ]
}
