//! The arguments of a call.

use super::string::Str;
use redis_module::raw;
use smallvec::SmallVec;
use std::ffi::c_int;
use std::marker::PhantomData;

/// The strings of one call, the command's name first.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    argv: *mut *mut raw::RedisModuleString,
    argc: usize,
    lent: PhantomData<&'a [Str<'a>]>,
}

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` must be an array of `argc` strings, all of which live for `'a`.
    pub(super) unsafe fn lent(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Args<'a> {
        Args { argv, argc: argc.max(0) as usize, lent: PhantomData }
    }

    /// The name counts as one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.argc
    }

    /// True if there is not even a name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.argc == 0
    }

    /// The argument at this place. The name is at 0.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Str<'a>> {
        // SAFETY: below `argc` the server's array holds strings, which live for `'a`, as `lent` demands.
        (at < self.argc).then(|| unsafe { Str::lent(*self.argv.add(at)) }).flatten()
    }

    /// The arguments from this place on.
    #[must_use]
    pub fn after(self, at: usize) -> Args<'a> {
        let at = at.min(self.argc);
        // SAFETY: at most one past the end of the server's array.
        Args { argv: unsafe { self.argv.add(at) }, argc: self.argc - at, lent: PhantomData }
    }

    pub(super) fn as_raw(&self) -> (*mut *mut raw::RedisModuleString, usize) {
        (self.argv, self.argc)
    }

    /// The keys of [`KeyArgs::Counted`](super::command_info::KeyArgs::Counted). None if fewer arguments follow than the
    /// count says: the command refuses that.
    pub(super) fn counted(&self) -> SmallVec<[Str<'a>; 8]> {
        let said = self.get(1).and_then(|said| str::from_utf8(said.as_bytes()).ok()?.parse::<usize>().ok());
        match said {
            Some(said) if said <= self.argc.saturating_sub(2) => (2..2 + said).filter_map(|at| self.get(at)).collect(),
            _ => SmallVec::new(),
        }
    }
}
