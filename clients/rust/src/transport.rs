//! How a client speaks with its servers: where they are, connections for requests that somebody waits for, and for each
//! server one for all that goes on in the background and one for what it tells those that wait.

use crate::channel::Failure;
use crate::clock::{LOOK, Moment};
use crate::lanes::Lanes;
use crate::notices::Notices;
use crate::pool::{Pool, Repeat, Request};
use crate::servers::Servers;
use crate::sync::{lock, wait};
use redis::{Cmd, Value};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub(crate) struct Transport {
    pub(crate) pool: Arc<Pool>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) notices: Notices,
    owed: Arc<Owed>,
}

/// How much is yet to be given back.
#[derive(Default)]
struct Owed {
    count: Mutex<usize>,
    changed: Condvar,
}

/// Something that is yet to be given back, until this is dropped.
pub(crate) struct Debt(Arc<Owed>);

impl Drop for Debt {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.changed.notify_all();
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
        *lock(&self.owed.count) += 1;
        Debt(self.owed.clone())
    }

    /// Waits until all is given back, or so long. Tells whether it is.
    pub(crate) fn wait_released(&self, timeout: Duration) -> bool {
        let deadline = Moment::now() + timeout;
        let mut count = lock(&self.owed.count);
        while *count > 0 && !deadline.is_past() {
            count = wait(&self.owed.changed, count, deadline.left().min(LOOK));
        }
        *count == 0
    }

    /// The reply to a request that changes nothing.
    pub(crate) fn ask(&self, slot: u16, command: Cmd, limit: Duration) -> Result<Value, Failure> {
        self.pool.ask(Request { slot, command, limit, repeat: Repeat::AfterIdle, parting: None })
    }
}
