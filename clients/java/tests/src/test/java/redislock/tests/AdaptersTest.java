package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import java.time.Instant;
import java.util.ConcurrentModificationException;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockAssert;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.KeepAliveLockProvider;
import net.javacrumbs.shedlock.support.LockException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.DistributedLock;
import redislock.Hold;
import redislock.LockListener;
import redislock.LockLostException;
import redislock.RedisLocks;
import redislock.micrometer.LockMeters;
import redislock.shedlock.RedisLockProvider;
import redislock.spring.RedisLockRegistry;
import redislock.test.FakeServer;

/**
 * The adapters over the libraries that they are for. The lock is broken during the job of each: the clock goes on by a third
 * of the lease, and by nothing else.
 */
class AdaptersTest {
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static final Duration LEASE = Duration.ofMinutes(30);
    private final FakeServer server = new FakeServer();
    private final CompletableFuture<Hold.Loss> lost = new CompletableFuture<>();
    private final SimpleMeterRegistry figures = new SimpleMeterRegistry();
    private RedisLocks locks;
    private RedisLocks others;

    @BeforeEach
    void open() {
        LockListener meters = new LockMeters(figures, "test");
        LockListener listener = new LockListener() {
            @Override
            public void onAcquired(String key, Duration waited) {
                meters.onAcquired(key, waited);
            }

            @Override
            public void onRefused(String key, Duration waited) {
                meters.onRefused(key, waited);
            }

            @Override
            public void onReleased(String key, Duration held) {
                meters.onReleased(key, held);
            }

            @Override
            public void onLost(String key, Hold.Loss why) {
                meters.onLost(key, why);
                lost.complete(why);
            }
        };
        locks = RedisLocks.builder(server.transport()).lease(LEASE).listener(listener).build();
        others = RedisLocks.builder(server.transport()).lease(LEASE).build();
    }

    @AfterEach
    void close() {
        locks.close();
        others.close();
        server.close();
    }

    /** An operator breaks it, and the holder's next renewal is due. */
    private void breakLock(String key) {
        server.lose(key);
        server.advance(LEASE.dividedBy(3).plusMillis(1));
    }

    private static LockConfiguration job(Duration most, Duration least) {
        return new LockConfiguration(Instant.now(), "report", most, least);
    }

    @Test
    void shedlock_runs_a_job_once_and_keeps_its_lock_for_the_least_time() throws Exception {
        Duration least = Duration.ofMinutes(1);
        DefaultLockingTaskExecutor executor = new DefaultLockingTaskExecutor(new RedisLockProvider(locks));
        RedisLockProvider elsewhere = new RedisLockProvider(others);
        AtomicInteger runs = new AtomicInteger();
        executor.executeWithLock(
                (Runnable) () -> {
                    LockAssert.assertLocked();
                    runs.incrementAndGet();
                    assertEquals(Optional.empty(), elsewhere.lock(job(Duration.ofMinutes(1), Duration.ZERO)));
                },
                job(LEASE, least));
        assertEquals(1, runs.get());
        // It was faster than the least time.
        assertEquals(Optional.empty(), elsewhere.lock(job(Duration.ofMinutes(1), Duration.ZERO)));
        server.advance(least);
        elsewhere.lock(job(Duration.ofMinutes(1), Duration.ZERO)).orElseThrow().unlock();
        assertTrue(locks.info("shedlock:report").isEmpty());
    }

    @Test
    void shedlock_holds_a_lock_for_its_longest_time_and_no_longer() throws Exception {
        RedisLockProvider provider = new RedisLockProvider(locks);
        SimpleLock lock = provider.lock(job(LEASE, Duration.ZERO)).orElseThrow();
        server.advance(LEASE.dividedBy(2));
        Server.await("the renewal", () -> server.calls("LOCK.EXTEND") == 1);
        assertFalse(lost.isDone());
        server.advance(LEASE.dividedBy(2));
        assertEquals(Hold.Loss.MAX, lost.get(300, TimeUnit.SECONDS));
        // On the server it ends a hundredth later: so much may two clocks differ by.
        server.advance(LEASE.dividedBy(50));
        assertTrue(others.info("shedlock:report").isEmpty());
        // Too late is no error, but a line in the log.
        lock.unlock();
    }

    @Test
    void shedlock_extends_a_lock_and_says_that_a_broken_one_cannot_be() throws Exception {
        RedisLockProvider provider = new RedisLockProvider(locks);
        DefaultLockingTaskExecutor executor = new DefaultLockingTaskExecutor(provider);
        CompletableFuture<Throwable> told = new CompletableFuture<>();
        Runnable work = () -> {
            LockExtender.extendActiveLock(Duration.ofMinutes(10), Duration.ZERO);
            assertTrue(others.info("shedlock:report").isPresent());
            server.lose("shedlock:report");
            told.complete(assertThrows(
                    LockExtender.LockCanNotBeExtendedException.class,
                    () -> LockExtender.extendActiveLock(Duration.ofMinutes(10), Duration.ZERO)));
        };
        // To give back what could not be extended is an error of ShedLock's own.
        assertThrows(
                IllegalStateException.class,
                () -> executor.executeWithLock(work, job(Duration.ofMinutes(5), Duration.ZERO)));
        assertTrue(told.isDone());
        assertEquals(Hold.Loss.TAKEN_AWAY, lost.get(300, TimeUnit.SECONDS));
    }

    @Test
    void shedlock_goes_on_with_a_job_whose_lock_is_broken_and_the_listener_is_told() throws Exception {
        DefaultLockingTaskExecutor executor = new DefaultLockingTaskExecutor(new RedisLockProvider(locks));
        CompletableFuture<Hold.Loss> told = new CompletableFuture<>();
        executor.executeWithLock(
                (Runnable) () -> {
                    breakLock("shedlock:report");
                    told.complete(lost.orTimeout(300, TimeUnit.SECONDS).join());
                },
                job(LEASE, Duration.ZERO));
        assertEquals(Hold.Loss.TAKEN_AWAY, told.getNow(null));
    }

    /** A timer whose one task runs when the test says so. */
    private static final class Timer extends ScheduledThreadPoolExecutor {
        private final CompletableFuture<Runnable> task = new CompletableFuture<>();

        Timer() {
            super(1);
        }

        @Override
        public ScheduledFuture<?> scheduleAtFixedRate(Runnable command, long delay, long period, TimeUnit unit) {
            task.complete(command);
            return super.schedule(() -> {}, 1, TimeUnit.DAYS);
        }
    }

    @Test
    void shedlocks_keep_alive_outlasts_the_longest_time_until_the_lock_is_broken() throws Exception {
        Timer timer = new Timer();
        try {
            KeepAliveLockProvider provider = new KeepAliveLockProvider(new RedisLockProvider(locks), timer);
            SimpleLock lock = provider.lock(job(LEASE, Duration.ZERO)).orElseThrow();
            for (int halves = 0; halves < 4; halves += 1) {
                server.advance(LEASE.dividedBy(2));
                timer.task.join().run();
            }
            assertTrue(others.info("shedlock:report").isPresent());
            assertFalse(lost.isDone());
            breakLock("shedlock:report");
            assertEquals(Hold.Loss.TAKEN_AWAY, lost.get(300, TimeUnit.SECONDS));
            timer.task.join().run();
            assertTrue(others.info("shedlock:report").isEmpty(), "it does not take it again");
            assertThrows(IllegalStateException.class, lock::unlock);
        } finally {
            timer.shutdownNow();
        }
    }

    @Test
    void shedlock_is_told_that_the_server_could_not_be_asked() {
        server.ask("SET", "shedlock:report", "text");
        assertThrows(LockException.class, () -> new RedisLockProvider(locks).lock(job(SECOND, Duration.ZERO)));
    }

    @Test
    void spring_locks_enter_again_and_have_the_lease_of_the_call() throws Exception {
        RedisLockRegistry registry = new RedisLockRegistry(locks, "registry:");
        RedisLockRegistry elsewhere = new RedisLockRegistry(others, "registry:");
        DistributedLock lock = registry.obtain("k");
        lock.lock(Duration.ofMinutes(3));
        assertTrue(others.info("registry:k").orElseThrow().holders().get(0).lease().toSeconds() > 100);
        assertTrue(registry.obtain("k").tryLock());
        assertFalse(elsewhere.obtain("k").tryLock(Duration.ofMillis(50), SECOND));
        registry.obtain("k").unlock();
        assertFalse(elsewhere.obtain("k").tryLock());
        lock.unlock();
        assertTrue(elsewhere.obtain("k").tryLock(1, TimeUnit.SECONDS));
        elsewhere.obtain("k").unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertEquals(7, registry.<Integer, RuntimeException>executeLocked("k", () -> 7));
    }

    @Test
    void spring_is_told_of_a_broken_lock_at_its_end() throws Exception {
        RedisLockRegistry registry = new RedisLockRegistry(locks, "registry:");
        DistributedLock lock = registry.obtain("k");
        lock.lock();
        breakLock("registry:k");
        assertEquals(Hold.Loss.TAKEN_AWAY, lost.get(300, TimeUnit.SECONDS));
        assertThrows(LockLostException.class, lock::lock);
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertTrue(registry.obtain("k").tryLock());
        lock.unlock();
    }

    /** What a leader of Spring says. */
    private static final class Candidate extends DefaultCandidate {
        final CountDownLatch granted = new CountDownLatch(1);
        final CountDownLatch revoked = new CountDownLatch(1);

        Candidate(String id) {
            super(id, "leader");
        }

        @Override
        public void onGranted(Context context) {
            granted.countDown();
        }

        @Override
        public void onRevoked(Context context) {
            revoked.countDown();
        }
    }

    private static LockRegistryLeaderInitiator initiator(RedisLocks locks, Candidate candidate) {
        LockRegistryLeaderInitiator initiator =
                new LockRegistryLeaderInitiator(new RedisLockRegistry(locks, "registry:"), candidate);
        initiator.setHeartBeatMillis(50);
        initiator.setBusyWaitMillis(10);
        initiator.start();
        return initiator;
    }

    @Test
    void a_leader_of_spring_whose_lock_is_broken_is_revoked_and_another_one_follows() throws Exception {
        Candidate first = new Candidate("first");
        Candidate second = new Candidate("second");
        LockRegistryLeaderInitiator one = initiator(locks, first);
        assertTrue(first.granted.await(300, TimeUnit.SECONDS));
        LockRegistryLeaderInitiator two = initiator(others, second);
        assertFalse(two.getContext().isLeader());
        breakLock("registry:leader");
        assertTrue(first.revoked.await(300, TimeUnit.SECONDS));
        assertEquals(Hold.Loss.TAKEN_AWAY, lost.get(300, TimeUnit.SECONDS));
        // One of both leads now.
        one.destroy();
        assertTrue(second.granted.await(300, TimeUnit.SECONDS));
        two.destroy();
    }

    @Test
    void figures_have_a_name_and_no_key() throws Exception {
        locks.exclusive("secret key").acquire().close();
        try (Hold other = others.exclusive("secret key").acquire()) {
            assertTrue(locks.exclusive("secret key").tryAcquire(Duration.ofMillis(20)).isEmpty());
            assertTrue(other.isValid());
        }
        Hold hold = locks.exclusive("secret key").acquire();
        breakLock("secret key");
        assertEquals(Hold.Loss.TAKEN_AWAY, lost.get(300, TimeUnit.SECONDS));
        assertThrows(LockLostException.class, hold::close);
        Server.await("all figures", () -> figures.get("redis.lock.held").timer().count() == 1
                && figures.get("redis.lock.wait").timer().count() == 2);
        assertEquals(1, figures.get("redis.lock.refused").tag("locks", "test").counter().count());
        assertEquals(1, figures.get("redis.lock.lost").tag("why", "TAKEN_AWAY").counter().count());
        assertEquals(0, figures.get("redis.lock.lost").tag("why", "MAX").counter().count());
        figures.getMeters().forEach(meter -> assertFalse(meter.getId().toString().contains("secret"), meter.getId()::toString));
    }
}
