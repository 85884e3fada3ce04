//! Every history of five steps of two owners on two keys.

use crate::world::{Named, Op, World};
use redis_lock::lock::hold::Mode;
use redis_lock::lock::request::Amount;

const STEPS: u32 = 5;

/// What can be done at each step: everything by everybody on every key, and time.
fn ops() -> Vec<Op> {
    // A lease that one passing of time ends, and one that it does not.
    let mut ops = vec![Op::Pass { us: 10_000 }];
    for key in [b'j', b'k'] {
        for owner in [b'a', b'b'] {
            let keys = vec![key];
            for (mode, lease) in [(Mode::Read, 10), (Mode::Write, 15)] {
                ops.push(Op::Acquire { keys: keys.clone(), owner, mode, lease, note: None });
                let release = Op::Release {
                    keys: keys.clone(),
                    owner,
                    mode: Some(mode),
                    amount: Amount::One,
                    fence: Named::None,
                };
                ops.push(release);
            }
            ops.push(Op::Extend { keys, owner, lease: 25, fence: Named::None });
        }
    }
    ops
}

#[test]
fn every_history_of_five_steps_agrees_with_the_model() {
    // What could go wrong: a combination that random histories are unlikely to meet.
    let ops = ops();
    let count = ops.len();
    let mut histories = 0u64;
    for number in 0..count.pow(STEPS) {
        let digits = (0..STEPS).map(|step| number / count.pow(step) % count);
        // Names do not matter: the first to ask is owner a, on key j.
        let first = digits.clone().find(|digit| *digit > 0).unwrap_or(1);
        if first > 5 {
            continue;
        }
        let mut world = World::new(2);
        for digit in digits {
            world.step(&ops[digit]);
        }
        world.check();
        histories += 1;
    }
    assert!(histories > 1_000_000, "{histories}");
}
