//! Open keys and the values under them.

use super::context::Ctx;
use super::few::Few;
use super::serving::{Serving, answering};
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
    /// To read its value.
    Read,
    /// To create, change or delete its value.
    Write,
}

/// The key has a value of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// Why a key was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// Its value is of another type.
    WrongType,
    /// Another node serves it.
    Elsewhere,
}

/// Open keys, closed on drop. They borrow the context exclusively, so that no value is open twice (rule 3).
#[derive(Debug)]
pub struct Keys<'k, 'n, V: Value> {
    open: Few<Open<'n, V>>,
    /// Where each key is, by its name, once there are many.
    index: Option<Box<Index>>,
    data_type: &'k DataType<V>,
    /// As the open keys say. In the event of a MOVE inside MULTI, the context of Valkey 9.1 names another one.
    db: u32,
    ctx: NonNull<raw::RedisModuleCtx>,
    lent: PhantomData<&'k mut ()>,
}

/// The places of the open keys, by the hashes of their names. The hash is keyed at random, so that no client can choose
/// names that collide.
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

/// Up to so many keys are searched one by one.
const FEW: usize = 16;

#[derive(Debug)]
struct Open<'n, V> {
    name: Name<'n>,
    /// Null for a key that was opened to be read and does not exist.
    key: *mut raw::RedisModuleKey,
    value: Option<NonNull<V>>,
    /// Whether the value was set since the key was opened. Then it has no time to live yet.
    is_fresh: bool,
}

/// The names of keys that were open, in the same order.
#[derive(Debug)]
pub struct Names<'n>(Few<Name<'n>>);

impl Names<'_> {
    /// The name of the key at this place.
    #[must_use]
    pub fn get(&self, at: usize) -> Str<'_> {
        self.0.at(at).as_str()
    }
}

/// The name of an open key.
#[derive(Debug)]
enum Name<'n> {
    /// An argument of the command.
    Lent(Str<'n>),
    /// A name that the module made.
    Owned(OwnedStr),
}

impl Name<'_> {
    fn as_str(&self) -> Str<'_> {
        match self {
            Name::Lent(name) => *name,
            Name::Owned(name) => name.as_str(),
        }
    }
}

impl<'k, 'n, V: Value> Keys<'k, 'n, V> {
    /// Opens keys of the selected database. Their names must differ.
    ///
    /// # Errors
    /// If one has a value of another type. Then none is open.
    pub fn open<'c>(
        ctx: &'k mut Ctx<'c>,
        data_type: &'k DataType<V>,
        names: &[Str<'n>],
        access: Access,
    ) -> Result<Keys<'k, 'n, V>, WrongType> {
        // A key that is open twice would give two exclusive references to one value.
        let is_other = |(n, name): (usize, &Str<'_>)| names[..n].iter().all(|o| o.as_bytes() != name.as_bytes());
        assert!(names.len() == 1 || names.iter().enumerate().all(is_other));
        let (db, raw) = (ctx.db(), ctx.as_non_null());
        let mut keys = Keys { open: Few::new(), index: None, data_type, db, ctx: raw, lent: PhantomData };
        for name in names {
            keys.push(Name::Lent(*name), access)?;
        }
        Ok(keys)
    }

    /// Opens one more key to be written, unless it is open already. Returns its place.
    ///
    /// # Errors
    /// If it has a value of another type, or has none and another node serves it. Then it is not open.
    pub fn open_more(&mut self, name: &[u8]) -> Result<usize, Unopened> {
        if let Some(at) = self.find(name) {
            return Ok(at);
        }
        self.push(Name::Owned(OwnedStr::new(name)), Access::Write).map_err(|WrongType| Unopened::WrongType)?;
        let at = self.open.len() - 1;
        // The slot may be moving, and this key may have moved already: the server has checked the keys of the command
        // alone.
        if self.get(at).is_none() && answering(self.ctx, self.name(at)) == Serving::Elsewhere {
            self.close_last(at);
            return Err(Unopened::Elsewhere);
        }
        Ok(at)
    }

    /// Closes the keys that were opened last, so that `left` of them stay open.
    pub fn close_last(&mut self, left: usize) {
        while self.open.len() > left
            && let Some(open) = self.open.pop()
        {
            if let Some(index) = &mut self.index {
                index.remove(open.name.as_str().as_bytes(), self.open.len());
            }
            open.close();
        }
    }

    /// Reads the value of a key of any database, open or not.
    pub fn peek<R>(&mut self, db: u32, name: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        if db == self.db {
            if let Some(at) = self.find(name) {
                return self.get(at).map(read);
            }
            return self.glance(name, read);
        }
        // SAFETY: the context that these keys borrow, which lives for its call (rule 2).
        let selected = unsafe { api!(RedisModule_GetSelectedDb(self.ctx.as_ptr())) };
        let ours = self.db;
        self.select(db as c_int);
        let result = self.glance(name, read);
        self.select(selected);
        self.db = ours;
        result
    }

    /// Reads the value of a key of the selected database that is not open.
    fn glance<R>(&mut self, name: &[u8], read: impl FnOnce(&V) -> R) -> Option<R> {
        self.push(Name::Owned(OwnedStr::new(name)), Access::Read).ok()?;
        let at = self.open.len() - 1;
        let result = self.get(at).map(read);
        self.close_last(at);
        result
    }

    fn select(&mut self, db: c_int) {
        // SAFETY: the context that these keys borrow, which lives for its call (rule 2).
        unsafe { api!(RedisModule_SelectDb(self.ctx.as_ptr(), db)) };
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let is_it = |at: &usize| self.open.at(*at).name.as_str().as_bytes() == name;
        match &self.index {
            Some(index) => index.find(name).iter().copied().find(is_it),
            None => (0..self.open.len()).find(is_it),
        }
    }

    /// Opens a key behind those that are open.
    fn push(&mut self, name: Name<'n>, access: Access) -> Result<(), WrongType> {
        let key = self.open_key(&name, access);
        if !key.is_null() {
            // SAFETY: `key` was opened on the line above.
            self.db = unsafe { api!(RedisModule_GetDbIdFromModuleKey(key)) }.max(0) as u32;
        }
        let mut open = Open { name, key, value: None, is_fresh: false };
        match self.value_of(key) {
            Ok(value) => open.value = value,
            Err(WrongType) => {
                open.close();
                return Err(WrongType);
            }
        }
        self.open.push(open);
        self.index_last();
        Ok(())
    }

    fn open_key(&self, name: &Name<'n>, access: Access) -> *mut raw::RedisModuleKey {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: the context that these keys borrow, which lives for its call (rule 2). `Open` keeps the name as long
        // as the key.
        unsafe { api!(RedisModule_OpenKey(self.ctx.as_ptr(), name.as_str().as_ptr(), mode as c_int)) }
    }

    /// The value of a key that was just opened. A null key has none.
    fn value_of(&self, key: *mut raw::RedisModuleKey) -> Result<Option<NonNull<V>>, WrongType> {
        // SAFETY: an open key, or null, which counts as empty.
        let kind = unsafe { api!(RedisModule_KeyType(key)) } as isize;
        if kind == raw::REDISMODULE_KEYTYPE_EMPTY {
            return Ok(None);
        }
        // SAFETY: an open key with a value. The server returns null unless the type is a module's.
        if !self.data_type.is(unsafe { api!(RedisModule_ModuleTypeGetType(key)) }) {
            return Err(WrongType);
        }
        // SAFETY: an open key with a value of the module's type, which `insert` or `rdb_load` made.
        Ok(NonNull::new(unsafe { api!(RedisModule_ModuleTypeGetValue(key)) }.cast()))
    }

    /// Adds the last key to the index, which begins when keys become many.
    fn index_last(&mut self) {
        match &mut self.index {
            Some(index) => {
                let at = self.open.len() - 1;
                index.add(self.open.at(at).name.as_str().as_bytes(), at);
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
    }

    /// Closes all keys, and returns their names.
    pub fn close(mut self) -> Names<'n> {
        Names(self.open.take().map(Open::close))
    }

    /// The database of the open keys.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.db
    }

    /// The number of open keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no key is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.len() == 0
    }

    /// The name of the key at this place.
    #[must_use]
    pub fn name(&self, at: usize) -> Str<'_> {
        self.open.at(at).name.as_str()
    }

    /// The name of a key, and its value to change.
    pub fn entry(&mut self, at: usize) -> (Str<'_>, Option<&mut V>) {
        let open = self.open.at_mut(at);
        // SAFETY: as in `get_mut`.
        (open.name.as_str(), open.value.as_mut().map(|value| unsafe { value.as_mut() }))
    }

    /// The value of a key, to read.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&V> {
        // SAFETY: the value lives while its key is open. The borrow of `self` excludes `get_mut`, and that of the
        // context excludes other `Keys` (rule 3).
        self.open.at(at).value.map(|value| unsafe { value.as_ref() })
    }

    /// The value of a key, to change.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut V> {
        // SAFETY: as in `get`; the borrow is exclusive.
        self.open.at_mut(at).value.as_mut().map(|value| unsafe { value.as_mut() })
    }

    /// Sets the value of a key that has none and was opened to be written.
    pub fn insert(&mut self, at: usize, value: V) -> &mut V {
        let open = self.open.at_mut(at);
        assert!(open.value.is_none() && !open.key.is_null(), "it was opened to be written, and has no value");
        let value = Box::into_raw(Box::new(value));
        // SAFETY: a key that is open to be written and has no value. The server owns the value from here on, and passes
        // it to `free` once (rule 4).
        let set = unsafe { api!(RedisModule_ModuleTypeSetValue(open.key, self.data_type.as_ptr(), value.cast())) };
        assert_eq!(set, raw::REDISMODULE_OK as c_int, "the key is open for writing");
        open.value = NonNull::new(value);
        open.is_fresh = true;
        self.get_mut(at).expect("set on the line above")
    }

    /// Deletes a key.
    pub fn delete(&mut self, at: usize) {
        let open = self.open.at_mut(at);
        assert!(!open.key.is_null(), "it was opened to be written");
        open.value = None;
        // SAFETY: a key that is open to be written. `self` is borrowed exclusively, so no reference to its value is
        // left.
        unsafe { api!(RedisModule_DeleteKey(open.key)) };
    }

    /// The end of a key's time to live, in milliseconds of the wall clock, if a client gave it one.
    #[must_use]
    pub fn expires_at(&self, at: usize) -> Option<i64> {
        let key = self.open.at(at).key;
        if key.is_null() {
            return None;
        }
        // SAFETY: the key is open, and not null.
        let at_ms = unsafe { api!(RedisModule_GetAbsExpire(key)) };
        (at_ms != raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE)).then_some(at_ms)
    }

    /// Removes a key's time to live, if a client gave it one.
    pub fn persist(&mut self, at: usize) {
        let Open { key, is_fresh, .. } = *self.open.at(at);
        assert!(!key.is_null(), "it was opened to be written");
        if is_fresh {
            return;
        }
        // SAFETY: the key is open to be written, and not null.
        unsafe {
            if api!(RedisModule_GetExpire(key)) != raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE) {
                api!(RedisModule_SetExpire(key, raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE)));
            }
        }
    }
}

impl<V: Value> Drop for Keys<'_, '_, V> {
    fn drop(&mut self) {
        while let Some(open) = self.open.pop() {
            open.close();
        }
    }
}

impl<'n, V> Open<'n, V> {
    fn close(self) -> Name<'n> {
        // SAFETY: opened in `open_key` and closed once, here: `self` is consumed. Null is allowed.
        unsafe { api!(RedisModule_CloseKey(self.key)) };
        self.name
    }
}
