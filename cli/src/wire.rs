//! The wire between parent and keeper: each message is a line of JSON. Neither ever waits for the other: it may be
//! stopped.

use rustix::event::{PollFd, PollFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// One end, which receives messages of this kind.
pub(crate) struct Wire<M> {
    stream: UnixStream,
    received: Vec<u8>,
    to_send: Vec<u8>,
    is_closed: bool,
    kind: PhantomData<M>,
}

impl<M: DeserializeOwned> Wire<M> {
    pub(crate) fn new(stream: UnixStream) -> std::io::Result<Wire<M>> {
        stream.set_nonblocking(true)?;
        Ok(Wire { stream, received: Vec::new(), to_send: Vec::new(), is_closed: false, kind: PhantomData })
    }

    /// Sends a message as soon as there is room for it.
    pub(crate) fn send(&mut self, message: &impl Serialize) {
        self.to_send.extend(serde_json::to_vec(message).expect("plain data"));
        self.to_send.push(b'\n');
        self.flush();
    }

    /// Sends what there was no room for.
    pub(crate) fn flush(&mut self) {
        while !self.to_send.is_empty() {
            match self.stream.write(&self.to_send) {
                Ok(count) => drop(self.to_send.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_closed |= error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    /// Whether there is no room for more: the other one does not read.
    pub(crate) fn is_full(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// What to wait for: messages, and room for those that are yet to be sent.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        let room = if self.is_full() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN | room)
    }

    /// The messages that have come.
    pub(crate) fn receive(&mut self) -> Vec<M> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_closed = true,
                Ok(count) => {
                    self.received.extend_from_slice(&bytes[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => self.is_closed |= error.kind() != ErrorKind::WouldBlock,
            }
            break;
        }
        let whole = self.received.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.received.drain(..whole).collect();
        // What the other one does not say is no message.
        lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// Whether the process at the other end is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Order, Report};
    use rustix::event::poll;
    use rustix::time::Timespec;

    #[test]
    fn what_found_no_room_is_sent_as_soon_as_there_is_some() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let mut here: Wire<Report> = Wire::new(here).expect("a wire");
        let mut there: Wire<Order> = Wire::new(there).expect("a wire");
        let mut sent = 0;
        while !here.is_full() {
            sent += 1;
            here.send(&Order::Renew(sent));
        }
        let is_ready =
            |wire: &Wire<Report>| poll(&mut [wire.poll_fd()], Some(&Timespec::default())).expect("a descriptor") > 0;
        assert!(!is_ready(&here));
        let mut received = there.receive();
        assert!(is_ready(&here), "nothing else would wake it");
        here.flush();
        assert!(!here.is_full() && !is_ready(&here));
        received.extend(there.receive());
        assert_eq!(received.last(), Some(&Order::Renew(sent)));
    }

    #[test]
    fn a_text_comes_as_it_was_sent_and_what_is_no_message_is_left_out() {
        let (mut here, there) = UnixStream::pair().expect("a pair");
        let mut there: Wire<Report> = Wire::new(there).expect("a wire");
        here.write_all(b"nonsense\n").expect("room");
        let sent = [Report::Warning("a line\nand \"another\"".to_owned()), Report::Renewed(u64::MAX)];
        let mut here: Wire<Order> = Wire::new(here).expect("a wire");
        sent.iter().for_each(|report| here.send(report));
        assert_eq!(there.receive(), sent);
    }
}
