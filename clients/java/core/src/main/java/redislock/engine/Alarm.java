package redislock.engine;

import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import redislock.spi.Threads;

/** The one daemon thread that keeps all times. What it runs never blocks. */
final class Alarm {
    private final ScheduledThreadPoolExecutor thread =
            new ScheduledThreadPoolExecutor(1, Threads.daemons("redislock"), new ThreadPoolExecutor.DiscardPolicy());
    /** What waits for a time. The end of all times is one. */
    private final Set<CompletableFuture<?>> waits = ConcurrentHashMap.newKeySet();

    Alarm() {
        thread.setRemoveOnCancelPolicy(true);
        thread.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        thread.prestartCoreThread();
    }

    /** Runs it later. After the end it never does. */
    Future<?> after(long millis, Runnable work) {
        return thread.schedule(work, Math.max(0, millis), TimeUnit.MILLISECONDS);
    }

    /** Completed after that time, or at the end. */
    CompletableFuture<@Nullable Object> pause(long millis) {
        return millis <= 0 ? CompletableFuture.completedFuture(null) : until(millis, new CompletableFuture<>());
    }

    /** Completed with the future, or with null when the time is over first. */
    <T> CompletableFuture<@Nullable T> until(long millis, CompletableFuture<T> future) {
        CompletableFuture<@Nullable T> either = new CompletableFuture<>();
        if (!future.isDone()) {
            waits.add(either);
            Future<?> late = after(millis, () -> either.complete(null));
            either.whenComplete((value, error) -> {
                waits.remove(either);
                late.cancel(false);
            });
            if (thread.isShutdown()) either.complete(null);
        }
        Errors.pass(future, either);
        return either;
    }

    void end() {
        thread.shutdown();
        waits.forEach(wait -> wait.complete(null));
    }
}
