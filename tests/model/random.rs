//! Long random histories of few owners and few keys, so that they collide. A failing one is shrunk and printed, and its
//! seed is kept beside this file.

use crate::world::{Named, Op, World};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use redis_lock::lock::hold::Mode;
use redis_lock::lock::request::Amount;

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

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![4 => Just(Amount::One), 1 => Just(Amount::All), 1 => (0..3u32).prop_map(Amount::To)]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![4 => Just(Named::None), 1 => Just(Named::Own), 1 => Just(Named::Other)]
}

fn op() -> impl Strategy<Value = Op> {
    let key = || b'j'..=b'l';
    let owner = || b'a'..=b'd';
    let lease = || prop_oneof![1..5u64, 1..200u64, Just(100_000)];
    prop_oneof![
        10 => (keys(), owner(), mode(), lease(), option::of(b'x'..=b'z'))
            .prop_map(|(keys, owner, mode, lease, note)| Op::Acquire { keys, owner, mode, lease, note }),
        7 => (keys(), owner(), option::of(mode()), amount(), named())
            .prop_map(|(keys, owner, mode, amount, fence)| Op::Release { keys, owner, mode, amount, fence }),
        3 => (keys(), owner(), lease(), named())
            .prop_map(|(keys, owner, lease, fence)| Op::Extend { keys, owner, lease, fence }),
        4 => prop_oneof![1..3_000u64, 1..200_000u64].prop_map(|us| Op::Pass { us }),
        1 => (0..2_000_000u64).prop_map(|us| Op::SetWall { us }),
        3 => prop_oneof![Just(1usize), Just(usize::MAX)].prop_map(|most| Op::Alarm { most }),
        1 => key().prop_map(|key| Op::Delete { key }),
        1 => (key(), key()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => key().prop_map(|key| Op::Move { key }),
        1 => key().prop_map(|key| Op::Reload { key }),
        1 => Just(Op::Swap),
        1 => any::<bool>().prop_map(|all| Op::Flush { all }),
        1 => Just(Op::Promote),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn core_replica_and_model_agree_after_every_step(holders_max in 1..4usize, ops in vec(op(), 1..80)) {
        // What could go wrong: anything. The model has no index, no trees, no effects and no verdicts.
        let mut world = World::new(holders_max);
        for op in &ops {
            world.step(op);
            world.check();
        }
    }
}
