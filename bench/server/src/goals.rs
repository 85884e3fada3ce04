//! What each figure is to be. One table: the programs print their verdicts by it, and the page is made from it.

use crate::row::Goal;
use serde_json::{Value, json};

/// A figure that has a bound, or that belongs beside those.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub name: &'static str,
    pub measured: Measured,
    pub limit: Limit,
}

/// Which program finds a figure, and which of its figures it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measured {
    /// A row of `rivals`: its group, how many commands are under way if that matters, and what it is beside.
    Ratio(&'static str, Option<usize>, &'static [&'static str]),
    /// A row of `rivals` that shows both figures beside their ratio.
    Memory,
    /// The server's CPU for a hand-off among so many clients, to that of a list's element.
    HandOff(usize),
    /// The instructions of the server for a lock that is taken and released.
    Instructions,
    /// Those of the module itself.
    Own,
}

/// On which servers there is a bound.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// On all of them the same.
    Everywhere(Goal),
    /// On Redis 7, and on the newer ones.
    ByAge(Goal, Goal),
    /// On Redis 7 alone.
    Redis7(Goal),
}

const fn goal(at_most: f64, aim: f64) -> Goal {
    Goal { at_most, aim: Some(aim) }
}

const fn at_most(at_most: f64) -> Goal {
    Goal { at_most, aim: None }
}

const BUSY: Option<usize> = Some(16);
const LONE: Option<usize> = Some(1);

const fn ratio(
    name: &'static str,
    measured: (&'static str, Option<usize>, &'static [&'static str]),
    goal: Goal,
) -> Bound {
    Bound { name, measured: Measured::Ratio(measured.0, measured.1, measured.2), limit: Limit::Everywhere(goal) }
}

/// All of them, in the order of the page.
pub const BOUNDS: &[Bound] = &[
    ratio(
        "ACQUIRE + RELEASE / `SET NX PX` + `DELEX` or `DELIFEQ`",
        ("pair", BUSY, &["SET NX PX + DELEX IFEQ", "SET NX PX + DELIFEQ"]),
        goal(1.15, 1.0),
    ),
    ratio(
        "ACQUIRE + RELEASE / `SET NX PX` + `EVALSHA` compare-and-delete",
        ("pair", BUSY, &["SET NX PX + EVALSHA"]),
        goal(0.65, 0.55),
    ),
    ratio(
        "ACQUIRE + RELEASE / hash locks by script, as Redisson has them",
        ("pair", BUSY, &["Redisson's shape, with its latch"]),
        goal(0.27, 0.2),
    ),
    ratio(
        "ACQUIRE + RELEASE / `SET NX PX` + `EVALSHA`, AOF everysec",
        ("aof", BUSY, &["SET NX PX + EVALSHA"]),
        goal(0.85, 0.75),
    ),
    ratio(
        "ACQUIRE + RELEASE / `SET NX PX` + `DEL`, AOF everysec",
        ("aof", BUSY, &["SET NX PX + DEL"]),
        goal(1.4, 1.25),
    ),
    ratio(
        "ACQUIRE + RELEASE / `SET NX PX` + `DEL`, AOF everysec, one replica",
        ("replicated", BUSY, &["SET NX PX + DEL"]),
        goal(1.8, 1.3),
    ),
    ratio("refused ACQUIRE / `SET NX` on a held key", ("refused", BUSY, &["SET NX PX on a held key"]), goal(1.2, 1.1)),
    ratio("the same without a pipeline", ("refused", LONE, &["SET NX PX on a held key"]), goal(1.2, 1.1)),
    ratio("ACQUIRE again + RELEASE / two `GET`s", ("again", BUSY, &["two GETs"]), goal(1.5, 1.3)),
    ratio("the same without a pipeline", ("again", LONE, &["two GETs"]), goal(1.5, 1.3)),
    ratio("EXTEND / `PEXPIRE`", ("extend", BUSY, &["PEXPIRE"]), goal(1.2, 1.1)),
    ratio("the same without a pipeline", ("extend", LONE, &["PEXPIRE"]), goal(1.2, 1.1)),
    ratio(
        "read lock among 10, 100, 1,000, 10,000 readers: dearest / cheapest",
        ("readers", BUSY, &["the cheapest"]),
        at_most(1.3),
    ),
    ratio("share among as many holders: dearest / cheapest", ("shares", BUSY, &["the cheapest"]), at_most(2.0)),
    ratio(
        "ACQUIRE + RELEASE among 1,000,000 held locks / among 1,000",
        ("held", BUSY, &["LOCK.ACQUIRE + LOCK.RELEASE among 1000", "the same among 1000"]),
        at_most(1.5),
    ),
    Bound {
        name: "memory of a held lock / of a `SET NX PX`, in bytes",
        measured: Measured::Memory,
        limit: Limit::ByAge(goal(1.4, 1.3), goal(1.6, 1.5)),
    },
    Bound {
        name: "hand-off to one of 16 waiters / `BLPOP` + `LPUSH`",
        measured: Measured::HandOff(16),
        limit: Limit::Everywhere(goal(1.1, 1.0)),
    },
    Bound {
        name: "hand-off to one of 1,000 waiters / `BLPOP` + `LPUSH`",
        measured: Measured::HandOff(1_000),
        limit: Limit::Everywhere(goal(1.1, 1.0)),
    },
    Bound {
        name: "instructions of ACQUIRE + RELEASE",
        measured: Measured::Instructions,
        limit: Limit::Redis7(goal(16_500.0, 15_500.0)),
    },
    Bound { name: "of these the module's own", measured: Measured::Own, limit: Limit::Redis7(goal(4_500.0, 3_500.0)) },
];

/// A server, by its kind and its version: `redis` and `7.0.15`.
pub type Server<'a> = (&'a str, &'a str);

impl Limit {
    pub fn on(self, (kind, version): Server<'_>) -> Option<Goal> {
        let is_old = kind == "redis" && version.starts_with("7.");
        match self {
            Limit::Everywhere(goal) => Some(goal),
            Limit::ByAge(old, new) => Some(if is_old { old } else { new }),
            Limit::Redis7(goal) => is_old.then_some(goal),
        }
    }
}

/// The bound of a figure on a server.
pub fn of(measured: Measured, server: Server<'_>) -> Option<Goal> {
    BOUNDS.iter().find(|bound| bound.measured == measured)?.limit.on(server)
}

/// The bound of a row of `rivals`, by its group, its environment and what it is beside.
pub fn of_row(group: &str, environment: &str, with: &str, server: Server<'_>) -> Option<Goal> {
    BOUNDS.iter().find(|bound| bound.measured.is_row(group, environment, with))?.limit.on(server)
}

impl Measured {
    /// Whether this is a row of `rivals`, and this one.
    pub fn is_row(self, group: &str, environment: &str, with: &str) -> bool {
        match self {
            Measured::Ratio(of, pipeline, beside) => {
                let in_pipeline = |pipeline| environment.starts_with(&format!("pipeline {pipeline}, "));
                of == group && beside.contains(&with) && pipeline.is_none_or(in_pipeline)
            }
            Measured::Memory => group == "memory" && with == "SET NX PX",
            _ => false,
        }
    }
}

/// How a figure stands to its bound, in words: for people, and for other programs.
pub fn judged(goal: Option<Goal>, figure: f64) -> (String, Value) {
    let Some(goal) = goal else { return (String::new(), Value::Null) };
    let word = goal.verdict(figure).word();
    (format!("{goal}: {word}"), json!({ "at_most": goal.at_most, "aim": goal.aim, "verdict": word }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals;

    #[test]
    fn every_bound_of_a_ratio_is_of_a_row_that_is_measured() {
        // A bound that names no row, or the wrong one, would never be above it.
        let groups = rivals::groups();
        for bound in BOUNDS {
            let Measured::Ratio(group, pipeline, with) = bound.measured else { continue };
            if group == "held" {
                continue;
            }
            let is_measured = groups.iter().filter(|of| of.name == group).any(|group| {
                let flat = group.flat.is_some() && with == ["the cheapest"];
                let names = group.comparisons.iter().map(|beside| &group.contestants[beside.with].name[..]);
                let named: Vec<&str> = names.filter(|name| with.contains(name)).collect();
                (flat || named.len() == with.len()) && pipeline.is_none_or(|of| of == group.environment.pipeline)
            });
            assert!(is_measured, "{}", bound.name);
        }
    }

    #[test]
    fn a_bound_is_that_of_the_server_and_of_the_row() {
        let (old, new) = (("redis", "7.0.15"), ("redis", "8.6.3"));
        let valkey = ("valkey", "9.1.2");
        assert_eq!([old, new, valkey].map(|server| of(Measured::Memory, server).unwrap().at_most), [1.4, 1.6, 1.6]);
        assert_eq!([old, new, valkey].map(|server| of(Measured::Instructions, server).is_some()), [true, false, false]);
        let row = |group, environment| of_row(group, environment, "SET NX PX + EVALSHA", old).map(|goal| goal.at_most);
        assert_eq!(row("pair", "pipeline 16, 16 connections, no AOF, no replica"), Some(0.65));
        assert_eq!(row("aof", "pipeline 16, 16 connections, AOF everysec, no replica"), Some(0.85));
        assert_eq!(row("pair", "pipeline 1, 48 connections, no AOF, no replica"), None);
        assert_eq!(row("matrix", "pipeline 16, 16 connections, AOF always, no replica"), None);
    }
}
