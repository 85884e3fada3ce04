package redislock.engine;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import redislock.spi.Threads;

/** The one daemon thread that keeps all times. What it runs never blocks. */
final class Alarm {
    private final ScheduledThreadPoolExecutor thread;

    Alarm() {
        thread = new ScheduledThreadPoolExecutor(1, Threads.daemons("redislock"));
        thread.setRemoveOnCancelPolicy(true);
        thread.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        thread.prestartCoreThread();
    }

    /** Runs it later. After the end it never does. */
    Future<?> after(long millis, Runnable work) {
        if (thread.isShutdown()) return CompletableFuture.completedFuture(null);
        return thread.schedule(work, Math.max(0, millis), TimeUnit.MILLISECONDS);
    }

    /** Completed after that time. */
    CompletableFuture<@Nullable Object> pause(long millis) {
        CompletableFuture<@Nullable Object> over = new CompletableFuture<>();
        if (millis <= 0) over.complete(null);
        else after(millis, () -> over.complete(null));
        return over;
    }

    /** Completed with the future, or with null when the time is over first. */
    <T> CompletableFuture<@Nullable T> until(long millis, CompletableFuture<T> future) {
        CompletableFuture<@Nullable T> either = new CompletableFuture<>();
        Future<?> late = future.isDone() ? future : after(millis, () -> either.complete(null));
        future.whenComplete((value, error) -> {
            if (late != future) late.cancel(false);
            if (error != null) either.completeExceptionally(error);
            else either.complete(value);
        });
        return either;
    }

    void end() {
        thread.shutdown();
    }
}
