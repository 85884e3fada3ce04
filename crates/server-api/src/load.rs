//! The load of the module: what the server calls first, and what can be registered only then.

use super::args::Args;
use super::guard::{guard, install_hook};
use super::log::log_warning;
use super::value::{DataType, Value};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

/// A module.
pub trait Module {
    /// The prefix of its configurations, and its section of INFO.
    const NAME: &'static CStr;
    /// As MODULE LIST shows it.
    const VERSION: i32;
    /// Registers types, commands, configurations and subscriptions.
    ///
    /// # Errors
    /// If the module cannot work here. Then the server does not load it.
    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError>;
}

/// Why the module does not load, for the server's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(pub String);

/// The server, during the load.
#[derive(Debug)]
pub struct Loader<'a> {
    ctx: *mut raw::RedisModuleCtx,
    args: Args<'a>,
    lent: PhantomData<&'a mut ()>,
}

impl<'a> Loader<'a> {
    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    /// The arguments of loadmodule.
    #[must_use]
    pub fn args(&self) -> &Args<'a> {
        &self.args
    }

    /// Registers a type of values.
    ///
    /// # Errors
    /// If the server refuses, as it does if another module has a type of this name.
    pub fn data_type<V: Value>(&mut self, data_type: &'static DataType<V>) -> Result<(), LoadError> {
        // SAFETY: the context of the load, which lives for it (rule 2).
        if unsafe { data_type.register(self.ctx) } {
            Ok(())
        } else {
            Err(LoadError(format!("the server refused type {}", V::NAME.to_string_lossy())))
        }
    }

    /// Tells the server what the module can cope with:
    ///
    /// - read errors while loading: otherwise a damaged payload ends the server;
    /// - a data set that a replica loads beside the old one: otherwise it loads everything through the disk;
    /// - the module reports its changes itself: otherwise watchers take a refused command for a change.
    fn set_options(&mut self) {
        let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
            | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
            | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
        if self.moves_slots_by_commands() {
            options |= VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION;
        }
        // SAFETY: the context of the load, which lives for it (rule 2).
        unsafe { api!(RedisModule_SetModuleOptions(self.ctx, options as c_int)) };
    }

    /// True if the server moves whole slots by the commands of an AOF. It does so only if every module says that it can
    /// cope with that.
    fn moves_slots_by_commands(&self) -> bool {
        // SAFETY: reads a pointer to a function, written once, before the load began. The function takes no argument.
        let known = unsafe { raw::RedisModule_GetModuleOptionsAll.map_or(0, |options| options()) } as u32;
        known & VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION != 0 && self.is_valkey()
    }

    pub(super) fn is_valkey(&self) -> bool {
        // SAFETY: the context of the load, which lives for it (rule 2). The module owns what the server returns, reads
        // it, and frees it once at the end.
        unsafe {
            let server = api!(RedisModule_GetServerInfo(self.ctx, c"server".as_ptr()));
            let is_valkey = !api!(RedisModule_ServerInfoGetFieldC(server, c"valkey_version".as_ptr())).is_null();
            api!(RedisModule_FreeServerInfo(self.ctx, server));
            is_valkey
        }
    }
}

/// An option of Valkey from 9.0 on. On Redis this bit has, or may get, another meaning.
const VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// The body of `RedisModule_OnLoad`.
///
/// # Safety
/// Only the server may call this, with its own arguments.
pub unsafe fn on_load<M: Module>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // First of all: whatever is allocated later comes from the server.
    // SAFETY: the server passes the context of the load, which lives for this call.
    let ready =
        unsafe { raw::Export_RedisModule_Init(ctx, M::NAME.as_ptr(), M::VERSION, raw::REDISMODULE_APIVER_1 as c_int) };
    if ready != raw::REDISMODULE_OK as c_int {
        return not_loaded::<M>(&LoadError("a module of this name is loaded already".to_owned()));
    }
    // The last functions that came with Redis 7.0: where they are, all are that `api!` calls.
    // SAFETY: reads a pointer to a function, written once, above.
    if unsafe { raw::RedisModule_LoadConfigs }.is_none() {
        return not_loaded::<M>(&LoadError("the server is older than Redis 7.0".to_owned()));
    }
    install_hook();
    // SAFETY: the server passes an array of `argc` strings, which live for this call.
    let args = unsafe { Args::lent(argv, argc) };
    let mut loader = Loader { ctx, args, lent: PhantomData };
    loader.set_options();
    match guard(|| M::load(&mut loader)) {
        Some(Ok(())) => raw::REDISMODULE_OK as c_int,
        Some(Err(error)) => not_loaded::<M>(&error),
        None => raw::REDISMODULE_ERR as c_int,
    }
}

/// Writes the reason to the log. The server itself says only that the initialization failed.
fn not_loaded<M: Module>(LoadError(reason): &LoadError) -> c_int {
    log_warning(&format!("module {} is not loaded: {reason}", M::NAME.to_string_lossy()));
    raw::REDISMODULE_ERR as c_int
}

/// Makes a type the [`Module`] of this library.
#[macro_export]
macro_rules! server_module {
    ($module:ty) => {
        /// The function that the server looks for.
        ///
        /// # Safety
        /// Only the server may call this, with its own arguments.
        #[allow(unsafe_code, reason = "the one symbol of the library, and the one call that the server makes unasked")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut $crate::redis_module::raw::RedisModuleCtx,
            argv: *mut *mut $crate::redis_module::raw::RedisModuleString,
            argc: std::ffi::c_int,
        ) -> std::ffi::c_int {
            // SAFETY: the server is the caller.
            unsafe { $crate::load::on_load::<$module>(ctx, argv, argc) }
        }
    };
}
