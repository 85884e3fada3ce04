package redislock.engine;

import static java.util.Objects.requireNonNull;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Lock;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import redislock.Hold;
import redislock.LockLostException;
import redislock.LockedCall;
import redislock.RedisLock;

/** What is to be locked, and how. */
final class Recipe implements RedisLock {
    private final Engine engine;
    private final ThreadHolds threads;
    private final Terms terms;
    private final @Nullable Held outer;

    Recipe(Engine engine, ThreadHolds threads, Terms terms, @Nullable Held outer) {
        this.engine = engine;
        this.threads = threads;
        this.terms = terms;
        this.outer = outer;
    }

    private Recipe with(Terms other) {
        return new Recipe(engine, threads, other, outer);
    }

    @Override
    public RedisLock lease(Duration lease) {
        return with(terms.withLease(Times.millis(requireNonNull(lease, "lease"))));
    }

    @Override
    public RedisLock max(Duration max) {
        return with(terms.withMax(Times.millis(requireNonNull(max, "max"))));
    }

    @Override
    public RedisLock note(String note) {
        return with(terms.withNote(requireNonNull(note, "note")));
    }

    @Override
    public RedisLock within(Hold hold) {
        requireNonNull(hold, "outer");
        if (!(hold instanceof Held held) || held.engine != engine) {
            throw new IllegalArgumentException("outer must be a hold of the same locks");
        }
        return new Recipe(engine, threads, terms, held);
    }

    private Wait wait(long millis, boolean isDirect) {
        Owner owner;
        if (outer == null) {
            owner = new Owner();
        } else {
            if (!outer.isValid()) throw new IllegalStateException("outer must be a lock that is held");
            owner = outer.holder;
        }
        return new Wait(engine, terms, owner, millis, isDirect).start();
    }

    private static long checked(Duration wait) {
        if (requireNonNull(wait, "wait").isNegative()) throw new IllegalArgumentException("wait must be at least 0: " + wait);
        return Times.millis(wait);
    }

    @Override
    public Hold acquire() throws InterruptedException {
        threads.checkFree(terms);
        return mine(requireNonNull(interruptibly(wait(Times.FOR_EVER, false))));
    }

    @Override
    public Hold acquireUninterruptibly() {
        threads.checkFree(terms);
        return mine(requireNonNull(Awaiting.uninterruptibly(wait(Times.FOR_EVER, true).result, terms.toString())));
    }

    private Held mine(Held hold) {
        threads.has(hold);
        return hold;
    }

    @Override
    public Optional<Hold> tryAcquire(Duration wait) throws InterruptedException {
        long millis = checked(wait);
        if (Thread.interrupted()) throw new InterruptedException();
        if (millis > 0) threads.checkFree(terms);
        return Optional.ofNullable(interruptibly(wait(millis, millis == 0))).map(this::mine);
    }

    /** One try, which an interrupt does not end. */
    @Nullable Held tryOnce() {
        Held hold = Awaiting.uninterruptibly(wait(0, true).result, terms.toString());
        return hold == null ? null : mine(hold);
    }

    private @Nullable Held interruptibly(Wait wait) throws InterruptedException {
        if (!Thread.currentThread().isInterrupted() || !wait.result.isDone()) {
            try {
                return wait.result.get();
            } catch (ExecutionException error) {
                throw Awaiting.told(terms.toString(), error);
            } catch (InterruptedException interrupted) {
                undo(wait);
                throw interrupted;
            }
        }
        Thread.interrupted();
        undo(wait);
        throw new InterruptedException();
    }

    /** Leaves the queue, and gives back what was granted in this moment. It takes 250 ms at most. */
    private static void undo(Wait wait) {
        wait.abandon();
        try {
            wait.gone.get(Times.CANCEL, TimeUnit.MILLISECONDS);
        } catch (InterruptedException again) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException late) {
            // It goes on in the background.
        }
        wait.result.whenComplete((hold, error) -> {
            if (hold != null) hold.release(false);
        });
    }

    @Override
    public CompletableFuture<Hold> acquireAsync() {
        return later(Times.FOR_EVER, hold -> requireNonNull(hold));
    }

    @Override
    public CompletableFuture<Optional<Hold>> tryAcquireAsync(Duration wait) {
        return later(checked(wait), Optional::ofNullable);
    }

    private <T> CompletableFuture<T> later(long millis, Function<@Nullable Held, T> value) {
        CompletableFuture<T> future = new CompletableFuture<>();
        Wait wait = wait(millis, false);
        future.whenComplete((done, error) -> wait.abandon());
        wait.result.whenComplete((hold, error) -> {
            if (future.isDone()) {
                if (hold != null) hold.release(false);
                return;
            }
            engine.callbacks.run(() -> {
                if (error != null) future.completeExceptionally(Errors.told(terms.toString(), error));
                else if (!future.complete(value.apply(hold)) && hold != null) hold.release(false);
            });
        });
        return future;
    }

    @Override
    public Lock asLock() {
        return new ThreadLock(this, terms, threads);
    }

    @Override
    public <T, X extends Exception> T call(LockedCall<T, X> work) throws X, InterruptedException {
        requireNonNull(work, "work");
        Hold hold = acquire();
        T result;
        try {
            result = work.call(hold);
        } catch (Throwable error) {
            try {
                hold.close();
            } catch (LockLostException lost) {
                error.addSuppressed(lost);
            }
            throw error;
        }
        hold.close();
        return result;
    }
}
