package redislock;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * Two locks as one, while old code still takes another kind of lock: the old one is taken first, then the next one, or
 * neither. It is re-entrant if both are.
 *
 * <p>The old one may have a lease that nobody renews. So it is held for a limited time without the next one: then it is
 * given back, and both are asked for again. It may have ended by then: that is no error.
 */
public final class BothLocks implements Lock {
    private final Lock old;
    private final Lock next;
    private final long wait;

    /**
     * Makes one.
     *
     * @param old the lock that the old code takes
     * @param next the lock that the new code takes, under another key
     * @param wait how long the old one is held without the next one
     */
    public BothLocks(Lock old, Lock next, Duration wait) {
        this.old = Objects.requireNonNull(old, "old");
        this.next = Objects.requireNonNull(next, "next");
        if (wait.isNegative() || wait.isZero()) throw new IllegalArgumentException("wait must be above 0: " + wait);
        this.wait = wait.toNanos();
    }

    private boolean second(long most) throws InterruptedException {
        boolean isTaken = false;
        try {
            isTaken = next.tryLock(Math.min(most, wait), TimeUnit.NANOSECONDS);
        } finally {
            if (!isTaken) giveBack();
        }
        return isTaken;
    }

    private void giveBack() {
        try {
            old.unlock();
        } catch (RuntimeException ended) {
            // Its lease is over: it is not held, as it is to be.
        }
    }

    @Override
    public void lock() {
        boolean isInterrupted = false;
        try {
            for (boolean isTaken = false; !isTaken; ) {
                old.lock();
                try {
                    isTaken = second(wait);
                } catch (InterruptedException interrupted) {
                    isInterrupted = true;
                }
            }
        } finally {
            if (isInterrupted) Thread.currentThread().interrupt();
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        do old.lockInterruptibly();
        while (!second(wait));
    }

    @Override
    public boolean tryLock() {
        if (!old.tryLock()) return false;
        boolean isTaken = false;
        try {
            isTaken = next.tryLock();
        } finally {
            if (!isTaken) giveBack();
        }
        return isTaken;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        long end = System.nanoTime() + unit.toNanos(time);
        do {
            if (!old.tryLock(rest(end), TimeUnit.NANOSECONDS)) return false;
            if (second(rest(end))) return true;
        } while (rest(end) > 0);
        return false;
    }

    private static long rest(long end) {
        return Math.max(0, end - System.nanoTime());
    }

    @Override
    public void unlock() {
        try {
            next.unlock();
        } finally {
            old.unlock();
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("locks of several processes have no conditions");
    }

    @Override
    public String toString() {
        return old + " and " + next;
    }
}
