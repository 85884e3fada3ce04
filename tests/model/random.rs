//! Long random histories of few owners and few keys, so that they collide. A failing one is shrunk and printed, and its
//! seed is kept beside this file.

use crate::exhaustive::is_full;
use lock_core::model::hold::Mode;
use lock_core::model::request::{Amount, Wait};
use lock_core::model::time::Millis;
use naive_model::words::Rules;
use naive_model::world::{Bound, Least, Named, Op, RULES, World, acquire, release};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    // Mostly one key, as most requests have.
    prop_oneof![
        6 => (b'j'..=b'l').prop_map(|key| vec![key]),
        1 => Just(vec![b'j', b'k']),
        1 => Just(vec![b'l', b'j', b'k']),
    ]
}

/// Those for several keys are what is hard about waiting.
fn keys_of_waiters() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (b'j'..=b'l').prop_map(|key| vec![key]),
        2 => Just(vec![b'j', b'k']),
        1 => Just(vec![b'k', b'l']),
        1 => Just(vec![b'l', b'j', b'k']),
    ]
}

fn session() -> impl Strategy<Value = Option<Bound>> {
    let grace = prop_oneof![2 => Just(0u64), 1 => 1..20u64, 1 => Just(100_000)];
    prop_oneof![3 => Just(None), 2 => (0..3u8, grace).prop_map(Some)]
}

fn close() -> impl Strategy<Value = Op> {
    (0..3u8, any::<bool>()).prop_map(|(client, late)| Op::Close { client, late })
}

fn break_holds() -> impl Strategy<Value = Op> {
    (b'j'..=b'l', option::of(b'a'..=b'e')).prop_map(|(key, owner)| Op::Break { key, owner })
}

fn guard() -> impl Strategy<Value = Op> {
    let fence = prop_oneof![4 => Just(Named::Own), 1 => Just(Named::Other)];
    let db = prop_oneof![9 => Just(0u32), 1 => Just(1u32)];
    (db, b'j'..=b'l', b'a'..=b'e', fence).prop_map(|(db, key, owner, fence)| Op::Guard { db, key, owner, fence })
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![4 => Just(Amount::One), 1 => Just(Amount::All), 1 => (0..3u32).prop_map(Amount::To)]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![4 => Just(Named::None), 1 => Just(Named::Own), 1 => Just(Named::Other)]
}

/// Another note, none from now on, or what is there.
fn note_of_extension() -> impl Strategy<Value = Option<Option<u8>>> {
    option::of(option::of(b'x'..=b'z'))
}

/// The commands of a transaction or a script. The present moves on between them, so that some leases are over within.
fn unit(
    request: impl Strategy<Value = Op> + 'static,
    us: impl Strategy<Value = u64> + 'static,
) -> impl Strategy<Value = Op> {
    let key = || b'j'..=b'l';
    let command = prop_oneof![
        12 => request,
        6 => us.prop_map(|us| Op::Pass { us }),
        1 => break_holds(),
        1 => key().prop_map(|key| Op::Delete { key }),
        1 => any::<bool>().prop_map(|all| Op::Flush { all }),
    ];
    // Without RENAME and SWAPDB: the model does not tell for how long a key is reserved to which a lock comes and that
    // it leaves within one unit. The tests in units.rs have cases of that.
    vec(command, 2..8).prop_map(|commands| Op::Unit { commands })
}

fn request() -> impl Strategy<Value = Op> {
    let owner = || b'a'..=b'd';
    let lease = || prop_oneof![1..5u64, 1..200u64, Just(100_000)];
    prop_oneof![
        10 => (keys(), owner(), mode(), lease(), option::of(b'x'..=b'z'), session())
            .prop_map(|(keys, owner, mode, lease, note, session)| {
                acquire(owner, mode, &keys).lease(lease).note(note).session(session)
            }),
        7 => (keys(), owner(), option::of(mode()), amount(), named())
            .prop_map(|(keys, owner, mode, amount, fence)| Op::Release { db: 0, keys, owner, mode, amount, fence }),
        3 => (keys(), owner(), lease(), named(), session(), note_of_extension())
            .prop_map(|(keys, owner, lease, fence, session, note)| {
                Op::Extend { keys, owner, lease, fence, session, note }
            }),
        2 => guard(),
    ]
}

/// Which fence a hold is to have at least: about those that decide what it gets.
fn least() -> impl Strategy<Value = Least> {
    let by = || prop_oneof![3 => -2..=2i64, 1 => -5_000..5_000i64];
    prop_oneof![
        3 => by().prop_map(Least::Last),
        2 => by().prop_map(Least::Wall),
        3 => by().prop_map(Least::Furthest),
        3 => by().prop_map(Least::Highest),
        1 => Just(Least::Max),
    ]
}

/// The same, some of those that give fences with a least one.
fn with_fences(op: impl Strategy<Value = Op> + 'static) -> impl Strategy<Value = Op> {
    (op, least(), any::<bool>()).prop_map(|(op, fence, is_asked)| raise(op, fence, is_asked))
}

fn raise(op: Op, fence: Least, is_asked: bool) -> Op {
    match op {
        Op::Acquire { .. } | Op::Extend { .. } if is_asked => Op::AtLeast { fence, of: Box::new(op) },
        Op::Unit { commands } => {
            // Every other one.
            let raised = commands.into_iter().enumerate();
            let raised = raised.map(|(at, op)| raise(op, fence, is_asked == at.is_multiple_of(2)));
            Op::Unit { commands: raised.collect() }
        }
        op => op,
    }
}

fn op() -> impl Strategy<Value = Op> {
    let key = || b'j'..=b'l';
    let us = || prop_oneof![1..3_000u64, 1..200_000u64];
    prop_oneof![
        22 => request(),
        3 => unit(request(), us()),
        2 => close(),
        1 => break_holds(),
        1 => us().prop_map(|us| Op::Pass { us }),
        3 => us().prop_map(|us| Op::Late { us }),
        1 => (0..2_000_000u64).prop_map(|us| Op::SetWall { us }),
        3 => prop_oneof![Just(1usize), Just(usize::MAX)].prop_map(|most| Op::Alarm { most }),
        1 => key().prop_map(|key| Op::Delete { key }),
        1 => (key(), key()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => key().prop_map(|key| Op::Move { key }),
        1 => key().prop_map(|key| Op::Reload { key }),
        1 => Just(Op::Swap),
        1 => any::<bool>().prop_map(|all| Op::Flush { all }),
        1 => Just(Op::Promote),
        1 => prop_oneof![Just(0u64), 1..10u64, 1..200u64].prop_map(|ms| Op::Grace { ms }),
    ]
}

fn request_with_waiting() -> impl Strategy<Value = Op> {
    let owner = || b'a'..=b'e';
    let db = || prop_oneof![9 => Just(0u32), 1 => Just(1u32)];
    let lease = || prop_oneof![1..5u64, 1..60u64, Just(100_000)];
    let wait = || {
        prop_oneof![
            1 => Just(Wait::Never),
            3 => (1..40u64).prop_map(|ms| Wait::For(Millis(ms))),
            5 => Just(Wait::Forever),
        ]
    };
    let retry = || prop_oneof![4 => Just(None), 1 => (1..4u32).prop_map(Some)];
    let queue = || prop_oneof![2 => Just(None), 1 => (1..60u64).prop_map(Some), 1 => Just(Some(1_000))];
    // Drawn together: a tuple of strategies has at most ten.
    let keeping = || (retry(), session(), queue());
    prop_oneof![
        16 => (db(), keys_of_waiters(), owner(), mode(), lease(), option::of(b'x'..=b'z'), wait(), keeping())
            .prop_map(|(db, keys, owner, mode, lease, note, wait, (retry, session, queue))| {
                Op::Acquire { db, keys, owner, mode, lease, note, wait, retry, session, queue, share: None }
            }),
        8 => (db(), keys_of_waiters(), owner(), option::of(mode()), amount(), named())
            .prop_map(|(db, keys, owner, mode, amount, fence)| Op::Release { db, keys, owner, mode, amount, fence }),
        2 => (keys_of_waiters(), owner(), lease(), named(), session(), note_of_extension())
            .prop_map(|(keys, owner, lease, fence, session, note)| {
                Op::Extend { keys, owner, lease, fence, session, note }
            }),
        2 => guard(),
    ]
}

/// Waiting adds up in whole milliseconds: the wheel does not ring in between.
fn op_with_waiting() -> impl Strategy<Value = Op> {
    let key = || b'j'..=b'l';
    let ms = || prop_oneof![1..4u64, 1..60u64].prop_map(|ms| ms * 1000);
    let nth = || 0..100usize;
    let one = prop_oneof![
        28 => request_with_waiting(),
        3 => unit(request_with_waiting(), ms()),
        2 => close(),
        1 => break_holds(),
        3 => ms().prop_map(|us| Op::Pass { us }),
        2 => ms().prop_map(|us| Op::Late { us }),
        2 => nth().prop_map(|nth| Op::Lose { nth }),
        1 => nth().prop_map(|nth| Op::Deliver { nth }),
        1 => nth().prop_map(|nth| Op::Cancel { nth }),
    ];
    let rare = prop_oneof![
        2 => prop_oneof![Just(1usize), Just(usize::MAX)].prop_map(|most| Op::Alarm { most }),
        2 => key().prop_map(|key| Op::Delete { key }),
        4 => (key(), key()).prop_map(|(from, to)| Op::Rename { from, to }),
        2 => key().prop_map(|key| Op::Move { key }),
        2 => key().prop_map(|key| Op::Reload { key }),
        3 => Just(Op::Swap),
        1 => any::<bool>().prop_map(|all| Op::Flush { all }),
        1 => key().prop_map(|key| Op::SetOver { key }),
        1 => Just(Op::Dismiss),
        5 => prop_oneof![1..10u64, 1..200u64].prop_map(|ms| Op::Grace { ms }),
        2 => prop_oneof![Just(0u64), 1..100u64].prop_map(|ms| Op::SetGrace { ms }),
        1 => Just(Op::Promote),
        1 => (0..2_000_000u64).prop_map(|us| Op::SetWall { us }),
    ];
    prop_oneof![9 => one, 1 => rare]
}

/// Of how many shares it takes how many, and how many its owner is to have afterwards.
fn share() -> impl Strategy<Value = ((u32, u32), Option<u32>)> {
    let of = |limit: u32| (Just(limit), 1..=limit);
    let retried = |(limit, take): (u32, u32)| (Just((limit, take)), option::weighted(0.25, take..=limit));
    (1..5u32).prop_flat_map(of).prop_flat_map(retried)
}

/// Requests for shares among all else. They are apart from the others, so that the seeds of these keep their meaning.
fn op_with_shares() -> impl Strategy<Value = Op> {
    let key = prop_oneof![4 => Just(b'j'), 1 => Just(b'k')];
    let lease = prop_oneof![1..5u64, 1..200u64, Just(100_000)];
    let shares =
        (key, b'a'..=b'd', lease, share(), session()).prop_map(|(key, owner, lease, (share, retry), session)| {
            acquire(owner, Mode::Read, &[key]).lease(lease).retry(retry).session(session).share(Some(share))
        });
    prop_oneof![3 => op(), 1 => shares]
}

/// As above, with most about one key.
fn op_with_shares_and_waiting() -> impl Strategy<Value = Op> {
    let db = prop_oneof![19 => Just(0u32), 1 => Just(1u32)];
    let key = prop_oneof![6 => Just(b'j'), 1 => Just(b'k'), 1 => Just(b'l')];
    let lease = prop_oneof![1..5u64, 1..60u64, Just(100_000)];
    let wait = prop_oneof![
        1 => Just(Wait::Never),
        2 => (1..40u64).prop_map(|ms| Wait::For(Millis(ms))),
        3 => Just(Wait::Forever),
    ];
    let queue = prop_oneof![3 => Just(None), 1 => (1..60u64).prop_map(Some), 1 => Just(Some(1_000))];
    let shares = (db, key, b'a'..=b'e', lease, wait, share(), session(), queue).prop_map(
        |(db, key, owner, lease, wait, (share, retry), session, queue)| {
            let (keys, mode, note, share) = (vec![key], Mode::Read, None, Some(share));
            Op::Acquire { db, keys, owner, mode, lease, note, wait, retry, session, queue, share }
        },
    );
    let gives_back = (b'a'..=b'e', amount()).prop_map(|(owner, amount)| release(owner, b"j", amount));
    prop_oneof![5 => op_with_waiting(), 4 => shares, 2 => gives_back]
}

/// Times to live among all that, of keys that are waited for more often than not.
fn op_with_expiry() -> impl Strategy<Value = Op> {
    let key = prop_oneof![4 => Just(b'j'), 1 => Just(b'k'), 1 => Just(b'l')];
    let expire = (key, option::weighted(0.9, 1..60u64)).prop_map(|(key, ms)| Op::Expire { key, ms });
    prop_oneof![6 => op_with_shares_and_waiting(), 1 => expire]
}

fn rules() -> impl Strategy<Value = Rules> {
    let reserve_us = prop_oneof![2 => Just(20_000u64), 1 => Just(2_000), 1 => Just(1_000_000)];
    let away_us = prop_oneof![Just(0u64), Just(1_000), Just(15_000)];
    let waiters = prop_oneof![3 => Just((99usize, 99usize)), 1 => (2..6usize, 1..4usize)];
    (1..4usize, waiters, (reserve_us, away_us), any::<bool>(), ended_max()).prop_map(
        |(holders_max, (waiters_max, waiters_per_key_max), (reserve_us, away_us), detects, ended_max)| Rules {
            holders_max,
            waiters_max,
            waiters_per_key_max,
            places_max: waiters_max,
            away_us,
            reserve_us,
            detects,
            ended_max,
            small_steps: false,
            marked_max: holders_max,
        },
    )
}

/// How many holds that are over one step ends: often so few that some are left.
fn ended_max() -> impl Strategy<Value = usize> {
    prop_oneof![2 => Just(RULES.ended_max), 2 => Just(1), 1 => Just(2)]
}

/// How many histories at least; more with PROPTEST_CASES.
pub(crate) fn cases() -> u32 {
    ProptestConfig::default().cases.max(if is_full() { 4_000 } else { 500 })
}

/// A world in which some requests cannot wait, and some places are due when nothing can be granted.
fn waiting(mut world: World) -> World {
    (world.some_cannot_wait, world.some_places_are_overdue) = (true, true);
    world
}

fn play(mut world: World, ops: &[Op]) {
    ops.iter().for_each(|op| world.then(op));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn core_replica_and_model_agree_after_every_step(
        holders_max in 1..4usize,
        ended_max in ended_max(),
        ops in vec(op(), 1..80),
    ) {
        // What could go wrong: anything. The model has no index, no trees, no effects and no verdicts.
        play(World::new(Rules { holders_max, ended_max, ..RULES }), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_on_waiters(rules in rules(), ops in vec(op_with_waiting(), 1..60)) {
        // What could go wrong: a waiter that could be served waits, or one that should wait is served; a deadlock is
        // missed, or reported where there is none.
        play(waiting(World::new(rules)), &ops);
    }

    #[test]
    fn deadlocks_of_holders_are_found_though_queues_are_read_for_a_while_alone(
        rules in rules(),
        units in prop_oneof![Just(0usize), 1..200usize, 1..1_000usize],
        ops in vec(op_with_shares_and_waiting(), 1..60),
    ) {
        // What could go wrong: a cycle of two or three holders is missed when a search is given up; or a search that is
        // given up halfway finds a cycle that is none, or is counted though nobody waits for the requester.
        play(waiting(World::searching(Rules { detects: true, ..rules }, units)), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_where_a_step_does_little(
        rules in rules(),
        few in any::<bool>(),
        ops in vec(op_with_shares_and_waiting(), 1..60),
    ) {
        // What could go wrong: what a step leaves is forgotten, done out of order, or never comes to an end; a key that
        // it closes had changed, or another takes its index.
        let holders_max = if few { rules.holders_max } else { 9 };
        play(waiting(World::new(Rules { holders_max, small_steps: true, ..rules })), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_on_fences(
        holders_max in 1..4usize,
        ended_max in ended_max(),
        ops in vec(with_fences(op()), 1..80),
    ) {
        // What could go wrong: a fence that a client asks for goes back, or is given twice, or carries the clock away.
        play(World::new(Rules { holders_max, ended_max, ..RULES }), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_on_fences_of_waiters(
        rules in rules(),
        ops in vec(with_fences(op_with_shares_and_waiting()), 1..60),
    ) {
        play(waiting(World::new(rules)), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_on_shares(
        holders_max in 1..5usize,
        ended_max in ended_max(),
        ops in vec(op_with_shares(), 1..80),
    ) {
        play(World::new(Rules { holders_max, ended_max, ..RULES }), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_on_waiting_shares(
        rules in rules(),
        few in any::<bool>(),
        ops in vec(op_with_shares_and_waiting(), 1..60),
    ) {
        // What could go wrong: as above, about the sum of reads, by which each waiter is judged with its own limit.
        let holders_max = if few { rules.holders_max } else { 9 };
        play(waiting(World::new(Rules { holders_max, ..rules })), &ops);
    }

    #[test]
    fn core_replica_and_model_agree_where_keys_expire(rules in rules(), ops in vec(op_with_expiry(), 1..60)) {
        // What could go wrong: a key that is waited for expires unnoticed, and all wait for a lock that nobody holds.
        let mut world = World::new(rules);
        world.some_places_are_overdue = true;
        play(world, &ops);
    }

    #[test]
    fn core_replica_and_model_agree_while_memory_is_short(
        rules in rules(),
        ops in vec(op_with_shares_and_waiting(), 1..60),
    ) {
        // What could go wrong: what needs no new memory is refused, or a refusal for want of memory leaves a trace.
        let mut world = World::new(rules);
        world.memory_is_short = true;
        world.some_places_are_overdue = true;
        play(world, &ops);
    }
}
