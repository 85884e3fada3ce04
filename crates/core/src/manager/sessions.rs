//! Sessions: what ends with the connection of a client.

use super::LockManager;
use crate::model::hold::Connection;
use crate::model::key::{Db, KeyIndex};
use crate::model::keyspace::Keyspace;
use crate::model::session::Sessions;
use crate::model::step::Step;
use crate::model::time::Timestamp;

impl LockManager {
    /// A client disconnects. True when holds are bound to its connection. Then the background ends them
    /// ([`Job::EndSession`](crate::wait::jobs::Job::EndSession)), and a hand-off to the next waiters follows.
    pub fn disconnect(&mut self, client: u64, now: Timestamp) -> bool {
        let connection = self.sessions.connection(client);
        self.wait_table.closed(connection, now);
        self.wait_table.connection_closed(client, now);
        self.sessions.close(connection, now)
    }

    /// After a disconnect: ends at most `most` of the holds on a key that are bound to the closed connection, or cuts
    /// their leases. The hand-off to the next waiters follows in the same step.
    pub fn end_session<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        connection: Connection,
        most: usize,
    ) {
        let (db, name) = self.place_of(step, key);
        step.settle(key, None, self.settling(most));
        let left = most.saturating_sub(step.effects.changes.len());
        let Step { keys, effects, now, .. } = &mut *step;
        let close = |lock| effects.close_some((lock, key), &self.sessions, connection, now.mono, left);
        if keys.lock(key).is_none_or(close) {
            self.sessions.unbind_all(db, &name, connection);
        }
        self.settle_and_wake(step, key, most);
        self.follow(step);
    }

    /// Leaves the holds on a key as they are that are bound to a connection which has closed: the key is not this
    /// node's any more to change, or it is no lock.
    pub fn abandon_session(&mut self, db: Db, name: &[u8], connection: Connection) {
        let name = self.name(name);
        self.sessions.unbind_all(db, &name, connection);
    }

    /// Returns the holds that are bound to connections.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }
}
