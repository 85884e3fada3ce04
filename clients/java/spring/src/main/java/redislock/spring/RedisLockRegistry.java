package redislock.spring;

import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;
import redislock.LockLostException;
import redislock.RedisLock;
import redislock.RedisLocks;

/**
 * A registry of locks for Spring Integration. Its locks are re-entrant by thread; all that it gives for one key are one lock, so
 * none is kept and none has to expire. A {@code ttl} is the lease of that call: how soon the lock is free after its process
 * died. It is renewed all the same.
 *
 * <p>{@code unlock} of a lock that was lost throws {@link ConcurrentModificationException}, and to enter it again throws
 * {@link LockLostException}. So {@code LockRegistryLeaderInitiator} revokes the leadership at its next heart-beat.
 */
public final class RedisLockRegistry implements LockRegistry<DistributedLock> {
    private final RedisLocks locks;
    private final String prefix;

    /**
     * Makes a registry.
     *
     * @param locks of the application, which closes them
     * @param prefix what is written before a key, after the prefix of the locks: as {@code "registry:"}
     */
    public RedisLockRegistry(RedisLocks locks, String prefix) {
        this.locks = Objects.requireNonNull(locks, "locks");
        this.prefix = Objects.requireNonNull(prefix, "prefix");
    }

    /**
     * Returns the lock of a key.
     *
     * @param lockKey its text is the key
     * @return a view of the lock, which locks nothing yet
     */
    @Override
    public DistributedLock obtain(Object lockKey) {
        return new View(locks.exclusive(prefix + Objects.requireNonNull(lockKey, "lockKey")));
    }

    private static final class View implements DistributedLock {
        private final RedisLock recipe;
        private final Lock lock;

        View(RedisLock recipe) {
            this.recipe = recipe;
            this.lock = recipe.asLock();
        }

        @Override
        public void lock() {
            lock.lock();
        }

        @Override
        public void lock(Duration ttl) {
            recipe.lease(ttl).asLock().lock();
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            lock.lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return lock.tryLock();
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return lock.tryLock(time, unit);
        }

        @Override
        public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
            return recipe.lease(ttl).asLock().tryLock(waitTime.toNanos(), TimeUnit.NANOSECONDS);
        }

        @Override
        public void unlock() {
            try {
                lock.unlock();
            } catch (LockLostException lost) {
                ConcurrentModificationException told = new ConcurrentModificationException(lost.getMessage());
                told.initCause(lost);
                throw told;
            }
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("locks of several processes have no conditions");
        }

        @Override
        public String toString() {
            return lock.toString();
        }
    }
}
