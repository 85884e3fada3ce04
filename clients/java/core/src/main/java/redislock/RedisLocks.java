package redislock;

import java.time.Duration;
import java.util.Collection;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Consumer;
import redislock.engine.EngineBuilder;
import redislock.spi.Transport;

/**
 * The locks of an application. One is enough for a process: it has the connections, and one daemon thread that renews
 * all that is held. All threads may use it.
 *
 * <p>Not for implementation by others: methods may be added.
 */
public interface RedisLocks extends AutoCloseable {
    /**
     * Returns what makes the locks.
     *
     * @param transport the way to the server, as {@code LettuceTransport.of(uri)}. It is closed with the locks
     * @return a builder with the usual settings
     */
    static Builder builder(Transport transport) {
        return new EngineBuilder(transport);
    }

    /** The settings of a {@link RedisLocks}. */
    interface Builder {
        /**
         * Sets how soon a lock is free after its process died. A lock that is held is renewed each third of it.
         *
         * @param lease at least a second; 30 seconds unless it is set
         * @return this builder
         * @throws IllegalArgumentException if it is shorter
         */
        Builder lease(Duration lease);

        /**
         * Sets what is written before each key.
         *
         * @param prefix as {@code "app:"}; empty unless it is set
         * @return this builder
         */
        Builder keyPrefix(String prefix);

        /**
         * Sets how many waits may have a connection each, on which the grant comes at once. For further ones the server says when
         * to ask again, to any number of them over one connection. They ask each second if it cannot.
         *
         * @param count from 0; 32 unless it is set
         * @return this builder
         * @throws IllegalArgumentException if it is below 0
         */
        Builder maxBlockingConnections(int count);

        /**
         * Sets whether clients with another kind of lock may hold the same keys, as strings or hashes. Such a lock then counts
         * as held by others, and waits ask each second. Otherwise it is a {@link LockUnavailableException} at once.
         *
         * @param areThere false unless it is set
         * @return this builder
         */
        Builder oldClients(boolean areThere);

        /**
         * Sets who is told what happens.
         *
         * @param listener called on the executor
         * @return this builder
         */
        Builder listener(LockListener listener);

        /**
         * Sets where code of the application runs: dependent stages of futures, listeners. Never on a thread of the client
         * library.
         *
         * @param executor the application's; unless it is set daemon threads of our own, virtual ones from Java 21 on
         * @return this builder
         */
        Builder executor(Executor executor);

        /**
         * Makes the locks, and begins to connect. A server that is away is no error here.
         *
         * @return the locks, which the application closes
         */
        RedisLocks build();
    }

    /**
     * Returns the lock for one holder alone.
     *
     * @param key the key on the server, without the prefix
     * @return the lock, which locks nothing yet
     */
    RedisLock exclusive(String key);

    /**
     * Returns the lock for holders that only read, together.
     *
     * @param key the key on the server, without the prefix
     * @return the lock, which locks nothing yet
     */
    RedisLock read(String key);

    /**
     * Returns the lock for a holder that writes, alone. It is the same as {@link #exclusive}.
     *
     * @param key the key on the server, without the prefix
     * @return the lock, which locks nothing yet
     */
    RedisLock write(String key);

    /**
     * Returns shares of a lock whose holders have at most so many together.
     *
     * @param key the key on the server, without the prefix
     * @param limit how many shares all holders have together
     * @param take how many shares this one takes, from 1 to {@code limit}
     * @return the lock, which locks nothing yet
     * @throws IllegalArgumentException if a number is out of its range
     */
    RedisLock semaphore(String key, long limit, long take);

    /**
     * Returns the lock of several keys: all or none, in one step. In a cluster they need one slot: {@code {tag}}.
     *
     * @param keys at least one, and none twice
     * @return the lock, which locks nothing yet
     * @throws IllegalArgumentException if there is no key, or one twice
     */
    RedisLock all(Collection<String> keys);

    /**
     * Returns a lock in the manner of {@code java.util.concurrent.locks}: re-entrant by thread. All views of a key are one lock.
     *
     * @param key the key on the server, without the prefix
     * @return the view; {@link Lock#newCondition} is not supported
     */
    Lock asLock(String key);

    /**
     * Returns a pair of locks, re-entrant by thread. Who writes may read as well, and stays a reader when it stops
     * writing. Who reads cannot become a writer: that is a {@link DeadlockException}, and false for each try.
     *
     * @param key the key on the server, without the prefix
     * @return the view, whose write lock is the same as {@link #asLock}
     */
    ReadWriteLock asReadWriteLock(String key);

    /**
     * Starts a daemon thread that holds the lock whenever it can, and works while it does. The lease is that of
     * {@link Builder#lease}: so soon another process leads after this one died. For another one make further locks.
     *
     * <p>A term is over when the lock is lost, or the body ends. At a loss {@link Term#isLeader} is false at once and the
     * thread is interrupted, no more: another process may lead while the body goes on. Then the lock is given back, and asked
     * for again. Whatever the body throws, an {@link Error} too, is logged and told by {@link LockListener#onTrouble}. So is a
     * refusal, and it goes on.
     *
     * @param key the key on the server, without the prefix
     * @param body the work of a leader, on that thread. It is to return soon after an interrupt
     * @return what ends that
     */
    Leadership lead(String key, Consumer<Term> body);

    /**
     * Takes over what another process has detached. The other's hold is void from then on, as the fence rises.
     *
     * @param token of {@link Hold#detach}
     * @return the hold; empty if it has ended
     * @throws LockUnavailableException if the server does not answer
     */
    Optional<Hold> adopt(HoldToken token);

    /**
     * The same as {@link #adopt}, without waiting for the answer. What comes after a cancellation is released.
     *
     * @param token of {@link Hold#detach}
     * @return the hold; empty if it has ended; or {@link LockUnavailableException}
     */
    CompletableFuture<Optional<Hold>> adoptAsync(HoldToken token);

    /**
     * Asks who holds a lock, and who waits for it.
     *
     * @param key the key on the server, without the prefix
     * @return empty if nobody does
     * @throws LockUnavailableException if the server does not answer
     */
    Optional<LockInfo> info(String key);

    /**
     * The same as {@link #info}, without waiting for the answer.
     *
     * @param key the key on the server, without the prefix
     * @return empty if nobody does; or {@link LockUnavailableException}
     */
    CompletableFuture<Optional<LockInfo>> infoAsync(String key);

    /**
     * Ends all waits with {@link LockUnavailableException}. Each hold is {@link Hold.Loss#CLOSED}: it ends with its lease.
     * What is being given back, since the server has not answered yet, has a second more.
     */
    @Override
    void close();
}
