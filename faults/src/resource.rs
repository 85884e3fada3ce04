//! Something that holders use, by the rule of docs/guide/fencing.md.

/// It knows fences where there are any, and refuses those that are too low.
#[derive(Debug, Default)]
pub struct Resource {
    highest: i64,
    highest_writer: i64,
    /// The begin of the newest of the holds that have used it, of all and of writers.
    newest: u64,
    newest_writer: u64,
}

/// What the resource made of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    pub accepted: bool,
    /// Whether a hold that began later, and excludes this one, has used it already.
    pub is_old: bool,
}

impl Resource {
    /// The holder reads or writes now: a writer's fence must not be below any seen, a reader's not below the highest
    /// writer's. `since` is the begin of the hold.
    pub fn is_used(&mut self, fence: Option<i64>, since: u64, writes: bool) -> Used {
        let (least, newest) =
            if writes { (self.highest, self.newest) } else { (self.highest_writer, self.newest_writer) };
        let accepted = fence.is_none_or(|fence| fence >= least);
        if accepted {
            let fence = fence.unwrap_or_default();
            (self.highest, self.newest) = (self.highest.max(fence), self.newest.max(since));
            if writes {
                self.highest_writer = self.highest_writer.max(fence);
                self.newest_writer = self.newest_writer.max(since);
            }
        }
        Used { accepted, is_old: since < newest }
    }

    /// Whether a hold that began later has used it.
    pub fn has_newer(&self, since: u64) -> bool {
        since < self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_refuses_an_old_writer_by_its_fence_alone() {
        let fine = Used { accepted: true, is_old: false };
        let mut resource = Resource::default();
        assert_eq!(
            [(1, 0), (2, 10), (2, 10)].map(|(fence, since)| resource.is_used(Some(fence), since, true)),
            [fine; 3]
        );
        assert_eq!(resource.is_used(Some(1), 0, true), Used { accepted: false, is_old: true });
        assert!(resource.has_newer(0) && !resource.has_newer(10));
        let mut resource = Resource::default();
        assert_eq!([0, 10].map(|since| resource.is_used(None, since, true)), [fine; 2]);
        assert_eq!(resource.is_used(None, 0, true), Used { accepted: true, is_old: true });
    }

    #[test]
    fn a_reader_may_be_older_than_other_readers_and_not_than_a_writer() {
        let mut resource = Resource::default();
        let mut used = |fence: i64, writes| resource.is_used(Some(fence), fence as u64, writes).accepted;
        assert_eq!(
            [(2, false), (1, false), (1, true), (3, true), (2, false)].map(|(fence, writes)| used(fence, writes)),
            [true, true, false, true, false]
        );
    }
}
