//! Messages between the modules on the nodes of a cluster, over the connections of the cluster bus.

use super::context::Ctx;
use super::guard::guard;
use super::load::Loader;
use redis_module::raw;
use std::ffi::{c_char, c_uchar};
use std::ptr;

/// The kind of message. The server delivers messages by this number, and by the module's name only if it has nine
/// letters. So another module may use the same number: see [`MARK`].
const KIND: u8 = 0x6c;

/// The beginning of each message, with the version of its form. A number follows.
const MARK: [u8; 8] = *b"lockfnc1";

/// Receives the numbers that other nodes of the cluster send.
pub trait Peer {
    /// Another node of this cluster has sent this number.
    fn on_message(number: u64);
}

impl Loader<'_> {
    /// Listens to the other nodes. Without a cluster no message ever comes.
    pub fn peers<P: Peer>(&mut self) {
        // SAFETY: the context of the load, which lives for it (rule 2).
        unsafe { api!(RedisModule_RegisterClusterMessageReceiver(self.as_ptr(), KIND, Some(on_message::<P>))) }
    }
}

impl Ctx<'_> {
    /// Sends a number to all other nodes of the cluster. A node that cannot be reached now never gets it.
    pub fn broadcast(&mut self, number: u64) {
        let bytes = [MARK, number.to_be_bytes()].concat();
        // SAFETY: the context lives for this call (rule 2). Null stands for all nodes. The bytes outlive the call,
        // and are as many as is said.
        unsafe {
            api!(RedisModule_SendClusterMessage(
                self.as_ptr(),
                ptr::null(),
                KIND,
                bytes.as_ptr().cast::<c_char>(),
                bytes.len() as u32
            ))
        };
    }
}

extern "C" fn on_message<P: Peer>(
    _ctx: *mut raw::RedisModuleCtx,
    _sender: *const c_char,
    _kind: u8,
    bytes: *const c_uchar,
    bytes_len: u32,
) {
    guard(|| {
        if bytes.is_null() {
            return;
        }
        // SAFETY: the server passes as many bytes as it says, for this call (rule 2).
        let bytes = unsafe { std::slice::from_raw_parts(bytes, bytes_len as usize) };
        // Anything else comes from another module, or from a later version of this one.
        let number = bytes.strip_prefix(&MARK).and_then(|number| number.try_into().ok());
        if let Some(number) = number {
            P::on_message(u64::from_be_bytes(number));
        }
    });
}
