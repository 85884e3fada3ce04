package redislock.jedis;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.ReentrantLock;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;
import redislock.spi.Connection;

/** A connection of Jedis, which serves one request after the other, or those together that came meanwhile. */
final class JedisConnection implements Connection {
    /** The name of a command, as it is sent. */
    private record Name(byte[] bytes) implements ProtocolCommand {
        @Override
        public byte[] getRaw() {
            return bytes;
        }
    }

    /** Requests that go out together, and their replies. */
    private record Asked(List<byte[][]> requests, long millis, List<CompletableFuture<Object>> replies) {
        Asked(List<byte[][]> requests, long millis) {
            this(requests, millis, new ArrayList<>(requests.size()));
            for (int count = 0; count < requests.size(); count += 1) replies.add(new CompletableFuture<>());
        }
    }

    private final SingleConnection connection;
    private final Executor threads;
    private final ReentrantLock lock = new ReentrantLock();
    /** What waits until those before it are answered. */
    private final List<Asked> line = new ArrayList<>();

    private boolean isServing;
    private volatile boolean isClosed;

    JedisConnection(SingleConnection connection, Executor threads) {
        this.connection = connection;
        this.threads = threads;
    }

    @Override
    public List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect) {
        Asked asked = new Asked(requests, millis);
        if (isDirect) {
            exchange(List.of(asked));
            return asked.replies;
        }
        lock.lock();
        try {
            line.add(asked);
            if (isServing) return asked.replies;
            isServing = true;
        } finally {
            lock.unlock();
        }
        try {
            threads.execute(this::serve);
        } catch (java.util.concurrent.RejectedExecutionException ended) {
            // What came meanwhile fails as well.
            close();
            serve();
        }
        return asked.replies;
    }

    /** Sends all that has come meanwhile in one write, again and again. */
    private void serve() {
        for (; ; ) {
            List<Asked> these;
            lock.lock();
            try {
                these = List.copyOf(line);
                line.clear();
                isServing = !these.isEmpty();
            } finally {
                lock.unlock();
            }
            if (these.isEmpty()) return;
            exchange(these);
        }
    }

    private void exchange(List<Asked> all) {
        List<CompletableFuture<Object>> replies = new ArrayList<>();
        long millis = 1;
        for (Asked asked : all) {
            replies.addAll(asked.replies);
            millis = Math.max(millis, asked.millis);
        }
        try {
            if (!isOpen()) throw new IllegalStateException("the connection is closed");
            connection.setSoTimeout((int) Math.min(millis, Integer.MAX_VALUE));
            for (Asked asked : all) {
                for (byte[][] words : asked.requests) {
                    connection.sendCommand(new Name(words[0]), Arrays.copyOfRange(words, 1, words.length));
                }
            }
            // Errors of the server are elements of what it gives.
            List<Object> answers = connection.getMany(replies.size());
            for (int at = 0; at < answers.size(); at += 1) {
                if (answers.get(at) instanceof JedisDataException error) {
                    replies.get(at).completeExceptionally(JedisTransport.plain(error));
                } else {
                    replies.get(at).complete(answers.get(at));
                }
            }
        } catch (Throwable error) {
            // What was not read to its end must not answer a later request.
            close();
            for (CompletableFuture<Object> reply : replies) reply.completeExceptionally(error);
        }
    }

    @Override
    public boolean isOpen() {
        return !isClosed && !connection.isBroken();
    }

    @Override
    public void close() {
        isClosed = true;
        try {
            connection.forceDisconnect();
        } catch (java.io.IOException closed) {
            // It was closed before.
        }
    }
}
