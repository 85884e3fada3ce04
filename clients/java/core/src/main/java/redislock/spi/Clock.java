package redislock.spi;

/** The clock by which locks are valid, in milliseconds from some moment. It never goes back. */
public interface Clock {
    /**
     * Returns the time, and counts also what the machine slept.
     *
     * @return milliseconds
     */
    long now();

    /**
     * Lets the clock tell when it has jumped, if it can.
     *
     * @param look is called then
     */
    default void onJump(Runnable look) {}

    /**
     * Returns the clock of the system. On Linux it counts while the machine is suspended. Elsewhere it does not, since
     * {@link System#nanoTime} need not.
     *
     * @return the same one each time
     */
    static Clock system() {
        return SystemClock.ONE;
    }
}
