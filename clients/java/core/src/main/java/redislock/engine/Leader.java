package redislock.engine;

import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import redislock.Hold;
import redislock.Leadership;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.Term;

/** A thread that is leader whenever it can. */
final class Leader implements Leadership {
    private record Turn(Hold hold) implements Term {
        @Override
        public long number() {
            return hold.fence();
        }

        @Override
        public boolean isLeader() {
            return hold.isValid();
        }
    }

    private final Recipe recipe;
    private final Consumer<Term> body;
    private final Engine engine;
    private final Thread thread = new Thread(this::run, "redislock-leader");
    private final ReentrantLock lock = new ReentrantLock();
    private volatile @Nullable Hold hold;
    private volatile boolean isOver;

    Leader(Recipe recipe, Consumer<Term> body, Engine engine) {
        this.recipe = recipe;
        this.body = body;
        this.engine = engine;
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        while (!isEnded()) {
            long pause = 0;
            try (Hold mine = recipe.acquire()) {
                hold = mine;
                mine.lost().thenRun(() -> interrupt(mine));
                if (!isOver) body.accept(new Turn(mine));
            } catch (InterruptedException | LockLostException over) {
                // The next round asks whether this was the end.
            } catch (LockUnavailableException refused) {
                if (!engine.isClosed) engine.troubles.tell(Troubles.Kind.REFUSED, refused);
                pause = Times.PAUSE_MAX;
            } catch (Throwable failure) {
                // Also an error: the lock was given back, and this thread leads again.
                engine.troubles.ofWork(failure);
                pause = Times.PAUSE_MIN;
            } finally {
                lock.lock();
                hold = null;
                // An interrupt was for the term that is over.
                Thread.interrupted();
                lock.unlock();
            }
            try {
                if (!isEnded()) Thread.sleep(pause);
            } catch (InterruptedException over) {
                // So it was.
            }
        }
    }

    private boolean isEnded() {
        return isOver || engine.isClosed;
    }

    /** Ends the work of this term. Told late, it interrupts no later one. */
    private void interrupt(Hold lost) {
        lock.lock();
        try {
            if (hold == lost) thread.interrupt();
        } finally {
            lock.unlock();
        }
    }

    @Override
    public boolean isLeader() {
        Hold mine = hold;
        return mine != null && mine.isValid();
    }

    @Override
    public void close() {
        isOver = true;
        if (Thread.currentThread() == thread) return;
        thread.interrupt();
        try {
            thread.join();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
