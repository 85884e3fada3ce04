//! PostgreSQL: session-level advisory locks, through prepared statements.

use super::{Requests, Target, check_released};
use crate::Failure;
use tokio::task::JoinHandle;
use tokio_postgres::{NoTls, Statement};

pub(crate) struct Client {
    client: tokio_postgres::Client,
    take: Statement,
    give: Statement,
    key: i64,
    requests: Requests,
    connection: JoinHandle<()>,
}

impl Client {
    pub(super) async fn connect(target: Target, requests: Requests) -> Result<Client, Failure> {
        let place = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", target.port);
        let (client, connection) = tokio_postgres::connect(&place, NoTls).await?;
        // Its end shows in the request that it fails.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let take = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let give = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Client { client, take, give, key: i64::try_from(target.lock)?, requests, connection })
    }

    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        self.requests.add();
        self.client.query_one(&self.take, &[&self.key]).await?;
        Ok(())
    }

    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        self.requests.add();
        check_released(self.client.query_one(&self.give, &[&self.key]).await?.try_get(0)?)
    }
}

impl Drop for Client {
    /// Closes the connection at once, also in the middle of a wait.
    fn drop(&mut self) {
        self.connection.abort();
    }
}
