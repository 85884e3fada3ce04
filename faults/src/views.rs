//! What the server showed of locks while clients used them, and what must be true of it.

use crate::history::Moment;
use std::collections::BTreeMap;

/// A lock as the server showed it.
#[derive(Clone, Debug)]
pub struct View {
    pub key: String,
    /// When the server was asked: what it says is true at this moment or later.
    pub asked: Moment,
    pub told: Moment,
    pub holders: Vec<Holder>,
    pub waiters: Vec<Waiter>,
}

/// A holder as the server showed it.
#[derive(Clone, Debug)]
pub struct Holder {
    pub owner: String,
    pub reads: u64,
    pub writes: bool,
    /// Its owner has not collected it.
    pub offered: bool,
    /// How long it lasts, in milliseconds.
    pub left_ms: i64,
}

/// A waiter as the server showed it.
#[derive(Clone, Debug)]
pub struct Waiter {
    pub owner: String,
    /// How long its place is kept, in milliseconds; None while a client waits there.
    pub left_ms: Option<i64>,
}

/// Views that show more shares than any request for their key allows, or a writer beside another holder. Unlike the
/// histories of owners they also judge what was granted to an owner that does not know of it. Also says how many showed
/// as many shares as there may be.
pub fn crowded<'h>(views: &'h [View], limits: &BTreeMap<String, u64>) -> (u64, Vec<&'h View>) {
    let sum = |view: &View| view.holders.iter().map(|holder| holder.reads).sum::<u64>();
    let full = views.iter().filter(|view| limits.get(&view.key) == Some(&sum(view))).count() as u64;
    let is_crowded = |view: &&View| {
        let above = limits.get(&view.key).is_some_and(|limit| sum(view) > *limit);
        above || (view.holders.len() > 1 && view.holders.iter().any(|holder| holder.writes))
    };
    (full, views.iter().filter(is_crowded).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(at: u64, holders: &[(u64, bool)], waiter: &str) -> View {
        let holder = |(reads, writes): &(u64, bool)| Holder {
            owner: "h".to_owned(),
            reads: *reads,
            writes: *writes,
            offered: false,
            left_ms: 1,
        };
        let (key, waiter) = ("k".to_owned(), Waiter { owner: waiter.to_owned(), left_ms: None });
        let holders = holders.iter().map(holder).collect();
        View { key, asked: Moment(at), told: Moment(at + 10), holders, waiters: vec![waiter] }
    }

    #[test]
    fn a_view_shows_shares_above_the_limit_and_a_writer_beside_another_holder() {
        let limits = BTreeMap::from([("k".to_owned(), 3)]);
        let both = [view(0, &[(2, false), (1, false)], "w"), view(1, &[(2, false), (2, false)], "w")];
        let (full, crowd) = crowded(&both, &limits);
        assert_eq!((full, crowd.len(), crowd[0].asked), (1, 1, Moment(1)));
        let alone = [view(0, &[(1, true)], "w"), view(1, &[(9, true)], "w")];
        assert_eq!(crowded(&alone, &BTreeMap::new()).1.len(), 0);
        assert_eq!(crowded(&[view(0, &[(0, true), (1, false)], "w")], &BTreeMap::new()).1.len(), 1);
    }
}
