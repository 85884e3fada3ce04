package redislock.tests;

import static java.util.concurrent.CompletableFuture.completedFuture;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;
import redislock.BothLocks;
import redislock.Hold;
import redislock.LockInfo;
import redislock.LockUnavailableException;
import redislock.RedisLock;
import redislock.RedisLocks;
import redislock.shedlock.RedisLockProvider;
import redislock.test.LockServer;

/** The phases of docs/guide/migrating.md, with the locks of Redisson, Spring Integration and ShedLock for Redis. */
class MigratingTest {
    @RegisterExtension
    static final LockServer SERVER = Server.of();

    /** Prefixes of the page. */
    private static final String NEXT_REGISTRY = "registry-v2:";

    private static final String SHEDLOCK = "job-lock:default:";

    private RedissonClient redisson;
    private LettuceConnectionFactory spring;
    private RedisLockRegistry oldRegistry;
    private RedisLocks locks;
    private redislock.spring.RedisLockRegistry newRegistry;

    /** Whose lock the program has today. */
    enum Old {
        REDISSON,
        SPRING
    }

    private Old today = Old.REDISSON;

    /** What the page makes of locks and of registries. */
    private record Both(Lock lock, Lock reader, Lock writer, LockRegistry<Lock> registry) {}

    @BeforeEach
    void open() {
        int patience = Math.toIntExact(Server.PATIENCE.toMillis());
        Config config = new Config().setThreads(2).setNettyThreads(2).setLockWatchdogTimeout(10L * patience);
        config.useSingleServer()
                .setAddress("redis://127.0.0.1:" + SERVER.port())
                .setConnectTimeout(patience)
                .setTimeout(patience)
                .setSubscriptionTimeout(patience)
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
        redisson = Redisson.create(config);
        spring = new LettuceConnectionFactory("127.0.0.1", SERVER.port());
        spring.afterPropertiesSet();
        spring.start();
        oldRegistry = new RedisLockRegistry(spring, "registry", 10L * patience);
        locks = Server.builder(Library.LETTUCE, SERVER.url()).build();
        newRegistry = new redislock.spring.RedisLockRegistry(locks, NEXT_REGISTRY);
    }

    @AfterEach
    void close() {
        locks.close();
        oldRegistry.destroy();
        spring.destroy();
        redisson.shutdown(0, 1, TimeUnit.SECONDS);
    }

    private Lock before() {
        return today == Old.SPRING ? oldRegistry.obtain("report") : redisson.getLock("report");
    }

    private Lock both() {
        return today == Old.SPRING ? page().registry().obtain("report") : page().lock();
    }

    private Lock after() {
        return today == Old.SPRING ? newRegistry.obtain("report") : locks.asLock("report:v2");
    }

    private Both page() {
        Duration wait = Duration.ofSeconds(5);
        Lock lock = new BothLocks(redisson.getLock("report"), locks.asLock("report:v2"), wait);
        ReadWriteLock oldPage = redisson.getReadWriteLock("page");
        ReadWriteLock newPage = locks.asReadWriteLock("page:v2");
        Lock reader = new BothLocks(oldPage.readLock(), newPage.readLock(), wait);
        Lock writer = new BothLocks(oldPage.writeLock(), newPage.writeLock(), wait);
        LockRegistry<Lock> registry = key -> new BothLocks(oldRegistry.obtain(key), newRegistry.obtain(key), wait);
        return new Both(lock, reader, writer, registry);
    }

    private static void under(Lock lock, Runnable work) {
        lock.lock();
        try {
            work.run();
        } finally {
            lock.unlock();
        }
    }

    /** How many wait for the next lock. */
    private long waiting() {
        String key = today == Old.SPRING ? NEXT_REGISTRY + "report" : "report:v2";
        return locks.info(key).map(LockInfo::waiting).orElse(0L);
    }

    @ParameterizedTest
    @EnumSource
    void workers_of_two_phases_take_turns(Old old) {
        today = old;
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger turns = new AtomicInteger();
        Runnable work = () -> {
            assertEquals(1, inside.incrementAndGet(), "two are inside");
            turns.incrementAndGet();
            // Time for another to come in.
            LockSupport.parkNanos(2_000_000);
            inside.decrementAndGet();
        };
        for (List<Lock> phases : List.of(List.of(before(), both()), List.of(both(), after()))) {
            List<CompletableFuture<Void>> workers = new ArrayList<>();
            for (Lock phase : phases) {
                for (int worker = 0; worker < 2; worker++) {
                    workers.add(elsewhere(() -> {
                        for (int turn = 0; turn < 5; turn++) under(phase, work);
                        return null;
                    }));
                }
            }
            workers.forEach(CompletableFuture::join);
        }
        assertEquals(40, turns.get());
    }

    @ParameterizedTest
    @EnumSource
    void each_phase_has_what_keeps_out_the_one_before_and_the_one_after(Old old) {
        today = old;
        under(before(), () -> assertTrue(!isFree(before()) && isFree(after())));
        under(both(), () -> assertFalse(isFree(before()) || isFree(after())));
        under(after(), () -> assertTrue(isFree(before()) && !isFree(after())));
    }

    /** Else today's code waits for as long as the first lock lasts. */
    @ParameterizedTest
    @EnumSource
    void a_second_lock_that_is_refused_gives_back_the_first(Old old) {
        today = old;
        under(after(), () -> {
            assertFalse(isFree(both()));
            assertTrue(isFree(before()));
            assertFalse(elsewhere(() -> answered(() -> both().tryLock(50, TimeUnit.MILLISECONDS))).join());
            assertTrue(isFree(before()));
        });
        assertTrue(isFree(both()));
    }

    @ParameterizedTest
    @EnumSource
    void an_interrupt_gives_back_the_first_lock_or_is_kept(Old old) {
        today = old;
        CompletableFuture<Boolean> isKept = new CompletableFuture<>();
        under(after(), () -> {
            CompletableFuture<Boolean> isOver = new CompletableFuture<>();
            Thread hasty = new Thread(() -> {
                try {
                    both().lockInterruptibly();
                    isOver.complete(false);
                } catch (Exception error) {
                    isOver.complete(error instanceof InterruptedException);
                }
            });
            Thread patient = new Thread(() -> under(both(), () -> isKept.complete(Thread.interrupted())));
            for (Thread waiter : List.of(hasty, patient)) {
                waiter.start();
                Server.await("the second wait", () -> waiting() == 1);
                waiter.interrupt();
                Server.await("the end of that wait", () -> !waiter.isInterrupted());
                if (waiter == hasty) assertTrue(isOver.join() && isFree(before()));
            }
            assertFalse(isKept.isDone());
        });
        assertTrue(isKept.join());
        Server.await("the release", () -> isFree(both()));
    }

    /** Its lease may be over in a long wait. */
    @Test
    void the_first_lock_is_given_back_while_the_second_is_waited_for() {
        AtomicInteger given = new AtomicInteger();
        Lock old = new ReentrantLock() {
            private static final long serialVersionUID = 1;

            @Override
            public void unlock() {
                super.unlock();
                given.incrementAndGet();
            }
        };
        Lock both = new BothLocks(old, after(), Duration.ofMillis(20));
        List<Callable<Boolean>> ways = List.of(
                () -> both.tryLock(Server.PATIENCE.toMillis(), TimeUnit.MILLISECONDS),
                () -> {
                    both.lockInterruptibly();
                    return true;
                },
                () -> {
                    both.lock();
                    return true;
                });
        for (Callable<Boolean> way : ways) {
            given.set(0);
            List<CompletableFuture<Boolean>> taken = new ArrayList<>();
            under(after(), () -> {
                taken.add(elsewhere(() -> {
                    boolean isTaken = way.call();
                    both.unlock();
                    return isTaken;
                }));
                Server.await("two turns", () -> given.get() >= 2);
                assertFalse(taken.get(0).isDone());
            });
            assertTrue(taken.get(0).join());
        }
    }

    @Test
    void readers_have_both_locks_together_and_a_writer_alone() {
        ReadWriteLock old = redisson.getReadWriteLock("page");
        ReadWriteLock next = locks.asReadWriteLock("page:v2");
        Lock readers = page().reader();
        Lock writer = page().writer();
        under(readers, () -> {
            assertTrue(isFree(readers) && isFree(old.readLock()) && isFree(next.readLock()));
            assertFalse(isFree(writer) || isFree(old.writeLock()) || isFree(next.writeLock()));
        });
        assertTrue(isFree(writer));
        under(writer, () -> assertFalse(isFree(old.readLock()) || isFree(next.readLock())));
        assertTrue(isFree(writer));
    }

    private static final class Leases {
        boolean both(RLock old, RedisLock next, Duration wait, Duration lease, Consumer<Hold> work)
                throws InterruptedException {
            if (!old.tryLock(wait.toMillis(), wait.plus(lease).plusSeconds(1).toMillis(), TimeUnit.MILLISECONDS)) return false;
            try (Hold hold = next.max(lease).tryAcquire(wait).orElse(null)) {
                if (hold != null) work.accept(hold);
                return hold != null;
            } finally {
                if (old.isHeldByCurrentThread()) old.unlock();
            }
        }
    }

    @Test
    void a_lease_time_limits_both_locks() throws Exception {
        RLock old = redisson.getLock("report");
        RedisLock next = locks.exclusive("report:v2");
        Duration lease = Duration.ofMinutes(1);
        assertTrue(new Leases().both(old, next, Duration.ofSeconds(5), lease, hold -> {
            assertFalse(isFree(before()) || isFree(after()));
            assertTrue(old.remainTimeToLive() > 60_000, "the second wait and the work fit into it");
            long rest = locks.info("report:v2").orElseThrow().holders().get(0).lease().toMillis();
            assertTrue(rest <= lease.toMillis(), () -> "it lasts for " + rest + " ms");
        }));
        assertTrue(isFree(before()) && isFree(after()));
        under(after(), () -> {
            assertFalse(elsewhere(() -> new Leases().both(old, next, Duration.ofMillis(50), lease, hold -> {})).join());
            assertTrue(isFree(before()));
        });
        DistributedLock ofSpring = oldRegistry.obtain("report");
        assertTrue(ofSpring.tryLock(Duration.ofSeconds(5), lease));
        ofSpring.unlock();
        assertThrows(IllegalStateException.class, () -> new Leases().both(old, next, lease, lease, hold -> {
            throw new IllegalStateException("failed work");
        }));
        assertTrue(isFree(before()) && isFree(after()));
    }

    private static final class Threadless {
        CompletionStage<Optional<Hold>> takeBoth(RLock old, RedisLock next, Duration wait, long id) {
            return old.tryLockAsync(wait.toMillis(), -1, TimeUnit.MILLISECONDS, id)
                    .thenCompose(taken -> taken ? next.tryAcquireAsync(wait) : completedFuture(Optional.empty()))
                    .whenComplete((hold, error) -> {
                        if (hold == null || hold.isEmpty()) old.unlockAsync(id);
                    });
        }

        CompletionStage<Void> giveBoth(RLock old, Hold hold, long id) {
            CompletionStage<Void> given = hold.releaseAsync();
            return given.handle((done, error) -> old.unlockAsync(id)).thenCompose(ended -> ended).thenCompose(ended -> given);
        }
    }

    @Test
    void a_program_without_threads_has_both_locks_or_none() {
        RLock old = redisson.getLock("report");
        RedisLock next = locks.exclusive("report:v2");
        Threadless page = new Threadless();
        Function<Long, CompletableFuture<Optional<Hold>>> take =
                id -> page.takeBoth(old, next, Server.PATIENCE, id).toCompletableFuture();
        Hold hold = take.apply(4_711L).join().orElseThrow();
        assertFalse(isFree(before()) || isFree(after()));
        CompletableFuture<Optional<Hold>> second = take.apply(4_712L);
        page.giveBoth(old, hold, 4_711).toCompletableFuture().join();
        page.giveBoth(old, second.join().orElseThrow(), 4_712).toCompletableFuture().join();
        Server.await("the release", () -> isFree(before()) && isFree(after()));
        // Others have one of them.
        for (List<Lock> one : List.of(List.of(before(), after()), List.of(after(), before()))) {
            under(one.get(0), () -> {
                Duration soon = Duration.ofMillis(50);
                assertEquals(Optional.empty(), page.takeBoth(old, next, soon, 4_713).toCompletableFuture().join());
                Server.await("the other is free", () -> isFree(one.get(1)));
            });
        }
        // The next one cannot be asked for.
        locks.close();
        assertThrows(CompletionException.class, () -> take.apply(4_714L).join());
        Server.await("the release of the first", () -> isFree(before()));
    }

    @Test
    void a_leader_of_spring_has_both_locks() {
        today = Old.SPRING;
        LockRegistryLeaderInitiator leader =
                new LockRegistryLeaderInitiator(page().registry(), new DefaultCandidate("first", "report"));
        leader.start();
        Server.await("both locks", () -> leader.getContext().isLeader() && !isFree(before()) && !isFree(after()));
        leader.destroy();
        Server.await("the release", () -> isFree(before()) && isFree(after()));
    }

    /** So the prefix must be another one than that of today's registry. */
    @Test
    void a_registry_of_spring_and_a_lock_cannot_share_a_key() {
        Lock old = oldRegistry.obtain("report");
        Lock next = new redislock.spring.RedisLockRegistry(locks, "registry:").obtain("report");
        under(next, () -> {
            Throwable error = assertThrows(CannotAcquireLockException.class, old::tryLock);
            while (error.getCause() != null) error = error.getCause();
            assertTrue(error.getMessage().contains("WRONGTYPE"), error::getMessage);
        });
        under(old, () -> {
            LockUnavailableException error = assertThrows(LockUnavailableException.class, next::tryLock);
            assertEquals("WRONGTYPE", error.code().orElseThrow());
        });
    }

    private static boolean isFree(Lock lock) {
        // In another thread, since all are re-entrant.
        return elsewhere(() -> {
            boolean isFree = answered(lock::tryLock);
            if (isFree) lock.unlock();
            return isFree;
        }).join();
    }

    private static <T> T answered(Callable<T> call) {
        try {
            return Backend.answered(call);
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    private static <T> CompletableFuture<T> elsewhere(Callable<T> work) {
        CompletableFuture<T> done = new CompletableFuture<>();
        new Thread(() -> {
            try {
                done.complete(work.call());
            } catch (Throwable error) {
                done.completeExceptionally(error);
            }
        }).start();
        return done;
    }

    private static final class Jobs {
        LockProvider both(LockProvider old, LockProvider next) {
            return job -> old.lock(job).flatMap(first -> {
                Optional<SimpleLock> second = Optional.empty();
                try {
                    second = next.lock(job);
                } finally {
                    if (second.isEmpty()) first.unlock();
                }
                return second.map(held -> () -> {
                    try {
                        held.unlock();
                    } finally {
                        first.unlock();
                    }
                });
            });
        }
    }

    @Test
    void a_job_has_both_locks_or_none() {
        LockProvider old = new net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider(spring);
        LockProvider next = new RedisLockProvider(locks);
        LockProvider both = new Jobs().both(old, next);
        LockConfiguration job = new LockConfiguration(Instant.now(), "report", Duration.ofMinutes(1), Duration.ZERO);
        SimpleLock held = answered(() -> both.lock(job)).orElseThrow();
        assertTrue(old.lock(job).isEmpty() && answered(() -> next.lock(job)).isEmpty());
        held.unlock();
        for (LockProvider one : List.of(old, next)) {
            SimpleLock other = answered(() -> one.lock(job)).orElseThrow();
            assertTrue(answered(() -> both.lock(job)).isEmpty());
            other.unlock();
        }
        answered(() -> both.lock(job)).orElseThrow().unlock();
    }

    @Test
    void a_job_has_one_key_for_both() {
        try (RedisLocks own = Server.builder(Library.LETTUCE, SERVER.url()).oldClients(true).build()) {
            LockProvider old = new net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider(spring);
            LockProvider next = new RedisLockProvider(own, SHEDLOCK);
            LockConfiguration job = new LockConfiguration(Instant.now(), "report", Duration.ofMinutes(1), Duration.ZERO);
            for (List<LockProvider> both : List.of(List.of(old, next), List.of(next, old))) {
                SimpleLock held = answered(() -> both.get(0).lock(job)).orElseThrow();
                assertTrue(answered(() -> both.get(1).lock(job)).isEmpty());
                held.unlock();
            }
        }
    }

    @Test
    void the_page_has_what_runs_here() throws Exception {
        String page = Files.readString(Path.of(Server.ROOT, "docs/guide/migrating.md"));
        Path source = Path.of(Server.ROOT, "clients/java/tests/src/test/java/redislock/tests/MigratingTest.java");
        String here = Files.readString(source).replaceAll("\\s+", " ");
        List<MatchResult> blocks = Pattern.compile("```java\\n(.*?)```", Pattern.DOTALL).matcher(page).results().toList();
        assertEquals(4, blocks.size());
        assertTrue(page.contains("`new RedisLockRegistry(locks, \"" + NEXT_REGISTRY + "\")`"));
        assertTrue(page.contains("`new RedisLockProvider(locks, \"" + SHEDLOCK + "\")`"));
        for (MatchResult block : blocks) {
            assertTrue(here.contains(block.group(1).strip().replaceAll("\\s+", " ")), block::group);
        }
    }
}
