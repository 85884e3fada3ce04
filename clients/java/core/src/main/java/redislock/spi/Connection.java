package redislock.spi;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** One connection to a server, which takes requests of several threads at a time. When it fails it stays closed. */
public interface Connection {
    /**
     * Sends requests in one write, each once.
     *
     * @param requests their words
     * @param millis how long an answer may take; the engine watches that too
     * @param isDirect true if the calling thread may be blocked until the answers are here
     * @return for each its reply: {@code byte[]}, {@code Long}, {@code List}, null; or a {@link ServerError}; any other failure
     *     leaves open whether it was run
     */
    List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect);

    /**
     * True until the connection was closed, by whomever.
     *
     * @return false if nothing can be sent
     */
    boolean isOpen();

    /** Closes it, from any thread: what is not answered fails. */
    void close();
}
