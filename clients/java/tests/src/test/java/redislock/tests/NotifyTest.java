package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.Hold;
import redislock.LockListener;
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
        server.ask("CONFIG", "SET", "lock.away-ms", "2000");
    }

    private static List<?> firstWaiter(String key) {
        return (List<?>) ((List<?>) Backend.value((List<?>) server.ask("LOCK.INFO", key), "waiters")).get(0);
    }

    private static RedisLocks told(Library library) {
        return server.builder(library).maxBlockingConnections(0).build();
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
        try (RedisLocks locks = told(library)) {
            Hold first = locks.exclusive("k").acquireAsync().get(20, TimeUnit.SECONDS);
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
            Server.await("all to wait", () -> locks.info("k").orElseThrow().waiting() == 201);
            assertTrue(server.clients() <= 2);
            first.close();
            opens.get(20, TimeUnit.SECONDS).close();
            long last = 0;
            for (CompletableFuture<Long> each : all) {
                long fence = each.get(60, TimeUnit.SECONDS);
                assertTrue(fence > last, "first come, first served");
                last = fence;
            }
            long requests = server.calls("lock.acquire") + server.calls("lock.release") - before;
            // Each third of QUEUE that a wait lasts may add one, on a busy machine.
            long thirds = (System.nanoTime() - began) / 7_000_000_000L;
            assertTrue(requests >= 600 && requests < 660 + 200 * thirds, "requests: " + requests);
            assertTrue(server.number("lock_notified") >= 201);
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
        try (RedisLocks locks = server.builder(library).maxBlockingConnections(4).build()) {
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
            for (Future<?> each : all) each.get(120, TimeUnit.SECONDS);
        } finally {
            threads.shutdown();
        }
        assertTrue(most.get() <= 6, "connections: " + most);
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_subscription_that_is_cut_comes_back_and_nobody_waits_for_long(Library library) throws Exception {
        try (RedisLocks locks = told(library)) {
            CompletableFuture<Hold> wait = waiting(locks, "k");
            boolean isSoon = false;
            for (int round = 0; round < 3; round += 1) {
                long asked = server.calls("lock.acquire");
                long began = System.nanoTime();
                server.ask("CLIENT", "KILL", "TYPE", "pubsub");
                Server.await("all to be asked for", () -> server.calls("lock.acquire") > asked);
                Server.await("a new subscription", () -> server.subscribers() == 1);
                isSoon |= System.nanoTime() - began < 7_000_000_000L;
            }
            assertTrue(isSoon, "by itself a wait asks after 7.5 s at the earliest");
            long unheard = server.number("lock_notified_unheard");
            server.ask("LOCK.RELEASE", "k", "other");
            assertTrue(wait.get(30, TimeUnit.SECONDS).isValid());
            assertEquals(unheard, server.number("lock_notified_unheard"));
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_connection_that_is_cut_loses_no_place(Library library) throws Exception {
        try (RedisLocks locks = told(library)) {
            CompletableFuture<Hold> wait = waiting(locks, "k");
            String owner = locks.info("k").orElseThrow().waiters().get(0).owner();
            server.ask("LOCK.ACQUIRE", "k", "late", "QUEUE", "60000");
            // So long after its connection a place ends. By itself the wait would ask later, and stand behind the other.
            server.ask("CONFIG", "SET", "lock.away-ms", "6000");
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
            Server.await("the place to be asked for", () -> {
                List<?> first = firstWaiter("k");
                String name = new String((byte[]) Backend.value(first, "owner"), UTF_8);
                return name.equals(owner) && (Long) Backend.value(first, "queue_left_ms") > 15_000;
            });
            server.ask("LOCK.RELEASE", "k", "other");
            assertEquals(owner, wait.get(30, TimeUnit.SECONDS).owner());
            server.ask("LOCK.RELEASE", "k", "late");
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void without_the_right_to_be_told_waits_go_on_and_that_is_said_once(Library library) throws Exception {
        for (String rights : List.of("-publish", "-subscribe")) {
            goes_on_without(library, rights);
        }
    }

    private static void goes_on_without(Library library, String rights) throws Exception {
        server.ask("ACL", "SETUSER", "mute", "reset", "on", ">secret", "~*", "&*", "+@all", rights);
        String url = server.url().replace("//", "//mute:secret@");
        List<String> troubles = new CopyOnWriteArrayList<>();
        LockListener listener = new LockListener() {
            @Override
            public void onTrouble(String what, Throwable why) {
                troubles.add(what);
            }
        };
        try (RedisLocks locks = Server.builder(library, url)
                .maxBlockingConnections(0)
                .listener(listener)
                .build()) {
            List<CompletableFuture<Void>> all = new ArrayList<>();
            Hold first = locks.exclusive("k").acquireAsync().get(20, TimeUnit.SECONDS);
            for (int wait = 0; wait < 3; wait += 1) all.add(locks.exclusive("k").acquireAsync().thenAccept(Hold::close));
            Server.await("all to wait", () -> locks.info("k").orElseThrow().waiting() == 3);
            Server.await("the trouble", () -> !troubles.isEmpty());
            first.close();
            for (CompletableFuture<Void> each : all) each.get(30, TimeUnit.SECONDS);
        }
        assertEquals(1, troubles.size(), troubles::toString);
        assertTrue(troubles.get(0).contains("PUBLISH"), troubles::toString);
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void messages_of_a_forger_make_few_requests(Library library) throws Exception {
        try (RedisLocks locks = told(library)) {
            CompletableFuture<Hold> wait = waiting(locks, "k");
            String owner = locks.info("k").orElseThrow().waiters().get(0).owner();
            String channel = server.channel();
            long before = server.calls("lock.acquire");
            long began = System.nanoTime();
            AtomicBoolean isEnough = new AtomicBoolean();
            for (int message = 0; !isEnough.get(); message += 1) {
                server.ask("PUBLISH", channel, message % 3 == 0 ? "*" : message % 3 == 1 ? owner : "nobody");
                isEnough.set(System.nanoTime() - began > 2_000_000_000L && message > 300);
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            long requests = server.calls("lock.acquire") - before;
            // Twice at once, then after 0.1, 0.2, 0.4, 0.8 and 1 s.
            assertTrue(requests >= 2 && requests <= 8 + seconds, requests + " in " + seconds + " s");
            server.ask("LOCK.RELEASE", "k", "other");
            wait.get(30, TimeUnit.SECONDS).close();
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_shorter_longest_place_is_taken(Library library) throws Exception {
        server.ask("CONFIG", "SET", "lock.max-queue-ms", "6000");
        try (RedisLocks locks = told(library)) {
            CompletableFuture<Hold> wait = waiting(locks, "k");
            server.ask("LOCK.RELEASE", "k", "other");
            wait.get(30, TimeUnit.SECONDS).close();
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_wait_that_is_cancelled_or_over_leaves_the_queue(Library library) throws Exception {
        try (RedisLocks locks = told(library)) {
            CompletableFuture<Hold> wait = waiting(locks, "k");
            assertTrue(locks.exclusive("k").tryAcquireAsync(Duration.ofMillis(300)).get(30, TimeUnit.SECONDS).isEmpty());
            assertEquals(1, locks.info("k").orElseThrow().waiting());
            wait.cancel(true);
            Server.await("no waiter", () -> locks.info("k").orElseThrow().waiting() == 0);
            // In the moment of the offer, too.
            for (int round = 0; round < 100; round += 1) {
                CompletableFuture<Hold> next = locks.exclusive("k").acquireAsync();
                Server.await("a waiter", () -> locks.info("k").orElseThrow().waiting() == 1);
                server.ask("LOCK.RELEASE", "k", "other");
                next.cancel(true);
                // It may have come first.
                Hold mine = next.exceptionally(error -> null).get(20, TimeUnit.SECONDS);
                if (mine != null) mine.close();
                Server.await("nobody", () -> locks.info("k").isEmpty());
                server.ask("LOCK.ACQUIRE", "k", "other", "PX", "600000");
            }
            assertFalse(locks.info("k").isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void in_a_cluster_messages_go_by_shards(Library library) throws Exception {
        try (Server node = new Server("--cluster-enabled", "yes")) {
            node.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
            Server.await("the cluster", () -> String.valueOf(node.text("CLUSTER", "INFO")).contains("cluster_state:ok"));
            try (RedisLocks locks = node.builder(library).maxBlockingConnections(0).build()) {
                Hold first = locks.exclusive("k").acquireAsync().get(20, TimeUnit.SECONDS);
                CompletableFuture<Hold> wait = locks.exclusive("k").acquireAsync();
                Server.await("a channel", () -> node.number("lock_notify_channels") == 1);
                first.close();
                wait.get(30, TimeUnit.SECONDS).close();
                assertEquals(0, node.number("lock_notified_unheard"));
                assertEquals(1, node.number("lock_notified"));
            }
        }
    }
}
