package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
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
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
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
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import redislock.RedisLocks;
import redislock.shedlock.RedisLockProvider;
import redislock.test.LockServer;

/** The phases of docs/guide/migrating.md, with the locks of Redisson, Spring Integration and ShedLock for Redis. */
class MigratingTest {
    @RegisterExtension
    static final LockServer SERVER = Server.of();

    private RedissonClient redisson;
    private LettuceConnectionFactory spring;
    private RedisLockRegistry registry;
    private RedisLocks locks;

    /** Whose lock the program has today. */
    enum Old {
        REDISSON,
        SPRING
    }

    private Old today = Old.REDISSON;

    /** What a phase has around its work. */
    private interface Phase {
        void run(Runnable inside);
    }

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
        registry = new RedisLockRegistry(spring, "registry", 10L * patience);
        locks = Server.builder(Library.LETTUCE, SERVER.url()).build();
    }

    @AfterEach
    void close() {
        locks.close();
        registry.destroy();
        spring.destroy();
        redisson.shutdown(0, 1, TimeUnit.SECONDS);
    }

    private Lock before() {
        return today == Old.SPRING ? registry.obtain("report") : redisson.getLock("report");
    }

    private Lock after() {
        return locks.asLock("report:v2");
    }

    private void old(Runnable work) {
        Lock lock = before();
        lock.lock();
        try {
            work.run();
        } finally {
            lock.unlock();
        }
    }

    private void next(Runnable work) {
        Lock lock = after();
        lock.lock();
        try {
            work.run();
        } finally {
            lock.unlock();
        }
    }

    private void both(Runnable inside) {
        Lock old = before();
        Lock lock = after();
        class Program {
            void work() {
                inside.run();
            }

            void run() {
                old.lock();
                try {
                    lock.lock();
                    try {
                        work();
                    } finally {
                        lock.unlock();
                    }
                } finally {
                    old.unlock();
                }
            }
        }
        new Program().run();
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
        for (List<Phase> phases : List.<List<Phase>>of(List.of(this::old, this::both), List.of(this::both, this::next))) {
            List<CompletableFuture<Void>> workers = new ArrayList<>();
            for (Phase phase : phases) {
                for (int worker = 0; worker < 2; worker++) {
                    workers.add(CompletableFuture.runAsync(() -> {
                        for (int turn = 0; turn < 5; turn++) phase.run(work);
                    }, task -> new Thread(task).start()));
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
        old(() -> assertTrue(elsewhere(() -> !isFree(before())) && isFree(after())));
        both(() -> assertFalse(elsewhere(() -> isFree(before())) || elsewhere(() -> isFree(after()))));
        next(() -> assertTrue(elsewhere(() -> isFree(before())) && !elsewhere(() -> isFree(after()))));
    }

    private static boolean isFree(Lock lock) {
        boolean isFree = answered(lock::tryLock);
        if (isFree) lock.unlock();
        return isFree;
    }

    private static <T> T answered(Callable<T> call) {
        try {
            return Backend.answered(call);
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    /** In another thread, since both are re-entrant. */
    private static boolean elsewhere(BooleanSupplier question) {
        return CompletableFuture.supplyAsync(question::getAsBoolean, task -> new Thread(task).start()).join();
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
    void the_page_has_what_runs_here() throws Exception {
        String root = Optional.ofNullable(System.getenv("REDIS_LOCK_ROOT")).orElse("../../..");
        String page = Files.readString(Path.of(root, "docs/guide/migrating.md"));
        Path source = Path.of(root, "clients/java/tests/src/test/java/redislock/tests/MigratingTest.java");
        String here = Files.readString(source).replaceAll("\\s+", " ");
        List<MatchResult> blocks = Pattern.compile("```java\\n(.*?)```", Pattern.DOTALL).matcher(page).results().toList();
        assertEquals(2, blocks.size());
        for (MatchResult block : blocks) {
            assertTrue(here.contains(block.group(1).strip().replaceAll("\\s+", " ")), block::group);
        }
    }
}
