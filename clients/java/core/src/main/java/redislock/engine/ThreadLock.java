package redislock.engine;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.jspecify.annotations.Nullable;
import redislock.Hold;
import redislock.LockUnavailableException;

/** A lock in the manner of {@code java.util.concurrent.locks}: re-entrant by thread. */
final class ThreadLock implements Lock {
    private final Recipe recipe;
    private final Terms terms;
    private final ThreadHolds threads;

    ThreadLock(Recipe recipe, Terms terms, ThreadHolds threads) {
        this.recipe = recipe;
        this.terms = terms;
        this.threads = threads;
    }

    private boolean isRead() {
        return terms.kind() == Terms.Kind.READ;
    }

    private ThreadHolds.Key mine() {
        return new ThreadHolds.Key(terms.keys(), terms.kind() == Terms.Kind.SHARE, Thread.currentThread());
    }

    /** What this thread has already: one more of it. Null: nothing, or reads of one that would write. */
    private ThreadHolds.@Nullable Count entered() {
        ThreadHolds.Count count = threads.counts.get(mine());
        if (count == null || isUpgrade(count)) return null;
        // The inner block would run without the lock.
        if (count.hold.loss() != null) throw count.hold.lostException();
        if (isRead()) count.reads += 1;
        else count.writes += 1;
        return count;
    }

    private boolean isUpgrade(ThreadHolds.Count count) {
        return !isRead() && count.writes == 0;
    }

    private boolean isUpgrade() {
        ThreadHolds.Count count = threads.counts.get(mine());
        return count != null && isUpgrade(count);
    }

    private void enter(Hold hold) {
        ThreadHolds.Count count = new ThreadHolds.Count((Held) hold);
        if (isRead()) count.reads = 1;
        else count.writes = 1;
        threads.counts.put(mine(), count);
    }

    @Override
    public void lock() {
        if (entered() != null) return;
        if (isUpgrade()) throw Wait.itself(terms);
        enter(recipe.acquireUninterruptibly());
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        if (Thread.interrupted()) throw new InterruptedException();
        if (entered() != null) return;
        if (isUpgrade()) throw Wait.itself(terms);
        enter(recipe.acquire());
    }

    @Override
    public boolean tryLock() {
        if (entered() != null) return true;
        if (isUpgrade()) return false;
        Held hold = recipe.tryOnce();
        if (hold != null) enter(hold);
        return hold != null;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        if (Thread.interrupted()) throw new InterruptedException();
        if (entered() != null) return true;
        if (isUpgrade()) return false;
        Hold hold = recipe.tryAcquire(Duration.ofNanos(Math.max(0, unit.toNanos(time)))).orElse(null);
        if (hold != null) enter(hold);
        return hold != null;
    }

    @Override
    public void unlock() {
        ThreadHolds.Key mine = mine();
        ThreadHolds.Count count = threads.counts.get(mine);
        if (count == null || (isRead() ? count.reads : count.writes) == 0) {
            throw new IllegalMonitorStateException(terms + " is not locked by this thread");
        }
        if (isRead()) count.reads -= 1;
        else count.writes -= 1;
        if (count.reads + count.writes == 0) {
            threads.counts.remove(mine, count);
            count.hold.close();
            return;
        }
        if (count.hold.loss() != null) throw count.hold.lostException();
        if (!isRead() && count.writes == 0) stayReader(count);
    }

    private void stayReader(ThreadHolds.Count count) {
        Held reader;
        try {
            reader = Awaiting.uninterruptibly(count.hold.downgrade(), terms.toString());
        } catch (LockUnavailableException away) {
            // It stays a writer on the server, and its thread a reader: nobody is let in too early.
            return;
        }
        if (reader == null) {
            count.hold.lose(Hold.Loss.TAKEN_AWAY);
            throw count.hold.lostException();
        }
        threads.has(reader);
        count.hold = reader;
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("locks of several processes have no conditions");
    }

    @Override
    public String toString() {
        return terms.toString();
    }
}
