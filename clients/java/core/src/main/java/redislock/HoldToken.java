package redislock;

import java.util.Objects;

/**
 * A hold on its way to another process: {@link Hold#detach} gives it, {@link RedisLocks#adopt} takes it.
 *
 * @param key the key, without the prefix
 * @param owner the name of the holder
 * @param fence the fence of the holder, above 0
 */
public record HoldToken(String key, String owner, long fence) {
    /**
     * Checks the parts.
     *
     * @param key the key, without the prefix
     * @param owner the name of the holder
     * @param fence the fence of the holder, above 0
     * @throws IllegalArgumentException if the fence is none
     */
    public HoldToken {
        Objects.requireNonNull(key, "key");
        Objects.requireNonNull(owner, "owner");
        if (fence <= 0) throw new IllegalArgumentException("fence must be above 0: " + fence);
    }
}
