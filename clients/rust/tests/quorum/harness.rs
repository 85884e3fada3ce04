//! Several servers that know nothing of each other, and what they say of one lock.

use redis_lock_client::{Guard, Owner, Quorum};
use std::net::TcpStream;
use std::time::Duration;
use testbed::{Server, wait_for};

/// A lease that outlasts a test, also on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A lease after a tenth of which a node that hangs has cost all that it may.
pub(crate) const MEDIUM: Duration = Duration::from_secs(20);

/// A lease that ends within the patience of a test. A node has a twentieth of it to answer.
pub(crate) const SHORT: Duration = Duration::from_secs(6);

pub(crate) struct Servers(pub(crate) Vec<Server>);

impl Servers {
    pub(crate) fn start(count: usize) -> Servers {
        let servers = Servers((0..count).map(|_| Server::new()).collect());
        for server in &servers.0 {
            let mut client = server.connect();
            // The first fence after a start is ahead by this skew, a second; the others are to accept it at once.
            client.int(&["LOCK.ACQUIRE", "first", "first"]);
            client.int(&["LOCK.RELEASE", "first", "first"]);
            client.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "60000"]);
        }
        servers
    }

    pub(crate) fn quorum(&self) -> Quorum {
        quorum_of(self.0.iter().map(Server::port))
    }

    /// The fence under which each server says that this owner holds the key.
    pub(crate) fn fences(&self, key: &str, owner: &Owner) -> Vec<Option<u64>> {
        self.0.iter().map(|server| fence_at(server, key, owner)).collect()
    }

    /// Waits until all servers say that the guard's owner holds the key. One that was slow may have a higher fence.
    pub(crate) fn await_all(&self, key: &str, guard: &Guard) {
        wait_for("all nodes to hold it", || {
            self.fences(key, guard.owner()).into_iter().all(|fence| fence >= Some(guard.fence()))
        });
    }

    /// How many servers say that the guard's owner holds the key under the guard's fence.
    pub(crate) fn hold(&self, key: &str, guard: &Guard) -> usize {
        self.fences(key, guard.owner()).into_iter().filter(|fence| *fence == Some(guard.fence())).count()
    }

    /// How many of the servers that run say that this owner holds the key.
    pub(crate) fn fences_of_running(&self, key: &str, owner: &Owner) -> usize {
        let running = self.0.iter().filter(|server| TcpStream::connect(("127.0.0.1", server.port())).is_ok());
        running.filter(|server| fence_at(server, key, owner).is_some()).count()
    }

    /// Waits until no server knows of the key: nobody holds it, nobody waits.
    pub(crate) fn await_free(&self, key: &str) {
        wait_for("the key to be free everywhere", || self.are_free(key));
    }

    pub(crate) fn are_free(&self, key: &str) -> bool {
        let infos: Vec<_> = self.0.iter().map(|server| server.connect().lock_info(key)).collect();
        infos.iter().all(Option::is_none)
    }
}

pub(crate) fn quorum_of(ports: impl IntoIterator<Item = u16>) -> Quorum {
    Quorum::open(ports.into_iter().map(|port| ("127.0.0.1", port))).unwrap()
}

pub(crate) fn fence_at(server: &Server, key: &str, owner: &Owner) -> Option<u64> {
    let info = server.connect().lock_info(key)?;
    let holder = info.holders.iter().find(|holder| holder.owner == owner.as_str().as_bytes())?;
    Some(u64::try_from(holder.fence).unwrap())
}
