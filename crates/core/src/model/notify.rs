//! Messages by which the owners of places are told to ask again (NOTIFY).
//!
//! A message is a hint. It may be lost, and no lock is wrong by it: only a request of the owner takes or keeps
//! anything.

use super::key::KeyName;
use super::owner::Owner;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU32;

/// How many messages to one channel one step sends singly. More are one message to all waits of the channel.
pub const SINGLE_MAX: usize = 64;

/// Names a channel: of places, or of the request that is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelId(pub(crate) NonZeroU32);

/// What a request with QUEUE says of the channel of its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    /// Nothing, since it cannot: the channel stays as it is.
    #[default]
    AsBefore,
    /// Its owner is not to be told.
    Never,
    /// Its owner is to be told on this channel, and asks over the connection of this client.
    On {
        /// The channel.
        channel: ChannelId,
        /// The client's number at the server.
        client: u64,
    },
}

/// A message: ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The channel on which it is sent.
    pub channel: KeyName,
    /// The owner that asks again; None: all that wait on the channel.
    pub owner: Option<Owner>,
}

/// Leaves one message to all in place of the messages to each channel that has more than [`SINGLE_MAX`].
pub fn bundle(messages: &mut Vec<Message>) {
    if messages.len() <= SINGLE_MAX {
        return;
    }
    let mut counts: BTreeMap<KeyName, usize> = BTreeMap::new();
    for message in &*messages {
        *counts.entry(message.channel.clone()).or_default() += 1;
    }
    counts.retain(|_, count| *count > SINGLE_MAX);
    messages.retain_mut(|message| match counts.get_mut(&message.channel) {
        None => true,
        Some(0) => false,
        Some(left) => {
            (*left, message.owner) = (0, None);
            true
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn messages(channel: &str, count: usize) -> impl Iterator<Item = Message> {
        let channel = KeyName::new(channel.as_bytes(), |_| 0);
        (0..count)
            .map(move |n| Message { channel: channel.clone(), owner: Some(Owner::new(format!("o{n}").as_bytes())) })
    }

    #[test]
    fn only_the_messages_of_a_channel_with_too_many_become_one_to_all() {
        let mut all: Vec<Message> =
            messages("few", 3).chain(messages("many", SINGLE_MAX + 1)).chain(messages("enough", SINGLE_MAX)).collect();
        bundle(&mut all);
        let of = |channel: &str| -> Vec<&Message> {
            all.iter().filter(|message| *message.channel == *channel.as_bytes()).collect()
        };
        assert_eq!(["few", "many", "enough"].map(|channel| of(channel).len()), [3, 1, SINGLE_MAX]);
        assert_eq!(of("many")[0].owner, None);
        assert!([of("few"), of("enough")].concat().iter().all(|message| message.owner.is_some()));
    }
}
