//! How much one step does, counted: keys that are opened, visited and granted. The naive model knows no such limits, so
//! this is the core by itself, on keys of any name.

use lock_core::manager::{LeasePoll, LockManager};
use lock_core::model::effect::Effects;
use lock_core::model::hold::{Mode, Session};
use lock_core::model::key::{Db, KeyIndex, PlainName as KeyName};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::limits::StepLimits;
use lock_core::model::lock::Lock;
use lock_core::model::owner::Owner;
use lock_core::model::request::{
    self, Acquire, Amount, Begun, Operation, Outcome, Refusal, Release, Request, Terms, Wait, WaiterId,
};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use naive_model::play::plain;
use naive_model::words::Rules;
use naive_model::world::{RULES, limits};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use Mode::{Read, Write};

/// Keys that count what is done with them.
#[derive(Default)]
struct Keys {
    db: u32,
    locks: HashMap<(u32, KeyName), Lock>,
    step: Vec<KeyName>,
    at: HashMap<KeyName, usize>,
    opened: usize,
    peeked: usize,
    /// The most keys that were open at once.
    most_open: usize,
    /// After how many more keys that are opened it panics.
    panics_after: Option<usize>,
}

impl Keyspace for Keys {
    fn count(&self) -> usize {
        self.step.len()
    }

    fn entry(&mut self, key: KeyIndex) -> KeyEntry<'_> {
        let name = &self.step[key.0];
        KeyEntry { db: Db(self.db), name, lock: self.locks.get_mut(&(self.db, name.clone())) }
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, request::WaitEnd> {
        let name = KeyName::from_slice(name);
        if let Some(at) = self.at.get(&name) {
            return Ok(KeyIndex(*at));
        }
        if let Some(left) = &mut self.panics_after {
            *left = left.checked_sub(1).expect("on purpose");
        }
        self.opened += 1;
        self.at.insert(name.clone(), self.step.len());
        self.step.push(name);
        self.most_open = self.most_open.max(self.step.len());
        Ok(KeyIndex(self.count() - 1))
    }

    fn close(&mut self, key: KeyIndex) {
        let name = self.step.swap_remove(key.0);
        self.at.remove(&name);
        if let Some(moved) = self.step.get(key.0) {
            self.at.insert(moved.clone(), key.0);
        }
    }

    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.peeked += 1;
        self.locks.get(&(db.0, KeyName::from_slice(name))).map(read)
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        self.locks.entry((self.db, self.step[key.0].clone())).or_default()
    }
}

/// What a step did.
pub(crate) struct Step {
    pub(crate) outcome: Result<Outcome, Refusal>,
    pub(crate) effects: Effects,
    opened: usize,
    pub(crate) peeked: usize,
    most_open: usize,
}

pub(crate) struct Crowd {
    pub(crate) manager: LockManager,
    keys: Keys,
}

thread_local! {
    /// How many bytes of owners and of long names were hashed.
    static HASHED: Cell<usize> = const { Cell::new(0) };
}

fn keyed_hash(bytes: &[u8]) -> u64 {
    HASHED.set(HASHED.get() + bytes.len());
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

const NOW: Now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd {
            manager: LockManager::new(limits(Rules { holders_max: 9_999, ..RULES }), keyed_hash),
            keys: Keys::default(),
        }
    }

    fn on<R>(&mut self, names: &[KeyName], work: impl FnOnce(&mut LockManager, &mut Keys) -> R) -> R {
        self.keys.step.clear();
        self.keys.at.clear();
        for name in names {
            self.keys.open(name).expect("any key may be opened");
        }
        (self.keys.opened, self.keys.peeked, self.keys.most_open) = (0, 0, names.len());
        let result = work(&mut self.manager, &mut self.keys);
        self.keys.locks.retain(|_, lock| !lock.is_free());
        result
    }

    fn serve(&mut self, owner: &str, names: &[KeyName], ask: Operation) -> Step {
        let request = Request { owner: Owner::new(owner.as_bytes()), operation: ask };
        let (outcome, effects) = self.on(names, |manager, keys| {
            let mut effects = Effects::new();
            (manager.serve(&mut step::Step::new(keys, NOW, &mut effects), &request), effects)
        });
        self.done(outcome, effects)
    }

    pub(crate) fn ask(&mut self, owner: &str, mode: Mode, names: &[KeyName], wait: Wait) -> Step {
        self.serve(owner, names, Operation::Acquire(acquire(mode, wait)))
    }

    pub(crate) fn holds(&mut self, owner: &str, mode: Mode, names: &[KeyName]) {
        let outcome = self.ask(owner, mode, names, Wait::Never).outcome;
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    }

    pub(crate) fn waits(&mut self, owner: &str, mode: Mode, names: &[KeyName]) -> WaiterId {
        match self.ask(owner, mode, names, Wait::Forever).outcome {
            Ok(Outcome::Begun(Begun::New(waiter))) => waiter,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, owner: &str, names: &[KeyName]) -> Step {
        self.serve(owner, names, Operation::Release(Release { mode: None, amount: Amount::All, fence: None }))
    }

    /// The lock of a key comes to another one, as by RENAME.
    pub(crate) fn rename(&mut self, from: &KeyName, to: &KeyName) {
        self.unlink(to);
        let mut lock = self.unlink(from).expect("is held");
        lock.lease = None;
        self.manager.carry(Some((Db(0), from)), Db(0), to, &mut lock, NOW.mono);
        self.keys.locks.insert((0, to.clone()), lock);
    }

    /// The lock of a key leaves it, if there is one.
    fn unlink(&mut self, name: &KeyName) -> Option<Lock> {
        let lock = self.keys.locks.remove(&(0, name.clone()))?;
        self.manager.on_unlinked(Db(0), name, &UnlinkedLock::of(&lock));
        Some(lock)
    }

    fn done(&self, outcome: Result<Outcome, Refusal>, effects: Effects) -> Step {
        let Keys { opened, peeked, most_open, .. } = self.keys;
        Step { outcome, effects, opened, peeked, most_open }
    }

    /// Does one piece of what is left to do. What it did; None when nothing is left.
    pub(crate) fn piece(&mut self) -> Option<Step> {
        let mut work = self.manager.next_job()?;
        while work == Job::MarkQueues {
            self.manager.mark_queues();
            work = self.manager.next_job()?;
        }
        let (Job::ServeQueue(_, name) | Job::Check(_, _, name) | Job::EndSession(_, _, name)) = &work else {
            panic!("{work:?}")
        };
        let effects = self.on(&[KeyName::from_slice(name)], |manager, keys| {
            let mut effects = Effects::new();
            let mut step = step::Step::new(keys, NOW, &mut effects);
            match work {
                Job::Check(waiter, ..) => manager.check_waiter(&mut step, waiter),
                Job::EndSession(connection, ..) => manager.end_session(&mut step, KeyIndex(0), connection, 64),
                _ => manager.serve_ready_queue(&mut step, KeyIndex(0), 64),
            }
            effects
        });
        Some(self.done(Ok(Outcome::Unavailable), effects))
    }
}

fn acquire(mode: Mode, wait: Wait) -> Acquire {
    Acquire { lease: Millis(30_000), ..plain(mode, wait) }
}

fn binding(mode: Mode, wait: Wait, session: Option<Session>) -> Acquire {
    Acquire { terms: Terms::of(None, session, None), ..acquire(mode, wait) }
}

pub(crate) fn name(text: &str) -> KeyName {
    KeyName::from_slice(text.as_bytes())
}

pub(crate) fn names(prefix: &str, count: usize) -> Vec<KeyName> {
    (0..count).map(|n| name(&format!("{prefix}{n}"))).collect()
}

fn grants(effects: &Effects) -> usize {
    effects.wait_ends.iter().filter(|(_, answer)| matches!(answer, request::WaitEnd::Granted(_))).count()
}

#[test]
fn a_release_of_64_keys_before_256_waiters_of_64_keys_is_served_in_small_pieces() {
    // What could go wrong: a slice counts waiters of one key, and there are 64 of them, and each wants 63 other keys.
    // One MRELEASE took the server most of a second.
    let mut crowd = Crowd::new();
    let hot = names("hot", 64);
    crowd.holds("w", Write, &hot);
    for n in 0..256 {
        let mut wanted = vec![hot[n % 64].clone()];
        wanted.extend(names(&format!("own{n}-"), 63));
        crowd.waits(&format!("r{n}"), Read, &wanted);
    }
    let step = crowd.release("w", &hot);
    // The holds of the requester, and what was granted to others.
    let granted = step.effects.changes.len() - 64;
    assert!((1..=StepLimits::DEFAULT.keys_granted).contains(&granted), "{granted} keys granted in the asker's step");
    assert!(step.opened <= 512, "{} keys opened in the asker's step", step.opened);
    // No request passes the waiters that are still to be granted.
    assert!(matches!(crowd.ask("late", Read, &hot[63..], Wait::Forever).outcome, Ok(Outcome::Begun(Begun::New(_)))));
    assert!(matches!(crowd.ask("late writer", Write, &hot[62..63], Wait::Never).outcome, Ok(Outcome::Unavailable)));
    let mut pieces = 0;
    while let Some(piece) = crowd.piece() {
        assert!(
            piece.effects.changes.len() <= StepLimits::DEFAULT.keys_granted,
            "{} keys granted in a piece",
            piece.effects.changes.len()
        );
        assert!(piece.opened <= 512, "{} keys opened in a piece", piece.opened);
        pieces += 1;
        assert!(pieces < 2_000, "it does not come to an end");
    }
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (0, None));
}

#[test]
fn one_step_on_many_keys_lets_in_no_more_than_one_run() {
    let mut crowd = Crowd::new();
    let hot = names("hot", 64);
    crowd.holds("w", Write, &hot);
    for n in 0..640 {
        crowd.waits(&format!("r{n}"), Read, &hot[n % 64..=n % 64]);
    }
    assert_eq!(grants(&crowd.release("w", &hot).effects), StepLimits::DEFAULT.answers);
    while let Some(piece) = crowd.piece() {
        assert!(piece.effects.wait_ends.len() <= StepLimits::DEFAULT.answers);
    }
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (0, None));
}

#[test]
fn a_reader_behind_a_run_that_was_cut_is_not_forgotten() {
    // What could go wrong: the mark that no request may pass the rest of the run also acts in the scan that grants the
    // rest. There it delays the waiters behind the run. It is removed at the end of that scan, and the queue is not
    // scanned again.
    let mut crowd = Crowd::new();
    let (key, busy) = (name("key"), name("busy"));
    crowd.holds("x", Write, std::slice::from_ref(&busy));
    crowd.holds("w", Write, std::slice::from_ref(&key));
    for n in 0..=StepLimits::DEFAULT.answers {
        crowd.waits(&format!("r{n}"), Read, std::slice::from_ref(&key));
    }
    crowd.waits("many", Read, &[key.clone(), busy]);
    crowd.waits("last", Read, std::slice::from_ref(&key));
    crowd.release("w", std::slice::from_ref(&key));
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.waiting(), 1, "the last reader waits for nothing");
}

#[test]
fn what_an_asker_holds_is_looked_at_once_for_all_whom_it_keeps_waiting() {
    // What could go wrong: for each of 63 keys, each of 200 waiters before the requester, and each of its 64 keys.
    let mut crowd = Crowd::new();
    let wanted = names("key", 64);
    crowd.holds("asker", Write, &wanted[63..]);
    for n in 0..200 {
        crowd.manager.limits.deadlock_detection = false;
        crowd.waits(&format!("w{n}"), Write, &wanted);
    }
    let step = crowd.ask("asker", Write, &wanted[..63], Wait::Never);
    assert!(matches!(step.outcome, Ok(Outcome::Granted(_))), "{:?}", step.outcome);
    assert!(step.peeked <= 64 + 64, "{} locks were looked at", step.peeked);
    assert_eq!(crowd.manager.waiting(), 200);
}

#[test]
fn a_connection_that_closes_is_told_only_to_grants_that_took_its_holds_over() {
    // What could go wrong: each of a thousand connections that close at once is reported to each of a thousand grants.
    // The count is in `WaitTable::closed`; this test checks that the reports go to the right grants.
    let mut crowd = Crowd::new();
    let bound = |crowd: &Crowd, client| {
        Some(Session { connection: crowd.manager.sessions().connection(client), grace: Millis(0) })
    };
    let (mine, hot) = (names("mine", 50), names("hot", 50));
    crowd.holds("w", Write, &hot);
    let mut waiters = Vec::new();
    for n in 0..50 {
        let owner = format!("o{n}");
        let session = bound(&crowd, n as u64);
        let ask = binding(Write, Wait::Never, session);
        assert!(crowd.serve(&owner, &mine[n..=n], Operation::Acquire(ask)).outcome.is_ok());
        // Another connection of the same owner waits for that key and another.
        let session = bound(&crowd, 1_000 + n as u64);
        let ask = binding(Write, Wait::Forever, session);
        let outcome = crowd.serve(&owner, &[mine[n].clone(), hot[n].clone()], Operation::Acquire(ask)).outcome;
        let Ok(Outcome::Begun(Begun::New(waiter))) = outcome else { panic!("{outcome:?}") };
        waiters.push(waiter);
    }
    crowd.release("w", &hot);
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.waiting(), 0);
    // The first connection of each closes, and then no owner learns of its grant: what the grant bound anew ends.
    for (n, waiter) in waiters.iter().enumerate() {
        crowd.manager.disconnect(n as u64, NOW.mono);
        assert!(crowd.manager.client_gone(*waiter, Some(n as u64), NOW.mono));
    }
    let mut taken = 0;
    while let Some(Job::RevokeUndelivered(waiter, ..)) = crowd.manager.next_job() {
        crowd.on(&[], |manager, keys| {
            let mut effects = Effects::new();
            manager.revoke_undelivered(&mut step::Step::new(keys, NOW, &mut effects), waiter, Db(0));
        });
        taken += 1;
    }
    assert_eq!((taken, crowd.keys.locks.len()), (50, 0), "{:?}", crowd.keys.locks.keys());
}

#[test]
fn a_lock_of_many_bound_holds_leaves_its_key_and_comes_to_another_by_its_connections() {
    // What could go wrong: each hold of the lock is looked up on its own. With 65,536 readers of one connection, RENAME
    // took the server 40 ms.
    let mut crowd = Crowd::new();
    let keys = names("key", 2);
    for n in 0..9_000 {
        let connection = crowd.manager.sessions().connection(n % 3);
        // The graces are the client's to choose.
        let session = Some(Session { connection, grace: Millis(n) });
        let ask = Operation::Acquire(binding(Read, Wait::Never, session));
        assert!(crowd.serve(&format!("o{n}"), &keys[..1], ask).outcome.is_ok());
    }
    let found = |crowd: &Crowd, at: &KeyName| {
        let there = crowd.manager.sessions().iter().filter(|(_, _, name, _)| ***name == **at).count();
        (there, crowd.manager.sessions().iter().count(), crowd.manager.sessions().len())
    };
    assert_eq!(found(&crowd, &keys[0]), (3, 3, 9_000));
    crowd.rename(&keys[0], &keys[1]);
    assert_eq!(found(&crowd, &keys[1]), (3, 3, 9_000));
    crowd.unlink(&keys[1]);
    assert_eq!(found(&crowd, &keys[1]), (0, 0, 0));
}

#[test]
fn an_owner_that_waits_much_and_gets_much_is_checked_once() {
    // What could go wrong: each new hold has each of its waits checked. A search begins at the owner, so all found the
    // same: with 900 waits, each new hold took the server two seconds.
    let mut crowd = Crowd::new();
    let hot = names("hot", 30);
    crowd.holds("w", Write, &hot);
    for key in &hot {
        crowd.waits("o", Write, std::slice::from_ref(key));
    }
    for n in 0..100 {
        crowd.holds("o", Write, &[name(&format!("free{n}"))]);
    }
    let mut pieces: BTreeMap<bool, usize> = BTreeMap::new();
    while let Some(work) = crowd.manager.next_job() {
        assert_ne!(work, Job::MarkQueues, "so few are marked at once");
        *pieces.entry(matches!(work, Job::Check(..))).or_default() += 1;
        let _ = crowd.piece();
    }
    assert_eq!(pieces, BTreeMap::from([(true, 1), (false, 30)]), "checks, and wake-ups");
}

#[test]
fn leases_of_very_many_databases_end_each_in_its_time() {
    // What could go wrong: which of them is next is remembered wrongly, once some have ended, moved or changed places.
    let mut crowd = Crowd::new();
    for db in 0..200 {
        crowd.keys.db = db;
        let ask = Acquire { lease: Millis(1 + u64::from(db * 37 % 200) * 50), ..acquire(Write, Wait::Never) };
        assert!(crowd.serve("o", &[name("k")], Operation::Acquire(ask)).outcome.is_ok());
    }
    for db in (0..200).step_by(5) {
        crowd.keys.db = db;
        crowd.release("o", &[name("k")]);
    }
    crowd.manager.swap(Db(1), Db(199));
    crowd.manager.flush(Some(Db(7)));
    assert_eq!(crowd.manager.leases_len(), 159);
    let left = |db: u32| !db.is_multiple_of(5) && db != 7;
    let mut expected: Vec<(u64, u32)> = (0..200)
        .filter(|db| left(*db))
        .map(|db| {
            (
                1 + u64::from(db * 37 % 200) * 50,
                if db == 1 {
                    199
                } else if db == 199 {
                    1
                } else {
                    db
                },
            )
        })
        .collect();
    expected.sort_unstable();
    let mut found = Vec::new();
    while let Some(next) = crowd.manager.next_deadline() {
        let mono = next.max(NOW.mono);
        loop {
            match crowd.manager.poll_leases(mono) {
                LeasePoll::Key(db, entry, _) => {
                    found.push(((mono.0 - NOW.mono.0) / 1_000, db.0));
                    crowd.manager.drop_entry(db, entry);
                }
                LeasePoll::Pending => {}
                LeasePoll::DbUnknown(..) => panic!("the database of each is known"),
                LeasePoll::Idle => break,
            }
        }
        assert!(crowd.manager.next_deadline().is_none_or(|at| at > mono), "the alarm would spin");
    }
    assert_eq!(found, expected);
    assert_eq!(crowd.manager.leases_len(), 0);
}

#[test]
fn waiters_that_a_lock_puts_into_deadlocks_are_checked_one_by_one() {
    // What could go wrong: a lock that is renamed to a key closes a cycle with each of a thousand waiters there. The
    // search for them all in one step took a second.
    let mut crowd = Crowd::new();
    let [shared, source, wanted, busy] = ["shared", "source", "wanted", "busy"].map(|text| [name(text)]);
    let both = [wanted[0].clone(), busy[0].clone()];
    crowd.holds("o", Write, &source);
    crowd.holds("h", Write, &busy);
    for n in 0..50 {
        crowd.holds(&format!("w{n}"), Read, &shared);
        crowd.waits(&format!("w{n}"), Write, &both);
    }
    crowd.waits("o", Write, &shared);
    crowd.rename(&source[0], &wanted[0]);
    let mut refused = 0;
    while let Some(piece) = crowd.piece() {
        assert!(piece.effects.wait_ends.len() <= 1, "{} in one piece", piece.effects.wait_ends.len());
        refused += piece.effects.wait_ends.len();
    }
    assert_eq!((refused, crowd.manager.waiting()), (50, 1), "all but o, which waits for holders that wait no more");
}

#[test]
fn a_search_for_owners_that_may_be_in_deadlocks_is_given_up_when_it_would_take_too_long() {
    // What could go wrong: behind a lock that came to another key, all that can be reached from its waiters is gone
    // through to see which of them could be in a cycle. Or nobody learns that this was given up.
    let mut crowd = Crowd::new();
    let [source, wanted, busy] = ["source", "wanted", "busy"].map(|text| [name(text)]);
    crowd.holds("o", Write, &source);
    crowd.holds("h", Write, &busy);
    crowd.manager.limits.deadlock_detection = false;
    for n in 0..200 {
        let all = [wanted[0].clone(), busy[0].clone()].into_iter().chain(names(&format!("own{n}-"), 62));
        crowd.waits(&format!("w{n}"), Write, &all.collect::<Vec<_>>());
    }
    crowd.manager.limits.deadlock_detection = true;
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.searches_cut(), 0);
    crowd.rename(&source[0], &wanted[0]);
    while let Some(piece) = crowd.piece() {
        assert!(piece.peeked <= 5_000, "{} locks were looked at", piece.peeked);
        assert!(piece.effects.wait_ends.is_empty(), "{:?}", piece.effects.wait_ends);
    }
    assert_eq!((crowd.manager.searches_cut(), crowd.manager.waiting()), (1, 200));
}

#[test]
fn a_place_that_becomes_an_offer_leaves_nothing_to_do() {
    // What could go wrong: each hand-off to a place has the background serve the queue once more, for nobody.
    let (mut crowd, key) = (Crowd::new(), [name("k")]);
    crowd.holds("h", Write, &key);
    let ask = Acquire { queue: Some(Millis(60_000)), ..acquire(Write, Wait::Never) };
    for owner in ["a", "b"] {
        let outcome = crowd.serve(owner, &key, Operation::Acquire(ask.clone())).outcome;
        assert!(matches!(outcome, Ok(Outcome::Begun(Begun::Place(_)))), "{outcome:?}");
    }
    crowd.release("h", &key);
    assert_eq!(crowd.manager.next_job(), None);
    let collected = crowd.serve("a", &key, Operation::Acquire(ask)).outcome;
    assert!(matches!(collected, Ok(Outcome::Granted(_))), "{collected:?}");
    assert_eq!((crowd.manager.next_job(), crowd.manager.waiting()), (None, 1));
}

#[test]
fn long_names_are_hashed_once_in_a_step_whatever_else_their_owner_waits_for() {
    // What could go wrong: each of 64 names is copied and compared again for each key of each place of the owner.
    const LEN: usize = 2_000;
    let mut crowd = Crowd::new();
    let long = |from: usize| (from..from + 63).map(|n| name(&format!("{}{n:06}", "n".repeat(LEN - 6))));
    let hashed = |crowd: &mut Crowd, keys: &[KeyName], ask: Operation| {
        HASHED.set(0);
        let outcome = crowd.serve("o", keys, ask).outcome;
        // Its owner is hashed some times as well.
        assert!(HASHED.get() < 63 * LEN + LEN / 2, "{} bytes", HASHED.get());
        outcome
    };
    for place in 0..100 {
        let held = name(&format!("held{place}"));
        crowd.holds("h", Write, std::slice::from_ref(&held));
        let keys: Vec<KeyName> = [held].into_iter().chain(long(place * 63)).collect();
        let ask = Acquire { queue: Some(Millis(60_000)), ..acquire(Write, Wait::Never) };
        let outcome = hashed(&mut crowd, &keys, Operation::Acquire(ask.clone()));
        assert!(matches!(outcome, Ok(Outcome::Begun(Begun::Place(_)))), "{outcome:?}");
        let outcome = hashed(&mut crowd, &keys, Operation::Acquire(ask));
        assert_eq!(outcome, Ok(Outcome::Unavailable), "it has its place already");
    }
    let free: Vec<KeyName> = long(1_000_000 - 63).collect();
    let outcome = hashed(&mut crowd, &free, Operation::Acquire(acquire(Write, Wait::Never)));
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    let release = Release { mode: None, amount: Amount::All, fence: None };
    let outcome = hashed(&mut crowd, &free, Operation::Release(release));
    assert!(matches!(outcome, Ok(Outcome::Released(_))), "{outcome:?}");
}

#[test]
fn a_holder_that_may_pass_waiters_with_long_names_reads_a_bounded_part_of_their_keys() {
    // What could go wrong: a hundred waiters stand before a holder, each for its hold and for 62 keys with long names,
    // and to see that it may go before them it reads all of these.
    const LEN: usize = 2_000;
    let mut crowd = Crowd::new();
    for n in 0..100 {
        let held = name(&format!("held{n}"));
        crowd.holds("o", Write, std::slice::from_ref(&held));
        let others = (0..62).map(|at| name(&format!("{}{n}-{at}", "n".repeat(LEN))));
        let keys: Vec<KeyName> = others.chain([name("free"), held]).collect();
        crowd.waits(&format!("w{n}"), Write, &keys);
    }
    let tried = crowd.ask("o", Write, &[name("free")], Wait::Never);
    let cost = tried.peeked * (1 + LEN / 256);
    assert!((1_000..6_000).contains(&cost), "{} keys", tried.peeked);
}

/// The limits of each step: what it has open, and what it judges, before a waiter of so many keys.
fn assert_bounded(step: &Step, named: usize, keys: usize) {
    let limits = StepLimits::DEFAULT;
    let most = named + limits.keys_open + keys;
    assert!(step.most_open <= most, "{} keys are open at once, and may be {most}", step.most_open);
    let most = limits.keys_judged_first + limits.keys_judged + 2 * keys;
    assert!(step.opened <= most, "{} keys are opened in one step, and may be {most}", step.opened);
}

#[test]
fn a_step_has_few_keys_open_whatever_is_over_on_those_of_its_waiters() {
    // What could go wrong: each waiter has a key with a hold that is over, which the scan ends, and is blocked by
    // another one. Then all keys of all waiters stay open, or all with such a hold, and one step goes through them all.
    let (count, keys) = (400, 64);
    let mut crowd = Crowd::new();
    crowd.manager.limits.deadlock_detection = false;
    let session = Some(Session { connection: crowd.manager.sessions().connection(7), grace: Millis(0) });
    let (first, blocked, held) = (name("0"), name("blocked"), name("held"));
    crowd.holds("h", Write, std::slice::from_ref(&blocked));
    crowd.holds("t", Write, std::slice::from_ref(&held));
    let over: Vec<KeyName> = [first.clone()].into_iter().chain(names("over", count)).collect();
    for (n, key) in over.iter().enumerate() {
        let ask = binding(Write, Wait::Never, session);
        let step = crowd.serve(&format!("a{n}"), std::slice::from_ref(key), Operation::Acquire(ask));
        assert!(matches!(step.outcome, Ok(Outcome::Granted(_))));
    }
    for n in 0..count {
        let own = names(&format!("own{n}-"), keys - 3);
        let wanted: Vec<KeyName> =
            [first.clone(), over[1 + n].clone()].into_iter().chain(own).chain([blocked.clone()]).collect();
        crowd.waits(&format!("w{n}"), Read, &wanted);
    }
    crowd.waits("h", Write, &[first.clone(), held]);
    assert!(crowd.manager.disconnect(7, NOW.mono));
    // A step of a client on the first key, and then the background.
    let step = crowd.ask("stranger", Write, std::slice::from_ref(&first), Wait::Never);
    assert!(matches!(step.outcome, Ok(Outcome::Unavailable)), "{:?}", step.outcome);
    assert_bounded(&step, 1, keys);
    let (mut most, mut pieces) = (step.most_open, 0);
    while let Some(piece) = crowd.piece() {
        assert_bounded(&piece, 1, keys);
        assert!(piece.effects.wait_ends.is_empty(), "{:?}", piece.effects.wait_ends);
        (most, pieces) = (most.max(piece.most_open), pieces + 1);
        assert!(pieces < 10_000, "it does not come to an end");
    }
    println!("at most {most} keys were open in one step, of {} that waiters want", count * keys);
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (count + 1, None));
    assert!(crowd.manager.sessions().is_empty() && !crowd.keys.locks.contains_key(&(0, over[count].clone())));
}

/// Waiters for several keys that stand before all others, more than one step judges; the other key is busy.
fn crowd_before(key: &KeyName, mode: Mode) -> (Crowd, usize) {
    let (mut crowd, count) = (Crowd::new(), StepLimits::DEFAULT.keys_judged_first * 3 / 2);
    crowd.manager.limits.deadlock_detection = false;
    crowd.holds("busy", Write, &[name("busy")]);
    for n in 0..count {
        crowd.waits(&format!("many{n}"), mode, &[key.clone(), name("busy")]);
    }
    (crowd, count)
}

#[test]
fn the_end_of_a_queue_is_reached_though_a_holder_changes_the_lock_all_the_time() {
    // What could go wrong: each change of the lock has the scan begin at the head, so that none comes to the end. Or
    // marks of other causes do that.
    let key = [name("key")];
    let (mut crowd, count) = (Crowd::new(), StepLimits::DEFAULT.keys_judged_first * 3 / 2);
    crowd.manager.limits.deadlock_detection = false;
    crowd.holds("busy", Write, &[name("busy")]);
    crowd.holds("h", Read, &key);
    for n in 0..count {
        crowd.waits(&format!("many{n}"), Read, &[key[0].clone(), name("busy")]);
    }
    let writer = crowd.waits("w", Write, &key);
    crowd.waits("reader", Read, &key);
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.waiting(), count + 2);
    assert!(crowd.manager.cancel(writer, NOW.mono).is_some());
    for pieces in 0.. {
        assert!(pieces < 20, "the reader is not reached");
        let piece = crowd.piece().expect("the reader waits for nothing");
        assert_bounded(&piece, 1, 2);
        if grants(&piece.effects) == 1 {
            break;
        }
        // The holder takes the key again and gives it back, and one more waiter comes and goes.
        crowd.holds("h", Read, &key);
        let ask = Release { mode: None, amount: Amount::One, fence: None };
        let step = crowd.serve("h", &key, Operation::Release(ask));
        assert_bounded(&step, 1, 2);
        if grants(&step.effects) == 1 {
            break;
        }
        let late = crowd.waits(&format!("late{pieces}"), Write, &key);
        assert!(crowd.manager.cancel(late, NOW.mono).is_some());
    }
    while crowd.piece().is_some() {}
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (count, None));
}

#[test]
fn a_hand_off_behind_more_waiters_than_one_step_judges_is_made_in_the_background() {
    // What could go wrong: the step ends, and what is left of the queue is forgotten; or each piece begins at the head.
    let key = name("key");
    let (mut crowd, count) = crowd_before(&key, Read);
    let key = [key];
    crowd.holds("h", Read, &key);
    for n in 0..3 {
        crowd.waits(&format!("w{n}"), Write, &key);
    }
    let step = crowd.release("h", &key);
    assert_bounded(&step, 1, 2);
    assert!(step.effects.wait_ends.is_empty());
    // No newcomer takes it meanwhile.
    assert!(matches!(crowd.ask("late", Write, &key, Wait::Never).outcome, Ok(Outcome::Unavailable)));
    let mut pieces = 0;
    while let Some(piece) = crowd.piece() {
        assert_bounded(&piece, 1, 2);
        pieces += 1;
        assert!(pieces < 20, "it does not come to an end");
    }
    // The key is kept for the first, which waits for another one.
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (count + 3, None));
    assert!(!crowd.keys.locks.contains_key(&(0, key[0].clone())));
}

#[test]
fn a_reader_whose_owner_keeps_a_waiter_waiting_is_found_behind_many_that_do_not() {
    // What could go wrong: which of the readers behind a blocked one hold what a waiter before it wants is not known
    // before many locks and holders were looked at. Or it is not looked for.
    let (key, other) = ([name("key")], [name("other")]);
    let (count, readers) = (2 * StepLimits::DEFAULT.keys_judged, 3 * StepLimits::DEFAULT.keys_judged);
    let mut crowd = Crowd::new();
    crowd.manager.limits.deadlock_detection = false;
    crowd.holds("h", Write, &key);
    for n in 0..count {
        crowd.holds(&format!("holder{n}"), Read, &other);
    }
    crowd.holds("r7", Read, &other);
    crowd.holds("r701", Read, &other);
    crowd.waits("many", Write, &[key[0].clone(), other[0].clone()]);
    for n in 0..readers {
        crowd.waits(&format!("r{n}"), Read, &key);
    }
    let step = crowd.release("h", &key);
    let mut granted = grants(&step.effects);
    while let Some(piece) = crowd.piece() {
        assert_bounded(&piece, 1, 2);
        granted += grants(&piece.effects);
    }
    assert_eq!((granted, crowd.manager.waiting()), (2, 1 + readers - 2), "those that hold the other key");
    let lock = &crowd.keys.locks[&(0, key[0].clone())];
    assert_eq!(lock.holds.iter().map(|(owner, _)| owner.as_bytes()).collect::<Vec<_>>(), [&b"r7"[..], b"r701"]);
}

#[test]
fn waits_for_a_key_that_is_no_lock_any_more_end_in_pieces() {
    let key = name("key");
    let (mut crowd, count) = crowd_before(&key, Write);
    let mut ended = 0;
    while crowd.manager.queue_len(Db(0), &key, NOW.mono) > 0 {
        let ends = crowd.manager.end_waits(Db(0), &key, &request::WaitEnd::WrongType);
        let ends = ends.waits.len();
        assert!((1..=StepLimits::DEFAULT.answers).contains(&ends), "{ends}");
        ended += ends;
        let rest = count - ended;
        assert!(rest == 0 || matches!(crowd.manager.next_job(), Some(Job::ServeQueue(..))), "{rest} are forgotten");
    }
    assert_eq!((ended, crowd.manager.waiting(), crowd.manager.broken_invariant()), (count, 0, None));
}

/// A release of two keys, with waiters for each and for others, of which one is bound to a connection. It panics when
/// so many more keys were opened. Whether it did.
fn release_that_panics(after: usize) -> bool {
    let mut crowd = Crowd::new();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(name);
    let session = Some(Session { connection: crowd.manager.sessions().connection(7), grace: Millis(0) });
    crowd.holds("h", Write, &[a.clone(), b.clone()]);
    crowd.holds("over", Read, std::slice::from_ref(&d));
    let ask = binding(Write, Wait::Forever, session);
    assert!(crowd.serve("first", std::slice::from_ref(&a), Operation::Acquire(ask)).outcome.is_ok());
    crowd.waits("second", Write, &[b.clone(), c, e]);
    crowd.waits("third", Read, &[a.clone(), d]);
    let owners = |crowd: &Crowd| {
        let of = |((_, key), lock): (&(u32, KeyName), &Lock)| {
            let owners = lock.holds.iter().map(|(owner, _)| owner.clone());
            owners.map(|owner| (key.clone(), owner)).collect::<Vec<_>>()
        };
        crowd.keys.locks.iter().flat_map(of).collect::<std::collections::BTreeSet<_>>()
    };
    let mut expected = owners(&crowd);
    let (panic, changes) = crowd.on(&[a, b], |manager, keys| {
        let mut effects = Effects::new();
        let operation = Operation::Release(Release { mode: None, amount: Amount::All, fence: None });
        let request = Request { owner: Owner::new(b"h"), operation };
        keys.panics_after = Some(after);
        let served: Result<_, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| {
            drop(manager.serve(&mut step::Step::new(keys, NOW, &mut effects), &request));
        }));
        keys.panics_after = None;
        if served.is_err() {
            manager.recover(&mut step::Step::new(keys, NOW, &mut effects), true);
        }
        let names = &keys.step;
        let changes = effects.changes.iter().map(|change| (names[change.key.0].clone(), change.clone()));
        (served.err(), changes.collect::<Vec<_>>())
    });
    // What it has changed is what it says.
    for (key, change) in changes {
        match change.ended {
            true => assert!(expected.remove(&(key, change.owner))),
            false => drop(expected.insert((key, change.owner))),
        }
    }
    assert_eq!(owners(&crowd), expected, "a panic after {after} keys");
    for ((_, key), lock) in &crowd.keys.locks {
        let (earliest, _) = lock.holds.earliest().expect("I6");
        assert!(crowd.manager.covers(Db(0), lock, earliest), "I4 of {key:?} after {after} keys");
    }
    // Nobody waits for nothing after it.
    while crowd.piece().is_some() {}
    assert_eq!((crowd.manager.waiting(), crowd.manager.broken_invariant()), (1, None), "a panic after {after} keys");
    assert_eq!(crowd.manager.sessions().len(), 1, "the first holds, and that is bound to its connection");
    panic.is_some()
}

#[test]
fn what_a_step_that_panics_has_changed_is_told_and_followed_and_nobody_is_forgotten() {
    // What could go wrong: holds that replicas do not hear of, leases and bindings that end nothing, a queue whose scan
    // was under way.
    let panics = (0..).take_while(|after| release_that_panics(*after)).count();
    assert!(panics >= 2, "{panics} places at which it can panic");
}

/// A crowd with very many queues: 40 waiters, each for 64 keys of its own and one that is held. All have one owner, or
/// each has its own.
fn many_queues(owner: impl Fn(usize) -> String) -> Crowd {
    let mut crowd = Crowd::new();
    crowd.manager.limits.deadlock_detection = false;
    let busy = names("busy", 40);
    crowd.holds("h", Write, &busy);
    for (n, busy) in busy.into_iter().enumerate() {
        let mut wanted = names(&format!("own{n:02}-"), 64);
        wanted.push(busy);
        crowd.waits(&owner(n), Write, &wanted);
    }
    while crowd.piece().is_some() {}
    assert_eq!(crowd.manager.ready_len(), 0);
    crowd
}

/// Does all that is left, and returns how many queues were served. No piece marks more than it may.
fn serve_marked(crowd: &mut Crowd) -> usize {
    let mut served = 0;
    while let Some(job) = crowd.manager.next_job() {
        let before = crowd.manager.ready_len();
        match job {
            Job::MarkQueues => crowd.manager.mark_queues(),
            _ => {
                served += 1;
                let _ = crowd.piece();
            }
        }
        let marked = crowd.manager.ready_len().saturating_sub(before);
        assert!(marked <= StepLimits::DEFAULT.queues_marked + 64, "{marked} queues marked in one piece");
        assert!(served < 10_000, "it does not come to an end");
    }
    assert_eq!(crowd.manager.broken_invariant(), None);
    served
}

#[test]
fn a_new_hold_of_an_owner_that_waits_for_very_many_keys_has_few_of_their_queues_marked_at_once() {
    // What could go wrong: a thousand parked requests of one owner, for 64 keys each, had all queues marked by the step
    // that gave the owner one more hold.
    let mut crowd = many_queues(|_| "o".into());
    crowd.holds("o", Write, &[name("free")]);
    let marked = crowd.manager.ready_len();
    assert!((1..=StepLimits::DEFAULT.queues_marked + 64).contains(&marked), "{marked} queues marked in the step");
    // What is marked, or will be, is not marked again.
    for n in 0..10 {
        crowd.holds("o", Write, &[name(&format!("more{n}"))]);
    }
    assert_eq!(crowd.manager.ready_len(), marked);
    assert_eq!(serve_marked(&mut crowd), 40 * 65);
}

#[test]
fn an_emptied_or_swapped_database_with_very_many_queues_has_few_of_them_marked_at_once() {
    // What could go wrong: FLUSHALL, SWAPDB and the end of a grace marked each queue there is in one step.
    let sweeps: [fn(&mut Crowd); 4] = [
        |crowd| crowd.manager.flush(None),
        |crowd| crowd.manager.flush(Some(Db(0))),
        |crowd| crowd.manager.swap(Db(0), Db(1)),
        |crowd| crowd.manager.limit_holders(10_000),
    ];
    for sweep in sweeps {
        let mut crowd = many_queues(|n| format!("o{n}"));
        sweep(&mut crowd);
        let marked = crowd.manager.ready_len();
        // SWAPDB: of each database as many.
        assert!((1..=2 * StepLimits::DEFAULT.queues_marked).contains(&marked), "{marked} queues marked in the step");
        assert_eq!(serve_marked(&mut crowd), 40 * 65);
    }
}

#[test]
fn a_sweep_that_begins_anew_again_and_again_comes_to_each_queue() {
    // What could go wrong: each FLUSHALL begins with the first queue, and the last ones are never served.
    let mut crowd = many_queues(|n| format!("o{n}"));
    let mut served = std::collections::BTreeSet::new();
    for _ in 0..2 * 40 * 65 {
        crowd.manager.flush(Some(Db(0)));
        loop {
            match crowd.manager.next_job().expect("a sweep goes on") {
                Job::MarkQueues => crowd.manager.mark_queues(),
                Job::ServeQueue(_, name) => {
                    served.insert(name.to_vec());
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        let _ = crowd.piece();
    }
    assert_eq!(served.len(), 40 * 65);
}

#[test]
fn a_step_on_a_key_that_a_sweep_has_not_come_to_serves_its_waiters_first() {
    // What could go wrong: the databases change places, and a key that was held is held for reading now. A reader comes
    // before the background comes to the queue, and the waiters are not served before it.
    let mut crowd = many_queues(|n| format!("o{n}"));
    let last = name("zzz");
    crowd.holds("w", Write, std::slice::from_ref(&last));
    crowd.waits("first", Read, std::slice::from_ref(&last));
    crowd.waits("second", Write, std::slice::from_ref(&last));
    crowd.keys.db = 1;
    crowd.holds("r", Read, std::slice::from_ref(&last));
    crowd.keys.db = 0;
    let locks = std::mem::take(&mut crowd.keys.locks);
    crowd.keys.locks = locks.into_iter().map(|((db, name), lock)| ((1 - db, name), lock)).collect();
    crowd.manager.swap(Db(0), Db(1));
    let step = crowd.ask("late", Read, std::slice::from_ref(&last), Wait::Never);
    assert_eq!(grants(&step.effects), 1, "the first reader");
    assert!(matches!(step.outcome, Ok(Outcome::Unavailable)), "{:?}", step.outcome);
}
