//! The monotonic clock of the system.

use std::mem::MaybeUninit;

/// Microseconds since some moment before this process began. [`std::time::Instant`] reads the same clock. To compare
/// and to convert what that says takes three times as many instructions.
#[must_use]
pub fn monotonic_us() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the system writes the time to where it may. If it had no such clock, nothing would be read from there.
    let time = unsafe {
        assert_eq!(libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr()), 0, "there is a monotonic clock");
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}
