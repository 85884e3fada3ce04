//! What parent and keeper tell each other, a line each.

use std::time::Duration;

/// What can be sent over a wire.
pub(crate) trait Message: Sized {
    /// Without a line break.
    fn line(&self) -> String;
    /// None for a line that is no message.
    fn of(line: &str) -> Option<Self>;
}

/// From the parent to the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl Message for Order {
    fn line(&self) -> String {
        match self {
            Order::Leave => "leave".to_owned(),
            Order::Started(group) => format!("started {group}"),
            Order::Renew(number) => format!("renew {number}"),
            Order::Ending => "ending".to_owned(),
            Order::Ended => "ended".to_owned(),
            Order::NotRun => "not-run".to_owned(),
        }
    }

    fn of(line: &str) -> Option<Order> {
        Some(match line.split_once(' ').unwrap_or((line, "")) {
            ("leave", _) => Order::Leave,
            ("started", group) => Order::Started(group.parse().ok()?),
            ("renew", number) => Order::Renew(number.parse().ok()?),
            ("ending", _) => Order::Ending,
            ("ended", _) => Order::Ended,
            ("not-run", _) => Order::NotRun,
            _ => return None,
        })
    }
}

impl Message for Report {
    fn line(&self) -> String {
        let text = match self {
            Report::Granted { fence, owner } => format!("granted {fence} {owner}"),
            Report::Conflict => "conflict".to_owned(),
            Report::Failed(code, text) => format!("failed {code} {text}"),
            Report::Left => "left".to_owned(),
            Report::Ready => "ready".to_owned(),
            Report::Renewed(number) => format!("renewed {number}"),
            Report::Lost => "lost".to_owned(),
            Report::NotRenewed(why) => format!("not-renewed {why}"),
            Report::RenewedAgain => "renewed-again".to_owned(),
            Report::Released(stays) => format!("released {}", stays.as_millis()),
            Report::Unreleased(why) => format!("unreleased {why}"),
            Report::Warning(text) => format!("warning {text}"),
        };
        text.replace(['\n', '\r'], " ")
    }

    fn of(line: &str) -> Option<Report> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "granted" => {
                let (fence, owner) = rest.split_once(' ')?;
                Report::Granted { fence: fence.parse().ok()?, owner: owner.to_owned() }
            }
            "conflict" => Report::Conflict,
            "failed" => {
                let (code, text) = rest.split_once(' ')?;
                Report::Failed(code.parse().ok()?, text.to_owned())
            }
            "left" => Report::Left,
            "ready" => Report::Ready,
            "renewed" => Report::Renewed(rest.parse().ok()?),
            "lost" => Report::Lost,
            "not-renewed" => Report::NotRenewed(rest.to_owned()),
            "renewed-again" => Report::RenewedAgain,
            "released" => Report::Released(Duration::from_millis(rest.parse().ok()?)),
            "unreleased" => Report::Unreleased(rest.to_owned()),
            "warning" => Report::Warning(rest.to_owned()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        for order in [Order::Leave, Order::Started(7), Order::Renew(8), Order::Ending, Order::Ended, Order::NotRun] {
            assert_eq!(Order::of(&order.line()), Some(order));
        }
        let text = || "no answer: a b".to_owned();
        for report in [
            Report::Granted { fence: u64::MAX, owner: "a b:1:c".to_owned() },
            Report::Conflict,
            Report::Failed(69, text()),
            Report::Left,
            Report::Ready,
            Report::Renewed(8),
            Report::Lost,
            Report::NotRenewed(text()),
            Report::RenewedAgain,
            Report::Released(Duration::from_millis(1500)),
            Report::Unreleased(text()),
            Report::Warning(text()),
        ] {
            assert_eq!(Report::of(&report.line()), Some(report));
        }
        assert_eq!(Report::Warning("a\nb".to_owned()).line(), "warning a b");
        assert_eq!(Order::of("nonsense"), None);
    }
}
