//! Loading the module into the server.

use super::args::Args;
use super::guard::{guard, install_hook};
use super::log::log_warning;
use super::value::{DataType, Value};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

/// A module: its table.
pub trait Module {
    /// Its name: the prefix of its configurations and the section of INFO.
    const NAME: &'static CStr;
    /// Its version, as MODULE LIST shows it.
    const VERSION: i32;
    /// Registers all there is.
    ///
    /// # Errors
    /// Then the server does not load the module.
    fn load(loader: &mut Loader<'_>) -> Result<(), LoadError>;
}

/// Why a module does not load; goes to the server's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(pub String);

/// The server during the load, when types, commands, configurations and subscriptions can be registered.
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
    /// When the server refuses, as it does when another module has a type of this name.
    pub fn data_type<V: Value>(&mut self, data_type: &'static DataType<V>) -> Result<(), LoadError> {
        // SAFETY: the context of the load.
        if unsafe { data_type.register(self.ctx) } {
            Ok(())
        } else {
            Err(LoadError(format!("the server refused type {}", V::NAME.to_string_lossy())))
        }
    }

    /// Says what the module can cope with: read errors while loading (else a damaged payload kills the server), a data set
    /// that a replica loads beside the one that it serves (else it loads all through the disk), and telling watchers of
    /// changes itself (else a refused command would look like one).
    fn set_options(&mut self) {
        let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
            | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
            | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
        if self.moves_slots_by_commands() {
            options |= VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION;
        }
        // SAFETY: the context of the load.
        unsafe { api!(RedisModule_SetModuleOptions(self.ctx, options as c_int)) };
    }

    /// Whether the server moves whole slots with the commands of an AOF, which it only does when every module says that
    /// it can cope with it.
    fn moves_slots_by_commands(&self) -> bool {
        // SAFETY: reads a pointer that was written before this call; the function takes no argument.
        let known = unsafe { raw::RedisModule_GetModuleOptionsAll.map_or(0, |options| options()) } as u32;
        known & VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION != 0 && self.is_valkey()
    }

    pub(super) fn is_valkey(&self) -> bool {
        // SAFETY: the context of the load; what the server says lives until it is freed, after the last look at it.
        unsafe {
            let server = api!(RedisModule_GetServerInfo(self.ctx, c"server".as_ptr()));
            let is_valkey = !api!(RedisModule_ServerInfoGetFieldC(server, c"valkey_version".as_ptr())).is_null();
            api!(RedisModule_FreeServerInfo(self.ctx, server));
            is_valkey
        }
    }
}

/// An option of Valkey's from 9.0 on. On Redis, the bit is or may become something else.
const VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// The body of `RedisModule_OnLoad`.
///
/// # Safety
/// To be called by the server alone, with what it passes.
pub unsafe fn on_load<M: Module>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let err = raw::REDISMODULE_ERR as c_int;
    // Before anything is allocated, so that all memory comes from the server.
    // SAFETY: as required of the caller.
    let ready =
        unsafe { raw::Export_RedisModule_Init(ctx, M::NAME.as_ptr(), M::VERSION, raw::REDISMODULE_APIVER_1 as c_int) };
    if ready != raw::REDISMODULE_OK as c_int {
        return err;
    }
    install_hook();
    // SAFETY: the server's array of `argc` strings, alive for this call.
    let args = unsafe { Args::lent(argv, argc) };
    let mut loader = Loader { ctx, args, lent: PhantomData };
    loader.set_options();
    match guard(|| M::load(&mut loader)) {
        Some(Ok(())) => raw::REDISMODULE_OK as c_int,
        Some(Err(LoadError(reason))) => {
            log_warning(&format!("module {} is not loaded: {reason}", M::NAME.to_string_lossy()));
            err
        }
        None => err,
    }
}

/// Makes a type that is a [`Module`] the module of this library.
#[macro_export]
macro_rules! server_module {
    ($module:ty) => {
        /// The function that the server looks for.
        ///
        /// # Safety
        /// To be called by the server alone, which passes what it must.
        #[allow(unsafe_code, reason = "the one symbol of the library, and the one call that the server makes unasked")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut redis_module::raw::RedisModuleCtx,
            argv: *mut *mut redis_module::raw::RedisModuleString,
            argc: std::ffi::c_int,
        ) -> std::ffi::c_int {
            // SAFETY: as required of the caller.
            unsafe { $crate::ffi::load::on_load::<$module>(ctx, argv, argc) }
        }
    };
}
