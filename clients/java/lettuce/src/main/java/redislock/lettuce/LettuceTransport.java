package redislock.lettuce;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.MaintNotificationsConfig;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.SslOptions;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redislock.spi.Connection;
import redislock.spi.ServerError;
import redislock.spi.Subscription;
import redislock.spi.Transport;

/**
 * The way to a server, a Sentinel or a cluster by Lettuce, over connections of our own. The application's client is not
 * used: a request that waits would hold up its commands. Lettuce's reconnect is off, and with it replay and buffering,
 * each of which ran a request twice or took a lock for nobody. The engine connects again when it has something to send.
 */
public final class LettuceTransport implements Transport {
    private static final Duration CONNECT = Duration.ofSeconds(3);

    private final List<RedisURI> uris;
    private final RedisClient client;
    private final AtomicInteger next = new AtomicInteger();
    /** What is not connected yet. Lettuce leaves a connection open that is made while its client is shut down. */
    private final Set<CompletableFuture<?>> connecting = ConcurrentHashMap.newKeySet();

    private volatile boolean isClosed;

    private LettuceTransport(@Nullable ClientResources resources, SslOptions tls, List<RedisURI> uris) {
        if (uris.isEmpty()) throw new IllegalArgumentException("no URI");
        this.uris = uris.stream().map(LettuceTransport::nameless).toList();
        client = resources == null ? RedisClient.create() : RedisClient.create(resources);
        client.setOptions(ClientOptions.builder()
                .autoReconnect(false)
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .protocolVersion(ProtocolVersion.RESP2)
                .sslOptions(tls)
                // These cost a round trip, and are for connections that come back.
                .maintNotificationsConfig(MaintNotificationsConfig.disabled())
                .socketOptions(SocketOptions.builder().connectTimeout(CONNECT).build())
                .build());
    }

    /**
     * Returns the way to where the URIs lead.
     *
     * @param uris one of a server or of Sentinels; or nodes of a cluster
     * @return the transport, which is closed with its locks
     * @throws IllegalArgumentException if there is none
     */
    public static LettuceTransport of(RedisURI... uris) {
        return new LettuceTransport(null, SslOptions.create(), List.of(uris));
    }

    /**
     * The same, with threads of the application.
     *
     * @param resources of the application, which closes them
     * @param uris one of a server or of Sentinels; or nodes of a cluster
     * @return the transport, which is closed with its locks
     * @throws IllegalArgumentException if there is no URI
     */
    public static LettuceTransport of(ClientResources resources, RedisURI... uris) {
        return of(resources, SslOptions.create(), uris);
    }

    /**
     * The same, with certificates of the application.
     *
     * @param resources of the application, which closes them
     * @param tls whom to trust, and what to show, where a URI says {@code rediss}
     * @param uris one of a server or of Sentinels; or nodes of a cluster
     * @return the transport, which is closed with its locks
     * @throws IllegalArgumentException if there is no URI
     */
    public static LettuceTransport of(ClientResources resources, SslOptions tls, RedisURI... uris) {
        Objects.requireNonNull(resources, "resources");
        return new LettuceTransport(resources, Objects.requireNonNull(tls, "tls"), List.of(uris));
    }

    /** The same without the name of the library, which would cost a round trip. A copy would have no Sentinels. */
    private static RedisURI nameless(RedisURI uri) {
        if (!uri.getSentinels().isEmpty()) return uri;
        RedisURI copy = RedisURI.builder(uri).build();
        copy.setLibraryName("");
        copy.setLibraryVersion("");
        return copy;
    }

    private RedisURI uri(@Nullable String address) {
        // Of several nodes of a cluster each in turn: one of them is alive.
        RedisURI uri = uris.get(Math.floorMod(next.getAndIncrement(), uris.size()));
        if (address == null) return uri;
        int colon = address.lastIndexOf(':');
        RedisURI node = nameless(
                RedisURI.create(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1))));
        node.setCredentialsProvider(uri.getCredentialsProvider());
        node.setSsl(uri.isSsl());
        node.setVerifyPeer(uri.getVerifyMode());
        return node;
    }

    @Override
    public CompletableFuture<Connection> connect(@Nullable String address) {
        return connected(() -> client.connectAsync(ByteArrayCodec.INSTANCE, uri(address))).handle((connection, error) -> {
            if (connection != null) return new LettuceConnection(connection);
            throw new CompletionException(plain(error));
        });
    }

    @Override
    public CompletableFuture<Subscription> subscribe(
            @Nullable String address, String channel, boolean isSharded, Consumer<byte[]> told, Runnable ended) {
        CompletableFuture<Subscription> confirmed = new CompletableFuture<>();
        connected(() -> client.connectPubSubAsync(ByteArrayCodec.INSTANCE, uri(address)))
                .thenCompose(connection -> {
                    LettuceSubscription subscription = new LettuceSubscription(connection, told, ended);
                    confirmed.whenComplete((none, error) -> {
                        if (confirmed.isCancelled()) subscription.close();
                    });
                    return subscription.begin(channel.getBytes(StandardCharsets.UTF_8), isSharded);
                })
                .whenComplete((subscription, error) -> {
                    if (error == null) confirmed.complete(subscription);
                    else confirmed.completeExceptionally(plain(error));
                });
        return confirmed;
    }

    private <T> CompletableFuture<T> connected(Supplier<CompletionStage<T>> connect) {
        CompletableFuture<T> made = new CompletableFuture<>();
        connecting.add(made);
        made.whenComplete((connection, error) -> connecting.remove(made));
        try {
            if (isClosed) throw new IllegalStateException("the transport is closed");
            connect.get().whenComplete((connection, error) -> {
                if (error == null) made.complete(connection);
                else made.completeExceptionally(error);
            });
        } catch (Throwable bad) {
            made.completeExceptionally(bad);
        }
        return made;
    }

    /** What was wrong: an error reply, wherever it is hidden, or what Lettuce said. */
    static Throwable plain(Throwable error) {
        for (Throwable inner = error; inner != null; inner = inner.getCause()) {
            if (inner instanceof RedisCommandExecutionException reply) {
                return new ServerError(String.valueOf(reply.getMessage()));
            }
        }
        boolean isWrapped = error instanceof CompletionException || error instanceof ExecutionException;
        return isWrapped && error.getCause() != null ? error.getCause() : error;
    }

    @Override
    public boolean isMultiplexed() {
        return true;
    }

    @Override
    public void close() {
        isClosed = true;
        CompletableFuture.allOf(connecting.toArray(CompletableFuture<?>[]::new))
                // Without a quiet time: nothing is sent any more.
                .whenComplete((none, error) -> client.shutdownAsync(0, 2, TimeUnit.SECONDS));
    }
}
