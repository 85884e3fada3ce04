//! How a client speaks with its servers: where they are, connections for requests that somebody waits for, and for each
//! server one for all that goes on in the background and one for what it tells those that wait.

use crate::channel::Failure;
use crate::lanes::Lanes;
use crate::notices::Notices;
use crate::pool::{Pool, Repeat, Request};
use crate::servers::Servers;
use crate::sync::{Caller, Watched};
use redis::{Cmd, Value};
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Transport {
    pub(crate) pool: Arc<Pool>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) notices: Notices,
    /// How much is yet to be given back.
    owed: Arc<Watched<usize>>,
}

/// Something that is yet to be given back, until this is dropped.
pub(crate) struct Debt(Arc<Watched<usize>>);

impl Drop for Debt {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.notify();
    }
}

impl Transport {
    pub(crate) fn new(servers: Servers) -> Transport {
        let servers = Arc::new(servers);
        let pool = Arc::new(Pool::new(servers.clone()));
        let lanes = Arc::new(Lanes::new(servers.clone()));
        let notices = Notices::new(servers, &lanes);
        Transport { pool, lanes, notices, owed: Arc::default() }
    }

    /// Something is to be given back in the background.
    pub(crate) fn owe(&self) -> Debt {
        *self.owed.lock() += 1;
        Debt(self.owed.clone())
    }

    /// Waits until all is given back, or so long. Tells whether it is.
    pub(crate) async fn wait_released(&self, caller: Caller, timeout: Duration) -> bool {
        self.owed.wait(caller, Some(timeout), |count| (*count == 0).then_some(())).await.is_some()
    }

    /// The reply to a request that changes nothing.
    pub(crate) async fn ask(&self, caller: Caller, slot: u16, command: Cmd, limit: Duration) -> Result<Value, Failure> {
        self.pool.ask(caller, Request { slot, command, limit, repeat: Repeat::AfterIdle, parting: None }).await
    }
}
