//! Every history of a few steps of two or three owners on two keys. Histories that are the same but for names are
//! played once.
//!
//! `REDIS_LOCK_HISTORIES=full` plays them to their full length, else they are one step shorter; it also has the random
//! tests play all of their histories.

use lock_core::model::hold::Mode;
use lock_core::model::request::{Amount, Wait};
use lock_core::model::time::Millis;
use naive_model::words::Rules;
use naive_model::world::{Named, Op, RULES, World, acquire, release};
use std::ops::Range;

/// In how many tests each set of histories is played, so that all processors work to the end.
const PARTS: usize = 4;

/// What can happen at each step: every operation by every owner on every key, and time.
fn ops() -> Vec<Op> {
    // A lease that one passing of time ends, and one that it does not.
    let mut ops = vec![Op::Pass { us: 10_000 }];
    for key in [b'j', b'k'] {
        for owner in [b'a', b'b'] {
            for (mode, lease) in [(Mode::Read, 10), (Mode::Write, 15)] {
                ops.push(acquire(owner, mode, &[key]).lease(lease));
                let (keys, mode, amount, fence) = (vec![key], Some(mode), Amount::One, Named::None);
                ops.push(Op::Release { db: 0, keys, owner, mode, amount, fence });
            }
            let keys = vec![key];
            ops.push(Op::Extend { keys, owner, lease: 25, fence: Named::None, session: None, note: None });
        }
    }
    ops
}

/// What two owners that wait can do, on two keys of which one may be requested with the other.
fn ops_with_waiting() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Lose { nth: 0 }];
    for owner in *b"abc" {
        for (keys, mode) in [(&b"j"[..], Mode::Read), (b"j", Mode::Write), (b"k", Mode::Write), (b"jk", Mode::Write)] {
            // One key waits for a limited time, which passes with one passing of time or not; one without.
            let wait = if keys == b"k" { Wait::For(Millis(15)) } else { Wait::Forever };
            ops.push(acquire(owner, mode, keys).lease(15).wait(wait));
        }
        ops.push(release(owner, b"jk", Amount::All));
    }
    ops
}

/// What two owners can do whose holds end with their connections: on one key, or with a second key as well.
fn ops_with_sessions() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Break { key: b'j', owner: None }];
    for client in 0..2 {
        for late in [false, true] {
            ops.push(Op::Close { client, late });
        }
    }
    for owner in *b"ab" {
        let bound =
            |keys: &[u8], mode, session| acquire(owner, mode, keys).lease(15).wait(Wait::Forever).session(session);
        // One outlives its connection by less than a passing of time, and the other ends with it.
        ops.push(bound(b"j", Mode::Write, Some((0, 0))));
        ops.push(bound(b"j", Mode::Read, Some((1, 5))));
        ops.push(bound(b"jk", Mode::Write, Some((1, 0))));
        let (keys, session) = (b"jk".to_vec(), Some((0, 5)));
        ops.push(Op::Extend { keys, owner, lease: 25, fence: Named::None, session, note: None });
        ops.push(release(owner, b"jk", Amount::All));
    }
    ops.extend(b"ab".map(|owner| Op::Guard { db: 0, key: b'j', owner, fence: Named::Own }));
    ops
}

/// What three owners can do on two keys, of which one is held for reading while both are requested.
fn ops_with_upgrades() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }];
    for owner in *b"abc" {
        for (keys, mode) in [(&b"j"[..], Mode::Read), (b"k", Mode::Write), (b"jk", Mode::Read), (b"jk", Mode::Write)] {
            ops.push(acquire(owner, mode, keys).lease(25).wait(Wait::Forever));
        }
        ops.push(release(owner, b"jk", Amount::All));
    }
    ops
}

/// What two owners can do whose places outlive their requests, beside one that holds: on one key, or with a second.
fn ops_with_places() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Lose { nth: 0 }, Op::Delete { key: b'j' }];
    let acquire = |owner, keys: &[u8], wait, queue| acquire(owner, Mode::Write, keys).lease(25).wait(wait).queue(queue);
    for owner in *b"ab" {
        // A place ends with one passing of time, or outlives it.
        ops.push(acquire(owner, b"j", Wait::Never, Some(15)));
        ops.push(acquire(owner, b"j", Wait::For(Millis(5)), Some(8)));
        ops.push(acquire(owner, b"jk", Wait::Never, Some(15)));
        ops.push(acquire(owner, b"j", Wait::Forever, None));
    }
    ops.push(acquire(b'c', b"j", Wait::Never, None));
    for owner in *b"abc" {
        ops.push(release(owner, b"j", Amount::All));
    }
    // As the owner of an offer would, whose fence LOCK.INFO shows.
    ops.extend(b"ab".map(|owner| Op::Guard { db: 0, key: b'j', owner, fence: Named::Own }));
    ops
}

/// What two owners can do around a grace of which one passing of time is half: one holds when it begins, and both ask,
/// with a place or a client, for one key or two.
fn ops_with_grace() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Late { us: 10_000 }, Op::SetGrace { ms: 0 }];
    let acquire = |owner, keys: &[u8], mode, wait, queue| acquire(owner, mode, keys).lease(25).wait(wait).queue(queue);
    for owner in *b"ab" {
        ops.push(acquire(owner, b"j", Mode::Read, Wait::Never, None));
        ops.push(acquire(owner, b"j", Mode::Write, Wait::Forever, None));
        // Its time is up within the grace, with it, or after it.
        ops.push(acquire(owner, b"jk", Mode::Read, Wait::For(Millis(20)), None));
        ops.push(acquire(owner, b"j", Mode::Write, Wait::Never, Some(15)));
        ops.push(acquire(owner, b"k", Mode::Write, Wait::For(Millis(5)), Some(30)));
    }
    ops.push(release(b'a', b"jk", Amount::All));
    ops
}

/// What three owners can do that share one key, with a client that waits, with a place, or without either.
fn ops_with_shares() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }];
    let acquire =
        |owner, mode, share, wait, queue| acquire(owner, mode, b"j").lease(25).wait(wait).queue(queue).share(share);
    let shares = |owner, share, wait, queue| acquire(owner, Mode::Read, Some(share), wait, queue);
    for owner in *b"ab" {
        ops.push(shares(owner, (3, 2), Wait::Forever, None));
        // A place ends with one passing of time, or outlives it. Its limit becomes another one.
        ops.push(shares(owner, (2, 1), Wait::Never, Some(15)));
        ops.push(shares(owner, (1, 1), Wait::For(Millis(5)), Some(8)));
        ops.push(release(owner, b"j", Amount::One));
    }
    ops.push(acquire(b'b', Mode::Write, None, Wait::Forever, None));
    ops.push(shares(b'c', (2, 2), Wait::Forever, None));
    ops.push(acquire(b'c', Mode::Read, None, Wait::Forever, None));
    ops.push(release(b'c', b"j", Amount::To(1)));
    ops
}

/// A set of histories: how they begin, and what can happen then.
struct Histories {
    rules: Rules,
    /// What has happened before.
    before: Vec<Op>,
    ops: Vec<Op>,
    /// Which of them can be the first: before the others nothing could come of it.
    first: Range<usize>,
    steps: usize,
}

impl Histories {
    fn new(before: &[usize], ops: Vec<Op>) -> Histories {
        let before = before.iter().map(|at| ops[*at].clone()).collect();
        Histories { rules: Rules { reserve_us: 10_000, ..RULES }, before, first: 0..ops.len(), ops, steps: 5 }
    }

    /// Every way in which owners and keys can change places so that the same things can happen, each with the ops that
    /// stand for these then.
    fn mirrors(&self) -> Vec<(Renaming, Vec<usize>)> {
        let of = |ops: &[Op]| ops.iter().map(|op| format!("{op:?}")).collect::<Vec<_>>();
        let (ops, before) = (of(&self.ops), of(&self.before));
        let mirrors = Renaming::all().filter_map(|renaming| {
            let renamed = |ops: &[Op]| of(&ops.iter().map(|op| renaming.of(op)).collect::<Vec<_>>());
            let places = renamed(&self.ops).iter().map(|op| ops.iter().position(|other| other == op)).collect();
            (renamed(&self.before) == before).then_some((renaming, places)).and_then(|(renaming, places)| {
                let places: Option<Vec<usize>> = places;
                Some((renaming, places?))
            })
        });
        mirrors.collect()
    }

    fn world(&self) -> World {
        let mut world = World::new(self.rules);
        self.before.iter().for_each(|op| world.step(op));
        world
    }

    /// Plays one part of them, and gives how many there were.
    fn play(&self, part: usize, steps: usize) -> u64 {
        let mirrors = self.mirrors();
        let (count, mut histories) = (self.ops.len(), 0);
        for number in 0..count.pow(u32::try_from(steps).expect("few")) {
            let mut digits = vec![0; steps];
            digits.iter_mut().rev().fold(number, |rest, digit| {
                *digit = rest % count;
                rest / count
            });
            // By the first two steps: the first alone makes parts of unequal size.
            let is_here = (digits[0] * count + digits[1]) % PARTS == part && self.first.contains(&digits[0]);
            let is_mirror = |(_, places): &(_, Vec<usize>)| digits.iter().map(|digit| &places[*digit]).lt(&digits);
            if is_here && !mirrors.iter().any(is_mirror) {
                let mut world = self.world();
                digits.iter().for_each(|digit| world.step(&self.ops[*digit]));
                world.check();
                histories += 1;
            }
        }
        histories
    }
}

/// Other names for owners and keys.
#[derive(Clone, Copy, Debug)]
struct Renaming {
    owners: [u8; 3],
    swaps_keys: bool,
}

impl Renaming {
    /// All, but the one that changes nothing.
    fn all() -> impl Iterator<Item = Renaming> {
        let owners = [*b"abc", *b"acb", *b"bac", *b"bca", *b"cab", *b"cba"];
        let all = owners.into_iter().flat_map(|owners| [false, true].map(|swaps_keys| Renaming { owners, swaps_keys }));
        all.skip(1)
    }

    fn owner(&self, owner: u8) -> u8 {
        self.owners[usize::from(owner - b'a')]
    }

    fn key(&self, key: u8) -> u8 {
        if self.swaps_keys { b'j' + b'k' - key } else { key }
    }

    fn of(&self, op: &Op) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::Acquire { keys, owner, .. } | Op::Release { keys, owner, .. } | Op::Extend { keys, owner, .. } => {
                keys.iter_mut().for_each(|key| *key = self.key(*key));
                *owner = self.owner(*owner);
            }
            Op::Guard { key, owner, .. } => (*key, *owner) = (self.key(*key), self.owner(*owner)),
            Op::Break { key, owner } => (*key, *owner) = (self.key(*key), owner.map(|owner| self.owner(owner))),
            Op::Delete { key } => *key = self.key(*key),
            Op::Pass { .. } | Op::Late { .. } | Op::Lose { .. } | Op::Close { .. } | Op::SetGrace { .. } => {}
            Op::Grace { .. } => {}
            other => panic!("no step of these histories: {other:?}"),
        }
        op
    }
}

/// Of single keys, without waiting.
fn plain() -> Vec<Histories> {
    let ops = ops();
    let rules = Rules { holders_max: 2, ..RULES };
    vec![Histories { rules, first: 1..ops.len(), ..Histories::new(&[], ops) }]
}

/// Of waiters and their grants.
fn with_waiting() -> Vec<Histories> {
    let ops = ops_with_waiting();
    vec![Histories { first: 2..ops.len(), ..Histories::new(&[], ops) }]
}

/// Of what is bound to which connection when that closes. Owner a asks first.
fn with_sessions() -> Vec<Histories> {
    vec![Histories { first: 6..9, ..Histories::new(&[], ops_with_sessions()) }]
}

/// Of one that stands first at one key and last at another. Owner a begins, and has a key.
fn with_upgrades() -> Vec<Histories> {
    let of = |detects, before| {
        let histories = Histories::new(&[before], ops_with_upgrades());
        Histories { rules: Rules { detects, ..histories.rules }, steps: 4, ..histories }
    };
    vec![of(true, 1), of(true, 2), of(false, 1), of(false, 2)]
}

/// Of requests that come again, late or never, and of grants that lie there for them. Owner c begins, and has the key.
fn with_places() -> Vec<Histories> {
    vec![Histories::new(&[11], ops_with_places())]
}

/// Of a grace, in which nothing is granted for a while, also to holders: owner a has the key for reading, or for
/// writing, or nobody has.
fn in_a_grace() -> Vec<Histories> {
    let of = |held: Option<Mode>| {
        let held = held.map(|mode| {
            let (keys, wait, session, queue, share) = (b"j".to_vec(), Wait::Never, None, None, None);
            let (owner, lease, note, retry) = (b'a', 35, None, None);
            Op::Acquire { db: 0, keys, owner, mode, lease, note, wait, retry, session, queue, share }
        });
        let before = held.into_iter().chain([Op::Grace { ms: 20 }]).collect();
        Histories { before, steps: 4, ..Histories::new(&[], ops_with_grace()) }
    };
    vec![of(Some(Mode::Read)), of(Some(Mode::Write)), of(None)]
}

/// Of how many reads there are, whose limit counts, and who is first in line. Owner c begins, and has all shares.
fn with_shares() -> Vec<Histories> {
    let histories = Histories::new(&[10], ops_with_shares());
    vec![Histories { rules: RULES, ..histories }]
}

/// Of steps that do so little that what is left of a queue could be forgotten, or served out of order.
fn of_small_steps() -> Vec<Histories> {
    let sets = [(ops_with_waiting(), 4), (ops_with_places(), 11), (ops_with_shares(), 10), (ops_with_upgrades(), 1)];
    let of = |(ops, before)| {
        let histories = Histories::new(&[before], ops);
        Histories { rules: Rules { small_steps: true, ..histories.rules }, steps: 4, ..histories }
    };
    sets.into_iter().map(of).collect()
}

/// Whether histories are played to the end, and all random ones: `.ci/run` does.
pub(crate) fn is_full() -> bool {
    std::env::var("REDIS_LOCK_HISTORIES").is_ok_and(|depth| depth == "full")
}

/// Plays one part of these sets. As many histories must be played as are recorded, else a change has lost some.
fn play(sets: Vec<Histories>, part: usize, full: [u64; PARTS], shorter: [u64; PARTS]) {
    let count: u64 = sets.iter().map(|set| set.play(part, set.steps - usize::from(!is_full()))).sum();
    println!("{count} histories");
    assert_eq!(count, if is_full() { full } else { shorter }[part], "histories");
}

/// The tests of each set, with the numbers of histories of their parts: at full length, and a step shorter.
macro_rules! every_history {
    ($($set:ident: $full:expr, $shorter:expr;)*) => {$(
        mod $set {
            every_history!($set, $full, $shorter; agrees_with_the_model_1 0, agrees_with_the_model_2 1);
            every_history!($set, $full, $shorter; agrees_with_the_model_3 2, agrees_with_the_model_4 3);
        }
    )*};
    ($set:ident, $full:expr, $shorter:expr; $($test:ident $part:expr),*) => {$(
        #[test]
        fn $test() {
            super::play(super::$set(), $part, $full, $shorter);
        }
    )*};
}

// What could go wrong: a combination that random histories are unlikely to meet.
every_history! {
    plain: [240_786, 250_047, 240_786, 240_786], [11_466, 11_907, 11_466, 11_466];
    with_waiting: [53_130, 55_415, 53_130, 53_130], [3_255, 3_375, 3_255, 3_255];
    with_sessions: [81_648, 81_648, 75_816, 75_816], [4_536, 4_536, 4_212, 4_212];
    with_upgrades: [33_632, 33_632, 36_272, 30_128], [2_192, 2_192, 2_312, 1_928];
    with_places: [179_762, 177_243, 177_243, 177_243], [10_636, 10_479, 10_479, 10_479];
    in_a_grace: [28_812, 28_812, 28_812, 28_812], [2_058, 2_058, 2_058, 2_058];
    with_shares: [94_471, 92_274, 92_274, 92_274], [7_267, 7_098, 7_098, 7_098];
    of_small_steps: [37_009, 36_683, 37_223, 36_096], [2_399, 2_375, 2_400, 2_326];
}

#[test]
fn names_of_owners_and_keys_do_not_matter() {
    // What could go wrong: a history is skipped for a mirror of it, and something else would have come of it.
    let mut compared = 0;
    let sets = [plain(), with_waiting(), with_sessions(), with_upgrades(), with_places(), of_small_steps()];
    for set in sets.iter().flatten() {
        for (renaming, places) in set.mirrors() {
            // Numbers that differ in all digits, as if at random, and the same in each run.
            for number in (1..=200_usize).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
                let (mut world, mut mirror) = (set.world(), set.world());
                for step in 0..8 {
                    let digit = (number >> (8 * step)) % set.ops.len();
                    world.step(&set.ops[digit]);
                    mirror.step(&set.ops[places[digit]]);
                    let mut rows = world.naive.rows.clone();
                    for row in &mut rows {
                        (row.owner, row.key) = (renaming.owner(row.owner), renaming.key(row.key));
                    }
                    rows.sort();
                    let mut others = mirror.naive.rows.clone();
                    others.sort();
                    assert_eq!((&world.last, rows), (&mirror.last, others), "{renaming:?} of {number:x}");
                }
                mirror.check();
                compared += 1;
            }
        }
    }
    assert!(compared > 3_000, "{compared}");
}
