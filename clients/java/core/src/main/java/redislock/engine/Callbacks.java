package redislock.engine;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import redislock.LockListener;
import redislock.spi.Threads;

/** Where code of the application runs: never on a thread of the client library, nor on the one that keeps the times. */
final class Callbacks {
    private static final System.Logger LOG = System.getLogger("redislock");
    private static final String NAME = "redislock-callback";

    final @Nullable LockListener listener;
    private final ExecutorService own = Threads.each(NAME);
    /** Each takes what those before it do not. */
    private final List<Executor> executors;

    Callbacks(@Nullable LockListener listener, @Nullable Executor executor) {
        this(listener, executor, Threads.daemons(NAME));
    }

    Callbacks(@Nullable LockListener listener, @Nullable Executor executor, ThreadFactory late) {
        this.listener = listener;
        Executor first = executor == null ? own : executor;
        this.executors = List.of(first, work -> late.newThread(work).start(), Runnable::run);
    }

    /**
     * Runs it there, once. Whatever it throws ends nothing of ours, also where the executor runs it in the thread that calls.
     * It runs in that one as well where no thread can be had: somebody may wait for this.
     */
    void run(Runnable work) {
        AtomicBoolean hasBegun = new AtomicBoolean();
        Runnable guarded = () -> {
            // An executor may fail though it runs this, or will.
            if (hasBegun.getAndSet(true)) return;
            try {
                work.run();
            } catch (Throwable failure) {
                LOG.log(System.Logger.Level.WARNING, "a listener of locks failed", failure);
            }
        };
        for (Executor each : executors) {
            try {
                each.execute(guarded);
                return;
            } catch (Throwable over) {
                // It fails or has ended: the application's before its locks, or ours with them.
            }
        }
    }

    /** Tells the listener, if there is one. */
    void tell(Consumer<LockListener> what) {
        LockListener there = listener;
        if (there != null) run(() -> what.accept(there));
    }

    /** The same outcome, as the application sees it: on its executor, and not to be cancelled for others. */
    <T> CompletableFuture<T> outside(Object what, CompletableFuture<T> inside) {
        return outside(what, inside, unwanted -> {});
    }

    /** The same. A value that came after the application has ended its future is unwanted. */
    <T> CompletableFuture<T> outside(Object what, CompletableFuture<T> inside, Consumer<T> unwanted) {
        CompletableFuture<T> copy = new CompletableFuture<>();
        inside.whenComplete((value, error) -> run(() -> {
            if (error != null) copy.completeExceptionally(Errors.told(what.toString(), error));
            else if (!copy.complete(value)) unwanted.accept(value);
        }));
        return copy;
    }

    void end() {
        own.shutdown();
    }
}
