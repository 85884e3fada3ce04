package redislock.engine;

import static java.util.Objects.requireNonNull;

import java.time.Duration;
import java.util.concurrent.Executor;
import org.jspecify.annotations.Nullable;
import redislock.LockListener;
import redislock.RedisLocks;
import redislock.spi.Transport;

/** The settings of a {@link RedisLocks}. */
public final class EngineBuilder implements RedisLocks.Builder {
    private final Transport transport;
    private long lease = Times.LEASE;
    private String prefix = "";
    private int maxBlocking = 32;
    private boolean hasOldClients;
    private @Nullable LockListener listener;
    private @Nullable Executor executor;

    /**
     * Begins with the usual settings.
     *
     * @param transport the way to the server
     */
    public EngineBuilder(Transport transport) {
        this.transport = requireNonNull(transport, "transport");
    }

    @Override
    public RedisLocks.Builder lease(Duration duration) {
        long millis = Times.millis(requireNonNull(duration, "lease"));
        if (millis < Times.LEASE_MIN) throw new IllegalArgumentException("lease must be at least a second: " + duration);
        lease = millis;
        return this;
    }

    @Override
    public RedisLocks.Builder keyPrefix(String text) {
        prefix = requireNonNull(text, "prefix");
        return this;
    }

    @Override
    public RedisLocks.Builder maxBlockingConnections(int count) {
        if (count < 0) throw new IllegalArgumentException("count must be at least 0: " + count);
        maxBlocking = count;
        return this;
    }

    @Override
    public RedisLocks.Builder oldClients(boolean areThere) {
        hasOldClients = areThere;
        return this;
    }

    @Override
    public RedisLocks.Builder listener(LockListener told) {
        listener = requireNonNull(told, "listener");
        return this;
    }

    @Override
    public RedisLocks.Builder executor(Executor runs) {
        executor = requireNonNull(runs, "executor");
        return this;
    }

    @Override
    public RedisLocks build() {
        Callbacks callbacks = new Callbacks(listener, executor);
        Engine engine = new Engine(transport.clock(), callbacks, transport, maxBlocking, hasOldClients, prefix);
        engine.wire.warm();
        return new Locks(engine, transport, lease, prefix);
    }
}
