package redislock.engine;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import redislock.LockListener;
import redislock.spi.Threads;

/** Where code of the application runs: never on a thread of the client library, nor on the one that keeps the times. */
final class Callbacks {
    private static final System.Logger LOG = System.getLogger("redislock");
    private static final String NAME = "redislock-callback";
    private static final ThreadFactory LATE = Threads.daemons(NAME);

    final @Nullable LockListener listener;
    private final ExecutorService own = Threads.each(NAME);
    private final Executor executor;

    Callbacks(@Nullable LockListener listener, @Nullable Executor executor) {
        this.listener = listener;
        this.executor = executor == null ? own : executor;
    }

    /** Runs it there. Whatever it throws ends nothing of ours, also where the executor runs it in the thread that calls. */
    void run(Runnable work) {
        Runnable guarded = () -> {
            try {
                work.run();
            } catch (Throwable failure) {
                LOG.log(System.Logger.Level.WARNING, "a listener of locks failed", failure);
            }
        };
        try {
            executor.execute(guarded);
        } catch (Throwable over) {
            // The executor fails or has ended: the application's before its locks, or ours with them. Somebody may wait for this.
            LATE.newThread(guarded).start();
        }
    }

    /** Tells the listener, if there is one. */
    void tell(Consumer<LockListener> what) {
        LockListener there = listener;
        if (there != null) run(() -> what.accept(there));
    }

    /** The same outcome, as the application sees it: on its executor, and not to be cancelled for others. */
    <T> CompletableFuture<T> outside(Object what, CompletableFuture<T> inside) {
        CompletableFuture<T> copy = new CompletableFuture<>();
        inside.whenComplete((value, error) -> run(() -> {
            if (error == null) copy.complete(value);
            else copy.completeExceptionally(Errors.told(what.toString(), error));
        }));
        return copy;
    }

    void end() {
        own.shutdown();
    }
}
