//! What is compared: how each way to lock is measured, and what it promises.

use crate::clients::Kind;
use crate::server::Setup;
use std::time::Duration;

/// A way to lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    /// The word that chooses it.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// How to lock.
    pub(crate) kind: Kind,
    pub(crate) setup: Setup,
    /// What ends the hold of a client that died.
    pub(crate) end: End,
    /// Which waiter is next.
    pub(crate) order: &'static str,
    /// What tells a late holder from the present one.
    pub(crate) fence: &'static str,
    /// What is on disk when the server has granted a lock.
    pub(crate) disk: &'static str,
    /// What a held lock survives.
    pub(crate) survives: &'static str,
}

/// What ends the hold of a client that died.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    /// The end of its connection.
    Connection,
    /// The end of its lease.
    Lease,
    /// The end of its session, some time after its last heartbeat.
    Session,
    /// Nothing: the lock is lost.
    Never,
}

impl Contender {
    /// Whether it excludes nobody: it shows that this program finds out.
    pub(crate) fn is_no_lock(&self) -> bool {
        self.kind == Kind::Nothing
    }
}

impl End {
    pub(crate) fn text(self) -> &'static str {
        match self {
            End::Connection => "the end of its connection",
            End::Lease => "the end of its lease",
            End::Session => "the end of its session",
            End::Never => "nothing",
        }
    }
}

const PLAIN: Setup = Setup::Redis { module: false, aof_always: false };
const NO_ORDER: &str = "whichever asks first";
const QUEUE: &str = "the first in the queue";
const NOT_SAVED: &str = "nothing";

/// All of them, ours first. The last is no lock, and is run only by name.
pub(crate) fn contenders() -> Vec<Contender> {
    let ours = Contender {
        id: "lock",
        name: "LOCK.ACQUIRE BLOCK",
        kind: Kind::Lock,
        setup: Setup::Redis { module: true, aof_always: false },
        end: End::Connection,
        order: QUEUE,
        fence: "a number that rises with each grant, also over a failover",
        disk: NOT_SAVED,
        survives: "a failover, if the grant had reached the replica",
    };
    let string = Contender {
        id: "set-nx",
        name: "SET NX each 10 ms",
        kind: Kind::SetNx(Duration::from_millis(10)),
        setup: PLAIN,
        end: End::Lease,
        order: NO_ORDER,
        fence: "none",
        disk: NOT_SAVED,
        survives: "a failover, if the grant had reached the replica",
    };
    let postgres = Contender {
        id: "postgres",
        name: "PostgreSQL, pg_advisory_lock",
        kind: Kind::Postgres,
        setup: Setup::Postgres,
        end: End::Connection,
        order: QUEUE,
        fence: "none",
        disk: NOT_SAVED,
        survives: "nothing: it ends with the server",
    };
    let etcd = Contender {
        id: "etcd",
        name: "etcd",
        kind: Kind::Etcd,
        setup: Setup::Etcd { fsync: true },
        end: End::Lease,
        order: QUEUE,
        fence: "the revision of the key",
        disk: "the grant",
        survives: "the loss of fewer than half of its nodes",
    };
    let zookeeper = Contender {
        id: "zookeeper",
        name: "ZooKeeper",
        kind: Kind::ZooKeeper,
        setup: Setup::ZooKeeper { fsync: true },
        end: End::Session,
        fence: "the transaction number of the node",
        ..etcd
    };
    vec![
        ours,
        Contender {
            id: "lock-aof",
            name: "LOCK.ACQUIRE BLOCK, AOF always",
            setup: Setup::Redis { module: true, aof_always: true },
            disk: "the grant",
            survives: "a restart; a failover, if the grant had reached the replica",
            ..ours
        },
        Contender {
            id: "blpop",
            name: "BLPOP + LPUSH (no lock)",
            kind: Kind::List,
            end: End::Never,
            order: QUEUE,
            ..string
        },
        string,
        Contender {
            id: "redis-py",
            name: "redis-py's Lock: SET NX each 100 ms",
            kind: Kind::SetNx(Duration::from_millis(100)),
            ..string
        },
        Contender { id: "redisson", name: "Redisson's shape", kind: Kind::Redisson, ..string },
        postgres,
        Contender { id: "mariadb", name: "MariaDB, GET_LOCK", kind: Kind::MariaDb, setup: Setup::MariaDb, ..postgres },
        etcd,
        Contender {
            id: "etcd-no-fsync",
            name: "etcd, no fsync",
            setup: Setup::Etcd { fsync: false },
            disk: "nothing for certain",
            survives: "the loss of processes; not that of power",
            ..etcd
        },
        zookeeper,
        Contender {
            id: "zookeeper-no-fsync",
            name: "ZooKeeper, no fsync",
            setup: Setup::ZooKeeper { fsync: false },
            disk: "nothing for certain",
            survives: "the loss of processes; not that of power",
            ..zookeeper
        },
        Contender { id: "nothing", name: "no lock", kind: Kind::Nothing, end: End::Never, ..string },
    ]
}
