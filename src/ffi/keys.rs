//! Open keys and the values under them.

use super::context::Ctx;
use super::string::Str;
use super::value::{DataType, Value};
use redis_module::raw;
use smallvec::SmallVec;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// What a key is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To look at.
    Read,
    /// To change, create or delete.
    Write,
}

/// A key has a value of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// Open keys, closed on drop. Holds the context exclusively, so that no value is open twice.
#[derive(Debug)]
pub struct Keys<'k, V: Value> {
    open: SmallVec<[Open<'k, V>; 1]>,
    data_type: &'k DataType<V>,
    /// As the open keys say. What the context says is another one on Valkey 9.1, in the event of a MOVE inside MULTI.
    db: u32,
    ctx: PhantomData<&'k mut ()>,
}

#[derive(Debug)]
struct Open<'k, V> {
    name: Str<'k>,
    /// Null for a key that was opened to be read and is not there.
    key: *mut raw::RedisModuleKey,
    value: Option<NonNull<V>>,
}

impl<'k, V: Value> Keys<'k, V> {
    /// Opens keys of the selected database, which must have different names. Nothing else can be done with the context
    /// while they are open.
    ///
    /// # Errors
    /// When one has a value of another type; then none is open.
    pub fn open<'c>(
        ctx: &'k mut Ctx<'c>,
        data_type: &'k DataType<V>,
        names: &[Str<'k>],
        access: Access,
    ) -> Result<Keys<'k, V>, WrongType> {
        // A key that is open twice would be two exclusive references to one value.
        assert!(names.iter().enumerate().all(|(n, name)| names[..n].iter().all(|o| o.as_bytes() != name.as_bytes())));
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        let mut keys = Keys { open: SmallVec::new(), data_type, db: ctx.db(), ctx: PhantomData };
        for name in names {
            // SAFETY: a valid context and name.
            let key = unsafe { api!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), mode as c_int)) };
            keys.open.push(Open { name: *name, key, value: None });
            if !key.is_null() {
                // SAFETY: an open key.
                keys.db = unsafe { api!(RedisModule_GetDbIdFromModuleKey(key)) }.max(0) as u32;
            }
            let opened = keys.open.last_mut().expect("pushed on the line above");
            // SAFETY: an open key, or null, which counts as empty.
            let kind = unsafe { api!(RedisModule_KeyType(key)) } as isize;
            if kind == raw::REDISMODULE_KEYTYPE_EMPTY {
                continue;
            }
            // SAFETY: an open key with a value: null unless it is a module's.
            let is_ours = data_type.is(unsafe { api!(RedisModule_ModuleTypeGetType(key)) });
            if !is_ours {
                return Err(WrongType);
            }
            // SAFETY: an open key with a value of our type.
            opened.value = NonNull::new(unsafe { api!(RedisModule_ModuleTypeGetValue(key)) }.cast());
        }
        Ok(keys)
    }

    /// The database they are in.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.db
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The name of a key.
    #[must_use]
    pub fn name(&self, at: usize) -> Str<'k> {
        self.open[at].name
    }

    /// The value of a key, to look at.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&V> {
        // SAFETY: the key is open and the value ours; the borrow of `self` keeps out `get_mut`, and that of the context
        // other `Keys`.
        self.open[at].value.map(|value| unsafe { value.as_ref() })
    }

    /// The value of a key, to change.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut V> {
        // SAFETY: as in `get`; the borrow is exclusive.
        self.open[at].value.as_mut().map(|value| unsafe { value.as_mut() })
    }

    /// Puts a value under a key that has none and was opened to be written.
    pub fn insert(&mut self, at: usize, value: V) -> &mut V {
        let open = &mut self.open[at];
        assert!(open.value.is_none() && !open.key.is_null(), "it was opened to be written, and has no value");
        let value = Box::into_raw(Box::new(value));
        // SAFETY: an open, empty key; the server owns the value from here on and gives it to `free`.
        let set = unsafe { api!(RedisModule_ModuleTypeSetValue(open.key, self.data_type.as_ptr(), value.cast())) };
        assert_eq!(set, raw::REDISMODULE_OK as c_int, "the key is open for writing");
        open.value = NonNull::new(value);
        self.get_mut(at).expect("set on the line above")
    }

    /// Deletes a key.
    pub fn delete(&mut self, at: usize) {
        let open = &mut self.open[at];
        assert!(!open.key.is_null(), "it was opened to be written");
        open.value = None;
        // SAFETY: an open key; no reference to its value is left.
        unsafe { api!(RedisModule_DeleteKey(open.key)) };
    }

    /// Takes away a key's time to live, if somebody gave it one.
    pub fn persist(&mut self, at: usize) {
        let key = self.open[at].key;
        assert!(!key.is_null(), "it was opened to be written");
        // SAFETY: an open key.
        unsafe {
            if api!(RedisModule_GetExpire(key)) != raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE) {
                api!(RedisModule_SetExpire(key, raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE)));
            }
        }
    }
}

impl<V: Value> Drop for Keys<'_, V> {
    fn drop(&mut self) {
        for open in &mut self.open {
            let key = std::mem::replace(&mut open.key, ptr::null_mut());
            // SAFETY: opened in `open` and not closed since; null is allowed.
            unsafe { api!(RedisModule_CloseKey(key)) };
        }
    }
}
