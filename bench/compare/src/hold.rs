//! How long a lock is held. tokio's timers count whole milliseconds, so a pause of one takes up to two.

use crate::Failure;
use std::time::Duration;

/// A clock that ends a hold to the microsecond.
pub(crate) struct Timer {
    #[cfg(target_os = "linux")]
    fd: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Timer {
    pub(crate) fn new() -> Result<Timer, Failure> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "an OwnedFd stays open as long as it is registered, and what replaces this is unsafe"
        )]
        let fd = tokio::io::unix::AsyncFd::new(fd)?;
        Ok(Timer { fd })
    }

    /// Waits so long. Without a time it still lets all other clients run once, so that two holders would meet.
    pub(crate) async fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        if time.is_zero() {
            tokio::task::yield_now().await;
            return Ok(());
        }
        let once = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: once };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &setting)?;
        loop {
            let mut ready = self.fd.readable().await?;
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0; 8])?));
            if let Ok(read) = read {
                read?;
                return Ok(());
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(crate) fn new() -> Result<Timer, Failure> {
        Ok(Timer {})
    }

    /// Waits so long, or up to a millisecond longer.
    pub(crate) async fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        if time.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }
}
