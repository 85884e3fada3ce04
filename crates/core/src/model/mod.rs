//! The nouns: a lock, its holds, their owners and fences, requests and effects. They know no wait queue.

pub mod effect;
pub mod ended_holds;
pub mod fence;
pub mod grace;
pub mod hashing;
pub mod hold;
pub mod holds;
pub mod key;
pub mod keyspace;
pub mod limits;
pub mod lock;
pub mod notify;
pub mod offers;
pub mod owner;
pub mod record;
pub mod request;
pub mod session;
pub mod state;
pub mod step;
pub mod time;
