package redislock.engine;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import redislock.spi.Clock;

/** What the locks of one application share. */
final class Engine {
    final Alarm alarm = new Alarm();
    final Clock clock;
    final Wire wire;
    final Callbacks callbacks;
    final Troubles troubles;
    final Renewer renewer;
    final Notices notices;
    /** True if something else on a key is a lock of others. */
    final boolean hasOldClients;
    /** Waits that are not over. */
    final Set<Wait> waits = ConcurrentHashMap.newKeySet();

    /** The longest QUEUE that a server here allows, as far as one has said. */
    volatile long queueMax = Times.FOR_EVER;

    volatile boolean isClosed;

    Engine(Clock clock, Callbacks callbacks, redislock.spi.Transport transport, int maxBlocking, boolean hasOldClients, String prefix) {
        this.hasOldClients = hasOldClients;
        this.clock = clock;
        this.callbacks = callbacks;
        this.wire = new Wire(transport, alarm, maxBlocking);
        this.troubles = new Troubles(callbacks);
        this.renewer = new Renewer(this);
        this.notices = new Notices(this, transport, prefix);
    }

    void tellAcquired(Terms terms, long began) {
        Duration waited = since(began);
        callbacks.tell(listener -> listener.onAcquired(terms.keys().get(0), waited));
    }

    void tellRefused(Terms terms, long began) {
        Duration waited = since(began);
        callbacks.tell(listener -> listener.onRefused(terms.keys().get(0), waited));
    }

    static Duration since(long tick) {
        return Duration.ofMillis(Math.max(0, Times.tick() - tick));
    }

    /** True if the server answered in a way that another request would not change. Never fails. */
    static CompletableFuture<Boolean> isAnswered(CompletableFuture<?> reply) {
        return reply.handle((value, error) -> error == null || !Errors.isPassing(Errors.plain(error)));
    }
}
