//! MariaDB: GET_LOCK, through prepared statements.

use super::{Requests, Target, check_released};
use crate::Failure;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Statement};

pub(crate) struct Client {
    conn: Conn,
    take: Statement,
    give: Statement,
    name: String,
    requests: Requests,
}

impl Client {
    pub(super) async fn connect(target: Target, requests: Requests) -> Result<Client, Failure> {
        let place = OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(target.port).user(Some("root"));
        // Through the port, as for all others, and not through the server's socket file.
        let mut conn = Conn::new(place.prefer_socket(false)).await?;
        // In seconds. Longer than any wait here.
        let take = conn.prep("SELECT GET_LOCK(?, 3600)").await?;
        let give = conn.prep("SELECT RELEASE_LOCK(?)").await?;
        Ok(Client { conn, take, give, name: format!("compare:{}", target.lock), requests })
    }

    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let taken: Option<Option<i64>> = self.conn.exec_first(&self.take, (&self.name,)).await?;
        if taken.flatten() == Some(1) { Ok(()) } else { Err("GET_LOCK was not answered 1".into()) }
    }

    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let given: Option<Option<i64>> = self.conn.exec_first(&self.give, (&self.name,)).await?;
        check_released(given.flatten() == Some(1))
    }
}
