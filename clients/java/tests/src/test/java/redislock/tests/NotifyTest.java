package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.Hold;
import redislock.RedisLocks;
import redislock.spi.Threads;

/** Waits without a connection of their own: the server tells them when to ask again. */
class NotifyTest {
    private static Server server;

    @BeforeAll
    static void start() throws Exception {
        server = new Server();
    }

    @AfterAll
    static void stop() throws Exception {
        server.close();
    }

    @BeforeEach
    void await() {
        Server.await("nothing of another test", () -> server.clients() == 0 && server.number("lock_notify_channels") == 0);
    }

    @AfterEach
    void forget() {
        server.ask("FLUSHALL");
        server.ask("CONFIG", "RESETSTAT");
        server.ask("CONFIG", "SET", "lock.max-queue-ms", "60000");
    }

    private static RedisLocks told(Library library, Calm calm) {
        return server.builder(library).maxBlockingConnections(0).listener(calm).build();
    }

    /** A wait that has asked with NOTIFY, behind somebody else. */
    private static CompletableFuture<Hold> waiting(RedisLocks locks, String key) {
        server.ask("LOCK.ACQUIRE", key, "other", "PX", "600000");
        CompletableFuture<Hold> wait = locks.exclusive(key).acquireAsync();
        Server.await("a channel", () -> server.number("lock_notify_channels") == 1);
        return wait;
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void many_waits_take_two_connections_and_three_requests_each(Library library) throws Exception {
        try (Calm calm = new Calm(server);
                RedisLocks locks = told(library, calm)) {
            Hold first = locks.exclusive("k").acquireAsync().get(300, TimeUnit.SECONDS);
            CompletableFuture<Hold> opens = locks.exclusive("k").acquireAsync();
            Server.await("a subscription", () -> server.number("lock_notify_channels") == 1);
            long before = server.calls("lock.acquire") + server.calls("lock.release");
            long began = System.nanoTime();
            List<CompletableFuture<Long>> all = new ArrayList<>();
            for (int wait = 0; wait < 200; wait += 1) {
                all.add(locks.exclusive("k").acquireAsync().thenApply(hold -> {
                    hold.close();
                    return hold.fence();
                }));
            }
            Server.await("all to wait", () -> server.waiting("k") == 201);
            Server.await("two connections", () -> server.clients() <= 2 || calm.isOver());
            first.close();
            opens.get(300, TimeUnit.SECONDS).close();
            long last = 0;
            for (CompletableFuture<Long> each : all) {
                long fence = each.get(300, TimeUnit.SECONDS);
                assertTrue(fence > last || calm.isOver(), "first come, first served");
                last = fence;
            }
            long requests = server.calls("lock.acquire") + server.calls("lock.release") - before;
            // Each third of QUEUE that a wait lasts may add one, on a busy machine.
            long thirds = (System.nanoTime() - began) / 7_000_000_000L;
            assertTrue(requests >= 600 && requests < 660 + 200 * thirds || calm.isOver(), "requests: " + requests);
            assertTrue(server.number("lock_notified") >= 201);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void thousands_of_waits_for_hundreds_of_keys_are_all_served_over_two_connections(Library library) throws Exception {
        int keys = System.getenv("REDIS_LOCK_NIGHTLY") == null ? 200 : 1_000;
        try (Calm calm = new Calm(server);
                RedisLocks locks = told(library, calm)) {
            List<CompletableFuture<Void>> all = new ArrayList<>();
            for (int wait = 0; wait < 10 * keys; wait += 1) {
                all.add(locks.exclusive("k" + wait % keys).acquireAsync().thenAccept(Hold::close));
            }
            CompletableFuture<Void> last = CompletableFuture.allOf(all.toArray(CompletableFuture<?>[]::new));
            int many = 0;
            while (!last.isDone()) {
                // Those that have ended, also of the test before, are counted until a busy server has read that.
                many = server.clients() <= 2 + 2 || calm.isOver() ? 0 : many + 1;
                assertTrue(many < 50, "more than two connections");
                Thread.sleep(20);
            }
            last.join();
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_thousand_threads_on_one_lock_take_no_more_than_two_connections_beside_those_that_block(Library library)
            throws Exception {
        a_thousand_threads_take_no_more_than_two_connections_beside_those_that_block(server, library);
    }

    /** Virtual ones from Java 21 on. */
    static void a_thousand_threads_take_no_more_than_two_connections_beside_those_that_block(Server server, Library library)
            throws Exception {
        ExecutorService threads = Threads.each("contender");
        AtomicLong most = new AtomicLong();
        AtomicLong inside = new AtomicLong();
        try (Calm calm = new Calm(server);
                RedisLocks locks = server.builder(library).maxBlockingConnections(4).listener(calm).build()) {
            List<Future<?>> all = new ArrayList<>();
            for (int count = 0; count < 1_000; count += 1) {
                int number = count;
                all.add(threads.submit(() -> {
                    try (Hold hold = locks.exclusive("k").acquire()) {
                        assertEquals(1, inside.incrementAndGet());
                        if (number % 20 == 0) most.accumulateAndGet(server.clients(), Math::max);
                        inside.decrementAndGet();
                    }
                    return null;
                }));
            }
            for (Future<?> each : all) each.get(500, TimeUnit.SECONDS);
            assertTrue(most.get() <= 6 || calm.isOver(), "connections: " + most);
        } finally {
            threads.shutdown();
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_shorter_longest_place_is_taken(Library library) throws Exception {
        server.ask("CONFIG", "SET", "lock.max-queue-ms", "6000");
        try (Calm calm = new Calm(server);
                RedisLocks locks = told(library, calm)) {
            CompletableFuture<Hold> wait = waiting(locks, "k");
            server.ask("LOCK.RELEASE", "k", "other");
            wait.get(300, TimeUnit.SECONDS).close();
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void in_a_cluster_messages_go_by_shards(Library library) throws Exception {
        try (Server node = new Server("--cluster-enabled", "yes")) {
            node.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
            Server.await("the cluster", () -> String.valueOf(node.text("CLUSTER", "INFO")).contains("cluster_state:ok"));
            try (RedisLocks locks = node.builder(library).maxBlockingConnections(0).build()) {
                Hold first = locks.exclusive("k").acquireAsync().get(300, TimeUnit.SECONDS);
                CompletableFuture<Hold> wait = locks.exclusive("k").acquireAsync();
                Server.await("a channel", () -> node.number("lock_notify_channels") == 1);
                first.close();
                wait.get(300, TimeUnit.SECONDS).close();
                assertEquals(0, node.number("lock_notified_unheard"));
                assertEquals(1, node.number("lock_notified"));
            }
        }
    }
}
