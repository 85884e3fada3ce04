//! How long to wait before a request that failed is sent again. Waits for nothing itself.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(1);

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

/// The pause after so many failures; up to half more by chance, but never above the last.
fn pause(failures: u32, chance: f64) -> Duration {
    let base = FIRST.saturating_mul(1 << failures.min(10)).min(LAST);
    base.mul_f64(1.0 + chance / 2.0).clamp(FIRST, LAST)
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
        assert_eq!(pauses(1.0), [150, 300, 600, 1000, 1000, 1000]);
        assert_eq!(pause(u32::MAX, 0.5), LAST);
    }

    #[test]
    fn after_a_success_they_begin_anew() {
        let mut backoff = Backoff::default();
        for _ in 0..5 {
            backoff.pause();
        }
        assert!(backoff.pause() > FIRST * 2);
        backoff.reset();
        assert!(backoff.pause() <= FIRST * 2);
    }

    #[test]
    fn clients_that_failed_together_do_not_come_back_together() {
        let shares: Vec<f64> = (0..100).map(|_| random_share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        assert!(shares.iter().any(|share| *share < 0.3) && shares.iter().any(|share| *share > 0.7));
    }
}
