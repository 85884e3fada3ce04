package redislock;

/** A time for which a process is the leader. */
public interface Term {
    /**
     * Returns the number of the term: higher than all before it. It is the fence of the lock.
     *
     * @return above 0 and below 2^53
     */
    long number();

    /**
     * True while the process is the leader, by its own clock.
     *
     * @return false for ever once the term is over
     */
    boolean isLeader();

    /**
     * Returns the lock of the leader.
     *
     * @return the hold, which the thread closes by itself
     */
    Hold hold();
}
