//! The servers of a quorum, in the order in which all clients name them, and the highest fence that they gave.

use crate::error::Error;
use crate::quorum::census::Census;
use crate::quorum::node::Node;
use crate::servers::address_of;
use redis::ConnectionInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Fewer cannot do without one of them.
const NODES_MIN: usize = 3;

/// How far a proposal is ahead of the own wall clock: so it is ahead of the nodes' clocks, too, if all are about right.
/// Then all of them grant the same fence at once.
const AHEAD: Duration = Duration::from_millis(100);

pub(crate) struct Members {
    pub(crate) nodes: Vec<Arc<Node>>,
    census: Arc<Census>,
    seen: AtomicU64,
}

impl Members {
    pub(crate) fn new(servers: Vec<ConnectionInfo>) -> Result<Members, Error> {
        if servers.len() < NODES_MIN {
            return Err(Error::Refused("a quorum needs at least 3 servers".to_owned()));
        }
        let census = Arc::new(Census::new(servers.iter().map(address_of)));
        let nodes = servers.into_iter().enumerate().map(|(number, server)| Node::new(number, server, census.clone()));
        Ok(Members { nodes: nodes.map(Arc::new).collect(), census, seen: AtomicU64::new(0) })
    }

    /// The fence to ask for. Without the own clock it is the highest that was seen: nodes that refused it know better
    /// what time it is.
    pub(crate) fn proposal(&self, by_clock: bool) -> u64 {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + AHEAD;
        let clock = if by_clock { u64::try_from(clock.as_micros()).unwrap_or(0) } else { 1 };
        clock.max(self.seen.load(Ordering::Relaxed))
    }

    /// A fence was granted, or one was refused that was too high.
    pub(crate) fn saw(&self, fence: u64, is_too_far: bool) {
        if is_too_far {
            self.seen.store(0, Ordering::Relaxed);
        } else {
            self.seen.fetch_max(fence, Ordering::Relaxed);
        }
    }

    /// Whether it is known of each server who it is, but for those that do not answer.
    pub(crate) fn are_known(&self) -> bool {
        (0..self.nodes.len()).all(|number| self.census.has(number) || self.nodes[number].is_silent())
    }
}
