package redislock;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Lock;

/**
 * What is to be locked, and how. It locks nothing by itself, never changes, and all threads may share it: whoever has
 * acquired has a {@link Hold}. It is not re-entrant, but {@link #asLock} is: a thread that waits for a key that it holds
 * itself is refused at once. What it got from a future, and shares of a semaphore, do not count as held by a thread.
 *
 * <p>Not for implementation by others: methods may be added.
 */
public interface RedisLock {
    /**
     * Returns the same with another lease: how soon it is free after its process died. It is always renewed.
     *
     * @param lease at least a second
     * @return another lock
     * @throws IllegalArgumentException if it is shorter
     */
    RedisLock lease(Duration lease);

    /**
     * Returns the same with an end: it is renewed until then and no further, and then lost, as {@link Hold.Loss#MAX}.
     *
     * @param max from the request on
     * @return another lock
     * @throws IllegalArgumentException if it is not above 0
     */
    RedisLock max(Duration max);

    /**
     * Returns the same with a text for people, which LOCK.INFO shows.
     *
     * @param note at most 256 bytes
     * @return another lock
     */
    RedisLock note(String note);

    /**
     * Returns the same inside another lock: both have one owner, so that the server sees a cycle of waits. To take several
     * keys at once is better.
     *
     * @param outer a lock that is held while this one is acquired
     * @return another lock
     */
    RedisLock within(Hold outer);

    /**
     * Waits for the lock, for as long as it takes, also while the server is away: {@link LockListener#onTrouble} tells of
     * that.
     *
     * @return the lock, until it is closed
     * @throws InterruptedException if the thread was interrupted: nothing is held then
     * @throws DeadlockException if the wait would close a cycle
     * @throws LockUnavailableException if asking again does not help: no module, no right, another type of key
     * @throws IllegalStateException if this thread holds one of the keys already
     */
    Hold acquire() throws InterruptedException;

    /**
     * Waits for the lock, also when the thread is interrupted: it keeps its place, and the thread stays interrupted.
     *
     * @return the lock, until it is closed
     * @throws DeadlockException if the wait would close a cycle
     * @throws LockUnavailableException if asking again does not help
     * @throws IllegalStateException if this thread holds one of the keys already
     */
    Hold acquireUninterruptibly();

    /**
     * Waits for the lock for at most so long.
     *
     * @param wait {@link Duration#ZERO} tries once
     * @return the lock; empty if others had it all that time
     * @throws InterruptedException if the thread was interrupted: nothing is held then
     * @throws DeadlockException if the wait would close a cycle
     * @throws LockUnavailableException if the server could not be asked. That is never empty
     * @throws IllegalArgumentException if the wait is below 0
     * @throws IllegalStateException if this thread holds one of the keys already, and the wait is above 0
     */
    Optional<Hold> tryAcquire(Duration wait) throws InterruptedException;

    /**
     * Waits for the lock without a thread. To cancel this future, or to complete it in another way ({@code orTimeout}),
     * leaves the queue. Of a dependent stage that is not so: {@code thenApply} does not pass a cancel on.
     *
     * @return the lock, or what {@link #acquire} throws
     */
    CompletableFuture<Hold> acquireAsync();

    /**
     * Waits for the lock for at most so long, without a thread. To cancel the future leaves the queue.
     *
     * @param wait {@link Duration#ZERO} tries once
     * @return the lock; empty if others had it all that time; or what {@link #tryAcquire} throws
     * @throws IllegalArgumentException if the wait is below 0
     */
    CompletableFuture<Optional<Hold>> tryAcquireAsync(Duration wait);

    /**
     * Returns this as a lock of {@code java.util.concurrent.locks}: re-entrant by thread. The counts belong to the keys, the
     * kind of lock and the thread, so that all views are one lock.
     *
     * @return the view; {@link Lock#newCondition} is not supported
     */
    Lock asLock();

    /**
     * Waits for the lock, works, and gives it back.
     *
     * @param work what to do with the lock
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @return what the work returned
     * @throws X what the work threw. If the lock was lost as well, that is suppressed in it
     * @throws InterruptedException if the thread was interrupted while it waited
     * @throws LockLostException if the lock was lost before the work was over
     */
    <T, X extends Exception> T call(LockedCall<T, X> work) throws X, InterruptedException;
}
