package redislock.micrometer;

import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Tags;
import io.micrometer.core.instrument.Timer;
import java.time.Duration;
import java.util.EnumMap;
import java.util.Map;
import java.util.Objects;
import redislock.Hold;
import redislock.LockListener;

/**
 * Counts what happens to locks: timers {@code redis.lock.wait} and {@code redis.lock.held}, counters {@code redis.lock.refused},
 * {@code redis.lock.lost} (by {@code why}) and {@code redis.lock.trouble}. All have the tag {@code locks}, a name that the
 * application gives. A key is never a tag: there may be any number of keys.
 */
public final class LockMeters implements LockListener {
    private final Timer waits;
    private final Timer helds;
    private final Counter refused;
    private final Map<Hold.Loss, Counter> lost = new EnumMap<>(Hold.Loss.class);
    private final Counter troubles;

    /**
     * Registers the meters.
     *
     * @param registry where they are kept
     * @param name the tag {@code locks} of them: one of a few, as the purpose of the locks
     */
    public LockMeters(MeterRegistry registry, String name) {
        Tags tags = Tags.of("locks", Objects.requireNonNull(name, "name"));
        waits = Timer.builder("redis.lock.wait").description("how long locks were waited for").tags(tags).register(registry);
        helds = Timer.builder("redis.lock.held").description("how long locks were held").tags(tags).register(registry);
        refused = Counter.builder("redis.lock.refused")
                .description("waits that ended without the lock")
                .tags(tags)
                .register(registry);
        for (Hold.Loss why : Hold.Loss.values()) {
            Tags whys = tags.and("why", why.name());
            lost.put(why, Counter.builder("redis.lock.lost").description("locks that were lost").tags(whys).register(registry));
        }
        troubles = Counter.builder("redis.lock.trouble")
                .description("kinds of trouble that were told")
                .tags(tags)
                .register(registry);
    }

    @Override
    public void onAcquired(String key, Duration waited) {
        waits.record(waited);
    }

    @Override
    public void onRefused(String key, Duration waited) {
        refused.increment();
    }

    @Override
    public void onLost(String key, Hold.Loss why) {
        Objects.requireNonNull(lost.get(why)).increment();
    }

    @Override
    public void onReleased(String key, Duration held) {
        helds.record(held);
    }

    @Override
    public void onTrouble(String what, Throwable why) {
        troubles.increment();
    }
}
