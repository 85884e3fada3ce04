//! The program of docs/operations/tls.md. The tests compare both, and run it.

use redis_lock_client::{Client, Error};
use std::env;
use std::time::Duration;

fn main() -> Result<(), Error> {
    let url = env::var("REDIS_LOCK_URL").expect("a URL");
    let client = Client::open(url.as_str())?;
    if let Some(guard) = client.key("report").try_lock_for(Duration::from_secs(10))? {
        println!("only one is here, with the fence {}", guard.fence());
        guard.release()?;
    }
    Ok(())
}
