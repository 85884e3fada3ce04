//! The table of configurations: `CONFIG GET lock.*`, redis.conf, and the arguments of loadmodule.

use super::grace;
use super::shell::{shell, with_manager};
use lock_core::model::limits::{Bounds, LEASE_CEILING, Limits, SAVED_BYTES_CEILING};
use lock_core::model::time::Millis;
use server_api::config::{ConfigKind, ConfigSpec};

const LEASE_MS_CEILING: i64 = LEASE_CEILING.0 as i64;
/// An owner that the server makes for `*` must fit, or its lock could not be released.
const OWNER_BYTES_FLOOR: i64 = 32;
const YEAR_MS: i64 = 31_536_000_000;
const BYTES_CEILING: i64 = SAVED_BYTES_CEILING as i64;

/// Every configuration, each once.
pub static TABLE: &[ConfigSpec] = &[
    ConfigSpec {
        name: "default-lease-ms",
        kind: ConfigKind::Number(1, LEASE_MS_CEILING),
        default: 30_000,
        fixed: false,
        unit: "ms",
        reason: "the lease of a request that names none: long enough for a pause of the client, short enough to wait \
                 out",
        get: || bound(|bounds| bounds.lease_default.0 as i64),
        set: |value| set_bound(|bounds| bounds.lease_default = Millis(value as u64)),
    },
    ConfigSpec {
        name: "max-lease-ms",
        kind: ConfigKind::Number(1, LEASE_MS_CEILING),
        default: 86_400_000,
        fixed: false,
        unit: "ms",
        reason: "the longest lease one may ask for: how long a lock whose holder died can stay taken",
        get: || bound(|bounds| bounds.lease_max.0 as i64),
        set: |value| set_bound(|bounds| bounds.lease_max = Millis(value as u64)),
    },
    ConfigSpec {
        name: "max-owner-bytes",
        kind: ConfigKind::Number(OWNER_BYTES_FLOOR, BYTES_CEILING),
        default: 256,
        fixed: false,
        unit: "bytes",
        reason: "the longest owner: it is kept with every hold and sent with every change; 38 bytes are kept for free",
        get: || bound(|bounds| bounds.owner_bytes_max as i64),
        set: |value| set_bound(|bounds| bounds.owner_bytes_max = value as usize),
    },
    ConfigSpec {
        name: "max-note-bytes",
        kind: ConfigKind::Number(0, BYTES_CEILING),
        default: 256,
        fixed: false,
        unit: "bytes",
        reason: "the longest note: it is kept with the hold and sent with every change",
        get: || bound(|bounds| bounds.note_bytes_max as i64),
        set: |value| set_bound(|bounds| bounds.note_bytes_max = value as usize),
    },
    ConfigSpec {
        name: "max-holders-per-key",
        kind: ConfigKind::Number(1, 65_536),
        default: 65_536,
        fixed: false,
        unit: "owners",
        reason: "how many readers may hold one key: bounds its memory, and the time to save it or to end all its \
                 leases at once",
        get: || limit(|limits| limits.holders_per_key_max as i64),
        set: |value| with_manager(|manager| manager.limit_holders(value as usize)),
    },
    ConfigSpec {
        name: "max-waiters",
        kind: ConfigKind::Number(0, 1_000_000),
        default: 10_000,
        fixed: false,
        unit: "requests",
        reason: "how many clients may wait on this server: each keeps a connection, and the server some 40 KB for it",
        get: || limit(|limits| limits.waiters_max as i64),
        set: |value| set_limit(|limits| limits.waiters_max = value as usize),
    },
    ConfigSpec {
        name: "max-waiter-bytes",
        kind: ConfigKind::Number(0, 1 << 40),
        default: 64 << 20,
        fixed: false,
        unit: "bytes",
        reason: "how much memory those requests may take together in the queues, with the names of their keys and \
                 owners: a key's name may have half a gigabyte",
        get: || limit(|limits| limits.waiter_bytes_max as i64),
        set: |value| set_limit(|limits| limits.waiter_bytes_max = value as usize),
    },
    ConfigSpec {
        name: "max-waiters-per-key",
        kind: ConfigKind::Number(0, 1_000_000),
        default: 10_000,
        fixed: false,
        unit: "requests",
        reason: "how many requests may wait for one key: a longer queue means that its holders are too slow, or lost",
        get: || limit(|limits| limits.waiters_per_key_max as i64),
        set: |value| set_limit(|limits| limits.waiters_per_key_max = value as usize),
    },
    ConfigSpec {
        name: "max-queue-ms",
        kind: ConfigKind::Number(1, 3_600_000),
        default: 60_000,
        fixed: false,
        unit: "ms",
        reason: "the most that QUEUE may ask for: how long the place of a client that died can hold up a queue",
        get: || bound(|bounds| bounds.queue_max.0 as i64),
        set: |value| set_bound(|bounds| bounds.queue_max = Millis(value as u64)),
    },
    ConfigSpec {
        name: "away-ms",
        kind: ConfigKind::Number(0, 3_600_000),
        default: 2_000,
        fixed: false,
        unit: "ms",
        reason: "how long a place, or what it was offered, outlives the connection over which its owner asked with \
                 BLOCK or NOTIFY, unless the owner asks again; 0 is as long as QUEUE",
        get: || limit(|limits| limits.away_max.0 as i64),
        set: |value| set_limit(|limits| limits.away_max = Millis(value as u64)),
    },
    ConfigSpec {
        name: "max-places",
        kind: ConfigKind::Number(0, 10_000_000),
        default: 100_000,
        fixed: false,
        unit: "requests",
        reason: "how many requests with QUEUE may wait on this server, with a client or without: each takes some 380 \
                 bytes, or 660 where nobody else waits for the key",
        get: || limit(|limits| limits.places_max as i64),
        set: |value| set_limit(|limits| limits.places_max = value as usize),
    },
    ConfigSpec {
        name: "max-place-bytes",
        kind: ConfigKind::Number(0, 1 << 40),
        default: 128 << 20,
        fixed: false,
        unit: "bytes",
        reason: "how much memory all those requests may take together, with the names of their keys, owners \
                 and channels: a key's name may have half a gigabyte",
        get: || limit(|limits| limits.place_bytes_max as i64),
        set: |value| set_limit(|limits| limits.place_bytes_max = value as usize),
    },
    ConfigSpec {
        name: "max-keys",
        kind: ConfigKind::Number(1, 256),
        default: 64,
        fixed: false,
        unit: "keys",
        reason: "how many keys one request may name: all are open at once, and a waiter stands in the queues of all",
        get: || bound(|bounds| bounds.keys_max as i64),
        set: |value| set_bound(|bounds| bounds.keys_max = value as usize),
    },
    ConfigSpec {
        name: "max-reserve-ms",
        kind: ConfigKind::Number(0, 3_600_000),
        default: 5_000,
        fixed: false,
        unit: "ms",
        reason: "how long a free key is kept for the head of its queue, which waits for other keys as well; then \
                 others pass it",
        get: || limit(|limits| limits.reserve_max.0 as i64),
        set: |value| set_limit(|limits| limits.reserve_max = Millis(value as u64)),
    },
    ConfigSpec {
        name: "log-max-len",
        kind: ConfigKind::Number(0, 100_000),
        default: 128,
        fixed: false,
        unit: "holds",
        reason: "how many of the holds lost last LOCK.LOG shows; 0 remembers none",
        get: || shell().lost_holds.len_max() as i64,
        set: |value| shell().lost_holds.set_len_max(value as usize),
    },
    ConfigSpec {
        name: "deadlock-detection",
        kind: ConfigKind::YesNo,
        default: 1,
        fixed: false,
        unit: "yes or no",
        reason: "refuses a wait that would close a cycle of waits; off where threads share an owner",
        get: || limit(|limits| i64::from(limits.deadlock_detection)),
        set: |value| set_limit(|limits| limits.deadlock_detection = value != 0),
    },
    ConfigSpec {
        name: "promotion-skew-ms",
        kind: ConfigKind::Number(0, 3_600_000),
        default: 1_000,
        fixed: false,
        unit: "ms",
        reason: "how far the fence clock jumps at a promotion, at a start, and where slots come at once: wall clocks \
                 may differ by that. MINFENCE may ask for half of it ahead of the wall clock",
        get: || limit(|limits| limits.promotion_skew.0 as i64),
        set: |value| set_limit(|limits| limits.promotion_skew = Millis(value as u64)),
    },
    ConfigSpec {
        name: "grace-ms",
        kind: ConfigKind::Number(0, YEAR_MS),
        default: 0,
        fixed: false,
        unit: "ms",
        reason: "for how long nothing is granted after a start or a promotion: as long as leases may still run of \
                 which this node does not know; 0 is off",
        get: || shell().grace_length.get().0 as i64,
        set: |value| shell().grace_length.set(Millis(value as u64)),
    },
    ConfigSpec {
        name: "allow-hold",
        kind: ConfigKind::YesNo,
        default: 0,
        fixed: true,
        unit: "yes or no",
        reason: "lets clients send LOCK.HOLD, for tools that replay an AOF: who may, can take any lock",
        get: || i64::from(hold_allowed()),
        set: |value| shell().hold_allowed.set(value != 0),
    },
];

/// Checks the values against each other. Those that are in force only together with the others are so from then on.
///
/// # Errors
/// The reason for refusing them.
pub fn check() -> Result<(), String> {
    let bounds = bounds();
    if bounds.lease_default > bounds.lease_max {
        return Err("lock.default-lease-ms must not be above lock.max-lease-ms".to_owned());
    }
    grace::apply();
    Ok(())
}

/// Returns the bounds of arguments now.
#[must_use]
pub fn bounds() -> Bounds {
    shell().bounds.get()
}

/// True if clients may send LOCK.HOLD.
#[must_use]
pub fn hold_allowed() -> bool {
    shell().hold_allowed.get()
}

fn bound(read: impl FnOnce(&Bounds) -> i64) -> i64 {
    read(&bounds())
}

fn set_bound(change: impl FnOnce(&mut Bounds)) {
    let mut bounds = bounds();
    change(&mut bounds);
    shell().bounds.set(bounds);
}

fn limit<R>(read: impl FnOnce(&Limits) -> R) -> R {
    with_manager(|manager| read(&manager.limits))
}

fn set_limit(change: impl FnOnce(&mut Limits)) {
    with_manager(|manager| change(&mut manager.limits));
}
