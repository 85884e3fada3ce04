package redislock.engine;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
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
    /** Nothing is given back any more. */
    volatile boolean isShut;

    /** What is being given back: the server has not confirmed it yet. */
    private final Set<CompletableFuture<?>> debts = ConcurrentHashMap.newKeySet();
    /** Pauses before that is tried once more. */
    private final Set<CompletableFuture<@Nullable Object>> rests = ConcurrentHashMap.newKeySet();

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

    /** The end of the locks waits for this a while. */
    void owe(CompletableFuture<?> debt) {
        if (debt.isDone()) return;
        debts.add(debt);
        debt.whenComplete((none, error) -> debts.remove(debt));
    }

    /** A pause before something is given back once more. It is short once the locks are closed. */
    CompletableFuture<@Nullable Object> rest(long millis) {
        CompletableFuture<@Nullable Object> rest = new CompletableFuture<>();
        rests.add(rest);
        return alarm.until(isClosed ? Times.PAUSE_MIN : millis, rest).whenComplete((none, error) -> rests.remove(rest));
    }

    /** Gives something back until that is answered, or until then. True: it was. */
    void repeat(Supplier<CompletableFuture<?>> request, long end, CompletableFuture<Boolean> later) {
        if (Times.tick() > end || isShut) {
            later.complete(false);
            return;
        }
        rest(Times.jittered(Times.PAUSE_MAX))
                .thenCompose(none -> isAnswered(request.get()))
                .thenAccept(isAnswered -> {
                    if (isAnswered) later.complete(true);
                    else repeat(request, end, later);
                });
    }

    /** Tries once more what is to be given back, for a while. The rest of it ends with its lease. */
    void settle() {
        long end = Times.tick() + Times.LEAVE;
        rests.forEach(rest -> rest.complete(null));
        try {
            while (true) {
                // The thread that runs this may be the one that would take its own debt out.
                debts.removeIf(CompletableFuture::isDone);
                if (debts.isEmpty() || Times.tick() >= end) break;
                CompletableFuture<?> all = CompletableFuture.allOf(debts.toArray(CompletableFuture<?>[]::new));
                all.handle((none, error) -> true).get(Math.max(0, end - Times.tick()), TimeUnit.MILLISECONDS);
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException late) {
            // They end by themselves, as their process is away.
        }
        isShut = true;
    }

    static Duration since(long tick) {
        return Duration.ofMillis(Math.max(0, Times.tick() - tick));
    }

    /** True if the server answered in a way that another request would not change. Never fails. */
    static CompletableFuture<Boolean> isAnswered(CompletableFuture<?> reply) {
        return reply.handle((value, error) -> error == null || !Errors.isPassing(Errors.plain(error)));
    }
}
