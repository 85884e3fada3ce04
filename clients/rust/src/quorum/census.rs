//! Who the nodes of a quorum are. Each must be a server of its own: no replica, no node of a cluster, none named twice.
//! Knows what they said when they were connected to, and asks nobody.

use crate::error::Error;
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// What a node says of itself. What it does not say, since the user lacks the right to ask, is not held against it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    run_id: Option<String>,
    replication_id: Option<String>,
    is_replica: bool,
    in_cluster: bool,
}

impl Identity {
    /// From the text of `INFO`.
    pub(crate) fn read(info: &str) -> Identity {
        let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let field = |name: &str| fields.get(name).copied().filter(|value| !value.is_empty());
        Identity {
            run_id: field("run_id").map(str::to_owned),
            replication_id: field("master_replid").map(str::to_owned),
            is_replica: field("role").is_some_and(|role| role != "master"),
            in_cluster: field("cluster_enabled") == Some("1"),
        }
    }
}

pub(crate) struct Census {
    /// By the number of the node.
    known: Mutex<Vec<Known>>,
}

struct Known {
    address: String,
    identity: Option<Identity>,
}

impl Census {
    pub(crate) fn new(addresses: impl IntoIterator<Item = String>) -> Census {
        let known = addresses.into_iter().map(|address| Known { address, identity: None });
        Census { known: Mutex::new(known.collect()) }
    }

    /// Takes a node in, each time that it is connected to. Refuses it where it makes no quorum with the others.
    pub(crate) fn admit(&self, number: usize, identity: Identity) -> Result<(), Error> {
        let mut known = lock(&self.known);
        // Whatever it was before, it is not that any more.
        known[number].identity = None;
        let address = &known[number].address;
        let others = known.iter().filter_map(|other| Some((&other.address, other.identity.as_ref()?)));
        let no_quorum = |why: String| Err(Error::Refused(format!("{why}: a quorum needs servers of their own")));
        if identity.is_replica {
            return no_quorum(format!("{address} is a replica"));
        }
        if identity.in_cluster {
            return no_quorum(format!("{address} is a node of a cluster"));
        }
        for (other, with) in others {
            if identity.run_id.is_some() && identity.run_id == with.run_id {
                return no_quorum(format!("{other} and {address} are one and the same server"));
            }
            if identity.replication_id.is_some() && identity.replication_id == with.replication_id {
                return no_quorum(format!("{other} and {address} belong to one replication group"));
            }
        }
        known[number].identity = Some(identity);
        Ok(())
    }

    /// Whether a node was ever taken in.
    pub(crate) fn has(&self, number: usize) -> bool {
        lock(&self.known)[number].identity.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(run_id: &str, replication_id: &str, more: &str) -> Identity {
        Identity::read(&format!("# Server\r\nrun_id:{run_id}\r\nmaster_replid:{replication_id}\r\n{more}"))
    }

    fn refusal(census: &Census, number: usize, identity: Identity) -> String {
        match census.admit(number, identity) {
            Err(Error::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn servers_that_are_not_their_own_are_refused_and_the_others_taken_in() {
        let census = Census::new(["a:1", "b:2", "c:3"].map(str::to_owned));
        assert!(census.admit(0, identity("r1", "g1", "role:master\r\ncluster_enabled:0\r\n")).is_ok());
        assert!(census.has(0) && !census.has(1));
        assert_eq!(
            refusal(&census, 1, identity("r1", "g1", "role:master\r\n")),
            "a:1 and b:2 are one and the same server: a quorum needs servers of their own"
        );
        assert!(refusal(&census, 1, identity("r2", "g1", "")).starts_with("a:1 and b:2 belong to one replication"));
        assert!(refusal(&census, 1, identity("r2", "g9", "role:slave\r\n")).starts_with("b:2 is a replica"));
        assert!(refusal(&census, 1, identity("r2", "g2", "cluster_enabled:1\r\n")).starts_with("b:2 is a node of a"));
        assert!(!census.has(1));
        assert!(census.admit(1, identity("r2", "g2", "role:master\r\n")).is_ok());
        // A node that was started again, and one that says nothing of itself.
        assert!(census.admit(0, identity("r3", "g3", "")).is_ok());
        assert!(census.admit(2, Identity::default()).is_ok());
        assert!(census.admit(2, identity("r1", "g1", "")).is_ok(), "that one is not there any more");
    }
}
