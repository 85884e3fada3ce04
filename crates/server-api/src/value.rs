//! Data types of the module: how the server saves, loads, frees, measures and digests their values.

use super::guard::guard;
use super::log::log_warning;
use super::record::Record;
use super::string::Str;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value of a key.
pub trait Value: Sized + 'static {
    /// The name of the type: 9 characters.
    const NAME: &'static CStr;
    /// The version of the saved form. The server stores it with each value.
    const ENCODING: i32;

    /// Makes a value from its saved form. It has no key yet, and may never get one.
    ///
    /// # Errors
    /// If the payload is damaged: the reason, for the log.
    fn load(saved: &[u8], place: Option<Destination<'_>>) -> Result<Self, String>;
    /// The saved form.
    fn save(&self) -> Vec<u8>;
    /// Passes the records that make this value again.
    fn rewrite(&self, each: &mut dyn FnMut(Record<'_>));
    /// The memory that it takes in bytes, without the key.
    fn bytes(&self, name_len: usize) -> usize;
    /// The number of allocations to free. Above 64, UNLINK frees it in the background.
    fn free_effort(&self) -> usize;
    /// Passes the parts of the digest, in any order.
    fn digest(&self, each: &mut DigestPart<'_>);
    /// The value is about to leave the key of this name. It is freed then, or moves to another key.
    fn unlinked(&self, db: u32, name: &[u8]);
    /// A number to save once per RDB; None if there is none.
    fn save_aside() -> Option<u64>;
    /// Takes the number that was saved once per RDB.
    ///
    /// # Errors
    /// If it is damaged: the reason, for the log.
    fn load_aside(saved: u64) -> Result<(), String>;
}

/// The key that a loaded value is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination<'a> {
    /// None if the server does not say.
    pub db: Option<u32>,
    /// Of the key.
    pub name: &'a [u8],
}

/// Takes the strings and the numbers of one part of a digest.
pub type DigestPart<'a> = dyn FnMut(&[&[u8]], &[i64]) + 'a;

/// A registered type of values.
#[derive(Debug)]
pub struct DataType<V> {
    raw: AtomicPtr<raw::RedisModuleType>,
    value: PhantomData<fn() -> V>,
}

impl<V: Value> DataType<V> {
    /// A type that is not registered yet.
    #[must_use]
    pub const fn new() -> DataType<V> {
        DataType { raw: AtomicPtr::new(ptr::null_mut()), value: PhantomData }
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleType {
        self.raw.load(Ordering::Relaxed)
    }

    pub(super) fn is(&self, raw: *mut raw::RedisModuleType) -> bool {
        raw == self.as_ptr()
    }

    /// # Safety
    /// `ctx` must be the context of the module's load.
    pub(super) unsafe fn register(&self, ctx: *mut raw::RedisModuleCtx) -> bool {
        let mut methods = raw::RedisModuleTypeMethods {
            version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
            rdb_load: Some(rdb_load::<V>),
            rdb_save: Some(rdb_save::<V>),
            aof_rewrite: Some(aof_rewrite::<V>),
            mem_usage: None,
            digest: Some(digest::<V>),
            free: Some(free::<V>),
            aux_load: Some(aux_load::<V>),
            aux_save: Some(aux_save::<V>),
            aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
            free_effort: None,
            unlink: None,
            // Without a copy callback the server refuses COPY: a lock has no copy.
            copy: None,
            // Values are small and live shortly: to move them would gain nothing.
            defrag: None,
            mem_usage2: Some(mem_usage::<V>),
            free_effort2: Some(free_effort::<V>),
            unlink2: Some(unlink::<V>),
            copy2: None,
            // Redis 7.0 ignores this one and uses aux_save. All others prefer it: if it writes nothing, the RDB has no
            // trace of the module, and loads on a server without it.
            aux_save2: Some(aux_save_if_any::<V>),
        };
        // SAFETY: the caller passes the context of the load, which lives for it (rule 2). The server copies the
        // methods.
        let raw = unsafe { api!(RedisModule_CreateDataType(ctx, V::NAME.as_ptr(), V::ENCODING, &raw mut methods)) };
        self.raw.store(raw, Ordering::Relaxed);
        !raw.is_null()
    }
}

impl<V: Value> Default for DataType<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// # Safety
/// `value` must be a value of type `V` that lives for `'a` and that nothing changes meanwhile.
unsafe fn value_of<'a, V>(value: *const c_void) -> &'a V {
    // SAFETY: the caller says that the value has this type, lives for `'a` and does not change.
    unsafe { &*value.cast::<V>() }
}

extern "C" fn rdb_load<V: Value>(rdb: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void {
    let load = || {
        if encoding > V::ENCODING {
            return Err(format!("saved by a later version (encoding {encoding})"));
        }
        let mut len = 0;
        // SAFETY: the server passes `rdb` for this call (rule 2). The module owns the bytes; null says that loading
        // failed.
        let saved = unsafe { api!(RedisModule_LoadStringBuffer(rdb, &raw mut len)) };
        if saved.is_null() {
            return Err("cut short".to_owned());
        }
        // SAFETY: not null, so these are the `len` bytes just loaded, which live until they are freed below.
        let bytes = unsafe { slice::from_raw_parts(saved.cast::<u8>(), len) };
        // SAFETY: this is a load callback of a value, for which the server passes `rdb` (rule 2).
        let value = guard(|| V::load(bytes, unsafe { destination(rdb) }));
        // SAFETY: loaded above, freed once, here, and not used after that.
        unsafe { api!(RedisModule_Free(saved.cast())) };
        value.unwrap_or_else(|| Err("a panic".to_owned()))
    };
    match guard(load) {
        Some(Ok(value)) => Box::into_raw(Box::new(value)).cast(),
        Some(Err(reason)) => {
            log_warning(&format!("a saved {} was refused: {reason}", V::NAME.to_string_lossy()));
            ptr::null_mut()
        }
        None => ptr::null_mut(),
    }
}

/// The key that is being loaded, as the server names it; None if it names none.
///
/// # Safety
/// `rdb` must be what the server passes to a load callback of a value, which lasts for `'a`.
unsafe fn destination<'a>(rdb: *mut raw::RedisModuleIO) -> Option<Destination<'a>> {
    // SAFETY: the caller passes `rdb` of a load callback. The name, if there is one, lives as long and does not change.
    // The version takes no argument.
    let (name, db, version) = unsafe {
        (
            Str::lent(api!(RedisModule_GetKeyNameFromIO(rdb)).cast_mut())?,
            api!(RedisModule_GetDbIdFromIO(rdb)),
            api!(RedisModule_GetServerVersion()),
        )
    };
    // During a load beside the old data set, databases have their numbers from Redis 7.4 and Valkey 8.0 on. Before, all
    // of them are called 0.
    let is_told = version >= 0x0007_0400;
    Some(Destination { db: u32::try_from(db).ok().filter(|_| is_told), name: name.as_bytes() })
}

extern "C" fn rdb_save<V: Value>(rdb: *mut raw::RedisModuleIO, value: *mut c_void) {
    guard(|| {
        // SAFETY: the server passes a value of this type, which lives for this call (rule 2).
        let saved = unsafe { value_of::<V>(value) }.save();
        // SAFETY: the server passes `rdb` for this call (rule 2), and copies the bytes.
        unsafe { api!(RedisModule_SaveStringBuffer(rdb, saved.as_ptr().cast(), saved.len())) };
    });
}

extern "C" fn aof_rewrite<V: Value>(
    aof: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    guard(|| {
        // SAFETY: the server passes a value of this type, which lives for this call (rule 2).
        let value = unsafe { value_of::<V>(value) };
        value.rewrite(&mut |record| {
            let Record { command, name, word, text } = record;
            let (command, name, name_len) = (command.as_ptr(), name.as_ptr(), name.len());
            let (word, word_len) = (word.as_ptr(), word.len());
            // SAFETY: the server passes `aof` and `key` for this call (rule 2). The formats describe what follows: `s`
            // a string, each `b` bytes and their length, which the server copies.
            unsafe {
                match text.map(|text| (text.as_ptr(), text.len())) {
                    None => {
                        let format = c"sbb".as_ptr();
                        api!(RedisModule_EmitAOF(aof, command, format, key, name, name_len, word, word_len));
                    }
                    Some((text, len)) => {
                        let format = c"sbbb".as_ptr();
                        api!(RedisModule_EmitAOF(aof, command, format, key, name, name_len, word, word_len, text, len));
                    }
                }
            }
        });
    });
}

extern "C" fn digest<V: Value>(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guard(|| {
        // SAFETY: the server passes a value of this type, which lives for this call (rule 2).
        let value = unsafe { value_of::<V>(value) };
        value.digest(&mut |strings, numbers| {
            // SAFETY: the server passes `digest` for this call (rule 2), and copies what is added.
            unsafe {
                for string in strings {
                    api!(RedisModule_DigestAddStringBuffer(digest, string.as_ptr().cast::<c_char>(), string.len()));
                }
                for number in numbers {
                    api!(RedisModule_DigestAddLongLong(digest, *number));
                }
                api!(RedisModule_DigestEndSequence(digest));
            }
        });
    });
}

/// May run on a background thread, and touches nothing but the value (rule 1).
extern "C" fn free<V: Value>(value: *mut c_void) {
    // SAFETY: `rdb_load` or `Keys::insert` made the value by Box::into_raw, and the server frees it once (rule 4).
    guard(|| drop(unsafe { Box::from_raw(value.cast::<V>()) }));
}

extern "C" fn mem_usage<V: Value>(
    ctx: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _sample_size: usize,
) -> usize {
    guard(|| {
        // SAFETY: the server passes `ctx` for this call (rule 2); the name, if there is one, lives as long.
        let name = unsafe { Str::lent(api!(RedisModule_GetKeyNameFromOptCtx(ctx)).cast_mut()) };
        // SAFETY: the server passes a value of this type, which lives for this call (rule 2).
        unsafe { value_of::<V>(value) }.bytes(name.map_or(0, |name| name.as_bytes().len()))
    })
    .unwrap_or(0)
}

extern "C" fn free_effort<V: Value>(_ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> usize {
    // SAFETY: the server passes a value of this type, which lives for this call (rule 2).
    guard(|| unsafe { value_of::<V>(value) }.free_effort()).unwrap_or(1)
}

extern "C" fn unlink<V: Value>(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    guard(|| {
        // SAFETY: the server passes `ctx` for this call (rule 2).
        let db = unsafe { api!(RedisModule_GetDbIdFromOptCtx(ctx)) };
        // SAFETY: the server passes `ctx` for this call (rule 2); the name, if there is one, lives as long.
        let name = unsafe { Str::lent(api!(RedisModule_GetKeyNameFromOptCtx(ctx)).cast_mut()) };
        // SAFETY: the server passes a value of this type, which lives for this call (rule 2).
        let value = unsafe { value_of::<V>(value) };
        value.unlinked(db.max(0) as u32, name.map_or(&[], Str::as_bytes));
    });
}

/// For Redis 7.0. Always writes a number: the server has already written that one follows.
extern "C" fn aux_save<V: Value>(rdb: *mut raw::RedisModuleIO, _when: c_int) {
    let saved = guard(V::save_aside).flatten().unwrap_or(0);
    // SAFETY: the server passes `rdb` for this call (rule 2).
    guard(|| unsafe { api!(RedisModule_SaveUnsigned(rdb, saved)) });
}

extern "C" fn aux_save_if_any<V: Value>(rdb: *mut raw::RedisModuleIO, _when: c_int) {
    guard(|| {
        if let Some(saved) = V::save_aside() {
            // SAFETY: the server passes `rdb` for this call (rule 2).
            unsafe { api!(RedisModule_SaveUnsigned(rdb, saved)) };
        }
    });
}

extern "C" fn aux_load<V: Value>(rdb: *mut raw::RedisModuleIO, encoding: c_int, _when: c_int) -> c_int {
    let load = || {
        if encoding > V::ENCODING {
            return Err(format!("saved by a later version (encoding {encoding})"));
        }
        // SAFETY: the server passes `rdb` for this call (rule 2).
        let (saved, failed) = unsafe { (api!(RedisModule_LoadUnsigned(rdb)), api!(RedisModule_IsIOError(rdb)) != 0) };
        if failed { Err("cut short".to_owned()) } else { V::load_aside(saved) }
    };
    match guard(load) {
        Some(Ok(())) => raw::REDISMODULE_OK as c_int,
        Some(Err(reason)) => {
            log_warning(&format!("what {} saved aside was refused: {reason}", V::NAME.to_string_lossy()));
            raw::REDISMODULE_ERR as c_int
        }
        None => raw::REDISMODULE_ERR as c_int,
    }
}
