package redislock.shedlock;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import redislock.Hold;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.RedisLocks;

/**
 * Locks of scheduled jobs. {@code lockAtMostFor} is a promise: the lock is held until then, also if the process dies, and no
 * longer. It is at least a second. After an extension it is renewed in steps of the first {@code lockAtMostFor}.
 * {@code lockAtLeastFor} keeps the lock after a job that was faster.
 *
 * <p>A lock that was lost while its job ran is told in three ways: the extension of an active lock fails, {@code unlock} logs a
 * warning, and the {@link redislock.LockListener} of the {@link RedisLocks} is called then.
 */
public final class RedisLockProvider implements ExtensibleLockProvider {
    private static final System.Logger LOG = System.getLogger("redislock");
    private static final Duration LEASE_MIN = Duration.ofSeconds(1);

    private final RedisLocks locks;
    private final String prefix;

    /**
     * Makes a provider whose keys are {@code shedlock:} and the name of the job.
     *
     * @param locks of the application, which closes them
     */
    public RedisLockProvider(RedisLocks locks) {
        this(locks, "shedlock:");
    }

    /**
     * Makes a provider.
     *
     * @param locks of the application, which closes them
     * @param prefix what is written before the name of a job, after the prefix of the locks
     */
    public RedisLockProvider(RedisLocks locks, String prefix) {
        this.locks = Objects.requireNonNull(locks, "locks");
        this.prefix = Objects.requireNonNull(prefix, "prefix");
    }

    /**
     * Tries once.
     *
     * @param job its name and times
     * @return the lock; empty if another process has it
     * @throws LockException if the server could not be asked: nobody knows then whether another process has it
     */
    @Override
    public Optional<SimpleLock> lock(LockConfiguration job) {
        Duration most = job.getLockAtMostFor().compareTo(LEASE_MIN) < 0 ? LEASE_MIN : job.getLockAtMostFor();
        try {
            return locks.exclusive(prefix + job.getName())
                    .lease(most)
                    .max(most)
                    .tryAcquire(Duration.ZERO)
                    .map(hold -> new JobLock(job, hold));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new LockException("interrupted", interrupted);
        } catch (LockUnavailableException away) {
            throw new LockException("the lock of the job " + job.getName() + " could not be asked for", away);
        }
    }

    private static final class JobLock extends AbstractSimpleLock {
        private final Hold hold;

        JobLock(LockConfiguration job, Hold hold) {
            super(job);
            this.hold = hold;
        }

        @Override
        protected void doUnlock() {
            // ShedLock's clock goes by milliseconds: less than one is none.
            long rest = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil()).toMillis();
            try {
                if (rest <= 0) hold.close();
                else hold.releaseAfter(Duration.ofMillis(rest + 1));
            } catch (LockLostException lost) {
                LOG.log(System.Logger.Level.WARNING, "the lock of the job {0} was lost while it ran: {1}",
                        lockConfiguration.getName(), lost.getMessage());
            } catch (LockUnavailableException away) {
                LOG.log(System.Logger.Level.WARNING, "the lock of the job {0} ends with its time: {1}",
                        lockConfiguration.getName(), away.getMessage());
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration longer) {
            try {
                return hold.renewMax(longer.getLockAtMostFor()) ? Optional.of(new JobLock(longer, hold)) : Optional.empty();
            } catch (LockUnavailableException away) {
                throw new LockException("the lock of the job " + longer.getName() + " could not be extended", away);
            }
        }
    }
}
