package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.Jedis;
import redislock.Hold;
import redislock.RedisLocks;
import redislock.spi.Threads;

/** Connections that are cut, a server that is far away, one that forgets all: each way to wait, over each client library. */
@Execution(ExecutionMode.CONCURRENT)
class HinderedTest {
    private final List<String> losses = new CopyOnWriteArrayList<>();

    private final Calm calm = new Calm() {
        @Override
        public void onLost(String key, Hold.Loss why) {
            losses.add(key + " " + why);
        }
    };

    private static Stream<Arguments> ways() {
        return Stream.of(Library.LETTUCE, Library.JEDIS).flatMap(
                library -> Stream.of(0, 32).map(blocking -> Arguments.of(library, blocking)));
    }

    @ParameterizedTest
    @MethodSource("ways")
    void connections_that_are_cut_again_and_again_stop_no_thread_and_lose_no_lock(Library library, int blocking) throws Exception {
        int count = 64;
        int turns = 5;
        ExecutorService threads = Threads.each("contender");
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger taken = new AtomicInteger();
        try (Server server = new Server();
                RedisLocks locks = server.builder(library).maxBlockingConnections(blocking).listener(calm).build()) {
            List<Future<?>> all = new ArrayList<>();
            for (int thread = 0; thread < count; thread += 1) {
                all.add(threads.submit(() -> {
                    for (int turn = 0; turn < turns; turn += 1) {
                        try (Hold hold = locks.exclusive("k").acquire()) {
                            assertEquals(1, inside.incrementAndGet());
                            assertTrue(hold.isValid());
                            taken.incrementAndGet();
                            inside.decrementAndGet();
                        }
                    }
                    return null;
                }));
            }
            // Each time when some went on, however slow the machine is.
            for (int cut = 1; cut < 10; cut += 1) {
                int before = cut * count * turns / 10;
                Server.await("more locks", () -> taken.get() >= before);
                for (String type : List.of("normal", "pubsub")) server.ask("CLIENT", "KILL", "TYPE", type);
            }
            for (Future<?> each : all) each.get(300, TimeUnit.SECONDS);
            assertEquals(count * turns, taken.get());
            Server.await("nobody", () -> server.ask("LOCK.INFO", "k") == null);
        } finally {
            threads.shutdown();
        }
        assertEquals(List.of(), losses);
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void many_locks_of_a_far_server_are_renewed_together(Library library) throws Exception {
        int count = 450;
        try (Server server = new Server();
                LateWire far = new LateWire(server.port(), 100);
                Jedis other = server.client();
                RedisLocks locks = Server.builder(library, far.url()).lease(Duration.ofSeconds(30)).listener(calm).build()) {
            long began = System.nanoTime();
            List<CompletableFuture<Hold>> asked = new ArrayList<>();
            for (int key = 0; key < count; key += 1) asked.add(locks.exclusive("k" + key).acquireAsync());
            List<Hold> holds = new ArrayList<>();
            for (CompletableFuture<Hold> each : asked) holds.add(each.get(300, TimeUnit.SECONDS));
            long reads = Server.number(other, "stats", "total_reads_processed:");
            long asks = 0;
            while (Server.number(other, "commandstats", "cmdstat_lock.extend:calls=") < count) {
                asks += 1;
                assertEquals(List.of(), losses);
                Thread.sleep(100);
            }
            reads = Server.number(other, "stats", "total_reads_processed:") - reads - asks;
            assertTrue(reads < count / 2 || calm.isOver(), "they come together: " + reads);
            assertTrue(server.clients() <= (library == Library.LETTUCE ? 2 : 35) || calm.isOver(), "with that of this test");
            long extended = server.calls("lock.extend");
            double thirds = Math.max(1, (System.nanoTime() - began) / 1e10);
            assertTrue(extended <= 1.05 * count * thirds || calm.isOver(), "extended: " + extended);
            assertTrue(holds.stream().allMatch(Hold::isValid));
        }
        assertTrue(losses.stream().allMatch(loss -> loss.endsWith(" CLOSED")), losses::toString);
    }

    @ParameterizedTest
    @MethodSource("ways")
    void a_lock_that_the_server_forgot_goes_to_a_waiter_at_once(Library library, int blocking) throws Exception {
        try (Server server = new Server();
                RedisLocks locks = server.builder(library).maxBlockingConnections(blocking).build()) {
            boolean isServed = false;
            // A wait that is as old as this asks by itself: then it is played again.
            for (int tries = 0; tries < 10 && !isServed; tries += 1) {
                isServed = isServed(server, locks, blocking, Duration.ofSeconds(2));
            }
            assertTrue(isServed);
        }
    }

    private static boolean isServed(Server server, RedisLocks locks, int blocking, Duration asksByItself) throws Exception {
        server.ask("LOCK.ACQUIRE", "k", "other", "PX", "600000");
        long began = System.nanoTime();
        CompletableFuture<Hold> wait = locks.exclusive("k").acquireAsync();
        if (blocking == 0) Server.await("a channel", () -> server.number("lock_notify_channels") == 1);
        else Server.await("a request that waits", () -> server.text("INFO", "clients").contains("blocked_clients:1"));
        long before = server.calls("lock.acquire");
        server.ask("FLUSHALL");
        Hold hold = wait.get(300, TimeUnit.SECONDS);
        long requests = server.calls("lock.acquire") - before;
        hold.close();
        if (System.nanoTime() - began > asksByItself.toNanos()) return false;
        // Told, it asks once more.
        assertEquals(blocking == 0 ? 1 : 0, requests);
        return true;
    }
}
