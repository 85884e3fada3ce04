//! What can happen in a world.

use lock_core::model::hold::Mode;
use lock_core::model::request::{Amount, Wait};

/// What can happen.
#[derive(Clone, Debug)]
pub enum Op {
    Acquire {
        db: u32,
        keys: Vec<u8>,
        owner: u8,
        mode: Mode,
        lease: u64,
        note: Option<u8>,
        wait: Wait,
        retry: Option<u32>,
        session: Option<Bound>,
        /// For how many milliseconds the place outlives the request.
        queue: Option<u64>,
        /// Of how many shares it takes how many; of a single key, for reading.
        share: Option<(u32, u32)>,
    },
    Release {
        db: u32,
        keys: Vec<u8>,
        owner: u8,
        mode: Option<Mode>,
        amount: Amount,
        fence: Named,
    },
    Extend {
        keys: Vec<u8>,
        owner: u8,
        lease: u64,
        fence: Named,
        session: Option<Bound>,
        /// Some(None) takes away what is there.
        note: Option<Option<u8>>,
    },
    /// An owner runs a command, if it holds the key for writing.
    Guard {
        db: u32,
        key: u8,
        owner: u8,
        fence: Named,
    },
    /// A client's connection closes. It comes back as another one.
    Close {
        client: u8,
        /// Whether nothing is done about it before the next thing happens.
        late: bool,
    },
    /// An operator ends holds, of this owner or all, and for how long the key is kept.
    Break {
        key: u8,
        owner: Option<u8>,
    },
    Pass {
        us: u64,
    },
    /// Time passes, and nothing is done about it before the next thing happens.
    Late {
        us: u64,
    },
    /// The commands of a transaction or a script: what clients ask for, and what becomes of keys. Nothing happens
    /// between two of them but that the present moves on, by `Pass`.
    Unit {
        commands: Vec<Op>,
    },
    /// A request to hold, or to extend, whose fence is to be this one at least.
    AtLeast {
        fence: Least,
        of: Box<Op>,
    },
    /// The client of a waiter, or of a grant, has gone.
    Lose {
        nth: usize,
    },
    /// The client of a grant has its reply.
    Deliver {
        nth: usize,
    },
    /// A waiter is unblocked by another client.
    Cancel {
        nth: usize,
    },
    /// This node has become a replica.
    Dismiss,
    /// This node was a replica, is the primary again, and grants nothing for so many milliseconds.
    Grace {
        ms: u64,
    },
    /// An operator sets how long a grace is.
    SetGrace {
        ms: u64,
    },
    /// Something else than a lock is put under a key.
    SetOver {
        key: u8,
    },
    SetWall {
        us: u64,
    },
    Alarm {
        most: usize,
    },
    Delete {
        key: u8,
    },
    /// A client gives a lock so many milliseconds to live, or takes its time to live away.
    Expire {
        key: u8,
        ms: Option<u64>,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Move {
        key: u8,
    },
    Reload {
        key: u8,
    },
    Swap,
    Flush {
        all: bool,
    },
    Promote,
}

impl Op {
    /// The database of a request to hold or to extend.
    pub(super) fn database(&self) -> u32 {
        if let Op::Acquire { db, .. } = self { *db } else { 0 }
    }

    /// Whether it may be one of the commands of a transaction or a script.
    pub(super) fn may_be_in_unit(&self) -> bool {
        let is_request = matches!(
            self,
            Op::Acquire { .. }
                | Op::Release { .. }
                | Op::Extend { .. }
                | Op::Guard { .. }
                | Op::Break { .. }
                | Op::AtLeast { .. }
        );
        let is_about_keys =
            matches!(self, Op::SetOver { .. } | Op::Delete { .. } | Op::Rename { .. } | Op::Swap | Op::Flush { .. });
        is_request || is_about_keys || matches!(self, Op::Pass { .. })
    }
}

/// Which fence a request names.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    None,
    /// The one that the owner has on the first key, if it has one.
    Own,
    Other,
}

/// Which fence a hold is to have at least, by how much it is above or below another one.
#[derive(Clone, Copy, Debug)]
pub enum Least {
    /// The last one that was given or seen.
    Last(i64),
    /// The wall clock.
    Wall(i64),
    /// The furthest ahead of the wall clock that a client may ask for.
    Furthest(i64),
    /// The highest fence of the holds on the key.
    Highest(i64),
    /// The highest there is.
    Max,
}

/// What a hold is bound to: which of a few clients, and how many milliseconds it outlives its connection.
pub type Bound = (u8, u64);

/// A lease that is longer than most tests.
pub const LONG: u64 = 100_000;

/// The request of an owner to hold these keys of database 0: at once, for long, and without any option.
pub fn acquire(owner: u8, mode: Mode, keys: &[u8]) -> Op {
    let (db, keys, lease, wait) = (0, keys.to_vec(), LONG, Wait::Never);
    let (note, retry, session, queue, share) = (None, None, None, None, None);
    Op::Acquire { db, keys, owner, mode, lease, note, wait, retry, session, queue, share }
}

/// The release of these keys of database 0 by an owner.
pub fn release(owner: u8, keys: &[u8], amount: Amount) -> Op {
    Op::Release { db: 0, keys: keys.to_vec(), owner, mode: None, amount, fence: Named::None }
}

macro_rules! options_of_acquire {
    ($($option:ident: $type:ty),+) => {
        impl Op {
            $(
                /// The same acquisition with this option.
                #[must_use]
                pub fn $option(mut self, value: $type) -> Op {
                    match &mut self {
                        Op::Acquire { $option, .. } => *$option = value,
                        other => panic!("{other:?} acquires nothing"),
                    }
                    self
                }
            )+
        }
    };
}

options_of_acquire! {
    db: u32, lease: u64, note: Option<u8>, wait: Wait, retry: Option<u32>, session: Option<Bound>,
    queue: Option<u64>, share: Option<(u32, u32)>
}
