package redislock.spi;

import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * All that a client library must give: connections that neither connect again nor send anything twice. The engine above
 * opens them when they are needed, finds the node of a cluster, repeats what may be repeated, and closes them.
 */
public interface Transport extends AutoCloseable {
    /**
     * Opens a connection. The calling thread does not wait for it.
     *
     * @param address {@code host:port} of a node of a cluster; null: the server, or any node
     * @return the connection, or what was wrong: a {@link ServerError} if the server refused
     */
    CompletableFuture<Connection> connect(@Nullable String address);

    /**
     * True if requests of several threads go over a connection as fast as those of one.
     *
     * @return false if a thread is faster with a connection of its own
     */
    boolean isMultiplexed();

    /**
     * Subscribes to a channel, over a connection of its own.
     *
     * @param address {@code host:port} of a node of a cluster; null: the server, or any node
     * @param channel its name
     * @param isSharded true in a cluster, where messages go by shards
     * @param told is given the text of each message. It returns soon, on whatever thread
     * @param ended is run when no more messages come, since the server or the connection ended that
     * @return what ends it, when the server has confirmed it; or what was wrong: a {@link ServerError} if the server refused,
     *     {@link UnsupportedOperationException} if the client library has no subscriptions. Cancelled before, it closes its
     *     connection
     */
    default CompletableFuture<Subscription> subscribe(
            @Nullable String address, String channel, boolean isSharded, Consumer<byte[]> told, Runnable ended) {
        return CompletableFuture.failedFuture(new UnsupportedOperationException("no subscriptions"));
    }

    /**
     * Returns the clock by which locks are valid.
     *
     * @return the system's
     */
    default Clock clock() {
        return Clock.system();
    }

    /** Closes what connections share. */
    @Override
    void close();
}
