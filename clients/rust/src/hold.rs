//! A lock that is held: until when that is sure, and whether it was lost. Loss is final. Sends nothing: others tell it
//! what the server said.

use crate::clock::{LOOK, Moment, margin, renewal_interval, valid_until};
use crate::error::Error;
use crate::listener::{Figure, Figures};
use crate::owner::Owner;
use crate::request::Terms;
use crate::sync::{Caller, Watched, here};
use crate::trouble::Trouble;
use redis::Cmd;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) struct Hold {
    pub(crate) terms: Terms,
    pub(crate) owner: Owner,
    /// One for each key.
    pub(crate) fences: Vec<u64>,
    /// When it is lost, however often it is renewed.
    ends: Option<Moment>,
    /// A process that was forked has the memory, but not the lock.
    pid: u32,
    trouble: OnceLock<Trouble>,
    figures: Option<Figures>,
    since: Moment,
    /// How many requests about it the server may read yet: they have no answer.
    pub(crate) unread: Arc<AtomicUsize>,
    state: Watched<State>,
}

struct State {
    valid_until: Moment,
    stage: Stage,
}

/// Goes forward only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Held,
    /// Nobody extends it any more. The server is yet to say whether it was held until now.
    Releasing,
    Released,
    Lost,
}

impl Hold {
    /// What a request that was sent at this time was granted.
    pub(crate) fn new(terms: Terms, owner: Owner, fences: Vec<u64>, sent: Moment) -> Hold {
        let until = valid_until(sent, terms.lasts());
        let ends = terms.max.map(|max| sent + max);
        Hold { ends, ..Hold::until(terms, owner, fences, until) }
    }

    /// What was granted until this moment.
    pub(crate) fn until(terms: Terms, owner: Owner, fences: Vec<u64>, valid_until: Moment) -> Hold {
        let state = State { valid_until, stage: Stage::Held };
        let (pid, trouble) = (std::process::id(), OnceLock::new());
        let (figures, since, unread) = (None, Moment::now(), Arc::default());
        Hold { terms, owner, fences, ends: None, pid, trouble, figures, since, unread, state: Watched::new(state) }
    }

    /// Tells what becomes of it.
    pub(crate) fn counted_by(self, figures: &Option<Figures>) -> Hold {
        Hold { figures: figures.clone(), ..self }
    }

    /// Tells of renewals that fail, and of its loss.
    pub(crate) fn tell(&self, trouble: &Trouble) {
        // It is given once.
        drop(self.trouble.set(trouble.clone()));
    }

    /// One more renewal failed.
    pub(crate) fn renewal_failed(&self) {
        if let Some(figures) = self.figures.as_ref().filter(|_| !self.is_over()) {
            figures.tell(Figure::RenewalFailed);
        }
    }

    /// A renewal failed for another reason than before, and will be tried again.
    pub(crate) fn not_extended(&self, error: Error) {
        if let Some(trouble) = self.trouble.get().filter(|_| !self.is_over()) {
            trouble.tell_apart(error);
        }
    }

    /// What is to be read of its guard, which has this name.
    pub(crate) fn describe(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let keys: Vec<String> = self.terms.keys.iter().map(|key| key.escape_ascii().to_string()).collect();
        let mut described = f.debug_struct(name);
        described.field("keys", &keys).field("owner", &self.owner).field("fences", &self.fences);
        described.field("lost", &self.is_lost()).finish()
    }

    /// Renews the lease of each key, but not beyond its end.
    pub(crate) fn extend(&self) -> Vec<Cmd> {
        let Some(end) = self.ends else { return self.terms.extend(&self.owner, &self.fences) };
        let lease = self.terms.lease.min(end.left() + margin(self.terms.lease));
        let session = self.terms.session.map(|session| session.min(lease));
        Terms { lease, session, ..self.terms.clone() }.extend(&self.owner, &self.fences)
    }

    /// When it is to be renewed after a renewal that was sent then. At its end it is not: it is seen to be lost.
    pub(crate) fn due_after(&self, sent: Moment) -> Moment {
        let due = sent + renewal_interval(self.terms.lasts());
        self.ends.map_or(due, |end| due.min(end))
    }

    /// Until when nobody else holds it, as far as is known.
    pub(crate) fn valid_until(&self) -> Moment {
        self.state.lock().valid_until
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.stage() == Stage::Lost
    }

    /// Whether nobody may extend it any more: it was lost, or its release has begun.
    pub(crate) fn is_over(&self) -> bool {
        self.stage() != Stage::Held
    }

    /// Whether this process took it. A child of a fork did not.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Waits until it is lost, so long at most. False when it was not, or was released.
    pub(crate) async fn wait_lost(&self, caller: Caller, timeout: Duration) -> bool {
        let deadline = Moment::now() + timeout;
        loop {
            let stage = self.stage();
            if stage >= Stage::Released || deadline.is_past() {
                return stage == Stage::Lost;
            }
            let next = if stage == Stage::Held { self.valid_until().min(deadline) } else { deadline };
            let is_other = |state: &mut State| (state.stage != stage).then_some(());
            let _: Option<()> = self.state.wait(caller, Some(next.left().min(LOOK)), is_other).await;
        }
    }

    /// Waits until validity ends at another moment than this one, and tells which. None when it is lost, or is being
    /// released.
    pub(crate) fn next_end(&self, known: Moment) -> Option<Moment> {
        loop {
            if self.stage() != Stage::Held {
                return None;
            }
            let end = self.valid_until();
            if end != known {
                return Some(end);
            }
            let is_other = |state: &mut State| (state.stage != Stage::Held || state.valid_until != known).then_some(());
            let _: Option<()> = here(self.state.wait(Caller::Thread, Some(end.left().min(LOOK)), is_other));
        }
    }

    /// The server extended the lease. Too late an answer changes nothing: the loss may have been told already.
    pub(crate) fn extended(&self, sent: Moment) {
        if !self.is_over() {
            let until = valid_until(sent, self.terms.lasts());
            let until = self.ends.map_or(until, |end| until.min(end));
            let mut state = self.state.lock();
            state.valid_until = state.valid_until.max(until);
            self.state.notify();
        }
    }

    /// Validity ends at this moment, which may be earlier than was thought: a node of a quorum may fall away.
    pub(crate) fn ends_at(&self, until: Moment) {
        if !self.is_over() {
            self.state.lock().valid_until = until;
            self.state.notify();
        }
    }

    /// The server says that it is not held. Not heard while it is released: then the reply to that counts.
    pub(crate) fn lose(&self) {
        self.go(Stage::Held, Stage::Lost);
    }

    /// Its release begins, if it is not lost yet: it is not extended any more.
    pub(crate) fn begin_release(&self) {
        if !self.is_lost() {
            self.go(Stage::Held, Stage::Releasing);
        }
    }

    /// Its release ends: it was held until then, or the server says that it was not. Tells whether it was lost at all.
    pub(crate) fn end_release(&self, was_lost: bool) -> bool {
        self.go(Stage::Releasing, if was_lost { Stage::Lost } else { Stage::Released });
        self.is_lost()
    }

    fn go(&self, from: Stage, to: Stage) {
        let mut state = self.state.lock();
        if state.stage == from {
            self.enter(&mut state, to);
        }
    }

    fn enter(&self, state: &mut State, stage: Stage) {
        state.stage = stage;
        match (&self.figures, stage) {
            (Some(figures), Stage::Lost) => figures.tell(Figure::Lost(self.since.elapsed())),
            (Some(figures), Stage::Released) => figures.tell(Figure::Held(self.since.elapsed())),
            _ => {}
        }
        self.state.notify();
        if let Some(trouble) = self.trouble.get().filter(|_| stage == Stage::Lost) {
            trouble.tell_apart(Error::Lost);
        }
    }

    /// Where it stands. Validity that is over is a loss from the first look at it on.
    fn stage(&self) -> Stage {
        let mut state = self.state.lock();
        if state.stage == Stage::Held && (state.valid_until.is_past() || !self.is_ours()) {
            self.enter(&mut state, Stage::Lost);
        }
        state.stage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(sent: Moment) -> Hold {
        let terms = Terms { lease: LEASE, ..Terms::new(vec![b"k".to_vec()]) };
        Hold::new(terms, Owner::new(), vec![7], sent)
    }

    fn wait_lost(hold: &Hold, timeout: Duration) -> bool {
        here(hold.wait_lost(Caller::Thread, timeout))
    }

    fn long_ago() -> Moment {
        Moment::from_boot(Duration::ZERO)
    }

    #[test]
    fn validity_that_is_over_is_a_loss_and_no_late_answer_revives_it() {
        let late = hold(long_ago());
        assert!(late.is_lost() && late.is_over());
        late.extended(Moment::now());
        assert!(late.is_lost());
        late.begin_release();
        assert!(late.end_release(false), "it was lost before its release");
    }

    #[test]
    fn a_renewal_moves_the_end_and_an_older_answer_does_not_move_it_back() {
        let held = hold(Moment::now());
        let first = held.valid_until();
        let later = Moment::now() + Duration::from_secs(10);
        held.extended(later);
        assert_eq!(held.valid_until(), later + Duration::from_millis(29_700));
        held.extended(long_ago());
        assert!(held.valid_until() > first && !held.is_lost());
    }

    #[test]
    fn a_child_of_a_fork_has_not_got_the_lock() {
        let of_parent = Hold { pid: std::process::id() + 1, ..hold(Moment::now()) };
        assert!(of_parent.is_lost() && of_parent.is_over() && !wait_lost(&hold(Moment::now()), Duration::ZERO));
    }

    #[test]
    fn a_maximum_bounds_what_is_renewed_and_what_is_believed() {
        let terms = Terms { lease: LEASE, max: Some(LEASE * 2), ..Terms::new(vec![b"k".to_vec()]) };
        let sent = Moment::from_boot(Moment::now().since_boot().saturating_sub(LEASE * 3 / 2));
        let held = Hold::new(terms, Owner::new(), vec![7], sent);
        let renewal = String::from_utf8(held.extend()[0].get_packed_command()).expect("text");
        let left = renewal.split("\r\n").skip_while(|word| *word != "PX").nth(2).and_then(|ms| ms.parse().ok());
        // All the rest of it, and what the server's clock may be slower.
        assert!(left.is_some_and(|ms: u64| (1..=15_300).contains(&ms)), "{renewal:?}");
        held.extended(Moment::now());
        assert!(held.valid_until() <= sent + LEASE * 2);
        assert_eq!(held.due_after(Moment::now() + LEASE), sent + LEASE * 2);
    }

    #[test]
    fn a_release_stops_renewal_and_its_reply_says_whether_it_was_a_loss() {
        for was_lost in [false, true] {
            let held = hold(Moment::now());
            assert!(!held.is_over());
            held.begin_release();
            // A renewal that was on its way came after the release.
            held.lose();
            assert!(held.is_over() && !held.is_lost());
            assert_eq!(held.end_release(was_lost), was_lost);
            assert_eq!(held.is_lost(), was_lost);
            assert_eq!(wait_lost(&held, Duration::MAX), was_lost, "a wait for its loss is over");
        }
    }

    #[test]
    fn a_wait_is_told_of_the_loss_and_of_the_release() {
        let release = |hold: &Hold| {
            hold.begin_release();
            hold.end_release(false);
        };
        for end in [Hold::lose, release] {
            let held = hold(Moment::now());
            let lost = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| wait_lost(&held, Duration::MAX));
                end(&held);
                waiting.join().expect("no panic")
            });
            assert_eq!(lost, held.is_lost());
        }
    }

    #[test]
    fn a_watcher_is_told_of_each_end_of_validity_until_there_is_no_more() {
        let held = hold(Moment::now());
        let first = held.valid_until();
        assert_eq!(held.next_end(Moment::from_boot(Duration::ZERO)), Some(first));
        let later = Moment::now() + Duration::from_secs(10);
        let told = std::thread::scope(|scope| {
            let watching = scope.spawn(|| held.next_end(first));
            held.extended(later);
            watching.join().expect("no panic")
        });
        assert_eq!(told, Some(held.valid_until()));
        held.begin_release();
        assert_eq!(held.next_end(held.valid_until()), None);
    }

    #[test]
    fn a_wait_ends_with_its_time_and_with_validity() {
        let held = hold(Moment::now());
        let start = Instant::now();
        assert!(!wait_lost(&held, Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));
        // Nobody looks at it meanwhile: the wait itself sees the end.
        let terms = Terms { lease: Duration::from_millis(150), ..Terms::new(vec![b"k".to_vec()]) };
        let short = Hold::new(terms, Owner::new(), vec![7], Moment::now());
        assert!(wait_lost(&short, Duration::MAX));
        assert!(short.valid_until().is_past());
    }
}
