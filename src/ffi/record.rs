//! The form of the records that the module writes for replicas and the AOF.

use super::string::OwnedStr;
use redis_module::raw;
use smallvec::SmallVec;
use std::ffi::CStr;

/// One record: `command key name number... [text]`.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The command that replays it.
    pub command: &'static CStr,
    /// The first argument after the key.
    pub name: &'a [u8],
    /// The arguments after it.
    pub numbers: &'a [i64],
    /// The last argument, if there is one more.
    pub text: Option<&'a [u8]>,
}

impl Record<'_> {
    /// Passes the arguments behind the key, as the server's format `v` takes them. The strings live until `call`
    /// returns.
    ///
    /// The server keeps strings of its own kind as they are. If it makes them of bytes and numbers itself, each costs
    /// two allocations instead of one.
    pub(super) fn with_args<R>(&self, call: impl FnOnce(&[*mut raw::RedisModuleString]) -> R) -> R {
        let name = std::iter::once(OwnedStr::new(self.name));
        let numbers = self.numbers.iter().map(|number| OwnedStr::of_number(*number));
        let strings: SmallVec<[OwnedStr; 7]> = name.chain(numbers).chain(self.text.map(OwnedStr::new)).collect();
        let args: SmallVec<[_; 7]> = strings.iter().map(OwnedStr::as_ptr).collect();
        call(&args)
    }
}
