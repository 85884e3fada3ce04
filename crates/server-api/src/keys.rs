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

/// The purpose for which a key is opened.
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
    /// The server keeps the name of each open key.
    names: &'k mut Names<'n>,
    /// In the order of their names.
    open: Few<Open<V>>,
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
struct Open<V> {
    /// Null for a key that was opened to be read and does not exist.
    key: *mut raw::RedisModuleKey,
    value: Option<NonNull<V>>,
    /// True if the value was set since the key was opened. Then it has no time to live yet.
    is_fresh: bool,
}

/// The names of keys that are or were open, in the same order.
#[derive(Debug)]
pub struct Names<'n> {
    /// Arguments of the command.
    lent: &'n [Str<'n>],
    /// Names of keys that the command did not name. `None` in most commands: to drop nothing is cheaper than
    /// to drop an empty list.
    #[expect(clippy::box_collection, reason = "its absence is seen in place")]
    made: Option<Box<Vec<OwnedStr>>>,
}

impl<'n> Names<'n> {
    /// Returns the names of these keys.
    #[must_use]
    pub fn of(lent: &'n [Str<'n>]) -> Names<'n> {
        Names { lent, made: None }
    }

    /// The name of the key at this place.
    #[must_use]
    pub fn get(&self, at: usize) -> Str<'_> {
        match self.lent.get(at) {
            Some(name) => *name,
            None => self.made(at - self.lent.len()),
        }
    }

    /// Drops the name of a key that the command does not name. The last one takes its place.
    fn drop_made(&mut self, at: usize) {
        if let Some(made) = &mut self.made {
            made.swap_remove(at - self.lent.len());
        }
    }

    #[inline(never)]
    fn made(&self, at: usize) -> Str<'_> {
        self.made.as_ref().expect("it was made")[at].as_str()
    }
}

impl<'k, 'n, V: Value> Keys<'k, 'n, V> {
    /// Opens keys of the selected database. Their names must differ.
    ///
    /// # Errors
    /// If one has a value of another type. Then none is open.
    pub fn open(
        ctx: &'k mut Ctx<'_>,
        data_type: &'k DataType<V>,
        names: &'k mut Names<'n>,
        access: Access,
    ) -> Result<Keys<'k, 'n, V>, WrongType> {
        let mut keys = Keys::closed(ctx, data_type, names);
        keys.open_named(access)?;
        Ok(keys)
    }

    /// Keys of these names that are not open yet: [`Keys::open_named`] opens them.
    // They are large: so they are made where the caller wants them.
    #[inline(always)]
    pub fn closed(ctx: &'k mut Ctx<'_>, data_type: &'k DataType<V>, names: &'k mut Names<'n>) -> Keys<'k, 'n, V> {
        // Each key that is opened tells its database.
        let db = if names.lent.is_empty() { ctx.db() } else { 0 };
        let ctx = ctx.as_non_null();
        Keys { names, open: Few::new(), index: None, data_type, db, ctx, lent: PhantomData }
    }

    /// Opens the keys of the names, which must differ. None of them is open yet.
    ///
    /// # Errors
    /// If one has a value of another type. Then those before it are open.
    #[inline(always)]
    pub fn open_named(&mut self, access: Access) -> Result<(), WrongType> {
        let names = self.names.lent;
        // A key that is open twice would give two exclusive references to one value.
        let is_other = |(n, name): (usize, &Str<'_>)| names[..n].iter().all(|o| o.as_bytes() != name.as_bytes());
        assert!(self.is_empty());
        assert!(names.len() == 1 || names.iter().enumerate().all(is_other));
        for name in names {
            self.push(*name, access)?;
        }
        if names.len() > FEW {
            self.index_last();
        }
        Ok(())
    }

    /// Opens one more key to be written, unless it is open already. Returns its place.
    ///
    /// # Errors
    /// If it has a value of another type, or has none and another node serves it. Then it is not open.
    pub fn open_more(&mut self, name: &[u8]) -> Result<usize, Unopened> {
        if let Some(at) = self.find(name) {
            return Ok(at);
        }
        self.push_made(name, Access::Write).map_err(|WrongType| Unopened::WrongType)?;
        let at = self.open.len() - 1;
        // The slot may be moving, and this key may have moved already: the server has checked the keys of the command
        // alone.
        if self.get(at).is_none() && answering(self.ctx, self.name(at)) == Serving::Elsewhere {
            self.close(at);
            return Err(Unopened::Elsewhere);
        }
        Ok(at)
    }

    /// Closes a key that the command does not name. The last one takes its place.
    pub fn close(&mut self, at: usize) {
        assert!(at >= self.names.lent.len(), "the server keeps the names of the others");
        let last = self.open.len() - 1;
        if let Some(index) = &mut self.index {
            index.remove(self.names.get(at).as_bytes(), at);
            if at != last {
                let name = self.names.get(last).as_bytes();
                index.remove(name, last);
                index.add(name, at);
            }
        }
        self.open.swap_remove(at).close();
        self.names.drop_made(at);
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
        self.push_made(name, Access::Read).ok()?;
        let at = self.open.len() - 1;
        let result = self.get(at).map(read);
        self.close(at);
        result
    }

    fn select(&mut self, db: c_int) {
        // SAFETY: the context that these keys borrow, which lives for its call (rule 2).
        unsafe { api!(RedisModule_SelectDb(self.ctx.as_ptr(), db)) };
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let is_it = |at: &usize| self.name(*at).as_bytes() == name;
        match &self.index {
            Some(index) => index.find(name).iter().copied().find(is_it),
            None => (0..self.open.len()).find(is_it),
        }
    }

    /// Opens a key that the command does not name.
    fn push_made(&mut self, name: &[u8], access: Access) -> Result<(), WrongType> {
        let name = OwnedStr::new(name);
        self.push(name.as_str(), access)?;
        self.names.made.get_or_insert_default().push(name);
        self.index_last();
        Ok(())
    }

    /// Opens a key behind those that are open.
    #[inline(always)]
    fn push(&mut self, name: Str<'_>, access: Access) -> Result<(), WrongType> {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: the context that these keys borrow, which lives for its call (rule 2). The server keeps the name as
        // long as the key.
        let key = unsafe { api!(RedisModule_OpenKey(self.ctx.as_ptr(), name.as_ptr(), mode as c_int)) };
        let mut open = Open { key, value: None, is_fresh: false };
        // SAFETY: the context that these keys borrow, which lives for its call (rule 2), and `key` was opened above.
        self.db = unsafe {
            match key.is_null() {
                true => api!(RedisModule_GetSelectedDb(self.ctx.as_ptr())),
                false => api!(RedisModule_GetDbIdFromModuleKey(key)),
            }
        }
        .max(0) as u32;
        if !key.is_null() {
            match self.value_of(key) {
                Ok(value) => open.value = value,
                Err(WrongType) => {
                    open.close();
                    return Err(WrongType);
                }
            }
        }
        self.open.push(open);
        Ok(())
    }

    /// The value of a key that was just opened.
    fn value_of(&self, key: *mut raw::RedisModuleKey) -> Result<Option<NonNull<V>>, WrongType> {
        // SAFETY: an open key. The server returns null unless it has a value of a module's type.
        if self.data_type.is(unsafe { api!(RedisModule_ModuleTypeGetType(key)) }) {
            // SAFETY: an open key with a value of the module's type, which `insert` or `rdb_load` made.
            return Ok(NonNull::new(unsafe { api!(RedisModule_ModuleTypeGetValue(key)) }.cast()));
        }
        // SAFETY: an open key.
        match unsafe { api!(RedisModule_KeyType(key)) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Ok(None),
            _ => Err(WrongType),
        }
    }

    /// Adds the last key to the index, which begins when keys become many.
    fn index_last(&mut self) {
        match &mut self.index {
            Some(index) => {
                let at = self.open.len() - 1;
                index.add(self.names.get(at).as_bytes(), at);
            }
            None if self.open.len() > FEW => {
                let mut index = Box::<Index>::default();
                for at in 0..self.open.len() {
                    index.add(self.names.get(at).as_bytes(), at);
                }
                self.index = Some(index);
            }
            None => {}
        }
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

    /// True if no key is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.len() == 0
    }

    /// The name of the key at this place.
    #[must_use]
    pub fn name(&self, at: usize) -> Str<'_> {
        self.names.get(at)
    }

    /// The name of a key, and its value to change.
    pub fn entry(&mut self, at: usize) -> (Str<'_>, Option<&mut V>) {
        let open = self.open.at_mut(at);
        // SAFETY: as in `get_mut`.
        (self.names.get(at), open.value.as_mut().map(|value| unsafe { value.as_mut() }))
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
        let Open { key, value, is_fresh } = *self.open.at(at);
        // A key without a value must not be asked: that ends Redis 8.6.
        if key.is_null() || value.is_none() || is_fresh {
            return None;
        }
        // SAFETY: the key is open, not null, and has a value.
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

impl<V> Open<V> {
    fn close(self) {
        // SAFETY: opened in `push` and closed once, here: `self` is consumed. Null is allowed.
        unsafe { api!(RedisModule_CloseKey(self.key)) };
    }
}
