//! Any sequence of operations on the core, its replica and the naive model of tests/model: they agree after every step.
//!
//! What was found is shown with `OPERATIONS=1 cargo fuzz run ... FILE`: the rules and operations, for a test by name in
//! tests/model.

#![no_main]

use arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use lock_core::model::hold::Mode;
use lock_core::model::request::{Amount, Wait};
use lock_core::model::time::Millis;
use naive_model::words::Rules;
use naive_model::world::{Bound, Least, Named, Op, RULES, World};

/// As many as one case of tests/model has, and some more: the model scans all of its lists after each.
const OPS_MAX: usize = 120;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Unstructured::new(bytes);
    let Ok((rules, ops)) = sequence(&mut input) else { return };
    if std::env::var_os("OPERATIONS").is_some() {
        eprintln!("{rules:?}\n{ops:#?}");
    }
    let mut world = World::new(rules);
    for op in &ops {
        world.step(op);
        world.check();
    }
});

fn sequence(input: &mut Unstructured<'_>) -> Result<(Rules, Vec<Op>)> {
    let first: u8 = input.arbitrary()?;
    let waiting = first & 1 == 1;
    // What was found before there were shares begins with less, and means what it meant.
    let codes = if first < 128 { 33 } else { 45 };
    // The same of MINFENCE.
    let fences = first >= 192;
    let rules = if waiting { rules(input)? } else { Rules { holders_max: input.int_in_range(1..=3)?, ..RULES } };
    let mut ops = Vec::new();
    while !input.is_empty() && ops.len() < OPS_MAX {
        let one = op(input, waiting, codes)?;
        ops.push(if fences { raised(input, one)? } else { one });
    }
    Ok((rules, ops))
}

/// The same, at times with a fence that the hold is to have at least. In a transaction or a script each may have its
/// own.
fn raised(input: &mut Unstructured<'_>, op: Op) -> Result<Op> {
    Ok(match op {
        Op::Acquire { .. } | Op::Extend { .. } if input.arbitrary()? => {
            Op::AtLeast { fence: least(input)?, of: Box::new(op) }
        }
        Op::Unit { commands } => {
            let commands = commands.into_iter().map(|command| raised(input, command)).collect::<Result<Vec<Op>>>()?;
            Op::Unit { commands }
        }
        op => op,
    })
}

fn least(input: &mut Unstructured<'_>) -> Result<Least> {
    let by = if input.arbitrary()? { input.int_in_range(-2..=2)? } else { input.int_in_range(-5_000..=5_000)? };
    Ok(match input.int_in_range(0..=8u8)? {
        0 | 1 => Least::Last(by),
        2 => Least::Wall(by),
        3 | 4 => Least::Furthest(by),
        5 | 6 => Least::Highest(by),
        7 => Least::Max,
        _ => Least::Furthest(0),
    })
}

fn rules(input: &mut Unstructured<'_>) -> Result<Rules> {
    let few = input.ratio(1, 4)?;
    Ok(Rules {
        holders_max: input.int_in_range(1..=3)?,
        waiters_max: if few { input.int_in_range(2..=5)? } else { 99 },
        waiters_per_key_max: if few { input.int_in_range(1..=3)? } else { 99 },
        places_max: if few { input.int_in_range(2..=5)? } else { 99 },
        away_us: *input.choose(&[0, 1_000, 15_000])?,
        reserve_us: *input.choose(&[20_000, 2_000, 1_000_000])?,
        detects: input.arbitrary()?,
        ended_max: *input.choose(&[1, 2, 1_024])?,
        small_steps: input.ratio(1, 4)?,
        marked_max: *input.choose(&[1, 3, 256])?,
    })
}

/// With or without waiting: as the generators of tests/model/random.rs. Shares have the codes from 34.
fn op(input: &mut Unstructured<'_>, waiting: bool, codes: u8) -> Result<Op> {
    Ok(match input.int_in_range(0..=codes)? {
        0..=9 => acquire(input, waiting)?,
        10..=14 => release(input, waiting)?,
        15..=16 => extend(input)?,
        17 => Op::Close { client: input.int_in_range(0..=2)?, late: input.arbitrary()? },
        18 => Op::Break { key: key(input)?, owner: option(input, owner)? },
        19 => Op::Pass { us: us(input, waiting)? },
        20 => Op::Late { us: us(input, waiting)? },
        21 => Op::SetWall { us: input.int_in_range(0..=2_000_000)? },
        22 => Op::Alarm { most: *input.choose(&[1, usize::MAX])? },
        23 => Op::Delete { key: key(input)? },
        24 => Op::Rename { from: key(input)?, to: key(input)? },
        25 => Op::Move { key: key(input)? },
        26 => Op::Reload { key: key(input)? },
        27 => Op::Swap,
        28 => Op::Flush { all: input.arbitrary()? },
        29 => match input.int_in_range(0..=3u8)? {
            0 | 1 => Op::Promote,
            2 => Op::Grace { ms: input.int_in_range(0..=50)? },
            _ => Op::SetGrace { ms: input.int_in_range(0..=50)? },
        },
        30 if waiting => match input.int_in_range(0..=3u8)? {
            0 | 1 => Op::Lose { nth: nth(input)? },
            2 => Op::Deliver { nth: nth(input)? },
            _ => Op::Cancel { nth: nth(input)? },
        },
        31 if waiting => match input.arbitrary()? {
            true => Op::SetOver { key: key(input)? },
            false => Op::Dismiss,
        },
        32 => guard(input, waiting)?,
        33 => {
            let count = input.int_in_range(2..=7u8)?;
            let mut commands = (0..count).map(|_| command(input, waiting)).collect::<Result<Vec<Op>>>()?;
            // As in tests/model/random.rs, which says why.
            commands.retain(|command| !matches!(command, Op::Rename { .. } | Op::Swap));
            Op::Unit { commands }
        }
        34.. => {
            let limit: u32 = input.int_in_range(1..=4)?;
            let take = input.int_in_range(1..=limit)?;
            Op::Acquire {
                db: db(input, waiting)?,
                keys: vec![key(input)?],
                owner: owner(input)?,
                mode: Mode::Read,
                lease: lease(input)?,
                note: None,
                wait: if waiting { wait(input)? } else { Wait::Never },
                retry: option(input, |input| input.int_in_range(take..=limit))?,
                session: option(input, bound)?,
                queue: if waiting { option(input, |input| input.int_in_range(1..=60))? } else { None },
                share: Some((limit, take)),
            }
        }
        _ => Op::Late { us: us(input, waiting)? },
    })
}

/// One of a transaction or a script.
fn command(input: &mut Unstructured<'_>, waiting: bool) -> Result<Op> {
    Ok(match input.int_in_range(0..=15u8)? {
        0..=3 => acquire(input, waiting)?,
        4..=5 => release(input, waiting)?,
        6 => extend(input)?,
        7 => guard(input, waiting)?,
        8 => Op::Break { key: key(input)?, owner: option(input, owner)? },
        9 => Op::Delete { key: key(input)? },
        10 => Op::Rename { from: key(input)?, to: key(input)? },
        11 => match input.int_in_range(0..=3u8)? {
            0 | 1 => Op::Swap,
            2 => Op::Flush { all: input.arbitrary()? },
            _ => Op::SetOver { key: key(input)? },
        },
        _ => Op::Pass { us: us(input, waiting)? },
    })
}

fn acquire(input: &mut Unstructured<'_>, waiting: bool) -> Result<Op> {
    Ok(Op::Acquire {
        db: db(input, waiting)?,
        keys: keys(input)?,
        owner: owner(input)?,
        mode: mode(input)?,
        lease: lease(input)?,
        note: option(input, |input| input.int_in_range(b'x'..=b'z'))?,
        wait: if waiting { wait(input)? } else { Wait::Never },
        retry: if waiting { option(input, |input| input.int_in_range(1..=3))? } else { None },
        session: option(input, bound)?,
        queue: if waiting { option(input, |input| input.int_in_range(1..=60))? } else { None },
        share: None,
    })
}

fn release(input: &mut Unstructured<'_>, waiting: bool) -> Result<Op> {
    Ok(Op::Release {
        db: db(input, waiting)?,
        keys: keys(input)?,
        owner: owner(input)?,
        mode: option(input, mode)?,
        amount: match input.int_in_range(0..=5u8)? {
            0..=3 => Amount::One,
            4 => Amount::All,
            _ => Amount::To(input.int_in_range(0..=2)?),
        },
        fence: named(input)?,
    })
}

fn extend(input: &mut Unstructured<'_>) -> Result<Op> {
    Ok(Op::Extend {
        keys: keys(input)?,
        owner: owner(input)?,
        lease: lease(input)?,
        fence: named(input)?,
        session: option(input, bound)?,
        note: option(input, |input| option(input, |input| input.int_in_range(b'x'..=b'z')))?,
    })
}

fn guard(input: &mut Unstructured<'_>, waiting: bool) -> Result<Op> {
    Ok(Op::Guard {
        db: db(input, waiting)?,
        key: key(input)?,
        owner: owner(input)?,
        fence: *input.choose(&[Named::Own, Named::Other])?,
    })
}

fn option<T>(input: &mut Unstructured<'_>, some: impl FnOnce(&mut Unstructured<'_>) -> Result<T>) -> Result<Option<T>> {
    if input.ratio(1, 3)? { some(input).map(Some) } else { Ok(None) }
}

fn db(input: &mut Unstructured<'_>, waiting: bool) -> Result<u32> {
    Ok(u32::from(waiting && input.ratio(1, 10)?))
}

fn key(input: &mut Unstructured<'_>) -> Result<u8> {
    input.int_in_range(b'j'..=b'l')
}

fn keys(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    Ok(input.choose(&[&b"j"[..], b"k", b"l", b"j", b"k", b"jk", b"kl", b"ljk"])?.to_vec())
}

fn owner(input: &mut Unstructured<'_>) -> Result<u8> {
    input.int_in_range(b'a'..=b'e')
}

fn mode(input: &mut Unstructured<'_>) -> Result<Mode> {
    Ok(*input.choose(&[Mode::Read, Mode::Write])?)
}

fn lease(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.int_in_range(0..=2u8)? {
        0 => input.int_in_range(1..=4)?,
        1 => input.int_in_range(1..=200)?,
        _ => 100_000,
    })
}

fn wait(input: &mut Unstructured<'_>) -> Result<Wait> {
    Ok(match input.int_in_range(0..=7u8)? {
        0 => Wait::Never,
        1..=3 => Wait::For(Millis(input.int_in_range(1..=39)?)),
        _ => Wait::Forever,
    })
}

fn bound(input: &mut Unstructured<'_>) -> Result<Bound> {
    let grace = match input.int_in_range(0..=3u8)? {
        0 | 1 => 0,
        2 => input.int_in_range(1..=19)?,
        _ => 100_000,
    };
    Ok((input.int_in_range(0..=2)?, grace))
}

fn named(input: &mut Unstructured<'_>) -> Result<Named> {
    Ok(*input.choose(&[Named::None, Named::None, Named::None, Named::Own, Named::Other])?)
}

/// Waiting adds up in whole milliseconds: the wheel does not ring in between.
fn us(input: &mut Unstructured<'_>, whole_ms: bool) -> Result<u64> {
    let most = if input.arbitrary()? { 3_000 } else { 200_000 };
    if whole_ms { Ok(input.int_in_range(1..=most / 1000)? * 1000) } else { input.int_in_range(1..=most) }
}

fn nth(input: &mut Unstructured<'_>) -> Result<usize> {
    input.int_in_range(0..=15)
}
