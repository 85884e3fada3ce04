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
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.Jedis;
import redislock.Hold;
import redislock.LockListener;
import redislock.LockUnavailableException;
import redislock.RedisLocks;
import redislock.spi.Threads;
import redislock.test.LockServer;

/** Connections that are cut, a server that is far away, one that forgets all: each way to wait, over each client library. */
@Execution(ExecutionMode.CONCURRENT)
class HinderedTest {
    private static final int MANY = 500;

    private final List<String> losses = new CopyOnWriteArrayList<>();

    /** Trouble is what these tests make. */
    private final LockListener listener = new LockListener() {
        @Override
        public void onLost(String key, Hold.Loss why) {
            losses.add(key + " " + why);
        }

        @Override
        public void onTrouble(String what, Throwable why) {}
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
                RedisLocks locks = server.builder(library).maxBlockingConnections(blocking).listener(listener).build()) {
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
        try (Server server = new Server();
                LateWire far = new LateWire(server.port(), 100);
                Jedis other = server.client();
                Calm calm = new Calm(server) {
                    @Override
                    public void onLost(String key, Hold.Loss why) {
                        losses.add(key + " " + why);
                    }
                };
                RedisLocks locks = Server.builder(library, far.url()).listener(calm).build()) {
            long began = System.nanoTime();
            List<Hold> holds = many(locks);
            long reads = Server.number(other, "stats", "total_reads_processed:") - calm.beats();
            long asks = 0;
            while (Server.number(other, "commandstats", "cmdstat_lock.extend:calls=") < MANY) {
                asks += 1;
                assertEquals(List.of(), losses);
                Thread.sleep(100);
            }
            reads = Server.number(other, "stats", "total_reads_processed:") - calm.beats() - reads - asks;
            assertTrue(reads < MANY / 2 || calm.isOver(), "they come together: " + reads);
            assertTrue(server.clients() <= connections(library) || calm.isOver());
            long extended = server.calls("lock.extend");
            double thirds = Math.max(1, (System.nanoTime() - began) / 1e10);
            assertTrue(extended <= 1.05 * MANY * thirds || calm.isOver(), "extended: " + extended);
            assertTrue(holds.stream().allMatch(Hold::isValid));
        }
        assertTrue(losses.stream().allMatch(loss -> loss.endsWith(" CLOSED")), losses::toString);
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void many_locks_of_a_far_server_outlive_all_connections_at_once(Library library) throws Exception {
        try (Server server = new Server();
                LateWire far = new LateWire(server.port(), 100);
                RedisLocks locks = Server.builder(library, far.url()).listener(listener).build()) {
            List<Hold> holds = many(locks);
            // Renewals have come, and no answer to them yet.
            Server.await("renewals", () -> server.calls("lock.extend") > 0);
            far.cut();
            Server.await("them again", () -> server.calls("lock.extend") >= 2 * MANY);
            assertTrue(server.clients() <= connections(library));
            assertTrue(holds.stream().allMatch(Hold::isValid));
            List<CompletableFuture<Boolean>> releases = holds.stream()
                    .map(hold -> hold.releaseAsync().handle((none, error) -> error == null || error instanceof LockUnavailableException))
                    .toList();
            far.cut();
            // What was not confirmed is repeated in the background.
            for (CompletableFuture<Boolean> release : releases) assertTrue(release.get(300, TimeUnit.SECONDS));
            Server.await("all to be free", () -> server.ask("DBSIZE").equals(0L));
            assertEquals(List.of(), losses);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void locks_outlive_their_connections_where_a_round_trip_takes_a_sixth_of_the_lease(Library library) throws Exception {
        Duration lease = Duration.ofSeconds(9);
        try (Server server = new Server();
                Calm calm = new Calm(server);
                LateWire far = new LateWire(server.port(), 0);
                RedisLocks locks = Server.builder(library, far.url()).lease(lease).listener(listener).build()) {
            Hold hold = locks.exclusive("k").acquire();
            far.delay(lease.toMillis() / 6);
            long renewed = server.calls("lock.extend");
            // The renewal has come, and its answer is on its way.
            Server.await("a renewal", () -> server.calls("lock.extend") > renewed || !hold.isValid());
            far.cut();
            long cut = System.nanoTime();
            Server.await("its lease to be over", () -> System.nanoTime() - cut > lease.toNanos() || !hold.isValid());
            assertTrue(hold.isValid() || calm.isOver());
        }
    }

    @Test
    void a_server_starts_and_ends_on_a_thread_that_is_interrupted() {
        Thread.currentThread().interrupt();
        try (LockServer server = Server.of()) {
            server.start();
            assertTrue(Thread.currentThread().isInterrupted());
        }
        assertTrue(Thread.interrupted());
    }

    /** With that of the test. */
    private static long connections(Library library) {
        return library == Library.LETTUCE ? 2 : 35;
    }

    private static List<Hold> many(RedisLocks locks) throws Exception {
        List<CompletableFuture<Hold>> asked = new ArrayList<>();
        for (int key = 0; key < MANY; key += 1) asked.add(locks.exclusive("k" + key).acquireAsync());
        List<Hold> holds = new ArrayList<>();
        for (CompletableFuture<Hold> each : asked) holds.add(each.get(300, TimeUnit.SECONDS));
        return holds;
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
        Server.await("its request", () -> server.waiting("k") == 1);
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
