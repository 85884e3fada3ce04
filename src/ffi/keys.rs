//! Open keys and the values under them.

use super::context::{Ctx, Serving};
use super::serving::answering;
use super::string::{OwnedStr, Str};
use super::value::{DataType, Value};
use redis_module::raw;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::ffi::c_int;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::ptr::NonNull;

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

/// Why a key was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It has a value of another type.
    WrongType,
    /// Another node serves it.
    Elsewhere,
}

/// Open keys, closed on drop. Holds the context exclusively, so that no value is open twice.
#[derive(Debug)]
pub struct Keys<'k, 'n, V: Value> {
    open: SmallVec<[Open<'n, V>; 1]>,
    /// Where each of very many is, by its name.
    index: Option<Box<Index>>,
    data_type: &'k DataType<V>,
    /// As the open keys say. What the context says is another one on Valkey 9.1, in the event of a MOVE inside MULTI.
    db: u32,
    ctx: NonNull<raw::RedisModuleCtx>,
    lent: PhantomData<&'k mut ()>,
}

/// Where keys are among those that are open, by what their names come to. That cannot be foreseen, so that nobody can
/// choose names which come to the same.
#[derive(Debug, Default)]
struct Index {
    state: RandomState,
    places: HashMap<u64, SmallVec<[usize; 1]>>,
}

impl Index {
    fn find(&self, name: &[u8]) -> &[usize] {
        self.places.get(&self.state.hash_one(name)).map_or(&[], |places| places)
    }

    fn add(&mut self, name: &[u8], at: usize) {
        self.places.entry(self.state.hash_one(name)).or_default().push(at);
    }

    fn remove(&mut self, name: &[u8], at: usize) {
        if let Entry::Occupied(mut places) = self.places.entry(self.state.hash_one(name)) {
            places.get_mut().retain(|there| *there != at);
            if places.get().is_empty() {
                places.remove();
            }
        }
    }
}

/// So many keys are looked through one by one.
const FEW: usize = 16;

#[derive(Debug)]
struct Open<'n, V> {
    name: Name<'n>,
    /// Null for a key that was opened to be read and is not there.
    key: *mut raw::RedisModuleKey,
    value: Option<NonNull<V>>,
    /// Whether the value was put there since the key was opened: then nobody has given it a time to live yet.
    is_fresh: bool,
}

/// The name of an open key.
#[derive(Debug)]
pub enum Name<'n> {
    /// An argument of the command.
    Lent(Str<'n>),
    /// A name of our own.
    Owned(OwnedStr),
}

impl Name<'_> {
    /// To lend it.
    #[must_use]
    pub fn as_str(&self) -> Str<'_> {
        match self {
            Name::Lent(name) => *name,
            Name::Owned(name) => name.as_str(),
        }
    }
}

impl<'k, 'n, V: Value> Keys<'k, 'n, V> {
    /// Opens keys of the selected database, which must have different names. Nothing else can be done with the context
    /// while they are open.
    ///
    /// # Errors
    /// When one has a value of another type; then none is open.
    pub fn open<'c>(
        ctx: &'k mut Ctx<'c>,
        data_type: &'k DataType<V>,
        names: &[Str<'n>],
        access: Access,
    ) -> Result<Keys<'k, 'n, V>, WrongType> {
        // A key that is open twice would be two exclusive references to one value.
        assert!(names.iter().enumerate().all(|(n, name)| names[..n].iter().all(|o| o.as_bytes() != name.as_bytes())));
        let (db, raw) = (ctx.db(), ctx.as_non_null());
        let mut keys = Keys { open: SmallVec::new(), index: None, data_type, db, ctx: raw, lent: PhantomData };
        for name in names {
            keys.push(Name::Lent(*name), access)?;
        }
        Ok(keys)
    }

    /// Opens one more key to be written, if it is not open yet, and tells its place.
    ///
    /// # Errors
    /// When it has a value of another type, or has none here and another node serves it; then it is not open.
    pub fn open_more(&mut self, name: &[u8]) -> Result<usize, Unopened> {
        if let Some(at) = self.find(name) {
            return Ok(at);
        }
        self.push(Name::Owned(OwnedStr::new(name)), Access::Write).map_err(|WrongType| Unopened::WrongType)?;
        let at = self.open.len() - 1;
        // While a slot is moving its keys may be there already: the server has been asked for those of the command
        // alone.
        if self.get(at).is_none() && answering(self.ctx, self.name(at)) == Serving::Elsewhere {
            self.close_last(at);
            return Err(Unopened::Elsewhere);
        }
        Ok(at)
    }

    /// Closes the keys that were opened last: so many stay open.
    pub fn close_last(&mut self, left: usize) {
        let left = left.min(self.open.len());
        for (at, open) in (left..).zip(self.open.drain(left..)) {
            if let Some(index) = &mut self.index {
                index.remove(open.name.as_str().as_bytes(), at);
            }
            open.close();
        }
    }

    /// Looks at the value of a key of any database, which need not be open.
    pub fn peek<R>(&mut self, db: u32, name: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        if db == self.db {
            if let Some(at) = self.find(name) {
                return self.get(at).map(read);
            }
            return self.glance(name, read);
        }
        // SAFETY: the context of the call that these keys are borrowed from.
        let selected = unsafe { api!(RedisModule_GetSelectedDb(self.ctx.as_ptr())) };
        let ours = self.db;
        self.select(db as c_int);
        let result = self.glance(name, read);
        self.select(selected);
        self.db = ours;
        result
    }

    /// Looks at the value of a key of the selected database that is not open.
    fn glance<R>(&mut self, name: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        self.push(Name::Owned(OwnedStr::new(name)), Access::Read).ok()?;
        let at = self.open.len() - 1;
        let result = self.get(at).map(read);
        self.close_last(at);
        result
    }

    fn select(&mut self, db: c_int) {
        // SAFETY: the context of the call that these keys are borrowed from.
        unsafe { api!(RedisModule_SelectDb(self.ctx.as_ptr(), db)) };
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let is_it = |at: &usize| self.open[*at].name.as_str().as_bytes() == name;
        match &self.index {
            Some(index) => index.find(name).iter().copied().find(is_it),
            None => (0..self.open.len()).find(is_it),
        }
    }

    /// Opens a key behind those that are open.
    fn push(&mut self, name: Name<'n>, access: Access) -> Result<(), WrongType> {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: the context of the call that these keys are borrowed from, and a name that lives as long as the key
        // is open.
        let key = unsafe { api!(RedisModule_OpenKey(self.ctx.as_ptr(), name.as_str().as_ptr(), mode as c_int)) };
        if !key.is_null() {
            // SAFETY: an open key.
            self.db = unsafe { api!(RedisModule_GetDbIdFromModuleKey(key)) }.max(0) as u32;
        }
        let mut open = Open { name, key, value: None, is_fresh: false };
        // SAFETY: an open key, or null, which counts as empty.
        let kind = unsafe { api!(RedisModule_KeyType(key)) } as isize;
        if kind != raw::REDISMODULE_KEYTYPE_EMPTY {
            // SAFETY: an open key with a value: null unless it is a module's.
            let is_ours = self.data_type.is(unsafe { api!(RedisModule_ModuleTypeGetType(key)) });
            if !is_ours {
                open.close();
                return Err(WrongType);
            }
            // SAFETY: an open key with a value of our type.
            open.value = NonNull::new(unsafe { api!(RedisModule_ModuleTypeGetValue(key)) }.cast());
        }
        self.open.push(open);
        match &mut self.index {
            Some(index) => {
                let at = self.open.len() - 1;
                index.add(self.open[at].name.as_str().as_bytes(), at);
            }
            None if self.open.len() > FEW => {
                let mut index = Box::<Index>::default();
                for (at, open) in self.open.iter().enumerate() {
                    index.add(open.name.as_str().as_bytes(), at);
                }
                self.index = Some(index);
            }
            None => {}
        }
        Ok(())
    }

    /// Closes the keys, and leaves their names.
    pub fn close(mut self) -> SmallVec<[Name<'n>; 1]> {
        self.open.drain(..).map(Open::close).collect()
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
    pub fn name(&self, at: usize) -> Str<'_> {
        self.open[at].name.as_str()
    }

    /// The name and the value of a key, to change.
    pub fn entry(&mut self, at: usize) -> (Str<'_>, Option<&mut V>) {
        let open = &mut self.open[at];
        // SAFETY: as in `get_mut`.
        (open.name.as_str(), open.value.as_mut().map(|value| unsafe { value.as_mut() }))
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
        open.is_fresh = true;
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

    /// When a key's time to live ends, in milliseconds of the wall clock, if somebody gave it one.
    #[must_use]
    pub fn expires_at(&self, at: usize) -> Option<i64> {
        let key = self.open[at].key;
        if key.is_null() {
            return None;
        }
        // SAFETY: an open key.
        let at_ms = unsafe { api!(RedisModule_GetAbsExpire(key)) };
        (at_ms != raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE)).then_some(at_ms)
    }

    /// Takes away a key's time to live, if somebody gave it one.
    pub fn persist(&mut self, at: usize) {
        let Open { key, is_fresh, .. } = self.open[at];
        assert!(!key.is_null(), "it was opened to be written");
        if is_fresh {
            return;
        }
        // SAFETY: an open key.
        unsafe {
            if api!(RedisModule_GetExpire(key)) != raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE) {
                api!(RedisModule_SetExpire(key, raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE)));
            }
        }
    }
}

impl<V: Value> Drop for Keys<'_, '_, V> {
    fn drop(&mut self) {
        for open in self.open.drain(..) {
            open.close();
        }
    }
}

impl<'n, V> Open<'n, V> {
    fn close(self) -> Name<'n> {
        // SAFETY: opened in `push` and not closed since; null is allowed.
        unsafe { api!(RedisModule_CloseKey(self.key)) };
        self.name
    }
}
