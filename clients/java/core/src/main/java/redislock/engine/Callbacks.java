package redislock.engine;

import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import org.jspecify.annotations.Nullable;
import redislock.LockListener;
import redislock.spi.Threads;

/** Where code of the application runs: never on a thread of the client library, nor on the one that keeps the times. */
final class Callbacks {
    final @Nullable LockListener listener;
    private final ExecutorService own = Threads.each("redislock-callback");
    private final Executor executor;

    Callbacks(@Nullable LockListener listener, @Nullable Executor executor) {
        this.listener = listener;
        this.executor = executor == null ? own : executor;
    }

    void run(Runnable work) {
        try {
            executor.execute(work);
        } catch (RejectedExecutionException over) {
            // The application's executor has ended before its locks.
            if (executor != own && !own.isShutdown()) own.execute(work);
        }
    }

    void end() {
        own.shutdown();
    }
}
