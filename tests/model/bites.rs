//! Sessions in the core by itself: connections that close at any moment, beside a model that knows no index and ends
//! all at once.

use lock_core::manager::LeasePoll;
use lock_core::manager::view::{View, ViewContext};
use lock_core::model::effect::Record;
use lock_core::model::hold::{Mode, Session};
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::owner::Owner;
use lock_core::model::request::{Acquire, Amount, Extend, Operation, Outcome, Release, Request, Terms, Wait};
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::plain;
use naive_model::words::Rules;
use naive_model::world::{RULES, Side, Step, limits, name};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn at(us: u64) -> Now {
    Now { mono: Timestamp(us), wall: WallTime(us) }
}

fn ask(side: &mut Side, key: u8, owner: &[u8], ask: Operation, now: Now) -> Step {
    let request = Request { owner: Owner::new(owner), operation: ask };
    side.serve(0, &[key], &request, now)
}

fn read(lease: Millis, session: Option<Session>) -> Operation {
    Operation::Acquire(Acquire { lease, terms: Terms::of(None, session, None), ..plain(Mode::Read, Wait::Never) })
}

fn bound_to(side: &Side, client: u64, grace: Millis) -> Session {
    Session { connection: side.manager.sessions().connection(client), grace }
}

/// Does one piece of the work that closed connections leave, at most so many holds. False when there is none.
fn work(side: &mut Side, now: Now, most: usize) -> bool {
    match side.manager.next_job() {
        Some(Job::EndSession(connection, _, name)) => {
            let piece = side.in_step(0, &[name[0]], now, |manager, step| {
                manager.end_session(step, KeyIndex(0), connection, most);
            });
            let changes = piece.effects.changes.len();
            // The last piece of a key settles what is left of it.
            assert!(changes <= most.saturating_mul(2), "{changes} changes in a piece of {most}");
            true
        }
        Some(Job::AnnounceEnds(_, name)) => {
            let piece =
                side.in_step(0, &[name[0]], now, |manager, step| manager.announce_ends(step, KeyIndex(0), most));
            let changes = piece.effects.changes;
            assert!((1..=most).contains(&changes.len()), "{} announced in a piece of {most}", changes.len());
            assert!(changes.iter().all(|change| change.ended && change.record == Record::Sent));
            true
        }
        Some(Job::ServeQueue(_, name)) => {
            side.in_step(0, &[name[0]], now, |manager, step| manager.serve_ready_queue(step, KeyIndex(0), 64));
            true
        }
        other => {
            assert_eq!(other, None);
            false
        }
    }
}

/// Ends one piece of what the index of leases says is due. False when there is none.
fn lapse(side: &mut Side, now: Now, most: usize) -> bool {
    match side.manager.poll_leases(now.mono) {
        LeasePoll::Key(_, entry, name) => {
            let piece = side.in_step(0, &[name[0]], now, |manager, step| manager.lapse(step, KeyIndex(0), entry, most));
            let changes = piece.effects.changes.len();
            // The last piece of a key settles what is left of it.
            assert!(changes <= most.saturating_mul(2), "{changes} changes in a piece of {most}");
            true
        }
        LeasePoll::DbUnknown(..) | LeasePoll::Pending => true,
        LeasePoll::Idle => false,
    }
}

#[test]
fn many_holds_of_a_closed_connection_end_bit_by_bit_also_where_their_leases_end() {
    // A lapse that settled all of the key would stand still for as long as that takes.
    const MOST: usize = 64;
    let mut side = Side::new(limits(Rules { holders_max: 2000, ..RULES }));
    for reader in 0..1000u16 {
        let session = bound_to(&side, 7, Millis(1));
        let step = ask(&mut side, b'k', &reader.to_be_bytes(), read(Millis(100_000), Some(session)), at(1));
        assert!(matches!(step.outcome, Ok(Outcome::Granted(_))));
    }
    assert!(side.manager.disconnect(7, Timestamp(2)));
    // Some are cut; then the grace is over, for those as well as for the others.
    (0..3).for_each(|_| assert!(work(&mut side, at(3), MOST)));
    assert_eq!(side.manager.sessions().len(), 1000 - 3 * MOST);
    while lapse(&mut side, at(10_000), MOST) {}
    while work(&mut side, at(10_000), MOST) {}
    assert!(side.locks.is_empty() && side.manager.sessions().is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Acquire { key: u8, owner: u8, client: usize, lease: u64, grace: Option<u64> },
    Extend { key: u8, owner: u8, client: usize, lease: u64, grace: Option<u64> },
    Release { key: u8, owner: u8 },
    Close { client: usize },
    Pass { ms: u64 },
    Job { most: usize },
    Lapse { most: usize },
    Dissolve,
}

fn op() -> impl Strategy<Value = Op> {
    let who = || (b'j'..=b'k', b'a'..=b'd', 0..3usize);
    let ms = || prop_oneof![1..5u64, 1..40u64];
    let grace = || prop_oneof![2 => Just(None), 2 => Just(Some(0)), 3 => (1..20u64).prop_map(Some)];
    let most = || prop_oneof![Just(1usize), Just(2), Just(usize::MAX)];
    prop_oneof![
        8 => (who(), ms(), grace())
            .prop_map(|((key, owner, client), lease, grace)| Op::Acquire { key, owner, client, lease, grace }),
        4 => (who(), ms(), grace())
            .prop_map(|((key, owner, client), lease, grace)| Op::Extend { key, owner, client, lease, grace }),
        2 => who().prop_map(|(key, owner, _)| Op::Release { key, owner }),
        4 => (0..3usize).prop_map(|client| Op::Close { client }),
        4 => prop_oneof![1..4u64, 1..30u64].prop_map(|ms| Op::Pass { ms }),
        3 => most().prop_map(|most| Op::Job { most }),
        2 => most().prop_map(|most| Op::Lapse { most }),
        1 => Just(Op::Dissolve),
    ]
}

/// What a hold is in the model: until when, and which client's end cuts it to how many milliseconds.
type Naive = BTreeMap<(u8, u8), (u64, Option<(u64, u64)>)>;

/// The core, the model, the time in milliseconds, and the clients that are connected, by place.
struct Pair {
    side: Side,
    naive: Naive,
    now: u64,
    clients: [u64; 3],
    clients_so_far: u64,
}

impl Pair {
    fn session(&self, client: usize, grace: Option<u64>) -> (Option<Session>, Option<(u64, u64)>) {
        let bound = grace.map(|grace| (self.clients[client], grace));
        (bound.map(|(client, grace)| bound_to(&self.side, client, Millis(grace))), bound)
    }

    fn play(&mut self, op: &Op) {
        let now = at(self.now * 1000);
        match *op {
            Op::Acquire { key, owner, client, lease, grace } => {
                let (session, bound) = self.session(client, grace);
                let step = ask(&mut self.side, key, &[owner], read(Millis(lease), session), now);
                assert!(matches!(step.outcome, Ok(Outcome::Granted(_))));
                let hold = self.naive.entry((key, owner)).or_insert((0, None));
                *hold = (hold.0.max(self.now + lease), bound.or(hold.1));
            }
            Op::Extend { key, owner, client, lease, grace } => {
                let (session, bound) = self.session(client, grace);
                let (fence, note, min_fence) = (None, None, None);
                let extend = Operation::Extend(Extend { lease: Millis(lease), session, fence, note, min_fence });
                let outcome = ask(&mut self.side, key, &[owner], extend, now).outcome;
                let Ok(Outcome::Extended(fences)) = outcome else { panic!("{outcome:?}") };
                assert_eq!(fences[0].is_some(), self.naive.contains_key(&(key, owner)));
                if let Some(hold) = self.naive.get_mut(&(key, owner)) {
                    *hold = (self.now + lease, bound.or(hold.1));
                }
            }
            Op::Release { key, owner } => {
                let all = Operation::Release(Release { mode: None, amount: Amount::All, fence: None });
                let outcome = ask(&mut self.side, key, &[owner], all, now).outcome;
                let Ok(Outcome::Released(left)) = outcome else { panic!("{outcome:?}") };
                assert_eq!(left[0].is_some(), self.naive.remove(&(key, owner)).is_some());
            }
            Op::Close { client } => {
                let gone = self.clients[client];
                let has_some = self.side.manager.disconnect(gone, now.mono);
                let mut found = false;
                for (deadline, bound) in self.naive.values_mut() {
                    if let Some((_, grace)) = bound.take_if(|(client, _)| *client == gone) {
                        *deadline = (*deadline).min(self.now + grace);
                        found = true;
                    }
                }
                assert!(has_some || !found);
                self.clients_so_far += 1;
                self.clients[client] = self.clients_so_far;
            }
            Op::Pass { ms } => self.now += ms,
            Op::Job { most } => drop(work(&mut self.side, now, most)),
            Op::Lapse { most } => drop(lapse(&mut self.side, now, most)),
            Op::Dissolve => {
                // What was over by then is; the rest lives on by lease, also where its grace was not cut yet.
                self.finish();
                self.side.manager.dismiss();
                self.naive.values_mut().for_each(|(_, bound)| *bound = None);
            }
        }
        let now = self.now;
        self.naive.retain(|_, (deadline, _)| *deadline > now);
    }

    /// Does all work that there is.
    fn finish(&mut self) {
        let now = at(self.now * 1000);
        while work(&mut self.side, now, 2) || lapse(&mut self.side, now, 2) {}
    }

    fn check(&self) {
        let mut seen = Naive::new();
        let sessions = self.side.manager.sessions();
        for (&(_, key), lock) in &self.side.locks {
            assert_eq!(lock.broken_invariant(), None);
            let now = at(self.now * 1000).mono;
            let sight = ViewContext { db: Db(0), name: name(key), sessions, now, judged: now };
            let Some(view) = View::of(lock, sight) else { continue };
            assert_eq!(view.holding(), view.holders().count());
            for holder in view.holders() {
                let bound = holder.session.map(|session| (session.connection.client(), session.grace.0));
                // Shown until the work is done, though it has closed.
                let bound = bound.filter(|(client, _)| self.clients.contains(client));
                seen.insert((key, holder.owner[0]), (self.now + holder.left.0, bound));
            }
        }
        assert_eq!(seen, self.naive);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn sessions_end_as_the_model_says_however_late_the_work_is_done(ops in prop::collection::vec(op(), 1..60)) {
        let mut pair = Pair {
            side: Side::new(limits(Rules { ended_max: 2, ..RULES })),
            naive: Naive::new(),
            now: 1,
            clients: [1, 2, 3],
            clients_so_far: 3,
        };
        for op in &ops {
            pair.play(op);
            pair.check();
        }
        pair.finish();
        pair.check();
        let bound = pair.naive.values().filter(|(_, bound)| bound.is_some()).count();
        prop_assert_eq!(pair.side.manager.sessions().len(), bound, "S1");
        prop_assert!(!pair.side.manager.sessions().some_closed());
        let held: usize = pair.side.locks.values().map(|lock| lock.holds.len()).sum();
        prop_assert_eq!(held, pair.naive.len(), "nothing is left that is over");
    }
}
