//! Commands: how they are registered and called.

use super::args::Args;
use super::command_info::{CommandSpec, KeyArgs, describe};
use super::context::Ctx;
use super::guard::guard;
use super::load::{LoadError, Loader};
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;

/// A command of the module.
pub trait Command {
    /// Its description for the server.
    const SPEC: CommandSpec;
    /// Serves one call. Replies exactly once, now or through [`Ctx::block`].
    fn run(ctx: &mut Ctx<'_>, args: Args<'_>);
}

extern "C" fn call<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes an array of `argc` strings, which live for this call (rule 2).
    let args = unsafe { Args::lent(argv, argc) };
    guard(|| {
        // SAFETY: the server passes the context of a command, for this call; this is the only Ctx made of it (rule 3).
        let mut ctx = unsafe { Ctx::of_command(ctx, args) };
        if guard(|| serve::<C>(&mut ctx, args)).is_none() {
            ctx.reply_panic();
        }
    });
    raw::REDISMODULE_OK as c_int
}

fn serve<C: Command>(ctx: &mut Ctx<'_>, args: Args<'_>) {
    // In a cluster, most servers have checked the slot of the first of counted keys alone: see `routing_key`.
    let refusal = match C::SPEC.keys {
        KeyArgs::None | KeyArgs::First(_) => None,
        KeyArgs::Counted(_) => ctx.refuses_together(&args.counted()),
        KeyArgs::AndOfCommand(_, at) => ctx.refuses_with_command(args, at),
    };
    match refusal {
        Some(refusal) => ctx.reply_error(refusal),
        None => C::run(ctx, args),
    }
}

impl Loader<'_> {
    /// Adds a command with all that COMMAND INFO, COMMAND DOCS and ACLs need.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn command<C: Command>(&mut self) -> Result<(), LoadError> {
        let spec = C::SPEC;
        let command = self.create::<C>(&spec);
        if command.is_null() || !describe(command, &spec) {
            return Err(LoadError(format!("the server refused command {}", spec.name.to_string_lossy())));
        }
        self.categorise(command, spec.acl);
        Ok(())
    }

    /// Null if the server refuses.
    fn create<C: Command>(&mut self, spec: &CommandSpec) -> *mut raw::RedisModuleCommand {
        let (ctx, name, flags) = (self.as_ptr(), spec.name.as_ptr(), spec.flags.as_ptr());
        let (first, last, step) = match spec.keys {
            KeyArgs::First(_) | KeyArgs::AndOfCommand(..) => (1, 1, 1),
            // No range can say where counted keys are; `describe` does.
            KeyArgs::None | KeyArgs::Counted(_) => (0, 0, 0),
        };
        // SAFETY: the context of the load, which lives for it (rule 2); the texts are constants.
        unsafe {
            let created = api!(RedisModule_CreateCommand(ctx, name, Some(call::<C>), flags, first, last, step));
            if created != raw::REDISMODULE_OK as c_int {
                return ptr::null_mut();
            }
            api!(RedisModule_GetCommand(ctx, name))
        }
    }
}
