//! What keeps a server from writing: a pause, a failover, too few replicas, a disk out of order. While one of these
//! holds writes back, the module may neither end nor grant anything by itself.

use std::fs;
use std::path::PathBuf;
use testbed::{Client, Server, Signal, wait_for};

/// One of them.
pub(crate) enum HoldBack<'s> {
    /// CLIENT PAUSE, of writes.
    Pause,
    /// A failover from a primary to a replica that hangs and lags, so that it cannot end.
    Failover(&'s Server, &'s Server),
    /// Fewer replicas than are asked for.
    Replicas,
    /// The last save has failed, and this is in the way of the next.
    Disk(PathBuf),
}

impl HoldBack<'_> {
    /// A disk to which this server has failed to save. That holds nothing back yet: locks are granted before, and the
    /// directive decides when it counts.
    pub(crate) fn disk(server: &Server) -> HoldBack<'static> {
        // A directory in place of the dump: writing it fails, for root as well.
        let dump = server.dir().join("dump.rdb");
        fs::create_dir(&dump).unwrap();
        let mut conn = server.connect();
        conn.ok(&["CONFIG", "SET", "save", "3600 1000000"]);
        conn.ok(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
        save(&mut conn, "err");
        HoldBack::Disk(dump)
    }

    /// Writes are held back from now on.
    pub(crate) fn begin(&self, conn: &mut Client) {
        match self {
            HoldBack::Pause => conn.ok(&["CLIENT", "PAUSE", "600000", "WRITE"]),
            HoldBack::Failover(primary, replica) => {
                let mut conn = primary.connect();
                replica.signal(Signal::STOP);
                conn.ok(&["SET", "unseen", "x"]);
                conn.ok(&["FAILOVER"]);
                assert_eq!(conn.info("replication", "master_failover_state"), "waiting-for-sync");
            }
            HoldBack::Replicas => {
                conn.ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
                assert!(conn.error(&["LOCK.ACQUIRE", "x", "a"]).starts_with("NOREPLICAS"));
            }
            HoldBack::Disk(_) => {
                conn.ok(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
                assert!(conn.error(&["LOCK.ACQUIRE", "x", "a"]).starts_with("MISCONF"));
            }
        }
    }

    /// Writes flow again.
    pub(crate) fn end(&self, conn: &mut Client) {
        match self {
            HoldBack::Pause => conn.ok(&["CLIENT", "UNPAUSE"]),
            HoldBack::Failover(..) => conn.ok(&["FAILOVER", "ABORT"]),
            HoldBack::Replicas => conn.ok(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
            HoldBack::Disk(dump) => {
                fs::remove_dir(dump).unwrap();
                save(conn, "ok");
            }
        }
    }
}

/// Saves, which ends like this.
fn save(conn: &mut Client, expected: &str) {
    conn.get::<String>(&["BGSAVE"]);
    wait_for("the save to end", || {
        conn.info("persistence", "rdb_bgsave_in_progress") == "0"
            && conn.info("persistence", "rdb_last_bgsave_status") == expected
    });
}
