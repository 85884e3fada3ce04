//! Points in time on a clock that goes on while the machine sleeps, and the arithmetic of leases. Knows no lock.

use std::ops::Add;
use std::time::Duration;

/// A point in time, counted from the start of the machine.
///
/// Unlike [`std::time::Instant`] it counts the time that a machine is suspended, where the system has such a clock
/// (`CLOCK_BOOTTIME` of Linux). It is the same for all processes of one machine, so that one may tell another when the
/// validity of a lock ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// This moment.
    pub fn now() -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(clock);
        let now = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        #[cfg(feature = "testing")]
        let now = now + Duration::from_micros(SKIPPED.load(std::sync::atomic::Ordering::Relaxed));
        Moment(now)
    }

    /// How long the machine had run then.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// The moment when the machine has run so long.
    pub fn from_boot(time: Duration) -> Moment {
        Moment(time)
    }

    /// How long it is until then; zero when it is past.
    pub fn left(self) -> Duration {
        self.since(Moment::now())
    }

    /// How long it has been since then; zero when it is yet to come.
    pub fn elapsed(self) -> Duration {
        Moment::now().since(self)
    }

    /// From the other moment to this one; zero when the other is later.
    pub fn since(self, other: Moment) -> Duration {
        self.0.saturating_sub(other.0)
    }

    /// Whether it is past.
    pub fn is_past(self) -> bool {
        self <= Moment::now()
    }
}

/// How many microseconds tests have let pass at once.
#[cfg(feature = "testing")]
static SKIPPED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Lets time pass at once.
#[cfg(feature = "testing")]
pub(crate) fn skip(time: Duration) {
    let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    SKIPPED.fetch_add(time, std::sync::atomic::Ordering::Relaxed);
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time))
    }
}

// The times that all helpers share. clients/README.md says what each is for.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const LEASE_MIN: Duration = Duration::from_secs(1);
pub(crate) const BLOCK: Duration = Duration::from_secs(3);
pub(crate) const QUEUE: Duration = Duration::from_secs(10);
pub(crate) const POLL: Duration = Duration::from_secs(1);
pub(crate) const POLL_JITTER: f64 = 0.25;
pub(crate) const ANSWER: Duration = Duration::from_millis(2_500);
pub(crate) const OVERTIME: Duration = Duration::from_secs(1);
pub(crate) const READ_ON: Duration = Duration::from_secs(1);
pub(crate) const LEAVE: Duration = Duration::from_millis(250);
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);
pub(crate) const PAUSE_JITTER: f64 = 0.5;
const MARGIN_MIN: Duration = Duration::from_millis(100);
pub(crate) const LOOK: Duration = Duration::from_secs(1);
pub(crate) const IDLE: Duration = Duration::from_secs(30);
pub(crate) const IDLE_MAX: usize = 8;
pub(crate) const BLOCKING_MAX: usize = 32;
pub(crate) const NOTIFY_QUEUE: Duration = Duration::from_secs(30);
pub(crate) const CONFIRM: Duration = Duration::from_secs(2);
pub(crate) const REFUSED: Duration = Duration::from_secs(10);

/// What is taken off at each node of a quorum besides.
const NODE_MARGIN: Duration = Duration::from_millis(2);

/// Until when an owner may believe that it holds a lock: counted from when it *sent* the request, since the server
/// began to count later than that. One per cent less, since two clocks do not run at one speed.
pub(crate) fn valid_until(sent: Moment, lease: Duration) -> Moment {
    sent + lease.saturating_sub(margin(lease))
}

/// How much longer than an owner may believe a lease of this length lasts at the server.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 100).max(MARGIN_MIN)
}

/// The same for a lock at several servers, whose clocks are read in whole milliseconds each.
pub(crate) fn valid_until_at_node(sent: Moment, lease: Duration) -> Moment {
    let margin = (lease / 100 + NODE_MARGIN).max(MARGIN_MIN);
    sent + lease.saturating_sub(margin)
}

/// How long a node of a quorum has to answer before the others go on without it.
pub(crate) fn node_limit(lease: Duration) -> Duration {
    lease / 20
}

/// How long a renewal may take before it counts as failed. It leaves time for another one before validity ends. Of a
/// short lease a far server needs more than a sixth.
pub(crate) fn renewal_limit(lease: Duration) -> Duration {
    (lease / 3).min(Duration::from_secs(5))
}

/// How long after a request was sent the next one renews its lease.
pub(crate) fn renewal_interval(lease: Duration) -> Duration {
    lease / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_is_counted_from_sending_with_one_per_cent_off_or_100_ms() {
        let sent = Moment(Duration::from_secs(1000));
        let validity = |ms| valid_until(sent, Duration::from_millis(ms)).since(sent).as_millis();
        assert_eq!([validity(1000), validity(9_999), validity(10_000)], [900, 9_899, 9_900]);
        assert_eq!([validity(30_000), validity(100_000)], [29_700, 99_000]);
        let at_node = |ms| valid_until_at_node(sent, Duration::from_millis(ms)).since(sent).as_millis();
        assert_eq!([at_node(1000), at_node(10_000), at_node(30_000)], [900, 9_898, 29_698]);
        // No lease is that short; still the end is not before the beginning.
        assert_eq!(validity(50), 0);
    }

    #[test]
    fn a_renewal_that_times_out_leaves_a_fifth_of_the_lease_for_another_one() {
        // Else one lost packet would cost the lock.
        for seconds in [1, 2, 30, 3600] {
            let lease = Duration::from_secs(seconds);
            let one = renewal_interval(lease) + renewal_limit(lease);
            assert!(one + lease / 5 <= valid_until(Moment(Duration::ZERO), lease).0, "{seconds} s");
        }
    }

    #[test]
    fn moments_do_not_wrap() {
        let now = Moment::now();
        assert_eq!((now + Duration::MAX).0, Duration::MAX);
        assert_eq!(now.since(now + Duration::from_secs(1)), Duration::ZERO);
        assert!(now.is_past() && !(now + Duration::from_secs(3600)).is_past());
        assert_eq!(Moment::from_boot(now.since_boot()), now);
    }
}
