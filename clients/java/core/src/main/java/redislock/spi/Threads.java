package redislock.spi;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Threads that keep no process alive. */
public final class Threads {
    /** After so many seconds without a task a daemon ends. */
    private static final long IDLE_S = 10;

    private Threads() {}

    /**
     * Returns what makes daemon threads of this name.
     *
     * @param name what each is called, with a number
     * @return the factory
     */
    public static ThreadFactory daemons(String name) {
        AtomicInteger count = new AtomicInteger();
        return work -> {
            Thread thread = new Thread(work, name + "-" + count.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    /**
     * Returns an executor with a thread for each task: a virtual one from Java 21 on, else a daemon that serves later tasks.
     *
     * @param name what the daemons are called
     * @return the executor, which its owner shuts down
     */
    public static ExecutorService each(String name) {
        try {
            MethodType type = MethodType.methodType(ExecutorService.class);
            return (ExecutorService) MethodHandles.publicLookup()
                    .findStatic(Executors.class, "newVirtualThreadPerTaskExecutor", type)
                    .invokeExact();
        } catch (Throwable older) {
            SynchronousQueue<Runnable> handedOn = new SynchronousQueue<>();
            return new ThreadPoolExecutor(0, Integer.MAX_VALUE, IDLE_S, TimeUnit.SECONDS, handedOn, daemons(name));
        }
    }
}
