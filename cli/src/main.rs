//! `redis-lock run`: a command under a lock. `redis-lock check`: is a lock held? `redis-lock ls` and more.
//!
//! Three roles of one program. The *parent* is what the user started: it has the command, the signals and the terminal,
//! and no network. The *keeper* has the network: it takes the lock, renews it, gives it back. The *starter* becomes the
//! command as soon as both know its process group. Parent and keeper each end the command in time, whatever happens to
//! the other.
//!
//! To be read in this order: `args` for what can be asked for; `parent` and `supervise`; `keeper` and `acquire`; then
//! `starter`, or `held` where there is no command. `message` is what parent and keeper tell each other. Operators are
//! answered by one process: `operator`, `broken` and `top`, which ask the servers of `nodes`; so does `kept` for
//! tokens. Each of the other files serves one of these.

#[cfg(not(target_os = "linux"))]
compile_error!("redis-lock needs Linux: signals of a dying parent, timers that count suspended time, /proc");

mod acquire;
mod args;
mod backend;
mod broken;
mod check;
mod cli;
mod command;
mod completion;
mod events;
mod exit;
mod followed;
mod group;
mod held;
mod keeper;
mod kept;
mod manual;
mod message;
mod nodes;
mod notices;
mod operator;
mod parent;
mod reply;
mod shown;
mod speaker;
mod starter;
mod supervise;
mod sys;
mod table;
mod terminal;
mod time;
mod timer;
mod token;
#[cfg(feature = "top")]
mod top;
mod wire;

use args::Asked;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let role = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let code = match role {
        starter::ROLE => starter::start(&words[2..]),
        manual::ROLE => manual::print(),
        held::ROLE | keeper::ROLE => {
            let is_keeper = role == keeper::ROLE;
            words.remove(1);
            match args::parse(words) {
                Ok(Asked::Run(run)) if is_keeper => keeper::keep(*run),
                Ok(Asked::Run(run)) => held::start(&run),
                _ => exit::USAGE,
            }
        }
        _ => match args::parse(words) {
            Ok(Asked::Run(run)) => parent::run(&run),
            Ok(Asked::Check(check)) => check::check(&check),
            Ok(Asked::Renew(kept)) => kept::renew(&kept),
            Ok(Asked::Release(kept)) => kept::release(&kept),
            Ok(Asked::Operator(operator)) => operator::answer(&operator),
            #[cfg(feature = "top")]
            Ok(Asked::Top(top)) => top::show(top),
            Ok(Asked::Completion(shell)) => completion::print(shell),
            Err(code) => code,
        },
    };
    speaker::finish();
    ExitCode::from(code)
}
