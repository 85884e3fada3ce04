//! A timer on the clock that counts suspended time. Two processes can share one: each sees how often it has run out.

use crate::exit;
use redis_lock_client::Moment;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// A timer that never runs out.
    pub(crate) fn new() -> io::Result<Timer> {
        Ok(Timer(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?))
    }

    /// The timer that another process made.
    pub(crate) fn of(fd: OwnedFd) -> Timer {
        Timer(fd)
    }

    /// Lets it run out at this moment, and again after this time each. What it counted before is forgotten.
    pub(crate) fn set(&self, at: Option<Moment>, again: Duration) {
        // Zero would mean never.
        let at = at.map_or(Duration::ZERO, |at| at.since_boot().max(Duration::from_nanos(1)));
        let setting = Itimerspec { it_value: spec(at), it_interval: spec(again) };
        // It fails for times out of range only, which Durations of this program are not.
        drop(timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &setting));
    }

    /// How often it has run out since it was set or asked.
    pub(crate) fn count(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets this process end in any case, after this time at the latest: nothing that hangs can keep it.
pub(crate) fn end_process_after(limit: Duration) {
    let thread = std::thread::Builder::new().name("redis-lock-limit".to_owned());
    // Without a thread it ends when all is done.
    drop(thread.spawn(move || {
        std::thread::sleep(limit);
        std::process::exit(i32::from(exit::UNAVAILABLE));
    }));
}

fn spec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(time.subsec_nanos()) }
}
