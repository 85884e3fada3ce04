package redislock;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/**
 * A lock that is held. It is renewed until it is closed or lost. Any thread may use it and close it.
 *
 * <p>Not for implementation by others: methods may be added.
 */
public interface Hold extends AutoCloseable {
    /** Why a lock was lost. */
    enum Loss {
        /** It could not be renewed in time: the server or the network was away, or the machine slept. */
        LEASE_OVER,
        /** The server has not got the hold any more: it was broken, its key deleted, or another process adopted it. */
        TAKEN_AWAY,
        /** Something else lies on the key. */
        OVERWRITTEN,
        /** The end that {@link RedisLock#max} set has come. */
        MAX,
        /** The {@link RedisLocks} was closed. */
        CLOSED
    }

    /**
     * Returns the key, without the prefix.
     *
     * @return the first one of several
     */
    String key();

    /**
     * Returns the fence: higher than all before it. Give it to whatever the lock protects, and let that refuse a lower one
     * than it has seen.
     *
     * @return above 0 and below 2^53; the first key's of several
     */
    long fence();

    /**
     * Returns the name under which the server knows the holder.
     *
     * @return another one for each acquisition
     */
    String owner();

    /**
     * True if the lock is held by this process's own clock. It sends no request. After a loss it is false for ever.
     *
     * @return false also after the lock was given back
     */
    boolean isValid();

    /**
     * Returns for how long the lock is valid still, unless it is renewed.
     *
     * @return zero if it is not valid
     */
    Duration validFor();

    /**
     * Returns what tells of a loss. Each call returns another future.
     *
     * @return completed on the application's executor when the lock is lost, and cancelled when it is given back
     */
    CompletableFuture<Loss> lost();

    /**
     * Asks the server whether the lock is held.
     *
     * @return false if it is lost
     * @throws LockUnavailableException if the server does not answer
     */
    boolean check();

    /**
     * The same as {@link #check}, without waiting for the answer.
     *
     * @return false if it is lost; or {@link LockUnavailableException}
     */
    CompletableFuture<Boolean> checkAsync();

    /**
     * Runs one command on the server only if the lock is held, in one step: no late write gets through. It is for locks of
     * one holder alone. It is sent once.
     *
     * @param command as {@code "SET"}
     * @param args its words: a {@code byte[]} as it is, all else as its text in UTF-8. A key needs the prefix, if there is one,
     *     and in a cluster the slot of the lock
     * @return the reply: a {@code byte[]} for a string, {@code Long}, {@code List}, or null
     * @throws LockLostException if nothing was run, since the lock is lost
     * @throws LockUnavailableException if nobody knows whether it was run, or if the command failed
     * @throws IllegalStateException if others may hold the lock too, or it was given back
     */
    @Nullable Object guard(String command, Object... args);

    /**
     * The same as {@link #guard}, without waiting for the answer.
     *
     * @param command as {@code "SET"}
     * @param args its words
     * @return the reply, or what {@link #guard} throws
     */
    CompletableFuture<@Nullable Object> guardAsync(String command, Object... args);

    /**
     * Sets a new end, from now on, and renews the lease.
     *
     * @param max as in {@link RedisLock#max}
     * @return false if the lock is lost
     * @throws LockUnavailableException if the server does not answer
     */
    boolean renewMax(Duration max);

    /**
     * The same as {@link #renewMax}, without waiting for the answer.
     *
     * @param max as in {@link RedisLock#max}
     * @return false if the lock is lost; or {@link LockUnavailableException}
     */
    CompletableFuture<Boolean> renewMaxAsync(Duration max);

    /**
     * Stops the renewal, so that another process can {@linkplain RedisLocks#adopt adopt} the hold before its lease is over.
     * This hold is not valid any more, and nothing is left to be closed.
     *
     * @return what the other process needs
     * @throws LockLostException if it is lost
     * @throws IllegalStateException if it has several keys, or was given back
     */
    HoldToken detach();

    /**
     * Gives the lock back after a while, whatever becomes of this process: for "once a day", or "at least so long". The
     * server counts that as a lease that ran out. Here it is over at once.
     *
     * @param rest from now on, at least a millisecond
     * @throws LockLostException if it was lost before
     * @throws LockUnavailableException if the server does not answer. It is asked again in the background
     */
    void releaseAfter(Duration rest);

    /**
     * The same as {@link #releaseAfter}, without waiting for the answer.
     *
     * @param rest from now on, at least a millisecond
     * @return nothing, or what {@link #releaseAfter} throws
     */
    CompletableFuture<@Nullable Void> releaseAfterAsync(Duration rest);

    /**
     * Gives the lock back. A second call has the outcome of the first.
     *
     * @return nothing once the server has confirmed it; {@link LockLostException} if the lock was lost before; or
     *     {@link LockUnavailableException} if there was no answer. Then it is repeated in the background
     */
    CompletableFuture<@Nullable Void> releaseAsync();

    /**
     * Gives the lock back. It waits for at most 2 seconds, also when the thread is interrupted, which it stays. Without an
     * answer it goes on in the background, until the lease is over. A second call does nothing but throw the same.
     *
     * @throws LockLostException if the lock was lost before: others may have held it meanwhile
     */
    @Override
    void close() throws LockLostException;
}
