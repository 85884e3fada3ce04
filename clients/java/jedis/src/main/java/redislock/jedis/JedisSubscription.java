package redislock.jedis;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import redis.clients.jedis.BinaryJedisPubSub;
import redis.clients.jedis.BinaryJedisShardedPubSub;
import redislock.spi.Subscription;

/** A subscription of Jedis: a thread reads it until it ends. */
final class JedisSubscription implements Subscription {
    /** Completed with itself when the server has confirmed. */
    final CompletableFuture<Subscription> confirmed = new CompletableFuture<>();

    private final SingleConnection connection;
    private final Consumer<byte[]> told;
    private final Runnable ended;
    private final AtomicBoolean isOver = new AtomicBoolean();

    JedisSubscription(SingleConnection connection, Consumer<byte[]> told, Runnable ended) {
        this.connection = connection;
        this.told = told;
        this.ended = ended;
    }

    /** Reads messages until no more come. */
    void read(byte[] channel, boolean isSharded) {
        try {
            if (isSharded) sharded().proceed(connection, channel);
            else plain().proceed(connection, channel);
            over(new IllegalStateException("the subscription has ended"));
        } catch (RuntimeException error) {
            over(error);
        }
    }

    private BinaryJedisPubSub plain() {
        return new BinaryJedisPubSub() {
            @Override
            public void onSubscribe(byte[] channel, int count) {
                confirmed.complete(JedisSubscription.this);
            }

            @Override
            public void onMessage(byte[] channel, byte[] message) {
                told.accept(message);
            }
        };
    }

    private BinaryJedisShardedPubSub sharded() {
        return new BinaryJedisShardedPubSub() {
            @Override
            public void onSSubscribe(byte[] channel, int count) {
                confirmed.complete(JedisSubscription.this);
            }

            @Override
            public void onSMessage(byte[] channel, byte[] message) {
                told.accept(message);
            }
        };
    }

    private void over(RuntimeException why) {
        boolean wasClosed = isOver.get();
        close();
        if (!confirmed.completeExceptionally(JedisTransport.plain(why)) && !wasClosed) ended.run();
    }

    @Override
    public void close() {
        isOver.set(true);
        try {
            connection.forceDisconnect();
        } catch (java.io.IOException closed) {
            // It was closed before.
        }
    }
}
