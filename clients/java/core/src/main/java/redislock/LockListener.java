package redislock;

import java.time.Duration;

/**
 * Is told what happens to locks, on the application's executor. What a method throws is logged.
 *
 * <p>A key is no good label for a metric: there may be any number of them.
 */
public interface LockListener {
    /**
     * A lock was acquired.
     *
     * @param key the first key
     * @param waited how long that took
     */
    default void onAcquired(String key, Duration waited) {}

    /**
     * A wait ended without the lock: others had it, it was cancelled, or it failed.
     *
     * @param key the first key
     * @param waited how long it took
     */
    default void onRefused(String key, Duration waited) {}

    /**
     * A lock was lost.
     *
     * @param key the first key
     * @param why the reason
     */
    default void onLost(String key, Hold.Loss why) {}

    /**
     * A lock was given back.
     *
     * @param key the first key
     * @param held how long it was held
     */
    default void onReleased(String key, Duration held) {}

    /**
     * Something is wrong: told at the first failed attempt, once for each kind until that is over. Without a listener
     * {@link System.Logger} {@code redislock} tells it.
     *
     * @param what in a sentence that helps
     * @param error what came
     */
    default void onTrouble(String what, Throwable error) {}
}
