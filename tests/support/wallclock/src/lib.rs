//! A wall clock that tests can set. Preloaded into a server, it adds to what the C library's calls would say of the
//! wall clock; all other clocks stay as they are. The offset is in the file that `REDIS_LOCK_WALL_OFFSET` names. It is
//! read at each call, so that it may change while the server runs: `+90`, `-0.25`, `-1h`; in seconds, or with one of
//! the units m, h, d, y.
//!
//! It never allocates, because allocators ask for the time before they work. It asks the kernel by itself: so it goes
//! with every C library and allocator. libfaketime does not: the servers of Debian 13 never come up with it.
//!
//! Linux only. Never part of what is delivered.

#![cfg(target_os = "linux")]

use libc::{
    CLOCK_REALTIME, CLOCK_REALTIME_COARSE, c_char, c_int, c_long, c_void, clockid_t, time_t, timespec, timeval,
};

/// What `clock_gettime` of the C library does, with the offset.
///
/// # Safety
///
/// As there: `to` is where a `timespec` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    // SAFETY: passed on as it came.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), to) };
    if result == 0 && matches!(clock, CLOCK_REALTIME | CLOCK_REALTIME_COARSE) {
        let offset = offset_micros();
        // SAFETY: the kernel has just written there.
        let nanos = unsafe { (*to).tv_nsec } + offset % MICROS * 1_000;
        // SAFETY: the same.
        unsafe {
            (*to).tv_sec += offset / MICROS + nanos.div_euclid(MICROS * 1_000);
            (*to).tv_nsec = nanos.rem_euclid(MICROS * 1_000);
        }
    }
    result as c_int
}

/// What `gettimeofday` of the C library does, with the offset. There is no time zone, as ever.
///
/// # Safety
///
/// As there: `to` is null, or where a `timeval` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(to: *mut timeval, _zone: *mut c_void) -> c_int {
    let now = now();
    if !to.is_null() {
        // SAFETY: the caller's duty.
        unsafe { *to = timeval { tv_sec: now.tv_sec, tv_usec: now.tv_nsec / 1000 } };
    }
    0
}

/// What `time` of the C library does, with the offset.
///
/// # Safety
///
/// As there: `to` is null, or where a `time_t` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(to: *mut time_t) -> time_t {
    let now = now().tv_sec;
    if !to.is_null() {
        // SAFETY: the caller's duty.
        unsafe { *to = now };
    }
    now
}

/// What `dlopen` of the C library does, but that what is loaded finds the functions above: Valkey binds its modules to
/// their own libraries first.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the next function of that name is the C library's, which is of that type.
    let real: Option<Dlopen> = unsafe { std::mem::transmute(libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr())) };
    // SAFETY: passed on as it came, but for a flag.
    real.map_or(std::ptr::null_mut(), |real| unsafe { real(path, flags & !libc::RTLD_DEEPBIND) })
}

fn now() -> timespec {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a variable of ours.
    unsafe { clock_gettime(CLOCK_REALTIME, &raw mut now) };
    now
}

/// In a second.
const MICROS: i64 = 1_000_000;

/// What the file says; 0 without one.
fn offset_micros() -> i64 {
    let mut text = [0u8; 32];
    // SAFETY: the name and the variable's value end with NUL; at most the buffer is written. A server changes its
    // environment before it has threads, if at all.
    let len = unsafe {
        let path = libc::getenv(c"REDIS_LOCK_WALL_OFFSET".as_ptr());
        if path.is_null() {
            return 0;
        }
        let file = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return 0;
        }
        let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        len
    };
    text.get(..usize::try_from(len).unwrap_or(0)).map_or(0, parse)
}

/// `-1h` is -3600 seconds, `+0.25` a quarter of one.
fn parse(text: &[u8]) -> i64 {
    let mut micros = 0;
    let mut sign = 1;
    // What the next digit counts, where it stands behind the point.
    let mut part = None;
    for byte in text {
        match byte {
            b'-' => sign = -1,
            b'.' => part = Some(MICROS / 10),
            b'0'..=b'9' => match &mut part {
                None => micros = micros * 10 + i64::from(byte - b'0') * MICROS,
                Some(part) => {
                    micros += i64::from(byte - b'0') * *part;
                    *part /= 10;
                }
            },
            b'm' => micros *= 60,
            b'h' => micros *= 3_600,
            b'd' => micros *= 86_400,
            b'y' => micros *= 31_536_000,
            _ => {}
        }
    }
    sign * micros
}
