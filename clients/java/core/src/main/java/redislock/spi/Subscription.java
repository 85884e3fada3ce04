package redislock.spi;

/** A channel that a server has confirmed, over a connection of its own. It never comes back after its end. */
public interface Subscription {
    /** Ends it and closes its connection, from any thread. */
    void close();
}
