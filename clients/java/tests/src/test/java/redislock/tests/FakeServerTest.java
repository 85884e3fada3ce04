package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import redislock.DeadlockException;
import redislock.Hold;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.RedisLocks;
import redislock.spi.Clock;
import redislock.spi.Connection;
import redislock.spi.Transport;
import redislock.test.FakeServer;

/** What a test does with the server in memory. */
class FakeServerTest {
    private static final Duration LEASE = Duration.ofMinutes(5);
    /** For less than a request has for its answer. */
    private static final Duration HEARD = Duration.ofSeconds(2);

    private static RedisLocks over(FakeServer server) {
        return RedisLocks.builder(server.transport()).lease(LEASE).build();
    }

    @Test
    void a_lock_that_is_taken_away_is_lost_at_the_next_renewal() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server)) {
            Hold hold = locks.exclusive("k").acquire();
            server.lose("k");
            assertTrue(hold.isValid(), "it does not know yet");
            server.advance(LEASE.dividedBy(3).plusMillis(1));
            assertEquals(Hold.Loss.TAKEN_AWAY, hold.lost().get(300, TimeUnit.SECONDS));
            assertThrows(LockLostException.class, hold::close);
        }
    }

    @Test
    void leases_pass_at_once_and_a_renewed_one_stays() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server);
                RedisLocks others = over(server)) {
            Hold hold = locks.exclusive("k").acquire();
            for (int third = 0; third < 12; third += 1) {
                long before = server.calls("LOCK.EXTEND");
                server.advance(LEASE.dividedBy(3).plusMillis(1));
                Server.await("the renewal", () -> server.calls("LOCK.EXTEND") > before);
            }
            assertTrue(hold.isValid());
            server.expire();
            assertEquals(Hold.Loss.LEASE_OVER, hold.lost().get(300, TimeUnit.SECONDS));
            assertTrue(others.exclusive("k").tryAcquire(Duration.ZERO).isPresent());
        }
    }

    @Test
    void somebody_else_holds_it_until_it_is_taken_away() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server)) {
            long fence = server.take("k");
            assertThrows(IllegalStateException.class, () -> server.take("k"));
            assertEquals(Optional.empty(), locks.exclusive("k").tryAcquire(Duration.ofMillis(20)));
            CompletableFuture<Hold> next = locks.exclusive("k").acquireAsync();
            server.lose("k");
            assertTrue(next.get(300, TimeUnit.SECONDS).fence() > fence);
        }
    }

    @Test
    void a_server_that_is_down_is_no_empty_answer_and_waits_go_on_when_it_is_back() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server)) {
            locks.exclusive("k").acquire().close();
            server.down(true);
            assertThrows(LockUnavailableException.class, () -> locks.exclusive("k").tryAcquire(Duration.ZERO));
            CompletableFuture<Hold> later = locks.exclusive("k").acquireAsync();
            server.down(false);
            later.get(300, TimeUnit.SECONDS).close();
        }
    }

    @Test
    void a_guard_answers_what_the_test_says() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server);
                Hold hold = locks.exclusive("k").acquire()) {
            List<List<String>> seen = new ArrayList<>();
            server.guarded(command -> {
                seen.add(command);
                return 7L;
            });
            assertEquals(7L, hold.guard("INCR", "counter"));
            assertEquals(List.of(List.of("INCR", "counter")), seen);
        }
    }

    @Test
    void a_cycle_is_a_deadlock() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server)) {
            Hold first = locks.exclusive("a").acquireAsync().get(300, TimeUnit.SECONDS);
            Hold second = locks.exclusive("b").acquireAsync().get(300, TimeUnit.SECONDS);
            CompletableFuture<Hold> waits = locks.exclusive("b").within(first).acquireAsync();
            DeadlockException told =
                    assertThrows(DeadlockException.class, () -> locks.exclusive("a").within(second).acquire());
            for (Hold each : List.of(first, second)) assertTrue(told.getMessage().contains(each.owner()), told::getMessage);
            second.close();
            waits.get(300, TimeUnit.SECONDS).close();
        }
    }

    @Test
    void waits_that_are_told_come_in_their_order_and_shares_up_to_their_limit() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = RedisLocks.builder(server.transport()).maxBlockingConnections(0).build()) {
            List<Hold> within = new ArrayList<>();
            for (int count = 0; count < 3; count += 1) within.add(locks.semaphore("s", 3, 1).acquire());
            List<CompletableFuture<Long>> all = new ArrayList<>();
            for (int count = 0; count < 20; count += 1) {
                all.add(locks.semaphore("s", 3, 1).acquireAsync().thenApply(hold -> {
                    assertTrue(locks.info("s").orElseThrow().shares() <= 3);
                    hold.close();
                    return hold.fence();
                }));
            }
            assertFalse(all.get(0).isDone());
            within.forEach(Hold::close);
            for (CompletableFuture<Long> each : all) each.get(300, TimeUnit.SECONDS);
            assertEquals(Optional.empty(), locks.info("s"));
        }
    }

    @Test
    void a_message_to_all_lets_those_ask_whose_own_message_was_lost() throws Exception {
        // A wait that is as old as this asks by itself: then it is played again.
        while (!isAskedAfterAMessageToAll(Duration.ofSeconds(7))) {}
    }

    private static boolean isAskedAfterAMessageToAll(Duration asksByItself) throws Exception {
        try (FakeServer server = new FakeServer()) {
            AtomicReference<Consumer<byte[]>> channel = new AtomicReference<>();
            AtomicBoolean isDeaf = new AtomicBoolean();
            Transport way = server.transport();
            Transport hears = (Transport) Proxy.newProxyInstance(
                    Transport.class.getClassLoader(), new Class<?>[] {Transport.class}, (proxy, method, words) -> {
                        if (method.getName().equals("subscribe")) {
                            @SuppressWarnings("unchecked")
                            Consumer<byte[]> told = (Consumer<byte[]>) words[3];
                            channel.set(told);
                            words[3] = (Consumer<byte[]>) owner -> {
                                if (!isDeaf.get()) told.accept(owner);
                            };
                        }
                        return method.invoke(way, words);
                    });
            try (RedisLocks locks = RedisLocks.builder(hears).maxBlockingConnections(0).build()) {
                server.take("a");
                CompletableFuture<Hold> subscribes = locks.exclusive("a").acquireAsync();
                Server.await("a subscription", () -> channel.get() != null);
                server.lose("a");
                subscribes.get(300, TimeUnit.SECONDS).close();
                isDeaf.set(true);
                server.take("b");
                long began = System.nanoTime();
                List<CompletableFuture<Hold>> waits = List.of(locks.exclusive("b").acquireAsync(), locks.exclusive("b").acquireAsync());
                Server.await("two places", () -> locks.info("b").orElseThrow().waiting() == 2);
                for (CompletableFuture<Hold> ignored : waits) {
                    // Before the message: one may be granted at once.
                    CompletableFuture<?>[] left = waits.stream().filter(wait -> !wait.isDone()).toArray(CompletableFuture<?>[]::new);
                    server.lose("b");
                    channel.get().accept("*".getBytes(UTF_8));
                    CompletableFuture.anyOf(left).get(300, TimeUnit.SECONDS);
                }
                return System.nanoTime() - began < asksByItself.toNanos();
            }
        }
    }

    @Test
    void many_holds_are_renewed_once_each_third_of_the_lease_on_one_connection() throws Exception {
        int count = 450;
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server)) {
            List<Hold> holds = new ArrayList<>();
            for (int key = 0; key < count; key += 1) holds.add(locks.exclusive("k" + key).acquire());
            for (int third = 1; third <= 6; third += 1) {
                server.advance(LEASE.dividedBy(3).plusMillis(1));
                long renewed = (long) third * count;
                Server.await("the renewals", () -> server.calls("LOCK.EXTEND") >= renewed);
                assertEquals(renewed, server.calls("LOCK.EXTEND"));
            }
            assertTrue(holds.stream().allMatch(Hold::isValid));
            assertEquals(1, server.connections());
        }
    }

    @Test
    void a_lock_of_old_clients_is_held_by_others_while_there_may_be_some() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = RedisLocks.builder(server.transport()).oldClients(true).build()) {
            server.ask("SET", "k", "of an old client");
            assertEquals(Optional.empty(), locks.exclusive("k").tryAcquire(Duration.ZERO));
            assertEquals(Optional.empty(), locks.exclusive("k").tryAcquire(Duration.ofMillis(20)));
            CompletableFuture<Hold> next = locks.exclusive("k").acquireAsync();
            assertFalse(next.isDone());
            server.ask("DEL", "k");
            next.get(300, TimeUnit.SECONDS).close();
        }
    }

    @Test
    void a_guarded_write_is_seen_and_one_over_a_lock_is_its_loss() throws Exception {
        try (FakeServer server = new FakeServer();
                RedisLocks locks = over(server)) {
            Hold hold = locks.exclusive("k").acquire();
            hold.guard("SET", "data", "v");
            assertEquals(1L, server.ask("EXISTS", "data", "none"));
            server.ask("SET", "k", "text");
            assertThrows(LockLostException.class, hold::close);
            assertThrows(LockUnavailableException.class, () -> locks.exclusive("k").tryAcquire(Duration.ZERO));
        }
    }

    @Test
    void a_grant_that_comes_after_its_wait_was_given_up_is_given_back() throws Exception {
        // On a busy machine a request may be too late to be heard at all: then it is played again.
        while (!isGivenBack()) {}
    }

    private static boolean isGivenBack() throws Exception {
        try (FakeServer server = new FakeServer()) {
            Late late = new Late(server.transport(), false);
            try (RedisLocks locks = RedisLocks.builder(late).lease(LEASE).build()) {
                CompletableFuture<Hold> wait = locks.exclusive("k").acquireAsync();
                Server.await("the request", () -> late.request != null);
                assertTrue(wait.cancel(true));
                // One at once, and two since the request was not answered.
                Server.await("the releases", () -> server.calls("LOCK.RELEASE") >= 3);
                late.request.run();
                if (System.nanoTime() - late.since > HEARD.toNanos()) return false;
                assertEquals(1, server.calls("LOCK.ACQUIRE"));
                Server.await("the last release", () -> server.ask("LOCK.INFO", "k") == null);
                return true;
            }
        }
    }

    @Test
    void a_lease_counts_from_before_its_request() throws Exception {
        while (!isCountedFromBefore()) {}
    }

    private static boolean isCountedFromBefore() throws Exception {
        try (FakeServer server = new FakeServer()) {
            Late late = new Late(server.transport(), false);
            try (RedisLocks locks = RedisLocks.builder(late).lease(LEASE).build()) {
                CompletableFuture<Hold> asked = locks.exclusive("k").acquireAsync();
                Server.await("the request", () -> late.request != null);
                server.advance(LEASE.dividedBy(4));
                late.request.run();
                Duration left = asked.get(300, TimeUnit.SECONDS).validFor();
                if (System.nanoTime() - late.since > HEARD.toNanos()) return false;
                assertTrue(left.compareTo(LEASE.dividedBy(4).multipliedBy(3)) <= 0, left::toString);
                return true;
            }
        }
    }

    @Test
    void two_requests_that_are_answered_are_one_hold() throws Exception {
        try (FakeServer server = new FakeServer()) {
            Late late = new Late(server.transport(), true);
            try (RedisLocks locks = RedisLocks.builder(late).lease(LEASE).build()) {
                Hold hold = locks.exclusive("k").acquireAsync().get(300, TimeUnit.SECONDS);
                assertEquals(2, server.calls("LOCK.ACQUIRE"), "the first one was not heard");
                late.request.run();
                assertTrue(hold.check());
                assertEquals(0, server.calls("LOCK.RELEASE"));
                hold.close();
                assertEquals(Optional.empty(), locks.info("k"));
            }
        }
    }

    /** Holds the first request for a lock back, or the answer to it. */
    private static final class Late implements Transport {
        private final Transport real;
        private final boolean isAsked;
        volatile Runnable request;
        volatile long since;

        Late(Transport real, boolean isAsked) {
            this.real = real;
            this.isAsked = isAsked;
        }

        @Override
        public CompletableFuture<Connection> connect(String address) {
            return real.connect(address).thenApply(Slow::new);
        }

        @Override
        public boolean isMultiplexed() {
            return real.isMultiplexed();
        }

        @Override
        public Clock clock() {
            return real.clock();
        }

        @Override
        public void close() {
            try {
                real.close();
            } catch (Exception never) {
                throw new AssertionError(never);
            }
        }

        private final class Slow implements Connection {
            private final Connection connection;

            Slow(Connection connection) {
                this.connection = connection;
            }

            @Override
            public List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect) {
                if (request != null || !new String(requests.get(0)[0], UTF_8).equals("LOCK.ACQUIRE")) {
                    return connection.send(requests, millis, isDirect);
                }
                CompletableFuture<Object> reply = new CompletableFuture<>();
                since = System.nanoTime();
                if (isAsked) {
                    CompletableFuture<Object> answer = connection.send(requests, millis, isDirect).get(0);
                    request = () -> answer.thenAccept(reply::complete);
                } else {
                    request = () -> connection.send(requests, millis, isDirect).get(0).thenAccept(reply::complete);
                }
                return List.of(reply);
            }

            @Override
            public boolean isOpen() {
                return connection.isOpen();
            }

            @Override
            public void close() {
                connection.close();
            }
        }
    }
}
