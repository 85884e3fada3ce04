//! Subscriptions to the channels of NOTIFY.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

pub enum News {
    /// It is there, again: messages may have been missed.
    Subscribed,
    Message(String),
}

/// Keeps a subscription over this wire until it is to end; the wire is cut then.
pub fn subscribe(port: u16, channel: &str, goes_on: &AtomicBool, news: &Sender<News>) {
    while goes_on.load(Ordering::Relaxed) {
        let client = redis::Client::open(("127.0.0.1", port)).expect("a plain address");
        if let Ok(mut conn) = client.get_connection() {
            let mut pubsub = conn.as_pubsub();
            if pubsub.subscribe(channel).is_ok() && news.send(News::Subscribed).is_ok() {
                while let Ok(message) = pubsub.get_message() {
                    let name = message.get_payload().expect("ours are text");
                    if news.send(News::Message(name)).is_err() {
                        return;
                    }
                }
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}
