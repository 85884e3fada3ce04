//! How long to wait before a request that failed is sent again. Waits for nothing itself.

use crate::clock::{PAUSE_JITTER, PAUSE_MAX, PAUSE_MIN, POLL_JITTER};
use std::time::Duration;

/// Doubles from 100 ms to 1 s. A random part keeps clients that failed together from coming back together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After a success it begins anew.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether nothing has failed since then.
    pub(crate) fn is_new(&self) -> bool {
        self.failures == 0
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = pause(self.failures, random_share());
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

impl Backoff {
    /// A pause for what is not wrong, but not yet right: a tenth.
    pub(crate) fn short_pause(&mut self) -> Duration {
        self.pause() / 10
    }
}

/// The time from one request of a wait that does not block to the next, shorter by chance.
pub(crate) fn until_poll(interval: Duration) -> Duration {
    interval.mul_f64(1.0 - POLL_JITTER * random_share())
}

/// The pause after so many failures, longer by chance.
fn pause(failures: u32, chance: f64) -> Duration {
    let base = PAUSE_MIN.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX);
    base.mul_f64(1.0 + PAUSE_JITTER * chance)
}

/// From 0 to 1. It need not be hard to guess: the standard library's hasher has enough of chance.
fn random_share() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0) >> 40;
    bits as f64 / f64::from(1_u32 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_100_ms_to_1_s() {
        let pauses = |chance| (0..6).map(|failures| pause(failures, chance).as_millis()).collect::<Vec<_>>();
        assert_eq!(pauses(0.0), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(pauses(1.0), [150, 300, 600, 1200, 1500, 1500]);
        assert_eq!(pause(u32::MAX, 0.0), PAUSE_MAX);
    }

    #[test]
    fn after_a_success_they_begin_anew() {
        let mut backoff = Backoff::default();
        for _ in 0..5 {
            backoff.pause();
        }
        assert!(backoff.pause() > PAUSE_MIN * 2);
        backoff.reset();
        assert!(backoff.pause() <= PAUSE_MIN * 2);
    }

    #[test]
    fn clients_that_failed_together_do_not_come_back_together() {
        let shares: Vec<f64> = (0..100).map(|_| random_share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        assert!(shares.iter().any(|share| *share < 0.3) && shares.iter().any(|share| *share > 0.7));
    }
}
