package redislock;

/** A thread that is leader whenever it can: {@link RedisLocks#lead}. */
public interface Leadership extends AutoCloseable {
    /**
     * True while this process is the leader, by its own clock.
     *
     * @return false between two terms
     */
    boolean isLeader();

    /**
     * Steps down: interrupts the body, waits for it without a limit, and gives the lock back, for which it waits 2 seconds at
     * most. The lock is held and renewed meanwhile. Called from the body, or if the calling thread is interrupted, which it
     * stays, it does not wait: the thread ends by itself.
     */
    @Override
    void close();
}
