package redislock.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadFactory;
import org.junit.jupiter.api.Test;

/** What runs where, if an executor or the machine fails. */
class CallbacksTest {
    private final List<Thread> ran = new ArrayList<>();
    private final Thread here = Thread.currentThread();

    private void run(Executor executor, ThreadFactory late) {
        new Callbacks(null, executor, late).run(() -> ran.add(Thread.currentThread()));
    }

    @Test
    void what_an_executor_ran_or_keeps_runs_once_though_it_throws_then() throws Exception {
        Queue<Runnable> kept = new ArrayDeque<>();
        List<Executor> executors = List.of(Runnable::run, kept::add);
        for (Executor each : executors) {
            List<Thread> late = new ArrayList<>();
            run(
                    work -> {
                        each.execute(work);
                        throw new IllegalStateException("after it");
                    },
                    work -> {
                        late.add(new Thread(work));
                        return late.get(0);
                    });
            for (Thread thread : late) thread.join();
        }
        for (Runnable work : kept) work.run();
        assertEquals(executors.size(), ran.size());
    }

    @Test
    void where_no_thread_can_be_had_it_runs_in_the_one_that_calls() {
        ThreadFactory full = work -> {
            throw new OutOfMemoryError("unable to create native thread");
        };
        for (ThreadFactory late : List.of(full, work -> null)) {
            run(work -> {
                throw new OutOfMemoryError("no thread");
            }, late);
        }
        assertEquals(List.of(here, here), ran);
    }
}
