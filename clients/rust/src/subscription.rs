//! One connection that is subscribed to one channel. Speaks RESP3, so that messages are told from replies.

use crate::channel::PROBE;
use crate::clock::{CONFIRM, Moment};
use crate::connection::{connect, converse, listen};
use crate::error::Error;
use crate::request::is_of_cluster;
use redis::{Connection, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, Value};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// After so long a silence the server is asked whether it is there.
const PROVE: Duration = Duration::from_secs(10);

pub(crate) struct Subscription {
    server: ConnectionInfo,
    connection: Connection,
    channel: String,
    is_confirmed: bool,
    pushes: Receiver<PushInfo>,
    /// When something came last.
    heard: Moment,
}

/// What comes over it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// From here on messages come, on this channel.
    Confirmed(String),
    Message(String),
    /// No more messages come: a slot has moved, say.
    Ended,
}

impl Subscription {
    /// Asks a server for it, on the channel that is named when it is known whether that is a node of a cluster.
    pub(crate) fn ask(
        server: &ConnectionInfo,
        name: impl FnOnce(bool) -> Result<String, Error>,
        deadline: Moment,
    ) -> Result<Subscription, Error> {
        let settings = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let mut connection = connect(&server.clone().set_redis_settings(settings), deadline)?;
        let hello = converse(&mut connection, server, &[redis::cmd(PROBE)], deadline)?.pop().unwrap_or(Value::Nil);
        let in_cluster = is_of_cluster(&hello.extract_error()?);
        let channel_name = name(in_cluster)?;
        let request = redis::cmd(if in_cluster { "SSUBSCRIBE" } else { "SUBSCRIBE" }).arg(&channel_name).take();
        let (sender, pushes) = channel();
        connection.set_push_sender(sender);
        connection.send_packed_command(&request.get_packed_command())?;
        let (server, heard) = (server.clone(), Moment::now());
        Ok(Subscription { server, connection, channel: channel_name, is_confirmed: false, pushes, heard })
    }

    pub(crate) fn server(&self) -> &ConnectionInfo {
        &self.server
    }

    /// What comes within this time. An error if it was refused, or has ended.
    pub(crate) fn read(&mut self, time: Duration) -> Result<Vec<Heard>, Error> {
        if self.is_confirmed {
            listen(&mut self.connection, time)?;
        } else {
            self.connection.set_read_timeout(Some(time))?;
            match self.connection.recv_response() {
                Err(error) if error.is_timeout() => {}
                reply => drop(reply?.extract_error()?),
            }
        }
        let heard: Vec<Heard> = self.pushes.try_iter().filter_map(|push| heard(push, &self.channel)).collect();
        self.is_confirmed |= heard.iter().any(|heard| matches!(heard, Heard::Confirmed(_)));
        if !heard.is_empty() {
            self.heard = Moment::now();
        } else if self.is_confirmed && self.heard.elapsed() >= PROVE {
            converse(&mut self.connection, &self.server, &[redis::cmd(PROBE)], Moment::now() + CONFIRM)?;
            self.heard = Moment::now();
        }
        Ok(heard)
    }
}

fn heard(push: PushInfo, channel: &str) -> Option<Heard> {
    let mut words = push.data.into_iter().map(|word| redis::from_redis_value::<String>(word).unwrap_or_default());
    if words.next().as_deref() != Some(channel) {
        return None;
    }
    match push.kind {
        PushKind::Subscribe | PushKind::SSubscribe => Some(Heard::Confirmed(channel.to_owned())),
        PushKind::Message | PushKind::SMessage => words.next().map(Heard::Message),
        PushKind::Unsubscribe | PushKind::SUnsubscribe => Some(Heard::Ended),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_counts_if_it_is_of_the_channel() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let of = |kind, words: &[&str]| {
            let data = words.iter().map(|word| text(word)).collect();
            heard(PushInfo { kind, data }, "here")
        };
        assert_eq!(of(PushKind::Subscribe, &["here"]), Some(Heard::Confirmed("here".to_owned())));
        assert_eq!(of(PushKind::SSubscribe, &["here"]), Some(Heard::Confirmed("here".to_owned())));
        assert_eq!(of(PushKind::Message, &["here", "me"]), Some(Heard::Message("me".to_owned())));
        assert_eq!(of(PushKind::SMessage, &["here", "*"]), Some(Heard::Message("*".to_owned())));
        assert_eq!(of(PushKind::SUnsubscribe, &["here"]), Some(Heard::Ended));
        assert_eq!(of(PushKind::Message, &["there", "me"]), None);
        assert_eq!(of(PushKind::Message, &[]), None);
        assert_eq!(of(PushKind::Invalidate, &["here"]), None);
    }
}
