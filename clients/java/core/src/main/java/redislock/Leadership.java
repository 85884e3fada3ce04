package redislock;

/** A thread that is leader whenever it can: {@link RedisLocks#lead}. */
public interface Leadership extends AutoCloseable {
    /**
     * True while this process is the leader, by its own clock.
     *
     * @return false between two terms
     */
    boolean isLeader();

    /** Steps down: interrupts the body, waits until it returns, and gives the lock back. Called from the body it does not wait. */
    @Override
    void close();
}
