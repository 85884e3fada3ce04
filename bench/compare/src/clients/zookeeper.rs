//! ZooKeeper: the recipe for a lock. Each client makes an ephemeral node in sequence; the first node has the lock, and
//! each other client watches the node before its own.

use super::{Requests, Target};
use crate::Failure;
use zookeeper_client::{Acls, CreateMode, CreateOptions, Error};

fn folder(target: Target) -> String {
    format!("/compare-{}", target.lock)
}

fn options(mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(Acls::anyone_all())
}

async fn connection(target: Target) -> Result<zookeeper_client::Client, Failure> {
    let connector = zookeeper_client::Client::connector().with_session_timeout(target.lease);
    Ok(connector.connect(&format!("127.0.0.1:{}", target.port)).await?)
}

/// Makes the folder of the nodes.
pub(super) async fn prepare(target: Target) -> Result<(), Failure> {
    connection(target).await?.create(&folder(target), &[], &options(CreateMode::Persistent)).await?;
    Ok(())
}

pub(crate) struct Client {
    conn: zookeeper_client::Client,
    folder: String,
    /// The path of its node.
    node: String,
    requests: Requests,
}

impl Client {
    pub(super) async fn connect(target: Target, requests: Requests) -> Result<Client, Failure> {
        Ok(Client { conn: connection(target).await?, folder: folder(target), node: String::new(), requests })
    }

    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let prefix = format!("{}/n-", self.folder);
        let (_, number) = self.conn.create(&prefix, &[], &options(CreateMode::EphemeralSequential)).await?;
        let name = format!("n-{number}");
        self.node = format!("{}/{name}", self.folder);
        loop {
            self.requests.add();
            let nodes = self.conn.list_children(&self.folder).await?;
            // The numbers have ten digits, so names are in order as numbers are.
            let Some(before) = nodes.iter().filter(|other| **other < name).max() else { return Ok(()) };
            self.requests.add();
            match self.conn.get_and_watch_data(&format!("{}/{before}", self.folder)).await {
                Ok((_, _, watch)) => drop(watch.changed().await),
                // It went meanwhile.
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        self.requests.add();
        Ok(self.conn.delete(&self.node, None).await?)
    }
}
