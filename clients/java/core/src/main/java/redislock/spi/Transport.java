package redislock.spi;

import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/**
 * All that a client library must give: connections that neither connect again nor send anything twice. The engine above
 * opens them when they are needed, finds the node of a cluster, repeats what may be repeated, and closes them.
 */
public interface Transport extends AutoCloseable {
    /**
     * Opens a connection.
     *
     * @param address {@code host:port} of a node of a cluster; null: the server, or any node
     * @param isDirect true if the calling thread may be blocked by it
     * @return the connection, or what was wrong: a {@link ServerError} if the server refused
     */
    CompletableFuture<Connection> connect(@Nullable String address, boolean isDirect);

    /**
     * True if a connection takes any number of requests at a time.
     *
     * @return false if it takes one after the other
     */
    boolean isMultiplexed();

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
