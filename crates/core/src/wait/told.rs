//! How the owner of a place is told to ask again (NOTIFY), and to which connection the place belongs.

use super::connections::Client;
use super::table::WaitTable;
use super::waiter::Waiter;
use crate::model::notify::{ChannelId, Message, Notify};
use crate::model::request::WaiterId;
use crate::model::time::{Millis, Timestamp};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

impl WaitTable {
    /// Returns the number of channels that places have.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Names the channel of a request, until [`WaitTable::forget_channel`].
    pub(crate) fn channel(&mut self, bytes: &[u8]) -> ChannelId {
        self.channels.ask(bytes, self.owners.hash())
    }

    /// Forgets the channel of a request that is served, unless a place has it.
    pub(crate) fn forget_channel(&mut self) {
        self.channels.forget_asked();
    }

    /// Returns the bytes that the channel of a request would add to those of places.
    pub(crate) fn channel_bytes(&self, notify: Notify) -> usize {
        if let Notify::On { channel, .. } = notify { self.channels.bytes_of(channel) } else { 0 }
    }

    /// Sets the channel of a place as its owner's last request says, and leaves it if that does not say.
    pub(crate) fn tell(&mut self, id: WaiterId, notify: Notify) {
        match notify {
            Notify::AsBefore => {}
            Notify::Never => self.set_channel(id, None),
            Notify::On { channel, client } => {
                self.set_channel(id, Some(channel));
                self.belong(id, client);
            }
        }
    }

    fn set_channel(&mut self, id: WaiterId, channel: Option<ChannelId>) {
        let Some(waiter) = self.waiters.get_mut(id) else { return };
        let was = core::mem::replace(&mut waiter.channel, channel);
        // One that stays must not die between.
        channel.into_iter().for_each(|channel| self.channels.join(channel));
        was.into_iter().for_each(|channel| self.channels.leave(channel));
    }

    /// Binds a place to the connection of this client: its owner asks over it. Leaves all other waiters as they are.
    pub(crate) fn belong(&mut self, id: WaiterId, client: u64) {
        let Some(client) = Client::new(client) else { return };
        if self.waiters.get(id).is_some_and(|waiter| waiter.is_place() && waiter.client != Some(client)) {
            self.leave_connection(id);
            let at = self.connections.join(client, id);
            if let Some(waiter) = self.waiters.get_mut(id) {
                (waiter.client, waiter.at) = (Some(client), at);
            }
        }
    }

    /// Takes a waiter from its connection.
    fn leave_connection(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(id) else { return };
        let (at, Some(client)) = (waiter.at, waiter.client.take()) else { return };
        if let Some(moved) = self.connections.leave(client, at).and_then(|moved| self.waiters.get_mut(moved)) {
            moved.at = at;
        }
    }

    /// Takes channel and connection from a waiter that is no place any more, or that is removed.
    pub(super) fn untell(&mut self, id: WaiterId) {
        self.set_channel(id, None);
        self.leave_connection(id);
    }

    /// Notes that a waiter has another name now.
    pub(super) fn rename(&mut self, id: WaiterId) {
        if let Some(Waiter { client: Some(client), at, .. }) = self.waiters.get(id) {
            self.connections.rename(*client, *at, id);
        }
    }

    /// Returns the message that tells the owner of a waiter to ask again; None if it did not ask for that.
    pub(super) fn message_to(&self, waiter: &Waiter) -> Option<Message> {
        let channel = self.channels.name(waiter.channel?)?.clone();
        Some(Message { channel, owner: Some(waiter.owner.clone()) })
    }

    /// Returns the message that tells the owner of a place without a client to ask again; None if it did not ask for
    /// that. The client of any other is answered.
    pub(crate) fn message(&self, id: WaiterId) -> Option<Message> {
        let waiter = self.waiters.get(id).filter(|waiter| waiter.is_waiting() && waiter.is_detached())?;
        self.message_to(waiter)
    }

    /// Returns the same of a waiter whose grant its client did not receive.
    pub(crate) fn message_of_granted(&self, id: WaiterId) -> Option<Message> {
        let waiter = self.waiters.get(id).filter(|waiter| waiter.grant().is_some_and(|grant| !grant.confirmed))?;
        self.message_to(waiter)
    }

    /// Returns one message for each channel, to all that wait on it.
    pub(crate) fn messages_to_all(&self) -> Vec<Message> {
        self.channels.names().map(|channel| Message { channel: channel.clone(), owner: None }).collect()
    }

    /// Notes that the connection of a client has closed. True if [`WaitTable::shorten_places`] has to follow.
    pub(crate) fn connection_closed(&mut self, client: u64, now: Timestamp) -> bool {
        Client::new(client).is_some_and(|client| self.connections.close(client, now))
    }

    /// Takes a waiter from the closed connection of this client. True if it belongs to no connection now.
    pub(crate) fn leave_closed(&mut self, id: WaiterId, client: u64) -> bool {
        let own = self.waiters.get(id).and_then(|waiter| waiter.client);
        let is_own = own.is_none_or(|own| own.get() == client);
        if is_own {
            self.leave_connection(id);
        }
        is_own
    }

    /// Returns the connection of a waiter, and when that closed if it has.
    pub(crate) fn connection_of(&self, waiter: &Waiter) -> Option<(u64, Option<Timestamp>)> {
        let client = waiter.client?;
        Some((client.get(), self.connections.closed_at(client)))
    }

    /// True if [`WaitTable::shorten_places`] has something to do.
    pub(crate) fn has_away(&self) -> bool {
        self.connections.some_closed()
    }

    /// Shortens at most `most` places of closed connections: each ends `away_max` after its connection closed.
    pub(crate) fn shorten_places(&mut self, most: usize, away_max: Millis) {
        for _ in 0..most {
            let Some((client, closed_at, id)) = self.connections.next_closed() else { return };
            let Some(waiter) = self.waiters.get_mut(id).filter(|waiter| waiter.client == Some(client)) else {
                continue;
            };
            waiter.client = None;
            if away_max == Millis(0) {
                continue;
            }
            let until = waiter.until.filter(|_| waiter.is_waiting() && waiter.is_detached() && !waiter.overdue);
            self.keep_no_longer(id, away_max);
            let end = closed_at + away_max;
            if until.is_some_and(|until| end < until) {
                self.keep_until(id, end);
            }
        }
    }

    /// True if each waiter that belongs to an open connection is found from there and nothing else is, and if each
    /// channel is that of so many waiters as it says.
    pub(super) fn told_is_sound(&self) -> bool {
        let (mut of_open, mut counts) = (0, BTreeMap::new());
        for (_, waiter) in self.waiters.iter() {
            if !waiter.is_place() && (waiter.channel.is_some() || waiter.client.is_some()) {
                return false;
            }
            of_open += usize::from(waiter.client.is_some_and(|client| self.connections.closed_at(client).is_none()));
            waiter.channel.into_iter().for_each(|channel| *counts.entry(channel).or_default() += 1);
        }
        let is_found = |(client, at, id): (Client, usize, WaiterId)| {
            self.waiters.get(id).is_some_and(|waiter| waiter.client == Some(client) && waiter.at as usize == at)
        };
        self.connections.iter().all(is_found)
            && self.connections.iter().count() == of_open
            && self.channels.are_sound(&counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::hold::Mode;
    use crate::model::key::{Db, KeyName};
    use crate::model::owner::Owner;
    use crate::model::request::{Acquire, PerKey, Wait};
    use crate::wait::waiter::Wanted;
    use alloc::format;

    /// A table in which so many owners have places for one key, for 60 s from 0 on.
    fn table(count: usize) -> (WaitTable, Vec<WaiterId>) {
        let mut table = WaitTable::new(|_| 0);
        let (retry, share, terms) = (Some(1), None, None);
        let queue = Some(Millis(60_000));
        let (mode, lease, wait) = (Mode::Write, Millis(1_000), Wait::Never);
        let ask = Acquire { mode, lease, wait, retry, queue, share, terms };
        let key = Wanted { name: KeyName::new(b"k", |_| 0), upgrade: false };
        let admit = |n: usize| {
            let owner = Owner::new(format!("o{n}").as_bytes());
            table.admit((&owner, &ask), Db(0), PerKey::from([key.clone()]), Timestamp(0))
        };
        let ids = (0..count).map(admit).collect();
        (table, ids)
    }

    #[test]
    fn waits_that_end_together_are_gone_at_once_and_their_memory_goes_in_pieces() {
        const COUNT: usize = 1_000;
        let (mut table, ids) = table(COUNT);
        let channel = table.channel(b"ch");
        ids.iter().for_each(|id| table.tell(*id, Notify::On { channel, client: 7 }));
        table.forget_channel();
        let mut retired = table.retire();
        assert!(table.is_empty() && table.broken_invariant().is_none());
        assert_eq!((table.contended(), table.place_bytes(), table.channels()), (0, 0, 0));
        assert!(ids.iter().all(|id| !table.remove(*id)), "their numbers mean nothing any more");
        let mut pieces = 1;
        while retired.shed() {
            pieces += 1;
        }
        assert!(pieces >= COUNT / 64, "{pieces} pieces");
        assert!(retired.is_empty());
    }

    #[test]
    fn places_of_a_closed_connection_are_shortened_in_pieces_and_no_others() {
        const COUNT: usize = 1_000;
        let (mut table, ids) = table(COUNT);
        let channel = table.channel(b"ch");
        for (n, id) in ids.iter().enumerate() {
            table.tell(*id, Notify::On { channel, client: 7 });
            // A fifth asks over another connection later, and a fifth is forgotten.
            match n % 5 {
                0 => table.tell(*id, Notify::On { channel, client: 8 }),
                1 => assert!(table.remove(*id)),
                _ => {}
            }
            assert_eq!(table.broken_invariant(), None);
        }
        assert!(table.connection_closed(7, Timestamp(5_000_000)) && !table.connection_closed(9, Timestamp(0)));
        let mut pieces = 0;
        while table.has_away() {
            table.shorten_places(64, Millis(2_000));
            pieces += 1;
        }
        assert!(pieces >= COUNT * 3 / 5 / 64, "{pieces}");
        for (n, id) in ids.iter().enumerate() {
            let until = table.waiter(*id).and_then(|waiter| waiter.until);
            let expected = [Some(60_000_000), None, Some(7_000_000), Some(7_000_000), Some(7_000_000)][n % 5];
            assert_eq!(until, expected.map(Timestamp), "{n}");
        }
        assert_eq!(table.broken_invariant(), None);
    }

    #[test]
    fn a_place_that_is_asked_for_again_before_its_turn_is_left_alone() {
        let (mut table, ids) = table(2);
        let channel = table.channel(b"ch");
        ids.iter().for_each(|id| table.tell(*id, Notify::On { channel, client: 7 }));
        table.connection_closed(7, Timestamp(5_000_000));
        table.tell(ids[0], Notify::On { channel, client: 8 });
        assert_eq!(
            table.waiter(ids[1]).and_then(|waiter| table.connection_of(waiter)),
            Some((7, Some(Timestamp(5_000_000))))
        );
        table.shorten_places(10, Millis(2_000));
        let until = ids.iter().map(|id| table.waiter(*id).and_then(|waiter| waiter.until)).collect::<Vec<_>>();
        assert_eq!(until, [Some(Timestamp(60_000_000)), Some(Timestamp(7_000_000))]);
        assert_eq!(table.broken_invariant(), None);
    }
}
