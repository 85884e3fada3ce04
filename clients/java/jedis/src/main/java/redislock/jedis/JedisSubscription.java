package redislock.jedis;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import redis.clients.jedis.BinaryJedisPubSub;
import redis.clients.jedis.BinaryJedisShardedPubSub;
import redislock.spi.Subscription;

/** A subscription of Jedis: a thread reads it until it ends. */
final class JedisSubscription implements Subscription {
    private final SingleConnection connection;
    private final Consumer<byte[]> told;
    private final Runnable ended;
    /** Completed with this when the server has confirmed. */
    private final CompletableFuture<Subscription> confirmed;
    private final AtomicBoolean isOver = new AtomicBoolean();

    JedisSubscription(
            SingleConnection connection, Consumer<byte[]> told, Runnable ended, CompletableFuture<Subscription> confirmed) {
        this.connection = connection;
        this.told = told;
        this.ended = ended;
        this.confirmed = confirmed;
    }

    /** Reads messages until no more come. */
    void read(byte[] channel, boolean isSharded) {
        try {
            if (isSharded) sharded().proceed(connection, channel);
            else plain().proceed(connection, channel);
            over(new IllegalStateException("the subscription has ended"));
        } catch (Throwable error) {
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

    private void over(Throwable why) {
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
