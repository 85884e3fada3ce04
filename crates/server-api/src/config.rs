//! Configurations of the module: CONFIG GET and SET, the configuration file, and the arguments of loadmodule.

use super::guard::guard;
use super::load::{LoadError, Loader};
use super::string::OwnedStr;
use redis_module::raw;
use std::ffi::{CString, c_char, c_int, c_longlong, c_void};
use std::ptr;

/// One configuration of the module.
#[derive(Clone, Copy, Debug)]
pub struct ConfigSpec {
    /// The name behind the module's.
    pub name: &'static str,
    /// The kind of its value, with the range.
    pub kind: ConfigKind,
    /// The value if none is set.
    pub default: i64,
    /// True if it can be set only when the module is loaded.
    pub fixed: bool,
    /// The unit of the value.
    pub unit: &'static str,
    /// Why an operator would change it.
    pub reason: &'static str,
    /// Reads the value in force.
    pub get: fn() -> i64,
    /// Puts a value in force.
    pub set: fn(i64),
}

/// The kinds of values that a configuration can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// A whole number of this range, both ends included.
    Number(i64, i64),
    /// `yes` (1) or `no` (0).
    YesNo,
}

/// A check of all values together, after some were set. Err says why they are refused.
pub type Check = fn() -> Result<(), String>;

/// The data that the server passes to the callbacks of one configuration.
struct Registered {
    spec: &'static ConfigSpec,
    check: Check,
}

impl ConfigSpec {
    /// A value as it is written in the configuration file or as an argument.
    fn parse(&self, text: &[u8]) -> Result<i64, String> {
        let text = std::str::from_utf8(text).unwrap_or_default();
        match self.kind {
            ConfigKind::YesNo => match text.to_ascii_lowercase().as_str() {
                "yes" => Ok(1),
                "no" => Ok(0),
                _ => Err(format!("{} is yes or no", self.name)),
            },
            ConfigKind::Number(min, max) => match text.parse() {
                Ok(value) if (min..=max).contains(&value) => Ok(value),
                _ => Err(format!("{} is a number from {min} to {max}", self.name)),
            },
        }
    }
}

impl Loader<'_> {
    /// Registers configurations and puts their first values in force. These come from the configuration file, else from
    /// the arguments of loadmodule (`name value ...`), else they are the defaults.
    ///
    /// # Errors
    /// If an argument is unknown or out of range, or `check` refuses the values.
    pub fn configs(&mut self, specs: &'static [ConfigSpec], module: &str, check: Check) -> Result<(), LoadError> {
        let args = self.config_args(specs, module)?;
        for spec in specs {
            let from_args = args.iter().rev().find(|(name, _)| *name == spec.name);
            self.register(spec, from_args.map_or(spec.default, |(_, value)| *value), check)?;
        }
        // SAFETY: the context of the load, which lives for it (rule 2). All configurations are registered.
        if unsafe { api!(RedisModule_LoadConfigs(self.as_ptr())) } != raw::REDISMODULE_OK as c_int {
            return Err(LoadError("a configuration of this module is out of range or no number".to_owned()));
        }
        check().map_err(LoadError)
    }

    fn config_args(&self, specs: &'static [ConfigSpec], module: &str) -> Result<Vec<(&'static str, i64)>, LoadError> {
        let args: Vec<&[u8]> =
            (0..self.args().len()).filter_map(|at| self.args().get(at)).map(|a| a.as_bytes()).collect();
        args.chunks(2)
            .map(|pair| {
                let given = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
                let name = given.strip_prefix(module).and_then(|rest| rest.strip_prefix('.')).unwrap_or(&given);
                let spec = specs.iter().find(|spec| spec.name == name);
                let spec = spec.ok_or_else(|| LoadError(format!("unknown argument of loadmodule: {given}")))?;
                let value = pair.get(1).ok_or_else(|| LoadError(format!("{name} lacks its value")))?;
                Ok((spec.name, spec.parse(value).map_err(LoadError)?))
            })
            .collect()
    }

    fn register(&mut self, spec: &'static ConfigSpec, default: i64, check: Check) -> Result<(), LoadError> {
        let name = CString::new(spec.name).expect("a constant without NUL");
        let flags = if spec.fixed { raw::REDISMODULE_CONFIG_IMMUTABLE } else { raw::REDISMODULE_CONFIG_DEFAULT };
        // Leaked once for each configuration: a module with a data type is never unloaded.
        let kept = ptr::from_mut(Box::leak(Box::new(Registered { spec, check }))).cast();
        // SAFETY: the context of the load, which lives for it (rule 2); the name is copied; `kept` lives for ever (rule
        // 4).
        let registered = unsafe {
            match spec.kind {
                ConfigKind::Number(min, max) => api!(RedisModule_RegisterNumericConfig(
                    self.as_ptr(),
                    name.as_ptr(),
                    default,
                    flags,
                    min,
                    max,
                    Some(get_number),
                    Some(set_number),
                    Some(apply),
                    kept
                )),
                ConfigKind::YesNo => api!(RedisModule_RegisterBoolConfig(
                    self.as_ptr(),
                    name.as_ptr(),
                    default as c_int,
                    flags,
                    Some(get_bool),
                    Some(set_bool),
                    Some(apply),
                    kept
                )),
            }
        };
        if registered == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err(LoadError(format!("the server refused configuration {}", spec.name)))
        }
    }
}

fn registered<'a>(kept: *mut c_void) -> &'a Registered {
    // SAFETY: the server passes what `register` leaked, which lives for ever and is never changed (rule 4).
    unsafe { &*kept.cast::<Registered>() }
}

extern "C" fn get_number(_name: *const c_char, kept: *mut c_void) -> c_longlong {
    guard(|| (registered(kept).spec.get)()).unwrap_or(0)
}

extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    kept: *mut c_void,
    _err: *mut *mut raw::RedisModuleString,
) -> c_int {
    status(guard(|| (registered(kept).spec.set)(value)))
}

extern "C" fn get_bool(_name: *const c_char, kept: *mut c_void) -> c_int {
    guard(|| (registered(kept).spec.get)() as c_int).unwrap_or(0)
}

extern "C" fn set_bool(
    _name: *const c_char,
    value: c_int,
    kept: *mut c_void,
    _err: *mut *mut raw::RedisModuleString,
) -> c_int {
    status(guard(|| (registered(kept).spec.set)(i64::from(value))))
}

/// Comes once after a CONFIG SET. If it refuses, the server restores all values.
extern "C" fn apply(_ctx: *mut raw::RedisModuleCtx, kept: *mut c_void, err: *mut *mut raw::RedisModuleString) -> c_int {
    status(guard(|| (registered(kept).check)()).and_then(|checked| {
        // SAFETY: the server passes the place for an error text, for this call (rule 2).
        checked.map_err(|reason| unsafe { put_error(err, &reason) }).ok()
    }))
}

fn status(done: Option<()>) -> c_int {
    let status = if done.is_some() { raw::REDISMODULE_OK } else { raw::REDISMODULE_ERR };
    status as c_int
}

/// Gives the server the text of an error.
///
/// # Safety
/// `err` must be null, or a place for a string that the server will free.
unsafe fn put_error(err: *mut *mut raw::RedisModuleString, text: &str) {
    if !err.is_null() {
        // SAFETY: not null, so the caller gave a place to write to. The server owns the string from here on.
        unsafe { *err = OwnedStr::new(text.as_bytes()).into_ptr() };
    }
}
