package redislock.lettuce;

import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import redislock.spi.Subscription;

/** A subscription of Lettuce that never comes back. */
final class LettuceSubscription implements Subscription {
    private final StatefulRedisPubSubConnection<byte[], byte[]> connection;
    private final Consumer<byte[]> told;
    private final Runnable ended;
    private final AtomicBoolean isOver = new AtomicBoolean();

    LettuceSubscription(
            StatefulRedisPubSubConnection<byte[], byte[]> connection, Consumer<byte[]> told, Runnable ended) {
        this.connection = connection;
        this.told = told;
        this.ended = ended;
    }

    /** Completed with itself when the server has confirmed. */
    CompletableFuture<Subscription> begin(byte[] channel, boolean isSharded) {
        connection.addListener(new RedisPubSubAdapter<>() {
            @Override
            public void message(byte[] from, byte[] message) {
                told.accept(message);
            }

            @Override
            public void smessage(byte[] from, byte[] message) {
                told.accept(message);
            }

            @Override
            public void sunsubscribed(byte[] from, long count) {
                // The slot of the channel went to another node. Lettuce does not follow it.
                over();
            }
        });
        connection.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisDisconnected(RedisChannelHandler<?, ?> handler) {
                over();
            }
        });
        CompletableFuture<Void> confirmed = (isSharded
                        ? connection.async().ssubscribe(channel)
                        : connection.async().subscribe(channel))
                .toCompletableFuture();
        return confirmed.handle((none, error) -> {
            if (error == null) return CompletableFuture.<Subscription>completedFuture(this);
            close();
            return CompletableFuture.<Subscription>failedFuture(error);
        }).thenCompose(outcome -> outcome);
    }

    private void over() {
        if (isOver.getAndSet(true)) return;
        connection.closeAsync();
        ended.run();
    }

    @Override
    public void close() {
        if (!isOver.getAndSet(true)) connection.closeAsync();
    }
}
