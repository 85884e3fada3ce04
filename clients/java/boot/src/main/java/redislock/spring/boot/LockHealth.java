package redislock.spring.boot;

import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import redislock.LockUnavailableException;
import redislock.RedisLocks;

/** Whether the server answers, and has the module. */
final class LockHealth implements HealthIndicator {
    private static final String KEY = "redislock:health";

    private final RedisLocks locks;

    LockHealth(RedisLocks locks) {
        this.locks = locks;
    }

    @Override
    public Health health() {
        try {
            locks.info(KEY);
            return Health.up().build();
        } catch (LockUnavailableException away) {
            return Health.down(away).build();
        }
    }
}
