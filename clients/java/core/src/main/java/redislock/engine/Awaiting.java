package redislock.engine;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** A thread that waits for what the engine does. */
final class Awaiting {
    private Awaiting() {}

    /** The value, or what an application is told. The thread stays interrupted if it was. */
    static <T> T uninterruptibly(CompletableFuture<T> future, String what) {
        boolean wasInterrupted = false;
        try {
            for (; ; ) {
                try {
                    return future.get();
                } catch (InterruptedException again) {
                    wasInterrupted = true;
                } catch (ExecutionException error) {
                    throw told(what, error);
                }
            }
        } finally {
            if (wasInterrupted) Thread.currentThread().interrupt();
        }
    }

    /** With the stack of the thread that waits. */
    static RuntimeException told(String what, Throwable error) {
        RuntimeException told = Errors.told(what, error);
        told.setStackTrace(Thread.currentThread().getStackTrace());
        return told;
    }
}
