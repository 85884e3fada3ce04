package redislock.jedis;

import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisDataException;
import redislock.spi.Connection;
import redislock.spi.ServerError;
import redislock.spi.Subscription;
import redislock.spi.Threads;
import redislock.spi.Transport;

/**
 * The way to a server or a cluster by Jedis, over connections of our own: the application's pool is not used. A thread that
 * locks, tries once or gives back sends by itself, once there is a connection. All else runs on threads of ours, virtual
 * ones from Java 21 on.
 */
public final class JedisTransport implements Transport {
    private static final int CONNECT_MS = 3_000;

    private final List<HostAndPort> nodes;
    private final JedisClientConfig config;
    private final AtomicInteger next = new AtomicInteger();
    private final ExecutorService threads = Threads.each("redislock-jedis");

    private JedisTransport(List<HostAndPort> nodes, JedisClientConfig config) {
        if (nodes.isEmpty()) throw new IllegalArgumentException("no node");
        this.nodes = List.copyOf(nodes);
        // RESP2, and times of our own: the application's are for its commands.
        this.config = DefaultJedisClientConfig.builder()
                .from(config)
                .protocol(RedisProtocol.RESP2)
                // The name of the library would cost a round trip.
                .clientSetInfoConfig(ClientSetInfoConfig.DISABLED)
                .connectionTimeoutMillis(CONNECT_MS)
                .socketTimeoutMillis(CONNECT_MS)
                .blockingSocketTimeoutMillis(0)
                .build();
    }

    /**
     * Returns the way to a server.
     *
     * @param uri as {@code redis://user:password@host:6379/0}, or {@code rediss} for TLS
     * @return the transport, which is closed with its locks
     */
    public static JedisTransport of(URI uri) {
        Objects.requireNonNull(uri, "uri");
        JedisClientConfig config = DefaultJedisClientConfig.builder(uri).build();
        int port = uri.getPort() < 0 ? 6379 : uri.getPort();
        return new JedisTransport(List.of(new HostAndPort(uri.getHost(), port)), config);
    }

    /**
     * Returns the way to a server, or to a cluster.
     *
     * @param config user, password, TLS, and more
     * @param nodes the server; or nodes of a cluster
     * @return the transport, which is closed with its locks
     * @throws IllegalArgumentException if there is no node
     */
    public static JedisTransport of(JedisClientConfig config, HostAndPort... nodes) {
        return new JedisTransport(List.of(nodes), Objects.requireNonNull(config, "config"));
    }

    @Override
    public CompletableFuture<Connection> connect(@Nullable String address) {
        return begun(opened -> opened.complete(new JedisConnection(new SingleConnection(node(address), config), threads)));
    }

    @Override
    public CompletableFuture<Subscription> subscribe(
            @Nullable String address, String channel, boolean isSharded, Consumer<byte[]> told, Runnable ended) {
        return begun(confirmed -> {
            SingleConnection connection = new SingleConnection(node(address), config);
            JedisSubscription subscription = new JedisSubscription(connection, told, ended, confirmed);
            confirmed.whenComplete((none, error) -> {
                if (confirmed.isCancelled()) subscription.close();
            });
            subscription.read(channel.getBytes(StandardCharsets.UTF_8), isSharded);
        });
    }

    /** Begins it on a thread of ours, which connects first. What is thrown there is the outcome. */
    private <T> CompletableFuture<T> begun(Consumer<CompletableFuture<T>> work) {
        CompletableFuture<T> outcome = new CompletableFuture<>();
        try {
            threads.execute(() -> {
                try {
                    work.accept(outcome);
                } catch (Throwable error) {
                    // Also what the application's credentials or sockets throw.
                    outcome.completeExceptionally(plain(error));
                }
            });
        } catch (java.util.concurrent.RejectedExecutionException closed) {
            outcome.completeExceptionally(closed);
        }
        return outcome;
    }

    private HostAndPort node(@Nullable String address) {
        return address == null
                ? nodes.get(Math.floorMod(next.getAndIncrement(), nodes.size()))
                : HostAndPort.from(address);
    }

    /** An error reply as ours. */
    static Throwable plain(Throwable error) {
        return error instanceof JedisDataException ? new ServerError(String.valueOf(error.getMessage())) : error;
    }

    @Override
    public boolean isMultiplexed() {
        return false;
    }

    @Override
    public void close() {
        threads.shutdown();
    }
}
