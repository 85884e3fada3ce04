//! Data that carry their history: every update says from which one it was computed, and under which fence. They are
//! only ever appended. So what a server has left of them shows which updates were lost on it, whatever became of the
//! servers before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An update of some data. Its text is its entry in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// A name that no other has.
    pub id: String,
    /// The update that it was computed from, which was the last one when its client read the data.
    pub parent: String,
    /// The fence under which its client read and wrote.
    pub fence: i64,
}

impl Update {
    /// The parent of the first one.
    pub const NONE: &str = "-";

    /// From an entry; None if it is none.
    pub fn parse(text: &str) -> Option<Update> {
        let mut words = text.split(':');
        let (id, parent, fence) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
        words.next().is_none().then(|| Update { id: id.to_owned(), parent: parent.to_owned(), fence })
    }
}

impl fmt::Display for Update {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.id, self.parent, self.fence)
    }
}

/// What is wrong with data, as far as they survived. Each pair is an update and the one right before it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wrong<'u> {
    /// It was computed from another one that is there: those in between are lost.
    pub overwriting: Vec<(Option<&'u Update>, &'u Update)>,
    /// It was computed from one of another hold that is not there. That died with a server.
    pub of_the_dead: Vec<(Option<&'u Update>, &'u Update)>,
    /// The same, but of the same hold. That is no lost update: the owner builds on what it did itself.
    pub of_its_own: Vec<(Option<&'u Update>, &'u Update)>,
    /// It came after one with a higher fence: an owner wrote after the next one.
    pub back: Vec<(&'u Update, &'u Update)>,
    /// It is there more than once.
    pub repeated: Vec<&'u Update>,
}

impl Wrong<'_> {
    /// How many updates replaced another one than they were computed from.
    pub fn lost(&self) -> usize {
        self.overwriting.len() + self.of_the_dead.len()
    }
}

/// Judges what survived. `fences` has those of all updates that were sent.
pub fn judge<'u>(survived: &'u [Update], fences: &BTreeMap<String, i64>) -> Wrong<'u> {
    let mut wrong = Wrong::default();
    let mut seen = BTreeSet::new();
    let mut before: Option<&Update> = None;
    for update in survived {
        if !seen.insert(&update.id) {
            wrong.repeated.push(update);
        }
        let last = before.map_or(Update::NONE, |before| &before.id);
        if update.parent != last {
            let is_there = update.parent == Update::NONE || seen.contains(&update.parent);
            let is_its_own = fences.get(&update.parent) == Some(&update.fence);
            let kind = match (is_there, is_its_own) {
                (true, _) => &mut wrong.overwriting,
                (false, false) => &mut wrong.of_the_dead,
                (false, true) => &mut wrong.of_its_own,
            };
            kind.push((before, update));
        }
        if let Some(before) = before.filter(|before| before.fence > update.fence) {
            wrong.back.push((before, update));
        }
        before = Some(update);
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(text: &str) -> Update {
        Update::parse(text).unwrap()
    }

    fn all(texts: &[&str]) -> Vec<Update> {
        texts.iter().map(|text| update(text)).collect()
    }

    fn fences(sent: &[Update]) -> BTreeMap<String, i64> {
        sent.iter().map(|update| (update.id.clone(), update.fence)).collect()
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let text = "3.17:2.9:1795254138291343";
        assert_eq!(update(text).to_string(), text);
        assert_eq!([Update::parse("a:b"), Update::parse("a:b:c"), Update::parse("a:b:1:2")], [None, None, None]);
    }

    #[test]
    fn nothing_is_wrong_where_each_update_was_computed_from_the_one_before() {
        let data = all(&["a:-:1", "b:a:2", "c:b:2", "d:c:3"]);
        assert_eq!(judge(&data, &fences(&data)), Wrong::default());
    }

    #[test]
    fn updates_that_died_with_their_server_are_not_missed() {
        let (sent, left) = (all(&["a:-:1", "b:a:2", "c:b:3", "d:a:4"]), all(&["a:-:1", "d:a:4"]));
        assert_eq!(judge(&left, &fences(&sent)), Wrong::default());
    }

    #[test]
    fn an_update_that_was_computed_from_an_older_one_has_lost_those_in_between() {
        let data = all(&["a:-:1", "b:a:2", "c:a:3", "d:-:4"]);
        let wrong = judge(&data, &fences(&data));
        assert_eq!(wrong.overwriting, [(Some(&data[1]), &data[2]), (Some(&data[2]), &data[3])]);
        assert_eq!((wrong.lost(), wrong.back.len()), (2, 0));
    }

    #[test]
    fn an_update_that_was_computed_from_a_dead_one_of_another_hold_is_seen() {
        let (sent, left) = (all(&["a:-:1", "b:a:2", "c:b:3"]), all(&["a:-:1", "c:b:3"]));
        let wrong = judge(&left, &fences(&sent));
        assert_eq!((wrong.of_the_dead.len(), wrong.of_its_own.len(), wrong.lost()), (1, 0, 1));
        let first = all(&["c:b:3"]);
        assert_eq!(judge(&first, &fences(&sent)).of_the_dead, [(None, &first[0])]);
    }

    #[test]
    fn an_owner_may_build_on_its_own_dead_update_within_one_hold() {
        let (sent, left) = (all(&["a:-:1", "b:a:2", "c:b:2"]), all(&["a:-:1", "c:b:2"]));
        let wrong = judge(&left, &fences(&sent));
        assert_eq!((wrong.of_its_own.len(), wrong.lost()), (1, 0));
    }

    #[test]
    fn an_update_of_a_former_hold_after_one_of_a_later_hold_is_seen() {
        let data = all(&["a:-:2", "b:a:1", "c:b:2", "c:b:2"]);
        let wrong = judge(&data, &fences(&data));
        assert_eq!(wrong.back, [(&data[0], &data[1])]);
        assert_eq!(wrong.repeated, [&data[3]]);
    }
}
