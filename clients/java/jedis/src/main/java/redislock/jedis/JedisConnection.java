package redislock.jedis;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;
import redislock.spi.Connection;

/** A connection of Jedis, which serves one request after the other. */
final class JedisConnection implements Connection {
    /** The name of a command, as it is sent. */
    private record Name(byte[] bytes) implements ProtocolCommand {
        @Override
        public byte[] getRaw() {
            return bytes;
        }
    }

    private final redis.clients.jedis.Connection connection;
    private final Executor threads;
    private volatile boolean isClosed;

    JedisConnection(redis.clients.jedis.Connection connection, Executor threads) {
        this.connection = connection;
        this.threads = threads;
    }

    @Override
    public List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect) {
        List<CompletableFuture<Object>> replies = new ArrayList<>(requests.size());
        for (int count = 0; count < requests.size(); count += 1) replies.add(new CompletableFuture<>());
        if (isDirect) exchange(requests, millis, replies);
        else threads.execute(() -> exchange(requests, millis, replies));
        return replies;
    }

    private void exchange(List<byte[][]> requests, long millis, List<CompletableFuture<Object>> replies) {
        try {
            connection.setSoTimeout((int) Math.min(Math.max(1, millis), Integer.MAX_VALUE));
            for (byte[][] words : requests) {
                connection.sendCommand(new Name(words[0]), Arrays.copyOfRange(words, 1, words.length));
            }
            // Errors of the server are elements of what it gives.
            List<Object> all = connection.getMany(requests.size());
            for (int at = 0; at < all.size(); at += 1) {
                if (all.get(at) instanceof JedisDataException error) {
                    replies.get(at).completeExceptionally(JedisTransport.plain(error));
                } else {
                    replies.get(at).complete(all.get(at));
                }
            }
        } catch (RuntimeException error) {
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
