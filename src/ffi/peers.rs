//! What the modules on the nodes of a cluster tell each other, over the connections that the nodes have anyway.

use super::context::Ctx;
use super::guard::guard;
use super::load::Loader;
use redis_module::raw;
use std::ffi::{c_char, c_uchar};
use std::ptr;

/// The kind of message. The server tells modules whose names are not of nine letters apart by this alone, so others may
/// use the same number: see [`MARK`].
const KIND: u8 = 0x6c;

/// How our messages begin, with the version of their form; a number follows.
const MARK: [u8; 8] = *b"lockfnc1";

/// Gets the numbers that other nodes of the cluster send.
pub trait Peer {
    /// Another node, which the cluster knows and so do we, has told this number.
    fn on_message(number: u64);
}

impl Loader<'_> {
    /// Listens to the other nodes, if this is one of a cluster.
    pub fn peers<P: Peer>(&mut self) {
        // SAFETY: the context of the load.
        unsafe { api!(RedisModule_RegisterClusterMessageReceiver(self.as_ptr(), KIND, Some(on_message::<P>))) }
    }
}

impl Ctx<'_> {
    /// Tells all other nodes of the cluster a number. Those that cannot be reached now will not hear of it.
    pub fn broadcast(&mut self, number: u64) {
        let bytes = [MARK, number.to_be_bytes()].concat();
        // SAFETY: a valid context; no node in particular; bytes that outlive the call, and how many these are.
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
        // SAFETY: the server passes as many bytes as it says, alive for this call.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, bytes_len as usize) };
        // Whatever else comes is another module's, or a later version's of this one.
        let number = bytes.strip_prefix(&MARK).and_then(|number| number.try_into().ok());
        if let Some(number) = number {
            P::on_message(u64::from_be_bytes(number));
        }
    });
}
