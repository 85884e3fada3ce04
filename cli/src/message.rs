//! What parent and keeper tell each other.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// From the parent to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The wait is to end.
    Leave,
    /// The command has this process group. It is not running yet.
    Started(u32),
    /// Renew the lock now, and say when it is done, by this number.
    Renew(u64),
    /// The command was told to end.
    Ending,
    /// The command has ended: give the lock back.
    Ended,
    /// There was no command: give the lock back at once.
    NotRun,
}

/// From the keeper to the parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The lock is held.
    Granted { fence: u64, owner: String },
    /// Others hold it.
    Conflict,
    /// It cannot be had: exit code and text.
    Failed(u8, String),
    /// The wait has ended.
    Left,
    /// The keeper knows the process group of the command.
    Ready,
    /// The lock was renewed after this order.
    Renewed(u64),
    /// The lock is lost.
    Lost,
    /// A renewal failed, and is tried again: why.
    NotRenewed(String),
    /// The lock was renewed after all.
    RenewedAgain,
    /// The lock was given back; or it stays for so long, as --at-least has it.
    Released(Duration),
    /// The lock was not given back: why.
    Unreleased(String),
    /// For people.
    Warning(String),
}
