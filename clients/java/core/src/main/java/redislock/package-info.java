/**
 * Locks that processes share by way of a server of Redis or Valkey with the module redis-lock.
 *
 * <p>{@link redislock.RedisLocks} is the way in. It makes a {@link redislock.RedisLock}, which says what is to be locked
 * and locks nothing yet. To acquire it gives a {@link redislock.Hold}: that is the lock, and it is closed to give it back.
 *
 * <p>A null argument is a {@link NullPointerException}. Times are a {@link java.time.Duration}, of whole milliseconds;
 * what is less counts as one.
 */
@NullMarked
package redislock;

import org.jspecify.annotations.NullMarked;
